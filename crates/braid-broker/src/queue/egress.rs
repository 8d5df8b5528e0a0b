//! Queue of the deliveries that a connection has taken from its session's queue and not sent yet.

use std::collections::VecDeque;
use std::time::Instant;

use braid_proto::message::Delivery;
use braid_proto::packet::{PacketId, QoS};
use braid_proto::stream::{Lane, LaneQueue, StreamKey};

use super::backpressure::AckRttEstimator;
use super::overflow::{Eviction, evicts_oldest, trim};
use super::pending::PendingQueue;
use super::policy::QueuePolicy;
use super::usage::{Evicted, PerStreamUsage, QueueLimits, QueueUsage, is_fair_share};

/// Capacity that the empty buffer of arrivals may keep.
const KEEP_CAPACITY: usize = 64;

/// Priority queue of deliveries, one lane for each stream and priority, with its usage.
#[derive(Debug, Default)]
pub(crate) struct EgressQueue {
    /// Allocated with the first delivery. Given back by [`EgressQueue::rest`]: most connections are quiet.
    waiting: Option<Box<Waiting>>,
    /// Whether a delivery has come since the last rest.
    was_used: bool,
    ack_rtt: AckRttEstimator,
}

/// Deliveries with their usage.
#[derive(Debug, Default)]
struct Waiting {
    lanes: LaneQueue<Delivery>,
    /// Taken from the session's queue and not in a lane yet. Empty between two turns.
    arrivals: VecDeque<Delivery>,
    usage: QueueUsage,
    streams: PerStreamUsage,
}

impl EgressQueue {
    pub(crate) fn usage(&self) -> QueueUsage {
        self.waiting.as_ref().map_or_else(QueueUsage::default, |waiting| waiting.usage)
    }

    /// Updates a copy of the usage of each stream.
    pub(crate) fn copy_streams(&mut self, copy: &mut PerStreamUsage) {
        if let Some(waiting) = &mut self.waiting {
            waiting.streams.copy_to(copy);
        }
    }

    /// Begins a round of sending: every lane may be asked again.
    pub(crate) fn note_begin(&mut self, now: Instant) {
        if let Some(waiting) = &mut self.waiting {
            waiting.streams.note_begin(now);
            waiting.lanes.begin_round();
        }
    }

    /// Notes a delivery that is in the outbox of a stream.
    pub(crate) fn note_sent(&mut self, stream: StreamKey, packet_id: Option<PacketId>, now: Instant) {
        if let Some(waiting) = &mut self.waiting {
            waiting.streams.note_progress(stream, now);
        }
        if let Some(packet_id) = packet_id {
            self.ack_rtt.note_sent(packet_id, now);
        }
    }

    /// Ends a round in which something was sent.
    pub(crate) fn note_end(&mut self, now: Instant) {
        self.ack_rtt.note_progress(now);
    }

    /// Notes that the client has acknowledged a delivery.
    pub(crate) fn note_acknowledged(&mut self, packet_id: PacketId, now: impl FnOnce() -> Instant) {
        if self.ack_rtt.watches(packet_id) {
            self.ack_rtt.note_complete(now());
        }
    }

    /// Round-trip time of the client's acknowledgements.
    pub(crate) fn ack_rtt(&self) -> AckRttEstimator {
        self.ack_rtt
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.as_ref().is_none_or(|waiting| waiting.lanes.is_empty())
    }

