//! What waits in a mailbox until its owner takes it.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::stream::{Lane, LaneQueue, Priority, StreamKey};

use crate::inbox::Inbox;
use crate::load::{Load, load_of};
use crate::shares::Shares;

/// Deliveries in the order of their coming, with what they weigh.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    queue: VecDeque<Delivery>,
    /// In place of the queue once something of several lanes had to give way: from then on each is found at once,
    /// however much waits. Only the order within a lane counts, which stays. [BQ-54]
    lanes: Option<Box<LaneQueue<Delivery>>>,
    load: Load,
    /// The lane of all that waits, unless there are several.
    lane: Option<Lane>,
    /// The stream of all that waits, while `mixed` is empty.
    stream: StreamKey,
    /// What waits stream by stream, once it is for more than one.
    mixed: Shares,
}

/// What was taken out of a queue that it did not fit into, or in which it had waited for too long.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    pub(crate) load: Load,
    /// Their places in the store, of those that have one.
    pub(crate) places: Vec<NonZeroU64>,
}

impl Removed {
    pub(crate) fn add(&mut self, delivery: &Delivery) {
        self.load.add(load_of(delivery));
        self.places.extend(delivery.stored);
    }
}

impl Backlog {
    pub(crate) fn load(&self) -> Load {
        self.load
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.load.messages == 0
    }

    /// Whether everything is for one stream, or nothing is there.
    pub(crate) fn is_of_one_stream(&self) -> bool {
        self.mixed.is_empty()
    }

    /// The part that is for a stream.
    pub(crate) fn load_of(&self, stream: StreamKey) -> Load {
        if !self.mixed.is_empty() {
            self.mixed.load_of(stream)
        } else if self.stream == stream {
            self.load
        } else {
            Load::default()
        }
    }

    pub(crate) fn push_back(&mut self, delivery: Delivery, load: Load) {
        let lane = delivery.lane();
        if self.is_empty() {
            (self.stream, self.lane) = (lane.stream, Some(lane));
        } else if self.lane != Some(lane) {
            self.lane = None;
        }
        if self.mixed.is_empty() && self.stream != lane.stream {
            self.mixed.insert(self.stream, self.load);
        }
        if !self.mixed.is_empty() {
            self.mixed.insert(lane.stream, load);
        }
        self.load.add(load);
        match &mut self.lanes {
            None => self.queue.push_back(delivery),
            Some(lanes) => lanes.push_back(lane, delivery),
        }
    }

    /// Puts back what its owner did not send, before what has come since, and all of it on the control stream: no
    /// stream outlives its connection. [BQ-42]
    pub(crate) fn restore(&mut self, leftover: VecDeque<Delivery>, mut note: impl FnMut(&mut Delivery)) {
        let later = self.take();
        self.queue = leftover;
        self.queue.extend(later);
        for delivery in &mut self.queue {
            delivery.stream = StreamKey::CONTROL;
            note(delivery);
            self.load.add(load_of(delivery));
        }
    }

    /// Takes out the oldest of the least urgent, which is no more urgent than `limit`, and of `stream` if one is
    /// named.
    pub(crate) fn displace(&mut self, limit: Priority, stream: Option<StreamKey>) -> Option<Delivery> {
        let accepts =
            |lane: Lane| lane.priority <= limit && stream.is_none_or(|stream| lane.stream == stream);
        let displaced = match (self.lane, &mut self.lanes) {
            (_, Some(lanes)) => lanes.pop_least(accepts).map(|(_, delivery)| delivery),
            (Some(lane), None) if accepts(lane) => self.queue.pop_front(),
            (Some(_), None) => None,
            (None, lanes) => {
                let lanes = lanes.insert(Box::default());
                for delivery in std::mem::take(&mut self.queue) {
                    lanes.push_back(delivery.lane(), delivery);
                }
                lanes.pop_least(accepts).map(|(_, delivery)| delivery)
            }
        }?;
        let load = load_of(&displaced);
        self.load.subtract(load);
        self.mixed.remove(displaced.stream, load);
        Some(displaced)
    }

    /// Drops all QoS 0; returns how many.
    pub(crate) fn drop_qos0(&mut self) -> u64 {
        if self.load.qos0 == 0 {
            return 0;
        }
        self.remove(|delivery| delivery.qos == QoS::AtMostOnce).load.messages as u64
    }

    /// Takes out what `is_over`.
    pub(crate) fn remove(&mut self, is_over: impl Fn(&Delivery) -> bool) -> Removed {
        let mut removed = Removed::default();
        let mixed = &mut self.mixed;
        let keep = |delivery: &Delivery| {
            let is_over = is_over(delivery);
            if is_over {
                removed.add(delivery);
                mixed.remove(delivery.stream, load_of(delivery));
            }
            !is_over
        };
        match &mut self.lanes {
            None => self.queue.retain(keep),
            Some(lanes) => {
                lanes.retain(keep);
            }
        }
        self.load.subtract(removed.load);
        removed
    }

    /// Moves everything into `inbox`, to be put into its lanes later; returns its lane if it is of one.
    pub(crate) fn move_to(
        &mut self,
        inbox: &mut Inbox,
        resolve: impl Fn(StreamKey) -> StreamKey,
    ) -> Option<Lane> {
        if let Some(mut lanes) = self.lanes.take() {
            self.queue = lanes.drain().collect();
        }
        inbox.take(&mut self.queue, std::mem::take(&mut self.load), &self.mixed, resolve);
        if !self.mixed.is_empty() {
            self.mixed.clear();
        }
        self.lane.take()
    }

    /// Everything.
    pub(crate) fn take(&mut self) -> VecDeque<Delivery> {
        let Self { queue, lanes, .. } = std::mem::take(self);
        match lanes {
            None => queue,
            Some(mut lanes) => lanes.drain().collect(),
        }
    }
}
