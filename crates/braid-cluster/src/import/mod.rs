//! Import of the store of a single broker: its messages into the log, then its sessions as records.
//!
//! The messages of queues are appended as withheld ones: no subscription gets them, only the queues that refer to
//! them. So an import may be interrupted and done again, and sessions that are there already get nothing. A record is
//! written on condition that its client has none, after everything that it refers to.

mod append;
mod check;
mod session;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::stream::Stream;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_store::{RecoveredSession, RecoveredState, Store, StoreError};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use thiserror::Error;
use tokio::time::{Instant, sleep};

use crate::error::ClusterError;
use crate::layout::Layout;
use crate::log_writer::PATIENCE;
use crate::node::{NodeStreams, prepare};
use crate::nodes::live_nodes;
use crate::options::ClusterOptions;
use crate::publish::last_message;
use crate::shared::open_group;

use self::append::Appended;
use self::check::Presence;

/// Requests at a time.
const AT_ONCE: usize = 256;

/// Time between two tries.
const AGAIN: Duration = Duration::from_millis(100);

/// Items between two reports of progress.
const REPORT_EVERY: u64 = 64;

/// Test for topics of a priority above the default.
pub type IsUrgent = Arc<dyn Fn(&TopicName) -> bool + Send + Sync>;

/// Options of an import.
#[derive(Clone)]
pub struct ImportOptions {
    /// Mark of the export: the same for the same content, and different for others. By it an import that was
    /// interrupted knows its own sessions when it is done again.
    pub mark: String,
    /// Leaves out sessions of clients that have one in the cluster, instead of refusing the import.
    pub skip_existing: bool,
    /// Rule by which the nodes select the shard of a topic.
    pub is_urgent: IsUrgent,
}

impl std::fmt::Debug for ImportOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportOptions").field("mark", &self.mark).finish_non_exhaustive()
    }
}

/// Step of an import, with the number of items that are done, and of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportStage {
    /// Connecting, and checking the servers.
    Connecting,
    /// Looking for sessions of the same clients.
    Looking(u64, u64),
    /// Appending messages of queues.
    Messages(u64, u64),
    /// Appending retained messages.
    Retained(u64, u64),
    /// Writing records of sessions.
    Sessions(u64, u64),
}

/// Receiver of the steps of an import.
pub type ImportReport<'a> = &'a (dyn Fn(ImportStage) + Sync);

/// Counts of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Sessions that were written.
    pub sessions: u64,
    /// Sessions that an earlier run of the same import has written.
    pub present: u64,
    /// Sessions that were left out, as their clients have others.
    pub skipped: u64,
    /// Messages of queues, each once.
    pub messages: u64,
    /// Retained messages.
    pub retained: u64,
    /// Topics with a retained message in the cluster, which was kept.
    pub kept: u64,
    /// Messages that were left out since they have expired.
    pub expired: u64,
}

/// Reason for which an import was refused or broke off: one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The cluster cannot be used.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The store cannot be read.
    #[error("the records cannot be read: {0}")]
    Store(#[from] StoreError),
    /// Brokers of the cluster run.
    #[error("brokers of the cluster are running: {nodes}. Stop all of them first; nothing was imported")]
    NodesRun {
        /// Names of their nodes.
        nodes: String,
    },
    /// Clients have sessions in the cluster.
    #[error(
        "{count} clients have a session in the cluster already, among them {client:?}: leave theirs out with \
         --skip-existing; nothing was imported"
    )]
    Existing {
        /// Number of clients.
        count: u64,
        /// One of them.
        client: String,
    },
    /// Something is larger than the payloads of NATS.
    #[error(
        "{what} takes {bytes} bytes, and NATS takes payloads of {most} bytes: raise max_payload in the configuration of its \
         servers; nothing was imported"
    )]
    TooLarge {
        /// The message or session.
        what: String,
        /// Its size.
        bytes: usize,
        /// Limit of the servers.
        most: usize,
    },
    /// A name does not fit into a subject.
    #[error(
        "{what} is too long for a subject of NATS (3840 bytes, some characters count three times); nothing was imported"
    )]
    TooLong {
        /// Beginning of the name, and its kind.
        what: String,
    },
    /// A stream has no room.
    #[error(
        "the messages take {bytes} bytes in the stream {stream}, which has room for {room}: raise cluster.log_bytes, and the \
         limit of the stream with `nats stream edit --max-bytes`; nothing was imported"
    )]
    NoRoom {
        /// Name of the stream.
        stream: String,
        /// Bytes of the messages.
        bytes: u64,
        /// Bytes that are free.
        room: u64,
    },
    /// The servers do not take something.
    #[error("NATS fails at {what}: {reason}. Run the same import again to go on")]
    Unavailable {
        /// The operation.
        what: String,
        /// Last error.
        reason: String,
    },
    /// A broker was started meanwhile.
    #[error(
        "a broker of the cluster was started meanwhile ({what}): stop all of them, and run the same import again with \
         --skip-existing"
    )]
    Disturbed {
        /// Sign of it.
        what: String,
    },
}