    /// Whether there is more than one lane.
    pub(crate) fn is_mixed(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.lanes.is_mixed())
    }

    /// Lanes in the order of sending: the delivery that is next, and the number of all.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (Lane, &Delivery, usize)> {
        self.waiting.iter().flat_map(|waiting| waiting.lanes.lanes())
    }

    /// Usage of one stream.
    pub(crate) fn usage_of(&self, stream: StreamKey) -> QueueUsage {
        self.waiting.as_ref().map_or_else(QueueUsage::default, |waiting| waiting.usage_of(stream))
    }

    /// Whether any delivery is for a stream.
    pub(crate) fn waits_on(&self, stream: StreamKey) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.lanes.waits_on(stream))
    }

    /// Takes all messages of a session's queue: one swap and the usage. [`EgressQueue::sort_arrivals`] puts them into
    /// their lanes, after the lock of the session's queue is released.
    ///
    /// `resolve`: maps a stream that has ended to the stream of its deliveries, so that these stay in front of later
    /// ones. Returns the lane of all messages, unless there are several.
    pub(crate) fn take(
        &mut self,
        pending: &mut PendingQueue,
        resolve: impl Fn(StreamKey) -> StreamKey,
    ) -> Option<Lane> {
        self.waiting().take(pending, resolve)
    }

    /// Puts messages that were taken into their lanes. `lane`: the lane of all of them, unless there are several.
    pub(crate) fn sort_arrivals(&mut self, lane: Option<Lane>, resolve: impl Fn(StreamKey) -> StreamKey) {
        self.waiting().sort_arrivals(lane, resolve);
    }

    /// Adds a delivery that did not come through the session's queue.
    pub(crate) fn push(&mut self, delivery: Delivery) {
        let waiting = self.waiting();
        waiting.add(delivery.stream, &delivery);
        waiting.lanes.push_back(delivery.lane(), delivery);
    }

    /// Takes the next delivery in the order of sending that `accepts` takes, and its lane. A lane that was refused is
    /// not asked again in the same round while there are several: what is sent meanwhile makes no room for it.
    pub(crate) fn pop(&mut self, accepts: impl FnMut(Lane, &Delivery) -> bool) -> Option<(Lane, Delivery)> {
        self.waiting.as_mut()?.pop(accepts)
    }

    /// Puts a delivery that could not be sent back into its lane. The stream of the delivery may have ended since; the
    /// deliveries behind it wait in this lane. [BQ-54]
    pub(crate) fn put_back(&mut self, lane: Lane, delivery: Delivery) {
        let waiting = self.waiting();
        waiting.add(lane.stream, &delivery);
        waiting.lanes.push_front(lane, delivery);
    }

    /// Moves the deliveries for a stream that has ended behind those for the control stream. [BQ-42]
    pub(crate) fn redirect(&mut self, ended: StreamKey) {
        if let Some(waiting) = &mut self.waiting {
            waiting.redirect(ended);
        }
    }

    /// Evicts what exceeds the limits, and then what exceeds the fair share of a stream, by the policy.
    pub(crate) fn trim(&mut self, policy: &QueuePolicy) -> Evicted {
        self.waiting.as_mut().map_or_else(Evicted::default, |waiting| waiting.trim(policy))
    }

    /// Removes all deliveries, in the order of sending.
    pub(crate) fn drain(&mut self) -> VecDeque<Delivery> {
        let Some(waiting) = &mut self.waiting else { return VecDeque::new() };
        waiting.usage = QueueUsage::default();
        waiting.streams.clear();
        waiting.lanes.drain().collect()
    }

    /// Ends a poll of the connection. Memory is given back if nothing has come since the one before: a busy connection
    /// needs it at once again.
    pub(crate) fn rest(&mut self) {
        if !std::mem::take(&mut self.was_used) {
            self.waiting.take_if(|waiting| waiting.lanes.is_empty() && waiting.streams.is_at_rest());
        }
    }

    fn waiting(&mut self) -> &mut Waiting {
        self.was_used = true;
        self.waiting.get_or_insert_default()
    }
}

impl Waiting {
    fn usage_of(&self, stream: StreamKey) -> QueueUsage {
        if !self.streams.is_empty() {
            self.streams.usage_of(stream)
        } else if stream.is_control() {
            self.usage
        } else {
            QueueUsage::default()
        }
    }

    fn take(&mut self, pending: &mut PendingQueue, resolve: impl Fn(StreamKey) -> StreamKey) -> Option<Lane> {
        let taken = pending.swap_arrived(&mut self.arrivals);
        if taken.streams.is_empty()
            && let Some(first) = self.arrivals.front()
        {
            self.streams.add(resolve(first.stream), &taken.usage);
        }
        taken.streams.iter().for_each(|(stream, usage)| self.streams.add(resolve(stream), usage));
        self.usage.add(&taken.usage);
        taken.lane
    }

    fn sort_arrivals(&mut self, lane: Option<Lane>, resolve: impl Fn(StreamKey) -> StreamKey) {
        let resolved = |lane: Lane| Lane { stream: resolve(lane.stream), ..lane };
        match lane {
            Some(lane) => self.lanes.append(resolved(lane), &mut self.arrivals),
            None => self
                .arrivals
                .drain(..)
                .for_each(|delivery| self.lanes.push_back(resolved(delivery.lane()), delivery)),
        }
        if self.arrivals.capacity() > KEEP_CAPACITY {
            self.arrivals = VecDeque::new();
        }
    }

    fn pop(&mut self, mut accepts: impl FnMut(Lane, &Delivery) -> bool) -> Option<(Lane, Delivery)> {
        let mut from = Lane::default();
        let delivery = self.lanes.pop_next(|lane, delivery| {
            from = lane;
            accepts(lane, delivery)
        })?;
        self.remove(from.stream, &delivery);
        Some((from, delivery))
    }

