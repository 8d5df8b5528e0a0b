//! Commit of several parts, which is done when all of them are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use braid_store::{Commit, Completer, Completion, StoreError};

/// Part of a commit. The commit fails with the first part that does.
#[derive(Clone, Debug)]
pub(crate) struct CommitPart(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    left: AtomicUsize,
    completer: Mutex<Option<Completer<()>>>,
}

impl CommitPart {
    /// A commit of `parts` parts, and one of them to be cloned for the others.
    pub(crate) fn join(parts: usize) -> (Self, Commit) {
        let (completer, commit) = Completion::pending();
        let completer = Mutex::new(Some(completer));
        (Self(Arc::new(Parts { left: AtomicUsize::new(parts), completer })), commit)
    }

    /// Ends this part.
    pub(crate) fn complete(self, outcome: &Result<(), StoreError>) {
        let is_last = self.0.left.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last || outcome.is_err() {
            let completer = self.0.completer.lock().unwrap_or_else(PoisonError::into_inner).take();
            completer.into_iter().for_each(|completer| completer.complete(outcome.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_done_with_its_last_part_and_fails_with_the_first_that_does() {
        let (part, mut commit) = CommitPart::join(2);
        part.clone().complete(&Ok(()));
        assert_eq!(commit.try_take(), None);
        part.complete(&Ok(()));
        assert_eq!(commit.try_take(), Some(Ok(())));
        let (part, mut commit) = CommitPart::join(3);
        part.clone().complete(&Err(StoreError::Closed));
        assert_eq!(commit.try_take(), Some(Err(StoreError::Closed)));
        part.clone().complete(&Ok(()));
        part.complete(&Ok(()));
    }
}
