use std::sync::Arc;

use thiserror::Error;

use crate::identity::{Lsn, SessionId};

/// Why a store refused. Cheap to clone: a group commit gives one reason to everybody in it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Somebody claimed the session since. Nothing of the batch was applied; without the changes of this
    /// session it may be committed again.
    #[error("session {session} was claimed by another connection or node: end this one's part in it")]
    Fenced {
        /// The session that is no longer the caller's.
        session: SessionId,
    },
    /// A change refers to a message that no [`Change::Stored`](crate::Change::Stored) earlier in its batch
    /// holds: a mistake in the caller. Nothing of the batch was applied.
    #[error("the batch refers to message {message} without storing it: put Change::Stored before it")]
    NotStored {
        /// The message that is missing.
        message: Lsn,
    },
    /// The store cannot write any more, now or later. The batch may or may not be found after the next
    /// [`Store::recover`](crate::Store::recover), whole or not at all.
    #[error("the store cannot write any more ({reason}): stop acknowledging, mend the cause, start again")]
    Failed {
        /// What the device or the service said.
        reason: Arc<str>,
    },
    /// What is stored cannot be read.
    #[error("the store is damaged ({reason}): restore a copy or start with an empty store")]
    Damaged {
        /// What is wrong and where.
        reason: Arc<str>,
    },
    /// The store was closed before it could answer. The batch may or may not be found after the next
    /// [`Store::recover`](crate::Store::recover), whole or not at all.
    #[error("the store was closed before it answered: open it again and recover")]
    Closed,
}