    fn redirect(&mut self, ended: StreamKey) {
        if !self.lanes.waits_on(ended) {
            return;
        }
        self.streams.redirect(ended);
        for mut delivery in self.lanes.take_stream(ended) {
            delivery.stream = StreamKey::CONTROL;
            self.lanes.push_back(delivery.lane(), delivery);
        }
    }

    fn trim(&mut self, policy: &QueuePolicy) -> Evicted {
        let mut evicted = Evicted::default();
        // Asked in each turn of a connection; nearly always there is nothing.
        if self.streams.is_empty() && !self.usage.exceeds(policy.limits) {
            return evicted;
        }
        let urgent = self.lanes.first_priority().unwrap_or_default();
        while let Some(eviction) = trim(policy.overflow, &self.usage, policy.limits, urgent) {
            match eviction {
                Eviction::Qos0 => self.remove_qos0(&mut evicted),
                Eviction::Expired | Eviction::Oldest(_) => {
                    if !self.evict_oldest(None, &mut evicted) {
                        break;
                    }
                }
            }
        }
        if evicts_oldest(policy.overflow) && !self.streams.is_empty() {
            self.trim_streams(policy.limits.with_reserve(urgent), &mut evicted);
        }
        evicted
    }

    fn trim_streams(&mut self, limits: QueueLimits, evicted: &mut Evicted) {
        // Only a stream with more than half of the limits can have more than its share.
        if self.usage.messages() <= limits.messages / 2 && self.usage.bytes() <= limits.bytes / 2 {
            return;
        }
        let streams: Vec<_> = self.streams.iter().map(|(stream, _)| stream).collect();
        for stream in streams {
            while !is_fair_share(&self.streams.usage_of(stream), &self.usage, limits)
                && self.evict_oldest(Some(stream), evicted)
            {}
        }
    }

    fn remove_qos0(&mut self, evicted: &mut Evicted) {
        let mut removed = self.usage;
        removed.subtract(&self.usage.without_qos0());
        evicted.note(&removed, None);
        self.lanes.retain(|delivery| delivery.qos > QoS::AtMostOnce);
        self.usage = self.usage.without_qos0();
        self.streams.remove_qos0();
    }

    fn evict_oldest(&mut self, of: Option<StreamKey>, evicted: &mut Evicted) -> bool {
        let accepts = |lane: Lane| of.is_none_or(|stream| lane.stream == stream);
        let Some((lane, oldest)) = self.lanes.evict(accepts) else { return false };
        self.remove(lane.stream, &oldest);
        evicted.note(&QueueUsage::of(&oldest), oldest.queue_lsn);
        true
    }

    fn add(&mut self, stream: StreamKey, delivery: &Delivery) {
        let usage = QueueUsage::of(delivery);
        self.usage.add(&usage);
        self.streams.add(stream, &usage);
    }

