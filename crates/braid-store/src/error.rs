//! Errors of a store that is in use.

use std::sync::Arc;

use thiserror::Error;

use crate::ids::{Lsn, SessionId};

/// Refusal or failure of a store. Cheap to clone: a group commit gives one error to every caller in the group.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another connection or node claimed the session since. Nothing of the batch was applied; without the changes of
    /// this session it may be committed again.
    #[error("session {session} was claimed by another connection or node: end this one's part in it")]
    Fenced {
        /// The session that the caller no longer owns.
        session: SessionId,
    },
    /// A change references a message that no [`Change::Stored`](crate::Change::Stored) earlier in its batch
    /// stores: a defect of the caller. Nothing of the batch was applied.
    #[error("the batch refers to message {message} without storing it: put Change::Stored before it")]
    NotStored {
        /// The message that is missing.
        message: Lsn,
    },
    /// The store cannot write any more. The next [`Store::recover`](crate::Store::recover) finds the batch whole or not
    /// at all.
    #[error("the store cannot write any more ({reason}): stop acknowledging, mend the cause, start again")]
    Failed {
        /// Error of the device or the service.
        reason: Arc<str>,
    },
    /// The store does not answer for now: too few servers of a cluster are reachable. The batch may be applied or not.
    #[error("the store does not answer ({reason}): try again later")]
    Unavailable {
        /// Error of the service.
        reason: Arc<str>,
    },
    /// Stored content cannot be read.
    #[error("the store is damaged ({reason}): restore a copy or start with an empty store")]
    Damaged {
        /// Kind of damage and its location.
        reason: Arc<str>,
    },
    /// The store was closed before it could answer. The next [`Store::recover`](crate::Store::recover) finds the batch
    /// whole or not at all.
    #[error("the store was closed before it answered: open it again and recover")]
    Closed,
}
