//! Store of the broker process: opened before the broker, closed after it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use braid_access::AccessControl;
use braid_broker::cluster::{Cluster, Storage};
use braid_broker::{Broker, BrokerListener, Recovery};
use braid_http::HealthState;
use braid_proto::decoder::Spool;
use braid_store::spool::FileSpool;
use braid_store::{EmbeddedStore, MemoryStore, OpenError, Store, StoreError};

use super::StartError;
use super::node::Shared;
use super::progress::ProgressReporter;
use crate::config::Config;

/// Store, which is closed after the broker is dropped.
#[derive(Clone)]
pub(super) enum ProcessStore {
    Memory(Arc<MemoryStore>),
    File(Arc<EmbeddedStore>),
}

/// Opened store that has not been read yet. In a cluster it stays empty: the node has another one.
pub(super) struct Opened {
    store: ProcessStore,
    spool: Option<Arc<dyn Spool>>,
    reporter: ProgressReporter,
}

/// Broker with its store.
pub(super) struct Built {
    pub(super) broker: Broker,
    pub(super) store: ProcessStore,
    /// Time since the start of the process's work on the store.
    pub(super) took: Duration,
}

/// Opens the store, and then the spool, so that a refused data directory is left unchanged. Blocks for the time of a
/// check and a compaction.
pub(super) fn open(config: &Config, health: HealthState) -> Result<Opened, StartError> {
    let reporter = ProgressReporter::start(health);
    let options = config.store.options().filter(|_| !config.cluster.is_on());
    let Some(mut options) = options else {
        let store = ProcessStore::Memory(Arc::new(MemoryStore::new()));
        return Ok(Opened { store, spool: open_spool(config)?, reporter });
    };
    options.progress = {
        let reporter = reporter.clone();
        Arc::new(move |progress| reporter.opened(progress))
    };
    let mut store = EmbeddedStore::open(&config.data_dir, options)
        .map_err(|error| StartError::of_open(&config.data_dir, error))?;
    let spool = open_spool(config)?;
    if let Some(spool) = &spool {
        store.set_spool(spool.clone());
    }
    Ok(Opened { store: ProcessStore::File(Arc::new(store)), spool, reporter })
}

fn open_spool(config: &Config) -> Result<Option<Arc<dyn Spool>>, StartError> {
    let Some((directory, options)) = config.spool() else { return Ok(None) };
    Ok(Some(Arc::new(FileSpool::open(&directory, options)?)))
}

/// Opens the store if it was not, and builds the broker from its content, or over that of its node.
pub(super) fn build(
    opened: Option<Opened>,
    Shared { config, storage }: Shared,
    health: HealthState,
    control: &AccessControl,
    listeners: Vec<BrokerListener>,
) -> Result<Built, StartError> {
    let opened = opened.map_or_else(|| open(&config, health), Ok)?;
    opened.build(&config, control, listeners, storage)
}

impl Opened {
    /// Builds the broker from the content of the store. Blocks for the time of the recovery.
    fn build(
        self,
        config: &Config,
        control: &AccessControl,
        listeners: Vec<BrokerListener>,
        node: Option<(Arc<dyn Store>, Arc<dyn Cluster>)>,
    ) -> Result<Built, StartError> {
        let Self { store, spool, reporter } = self;
        let authenticate = Box::new(control.authenticator());
        let progress = |recovery: Recovery| reporter.recovered(recovery);
        let storage = match node {
            Some((store, cluster)) => Storage { store, spool, cluster },
            None => Storage { spool, ..Storage::of(store.shared()) },
        };
        let authorize = control.authorizer();
        let broker = Broker::recover(config.broker(), authenticate, authorize, storage, listeners, progress);
        let broker = broker.map_err(|error| StartError::of_store(&config.data_dir, error))?;
        Ok(Built { broker, store, took: reporter.elapsed() })
    }
}

impl ProcessStore {
    fn shared(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => store.clone(),
            Self::File(store) => store.clone(),
        }
    }

    /// Waits for a failure of the store, which may precede the next commit.
    pub(super) async fn failed(&self) -> StoreError {
        match self {
            Self::Memory(_) => std::future::pending().await,
            Self::File(store) => store.failed().await.err().unwrap_or(StoreError::Closed),
        }
    }

    /// Writes pending groups. Every other handle of the store must have been dropped.
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
