//! Hash of one password: text form, verification and creation.

use std::cell::Cell;
use std::fmt;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use base64ct::{Base64, Base64Unpadded, Encoding};
use pbkdf2::pbkdf2_hmac_array;
use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq;
use thiserror::Error;

use super::MAX_PASSWORD_BYTES;
use crate::scram::{CredentialError, MECHANISM, ScramCredential, parse_number};

/// Maximum memory of argon2id: 1 GiB.
pub const MAX_ARGON2_MEMORY_KIB: u32 = 1 << 20;

/// Maximum number of passes of argon2id.
pub const MAX_ARGON2_PASSES: u32 = 64;

/// Maximum number of lanes of argon2id. They are computed one after the other.
pub const MAX_ARGON2_LANES: u32 = 64;

/// Maximum number of iterations of PBKDF2.
pub const MAX_PBKDF2_ITERATIONS: u32 = 10_000_000;

/// Length of the salt of new hashes.
pub const SALT_BYTES: usize = 16;

/// Lengths of salts.
const MIN_SALT_BYTES: usize = 8;
const MAX_SALT_BYTES: usize = 64;

/// Lengths of the output of argon2id that programs use. With any length, a hash that was cut off would be accepted.
const ARGON2_OUTPUT_BYTES: [usize; 3] = [16, 32, 64];

/// Length of the output of new hashes.
const OUTPUT_BYTES: usize = 32;

const SHA512_BYTES: usize = 64;

/// Hash of a password, with its salt and parameters. Equality is not in constant time: it is for hashes of the file.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(Hash);

#[derive(Clone, PartialEq, Eq)]
enum Hash {
    Argon2id { params: Argon2idParams, salt: Box<[u8]>, output: Box<[u8]> },
    Pbkdf2Sha512 { iterations: u32, salt: Box<[u8]>, output: [u8; SHA512_BYTES] },
    Sha512 { salt: Box<[u8]>, output: [u8; SHA512_BYTES] },
    Scram(ScramCredential),
}

/// Kind of a hash and its cost, without secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HashKind {
    /// argon2id (RFC 9106).
    Argon2id(Argon2idParams),
    /// PBKDF2-HMAC-SHA-512 (RFC 8018), the `$7$` of mosquitto.
    Pbkdf2Sha512 {
        /// Iteration count.
        iterations: u32,
    },
    /// SHA-512 of password and salt, the `$6$` of mosquitto before 2.0. Fast to guess.
    Sha512,
    /// SCRAM-SHA-256 (RFC 7677).
    ScramSha256 {
        /// Iteration count.
        iterations: u32,
    },
}

/// Cost of argon2id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argon2idParams {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Number of passes over the memory.
    pub passes: u32,
    /// Degree of parallelism.
    pub lanes: u32,
}

/// Memory of argon2id that a thread keeps at most, in blocks of 1 KiB.
const MAX_KEPT_BLOCKS: usize = 32 << 10;

thread_local! {
    /// Memory of the thread's last hash. Allocated for each, it would leave holes that the allocator does not give
    /// back.
    static BLOCKS: Cell<Vec<Block>> = const { Cell::new(Vec::new()) };
}

impl Default for Argon2idParams {
    /// Parameters that OWASP advises (Password Storage Cheat Sheet): 19 MiB, 2 passes, 1 lane; about 20 ms.
    fn default() -> Self {
        Self { memory_kib: 19 << 10, passes: 2, lanes: 1 }
    }
}