impl ImportError {
    /// Whether something was written before.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Disturbed { .. })
    }
}

/// Imports everything of a store.
///
/// Nothing is written before all of it was checked. Uses memory for the sessions with their queues, and for a bounded
/// number of messages.
///
/// # Errors
/// Every [`ImportError`].
pub async fn import(
    cluster: &ClusterOptions,
    store: Arc<dyn Store>,
    options: &ImportOptions,
    report: ImportReport<'_>,
) -> Result<Imported, ImportError> {
    report(ImportStage::Connecting);
    let (connections, layout, _) = prepare(cluster).await?;
    let streams = NodeStreams::open(&connections, &layout).await?;
    let client = connections.ordinary.client();
    let from = store.clone();
    let state = blocking(move || {
        let mut state = RecoveredState::default();
        from.recover(&mut state).map(|_| state)
    })
    .await?;
    let import = Import { client, layout, streams, store, options: options.clone(), report };
    import.refuse_nodes().await?;
    import.run(state).await
}

/// Import into a cluster.
struct Import<'a> {
    client: Client,
    layout: Layout,
    streams: NodeStreams,
    store: Arc<dyn Store>,
    options: ImportOptions,
    report: ImportReport<'a>,
}

/// State of the streams of messages, by the places of their shards.
#[derive(Clone, Debug, Default)]
struct LogState {
    first: Vec<u64>,
    last: Vec<u64>,
    /// Bytes that are free.
    room: Vec<u64>,
}

