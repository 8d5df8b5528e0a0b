//! Authenticator of user names and passwords by a password file, and by SCRAM-SHA-256 with the same file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use braid_auth::identity::Attributes;
use braid_auth::password::{PasswordFile, PasswordHash, SALT_BYTES, Verdict};
use braid_auth::scram::{
    DEFAULT_ITERATIONS, Nonce, ScramError, ScramLookup, ScramServer, ScramServerFinal, ScramSuccess,
};
use braid_broker::{Authentication, Challenge, Credential, Credentials, Exchange, Grant, Outcome, Refusal};
use braid_proto::reason::ReasonCode;
use bytes::Bytes;

use crate::chain::{Answer, accept, grant_with};
use crate::file::{FileError, read};
use crate::pool::HashPool;

/// Authentication Method of SCRAM-SHA-256.
pub const SCRAM_SHA_256: &str = "SCRAM-SHA-256";

/// Name of the authenticator, the source of its identities.
pub(crate) const SOURCE: &str = "password";

/// Longest password file in bytes.
const MAX_FILE_BYTES: usize = 256 << 20;

/// Users of a password file. Cheap to clone.
#[derive(Clone)]
pub struct Users {
    path: PathBuf,
    current: Arc<RwLock<Arc<PasswordFile>>>,
    pool: HashPool,
    /// Key of the salts that unknown users are told.
    unknown_user_key: [u8; 32],
}

impl Users {
    /// Reads a password file. `unknown_user_key` is a secret that outlasts restarts.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub fn open(path: &Path, pool: HashPool, unknown_user_key: [u8; 32]) -> Result<Self, FileError> {
        let current = Arc::new(RwLock::new(Arc::new(load(path)?)));
        Ok(Self { path: path.to_owned(), current, pool, unknown_user_key })
    }

    /// Reads the file again, for [`Users::replace`].
    ///
    /// # Errors
    /// As [`Users::open`]. Nothing changes.
    pub fn reload(&self) -> Result<PasswordFile, FileError> {
        load(&self.path)
    }

    /// Replaces the users, and returns the former ones: the caller frees ten thousand of them when nothing waits for
    /// it.
    #[must_use]
    pub fn replace(&self, users: PasswordFile) -> Arc<PasswordFile> {
        let users = Arc::new(users);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, users)
    }

    /// Tests whether there is such a user.
    pub fn contains(&self, user: &str) -> bool {
        self.users().contains(user)
    }

    /// Hash of a user in a version of the file, as the credential of its clients.
    fn credential(&self, users: &PasswordFile, user: &str) -> Option<Box<dyn Credential>> {
        let hash = users.hash(user)?.clone();
        Some(Box::new(StoredPassword { current: self.current.clone(), user: user.into(), hash }))
    }

    fn users(&self) -> Arc<PasswordFile> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Verifies user name and password of a CONNECT. Unknown users take as long as known ones.
    pub(crate) async fn verify(&self, credentials: &Credentials<'_>) -> Answer {
        let (Some(user), Some(password)) = (credentials.user_name, credentials.password) else {
            return Answer::Ignored;
        };
        let users = self.users();
        let (candidate, password) = (users.candidate(user), password.clone());
        match self.pool.run(move || candidate.verify(&password)).await {
            Ok(Verdict::Right) => {
                let complete = |grant: &mut Grant| grant.credential = self.credential(&users, user);
                grant_with(credentials, SOURCE, Some(user), complete)
            }
            Ok(Verdict::Unknown) => Answer::Ignored,
            Ok(Verdict::Wrong) => {
                Answer::Refused(Refusal::new(ReasonCode::BadUserNameOrPassword, "wrong password"))
            }
            Err(_) => {
                let cause = "too many passwords wait for their verification";
                Answer::Refused(Refusal::new(ReasonCode::ServerBusy, cause))
            }
        }
    }
}

/// Password of a connected client, by its hash.
struct StoredPassword {
    current: Arc<RwLock<Arc<PasswordFile>>>,
    user: Box<str>,
    hash: Arc<PasswordHash>,
}

impl Credential for StoredPassword {
    /// Every change of the line counts: whether two hashes are of one password cannot be told.
    fn is_revoked(&self) -> bool {
        let users = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        users.hash(&self.user).is_none_or(|hash| *hash != self.hash)
    }
}

impl fmt::Debug for StoredPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredPassword").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Begins an exchange of SCRAM-SHA-256, by the first file that has the user.
pub(crate) fn begin_scram<'a>(
    files: impl Iterator<Item = &'a Users>,
    credentials: &Credentials<'_>,
) -> Result<Outcome, Refusal> {
    let mut files = files.peekable();
    let Some(unknown_user_key) = files.peek().map(|users| users.unknown_user_key) else {
        // [MQTT-4.12.0-1]
        let cause = "there is no password file, or another authenticator in front of it decides";
        return Err(Refusal::new(ReasonCode::BadAuthenticationMethod, cause));
    };
    let mut random = [0; Nonce::RANDOM_BYTES];
    if getrandom::fill(&mut random).is_err() {
        return Err(Refusal::new(ReasonCode::ServerUnavailable, "the system gives no random numbers"));
    }
    let server = ScramServer::new(Nonce::new(random), unknown_user_key);
    let message = credentials.data.map_or(&[][..], |data| data);
    let mut credential = None;
    let lookup = |user: &str| {
        let mut unknown = None;
        for file in files {
            let users = file.users();
            let found = users.scram(user);
            if users.contains(user) {
                credential = file.credential(&users, user);
                return found;
            }
            unknown = unknown.or(Some(found));
        }
        unknown.unwrap_or(ScramLookup::Unknown { iterations: DEFAULT_ITERATIONS, salt_bytes: SALT_BYTES })
    };
    let (data, server) = server.handle_first(message, lookup).map_err(|error| refusal(&error))?;
    let exchange = Box::new(ScramExchange { server, attributes: credentials.attributes(), credential });
    Ok(Outcome::Challenge(Challenge { data: data.into(), exchange }))
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("path", &self.path).finish_non_exhaustive()
    }
}

fn load(path: &Path) -> Result<PasswordFile, FileError> {
    let text = read(path, MAX_FILE_BYTES)?;
    PasswordFile::parse(&text, &path.display().to_string())
        .map_err(|error| FileError::Content(error.to_string()))
}

fn refusal(error: &ScramError) -> Refusal {
    Refusal::new(ReasonCode::NotAuthorized, format!("{SCRAM_SHA_256}: {error}"))
}

/// Exchange that waits for the last message of the client.
struct ScramExchange {
    server: ScramServerFinal,
    attributes: Attributes,
    /// `None` for an unknown user, whose proof is never right.
    credential: Option<Box<dyn Credential>>,
}

impl Exchange for ScramExchange {
    fn proceed(self: Box<Self>, data: Option<Bytes>) -> Authentication<'static> {
        let Self { server, attributes, credential } = *self;
        let finished = server.handle_final(data.as_deref().unwrap_or_default());
        let answer = finished.map_err(|error| refusal(&error)).and_then(|ScramSuccess { user, message }| {
            // The file may have been read again since the challenge.
            if credential.as_ref().is_none_or(|credential| credential.is_revoked()) {
                return Err(refusal(&ScramError::Rejected));
            }
            let complete = |grant: &mut Grant| {
                grant.data = Some(message.into());
                grant.credential = credential;
            };
            accept(attributes, SOURCE, Some(&user), complete).map(Outcome::Accepted)
        });
        Box::pin(std::future::ready(answer))
    }
}