/// Reason why a text or parameters are no hash, without the text: it may be a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HashError {
    /// The text is empty.
    #[error("no hash follows the user name; set a password with `braidmq passwd add`")]
    Missing,
    /// The text has no mark of a hash.
    #[error("a plain-text password, or an unknown kind of hash; set a password with `braidmq passwd add`")]
    PlainText,
    /// The kind of hash is unknown.
    #[error("an unknown kind of hash; known are argon2id, SCRAM-SHA-256, and $7$ and $6$ of mosquitto")]
    UnknownKind,
    /// The text has the wrong parts.
    #[error("the hash is not of the form `{0}`; set the password again with `braidmq passwd add`")]
    Form(&'static str),
    /// The parameters of argon2id are out of bounds.
    #[error(
        "the cost of argon2id is out of bounds: at most {MAX_ARGON2_MEMORY_KIB} KiB, at least 8 for each lane, 1 to \
         {MAX_ARGON2_PASSES} passes, 1 to {MAX_ARGON2_LANES} lanes; set the password again"
    )]
    Argon2Cost,
    /// The iteration count is out of bounds.
    #[error("the iterations are out of bounds: 1 to {MAX_PBKDF2_ITERATIONS}; set the password again")]
    Iterations,
    /// The salt is not Base64, or its length is out of bounds.
    #[error("the salt is not Base64 of {MIN_SALT_BYTES} to {MAX_SALT_BYTES} bytes; set the password again")]
    Salt,
    /// The output is not Base64, or its length is wrong.
    #[error("the hash is cut off or not Base64; set the password again with `braidmq passwd add`")]
    Output,
    /// The SCRAM credential is malformed.
    #[error("{0}; set the password again with `braidmq passwd add --scram`")]
    Scram(#[from] CredentialError),
    /// A new password is empty.
    #[error("the password is empty; choose at least one character")]
    EmptyPassword,
    /// A new password is too long.
    #[error("the password is longer than {MAX_PASSWORD_BYTES} bytes; choose a shorter one")]
    PasswordTooLong,
    /// SASLprep prohibits a new password.
    #[error(
        "the password cannot be used with SCRAM: it contains control or other prohibited characters, or is not UTF-8"
    )]
    Unprepared,
}

const ARGON2ID: &str = "$argon2id$";
const ARGON2ID_FORM: &str = "$argon2id$v=19$m=KIB,t=PASSES,p=LANES$SALT$HASH";

impl PasswordHash {
    /// Parses the text form.
    ///
    /// # Errors
    /// The text is no hash of a known kind with parameters within bounds.
    pub fn parse(text: &str) -> Result<Self, HashError> {
        let hash = if let Some(rest) = text.strip_prefix(ARGON2ID) {
            parse_argon2id(rest)?
        } else if let Some(rest) = text.strip_prefix("$7$") {
            let [iterations, salt, output] = parts(rest, "$7$ITERATIONS$SALT$HASH")?;
            let iterations = parse_number(iterations).filter(|count| *count <= MAX_PBKDF2_ITERATIONS);
            let iterations = iterations.ok_or(HashError::Iterations)?;
            Hash::Pbkdf2Sha512 {
                iterations,
                salt: parse_salt::<Base64>(salt)?,
                output: parse_sha512(output)?,
            }
        } else if let Some(rest) = text.strip_prefix("$6$") {
            let [salt, output] = parts(rest, "$6$SALT$HASH")?;
            Hash::Sha512 { salt: parse_salt::<Base64>(salt)?, output: parse_sha512(output)? }
        } else if text.strip_prefix(MECHANISM).is_some_and(|rest| rest.starts_with('$')) {
            Hash::Scram(ScramCredential::parse(text)?)
        } else {
            return Err(match text {
                "" => HashError::Missing,
                text if text.starts_with('$') || text.starts_with("SCRAM-") => HashError::UnknownKind,
                _ => HashError::PlainText,
            });
        };
        Ok(Self(hash))
    }

    /// Hashes a password by argon2id. `salt` comes from a cryptographic random number generator, new for each password.
    ///
    /// # Errors
    /// The password is empty or too long, or the parameters are out of bounds.
    pub fn argon2id(
        password: &[u8],
        salt: [u8; SALT_BYTES],
        params: Argon2idParams,
    ) -> Result<Self, HashError> {
        check_password(password)?;
        let mut output = vec![0; OUTPUT_BYTES];
        let params = params.checked()?;
        params.hash(password, &salt, &mut output).map_err(|_| HashError::Argon2Cost)?;
        Ok(Self(Hash::Argon2id { params, salt: salt.into(), output: output.into() }))
    }

