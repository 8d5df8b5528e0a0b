//! Retained messages at the start of a node.
//!
//! The servers copy each message with RETAIN into a stream that has the last one of each topic, in the order of each
//! shard. They may be late: a node reads the rest from the log.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::stream::Stream;
use braid_proto::topic::TopicName;
use braid_store::{Lsn, StoredMessage};
use futures_util::StreamExt;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::ClusterError;
use crate::layout::Layout;
use crate::log_source::{Found, LogSource};
use crate::logged::{Logged, named, read};
use crate::ordered::ordered;
use crate::streams::{Tried, patiently};

/// Header of a message that the servers have copied: its stream and sequence number there.
const SOURCE: &str = "Nats-Stream-Source";

/// Time without a message after which the copies are read again: one that was counted has been removed.
const STALL: Duration = Duration::from_secs(10);

/// Time to read what is retained.
const PATIENCE: Duration = Duration::from_secs(60);

/// Retained message.
#[derive(Debug)]
pub(crate) struct RetainedMessage {
    pub(crate) lsn: Lsn,
    pub(crate) message: StoredMessage,
}

/// Retained messages, and the position in each shard up to which they are complete.
#[derive(Default)]
pub(crate) struct Snapshot {
    messages: HashMap<TopicName, RetainedMessage>,
    pub(crate) positions: Vec<u64>,
}

/// Reads all retained messages.
pub(crate) async fn load(log: &LogSource, retained: &Stream<()>) -> Result<Snapshot, ClusterError> {
    let failed = |reason: String| ClusterError::NoJetStream { within: PATIENCE, reason };
    let give_up = Instant::now() + PATIENCE;
    patiently(give_up, || async {
        match timeout_at(give_up, Snapshot::read(log, retained)).await {
            Ok(Ok(snapshot)) => Tried::Done(Ok(snapshot)),
            // A server that is busy, or a stream without a leader, lets a request run into its own limit of time.
            Ok(Err(error)) => Tried::Again(failed(error.to_string())),
            Err(_) => {
                Tried::Done(Err(failed("the retained messages cannot be read in that time".to_owned())))
            }
        }
    })
    .await
}

impl Snapshot {
    async fn read(log: &LogSource, retained: &Stream<()>) -> Result<Self, async_nats::Error> {
        let mut snapshot = Self::default();
        for stream in &log.streams {
            snapshot.positions.push(stream.get_info().await?.state.last_sequence);
        }
        let copied = loop {
            snapshot.messages.clear();
            if let Some(copied) = snapshot.read_copies(&log.layout, retained).await? {
                break copied;
            }
        };
        for (index, copied) in copied.into_iter().enumerate() {
            snapshot.read_log(log, index, copied).await?;
        }
        Ok(snapshot)
    }

    /// Retained messages.
    pub(crate) fn into_messages(self) -> Vec<RetainedMessage> {
        self.messages.into_values().collect()
    }

    /// Reads the copies: the position up to which they are complete, in each shard. `None`: some were removed
    /// meanwhile.
    async fn read_copies(
        &mut self,
        layout: &Layout,
        stream: &Stream<()>,
    ) -> Result<Option<Vec<u64>>, async_nats::Error> {
        let prefix = format!("{}.r.", layout.cluster());
        let config = ordered(format!("{prefix}>"), DeliverPolicy::LastPerSubject);
        let mut consumer = stream.create_consumer(config).await?;
        let mut left = consumer.info().await?.num_pending;
        let mut messages = consumer.messages().await?;
        let mut copied = vec![0; layout.parts()];
        while left > 0 {
            let Ok(Some(received)) = timeout(STALL, messages.next()).await else { return Ok(None) };
            left -= 1;
            let async_nats::Message { subject, headers, payload, .. } = received?.message;
            let headers = headers.unwrap_or_default();
            let source = headers.get(SOURCE).and_then(|source| position(layout, source.as_str()));
            let (Some((index, sequence)), Some(tokens)) = (source, subject.strip_prefix(&prefix)) else {
                continue;
            };
            copied[index] = copied[index].max(sequence);
            let subject = layout.retained_subject(index, tokens);
            self.note(layout, index, Found { sequence, subject, headers, payload });
        }
        Ok(Some(copied))
    }

    /// Reads messages of the log that were not copied yet.
    async fn read_log(
        &mut self,
        log: &LogSource,
        index: usize,
        copied: u64,
    ) -> Result<(), async_nats::Error> {
        let subject = log.layout.retained_subject(index, ">");
        let until = self.positions[index];
        let mut next = copied + 1;
        while next <= until {
            let (found, is_end) = log.read_matching(index, &subject, next).await?;
            let Some(last) = found.last() else { break };
            next = last.sequence + 1;
            for one in found.into_iter().filter(|one| one.sequence <= until) {
                self.note(&log.layout, index, one);
            }
            if is_end {
                break;
            }
        }
        Ok(())
    }

    fn note(&mut self, layout: &Layout, index: usize, found: Found) {
        let Found { sequence, subject, headers, payload } = found;
        let logged = read(layout, index, sequence, named(layout, &subject), Some(&headers), payload);
        let Some(Logged { lsn, message, .. }) = logged else { return };
        let topic = message.topic().clone();
        // Not that of NATS, which may have a part of the header.
        if message.payload().is_empty() {
            self.messages.remove(&topic);
        } else {
            self.messages.insert(topic, RetainedMessage { lsn, message });
        }
    }
}

/// Place of the shard and sequence number of a copied message: `stream sequence ...`.
fn position(layout: &Layout, source: &str) -> Option<(usize, u64)> {
    let mut words = source.split(' ');
    let (stream, sequence) = (words.next()?, words.next()?.parse().ok()?);
    let is_its = |index: &usize| layout.messages_stream(layout.shard_at(*index)) == stream;
    Some(((0..layout.parts()).find(is_its)?, sequence))
}
