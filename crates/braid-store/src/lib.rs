//! The durability seam: what must outlive the broker's process, behind one trait.
//!
//! This crate never routes a message, decides that something expires or knows a runtime. No clock is read but by the
//! threads of the embedded store, for how long they wait, and no random number drawn but the one by which a journal and its
//! store know each other. The broker keeps all live state in memory; it tells a [`Store`] every [`Change`] that must
//! outlive the process, in [`Batch`]es, and gets everything back at start. The store speaks of sessions,
//! queues, retained messages and claims, never of keys and values.
//!
//! - [`Store`]: commit, recover, claim, message, messages, with the obligations of each.
//! - [`Change`]: the vocabulary, with the effect of each change and when it may be late.
//! - [`MemoryStore`]: everything in memory; outlives the broker's value, not the process.
//! - [`EmbeddedStore`]: a file and its journal on one machine; outlives the process and the power.
//! - [`spool`]: not a store: files for large packets, for as long as the process lives.
//! - [`suite`]: what every store must pass.
//! - [`faults`]: a disk that dies and a disk that is slow, for tests of what stands above.

mod batch;
mod change;
mod commit;
mod embedded;
mod error;
pub mod faults;
mod identity;
mod image;
mod memory;
mod message;
mod ownership;
mod recover;
mod session;
pub mod spool;
mod store;
mod subscription;
pub mod suite;
mod unread;

pub use batch::Batch;
pub use change::Change;
pub use commit::{Commit, Completer, Completion, Receiver};
pub use embedded::{
    Check, Damage, Durability, EmbeddedStore, Existing, OfflineStore, OpenError, Options, Problem, Progress,
    QueueStats, Stage, Stats, TransferError,
};
pub use error::StoreError;
pub use identity::{Claim, Lsn, SessionId};
pub use image::{Image, SessionImage};
pub use memory::MemoryStore;
pub use message::{Now, QueueEntry, StoredDelivery, StoredMessage};
pub use recover::{NextIds, Recover};
pub use session::SessionRecord;
pub use store::Store;
pub use subscription::StoredSubscription;
pub use unread::Unread;
