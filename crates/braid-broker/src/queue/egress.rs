//! What a connection took from its mailbox and has not sent yet.

use std::collections::VecDeque;
use std::time::Instant;

use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::stream::{Lane, LaneQueue, StreamKey};

use crate::queue::pending::Removed;
use crate::queue::usage::PerStreamUsage;
use crate::queue::usage::{QueueLimits, QueueUsage, is_fair_share, usage_of};

/// Capacity that an empty queue may keep.
const KEEP_CAPACITY: usize = 64;

/// Deliveries lane by lane, with what they weigh.
#[derive(Debug, Default)]
pub(crate) struct EgressQueue {
    lanes: LaneQueue<Delivery>,
    /// Taken from the mailbox, and not in its lane yet. Empty between two turns.
    arrivals: VecDeque<Delivery>,
    load: QueueUsage,
    /// The same stream by stream.
    shares: PerStreamUsage,
    /// Lanes that took nothing in this round of sending, in their order.
    refused: Vec<Lane>,
}

impl EgressQueue {
    pub(crate) fn load(&self) -> QueueUsage {
        self.load
    }

    /// Brings a copy of the shares up to date.
    pub(crate) fn copy_shares(&mut self, copy: &mut PerStreamUsage) {
        self.shares.copy_to(copy);
    }

    /// A round of sending begins: every lane may be asked again.
    pub(crate) fn note_begin(&mut self, now: Instant) {
        self.shares.note_begin(now);
        self.refused.clear();
    }

