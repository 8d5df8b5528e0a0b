//! Open-loop publishing on one connection.

mod lane;
mod schedule;
mod source;

use std::sync::Arc;
use std::task::Poll;

use braid_proto::message::Delivery;
use braid_proto::packet::{PacketId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::ClientTurn;
use super::client_identity::ClientIdentity;
use super::plan::PublishPlan;
use super::shared::Shared;
use super::statistics::{RouteId, RouteKey, Shard};
use crate::connection::{Connection, ConnectionEvent, SendOutcome};
use crate::emqtt::{Counter, failure_line};
use crate::failure::Failure;

use lane::{Lane, Made, Topic};
use schedule::TopicSchedule;
use source::Source;

/// Queued bytes from which a stream takes no more messages, which keep their due times. Payloads
/// by reference count only for topics without an interval, which would never stop.
const OUTBOX: u64 = 64 * 1024;
/// Messages of one lane in one turn.
const BATCH: usize = 1024;
/// Acknowledgements of one turn.
const EVENTS_PER_TURN: usize = 1024;

/// A client that publishes.
#[derive(Debug)]
pub(super) struct Publisher {
    shared: Arc<Shared>,
    topics: Vec<Topic>,
    lanes: Vec<Lane>,
    /// Unacknowledged messages of QoS 1 and 2.
    unacknowledged: FxHashMap<PacketId, Unacknowledged>,
    /// `-F`
    inflight: usize,
    /// Open streams with the user's numbers.
    numbers: Vec<(StreamKey, u32)>,
    /// True once the schedule has begun.
    has_begun: bool,
    /// True once `-L` is used up.
    is_spent: bool,
    /// True once the line about messages that cannot be published was printed.
    has_complained: bool,
}

/// An inflight message of QoS 1 or 2.
#[derive(Clone, Copy, Debug)]
struct Unacknowledged {
    route: RouteId,
    due: Instant,
    /// Bytes of the payload.
    bytes: u64,
}

/// Result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// Progress was made, and more may follow.
    pub(super) has_moved: bool,
    /// Due time of the next message that can leave.
    pub(super) next: Option<Instant>,
}

/// Result of making a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Making {
    /// The message is ready.
    Made,
    /// The topic is invalid: the message has failed, and the next one is due.
    Failed,
    /// `-L` is used up.
    Spent,
}

impl Publisher {
    /// Publisher of a client. A topic that the client cannot publish to is left out.
    pub(super) fn new(shared: &Arc<Shared>, plan: &PublishPlan, identity: &mut ClientIdentity) -> Self {
        let mut topics = Vec::with_capacity(plan.topics.len());
        for topic in &plan.topics {
            let (stream, priority) = (topic.stream, topic.priority);
            let key = RouteKey { topic: topic.name.clone(), stream: stream.into(), priority };
            match Source::new(topic, &plan.headers, identity, shared) {
                Ok(source) => topics.push(Topic {
                    source,
                    route: shared.statistics.route(key),
                    stream,
                    priority,
                    interval: topic.interval,
                    first: topic.first,
                    schedule: TopicSchedule::new(Instant::now(), topic.first, topic.interval),
                    counter: 0,
                    made: None,
                }),
                Err(error) => {
                    let cause = format!("topic {:?}: {error}", topic.name);
                    shared.statistics.add_event(failure_line(identity.number, "publish", &cause));
                }
            }
        }
        let inflight = if plan.inflight == 0 { usize::MAX } else { plan.inflight as usize };
        Self {
            shared: Arc::clone(shared),
            topics,
            lanes: Vec::new(),
            unacknowledged: FxHashMap::default(),
            inflight,
            numbers: Vec::new(),
            has_begun: false,
            is_spent: false,
            has_complained: false,
        }
    }

    /// Begins the schedule.
    pub(super) fn begin(&mut self, connection: &Connection) {
        let now = Instant::now();
        for topic in &mut self.topics {
            topic.schedule = TopicSchedule::new(now, topic.first, topic.interval);
        }
        self.has_begun = true;
        self.lanes = Lane::of(&self.topics, connection.is_multi());
    }

