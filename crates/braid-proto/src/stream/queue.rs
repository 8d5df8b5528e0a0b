use std::collections::VecDeque;

use super::{Lane, Priority, StreamKey};

/// Capacity that an empty lane may keep.
const KEEP_CAPACITY: usize = 64;

/// What waits to be sent, lane by lane: the highest priority first, equals in turns, each lane in its own order.
/// [BQ-53], [BQ-54]
#[derive(Clone, Debug)]
pub struct LaneQueue<T> {
    /// In the order of sending: descending priority; among equals the one that was served last is last. Empty lanes
    /// are left out, but for the last that there was.
    lanes: VecDeque<(Lane, VecDeque<T>)>,
    len: usize,
}

impl<T> Default for LaneQueue<T> {
    fn default() -> Self {
        Self { lanes: VecDeque::new(), len: 0 }
    }
}

impl<T> LaneQueue<T> {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The queue of a lane, which is added behind those of its priority.
    fn lane(&mut self, lane: Lane) -> &mut VecDeque<T> {
        let at = match self.lanes.iter().position(|(other, _)| *other == lane) {
            Some(at) => at,
            None => {
                self.lanes.retain(|(_, queue)| !queue.is_empty());
                let at = self.lanes.partition_point(|(other, _)| other.priority >= lane.priority);
                self.lanes.insert(at, (lane, VecDeque::new()));
                at
            }
        };
        &mut self.lanes[at].1
    }

    /// Adds at the end of a lane.
    pub fn push_back(&mut self, lane: Lane, item: T) {
        self.len += 1;
        self.lane(lane).push_back(item);
    }

    /// Puts back at the front of a lane.
    pub fn push_front(&mut self, lane: Lane, item: T) {
        self.len += 1;
        self.lane(lane).push_front(item);
    }

    /// Moves all of `items`, which are of one lane, to its end.
    pub fn append(&mut self, lane: Lane, items: &mut VecDeque<T>) {
        self.len += items.len();
        let queue = self.lane(lane);
        if queue.is_empty() {
            std::mem::swap(queue, items);
        } else {
            queue.append(items);
        }
    }

    /// Takes the next one of the first lane whose front `accepts` takes. A lane that was served goes behind its
    /// equals.
    pub fn pop(&mut self, mut accepts: impl FnMut(Lane, &T) -> bool) -> Option<T> {
        let takes =
            |(lane, queue): &(Lane, VecDeque<T>)| queue.front().is_some_and(|item| accepts(*lane, item));
        let at = self.lanes.iter().position(takes)?;
        let item = self.lanes[at].1.pop_front()?;
        self.len -= 1;
        self.rotate(at);
        Some(item)
    }

    fn rotate(&mut self, at: usize) {
        let priority = self.lanes[at].0.priority;
        let end = self.lanes.partition_point(|(lane, _)| lane.priority >= priority);
        if self.lanes[at].1.is_empty() && self.lanes.len() > 1 {
            self.lanes.remove(at);
        } else if end > at + 1
            && let Some(lane) = self.lanes.remove(at)
        {
            self.lanes.insert(end - 1, lane);
        }
        if self.len == 0 && self.lanes.iter().any(|(_, queue)| queue.capacity() > KEEP_CAPACITY) {
            self.lanes = VecDeque::new(); // Ten thousand receivers of one burst must not keep its memory.
        }
    }

    /// Whether what waits has more than one lane.
    pub fn is_mixed(&self) -> bool {
        self.lanes.iter().filter(|(_, queue)| !queue.is_empty()).nth(1).is_some()
    }

    /// Whether anything waits for a stream.
    pub fn waits_on(&self, stream: StreamKey) -> bool {
        self.lanes.iter().any(|(lane, queue)| lane.stream == stream && !queue.is_empty())
    }

    /// The highest priority that waits.
    pub fn first_priority(&self) -> Option<Priority> {
        self.lanes.iter().find(|(_, queue)| !queue.is_empty()).map(|(lane, _)| lane.priority)
    }

