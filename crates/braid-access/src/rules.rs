//! Authorizer by an access control list, the rules of each client, and the users of the password files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use braid_auth::acl::{self, Acl, AclError, Decision};
use braid_auth::identity::Identity;
use braid_broker::{Action, Authorize};
use braid_proto::packet::ClientId;
use braid_proto::topic::TopicName;
use serde::{Deserialize, Serialize};

use crate::file::{FileError, read};
use crate::password::{SOURCE, Users};

/// Format of a file with rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AclFormat {
    /// The format of [`acl`](braid_auth::acl).
    #[default]
    Braidmq,
    /// The acl_file of mosquitto.
    Mosquitto,
}

impl AclFormat {
    /// Parses a list. `name` is its name in errors.
    ///
    /// # Errors
    /// The list is malformed.
    pub fn parse(self, text: &[u8], name: &str) -> Result<Acl, AclError> {
        match self {
            Self::Braidmq => Acl::parse(text, name),
            Self::Mosquitto => Acl::parse_mosquitto(text, name),
        }
    }
}

/// File with an access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Its format.
    pub format: AclFormat,
}

impl AclFile {
    /// Reads the list.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub fn load(&self) -> Result<Acl, FileError> {
        let text = read(&self.path, acl::MAX_FILE_BYTES)?;
        let name = self.path.display().to_string();
        self.format.parse(&text, &name).map_err(|error| FileError::Content(error.to_string()))
    }
}

/// Authorizer by rules.
pub struct Rules {
    file: Option<AclFile>,
    /// `None` where there is no file: then only clients with rules of their own are restricted.
    list: RwLock<Option<Arc<Acl>>>,
    /// Files that a user with a password must be in.
    users: Vec<Users>,
    /// Whether authenticators may give clients rules of their own.
    has_own: bool,
    generation: AtomicU64,
}

impl Rules {
    /// Authorizer by the list of a file, if there is one, and the users of these password files. `has_own`: whether
    /// authenticators may give clients rules of their own.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub fn open(file: Option<AclFile>, users: Vec<Users>, has_own: bool) -> Result<Self, FileError> {
        let list = RwLock::new(file.as_ref().map(AclFile::load).transpose()?.map(Arc::new));
        Ok(Self { file, list, users, has_own, generation: AtomicU64::new(0) })
    }

    /// Reads the list again, for [`Rules::replace`].
    ///
    /// # Errors
    /// As [`Rules::open`]. Nothing changes.
    pub fn reload(&self) -> Result<Option<Acl>, FileError> {
        self.file.as_ref().map(AclFile::load).transpose()
    }

    /// Replaces the list, and lets every cached answer be asked again.
    pub fn replace(&self, list: Option<Acl>) {
        let list = list.map(Arc::new);
        let former = {
            let mut current = self.list.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, list)
        };
        self.generation.fetch_add(1, Ordering::Release);
        // Ten thousand rules are freed outside of the lock.
        drop(former);
    }

    /// Path of the file, for a list whose rule decided.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| &*file.path)
    }
}

impl Authorize for Rules {
    fn decide(&self, identity: &Identity, client_id: &ClientId, action: Action<'_>) -> Decision {
        if self.is_revoked(identity) {
            return Decision { allowed: false, line: None, list: 0 };
        }
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner).clone();
        if list.is_none() && !identity.has_rules() {
            return Decision { allowed: true, line: None, list: 0 };
        }
        action.decide(identity, client_id.as_str(), list.as_deref())
    }

    fn withdraws(&self, identity: &Identity, client_id: &ClientId, topic: &TopicName) -> bool {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner).clone();
        list.is_some_and(|list| identity.is_denied_by_name(client_id.as_str(), topic, &list))
    }

    fn is_revoked(&self, identity: &Identity) -> bool {
        identity.source() == Some(SOURCE)
            && identity.user().is_some_and(|user| !self.users.iter().any(|users| users.contains(user)))
    }

    fn permits_everything(&self) -> bool {
        self.file.is_none() && !self.has_own && self.users.is_empty()
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("file", &self.file).finish_non_exhaustive()
    }
}
