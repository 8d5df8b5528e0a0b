//! What a connection took from its mailbox and has not sent yet.

use std::collections::VecDeque;
use std::time::Instant;

use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::stream::{Lane, LaneQueue, StreamKey};

use crate::mailbox::{Capacity, Load, load_of};
use crate::shares::Shares;

/// Deliveries lane by lane, with what they weigh.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    lanes: LaneQueue<Delivery>,
    load: Load,
    /// The same stream by stream.
    shares: Shares,
}

impl Inbox {
    pub(crate) fn load(&self) -> Load {
        self.load
    }

    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Before something is sent.
    pub(crate) fn note_begin(&mut self, now: Instant) {
        self.shares.note_begin(now);
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

    /// Moves a whole queue in. `lane`: of all of it, unless they differ. `resolve`: where a stream's deliveries go, so
    /// that those of a stream which has ended stay in front of what comes after them.
    pub(crate) fn take(
        &mut self,
        lane: Option<Lane>,
        queue: &mut VecDeque<Delivery>,
        load: Load,
        resolve: impl Fn(StreamKey) -> StreamKey,
    ) {
        self.load.add(load);
        let resolved = |lane: Lane| Lane { stream: resolve(lane.stream), ..lane };
        match lane {
            Some(lane) => {
                let lane = resolved(lane);
                self.shares.add(lane.stream, load);
                self.lanes.append(lane, queue);
            }
            None => queue.drain(..).for_each(|delivery| {
                let lane = resolved(delivery.lane());
                self.shares.add(lane.stream, load_of(&delivery));
                self.lanes.push_back(lane, delivery);
            }),
        }
    }

    /// Adds what did not come through the mailbox.
    pub(crate) fn push(&mut self, delivery: Delivery) {
        self.add(&delivery);
        self.lanes.push_back(delivery.lane(), delivery);
    }

    /// Takes the next one in the order of sending that `accepts` takes.
    pub(crate) fn pop(&mut self, mut accepts: impl FnMut(Lane, &Delivery) -> bool) -> Option<Delivery> {
        let mut stream = StreamKey::CONTROL;
        let delivery = self.lanes.pop(|lane, delivery| {
            stream = lane.stream;
            accepts(lane, delivery)
        })?;
        let load = load_of(&delivery);
        self.load.subtract(load);
        self.shares.remove(stream, load);
        Some(delivery)
    }

    /// Takes one back that could not be sent.
    pub(crate) fn put_back(&mut self, delivery: Delivery) {
        self.add(&delivery);
        self.lanes.push_front(delivery.lane(), delivery);
    }

    /// Moves what waits for a stream that has ended to the control stream, behind what waits there. [BQ-42]
    pub(crate) fn redirect(&mut self, ended: StreamKey) {
        if !self.lanes.waits_on(ended) {
            return;
        }
        self.shares.redirect(ended);
        for mut delivery in self.lanes.drain().collect::<Vec<_>>() {
            if delivery.stream == ended {
                delivery.stream = StreamKey::CONTROL;
            }
            self.lanes.push_back(delivery.lane(), delivery);
        }
    }

    /// Drops QoS 0 if more is held than fits, which makes room for what is to be acknowledged. Returns how many.
    pub(crate) fn shed(&mut self, capacity: Capacity) -> u64 {
        if self.load.qos0 == 0 || self.load.messages <= capacity.messages && self.load.bytes <= capacity.bytes
        {
            return 0;
        }
        let dropped = self.lanes.retain(|delivery| delivery.qos > QoS::AtMostOnce);
        self.load = self.load.beside_qos0();
        self.shares.drop_qos0();
        dropped as u64
    }

    /// Everything, in the order of sending.
    pub(crate) fn drain(&mut self) -> VecDeque<Delivery> {
        self.load = Load::default();
        self.shares.clear();
        self.lanes.drain().collect()
    }

    fn add(&mut self, delivery: &Delivery) {
        let load = load_of(delivery);
        self.load.add(load);
        self.shares.add(delivery.stream, load);
    }
}
