use crate::stream::{Lane, Priority, StreamKey};
use crate::work;

/// Payloads up to this many bytes are not held back for the bytes on their way: they are bounded by their number.
const SMALL_PAYLOAD: usize = 4096;

/// How the messages on their way are spread over the lanes, so that one that is stuck does not hold all of the
/// Receive Maximum. [BQ-24]
#[derive(Clone, Debug, Default)]
pub(super) struct Quota {
    /// Every lane that was used since the connection began, or is in use where there were many, in ascending order;
    /// mostly one.
    lanes: Vec<Share>,
}

#[derive(Clone, Debug)]
struct Share {
    lane: Lane,
    messages: usize,
    payload_bytes: usize,
}

/// What all lanes together have on their way, and may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) messages: usize,
    pub(crate) payload_bytes: usize,
}

/// Of more lanes than this one that is empty is forgotten.
const LANES_KEPT: usize = 64;

/// What a lane leaves free for more urgent ones, which may not be there yet: the first alarm must not wait for the
/// acknowledgement of bulk.
fn reserve(lane: Lane, messages: usize) -> usize {
    if lane.priority > Priority::DEFAULT { 0 } else { messages / 16 }
}

impl Quota {
    fn find(&self, lane: Lane) -> Result<usize, usize> {
        work::step();
        self.lanes.binary_search_by_key(&lane, |share| share.lane)
    }

    pub(super) fn add(&mut self, lane: Lane, messages: usize, payload_bytes: usize) {
        match self.find(lane) {
            Ok(at) => {
                self.lanes[at].messages += messages;
                self.lanes[at].payload_bytes += payload_bytes;
            }
            Err(at) => self.lanes.insert(at, Share { lane, messages, payload_bytes }),
        }
    }

    pub(super) fn remove(&mut self, lane: Lane, messages: usize, payload_bytes: usize) {
        let Ok(at) = self.find(lane) else { return };
        self.lanes[at].messages -= messages;
        self.lanes[at].payload_bytes -= payload_bytes;
        if self.lanes[at].is_empty() && self.lanes.len() > LANES_KEPT {
            self.lanes.remove(at);
        }
    }

    /// The lanes of a stream that has ended need no room any more.
    pub(super) fn end_stream(&mut self, stream: StreamKey) {
        let start = self.lanes.partition_point(|share| share.lane.stream < stream);
        let end = self.lanes.partition_point(|share| share.lane.stream <= stream);
        let used: Vec<_> = self.lanes[start..end].iter().filter(|share| !share.is_empty()).cloned().collect();
        self.lanes.splice(start..end, used);
    }

    pub(super) fn clear(&mut self) {
        self.lanes.clear();
    }

    /// Whether a lane may have one more of this size on its way, while all have `used`.
    ///
    /// `has_others`: other streams are open that may come to have a lane.
    ///
    /// A lane alone may use everything. Of several each may use eight times of what it leaves free, so that the
    /// next one finds room, however many are stuck; and each may always have one, if there is room at all.
    pub(super) fn allows(
        &self,
        lane: Lane,
        has_others: bool,
        payload_len: usize,
        used: Limits,
        limits: Limits,
    ) -> bool {
        let free = limits.messages.saturating_sub(used.messages);
        if free <= reserve(lane, limits.messages) {
            return false;
        }
        let own = self.find(lane).ok().map(|at| &self.lanes[at]);
        let is_alone = !has_others && self.lanes.len() == usize::from(own.is_some());
        let (messages, payload_bytes) = own.map_or((0, 0), |share| (share.messages, share.payload_bytes));
        if !is_alone && messages > 0 && messages >= (free - 1).saturating_mul(8) {
            return false;
        }
        payload_len <= SMALL_PAYLOAD || payload_bytes == 0 || used.payload_bytes <= limits.payload_bytes
    }
}

impl Share {
    const fn is_empty(&self) -> bool {
        self.messages == 0 && self.payload_bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(n: u32) -> Lane {
        Lane { stream: StreamKey::bidi(n), priority: Priority::new(200) }
    }

    /// Fills the lanes one after the other; how many each got.
    fn fill(lanes: u32, maximum: usize) -> Vec<usize> {
        let mut quota = Quota::default();
        (0..lanes).for_each(|n| quota.add(lane(n), 0, 0));
        let limits = Limits { messages: maximum, payload_bytes: 100 };
        let mut messages = 0;
        let one = |n| {
            let before = messages;
            while quota.allows(lane(n), false, 1, Limits { messages, payload_bytes: 0 }, limits) {
                quota.add(lane(n), 1, 0);
                messages += 1;
            }
            messages - before
        };
        (0..lanes).map(one).collect()
    }

    /// [BQ-24]
    #[test]
    fn a_lane_leaves_room_for_the_next() {
        assert_eq!(fill(1, 1024), [1024], "alone");
        assert_eq!(fill(3, 1024), [910, 101, 11]);
        assert_eq!(fill(3, 20), [17, 2, 1]);
        assert_eq!(fill(2, 2), [1, 1]);
        assert_eq!(fill(2, 1), [1, 0]);
    }

    #[test]
    fn what_is_not_urgent_leaves_room_for_what_is() {
        let lane = |priority| Lane { stream: StreamKey::CONTROL, priority: Priority::new(priority) };
        let quota = Quota::default();
        for (maximum, most) in [(1, 1), (15, 15), (16, 15), (100, 94), (1024, 960)] {
            let limits = Limits { messages: maximum, payload_bytes: 0 };
            let allows = |priority, messages| {
                quota.allows(lane(priority), false, 1, Limits { messages, payload_bytes: 0 }, limits)
            };
            assert!(allows(100, most - 1) && (most == maximum || !allows(100, most)), "{maximum}");
            assert!(allows(101, maximum - 1) && !allows(101, maximum));
        }
    }

    #[test]
    fn large_payloads_on_their_way_do_not_stop_small_ones_or_other_lanes() {
        let mut quota = Quota::default();
        quota.add(lane(0), 1, 200_000);
        let (used, limits) =
            (Limits { messages: 1, payload_bytes: 200_000 }, Limits { messages: 10, payload_bytes: 100_000 });
        assert!(!quota.allows(lane(0), false, 5000, used, limits));
        assert!(quota.allows(lane(0), false, SMALL_PAYLOAD, used, limits));
        assert!(quota.allows(lane(1), false, 5000, used, limits));
    }
}