    /// Something was sent on a stream.
    pub(crate) fn note_progress(&mut self, stream: StreamKey, now: Instant) {
        self.shares.note_progress(stream, now);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Whether there is more than one lane.
    pub(crate) fn is_mixed(&self) -> bool {
        self.lanes.is_mixed()
    }

    /// Whether anything waits for a stream.
    pub(crate) fn waits_on(&self, stream: StreamKey) -> bool {
        self.lanes.waits_on(stream)
    }

    /// Takes a whole queue over: its account now, with the mailbox locked, its deliveries with
    /// [`EgressQueue::sort_arrivals`]. `loads`: stream by stream, unless `load` is all of one stream. `resolve`: where a
    /// stream's deliveries go, so that those of a stream which has ended stay in front of what comes after them.
    pub(crate) fn take(
        &mut self,
        queue: &mut VecDeque<Delivery>,
        load: QueueUsage,
        loads: &PerStreamUsage,
        resolve: impl Fn(StreamKey) -> StreamKey,
    ) {
        if loads.is_empty()
            && let Some(first) = queue.front()
        {
            self.shares.add(resolve(first.stream), load);
        }
        loads.loads().for_each(|(stream, load)| self.shares.add(resolve(stream), load));
        self.load.add(load);
        std::mem::swap(queue, &mut self.arrivals);
    }

    /// Puts what was taken into its lanes. `lane`: of all of it, unless they differ.
    pub(crate) fn sort_arrivals(&mut self, lane: Option<Lane>, resolve: impl Fn(StreamKey) -> StreamKey) {
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

    /// Adds what did not come through the mailbox.
    pub(crate) fn push(&mut self, delivery: Delivery) {
        self.add(delivery.stream, &delivery);
        self.lanes.push_back(delivery.lane(), delivery);
    }

    /// Takes the next one in the order of sending that `accepts` takes, and its lane. While there are several, one that
    /// was refused is not asked about again before the next round: what is sent meanwhile makes room for nobody.
    pub(crate) fn pop(
        &mut self,
        mut accepts: impl FnMut(Lane, &Delivery) -> bool,
    ) -> Option<(Lane, Delivery)> {
        let mut from = Lane::default();
        let refused = &mut self.refused;
        if !self.lanes.is_mixed() {
            refused.clear();
        }
        let delivery = self.lanes.pop(|lane, delivery| {
            from = lane;
            let Err(place) = refused.binary_search(&lane) else { return false };
            let accepted = accepts(lane, delivery);
            if !accepted {
                refused.insert(place, lane);
            }
            accepted
        })?;
        let load = usage_of(&delivery);
        self.load.subtract(load);
        self.shares.remove(from.stream, load);
        Some((from, delivery))
    }

    /// Takes one back that could not be sent, into the lane that it is from: its stream may have ended since, and what
    /// is behind it waits there. [BQ-54]
    pub(crate) fn put_back(&mut self, lane: Lane, delivery: Delivery) {
        self.add(lane.stream, &delivery);
        self.lanes.push_front(lane, delivery);
    }

    /// Moves what waits for a stream that has ended to the control stream, behind what waits there. [BQ-42]
    pub(crate) fn redirect(&mut self, ended: StreamKey) {
        if !self.lanes.waits_on(ended) {
            return;
        }
        self.shares.redirect(ended);
        for mut delivery in self.lanes.take_stream(ended) {
            delivery.stream = StreamKey::CONTROL;
            self.lanes.push_back(delivery.lane(), delivery);
        }
    }

    /// Drops QoS 0 if more is held than fits, which makes room for what is to be acknowledged; one message that is
    /// larger than everything was let in alone. Returns how many.
    pub(crate) fn shed(&mut self, capacity: QueueLimits) -> u64 {
        if self.load.qos0 == 0 || !self.load.exceeds(capacity) {
            return 0;
        }
        let dropped = self.lanes.retain(|delivery| delivery.qos > QoS::AtMostOnce);
        self.load = self.load.beside_qos0();
        self.shares.drop_qos0();
        dropped as u64
    }

    /// Takes out what waits longest, the least urgent first, until what is left fits and no stream has more than its
    /// share.
    pub(crate) fn displace(&mut self, capacity: QueueLimits) -> Removed {
        let mut removed = Removed::default();
        let Some(priority) = self.lanes.first_priority() else { return removed };
        let capacity = capacity.reserve(priority);
        while self.load.exceeds(capacity) && self.displace_one(None, &mut removed) {}
        // Whoever has more than half of it may have more than its share, and nobody else.
        if self.shares.is_empty()
            || self.load.messages <= capacity.messages / 2 && self.load.bytes <= capacity.bytes / 2
        {
            return removed;
        }
        let streams: Vec<_> = self.shares.loads().map(|(stream, _)| stream).collect();
        for stream in streams {
            while !is_fair_share(self.shares.usage_of(stream), self.load, capacity)
                && self.displace_one(Some(stream), &mut removed)
            {}
        }
        removed
    }

    fn displace_one(&mut self, of: Option<StreamKey>, removed: &mut Removed) -> bool {
        let accepts = |lane: Lane| of.is_none_or(|stream| lane.stream == stream);
        let Some((lane, displaced)) = self.lanes.pop_least(accepts) else { return false };
        let load = usage_of(&displaced);
        self.load.subtract(load);
        self.shares.remove(lane.stream, load);
        removed.add(&displaced);
        true
    }

    /// Everything, in the order of sending.
    pub(crate) fn drain(&mut self) -> VecDeque<Delivery> {
        self.load = QueueUsage::default();
        self.shares.clear();
        self.lanes.drain().collect()
    }

    fn add(&mut self, stream: StreamKey, delivery: &Delivery) {
        let load = usage_of(delivery);
        self.load.add(load);
        self.shares.add(stream, load);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use braid_proto::message::Message;
    use braid_proto::packet::Publish;
    use braid_proto::stream::Priority;
    use braid_proto::topic::TopicName;

    use super::*;

    fn delivery(stream: u32, priority: u16, number: u8) -> Delivery {
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: None,
            packet_id: None,
            topic_alias: None,
            subscription_ids: Vec::new(),
            properties: None,
            payload: bytes::Bytes::copy_from_slice(&[number]),
            spooled: false,
        };
        let topic = TopicName::parse("t").expect("a topic name");
        let message = Arc::new(Message::from_publish(publish, topic, Instant::now()));
        let (stream, priority) = (StreamKey::bidi(stream), Priority::new(priority));
        Delivery { stream, priority, ..Delivery::of(message) }
    }

    fn pop_all(inbox: &mut EgressQueue, of: Lane) -> Vec<u8> {
        inbox.note_begin(Instant::now());
        let next = || inbox.pop(|lane, _| lane == of).map(|(_, delivery)| delivery.message.payload[0]);
        std::iter::from_fn(next).collect()
    }

    /// [BQ-54]: a delivery that is put back is before those that were behind it, though its stream has ended since.
    #[test]
    fn what_is_put_back_stays_in_its_lane() {
        let mut inbox = EgressQueue::default();
        let mut queue: VecDeque<_> = (1..=3).map(|number| delivery(7, 5, number)).collect();
        let load = QueueUsage { messages: 3, ..QueueUsage::default() };
        inbox.take(&mut queue, load, &PerStreamUsage::default(), |_| StreamKey::CONTROL);
        inbox.sort_arrivals(None, |_| StreamKey::CONTROL);
        let (lane, first) = inbox.pop(|_, _| true).expect("three");
        assert_eq!((lane.stream, first.stream), (StreamKey::CONTROL, StreamKey::bidi(7)));
        inbox.put_back(lane, first);
        assert!(!inbox.is_mixed());
        assert_eq!(pop_all(&mut inbox, lane), [1, 2, 3]);
    }

    /// [BQ-55]: streams that are not read cost each delivery of another next to nothing.
    #[test]
    fn a_lane_that_refuses_is_asked_once_in_a_round() {
        let mut inbox = EgressQueue::default();
        for stream in 1..=256 {
            (0..100).for_each(|number| inbox.push(delivery(stream, 5, number)));
        }
        let is_lively = |lane: Lane| lane.stream == StreamKey::bidi(256);
        for _ in 0..2 {
            inbox.note_begin(Instant::now());
            let (mut asked, mut taken) = (0, 0);
            let mut accepts = |lane, _: &Delivery| {
                asked += 1;
                let accepted = is_lively(lane) && taken < 40;
                taken += u32::from(accepted);
                accepted
            };
            while inbox.pop(&mut accepts).is_some() {}
            assert_eq!((asked, taken), (255 + 41, 40));
        }
    }

    /// [BQ-55]: a stream that is not read loses what is its own.
    #[test]
    fn what_is_too_much_is_taken_from_the_stream_that_has_it() {
        let capacity = QueueLimits { messages: 100, bytes: 1 << 20 };
        let mut inbox = EgressQueue::default();
        (0..4).for_each(|number| inbox.push(delivery(2, 5, number)));
        (0..90).for_each(|number| inbox.push(delivery(1, 9, number)));
        let removed = inbox.displace(capacity).load.messages;
        let lane =
            |stream, priority| Lane { stream: StreamKey::bidi(stream), priority: Priority::new(priority) };
        // As many as leave it no more than eight times what is free.
        assert_eq!(pop_all(&mut inbox, lane(1, 9)), (4..90).collect::<Vec<u8>>());
        assert_eq!((removed, pop_all(&mut inbox, lane(2, 5))), (4, vec![0, 1, 2, 3]));
        assert!(inbox.is_empty() && inbox.shares.is_empty() && inbox.load() == QueueUsage::default());
    }

    /// The last lane that is left may take what it did not take beside others.
    #[test]
    fn the_last_lane_is_asked_again() {
        let mut inbox = EgressQueue::default();
        inbox.push(delivery(1, 9, 1));
        inbox.push(delivery(2, 5, 2));
        let first = inbox.pop(|lane, _| lane.stream != StreamKey::bidi(1)).expect("it takes one");
        assert_eq!(first.0.stream, StreamKey::bidi(2));
        assert!(inbox.pop(|_, _| true).is_some());
    }

    /// [BQ-42]
    #[test]
    fn what_waits_for_an_ended_stream_goes_behind_what_waits_on_the_control_stream() {
        let mut inbox = EgressQueue::default();
        let waiting = [(1, 5, 1), (2, 5, 10), (0, 5, 20), (1, 9, 3), (1, 5, 2), (2, 5, 11)];
        for (stream, priority, number) in waiting {
            inbox.push(delivery(stream, priority, number));
        }
        inbox.redirect(StreamKey::bidi(1));
        assert!(!inbox.waits_on(StreamKey::bidi(1)));
        assert_eq!(inbox.shares.usage_of(StreamKey::CONTROL).messages, 4);
        let lane = |stream, priority| Lane { stream, priority: Priority::new(priority) };
        assert_eq!(pop_all(&mut inbox, lane(StreamKey::bidi(2), 5)), [10, 11]);
        assert_eq!(pop_all(&mut inbox, lane(StreamKey::CONTROL, 9)), [3]);
        assert_eq!(pop_all(&mut inbox, lane(StreamKey::CONTROL, 5)), [20, 1, 2]);
        assert!(inbox.is_empty() && inbox.shares.is_empty());
    }
}
