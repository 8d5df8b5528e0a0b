//! What a connection took from its mailbox and has not sent yet.

use std::collections::VecDeque;

use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::stream::{Lane, LaneQueue, StreamKey};

use crate::mailbox::{Capacity, Load, cost};

/// Deliveries lane by lane, with what they weigh.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    lanes: LaneQueue<Delivery>,
    load: Load,
}

impl Inbox {
    pub(crate) fn load(&self) -> Load {
        self.load
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
        self.load.messages += load.messages;
        self.load.bytes = self.load.bytes.saturating_add(load.bytes);
        self.load.qos0 += load.qos0;
        self.load.qos0_bytes = self.load.qos0_bytes.saturating_add(load.qos0_bytes);
        let resolved = |lane: Lane| Lane { stream: resolve(lane.stream), ..lane };
        match lane {
            Some(lane) => self.lanes.append(resolved(lane), queue),
            None => {
                queue.drain(..).for_each(|delivery| self.lanes.push_back(resolved(delivery.lane()), delivery))
            }
        }
    }

    /// Adds what did not come through the mailbox.
    pub(crate) fn push(&mut self, delivery: Delivery) {
        self.weigh(&delivery, true);
        self.lanes.push_back(delivery.lane(), delivery);
    }

    /// Takes the next one in the order of sending that `accepts` takes.
    pub(crate) fn pop(&mut self, accepts: impl FnMut(Lane, &Delivery) -> bool) -> Option<Delivery> {
        let delivery = self.lanes.pop(accepts)?;
        self.weigh(&delivery, false);
        Some(delivery)
    }

    /// Takes one back that could not be sent.
    pub(crate) fn put_back(&mut self, delivery: Delivery) {
        self.weigh(&delivery, true);
        self.lanes.push_front(delivery.lane(), delivery);
    }

    /// Moves what waits for a stream that has ended to the control stream, behind what waits there. [BQ-42]
    pub(crate) fn redirect(&mut self, ended: StreamKey) {
        if !self.lanes.waits_on(ended) {
            return;
        }
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
        self.load.messages -= self.load.qos0;
        self.load.bytes = self.load.bytes.saturating_sub(self.load.qos0_bytes);
        (self.load.qos0, self.load.qos0_bytes) = (0, 0);
        dropped as u64
    }

    /// Everything, in the order of sending.
    pub(crate) fn drain(&mut self) -> VecDeque<Delivery> {
        self.load = Load::default();
        self.lanes.drain().collect()
    }

    fn weigh(&mut self, delivery: &Delivery, comes: bool) {
        let bytes = cost(delivery);
        let (qos0, qos0_bytes) = if delivery.qos == QoS::AtMostOnce { (1, bytes) } else { (0, 0) };
        let load = &mut self.load;
        if comes {
            load.messages += 1;
            load.bytes = load.bytes.saturating_add(bytes);
            load.qos0 += qos0;
            load.qos0_bytes = load.qos0_bytes.saturating_add(qos0_bytes);
        } else {
            load.messages -= 1;
            load.bytes = load.bytes.saturating_sub(bytes);
            load.qos0 -= qos0;
            load.qos0_bytes = load.qos0_bytes.saturating_sub(qos0_bytes);
        }
    }
}