impl Import<'_> {
    async fn run(&self, state: RecoveredState) -> Result<Imported, ImportError> {
        let mut imported = Imported::default();
        let sessions = self.select(state.sessions.into_values().collect(), &mut imported).await?;
        let before = self.log_state().await?;
        let needed = self.check(&sessions, &state.retained.into_values().collect(), &before).await?;
        imported.expired = needed.expired.len() as u64;

        let appended = self.append_queued(&needed, &before).await?;
        imported.messages = appended.numbers.len() as u64;
        (imported.retained, imported.kept) = self.append_retained(&needed).await?;
        let after = self.log_state().await?;
        self.open_groups(&sessions, &after.last).await?;
        if let Some(nodes) = self.nodes().await? {
            return Err(ImportError::Disturbed { what: nodes });
        }
        imported.sessions = self.write_sessions(&sessions, &appended, &after.last).await?;
        self.check_log(&appended).await?;
        Ok(imported)
    }

    /// Names of the nodes that are alive; `None`: there are none.
    async fn nodes(&self) -> Result<Option<String>, ImportError> {
        let nodes = live_nodes(&self.streams.nodes, &self.layout).await;
        let nodes = nodes.map_err(|error| unavailable("the list of nodes", error))?;
        let names: Vec<_> = nodes.into_keys().collect();
        Ok((!names.is_empty()).then(|| names.join(", ")))
    }

    async fn refuse_nodes(&self) -> Result<(), ImportError> {
        self.nodes().await?.map_or(Ok(()), |nodes| Err(ImportError::NodesRun { nodes }))
    }

    async fn log_state(&self) -> Result<LogState, ImportError> {
        let mut state = LogState::default();
        for stream in &self.streams.messages {
            let info = stream.get_info().await;
            let found = info.map_err(|error| unavailable("the look at the state of the log", error))?.state;
            state.first.push(found.first_sequence);
            state.last.push(found.last_sequence);
            state.room.push(self.layout.dimensions().log_bytes.saturating_sub(found.bytes));
        }
        Ok(state)
    }

    /// Selects the sessions that are to be written.
    async fn select(
        &self,
        sessions: Vec<RecoveredSession>,
        imported: &mut Imported,
    ) -> Result<Vec<RecoveredSession>, ImportError> {
        let all = sessions.len() as u64;
        let mut looks = stream::iter(sessions)
            .map(|session| async move { Ok::<_, ImportError>((self.presence(&session).await?, session)) })
            .buffered(AT_ONCE);
        let (mut selected, mut existing, mut done) = (Vec::new(), None, 0);
        while let Some((presence, session)) = looks.try_next().await? {
            done += 1;
            self.tell(done, |done| ImportStage::Looking(done, all));
            match presence {
                Presence::None(_) => selected.push(session),
                Presence::Own => imported.present += 1,
                Presence::Other => {
                    imported.skipped += 1;
                    existing.get_or_insert_with(|| session.record.client_id.as_str().to_owned());
                }
            }
        }
        match existing {
            Some(client) if !self.options.skip_existing => {
                Err(ImportError::Existing { count: imported.skipped, client })
            }
            _ => Ok(selected),
        }
    }

    /// Opens the consumers of shared subscriptions, which get messages from now on.
    async fn open_groups(&self, sessions: &[RecoveredSession], since: &[u64]) -> Result<(), ImportError> {
        let filters: BTreeSet<&TopicFilter> = sessions
            .iter()
            .flat_map(|session| session.subscriptions.keys().filter(|filter| filter.is_shared()))
            .collect();
        for filter in filters {
            for (index, (stream, since)) in self.streams.messages.iter().zip(since).enumerate() {
                let opened = open_group(&self.layout, stream, filter, index, *since).await;
                opened.map_err(|error| unavailable("a shared subscription", error))?;
            }
        }
        Ok(())
    }

    /// Writes the records of sessions.
    async fn write_sessions(
        &self,
        sessions: &[RecoveredSession],
        appended: &Appended,
        since: &[u64],
    ) -> Result<u64, ImportError> {
        let all = sessions.len() as u64;
        let run = format!("{:016x}", fastrand::u64(..));
        let mut writes = stream::iter(sessions)
            .map(|session| self.write_session(session, &appended.numbers, since, &run))
            .buffer_unordered(AT_ONCE);
        let mut done = 0;
        while let Some(()) = writes.try_next().await? {
            done += 1;
            self.tell(done, |done| ImportStage::Sessions(done, all));
        }
        Ok(done)
    }

    /// Checks that the log still has all messages that records refer to, but for those that may have expired.
    async fn check_log(&self, appended: &Appended) -> Result<(), ImportError> {
        let now = self.log_state().await?;
        if now.first.iter().zip(&appended.lowest).all(|(first, lowest)| first <= lowest) {
            return Ok(());
        }
        let what = "messages of queues were removed from the log, and are lost".to_owned();
        Err(ImportError::Disturbed { what })
    }

    /// Last message of a subject with its sequence number, however often the servers have to be asked.
    async fn last_message(
        &self,
        stream: &Stream<()>,
        subject: &str,
        what: &str,
    ) -> Result<Option<(Bytes, u64)>, ImportError> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            match last_message(stream, subject).await {
                Ok(found) => return Ok(found),
                Err(reason) if Instant::now() >= give_up => return Err(unavailable(what, reason)),
                Err(_) => sleep(AGAIN).await,
            }
        }
    }

    /// Reports every so many items.
    fn tell(&self, done: u64, stage: impl Fn(u64) -> ImportStage) {
        if done.is_multiple_of(REPORT_EVERY) {
            (self.report)(stage(done));
        }
    }
}

/// Runs a function that reads the store.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(StoreError::Failed { reason: error.to_string().into() }))
}

fn unavailable(what: &str, error: impl std::fmt::Display) -> ImportError {
    ImportError::Unavailable { what: what.to_owned(), reason: error.to_string() }
}

/// Beginning of a text, for an error.
fn shown(text: &str) -> String {
    const SHOWN: usize = 60;
    let is_long = text.chars().count() > SHOWN;
    let mut beginning: String = text.chars().take(SHOWN).collect();
    if is_long {
        beginning.push('…');
    }
    format!("{beginning:?}")
}
