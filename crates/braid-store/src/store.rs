//! The store's trait and its obligations.

use std::sync::Arc;
use std::time::SystemTime;

use braid_proto::packet::ClientId;

use crate::change::Batch;
use crate::completion::{Commit, Completion};
use crate::error::StoreError;
use crate::ids::{Claim, Lsn, NextIds};
use crate::message::{LazyMessage, StoredMessage};
use crate::recovery::Recover;

/// Durable storage of sessions, queues and retained messages.
///
/// Order of calls of a broker: [`recover`](Self::recover) and [`messages`](Self::messages) once; for each CONNECT whose
/// session outlives its connection, [`claim`](Self::claim) and a batch with `Opened` or `Resumed`; for every later
/// change [`commit`](Self::commit), and no acknowledgement before the commit is done.
///
/// One store value belongs to one broker. Several values may be open over the same stored state, one after the
/// other (a broker that restarts) or concurrently (the nodes of a cluster). Every session then belongs to
/// the value that claimed it last, and every change of it through another value is fenced.
pub trait Store: Send + Sync + 'static {
    /// Shows `into` the state after all committed batches, and claims for this value every session that it does not
    /// own. Returns the next free numbers.
    ///
    /// Blocks while it reads. `into` must not call the store. A second call shows the state at that time.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when something cannot be read: `into` has then seen only a part.
    /// [`StoreError::Failed`] when a write failed before: memory and device may differ, and another value must be
    /// opened.
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError>;

    /// Claims the client's session, or the right to open one, for the caller. From the answer on:
    ///
    /// - `Opened`, `Resumed`, `Parked` and `Closed` with an older claim to the client's session are fenced;
    /// - every change of the session through another store value is fenced;
    /// - changes through this value that need no claim are still accepted: messages that are queued during a takeover
    ///   are not lost.
    ///
    /// The claim is greater than every claim that was granted to the client before. It is valid as long as its
    /// session, or this store value if no session is opened. Nothing stored changes. A store for a single node
    /// always grants it.
    ///
    /// # Errors
    /// [`StoreError::Failed`], [`StoreError::Closed`].
    fn claim(&self, client_id: &ClientId) -> Completion<Claim>;

    /// Makes the batch durable.
    ///
    /// **Atomic**: a crash leaves all of it or nothing, and `recover` and `messages_of` see all of it or nothing.
    /// **Ordered**: batches take effect in the order of the calls; when a batch is durable, so is
    /// every batch committed before it. **Idempotent**: committing the last committed batch again changes
    /// nothing. Commits complete in the order of the calls.
    ///
    /// Never blocks on the device; a store whose own queue is full answers later.
    ///
    /// # Errors
    /// - [`StoreError::Fenced`]: a change is of a session that another value or a newer claim owned before the batch.
    ///   A session that the batch itself opens or resumes is its own from there on. Nothing was applied.
    /// - [`StoreError::NotStored`]: a change references a message that its batch does not store before.
    ///   Nothing was applied.
    /// - [`StoreError::Failed`]: this and every later commit and claim. A write is never retried.
    /// - [`StoreError::Closed`].
    fn commit(&self, batch: Batch) -> Commit;

    /// Reads messages at once; one answer for each number, in their order: `None` when nothing references the message.
    /// Sees all committed batches, and may see a batch whose commit is not done.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when one of them cannot be read, [`StoreError::Failed`].
    fn messages_of(&self, lsns: &[Lsn]) -> Completion<Vec<Option<StoredMessage>>>;

    /// Shows every referenced message once, by ascending number, in one pass, as [`messages_of`](Self::messages_of)
    /// would read it at that time.
    ///
    /// Blocks while it reads. `show` must not call the store.
    ///
    /// # Errors
    /// As [`recover`](Self::recover).
    fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError>;

    /// Whether a session that ends with its connection is stored too, as other store values may claim it.
    fn keeps_every_session(&self) -> bool {
        false
    }

    /// Present position of the log in each of its parts, at which a subscription begins that is made from now on. Empty
    /// where queues are not parts of a log.
    fn positions(&self) -> Arc<[u64]> {
        Arc::default()
    }

    /// Time of day by which stored times are told: when messages, sessions and Wills are due.
    fn wall_clock(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Bytes of its files; 0 for a store in memory.
    fn size(&self) -> u64 {
        0
    }

    /// Groups that are durable in the write-ahead log and not yet in the tables.
    fn wal_groups(&self) -> u64 {
        0
    }
}

/// Methods of [`Store`] that call those of another store: `self` with the given suffix.
macro_rules! forward {
    ($suffix:tt: $($method:ident),*) => { $(forward!(@$method $suffix);)* };
    (@recover ($($inner:tt)*)) => {
        fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
            self$($inner)*.recover(into)
        }
    };
    (@claim ($($inner:tt)*)) => {
        fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
            self$($inner)*.claim(client_id)
        }
    };
    (@commit ($($inner:tt)*)) => {
        fn commit(&self, batch: Batch) -> Commit {
            self$($inner)*.commit(batch)
        }
    };
    (@messages_of ($($inner:tt)*)) => {
        fn messages_of(&self, lsns: &[Lsn]) -> Completion<Vec<Option<StoredMessage>>> {
            self$($inner)*.messages_of(lsns)
        }
    };
    (@messages ($($inner:tt)*)) => {
        fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError> {
            self$($inner)*.messages(show)
        }
    };
    (@keeps_every_session ($($inner:tt)*)) => {
        fn keeps_every_session(&self) -> bool {
            self$($inner)*.keeps_every_session()
        }
    };
    (@positions ($($inner:tt)*)) => {
        fn positions(&self) -> Arc<[u64]> {
            self$($inner)*.positions()
        }
    };
    (@wall_clock ($($inner:tt)*)) => {
        fn wall_clock(&self) -> std::time::SystemTime {
            self$($inner)*.wall_clock()
        }
    };
    (@$usage:ident ($($inner:tt)*)) => {
        fn $usage(&self) -> u64 {
            self$($inner)*.$usage()
        }
    };
}

pub(crate) use forward;

impl<S: Store + ?Sized> Store for Arc<S> {
    forward!((.as_ref()): recover, claim, commit, messages_of, messages, keeps_every_session, positions, wall_clock, size, wal_groups);
}

impl<S: Store + ?Sized> Store for Box<S> {
    forward!((.as_ref()): recover, claim, commit, messages_of, messages, keeps_every_session, positions, wall_clock, size, wal_groups);
}
