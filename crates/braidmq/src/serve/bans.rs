//! Bans of the ban file.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use braid_access::read_file;
use braid_auth::bans::{self, Banned};
use braid_broker::Handle;
use braid_broker::bans::{BanError, BanTarget};

use super::access::AccessError;

/// Largest ban file, in bytes.
const MAX_FILE: usize = 16 << 20;

/// Ban file, and the bans of it that are in force.
pub(super) struct FileBans {
    path: Option<PathBuf>,
    /// In their normalized form.
    in_force: HashSet<BanTarget>,
}

impl FileBans {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Self { path, in_force: HashSet::new() }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is not valid.
    pub(super) fn read(&self) -> Result<HashSet<BanTarget>, AccessError> {
        self.path.as_deref().map_or_else(|| Ok(HashSet::new()), read)
    }

    /// Puts the bans of the file in force, and lifts those that are not in it any more. All of them are set each time:
    /// an operator may have lifted one meanwhile, or replaced it by one with an end.
    ///
    /// # Errors
    /// There would be too many bans. Nothing has changed.
    pub(super) fn apply(&mut self, listed: HashSet<BanTarget>, handle: &Handle) -> Result<(), BanError> {
        let lifted = self.in_force.difference(&listed).cloned().collect();
        handle.replace_bans(lifted, listed.iter().cloned().collect(), "listed in the ban file")?;
        self.in_force = listed;
        Ok(())
    }
}

fn read(path: &Path) -> Result<HashSet<BanTarget>, AccessError> {
    let text = read_file(path, MAX_FILE)?;
    let listed = bans::parse(&text).map_err(|error| AccessError::Bans { path: path.to_owned(), error })?;
    let target = |banned| match banned {
        Banned::Client(client_id) => BanTarget::Client((*client_id).into()),
        Banned::User(user) => BanTarget::User(user),
        Banned::Addresses(network) => BanTarget::Addresses(network),
    };
    Ok(listed.into_iter().map(target).map(BanTarget::normalize).collect())
}
