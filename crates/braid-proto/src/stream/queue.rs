use std::collections::VecDeque;

use super::{Lane, Priority, StreamKey};

/// Capacity that an empty lane keeps where there are few lanes, and where there are many: a connection of one lane
/// needs no allocation for each burst, and ten thousand receivers of one burst must not keep its memory.
const KEEP_CAPACITY: [usize; 2] = [64, 4];
const FEW_LANES: usize = 4;
/// Empty lanes that are kept beside those in which something waits.
const KEEP_LANES: usize = 64;
/// Priorities that are kept though nothing of them waits.
const KEEP_TURNS: usize = 8;

/// What waits to be sent, lane by lane: the highest priority first, equals in turns, each lane in its own order.
/// [BQ-53], [BQ-54]
///
/// Adding and taking cost the same beside few and many lanes, but for those of which `accepts` refuses the front.
#[derive(Clone, Debug)]
pub struct LaneQueue<T> {
    /// The lanes, in no order; empty ones stay for a while.
    slots: Vec<Slot<T>>,
    /// The index of each lane's slot, in the order of lanes.
    places: Vec<(Lane, usize)>,
    /// Descending priority.
    turns: Vec<Turns>,
    /// How many lanes have something waiting.
    waiting: usize,
    len: usize,
}

#[derive(Clone, Debug)]
struct Slot<T> {
    lane: Lane,
    queue: VecDeque<T>,
}

/// The lanes of one priority in which something waits.
#[derive(Clone, Debug)]
struct Turns {
    priority: Priority,
    /// Indices of slots; the one that was served last is last.
    slots: VecDeque<usize>,
}