    /// Drops what `keep` refuses; returns how many that were.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) -> usize {
        let before = self.len;
        for (_, queue) in &mut self.lanes {
            queue.retain(|item| keep(item));
        }
        self.len = self.lanes.iter().map(|(_, queue)| queue.len()).sum();
        before - self.len
    }

    /// Everything in the order of sending.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.len = 0;
        std::mem::take(&mut self.lanes).into_iter().flat_map(|(_, queue)| queue)
    }

    /// What waits in the order of sending.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.lanes.iter().flat_map(|(_, queue)| queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(stream: u32, priority: u16) -> Lane {
        Lane { stream: StreamKey::bidi(stream), priority: Priority::new(priority) }
    }

    fn all(queue: &mut LaneQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop(|_, _| true)).collect()
    }

    /// [BQ-53]
    #[test]
    fn the_highest_priority_is_first_and_equals_take_turns() {
        let mut queue = LaneQueue::default();
        for n in 0..3 {
            queue.push_back(lane(1, 5), 10 + n);
            queue.push_back(lane(2, 5), 20 + n);
            queue.push_back(lane(1, 9), 90 + n);
        }
        assert!(queue.is_mixed() && queue.first_priority() == Some(Priority::new(9)));
        assert_eq!(all(&mut queue), [90, 91, 92, 10, 20, 11, 21, 12, 22]);
        assert!(queue.is_empty() && !queue.is_mixed());
    }

    /// [BQ-55]
    #[test]
    fn a_lane_that_is_stuck_stops_itself_alone() {
        let mut queue = LaneQueue::default();
        queue.push_back(lane(1, 9), 1);
        queue.push_back(lane(2, 5), 2);
        let stuck = |at: Lane, _: &u32| at.stream != StreamKey::bidi(1);
        assert_eq!(queue.pop(stuck), Some(2));
        assert_eq!((queue.pop(stuck), queue.len()), (None, 1));
        queue.push_front(lane(1, 9), 0);
        assert_eq!(all(&mut queue), [0, 1]);
    }

    #[test]
    fn what_is_dropped_and_drained_is_counted() {
        let mut queue = LaneQueue::default();
        queue.append(lane(0, 1), &mut (0..10).collect());
        queue.append(lane(0, 2), &mut (10..20).collect());
        assert_eq!(queue.retain(|n| n % 2 == 0), 10);
        assert_eq!(queue.len(), 10);
        assert_eq!(queue.drain().collect::<Vec<_>>(), [10, 12, 14, 16, 18, 0, 2, 4, 6, 8]);
        assert!(queue.is_empty());
    }

    /// [BQ-54]
    #[test]
    fn random_operations_agree_with_a_sorted_list() {
        let mut rng = fastrand::Rng::with_seed(11);
        let mut queue = LaneQueue::default();
        // A list in the order of arrival.
        let mut model: Vec<(Lane, u32)> = Vec::new();
        for n in 0..20_000 {
            if rng.u8(0..5) < 3 {
                let to = lane(rng.u32(0..4), rng.u16(0..3));
                queue.push_back(to, n);
                model.push((to, n));
            } else {
                let blocked = StreamKey::bidi(rng.u32(0..4));
                let popped = queue.pop(|at, _| at.stream != blocked);
                let open = model.iter().filter(|(at, _)| at.stream != blocked);
                let best = open.map(|(at, _)| at.priority).max();
                let Some(item) = popped else {
                    assert_eq!(best, None);
                    continue;
                };
                let at = model.iter().position(|(_, other)| *other == item).expect("it was pushed");
                let (of, _) = model.remove(at);
                assert_eq!(Some(of.priority), best, "something more urgent waited");
                assert!(model[..at].iter().all(|(other, _)| *other != of), "its lane has an older one");
            }
            assert_eq!(queue.len(), model.len());
        }
    }
}
