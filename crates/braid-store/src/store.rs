use std::sync::Arc;

use braid_proto::packet::ClientId;

use crate::batch::Batch;
use crate::commit::{Commit, Completion};
use crate::error::StoreError;
use crate::identity::{Claim, Lsn};
use crate::message::StoredMessage;
use crate::recover::{NextIds, Recover};
use crate::unread::Unread;

/// Keeps what must outlive the process.
///
/// A broker does, in this order: [`recover`](Self::recover) and [`messages`](Self::messages) once; for each
/// CONNECT whose session is to outlive something, [`claim`](Self::claim) and a batch with `Opened` or `Resumed`;
/// for everything that happens then, [`commit`](Self::commit), and no acknowledgement before the commit is done.
///
/// One store value belongs to one broker. Several values may stand over the same stored state, one after the
/// other (a broker that starts again) or side by side (the nodes of a cluster). Every session then belongs to
/// the value that claimed it last, and every change of it through another value is fenced.
pub trait Store: Send + Sync + 'static {
    /// Shows `into` everything that committed batches left, and claims for this value every session that it
    /// does not hold already. Returns where counting goes on.
    ///
    /// May block for as long as reading takes. `into` must not call the store. A second call shows the state
    /// of that time.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when something cannot be read: what was shown before is not all there is.
    /// [`StoreError::Failed`] when a write failed before: what this value knows and what the device holds may
    /// differ, and another value must be opened.
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError>;

    /// Claims the client's session, or the right to open one, for the caller. From the answer on:
    ///
    /// - `Opened`, `Resumed`, `Parked` and `Closed` with an older claim to the client's session are fenced;
    /// - every change to the session through another store value is fenced;
    /// - changes through this value that need no claim go on: what is queued for a session while it is taken
    ///   over is not lost.
    ///
    /// The claim is greater than every claim that was granted to the client before. It lasts as long as its
    /// session, or this store value if no session is opened. Nothing stored changes. A store for a single node
    /// always grants it.
    ///
    /// # Errors
    /// [`StoreError::Failed`], [`StoreError::Closed`].
    fn claim(&self, client_id: &ClientId) -> Completion<Claim>;

    /// Makes the batch durable.
    ///
    /// **Atomic**: after a crash all of it is there or nothing, and so it is for `recover` and `message` at
    /// any time. **Ordered**: batches take effect in the order of the calls; when a batch is durable, so is
    /// every batch committed before it. **Repeatable**: committing the last committed batch again changes
    /// nothing. The order of completion is the order of the calls.
    ///
    /// Never blocks for longer than handing over takes; a store whose own queue is full answers later.
    ///
    /// # Errors
    /// - [`StoreError::Fenced`]: a change names a session that another value or a newer claim owns, as it was
    ///   before the batch; a session that the batch itself opens or resumes is its own from there on. Nothing
    ///   was applied.
    /// - [`StoreError::NotStored`]: a change refers to a message that its batch does not store before.
    ///   Nothing was applied.
    /// - [`StoreError::Failed`]: this and every later commit and claim. A write is never tried again.
    /// - [`StoreError::Closed`].
    fn commit(&self, batch: Batch) -> Commit;

    /// Reads the message that was stored under `message`: `None` when nothing refers to it (any more).
    /// Shows what committed batches left, and may show a batch whose commit is not done yet.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Failed`].
    fn message(&self, message: Lsn) -> Completion<Option<StoredMessage>>;

    /// Shows every message that something refers to, once each and by ascending number: what
    /// [`message`](Self::message) would read of each at that time, in one pass.
    ///
    /// May block for as long as that takes. `show` must not call the store.
    ///
    /// # Errors
    /// As [`recover`](Self::recover).
    fn messages(&self, show: &mut dyn FnMut(Lsn, Unread<'_>)) -> Result<(), StoreError>;

    /// Bytes of its files now; none of a store in memory.
    fn size(&self) -> u64 {
        0
    }

    /// Groups that are durable in a journal and not yet where they stay.
    fn ahead(&self) -> u64 {
        0
    }
}

macro_rules! stores_behind {
    ($($pointer:ident),*) => {$(
        impl<S: Store + ?Sized> Store for $pointer<S> {
            fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
                (**self).recover(into)
            }

            fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
                (**self).claim(client_id)
            }

            fn commit(&self, batch: Batch) -> Commit {
                (**self).commit(batch)
            }

            fn message(&self, message: Lsn) -> Completion<Option<StoredMessage>> {
                (**self).message(message)
            }

            fn messages(&self, show: &mut dyn FnMut(Lsn, Unread<'_>)) -> Result<(), StoreError> {
                (**self).messages(show)
            }

            fn size(&self) -> u64 {
                (**self).size()
            }

            fn ahead(&self) -> u64 {
                (**self).ahead()
            }
        }
    )*};
}

stores_behind!(Arc, Box);
