//! Messages of QoS 0 between nodes: by subject, without a log.
//!
//! A node has a subscription for each filter of its clients. NATS delivers a batch for each of them that matches: one
//! that came before is known by the number that its node gave it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_nats::{Client, Subscriber};
use braid_broker::cluster::ArrivedMessage;
use braid_broker::node_handle::{DeliveryRoutes, NodeHandle};
use braid_proto::message::Message;
use braid_proto::packet::ClientId;
use braid_proto::topic::{TopicFilter, TopicName};
use futures_util::stream::{AbortHandle, Abortable, SelectAll};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::batch::{Batch, BatchWriter};
use crate::interest::Interest;
use crate::layout::LEASE;
use crate::marks::Marker;
use crate::message::LoggedMessage;
use crate::store::NodeState;
use crate::subject::{SUBJECT_MAX, parse_topic};

/// Bytes of messages that wait to be sent to other nodes; beyond them messages are dropped.
const WAITING_BYTES: usize = 64 << 20;

/// Filters with subscriptions of their own. With more of them this node gets all messages.
const FILTERS: usize = 1000;

/// Numbers of messages that are remembered for each node.
const REMEMBERED: usize = 1 << 16;

/// Messages that are delivered at a time, in the order of their publishers.
const AT_ONCE: usize = 4096;

/// Message of QoS 0 of a client of this node.
#[derive(Debug)]
pub(crate) struct LiveMessage {
    pub(crate) is_urgent: bool,
    pub(crate) topic: TopicName,
    pub(crate) logged: LoggedMessage,
}

impl LiveMessage {
    fn bytes(&self) -> usize {
        self.logged.payload.len() + self.topic.as_str().len() + 64
    }
}

/// Sender of messages of QoS 0 to other nodes, with bounded buffers.
#[derive(Clone, Debug)]
pub(crate) struct LiveOutlet {
    waiting: Arc<AtomicUsize>,
    ordinary: UnboundedSender<LiveMessage>,
    urgent: UnboundedSender<LiveMessage>,
}

/// Ends of an outlet, for its senders.
pub(crate) struct LiveQueues {
    waiting: Arc<AtomicUsize>,
    ordinary: UnboundedReceiver<LiveMessage>,
    urgent: UnboundedReceiver<LiveMessage>,
}

impl LiveOutlet {
    pub(crate) fn new() -> (Self, LiveQueues) {
        let waiting = Arc::<AtomicUsize>::default();
        let ((ordinary, from_ordinary), (urgent, from_urgent)) = (unbounded_channel(), unbounded_channel());
        let queues = LiveQueues { waiting: waiting.clone(), ordinary: from_ordinary, urgent: from_urgent };
        (Self { waiting, ordinary, urgent }, queues)
    }

    /// Sends a message, or drops it where the servers are too slow.
    pub(crate) fn send(&self, message: LiveMessage) {
        let bytes = message.bytes();
        if self.waiting.fetch_add(bytes, Ordering::Relaxed) > WAITING_BYTES {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            return;
        }
        let queue = if message.is_urgent { &self.urgent } else { &self.ordinary };
        let _ = queue.send(message);
    }
}

impl LiveQueues {
    /// Sends messages, each kind over its connection.
    pub(crate) async fn run(self, state: Arc<NodeState>, ordinary: Client, urgent: Client) {
        let Self { waiting, ordinary: from_ordinary, urgent: from_urgent } = self;
        tokio::join!(
            send_all(state.clone(), ordinary, from_ordinary, waiting.clone(), "n"),
            send_all(state, urgent, from_urgent, waiting, "u"),
        );
    }
}

