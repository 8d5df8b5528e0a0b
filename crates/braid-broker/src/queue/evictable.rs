//! What waits in the order of its coming, until something has to give way.

use std::collections::VecDeque;

use braid_proto::message::Delivery;
use braid_proto::stream::{Lane, LaneQueue};

/// What has its place in the order of sending.
pub(crate) trait Laned {
    fn lane(&self) -> Lane;
}

impl Laned for Delivery {
    fn lane(&self) -> Lane {
        self.lane()
    }
}

/// A queue out of which the oldest of the least urgent can be taken. Only the order within a lane counts, which
/// stays. [BQ-54]
#[derive(Debug)]
pub(crate) struct EvictableQueue<T> {
    queue: VecDeque<T>,
    /// In place of the queue once something of several lanes had to give way: from then on each is found at once,
    /// however much waits.
    lanes: Option<Box<LaneQueue<T>>>,
    /// The lane of all of it, unless there are several.
    lane: Option<Lane>,
}

impl<T> Default for EvictableQueue<T> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), lanes: None, lane: None }
    }
}

impl<T: Laned> EvictableQueue<T> {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { queue: VecDeque::with_capacity(capacity), ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.lanes.as_deref().is_none_or(LaneQueue::is_empty)
    }

    pub(crate) fn push_back(&mut self, item: T) {
        let lane = item.lane();
        if self.is_empty() {
            self.lane = Some(lane);
        } else if self.lane != Some(lane) {
            self.lane = None;
        }
        match &mut self.lanes {
            None => self.queue.push_back(item),
            Some(lanes) => lanes.push_back(lane, item),
        }
    }

    /// The least urgent lane that `accepts` takes.
    pub(crate) fn least(&mut self, accepts: impl Fn(Lane) -> bool) -> Option<Lane> {
        match self.lane {
            _ if self.is_empty() => None,
            Some(lane) => accepts(lane).then_some(lane),
            None => self.sort().least(accepts),
        }
    }

    /// Takes out the oldest of the least urgent lane that `accepts` takes.
    pub(crate) fn displace(&mut self, accepts: impl Fn(Lane) -> bool) -> Option<T> {
        match self.lane {
            _ if self.is_empty() => None,
            Some(lane) if self.lanes.is_none() => {
                if accepts(lane) {
                    self.queue.pop_front()
                } else {
                    None
                }
            }
            _ => self.sort().pop_least(accepts).map(|(_, item)| item),
        }
    }

    fn sort(&mut self) -> &mut LaneQueue<T> {
        let Self { queue, lanes, .. } = self;
        lanes.get_or_insert_with(|| {
            let mut lanes = LaneQueue::default();
            for item in std::mem::take(queue) {
                lanes.push_back(item.lane(), item);
            }
            Box::new(lanes)
        })
    }

    /// Takes out what `keep` refuses.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        match &mut self.lanes {
            None => self.queue.retain(keep),
            Some(lanes) => {
                lanes.retain(keep);
            }
        }
    }

    /// All of it as a queue, to be taken away with [`EvictableQueue::take_lane`].
    pub(crate) fn queue(&mut self) -> &mut VecDeque<T> {
        if let Some(mut lanes) = self.lanes.take() {
            self.queue = lanes.drain().collect();
        }
        &mut self.queue
    }

    /// The lane of what was taken away, unless there were several.
    pub(crate) fn take_lane(&mut self) -> Option<Lane> {
        self.lane.take()
    }

    /// Everything.
    pub(crate) fn take(&mut self) -> VecDeque<T> {
        let Self { queue, lanes, .. } = std::mem::take(self);
        match lanes {
            None => queue,
            Some(mut lanes) => lanes.drain().collect(),
        }
    }
}