impl<T> Default for LaneQueue<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), places: Vec::new(), turns: Vec::new(), waiting: 0, len: 0 }
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

    /// Adds at the end of a lane.
    pub fn push_back(&mut self, lane: Lane, item: T) {
        self.len += 1;
        self.wait(lane).push_back(item);
    }

    /// Puts back at the front of a lane.
    pub fn push_front(&mut self, lane: Lane, item: T) {
        self.len += 1;
        self.wait(lane).push_front(item);
    }

    /// Moves all of `items`, which are of one lane, to its end.
    pub fn append(&mut self, lane: Lane, items: &mut VecDeque<T>) {
        if items.is_empty() {
            return;
        }
        self.len += items.len();
        let queue = self.wait(lane);
        if queue.is_empty() {
            std::mem::swap(queue, items);
        } else {
            queue.append(items);
        }
    }

    /// The queue of a lane, to which something is added. If it was empty, its turn comes after its equals'.
    fn wait(&mut self, lane: Lane) -> &mut VecDeque<T> {
        let at = self.slot(lane);
        if self.slots[at].queue.is_empty() {
            self.waiting += 1;
            let turns = match self.turns.binary_search_by(|turns| lane.priority.cmp(&turns.priority)) {
                Ok(found) => found,
                Err(place) => {
                    self.turns.insert(place, Turns { priority: lane.priority, slots: VecDeque::new() });
                    place
                }
            };
            self.turns[turns].slots.push_back(at);
        }
        &mut self.slots[at].queue
    }

    fn slot(&mut self, lane: Lane) -> usize {
        if let [only] = self.slots.as_slice()
            && only.lane == lane
        {
            return 0;
        }
        match self.places.binary_search_by_key(&lane, |(lane, _)| *lane) {
            Ok(found) => self.places[found].1,
            Err(_) => self.add_lane(lane),
        }
    }

    fn add_lane(&mut self, lane: Lane) -> usize {
        if self.slots.len() > 2 * self.waiting + KEEP_LANES {
            self.forget_empty_lanes();
        }
        let at = self.slots.len();
        self.slots.push(Slot { lane, queue: VecDeque::new() });
        let place = self.places.partition_point(|(other, _)| *other < lane);
        self.places.insert(place, (lane, at));
        at
    }

    fn forget_empty_lanes(&mut self) {
        let mut moved = vec![None; self.slots.len()];
        let mut kept = 0;
        for (slot, to) in self.slots.iter().zip(&mut moved) {
            if !slot.queue.is_empty() {
                *to = Some(kept);
                kept += 1;
            }
        }
        self.slots.retain(|slot| !slot.queue.is_empty());
        self.places = std::mem::take(&mut self.places)
            .into_iter()
            .filter_map(|(lane, at)| moved[at].map(|at| (lane, at)))
            .collect();
        let turns = self.turns.iter_mut().flat_map(|turns| &mut turns.slots);
        turns.for_each(|at| *at = moved[*at].unwrap_or_default());
    }

    /// Takes the next one of the first lane whose front `accepts` takes. A lane that was served goes behind its
    /// equals.
    pub fn pop(&mut self, mut accepts: impl FnMut(Lane, &T) -> bool) -> Option<T> {
        let slots = &self.slots;
        let mut takes = |at: &usize| {
            let Slot { lane, queue } = &slots[*at];
            queue.front().is_some_and(|item| accepts(*lane, item))
        };
        let mut all = self.turns.iter().enumerate();
        let (of, turn) =
            all.find_map(|(of, turns)| turns.slots.iter().position(&mut takes).map(|turn| (of, turn)))?;
        let at = self.turns[of].slots.remove(turn)?;
        let item = self.slots[at].queue.pop_front()?;
        self.len -= 1;
        if self.slots[at].queue.is_empty() {
            self.rest(of, at);
        } else {
            self.turns[of].slots.push_back(at);
        }
        Some(item)
    }

    /// Takes the front of the least urgent lane that `accepts` takes, of equals of the one in which most waits: what
    /// makes room at the least cost. Nobody's turn changes.
    pub fn pop_least(&mut self, accepts: impl FnMut(Lane) -> bool) -> Option<(Lane, T)> {
        let (of, at) = self.find_least(accepts)?;
        let item = self.slots[at].queue.pop_front()?;
        let lane = self.slots[at].lane;
        self.len -= 1;
        if self.slots[at].queue.is_empty() {
            self.turns[of].slots.retain(|slot| *slot != at);
            self.rest(of, at);
        }
        Some((lane, item))
    }

    /// The lane of which [`pop_least`](Self::pop_least) would take the front.
    pub fn least(&self, accepts: impl FnMut(Lane) -> bool) -> Option<Lane> {
        self.find_least(accepts).map(|(_, at)| self.slots[at].lane)
    }

    fn find_least(&self, mut accepts: impl FnMut(Lane) -> bool) -> Option<(usize, usize)> {
        let slots = &self.slots;
        self.turns.iter().enumerate().rev().find_map(|(of, turns)| {
            let accepted = turns.slots.iter().filter(|at| accepts(slots[**at].lane));
            accepted.max_by_key(|at| slots[**at].queue.len()).map(|at| (of, *at))
        })
    }

    /// Nothing waits in this lane any more.
    fn rest(&mut self, turns: usize, at: usize) {
        self.waiting -= 1;
        if self.turns[turns].slots.is_empty() && self.turns.len() > KEEP_TURNS {
            self.turns.remove(turns);
        }
        let keep = KEEP_CAPACITY[usize::from(self.slots.len() > FEW_LANES)];
        let queue = &mut self.slots[at].queue;
        if queue.capacity() > keep {
            *queue = VecDeque::new();
        }
    }

    /// Whether what waits has more than one lane.
    pub fn is_mixed(&self) -> bool {
        self.waiting > 1
    }

    /// Whether anything waits for a stream.
    pub fn waits_on(&self, stream: StreamKey) -> bool {
        self.of_stream(stream).iter().any(|(_, at)| !self.slots[*at].queue.is_empty())
    }

    /// The places of a stream's lanes.
    fn of_stream(&self, stream: StreamKey) -> &[(Lane, usize)] {
        let begin = self.places.partition_point(|(lane, _)| lane.stream < stream);
        let end = self.places.partition_point(|(lane, _)| lane.stream <= stream);
        &self.places[begin..end]
    }

    /// The highest priority that waits.
    pub fn first_priority(&self) -> Option<Priority> {
        self.turns.iter().find(|turns| !turns.slots.is_empty()).map(|turns| turns.priority)
    }

    /// Drops what `keep` refuses; returns how many that were.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) -> usize {
        let before = self.len;
        for slot in &mut self.slots {
            slot.queue.retain(|item| keep(item));
        }
        for turns in &mut self.turns {
            turns.slots.retain(|at| !self.slots[*at].queue.is_empty());
        }
        self.waiting = self.turns.iter().map(|turns| turns.slots.len()).sum();
        self.len = self.slots.iter().map(|slot| slot.queue.len()).sum();
        before - self.len
    }

    /// Everything that waits for a stream, in the order of sending. Costs what the stream has, beside however many others.
    pub fn take_stream(&mut self, stream: StreamKey) -> impl Iterator<Item = T> + use<T> {
        // Lanes of one stream stand in ascending priority.
        let slots: Vec<_> = self.of_stream(stream).iter().rev().map(|(_, at)| *at).collect();
        let mut taken = Vec::with_capacity(slots.len());
        for at in slots {
            let Slot { lane, queue } = &mut self.slots[at];
            if queue.is_empty() {
                continue;
            }
            self.len -= queue.len();
            taken.push(std::mem::take(queue));
            let place = self.turns.binary_search_by(|turns| lane.priority.cmp(&turns.priority));
            if let Ok(of) = place {
                self.turns[of].slots.retain(|slot| *slot != at);
                self.rest(of, at);
            }
        }
        taken.into_iter().flatten()
    }

    /// Everything in the order of sending.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        let Self { mut slots, turns, .. } = std::mem::take(self);
        let order = turns.into_iter().flat_map(|turns| turns.slots);
        order.flat_map(move |at| std::mem::take(&mut slots[at].queue))
    }

    /// What waits in the order of sending.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let order = self.turns.iter().flat_map(|turns| &turns.slots);
        order.flat_map(|at| &self.slots[*at].queue)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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

    #[test]
    fn the_lanes_of_one_stream_are_taken_together() {
        let mut queue = LaneQueue::default();
        for (stream, priority, item) in [(1, 5, 10), (2, 5, 20), (1, 9, 11), (1, 5, 12), (2, 9, 21)] {
            queue.push_back(lane(stream, priority), item);
        }
        assert_eq!(queue.take_stream(StreamKey::bidi(1)).collect::<Vec<_>>(), [11, 10, 12]);
        assert_eq!(queue.take_stream(StreamKey::bidi(1)).count(), 0);
        assert!(!queue.waits_on(StreamKey::bidi(1)) && queue.len() == 2 && queue.is_mixed());
        queue.push_back(lane(1, 9), 13);
        assert_eq!(all(&mut queue), [21, 13, 20]);
    }

    /// [BQ-54]
    #[test]
    fn random_operations_agree_with_a_sorted_list() {
        let mut rng = fastrand::Rng::with_seed(11);
        let mut queue = LaneQueue::default();
        // A list in the order of arrival.
        let mut model: Vec<(Lane, u32)> = Vec::new();
        for n in 0..20_000 {
            let dice = rng.u8(0..20);
            if dice < 11 {
                // Streams come and go.
                let to = lane(n / 50 + rng.u32(0..4), rng.u16(0..3));
                queue.push_back(to, n);
                model.push((to, n));
            } else if dice == 11 {
                let spared = StreamKey::bidi(n / 50 + rng.u32(0..4));
                let named = queue.least(|at| at.stream != spared);
                let popped = queue.pop_least(|at| at.stream != spared);
                assert_eq!(named, popped.as_ref().map(|(lane, _)| *lane));
                let mut lengths = BTreeMap::new();
                let open = model.iter().filter(|(at, _)| at.stream != spared);
                open.for_each(|(at, _)| *lengths.entry((at.priority, at.stream)).or_insert(0) += 1);
                let least = lengths.keys().next().map(|(priority, _)| *priority);
                let equals = lengths.iter().filter(|((priority, _), _)| Some(*priority) == least);
                let longest = equals.map(|(_, length)| length).max();
                let Some((lane, item)) = popped else {
                    assert_eq!(least, None);
                    continue;
                };
                let at = model.iter().position(|(_, other)| *other == item).expect("it was pushed");
                let of = model[at].0;
                assert_eq!(lane, of);
                assert_eq!(Some(of.priority), least, "something less urgent waited");
                assert_eq!(lengths.get(&(of.priority, of.stream)), longest);
                model.remove(at);
                assert!(model[..at].iter().all(|(other, _)| *other != of), "its lane has an older one");
            } else {
                let blocked = StreamKey::bidi(n / 50 + rng.u32(0..4));
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
            assert!(
                queue.iter().count() == model.len() && queue.slots.len() <= 3 * model.len() + KEEP_LANES + 1
            );
        }
    }
}
