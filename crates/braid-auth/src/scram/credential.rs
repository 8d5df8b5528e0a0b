//! Credential of a user as the server stores it.

use std::fmt;

use base64ct::{Base64, Encoding};
use pbkdf2::pbkdf2_hmac_array;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;

use super::{DIGEST_BYTES, Digest, MECHANISM, hmac, prepare_password};

/// Minimum iteration count (RFC 7677, section 4).
pub const MIN_ITERATIONS: u32 = 4_096;

/// Maximum iteration count: half a second of a processor of 2020.
pub const MAX_ITERATIONS: u32 = 1_000_000;

/// Iteration count of new credentials.
///
/// The client computes them at each connect, about 5 ms on a desktop and half a second on a microcontroller, which is
/// why this is below the 600,000 that OWASP advises for PBKDF2 on servers. MongoDB uses the same count. A stolen
/// argon2id hash resists guessing longer.
pub const DEFAULT_ITERATIONS: u32 = 15_000;

/// Minimum length of a salt.
pub const MIN_SALT_BYTES: usize = 8;

/// Maximum length of a salt.
pub const MAX_SALT_BYTES: usize = 64;

/// Credential of SCRAM-SHA-256: salt, iteration count, StoredKey and ServerKey.
///
/// Its text form is that of PostgreSQL, `SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY`. It
/// suffices to pretend to be the server and to guess passwords, and not to log in.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramCredential {
    pub(super) iterations: u32,
    pub(super) salt: Box<[u8]>,
    pub(super) stored_key: Digest,
    pub(super) server_key: Digest,
}

/// Reason why a text or parameters are no credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CredentialError {
    /// The text has another form.
    #[error("a SCRAM credential is `{MECHANISM}$ITERATIONS:SALT$STOREDKEY:SERVERKEY`")]
    Form,
    /// The iteration count is no decimal number, or out of bounds.
    #[error("the iterations of a SCRAM credential are {MIN_ITERATIONS} to {MAX_ITERATIONS}")]
    Iterations,
    /// The salt is not Base64, or its length is out of bounds.
    #[error("the salt of a SCRAM credential is Base64 of {MIN_SALT_BYTES} to {MAX_SALT_BYTES} bytes")]
    Salt,
    /// A key is not Base64, or its length is wrong.
    #[error("the keys of a SCRAM credential are Base64 of {DIGEST_BYTES} bytes")]
    Keys,
}

impl ScramCredential {
    /// Derives the credential of a password, which takes as long as the iteration count says.
    ///
    /// # Errors
    /// The salt or the iteration count is out of bounds.
    pub fn derive(password: &[u8], salt: &[u8], iterations: u32) -> Result<Self, CredentialError> {
        check(salt, iterations)?;
        let salted = salted_password(password, salt, iterations);
        let stored_key = Sha256::digest(client_key(&salted)).into();
        Ok(Self { iterations, salt: salt.into(), stored_key, server_key: server_key(&salted) })
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// The text has another form, or a value is out of bounds.
    pub fn parse(text: &str) -> Result<Self, CredentialError> {
        let parts = text.strip_prefix(MECHANISM).and_then(|text| text.strip_prefix('$')?.split_once('$'));
        let (parameters, keys) = parts.ok_or(CredentialError::Form)?;
        let (iterations, salt) = parameters.split_once(':').ok_or(CredentialError::Form)?;
        let (stored_key, server_key) = keys.split_once(':').ok_or(CredentialError::Form)?;
        let iterations = parse_number(iterations).ok_or(CredentialError::Iterations)?;
        let salt = Base64::decode_vec(salt).map_err(|_| CredentialError::Salt)?;
        check(&salt, iterations)?;
        let key = |text| decode_digest(text).ok_or(CredentialError::Keys);
        let (stored_key, server_key) = (key(stored_key)?, key(server_key)?);
        Ok(Self { iterations, salt: salt.into(), stored_key, server_key })
    }

    /// Formats the text form, which is a secret.
    pub fn to_text(&self) -> String {
        let [salt, stored_key, server_key] =
            [&*self.salt, &self.stored_key, &self.server_key].map(Base64::encode_string);
        format!("{MECHANISM}${}:{salt}${stored_key}:{server_key}", self.iterations)
    }

    /// Iteration count.
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Length of the salt in bytes.
    pub fn salt_bytes(&self) -> usize {
        self.salt.len()
    }

    /// Verifies a password in the clear, which takes as long as the iteration count says.
    pub fn verify(&self, password: &[u8]) -> bool {
        let salted = salted_password(password, &self.salt, self.iterations);
        let stored_key: Digest = Sha256::digest(client_key(&salted)).into();
        stored_key.ct_eq(&self.stored_key).into()
    }
}

impl fmt::Debug for ScramCredential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ScramCredential")
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

fn check(salt: &[u8], iterations: u32) -> Result<(), CredentialError> {
    if !(MIN_ITERATIONS..=MAX_ITERATIONS).contains(&iterations) {
        return Err(CredentialError::Iterations);
    }
    if !(MIN_SALT_BYTES..=MAX_SALT_BYTES).contains(&salt.len()) {
        return Err(CredentialError::Salt);
    }
    Ok(())
}

/// Parses a decimal number without sign and leading zeros.
pub(crate) fn parse_number(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| is_plain)
}

pub(super) fn decode_digest(text: &str) -> Option<Digest> {
    Base64::decode_vec(text).ok()?.try_into().ok()
}

pub(super) fn salted_password(password: &[u8], salt: &[u8], iterations: u32) -> Digest {
    pbkdf2_hmac_array::<Sha256, DIGEST_BYTES>(&prepare_password(password), salt, iterations)
}

pub(super) fn client_key(salted: &Digest) -> Digest {
    hmac(salted, b"Client Key")
}

pub(super) fn server_key(salted: &Digest) -> Digest {
    hmac(salted, b"Server Key")
}
