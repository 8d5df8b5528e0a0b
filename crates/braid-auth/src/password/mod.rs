//! Password file: users and hashes of their passwords, in the format of mosquitto.
//!
//! # File format
//!
//! UTF-8 text with one user on each line:
//!
//! ```text
//! line = USER ":" hash
//! hash = "$argon2id$v=19$m=" KIB ",t=" PASSES ",p=" LANES "$" SALT "$" OUTPUT   ; PHC string, Base64 without `=`
//!      / "SCRAM-SHA-256$" ITERATIONS ":" SALT "$" STOREDKEY ":" SERVERKEY       ; as in PostgreSQL
//!      / "$7$" ITERATIONS "$" SALT "$" OUTPUT                                   ; PBKDF2-HMAC-SHA-512 of mosquitto
//!      / "$6$" SALT "$" OUTPUT                                                  ; SHA-512 of mosquitto
//! ```
//!
//! - Everything behind the first `:` is the hash. A user name is not empty, has at most 65,535 bytes, no control
//!   characters, and no blanks at its ends. It is unique in the file.
//! - Lines that begin with `#`, and lines without other characters than blanks, are skipped. Every line, the last one
//!   too, ends with LF or CRLF.
//! - A SCRAM credential also verifies a password in the clear. The name of its user must not change by SASLprep, since
//!   the user could not be found otherwise.
//!
//! A file is accepted as a whole or not at all: an empty file, a password without hash, or a malformed line is an error
//! (CVE-2018-12550, CVE-2018-12551). A file that was cut off is refused if the cut is inside a line. If it is between
//! two lines, the users that are left are those of the whole file.
//!
//! # Time of a verification
//!
//! A hash is slow on purpose: [`PasswordFile::candidate`] is the fast part, and [`Candidate::verify`] the slow one, for
//! a pool of threads. An unknown user costs a verification with the parameters of some user of the file, chosen by the
//! name, so that the times of unknown users are distributed as those of the known ones. In a file with one kind of hash
//! they are the same.

mod edit;
mod hash;
mod parse;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

pub use edit::{EditError, Upserted, remove, upsert};
pub use hash::{
    Argon2idParams, HashError, HashKind, MAX_ARGON2_LANES, MAX_ARGON2_MEMORY_KIB, MAX_ARGON2_PASSES,
    MAX_PBKDF2_ITERATIONS, PasswordHash, SALT_BYTES,
};
pub use parse::{MAX_LINE_BYTES, MAX_USER_BYTES, MAX_USERS, PasswordFileError, UserError, check_user};

use crate::scram::{self, ScramLookup};

/// Maximum length of a password. A longer one is wrong.
pub const MAX_PASSWORD_BYTES: usize = 64 << 10;

/// Users of a password file.
pub struct PasswordFile {
    /// In the order of the file; never empty.
    users: Vec<(Arc<str>, Arc<PasswordHash>)>,
    /// Positions in `users`.
    by_name: HashMap<Arc<str>, usize>,
    /// Positions in `users` of those with a SCRAM credential.
    with_scram: Vec<usize>,
    /// Key of [`Self::model`].
    model_key: [u8; 32],
}

/// Result of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The file has no such user.
    Unknown,
    /// The user has another password.
    Wrong,
    /// The password is the user's.
    Right,
}

impl PasswordFile {
    /// Parses a file. `name` is its name in errors.
    ///
    /// # Errors
    /// A [`PasswordFileError`] with the first malformed line, or if there is no user at all.
    pub fn parse(text: &[u8], name: &str) -> Result<Self, PasswordFileError> {
        let entries = parse::parse(text, name)?;
        let Some(first) = entries.first() else { return Err(PasswordFileError::no_user(name)) };
        // A hash that others do not know.
        let model_key = Sha256::digest(first.hash.to_text()).into();
        let users: Vec<_> =
            entries.into_iter().map(|entry| (Arc::<str>::from(entry.user), Arc::new(entry.hash))).collect();
        let by_name =
            users.iter().enumerate().map(|(position, (user, _))| (user.clone(), position)).collect();
        let has_scram = |position: &usize| users[*position].1.scram().is_some();
        let with_scram = (0..users.len()).filter(has_scram).collect();
        Ok(Self { users, by_name, with_scram, model_key })
    }

    /// Names and kinds of hash, in the order of the file.
    pub fn users(&self) -> impl ExactSizeIterator<Item = (&str, HashKind)> {
        self.users.iter().map(|(user, hash)| (&**user, hash.kind()))
    }

    /// Tests whether there is such a user.
    pub fn contains(&self, user: &str) -> bool {
        self.by_name.contains_key(user)
    }

    /// Hash of a user.
    pub fn hash(&self, user: &str) -> Option<&Arc<PasswordHash>> {
        self.by_name.get(user).map(|position| &self.users[*position].1)
    }

    /// Finds a hash to verify against: that of the user, or for an unknown user that of another one, which never
    /// becomes [`Verdict::Right`].
    pub fn candidate(&self, user: &str) -> Candidate {
        let position = self.by_name.get(user).copied();
        let model = || self.model(user, self.users.len());
        let hash = self.users[position.unwrap_or_else(model)].1.clone();
        Candidate { hash, is_known: position.is_some() }
    }

    /// Verifies a password, which takes as long as the parameters of the hash say.
    pub fn verify(&self, user: &str, password: &[u8]) -> Verdict {
        self.candidate(user).verify(password)
    }

    /// Finds the SCRAM credential of a user. A user with another kind of hash counts as unknown.
    pub fn scram(&self, user: &str) -> ScramLookup {
        let credential = |position: usize| self.users[position].1.scram();
        if let Some(credential) = self.by_name.get(user).and_then(|position| credential(*position)) {
            return ScramLookup::Known(credential.clone());
        }
        let model = (!self.with_scram.is_empty())
            .then(|| self.with_scram[self.model(user, self.with_scram.len())])
            .and_then(credential);
        ScramLookup::Unknown {
            iterations: model.map_or(scram::DEFAULT_ITERATIONS, |model| model.iterations()),
            salt_bytes: model.map_or(SALT_BYTES, |model| model.salt_bytes()),
        }
    }

    /// Number below `count`, which is not 0, always the same for an unknown user.
    fn model(&self, user: &str, count: usize) -> usize {
        let digest = Sha256::new().chain_update(self.model_key).chain_update(user).finalize();
        let number = digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
        usize::try_from(number % count as u64).unwrap_or_default()
    }
}

impl fmt::Debug for PasswordFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PasswordFile").field("users", &self.users.len()).finish_non_exhaustive()
    }
}

/// Hash to verify a password against.
#[derive(Clone, Debug)]
pub struct Candidate {
    hash: Arc<PasswordHash>,
    is_known: bool,
}

impl Candidate {
    /// Verifies a password, which takes as long as the parameters of the hash say.
    pub fn verify(&self, password: &[u8]) -> Verdict {
        match (self.hash.verify(password), self.is_known) {
            (_, false) => Verdict::Unknown,
            (false, true) => Verdict::Wrong,
            (true, true) => Verdict::Right,
        }
    }
}