    fn remove(&mut self, stream: StreamKey, delivery: &Delivery) {
        let usage = QueueUsage::of(delivery);
        self.usage.subtract(&usage);
        self.streams.remove(stream, &usage);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use braid_proto::message::{Message, SharedMessage};
    use braid_proto::stream::Priority;
    use braid_proto::topic::TopicName;

    use super::*;
    use crate::config::{LimitsConfig, QueueOverflow};
    use crate::memory::Memory;

    fn delivery(stream: u32, priority: u16, number: u8) -> Delivery {
        let topic = TopicName::parse("t").expect("a topic name");
        let message = SharedMessage::new(Message::new(topic, vec![number], QoS::AtLeastOnce, false));
        let (stream, priority) = (StreamKey::bidi(stream), Priority::new(priority));
        Delivery { stream, priority, ..Delivery::of(message) }
    }

    fn pop_all(egress: &mut EgressQueue, of: Lane) -> Vec<u8> {
        egress.note_begin(Instant::now());
        let next = || egress.pop(|lane, _| lane == of).map(|(_, delivery)| delivery.message.payload[0]);
        std::iter::from_fn(next).collect()
    }

    /// [BQ-54]: a delivery that is put back is before those behind it, though its stream has ended since.
    #[test]
    fn delivery_that_is_put_back_stays_in_front_of_its_lane() {
        let mut egress = EgressQueue::default();
        let mut pending = PendingQueue::default();
        for delivery in (1..=3).map(|number| delivery(7, 5, number)) {
            let usage = QueueUsage::of(&delivery);
            pending.push_back(delivery, &usage);
        }
        egress.take(&mut pending, |_| StreamKey::CONTROL);
        egress.sort_arrivals(None, |_| StreamKey::CONTROL);
        let (lane, first) = egress.pop(|_, _| true).expect("three");
        assert_eq!((lane.stream, first.stream), (StreamKey::CONTROL, StreamKey::bidi(7)));
        egress.put_back(lane, first);
        assert!(!egress.is_mixed());
        assert_eq!(pop_all(&mut egress, lane), [1, 2, 3]);
    }

    /// [BQ-55]: streams that are not read hardly delay the deliveries of another.
    #[test]
    fn lane_that_refuses_is_asked_once_in_a_round() {
        let mut egress = EgressQueue::default();
        for stream in 1..=256 {
            (0..100).for_each(|number| egress.push(delivery(stream, 5, number)));
        }
        let is_read = |lane: Lane| lane.stream == StreamKey::bidi(256);
        for _ in 0..2 {
            egress.note_begin(Instant::now());
            let (mut asked, mut taken) = (0, 0);
            let mut accepts = |lane, _: &Delivery| {
                asked += 1;
                let accepted = is_read(lane) && taken < 40;
                taken += u32::from(accepted);
                accepted
            };
            while egress.pop(&mut accepts).is_some() {}
            assert_eq!((asked, taken), (255 + 41, 40));
        }
    }

    /// [BQ-55]: a stream that is not read loses its own deliveries.
    #[test]
    fn evicts_from_the_stream_above_its_fair_share() {
        let mut egress = EgressQueue::default();
        (0..4).for_each(|number| egress.push(delivery(2, 5, number)));
        (0..90).for_each(|number| egress.push(delivery(1, 9, number)));
        let limits = LimitsConfig {
            queued_messages: 100,
            queued_bytes: 1 << 20,
            queue_overflow: QueueOverflow::DropOldest,
            ..LimitsConfig::default()
        };
        let memory = Arc::new(Memory::new(&limits));
        let removed = egress.trim(&QueuePolicy::new(&limits, Instant::now(), memory)).messages();
        let lane =
            |stream, priority| Lane { stream: StreamKey::bidi(stream), priority: Priority::new(priority) };
        // Eight times the free room is left.
        assert_eq!(pop_all(&mut egress, lane(1, 9)), (4..90).collect::<Vec<u8>>());
        assert_eq!((removed, pop_all(&mut egress, lane(2, 5))), (4, vec![0, 1, 2, 3]));
        assert!(egress.is_empty() && egress.usage() == QueueUsage::default());
    }

    #[test]
    fn last_lane_is_asked_again() {
        let mut egress = EgressQueue::default();
        egress.push(delivery(1, 9, 1));
        egress.push(delivery(2, 5, 2));
        let first = egress.pop(|lane, _| lane.stream != StreamKey::bidi(1)).expect("it takes one");
        assert_eq!(first.0.stream, StreamKey::bidi(2));
        assert!(egress.pop(|_, _| true).is_some());
    }

    /// [BQ-42]
    #[test]
    fn deliveries_of_an_ended_stream_go_behind_those_of_the_control_stream() {
        let mut egress = EgressQueue::default();
        let waiting = [(1, 5, 1), (2, 5, 10), (0, 5, 20), (1, 9, 3), (1, 5, 2), (2, 5, 11)];
        for (stream, priority, number) in waiting {
            egress.push(delivery(stream, priority, number));
        }
        egress.redirect(StreamKey::bidi(1));
        assert!(!egress.waits_on(StreamKey::bidi(1)));
        assert_eq!(egress.usage_of(StreamKey::CONTROL).messages(), 4);
        let lane = |stream, priority| Lane { stream, priority: Priority::new(priority) };
        assert_eq!(pop_all(&mut egress, lane(StreamKey::bidi(2), 5)), [10, 11]);
        assert_eq!(pop_all(&mut egress, lane(StreamKey::CONTROL, 9)), [3]);
        assert_eq!(pop_all(&mut egress, lane(StreamKey::CONTROL, 5)), [20, 1, 2]);
        assert!(egress.is_empty() && egress.usage_of(StreamKey::bidi(2)) == QueueUsage::default());
    }

    #[test]
    fn memory_is_given_back_in_the_second_rest_without_a_delivery() {
        let (mut egress, mut copy) = (EgressQueue::default(), PerStreamUsage::default());
        egress.push(delivery(1, 5, 1));
        egress.copy_streams(&mut copy);
        egress.rest();
        egress.rest();
        assert_eq!(egress.usage().messages(), 1, "it is kept while something waits");
        assert!(egress.pop(|_, _| true).is_some());
        egress.rest();
        assert!(egress.waiting.is_some(), "the copy of its usage is not empty yet");
        egress.copy_streams(&mut copy);
        assert!(copy.is_empty());
        egress.push(delivery(1, 5, 1));
        assert!(egress.pop(|_, _| true).is_some());
        egress.copy_streams(&mut copy);
        egress.rest();
        assert!(egress.waiting.is_some(), "it was used just now");
        egress.rest();
        assert!(egress.waiting.is_none());
    }
}
