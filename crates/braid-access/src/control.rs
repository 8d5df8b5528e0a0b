//! Access control of a broker: its chain of authenticators and its rules, reloaded together.

use std::future::pending;
use std::sync::Arc;

use braid_auth::acl::Acl;
use braid_auth::password::PasswordFile;
use futures_util::future::select_all;
use tokio::sync::watch;

use crate::chain::{Chain, Link};
use crate::file::FileError;
use crate::rules::{AclFile, Rules};
use crate::tokens::{Keys, Tokens};

/// Access control of a broker.
#[derive(Clone, Debug)]
pub struct AccessControl {
    chain: Chain,
    rules: Arc<Rules>,
}

/// Content of all files, read again and not in force yet.
#[derive(Debug)]
pub struct Reloaded {
    users: Vec<PasswordFile>,
    keys: Vec<Option<Keys>>,
    list: Option<Acl>,
}

/// Notices of other keys of tokens from URLs.
#[derive(Debug)]
pub struct KeyChanges(Vec<watch::Receiver<()>>);

impl KeyChanges {
    /// Waits until a URL has brought other keys than before. Cancel safe; never ready without URLs.
    pub async fn changed(&mut self) {
        let waits = self.0.iter_mut().map(|changes| {
            Box::pin(async {
                // An error: the chain has been dropped.
                if changes.changed().await.is_err() {
                    pending::<()>().await;
                }
            })
        });
        let waits: Vec<_> = waits.collect();
        if waits.is_empty() {
            pending::<()>().await;
        }
        select_all(waits).await;
    }
}

impl AccessControl {
    /// Access control by a chain of authenticators and a list of rules.
    ///
    /// # Errors
    /// The list cannot be read, or is malformed.
    pub fn open(chain: Chain, list: Option<AclFile>) -> Result<Self, FileError> {
        let users = chain.password_files().cloned().collect();
        let has_own = chain.links().iter().any(Link::gives_rules);
        Ok(Self { rules: Arc::new(Rules::open(list, users, has_own)?), chain })
    }

    /// Authenticator of the broker.
    pub fn authenticator(&self) -> Chain {
        self.chain.clone()
    }

    /// Authorizer of the broker.
    pub fn authorizer(&self) -> Arc<Rules> {
        self.rules.clone()
    }

    /// Notices of other keys from URLs. The broker's clients are to be checked again after each.
    pub fn key_changes(&self) -> KeyChanges {
        KeyChanges(self.chain.links().iter().filter_map(Link::tokens).filter_map(Tokens::changes).collect())
    }

    /// Reads all files again. Blocks; nothing changes.
    ///
    /// # Errors
    /// A file cannot be read, or is malformed.
    pub fn read(&self) -> Result<Reloaded, FileError> {
        let users = self.chain.password_files().map(|users| users.reload()).collect::<Result<_, _>>()?;
        let tokens = self.chain.links().iter().filter_map(Link::tokens);
        let keys = tokens.map(|tokens| tokens.reload()).collect::<Result<_, _>>()?;
        Ok(Reloaded { users, keys, list: self.rules.reload()? })
    }

    /// Puts what was read in force. The broker's clients are to be checked again afterwards.
    pub fn apply(&self, reloaded: Reloaded) {
        let Reloaded { users, keys, list } = reloaded;
        // Clients that connect meanwhile would find users and rules of different versions for as long as it takes to
        // free the former ones.
        let files = self.chain.password_files().zip(users);
        let former_users: Vec<_> = files.map(|(current, users)| current.replace(users)).collect();
        let tokens = self.chain.links().iter().filter_map(Link::tokens).zip(keys);
        let former_keys: Vec<_> = tokens.map(|(tokens, keys)| tokens.replace(keys)).collect();
        // Last: it ends the validity of cached answers.
        self.rules.replace(list);
        drop((former_users, former_keys));
    }
}
