//! Keys that verify tokens, each bound to one algorithm.

use std::fmt;

use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{Refusal, jwks, pem, ring_provider};
use crate::acl::Quoted;

/// Minimum length of a secret of HS256 (RFC 7518, 3.2).
pub const MIN_SECRET_BYTES: usize = 32;

/// Maximum length of a file of keys.
pub const MAX_KEY_FILE_BYTES: usize = 1 << 20;

/// Maximum number of keys of a file, those that are skipped included.
pub const MAX_KEYS: usize = 100;

/// Maximum number of keys that the signature of one token is compared with.
pub const MAX_TRIED_KEYS: usize = 10;

const BYTE: usize = 8;
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

/// Signature algorithm of a token (RFC 7518, RFC 8037).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAlgorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// EdDSA with Ed25519.
    EdDsa,
}

impl KeyAlgorithm {
    /// Algorithm of that name in the header of a token.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::Hs256, Self::Rs256, Self::Es256, Self::EdDsa].into_iter().find(|known| known.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }

    fn of_library(self) -> Algorithm {
        match self {
            Self::Hs256 => Algorithm::HS256,
            Self::Rs256 => Algorithm::RS256,
            Self::Es256 => Algorithm::ES256,
            Self::EdDsa => Algorithm::EdDSA,
        }
    }
}

impl fmt::Display for KeyAlgorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Reason why a file has no usable keys: one line of text, with the name of the file and never with its secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}: {problem}")]
pub struct KeysError {
    name: String,
    problem: Problem,
}

/// Positions of keys, lines and columns count from 1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Problem {
    #[error("the file is larger than {MAX_KEY_FILE_BYTES} bytes; give a file of keys")]
    TooLarge,
    #[error("there are more than {MAX_KEYS} keys; remove those that are out of use")]
    TooManyKeys,
    #[error(
        "the secret is a PEM file; use it as a public key, a secret of HS256 is random and known to the issuer and the broker only"
    )]
    SecretIsPem,
    #[error("the secret is a JSON object; use it as a key set, a secret of HS256 is random")]
    SecretIsJson,
    #[error(
        "the secret is text that ends with a newline; remove it, as in `openssl rand -hex 32 | tr -d '\\n'`"
    )]
    SecretNewline,
    #[error("no text; write public keys or certificates as PEM")]
    NotText,
    #[error("no PEM block; write a public key, as `openssl pkey -pubout` does, or a certificate")]
    NoBlock,
    #[error(
        "line {0}: a BEGIN or END that is malformed, missing or of another block; the file may be cut off"
    )]
    Boundary(usize),
    #[error("HTML or XML instead of a JSON Web Key Set; check where the key set comes from")]
    Html,
    #[error("no JSON at line {0}, column {1}; the key set may be cut off")]
    Json(usize, usize),
    #[error("no JSON object with the list `keys`; write a JSON Web Key Set (RFC 7517)")]
    NoKeySet,
    #[error("two keys have the `kid` {0}; give each key its own")]
    DuplicateKid(Quoted),
    #[error("no usable key among {0}; write a key of RSA, EC P-256, OKP Ed25519 or oct for signatures")]
    NoUsableKey(usize),
    #[error("key {0}: {1}")]
    Key(usize, KeyProblem),
    /// Key of a PEM file, with the line of its BEGIN.
    #[error("key {0} at line {1}: {2}")]
    Block(usize, usize, KeyProblem),
    #[error("{0}")]
    Secret(KeyProblem),
}

/// Reason why one key is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum KeyProblem {
    #[error("the secret has {0} bytes; write at least {MIN_SECRET_BYTES}, as from `openssl rand -hex 32`")]
    ShortSecret(usize),
    #[error("the RSA modulus has {0} bits; use 2048 to 8192")]
    RsaSize(usize),
    #[error("the RSA exponent is not an odd number from 3 to 2^33; use 65537")]
    RsaExponent,
    #[error("no point of P-256, uncompressed, with coordinates of 32 bytes")]
    Point,
    #[error("an Ed25519 key of {0} bytes; it has 32")]
    EdSize(usize),
    #[error(
        "a private key; write the public one, as `openssl pkey -pubout` does, and leave this one at the issuer"
    )]
    Private,
    #[error("a PEM block {0}; write PUBLIC KEY or CERTIFICATE, as `openssl pkey -pubout` does")]
    Label(Quoted),
    #[error("no Base64 in its PEM block; the file may be damaged")]
    Base64,
    #[error("no public key or certificate in its PEM block; the file may be damaged")]
    Der,
    #[error("an unsupported kind of key; use RSA, EC P-256 or Ed25519")]
    Kind,
    #[error("not a JSON object")]
    NotObject,
    #[error("`{0}` is missing or malformed")]
    Member(&'static str),
}

