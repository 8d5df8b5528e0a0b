//! Reader of a shard of the log, which delivers its messages at this node in their order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::jetstream::Message as Received;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::Stream;
use braid_auth::publisher::Publisher;
use braid_broker::Handle;
use braid_broker::cluster::{Arrivals, ArrivedMessage};
use braid_proto::message::Message;
use braid_proto::packet::ClientId;
use braid_store::{Lsn, Now, StoredMessage};
use futures_util::{FutureExt, StreamExt};
use tokio::time::sleep;

use crate::layout::Layout;
use crate::message::LoggedMessage;
use crate::store::NodeState;
use crate::subject::parse_topic;

/// Messages that are delivered at a time.
const AT_ONCE: usize = 256;

/// Time between two tries to read.
const AGAIN: Duration = Duration::from_millis(200);

/// First level of topics that only nodes publish to.
pub(crate) const NODE_TOPICS: &str = "$braidmq/";

/// Position up to which a shard is delivered at this node.
#[derive(Debug)]
pub(crate) struct ReadPosition {
    /// Held while messages are delivered.
    gate: Mutex<u64>,
    completed: AtomicU64,
}

impl ReadPosition {
    pub(crate) fn new(sequence: u64) -> Self {
        Self { gate: Mutex::new(sequence), completed: AtomicU64::new(sequence) }
    }

    /// Position without what is being delivered.
    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// Position after what is being delivered now: everything behind it finds the subscriptions that there are now.
    pub(crate) fn settled(&self) -> u64 {
        *self.gate()
    }

    fn gate(&self) -> MutexGuard<'_, u64> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Message of the log.
pub(crate) struct Logged {
    pub(crate) lsn: Lsn,
    pub(crate) message: StoredMessage,
    pub(crate) publisher: Option<ClientId>,
    pub(crate) identity: Option<Arc<str>>,
}

/// Reads a message of a shard. `None`: it is of no client, or cannot be read, which is logged.
pub(crate) fn read(
    layout: &Layout,
    index: usize,
    sequence: u64,
    subject: &str,
    headers: Option<&async_nats::HeaderMap>,
    payload: bytes::Bytes,
) -> Option<Logged> {
    let (retain, tokens) = layout.parse_message(subject)?;
    let topic = parse_topic(tokens)?;
    if topic.as_str().starts_with(NODE_TOPICS) {
        return None;
    }
    let logged = LoggedMessage::read(headers, payload)
        .inspect_err(|error| tracing::error!(subject, sequence, %error, "skipped"))
        .ok()?;
    let LoggedMessage { qos, publisher, identity, expires_at, properties, payload } = logged;
    let message = StoredMessage::from_parts(topic, payload, qos, retain, properties, expires_at)
        .with_publisher(identity.clone().map(Arc::from));
    let publisher = Some(publisher).filter(|client| !client.is_empty());
    let publisher = publisher.map(|client| ClientId::from(&*client));
    let identity = identity.map(Arc::from);
    Some(Logged { lsn: layout.lsn(index, sequence), message, publisher, identity })
}

impl Logged {
    /// The message for the broker at `now`.
    pub(crate) fn arrived(self, now: Now) -> Option<ArrivedMessage> {
        let retained_by = self.identity.map(Publisher::decode).transpose();
        let retained_by = retained_by
            .inspect_err(|error| tracing::error!(%error, "the publisher of a message cannot be read"))
            .ok()?;
        let message = live(self.message, now);
        if let Some(lsn) = std::num::NonZeroU64::new(self.lsn.value()) {
            message.set_lsn(lsn);
        }
        Some(ArrivedMessage { message, publisher: self.publisher, retained_by: retained_by.map(Arc::new) })
    }
}

fn live(stored: StoredMessage, now: Now) -> Message {
    let (topic, payload) = (stored.topic().clone(), stored.payload().clone());
    let mut message = Message::new(topic, payload, stored.qos(), stored.retain());
    message.properties = stored.properties().cloned().map(Box::new);
    message.expires_at = stored.time_left(now).and_then(|left| now.instant.checked_add(left));
    message
}

/// The present time on both clocks.
pub(crate) fn now() -> Now {
    Now { instant: Instant::now(), system: std::time::SystemTime::now() }
}

/// Reader of a shard.
pub(crate) struct LogReader {
    pub(crate) state: Arc<NodeState>,
    pub(crate) stream: Stream<()>,
    /// Place of the shard.
    pub(crate) index: usize,
    pub(crate) handle: Handle,
}

impl LogReader {
    /// Delivers messages for as long as the node runs.
    pub(crate) async fn run(self) {
        let mut arrivals = Arrivals::default();
        loop {
            if let Err(error) = self.read_on(&mut arrivals).await {
                tracing::debug!(%error, shard = self.index, "the log is read again");
            }
            sleep(AGAIN).await;
        }
    }

    async fn read_on(&self, arrivals: &mut Arrivals) -> Result<(), async_nats::Error> {
        let NodeState { layout, positions, .. } = &*self.state;
        let position = &positions[self.index];
        let config = OrderedConfig {
            filter_subject: layout.all_messages(layout.shard_at(self.index)),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: position.completed() + 1 },
            ..OrderedConfig::default()
        };
        let consumer = self.stream.create_consumer(config).await?;
        let mut messages = consumer.messages().await?;
        while let Some(first) = messages.next().await {
            let mut batch = vec![first?];
            while batch.len() < AT_ONCE
                && let Some(next) = messages.next().now_or_never().flatten()
            {
                batch.push(next?);
            }
            self.deliver(arrivals, batch)?;
        }
        Ok(())
    }

    fn deliver(&self, arrivals: &mut Arrivals, batch: Vec<Received>) -> Result<(), async_nats::Error> {
        let NodeState { layout, positions, .. } = &*self.state;
        let position = &positions[self.index];
        let mut gate = position.gate();
        let now = now();
        let (mut last, mut arrived) = (*gate, Vec::with_capacity(batch.len()));
        for received in batch {
            let sequence = received.info()?.stream_sequence;
            // One that was delivered before its consumer was made again.
            if sequence <= last {
                continue;
            }
            last = sequence;
            let async_nats::Message { subject, headers, payload, .. } = received.message;
            let logged = read(layout, self.index, sequence, &subject, headers.as_ref(), payload);
            arrived.extend(logged.and_then(|logged| logged.arrived(now)));
        }
        self.handle.deliver_logged(arrivals, arrived);
        *gate = last;
        position.completed.store(last, Ordering::Release);
        Ok(())
    }
}