    /// Resets the state for a new connection. Messages that came due meanwhile are still due.
    pub(super) fn resume(&mut self, connection: &Connection) {
        self.numbers.clear();
        if self.has_begun {
            self.lanes = Lane::of(&self.topics, connection.is_multi());
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// True if no message is left and none is inflight. `-L` may have been used up by another client,
    /// whenever the next message is due here.
    pub(super) fn is_finished(&self) -> bool {
        (self.is_spent || self.shared.is_spent()) && self.has_nothing_pending()
    }

    /// True if every message taken from `-L` is sent, written and acknowledged.
    pub(super) fn has_nothing_pending(&self) -> bool {
        self.unacknowledged.is_empty()
            && !self.lanes.iter().any(Lane::has_unwritten)
            && self.topics.iter().all(|topic| topic.made.is_none())
    }

    /// Number of unacknowledged messages.
    pub(super) fn unacknowledged_count(&self) -> usize {
        self.unacknowledged.len()
    }

    /// Number that the user gave a stream.
    pub(super) fn number(&self, key: StreamKey) -> u32 {
        self.numbers.iter().find(|(known, _)| *known == key).map_or(0, |(_, number)| *number)
    }

    // -- A turn ------------------------------------------------------------------------------------

    /// Sends due messages and takes acknowledgements.
    pub(super) fn turn(&mut self, on: &mut ClientTurn<'_, '_>) -> Result<Turn, Failure> {
        let (mut has_moved, mut next) = (false, None);
        let written = on.connection.written();
        for at in 0..self.lanes.len() {
            let turn = self.hand_over(at, on)?;
            has_moved |= turn.has_moved;
            next = [next, turn.next].into_iter().flatten().min();
        }
        has_moved |= self.take_events(on)?;
        // Written bytes leave room, of which no other event tells.
        has_moved |= on.connection.written() > written;
        let second = self.shared.statistics.second(on.now);
        for lane in &mut self.lanes {
            lane.count_written(on.connection, on.shard, second);
        }
        Ok(Turn { has_moved, next })
    }

    /// Sends the due messages of one lane in order, as many as can leave.
    fn hand_over(&mut self, lane: usize, on: &mut ClientTurn<'_, '_>) -> Result<Turn, Failure> {
        let mut has_moved = false;
        for _ in 0..BATCH {
            let Some((due, at)) = self.lanes[lane].first() else { break };
            if due > on.now {
                self.lanes[lane].is_clear = true;
                return Ok(Turn { has_moved, next: (!self.is_spent).then_some(due) });
            }
            let is_done = match self.key(lane, on)? {
                Some(key) if self.has_room(at, key, on.connection) => match self.make(at, on) {
                    Making::Made => self.send(lane, at, key, on),
                    Making::Failed => true,
                    Making::Spent => false,
                },
                _ => false,
            };
            if !is_done {
                self.lanes[lane].is_clear = false;
                break;
            }
            self.lanes[lane].put_back(self.topics[at].schedule.next());
            has_moved = true;
        }
        Ok(Turn { has_moved, next: None })
    }

    /// Stream of a lane; `None` while the server allows no more streams.
    fn key(&mut self, lane: usize, on: &mut ClientTurn<'_, '_>) -> Result<Option<StreamKey>, Failure> {
        let lane = &mut self.lanes[lane];
        if lane.key.is_none()
            && let Poll::Ready(opened) = on.connection.poll_open(lane.priority, on.cx)
        {
            let opened = opened?;
            self.numbers.push((opened, lane.number));
            lane.key = Some(opened);
        }
        Ok(lane.key)
    }

    /// True if the outbox of its stream and `-F` have room for a message of this topic.
    fn has_room(&self, topic: usize, key: StreamKey, connection: &mut Connection) -> bool {
        let topic = &self.topics[topic];
        let waiting = if topic.interval.is_zero() {
            let (end, written) = connection.progress(key);
            end - written
        } else {
            connection.waiting(key) as u64
        };
        waiting <= OUTBOX
            && connection.has_datagram_room()
            && (topic.source.qos() == QoS::AtMostOnce || self.unacknowledged.len() < self.inflight)
    }

    /// Encodes the next message of a topic, unless it is encoded.
    fn make(&mut self, topic: usize, on: &mut ClientTurn<'_, '_>) -> Making {
        let topic = &mut self.topics[topic];
        if topic.made.is_some() {
            return Making::Made;
        }
        if self.is_spent || self.shared.take(1) == 0 {
            self.is_spent = true;
            return Making::Spent;
        }
        let due = topic.schedule.due(on.now);
        let unix = self.shared.statistics.clock().unix(due);
        match topic.source.message(unix, topic.counter, on.identity, &self.shared) {
            Ok(message) => {
                topic.made = Some(Made { message, due });
                topic.counter += 1;
                Making::Made
            }
            Err(error) => {
                topic.schedule.hand_over(on.now);
                on.shard.lose(topic.route, 1);
                on.shard.route(topic.route).was_due(unix, None);
                self.complain(on.identity, &error.to_string());
                Making::Failed
            }
        }
    }

    /// Sends the encoded message of a topic. `false` if it could not leave.
    fn send(&mut self, lane: usize, topic: usize, key: StreamKey, on: &mut ClientTurn<'_, '_>) -> bool {
        let topic = &mut self.topics[topic];
        let Some(Made { message, due }) = topic.made.take() else { return false };
        let bytes = message.payload_len() as u64;
        let mut delivery = Delivery { stream: key, ..Delivery::of(message) };
        if on.connection.sends_datagrams() {
            delivery.priority = self.lanes[lane].priority;
        }
        let handed = on.connection.send(delivery);
        match handed {
            Ok(SendOutcome::Blocked(delivery)) => {
                topic.made = Some(Made { message: delivery.message, due });
                return false;
            }
            Ok(SendOutcome::Queued(id)) => {
                let route = on.shard.route(topic.route);
                route.counts.sent += 1;
                route.was_due(self.shared.statistics.clock().unix(due), None);
                match id {
                    Some(id) => drop(
                        self.unacknowledged.insert(id, Unacknowledged { route: topic.route, due, bytes }),
                    ),
                    None => self.lanes[lane].sent(topic.route, bytes, on.connection.progress(key).0),
                }
            }
            // The server refuses this one; it may take others.
            Err(failure) => {
                on.shard.lose(topic.route, 1);
                let unix = self.shared.statistics.clock().unix(due);
                on.shard.route(topic.route).was_due(unix, None);
                topic.schedule.hand_over(on.now);
                self.complain(on.identity, &failure.to_string());
                return true;
            }
        }
        if self.lanes[lane].is_clear && !topic.interval.is_zero() {
            on.shard.lateness.record(on.now.saturating_duration_since(due));
        }
        if topic.schedule.hand_over(on.now) {
            on.shard.count(Counter::PubOverrun, 1);
        }
        true
    }

    fn complain(&mut self, identity: &ClientIdentity, cause: &str) {
        if !self.has_complained {
            self.has_complained = true;
            self.shared.statistics.add_event(failure_line(identity.number, "publish", cause));
        }
    }

    // -- Events ------------------------------------------------------------------------------------

    /// Takes acknowledgements, and writes the queued messages.
    fn take_events(&mut self, on: &mut ClientTurn<'_, '_>) -> Result<bool, Failure> {
        for taken in 0..EVENTS_PER_TURN {
            match on.connection.poll_next(on.cx)? {
                Poll::Pending => return Ok(taken > 0),
                Poll::Ready(ConnectionEvent::Published(id, reason)) => self.handle_ack(id, reason, on.shard),
                Poll::Ready(ConnectionEvent::StreamEnded(key, _)) => self.lose_stream(key, on),
                Poll::Ready(ConnectionEvent::Message(incoming)) => {
                    if let Some(token) = incoming.token {
                        on.connection.acknowledge(token);
                    }
                }
                Poll::Ready(ConnectionEvent::Subscribed(_) | ConnectionEvent::Unsubscribed) => {}
            }
        }
        Ok(true)
    }

    fn handle_ack(&mut self, id: PacketId, reason: ReasonCode, shard: &mut Shard) {
        let Some(message) = self.unacknowledged.remove(&id) else { return };
        if reason.is_error() {
            return shard.lose(message.route, 1);
        }
        let now = Instant::now();
        let route = shard.route(message.route);
        route.acknowledged(self.shared.statistics.second(now), 1, message.bytes);
        route.latencies.record(now.saturating_duration_since(message.due));
        shard.count(Counter::Pub, 1);
        shard.count(Counter::PubSucc, 1);
        if reason == ReasonCode::NoMatchingSubscribers {
            shard.count(Counter::PubNosub, 1);
        }
    }

    /// Forgets an ended data stream, which the next message opens again.
    fn lose_stream(&mut self, key: StreamKey, on: &mut ClientTurn<'_, '_>) {
        let second = self.shared.statistics.second(Instant::now());
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.key == Some(key) && !key.is_control()) {
            lane.count_written(on.connection, on.shard, second);
            lane.key = None;
            lane.lose(on.shard);
        }
    }

    // -- The end -----------------------------------------------------------------------------------

    /// Counts at the end of a connection what the link has taken; the rest is lost.
    pub(super) fn lose_unwritten(&mut self, connection: &mut Connection, end: Instant, shard: &mut Shard) {
        let second = self.shared.statistics.second(end);
        for lane in &mut self.lanes {
            lane.count_written(connection, shard, second);
            lane.lose(shard);
        }
    }

    /// Counts unacknowledged messages of an ended session as lost.
    pub(super) fn lose_unacknowledged(&mut self, shard: &mut Shard) {
        self.unacknowledged.drain().for_each(|(_, message)| shard.lose(message.route, 1));
    }

    /// Counts messages that were due before `end` and have not left as lost.
    pub(super) fn lose_overdue(&mut self, end: Instant, shard: &mut Shard) {
        if !self.has_begun {
            return;
        }
        for topic in &mut self.topics {
            let made = u64::from(topic.made.take().is_some());
            let unmade = topic.schedule.overdue(end).saturating_sub(made);
            let lost = made + if self.is_spent { 0 } else { self.shared.take(unmade) };
            shard.lose(topic.route, lost);
            let (route, clock) = (shard.route(topic.route), self.shared.statistics.clock());
            topic.schedule.dues(lost).for_each(|due| route.was_due(clock.unix(due), None));
        }
    }
}
