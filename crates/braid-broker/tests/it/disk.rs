//! Store that outlives a broker of the tests: in memory, or in a file.

use std::cell::Cell;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use braid_proto::packet::ClientId;
use braid_store::{
    Batch, Claim, Commit, Completion, EmbeddedStore, LazyMessage, Lsn, MemoryStore, NextIds, Options,
    Recover, Store, StoreError, StoredMessage,
};
use tempfile::TempDir;

thread_local! {
    /// Whether the test of this thread uses a store in a file.
    pub(crate) static IS_FILE: Cell<bool> = const { Cell::new(false) };
}

/// Repeats tests with a store in a file.
macro_rules! over_a_file {
    ($($test:ident),*) => {
        mod over_a_file {
            $(
                #[test]
                fn $test() {
                    crate::disk::IS_FILE.set(true);
                    super::$test();
                    crate::disk::IS_FILE.set(false);
                }
            )*
        }
    };
}
pub(crate) use over_a_file;

/// Location of a store.
pub(crate) enum Disk {
    Memory(Arc<MemoryStore>),
    File(TempDir),
}

impl Disk {
    pub(crate) fn new() -> Self {
        if IS_FILE.get() { Self::File(directory()) } else { Self::Memory(Arc::default()) }
    }

    pub(crate) fn new_file() -> Self {
        Self::File(directory())
    }

    pub(crate) fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => store.clone(),
            Self::File(directory) => {
                let mut options = Options::default();
                options.lazy = Duration::ZERO;
                // The tables change when they are full, and not while a test copies them.
                options.checkpoint = Duration::MAX;
                options.journal = 1 << 20;
                let store = EmbeddedStore::open(directory.path(), options).expect("it can be opened");
                Arc::new(Prompt(store))
            }
        }
    }

    /// Copy of the durable content, for the next broker. The old broker may go on without changing the copy.
    pub(crate) fn after_crash(&self) -> Self {
        match self {
            Self::Memory(store) => Self::Memory(Arc::new(store.reopen())),
            Self::File(old) => {
                let new = directory();
                // Changes that leave the journal meanwhile are in the tables already.
                for name in ["store.journal", "store.redb"] {
                    let [from, to] = [old, &new].map(|directory| directory.path().join(name));
                    fs::copy(from, to).expect("it can be copied");
                }
                Self::File(new)
            }
        }
    }
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Each commit is durable when it returns, so that no virtual time passes while a real disk works.
struct Prompt(EmbeddedStore);

impl Store for Prompt {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        self.0.recover(into)
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        self.0.claim(client_id)
    }

    fn commit(&self, batch: Batch) -> Commit {
        Completion::Done(self.0.commit(batch).wait())
    }

    fn messages_of(&self, lsns: &[Lsn]) -> Completion<Vec<Option<StoredMessage>>> {
        self.0.messages_of(lsns)
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError> {
        self.0.messages(show)
    }
}