async fn send_all(
    state: Arc<NodeState>,
    client: Client,
    mut messages: UnboundedReceiver<LiveMessage>,
    waiting: Arc<AtomicUsize>,
    kind: &str,
) {
    let origin = format!("{kind}{}", state.run);
    let (mut number, mut taken) = (0_u64, Vec::new());
    while messages.recv_many(&mut taken, AT_ONCE).await > 0 {
        let mut taken = taken.drain(..).peekable();
        while let Some(first) = taken.next() {
            number += 1;
            let mut bytes = first.bytes();
            let mut batch = BatchWriter::new(&origin, number, &first.logged);
            let joins = |batch: &BatchWriter, next: &LiveMessage| {
                next.topic == first.topic && batch.takes(&next.logged)
            };
            while let Some(next) = taken.next_if(|next| joins(&batch, next)) {
                bytes += next.bytes();
                batch.push(&next.logged);
            }
            // Messages of QoS 0 may be lost.
            let subject = state.layout.live(first.is_urgent, &first.topic);
            let _ = client.publish(subject, batch.finish()).await;
            waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// Numbers of the last batches of each process of a node.
#[derive(Default)]
struct Seen {
    origins: HashMap<String, SeenNumbers>,
    /// Processes so far.
    count: usize,
}

struct SeenNumbers {
    /// Place of the process among all.
    origin: usize,
    known: HashSet<u64>,
    order: VecDeque<u64>,
    /// Time of the last batch.
    last_at: Instant,
}

impl Seen {
    /// Notes a batch: the place of its process; `None` if it came before. Processes without a batch for longer than a
    /// lease are forgotten when another one is added: each start of a node is one.
    fn note(&mut self, origin: &str, number: u64, now: Instant) -> Option<usize> {
        if !self.origins.contains_key(origin) {
            self.origins.retain(|_, seen| now.saturating_duration_since(seen.last_at) <= LEASE);
            let (known, order) = (HashSet::new(), VecDeque::new());
            let numbers = SeenNumbers { origin: self.count, known, order, last_at: now };
            self.origins.insert(origin.to_owned(), numbers);
            self.count += 1;
        }
        let SeenNumbers { origin, known, order, last_at } = self.origins.get_mut(origin)?;
        *last_at = now;
        if !known.insert(number) {
            return None;
        }
        order.push_back(number);
        if order.len() > REMEMBERED
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
        Some(*origin)
    }
}

/// Message with the place of its node and the number of its batch there.
struct Numbered {
    origin: usize,
    number: u64,
    message: ArrivedMessage,
}

/// Messages in the order in which each node sent them. They came by several subscriptions, which are read in turn:
/// without it one of another topic could overtake.
fn in_order(mut arrived: Vec<Numbered>) -> Vec<ArrivedMessage> {
    // Stable: messages of a batch keep their order.
    arrived.sort_by_key(|one| (one.origin, one.number));
    arrived.into_iter().map(|one| one.message).collect()
}

/// Subscriptions of this node, of one kind of messages.
pub(crate) struct LiveReader {
    pub(crate) client: Client,
    pub(crate) state: Arc<NodeState>,
    pub(crate) is_urgent: bool,
    pub(crate) handle: NodeHandle,
}

impl LiveReader {
    /// Delivers messages of other nodes, by the filters in which this node is interested.
    pub(crate) async fn run(self, mut interest: UnboundedReceiver<Interest>) {
        let mut streams: SelectAll<Abortable<Subscriber>> = SelectAll::new();
        let mut filters: HashMap<TopicFilter, Option<AbortHandle>> = HashMap::new();
        let mut all: Option<AbortHandle> = None;
        let (mut seen, mut routes) = (Seen::default(), DeliveryRoutes::default());
        let kinds: &[bool] = if self.is_urgent { &[true] } else { &[false] };
        let mut marker = Marker::new(self.state.clone(), self.client.clone(), kinds, false);
        loop {
            tokio::select! {
                command = interest.recv() => {
                    let Some(command) = command else { return };
                    let Some(change) = marker.accept(command) else { continue };
                    if change.filter.is_shared() {
                        continue;
                    }
                    if !change.is_interested {
                        filters.remove(&change.filter).flatten().into_iter().for_each(|one| one.abort());
                    } else if let Some(subject) = self.subject_of(&change.filter, filters.len()) {
                        let subscribed = self.subscribe(subject, &mut streams).await;
                        filters.insert(change.filter.clone(), subscribed);
                    } else {
                        filters.insert(change.filter.clone(), None);
                        if all.is_none() {
                            all = self.subscribe(self.state.layout.all_live(self.is_urgent), &mut streams).await;
                        }
                    }
                }
                () = marker.ended() => {}
                Some(first) = streams.next() => {
                    let mut arrived = Vec::new();
                    self.read(first, &mut seen, &mut arrived);
                    while arrived.len() < AT_ONCE
                        && let Some(Some(next)) = streams.next().now_or_never()
                    {
                        self.read(next, &mut seen, &mut arrived);
                    }
                    self.handle.deliver(&mut routes, in_order(arrived));
                }
            }
        }
    }

    /// Subject for a subscription of a filter; `None` if there are too many, or it is too long.
    fn subject_of(&self, filter: &TopicFilter, filters: usize) -> Option<String> {
        let subject = self.state.layout.live_filter(self.is_urgent, filter);
        (filters < FILTERS && subject.len() <= SUBJECT_MAX).then_some(subject)
    }

    async fn subscribe(
        &self,
        subject: String,
        streams: &mut SelectAll<Abortable<Subscriber>>,
    ) -> Option<AbortHandle> {
        let subscriber = self.client.subscribe(subject).await;
        let subscriber =
            subscriber.inspect_err(|error| tracing::error!(%error, "no subscription at NATS")).ok()?;
        let (handle, registration) = AbortHandle::new_pair();
        streams.push(Abortable::new(subscriber, registration));
        Some(handle)
    }

    /// Messages of a batch that did not come before.
    fn read(&self, message: async_nats::Message, seen: &mut Seen, into: &mut Vec<Numbered>) {
        let Some(batch) = Batch::read(message.payload) else { return };
        let number = batch.number;
        let Some(origin) = seen.note(&batch.origin, number, Instant::now()) else { return };
        let messages = arrived(&self.state, &message.subject, batch);
        into.extend(messages.into_iter().map(|message| Numbered { origin, number, message }));
    }
}

/// Messages of a batch of another node. Without any: it is not of a cluster.
pub(crate) fn arrived(state: &NodeState, subject: &str, batch: Batch) -> Vec<ArrivedMessage> {
    let Some(topic) = state.layout.live_topic(subject).and_then(parse_topic) else { return Vec::new() };
    let now = state.clock.now();
    let arrived = batch.map(|logged| {
        let mut message = Message::new(topic.clone(), logged.payload, logged.qos, false);
        message.properties = logged.properties;
        message.expires_at = logged
            .expires_at
            .map(|at| at.duration_since(now.system).unwrap_or_default())
            .and_then(|left| now.instant.checked_add(left));
        let publisher = Some(logged.publisher).filter(|client| !client.is_empty());
        let publisher = publisher.map(|client| ClientId::from(&*client));
        ArrivedMessage { message, publisher, retained_by: None, is_withheld: false }
    });
    arrived.collect()
}

#[cfg(test)]
mod tests {
    use braid_proto::packet::QoS;

    use super::*;

    #[test]
    fn messages_of_a_node_are_known_and_in_its_order() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        let mut arrived = Vec::new();
        for (origin, number) in [("n1", 2), ("n2", 1), ("n1", 1), ("n1", 2), ("n1", 10), ("n2", 1), ("n1", 9)]
        {
            let Some(place) = seen.note(origin, number, now) else { continue };
            let topic = TopicName::parse(&format!("{origin}/{number}")).unwrap();
            let message = Message::new(topic, bytes::Bytes::new(), QoS::AtMostOnce, false);
            let message = ArrivedMessage { message, publisher: None, retained_by: None, is_withheld: false };
            arrived.push(Numbered { origin: place, number, message });
        }
        let topics: Vec<_> = in_order(arrived).iter().map(|one| one.message.topic.to_string()).collect();
        assert_eq!(topics, ["n1/1", "n1/2", "n1/9", "n1/10", "n2/1"]);
        // Bounded.
        let mut numbers = 100..100 + REMEMBERED as u64;
        assert!(numbers.all(|number| seen.note("n1", number, now).is_some()));
        assert_eq!(seen.note("n1", 100 + REMEMBERED as u64 - 1, now), None);
        assert!(seen.note("n1", 1, now).is_some(), "forgotten");
    }

    #[test]
    fn processes_that_are_gone_are_forgotten() {
        let (mut seen, began) = (Seen::default(), Instant::now());
        let mut places = HashSet::new();
        for start in 0..1000 {
            let now = began + start * 2 * LEASE;
            let place = seen.note(&format!("n{start}"), 1, now);
            assert!(place.is_some_and(|place| places.insert(place)), "a place of its own");
            // Another node goes on sending.
            assert!(seen.note("other", start.into(), now + LEASE).is_some());
            assert_eq!(seen.note("other", start.into(), now + LEASE), None);
            assert!(seen.origins.len() <= 3);
        }
    }
}