    /// Derives the SCRAM credential of a password. `salt` comes from a cryptographic random number generator, new for
    /// each password.
    ///
    /// # Errors
    /// The password is empty, too long, or prohibited by SASLprep, or the iteration count is out of bounds.
    pub fn scram_sha_256(
        password: &[u8],
        salt: [u8; SALT_BYTES],
        iterations: u32,
    ) -> Result<Self, HashError> {
        check_password(password)?;
        let text = str::from_utf8(password).map_err(|_| HashError::Unprepared)?;
        let prepared = stringprep::saslprep(text).map_err(|_| HashError::Unprepared)?;
        check_password(prepared.as_bytes())?;
        Ok(Self(Hash::Scram(ScramCredential::derive(password, &salt, iterations)?)))
    }

    /// Formats the text form, which is a secret.
    pub fn to_text(&self) -> String {
        match &self.0 {
            Hash::Argon2id { params, salt, output } => {
                let Argon2idParams { memory_kib, passes, lanes } = params;
                let [salt, output] = [salt, output].map(|bytes| Base64Unpadded::encode_string(bytes));
                format!("{ARGON2ID}v=19$m={memory_kib},t={passes},p={lanes}${salt}${output}")
            }
            Hash::Pbkdf2Sha512 { iterations, salt, output } => {
                let [salt, output] = [salt, &output[..]].map(Base64::encode_string);
                format!("$7${iterations}${salt}${output}")
            }
            Hash::Sha512 { salt, output } => {
                let [salt, output] = [salt, &output[..]].map(Base64::encode_string);
                format!("$6${salt}${output}")
            }
            Hash::Scram(credential) => credential.to_text(),
        }
    }

    /// Kind and cost.
    pub fn kind(&self) -> HashKind {
        match &self.0 {
            Hash::Argon2id { params, .. } => HashKind::Argon2id(*params),
            Hash::Pbkdf2Sha512 { iterations, .. } => HashKind::Pbkdf2Sha512 { iterations: *iterations },
            Hash::Sha512 { .. } => HashKind::Sha512,
            Hash::Scram(credential) => HashKind::ScramSha256 { iterations: credential.iterations() },
        }
    }

    /// The credential, if the hash is one of SCRAM.
    pub fn scram(&self) -> Option<&ScramCredential> {
        if let Hash::Scram(credential) = &self.0 { Some(credential) } else { None }
    }

    /// Verifies a password, which takes as long as the parameters say. False also if it is longer than
    /// [`MAX_PASSWORD_BYTES`], or if there is no memory for argon2id.
    pub fn verify(&self, password: &[u8]) -> bool {
        if password.len() > MAX_PASSWORD_BYTES {
            return false;
        }
        match &self.0 {
            Hash::Argon2id { params, salt, output } => {
                let mut found = vec![0; output.len()];
                params.hash(password, salt, &mut found).is_ok() && found.ct_eq(output).into()
            }
            Hash::Pbkdf2Sha512 { iterations, salt, output } => {
                let found = pbkdf2_hmac_array::<Sha512, SHA512_BYTES>(password, salt, *iterations);
                found.ct_eq(output).into()
            }
            Hash::Sha512 { salt, output } => {
                let found = Sha512::new().chain_update(password).chain_update(salt).finalize();
                found.as_slice().ct_eq(output).into()
            }
            Hash::Scram(credential) => credential.verify(password),
        }
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PasswordHash").field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl fmt::Display for HashKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argon2id(Argon2idParams { memory_kib, passes, lanes }) => {
                write!(formatter, "argon2id m={memory_kib},t={passes},p={lanes}")
            }
            Self::Pbkdf2Sha512 { iterations } => write!(formatter, "pbkdf2-sha512 i={iterations}"),
            Self::Sha512 => formatter.write_str("sha512"),
            Self::ScramSha256 { iterations } => write!(formatter, "scram-sha-256 i={iterations}"),
        }
    }
}

