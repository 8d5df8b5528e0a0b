//! Durable storage: the state that must outlive the broker's process, behind one trait.
//!
//! The broker keeps all live state in memory; it commits every [`Change`] that must outlive the process to a [`Store`],
//! in [`Batch`]es, and recovers everything at its start. The trait's terms are sessions, queues, retained messages and
//! claims, not keys and values. This crate never routes or expires a message and knows no runtime. Only the threads of
//! the embedded store read a clock, for their waits, and the only random number is the one that pairs a journal with
//! its tables.
//!
//! - [`Store`]: commit, recover, claim, messages_of, messages, with the obligations of each.
//! - [`Change`]: the vocabulary, with the effect of each change, and which may be lazy.
//! - [`MemoryStore`]: everything in memory; outlives the broker's value, not the process.
//! - [`EmbeddedStore`]: tables and a write-ahead log in files of one machine; outlives process and power.
//! - [`spool`]: not a store: files for large packets, as long as the process lives.
//! - [`suite`]: conformance suite for every store.
//! - [`faults`]: stores with a device that fails or is slow, for tests of their callers.

mod change;
mod completion;
mod embedded;
mod error;
pub mod faults;
mod ids;
mod index;
mod memory;
mod message;
mod private;
mod recovery;
mod session;
pub mod spool;
mod store;
pub mod suite;
mod write_set;

pub use change::{Batch, Change};
pub use completion::{Commit, Completer, Completion, Receiver};
pub use embedded::{
    Check, Damage, Durability, EmbeddedStore, Existing, OfflineStore, OpenError, Options, Problem, Progress,
    QueueStats, Stage, Stats, TransferError,
};
pub use error::StoreError;
pub use ids::{Claim, Lsn, NextIds, SessionId};
pub use memory::MemoryStore;
pub use message::{LazyMessage, Now, QueueEntry, StoredDelivery, StoredMessage};
pub use recovery::{Recover, RecoveredSession, RecoveredState};
pub use session::{SessionRecord, StoredSubscription};
pub use store::Store;