/// Keys that verify tokens.
///
/// A key verifies tokens of its algorithm only, whatever a token says: the public key of RS256 is never the secret of
/// an HMAC. `Debug` shows no key.
#[derive(Clone, Debug)]
pub struct Keys {
    keys: Vec<Key>,
    skipped: usize,
}

impl Keys {
    /// Takes the secret of HS256, which is the whole content of a file. `name` is its name in errors.
    ///
    /// # Errors
    /// The secret is shorter than [`MIN_SECRET_BYTES`], or obviously no secret: public keys, or text with a newline at
    /// its end, which other programs would leave out.
    pub fn from_secret(secret: &[u8], name: &str) -> Result<Self, KeysError> {
        let keys = || {
            check_size(secret)?;
            let text = secret.trim_ascii();
            if text.starts_with(b"-----BEGIN ") {
                return Err(Problem::SecretIsPem);
            }
            if serde_json::from_slice::<Map<String, Value>>(text).is_ok() {
                return Err(Problem::SecretIsJson);
            }
            let is_text = secret.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
            if is_text && secret.ends_with(b"\n") {
                return Err(Problem::SecretNewline);
            }
            Ok(Self { keys: vec![Key::secret(secret).map_err(Problem::Secret)?], skipped: 0 })
        };
        keys().map_err(|problem| KeysError::new(name, problem))
    }

    /// Parses public keys and certificates in PEM: RSA for RS256, EC P-256 for ES256, Ed25519 for EdDSA. `name` is the
    /// name of the file in errors.
    ///
    /// Only the key of a certificate counts, not the time of its validity.
    ///
    /// # Errors
    /// A block is malformed, of another kind or a private key; there is none, or more than [`MAX_KEYS`].
    pub fn from_pem(text: &[u8], name: &str) -> Result<Self, KeysError> {
        let keys = check_size(text).and_then(|()| pem::parse(text));
        keys.map(|keys| Self { keys, skipped: 0 }).map_err(|problem| KeysError::new(name, problem))
    }

    /// Parses a JSON Web Key Set (RFC 7517). `name` is the name of its file or URL in errors.
    ///
    /// Keys of other kinds, for other algorithms or for encryption are [skipped](Self::skipped).
    ///
    /// # Errors
    /// The text is no key set, a known kind of key is malformed or private, two usable keys have one `kid`, no key is
    /// usable, or there are more than [`MAX_KEYS`].
    pub fn from_jwks(text: &[u8], name: &str) -> Result<Self, KeysError> {
        let keys = check_size(text).and_then(|()| jwks::parse(text));
        keys.map(|(keys, skipped)| Self { keys, skipped }).map_err(|problem| KeysError::new(name, problem))
    }

    /// Number of usable keys, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "there is always a key")]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Number of keys of a JSON Web Key Set that are not used.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Tests whether a key is among these.
    pub(super) fn contains(&self, key: KeyFingerprint) -> bool {
        self.keys.iter().any(|own| own.fingerprint == key)
    }

    /// Keys that may have signed a token, at most [`MAX_TRIED_KEYS`].
    ///
    /// Keys without a `kid`, which are those of PEM files and secrets, are candidates for each token of their
    /// algorithm.
    pub(super) fn has_kid(&self, kid: &str) -> bool {
        self.keys.iter().any(|key| key.kid.as_deref() == Some(kid))
    }

    pub(super) fn candidates(
        &self,
        algorithm: KeyAlgorithm,
        kid: Option<&str>,
    ) -> Result<Vec<&Key>, Refusal> {
        let mut keys: Vec<_> = self.keys.iter().filter(|key| key.algorithm == algorithm).collect();
        if keys.is_empty() {
            return Err(Refusal::NoKey(algorithm));
        }
        if let Some(kid) = kid {
            keys.retain(|key| key.kid.as_deref().is_none_or(|own| own == kid));
        }
        match keys.len() {
            0 => Err(Refusal::UnknownKey),
            1..=MAX_TRIED_KEYS => Ok(keys),
            _ => Err(Refusal::TooManyKeys),
        }
    }
}

