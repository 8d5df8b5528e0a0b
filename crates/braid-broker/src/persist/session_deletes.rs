//! Sessions that have ended, as long as the store may not know it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use braid_proto::packet::ClientId;
use braid_store::{Commit, Completion};

/// Below this many nobody looks for those that are done.
const PURGE_FROM: usize = 1024;

/// The commits that end sessions, by client. Whoever says that a session is gone waits for the last of its client
/// first: after a crash it would be there again.
///
/// Most are never asked for: when they have doubled, those that are done go.
#[derive(Debug, Default)]
pub(super) struct PendingSessionDeletes(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    commits: HashMap<ClientId, Commit>,
    /// How many the last purge left.
    purged: usize,
}

impl PendingSessionDeletes {
    /// Notes the commit with which a session of the client ends. Those before are durable when it is.
    pub(super) fn note(&self, client_id: &ClientId, commit: Commit) {
        if matches!(commit, Completion::Done(Ok(()))) {
            return;
        }
        let mut pending = self.lock();
        pending.commits.insert(client_id.clone(), commit);
        if pending.commits.len() >= PURGE_FROM.max(2 * pending.purged) {
            pending.commits.retain(|_, commit| commit.try_take().is_none());
            pending.purged = pending.commits.len();
        }
    }

    /// What must be durable before the client is told that it has no session.
    pub(super) fn take(&self, client_id: &ClientId) -> Option<Commit> {
        self.lock().commits.remove(client_id)
    }

    /// Held for a few instructions and never while a commit is awaited.
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_that_are_durable_are_forgotten() {
        let endings = PendingSessionDeletes::default();
        let mut held = Vec::new();
        for number in 0..10_000 {
            let (completer, commit) = Completion::pending();
            endings.note(&ClientId::from(number.to_string().as_str()), commit);
            if number % 10 == 0 { held.push(completer) } else { completer.complete(Ok(())) }
        }
        assert!(endings.lock().commits.len() < 3000);
        assert!(endings.take(&ClientId::from("10")).is_some(), "not yet durable");
    }
}
