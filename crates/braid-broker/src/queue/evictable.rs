//! FIFO queue that can also evict the oldest entry of the lowest priority.

use std::collections::VecDeque;

use braid_proto::message::Delivery;
use braid_proto::stream::{Lane, LaneQueue};

/// Entry with a lane: order counts within a lane only.
pub(crate) trait Laned {
    fn lane(&self) -> Lane;
}

impl Laned for Delivery {
    fn lane(&self) -> Lane {
        self.lane()
    }
}

/// FIFO queue that can evict the oldest entry of the lowest priority. Keeps the order of each lane. [BQ-54]
#[derive(Debug)]
pub(crate) struct EvictableQueue<T> {
    fifo: VecDeque<T>,
    /// Replaces `fifo` from the first eviction among several lanes on: each further one takes constant time, however
    /// long the queue is.
    lanes: Option<Box<LaneQueue<T>>>,
    /// The lane of all entries, unless there are several.
    lane: Option<Lane>,
}

impl<T> Default for EvictableQueue<T> {
    fn default() -> Self {
        Self { fifo: VecDeque::new(), lanes: None, lane: None }
    }
}

impl<T: Laned> EvictableQueue<T> {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { fifo: VecDeque::with_capacity(capacity), ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fifo.is_empty() && self.lanes.as_deref().is_none_or(LaneQueue::is_empty)
    }

    pub(crate) fn push_back(&mut self, item: T) {
        let lane = item.lane();
        if self.is_empty() {
            self.lane = Some(lane);
        } else if self.lane != Some(lane) {
            self.lane = None;
        }
        match &mut self.lanes {
            None => self.fifo.push_back(item),
            Some(lanes) => lanes.push_back(lane, item),
        }
    }

    /// Lane of the lowest priority that `accepts` takes.
    pub(crate) fn victim(&mut self, accepts: impl Fn(Lane) -> bool) -> Option<Lane> {
        match self.lane {
            _ if self.is_empty() => None,
            Some(lane) => accepts(lane).then_some(lane),
            None => self.sorted().victim(accepts),
        }
    }

    /// Evicts the oldest entry of the lowest priority whose lane `accepts` takes.
    pub(crate) fn evict(&mut self, accepts: impl Fn(Lane) -> bool) -> Option<T> {
        match self.lane {
            _ if self.is_empty() => None,
            Some(lane) if self.lanes.is_none() => accepts(lane).then(|| self.fifo.pop_front())?,
            _ => self.sorted().evict(accepts).map(|(_, item)| item),
        }
    }

    fn sorted(&mut self) -> &mut LaneQueue<T> {
        let Self { fifo, lanes, .. } = self;
        lanes.get_or_insert_with(|| {
            let mut lanes = LaneQueue::default();
            for item in std::mem::take(fifo) {
                lanes.push_back(item.lane(), item);
            }
            Box::new(lanes)
        })
    }

    /// Removes the entries that `keep` refuses.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        match &mut self.lanes {
            None => self.fifo.retain(keep),
            Some(lanes) => {
                lanes.retain(keep);
            }
        }
    }

    /// All entries as a FIFO queue, for reading or to be swapped out together with [`EvictableQueue::take_lane`].
    pub(crate) fn fifo(&mut self) -> &mut VecDeque<T> {
        if let Some(mut lanes) = self.lanes.take() {
            self.fifo = lanes.drain().collect();
        }
        &mut self.fifo
    }

    /// Lane of the entries that were swapped out, unless there were several.
    pub(crate) fn take_lane(&mut self) -> Option<Lane> {
        self.lane.take()
    }

    /// Removes all entries, in their order.
    pub(crate) fn take(&mut self) -> VecDeque<T> {
        self.lane = None;
        std::mem::take(self.fifo())
    }
}
