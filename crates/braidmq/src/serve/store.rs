//! What the broker stands over: opened with everything that can be wrong with it, and closed last.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use braid_broker::{Anonymous, Broker, Recovery};
use braid_http::HealthState;
use braid_proto::codec::Spool;
use braid_store::spool::FileSpool;
use braid_store::{EmbeddedStore, MemoryStore, OpenError, Store, StoreError};
use braid_transport::Listener;

use super::StartError;
use super::progress::Announcer;
use crate::config::Config;

/// What outlives the broker's value.
#[derive(Clone)]
pub(super) enum Kept {
    Memory(Arc<MemoryStore>),
    File(Arc<EmbeddedStore>),
}

/// A store that was opened, and nothing of it read yet.
pub(super) struct Opened {
    kept: Kept,
    spool: Option<Arc<dyn Spool>>,
    announcer: Announcer,
}

/// A broker over its store.
pub(super) struct Built {
    pub(super) broker: Broker,
    pub(super) kept: Kept,
    /// How long that took.
    pub(super) took: Duration,
}

/// Opens the store, and then what else is made in the data directory: one that is refused is left as it was. Blocks for as
/// long as that takes.
pub(super) fn open(config: &Config, health: HealthState) -> Result<Opened, StartError> {
    let announcer = Announcer::start(health);
    let Some(mut options) = config.store.options() else {
        let kept = Kept::Memory(Arc::new(MemoryStore::new()));
        return Ok(Opened { kept, spool: open_spool(config)?, announcer });
    };
    options.progress = {
        let announcer = announcer.clone();
        Arc::new(move |progress| announcer.opened(progress))
    };
    let mut store = EmbeddedStore::open(&config.data_dir, options)
        .map_err(|error| StartError::of_open(&config.data_dir, error))?;
    let spool = open_spool(config)?;
    if let Some(spool) = &spool {
        store.set_spool(spool.clone());
    }
    Ok(Opened { kept: Kept::File(Arc::new(store)), spool, announcer })
}

fn open_spool(config: &Config) -> Result<Option<Arc<dyn Spool>>, StartError> {
    let Some((directory, options)) = config.spool() else { return Ok(None) };
    Ok(Some(Arc::new(FileSpool::open(&directory, options)?)))
}

impl Opened {
    /// Puts the broker together from what is in the store. Blocks for as long as that takes.
    pub(super) fn build(self, config: &Config, listeners: Vec<Listener>) -> Result<Built, StartError> {
        let Self { kept, spool, announcer } = self;
        let authenticate = Box::new(Anonymous { from_anywhere: config.allow_anonymous });
        let progress = |recovery: Recovery| announcer.recovered(recovery);
        let broker = Broker::recover(config.broker(), authenticate, kept.store(), spool, listeners, progress)
            .map_err(|error| StartError::of_store(&config.data_dir, error))?;
        Ok(Built { broker, kept, took: announcer.elapsed() })
    }
}

impl Kept {
    fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => store.clone(),
            Self::File(store) => store.clone(),
        }
    }

    /// Waits until it fails: a file knows that before anybody commits again.
    pub(super) async fn failed(&self) -> StoreError {
        match self {
            Self::Memory(_) => std::future::pending().await,
            Self::File(store) => store.failed().await.err().unwrap_or(StoreError::Closed),
        }
    }

    /// Writes what is pending, once nobody else has the store.
    pub(super) fn close(self) -> Result<(), StoreError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::File(store) => Arc::into_inner(store).map_or(Ok(()), EmbeddedStore::close),
        }
    }
}

impl StartError {
    fn of_open(directory: &Path, error: OpenError) -> Self {
        match error {
            OpenError::Damaged { .. } => {
                Self::Damaged { error: error.to_string(), directory: directory.into() }
            }
            error => Self::Open(error),
        }
    }

    fn of_store(directory: &Path, error: StoreError) -> Self {
        match error {
            StoreError::Damaged { .. } => {
                Self::Damaged { error: error.to_string(), directory: directory.into() }
            }
            error => Self::Store(error),
        }
    }
}