impl KeysError {
    fn new(name: &str, problem: Problem) -> Self {
        Self { name: name.to_owned(), problem }
    }
}

fn check_size(text: &[u8]) -> Result<(), Problem> {
    if text.len() > MAX_KEY_FILE_BYTES { Err(Problem::TooLarge) } else { Ok(()) }
}

/// SHA-256 of a key and its algorithm, whatever its file or `kid`. In memory only: that of a weak secret could be
/// searched for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyFingerprint([u8; 32]);

impl KeyFingerprint {
    fn of(algorithm: KeyAlgorithm, material: &[&[u8]]) -> Self {
        let mut hash = Sha256::new_with_prefix(algorithm.name());
        for part in material {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }
}

/// Without the fingerprint.
impl fmt::Debug for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyFingerprint")
    }
}

/// Key with its algorithm.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) fingerprint: KeyFingerprint,
    pub(super) algorithm: KeyAlgorithm,
    pub(super) kid: Option<Box<str>>,
    key: DecodingKey,
}

impl Key {
    /// `material`: parts of the key.
    fn new(algorithm: KeyAlgorithm, key: DecodingKey, material: &[&[u8]]) -> Self {
        ring_provider::install();
        let fingerprint = KeyFingerprint::of(algorithm, material);
        Self { fingerprint, algorithm, kid: None, key }
    }

    pub(super) fn secret(secret: &[u8]) -> Result<Self, KeyProblem> {
        if secret.len() < MIN_SECRET_BYTES {
            return Err(KeyProblem::ShortSecret(secret.len()));
        }
        Ok(Self::new(KeyAlgorithm::Hs256, DecodingKey::from_secret(secret), &[secret]))
    }

    /// Key of RSA, from numbers in big endian.
    pub(super) fn rsa(modulus: &[u8], exponent: &[u8]) -> Result<Self, KeyProblem> {
        let (modulus, exponent) = (without_zeros(modulus), without_zeros(exponent));
        let unused = modulus.first().map_or(0, |byte| byte.leading_zeros() as usize);
        let bits = modulus.len() * BYTE - unused;
        if !RSA_BITS.contains(&bits) {
            return Err(KeyProblem::RsaSize(bits));
        }
        let value = exponent.iter().take(BYTE).fold(0, |value, byte| value << BYTE | u64::from(*byte));
        if exponent.len() > BYTE || value % 2 == 0 || !(3..1 << 33).contains(&value) {
            return Err(KeyProblem::RsaExponent);
        }
        let key = DecodingKey::from_rsa_raw_components(modulus, exponent);
        Ok(Self::new(KeyAlgorithm::Rs256, key, &[modulus, exponent]))
    }

    /// Key of P-256, from a point in uncompressed form (SEC 1, 2.3.3).
    pub(super) fn p256(point: &[u8]) -> Result<Self, KeyProblem> {
        if point.len() != 65 || point.first() != Some(&4) {
            return Err(KeyProblem::Point);
        }
        Ok(Self::new(KeyAlgorithm::Es256, DecodingKey::from_ec_der(point), &[point]))
    }

    pub(super) fn ed25519(key: &[u8]) -> Result<Self, KeyProblem> {
        if key.len() != 32 {
            return Err(KeyProblem::EdSize(key.len()));
        }
        Ok(Self::new(KeyAlgorithm::EdDsa, DecodingKey::from_ed_der(key), &[key]))
    }

    /// Verifies the signature of a token, and returns its claims, which are not checked.
    pub(super) fn verify(&self, token: &[u8]) -> Result<Map<String, Value>, Refusal> {
        let mut validation = Validation::new(self.algorithm.of_library());
        // The library reads the clock of the system, and takes some claims of a wrong type for absent (CVE-2026-25537).
        validation.validate_exp = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        match jsonwebtoken::decode(token, &self.key, &validation) {
            Ok(token) => Ok(token.claims),
            Err(error) => Err(match error.kind() {
                jsonwebtoken::errors::ErrorKind::InvalidSignature => Refusal::Signature,
                _ => Refusal::Malformed,
            }),
        }
    }
}

fn without_zeros(number: &[u8]) -> &[u8] {
    &number[number.iter().take_while(|byte| **byte == 0).count()..]
}