impl Argon2idParams {
    fn checked(self) -> Result<Self, HashError> {
        let Self { memory_kib, passes, lanes } = self;
        let is_within = (1..=MAX_ARGON2_LANES).contains(&lanes)
            && (1..=MAX_ARGON2_PASSES).contains(&passes)
            && (8 * lanes..=MAX_ARGON2_MEMORY_KIB).contains(&memory_kib);
        if is_within { Ok(self) } else { Err(HashError::Argon2Cost) }
    }

    fn hash(self, password: &[u8], salt: &[u8], output: &mut [u8]) -> argon2::Result<()> {
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(output.len()))?;
        let count = params.block_count();
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let mut blocks = BLOCKS.take();
        resize(&mut blocks, count)?;
        let hashed = argon2.hash_password_into_with_memory(password, salt, output, &mut blocks[..]);
        if count <= MAX_KEPT_BLOCKS {
            BLOCKS.set(blocks);
        }
        hashed
    }
}

/// Sets the number of blocks; without memory for them there is an error, where `Vec::resize` alone ends the process.
fn resize(blocks: &mut Vec<Block>, count: usize) -> argon2::Result<()> {
    let more = count.saturating_sub(blocks.len());
    blocks.try_reserve_exact(more).map_err(|_| argon2::Error::OutOfMemory)?;
    blocks.resize(count, Block::default());
    Ok(())
}

fn check_password(password: &[u8]) -> Result<(), HashError> {
    match password.len() {
        0 => Err(HashError::EmptyPassword),
        1..=MAX_PASSWORD_BYTES => Ok(()),
        _ => Err(HashError::PasswordTooLong),
    }
}

/// Splits text at `$` into exactly so many parts.
fn parts<'a, const N: usize>(text: &'a str, form: &'static str) -> Result<[&'a str; N], HashError> {
    let parts: Vec<_> = text.splitn(N + 1, '$').collect();
    parts.try_into().map_err(|_| HashError::Form(form))
}

fn parse_argon2id(text: &str) -> Result<Hash, HashError> {
    let form = HashError::Form(ARGON2ID_FORM);
    let [version, params, salt, output] = parts(text, ARGON2ID_FORM)?;
    if version != "v=19" {
        return Err(form);
    }
    let mut params = params.split(',');
    let mut next = |name: &str| params.next().and_then(|part| part.strip_prefix(name)).ok_or(form);
    let [memory_kib, passes, lanes] = [next("m=")?, next("t=")?, next("p=")?];
    if params.next().is_some() {
        return Err(form);
    }
    let number = |text| parse_number(text).ok_or(HashError::Argon2Cost);
    let params =
        Argon2idParams { memory_kib: number(memory_kib)?, passes: number(passes)?, lanes: number(lanes)? };
    let output = Base64Unpadded::decode_vec(output).map_err(|_| HashError::Output)?;
    if !ARGON2_OUTPUT_BYTES.contains(&output.len()) {
        return Err(HashError::Output);
    }
    let salt = parse_salt::<Base64Unpadded>(salt)?;
    Ok(Hash::Argon2id { params: params.checked()?, salt, output: output.into() })
}

fn parse_salt<E: Encoding>(text: &str) -> Result<Box<[u8]>, HashError> {
    let salt = E::decode_vec(text).map_err(|_| HashError::Salt)?;
    let is_within = (MIN_SALT_BYTES..=MAX_SALT_BYTES).contains(&salt.len());
    if is_within { Ok(salt.into()) } else { Err(HashError::Salt) }
}

fn parse_sha512(text: &str) -> Result<[u8; SHA512_BYTES], HashError> {
    let output = Base64::decode_vec(text).map_err(|_| HashError::Output)?;
    output.try_into().map_err(|_| HashError::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_there_is_not_is_an_error() {
        let most = isize::MAX as usize / Block::SIZE;
        for count in [usize::MAX, most] {
            let mut blocks = vec![Block::default()];
            assert!(matches!(resize(&mut blocks, count), Err(argon2::Error::OutOfMemory)), "{count}");
            resize(&mut blocks, 3).unwrap();
            assert_eq!(blocks.len(), 3);
            resize(&mut blocks, 2).unwrap();
            assert_eq!(blocks.len(), 2);
        }
    }
}
