//! Send queue of a connection: items of many lanes, ordered by priority.

use std::collections::{BTreeMap, VecDeque};

use crate::types::{Lane, Priority, StreamKey};
use crate::work;

/// Capacity that an empty lane keeps, in a queue of up to [`FEW_LANES`] lanes and in a larger one: a connection with
/// one lane must not allocate for each burst, and ten thousand receivers of one burst must not keep its memory.
const KEEP_CAPACITY: [usize; 2] = [64, 4];
const FEW_LANES: usize = 4;
/// Maximum number of empty lanes, beyond twice the number of the others.
const KEEP_LANES: usize = 64;
/// Number of priority levels up to which empty ones are kept.
const KEEP_LEVELS: usize = 8;

/// Priority queue of lanes: strict priority, round-robin among lanes of one priority, FIFO within a lane.
/// [BQ-53], [BQ-54]
///
/// Adding and taking cost the same with any number of lanes, apart from lanes whose front `accepts` refuses: once in a
/// round of [`pop_next`](Self::pop_next).
#[derive(Clone, Debug)]
pub struct LaneQueue<T> {
    /// Lanes in no order, including some empty ones.
    lanes: Vec<LaneItems<T>>,
    /// Indices into `lanes`, ordered by lane.
    by_lane: Vec<(Lane, usize)>,
    /// Boxed: most queues have one level, and a map allocates for eleven.
    levels: BTreeMap<Priority, Box<PriorityLevel>>,
    /// Priority above which no lane is left to be asked in this round.
    next: Priority,
    /// Lower bound of the priorities of lanes that were refused in this round; `None`: there are none.
    refused: Option<Priority>,
    /// Number of lanes that are not empty.
    nonempty: usize,
    len: usize,
}

/// Items of one lane.
#[derive(Clone, Debug)]
struct LaneItems<T> {
    lane: Lane,
    queue: VecDeque<T>,
}

/// Lanes of one priority that are not empty, in round-robin order, as indices into [`LaneQueue::lanes`].
#[derive(Clone, Debug, Default)]
struct PriorityLevel {
    /// Lanes that were refused in this round, which come before `turns`: they keep their turn.
    refused: VecDeque<usize>,
    /// The lane served last is last.
    turns: VecDeque<usize>,
}

impl PriorityLevel {
    fn order(&self) -> impl Iterator<Item = usize> {
        self.refused.iter().chain(&self.turns).copied()
    }

    fn len(&self) -> usize {
        self.refused.len() + self.turns.len()
    }

    fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        self.refused.retain(|at| keep(*at));
        self.turns.retain(|at| keep(*at));
    }

    /// Puts the refused lanes back.
    fn begin_round(&mut self) {
        while let Some(at) = self.refused.pop_back() {
            work::step();
            self.turns.push_front(at);
        }
    }

    /// Removes the first lane that `accepts` admits, of those that were not refused in this round.
    fn take(&mut self, mut accepts: impl FnMut(usize) -> bool) -> Option<usize> {
        while let Some(at) = self.turns.pop_front() {
            work::step();
            if accepts(at) {
                return Some(at);
            }
            self.refused.push_back(at);
        }
        None
    }
}

impl<T> Default for LaneQueue<T> {
    fn default() -> Self {
        Self {
            lanes: Vec::new(),
            by_lane: Vec::new(),
            levels: BTreeMap::new(),
            next: Priority::HIGHEST,
            refused: None,
            nonempty: 0,
            len: 0,
        }
    }
}

impl<T> LaneQueue<T> {
    /// Number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends an item to a lane.
    pub fn push_back(&mut self, lane: Lane, item: T) {
        self.len += 1;
        self.queue_mut(lane).push_back(item);
    }

    /// Puts an item back at the front of a lane.
    pub fn push_front(&mut self, lane: Lane, item: T) {
        self.len += 1;
        self.queue_mut(lane).push_front(item);
    }

    /// Appends all of `items` to a lane.
    pub fn append(&mut self, lane: Lane, items: &mut VecDeque<T>) {
        if items.is_empty() {
            return;
        }
        self.len += items.len();
        let queue = self.queue_mut(lane);
        if queue.is_empty() {
            std::mem::swap(queue, items);
        } else {
            queue.append(items);
        }
    }

    /// Queue of a lane that gets an item. A lane that was empty is served after the others of its priority.
    fn queue_mut(&mut self, lane: Lane) -> &mut VecDeque<T> {
        let at = self.index_of(lane);
        if self.lanes[at].queue.is_empty() {
            self.nonempty += 1;
            self.next = self.next.max(lane.priority);
            self.levels.entry(lane.priority).or_default().turns.push_back(at);
        }
        &mut self.lanes[at].queue
    }

    /// Index of a lane in `lanes`; a new one is added.
    fn index_of(&mut self, lane: Lane) -> usize {
        if let [only] = self.lanes.as_slice()
            && only.lane == lane
        {
            return 0;
        }
        match self.by_lane.binary_search_by_key(&lane, |(lane, _)| *lane) {
            Ok(found) => self.by_lane[found].1,
            Err(_) => self.add_lane(lane),
        }
    }

    fn add_lane(&mut self, lane: Lane) -> usize {
        if self.lanes.len() > 2 * self.nonempty + KEEP_LANES {
            self.remove_empty_lanes();
        }
        let at = self.lanes.len();
        self.lanes.push(LaneItems { lane, queue: VecDeque::new() });
        let sorted = self.by_lane.partition_point(|(other, _)| *other < lane);
        self.by_lane.insert(sorted, (lane, at));
        at
    }

    fn remove_empty_lanes(&mut self) {
        let mut moved = vec![None; self.lanes.len()];
        let mut kept = 0;
        for (items, to) in self.lanes.iter().zip(&mut moved) {
            if !items.queue.is_empty() {
                *to = Some(kept);
                kept += 1;
            }
        }
        self.lanes.retain(|items| !items.queue.is_empty());
        self.by_lane = std::mem::take(&mut self.by_lane)
            .into_iter()
            .filter_map(|(lane, at)| moved[at].map(|at| (lane, at)))
            .collect();
        let levels = self.levels.values_mut();
        let indices = levels.flat_map(|level| level.refused.iter_mut().chain(&mut level.turns));
        indices.for_each(|at| *at = moved[*at].unwrap_or_default());
    }

    /// Takes the front of the first lane for which `accepts` is true. The lane is then served after the others of its
    /// priority.
    pub fn pop(&mut self, accepts: impl FnMut(Lane, &T) -> bool) -> Option<T> {
        self.begin_round();
        self.pop_next(accepts)
    }

    /// Begins a round: each lane may be asked again.
    pub fn begin_round(&mut self) {
        self.next = Priority::HIGHEST;
        if let Some(lowest) = self.refused.take() {
            self.levels.range_mut(lowest..).for_each(|(_, level)| level.begin_round());
        }
    }

    /// Takes as [`pop`](Self::pop) does, but asks no lane that was refused in this round. A lane without others is
    /// asked again.
    pub fn pop_next(&mut self, mut accepts: impl FnMut(Lane, &T) -> bool) -> Option<T> {
        if !self.is_mixed() {
            self.begin_round();
        }
        // Most queues have one lane, which needs no turns.
        if let [LaneItems { lane, queue }] = self.lanes.as_mut_slice() {
            if !accepts(*lane, queue.front()?) {
                return None;
            }
            let (priority, item) = (lane.priority, queue.pop_front()?);
            self.len -= 1;
            if queue.is_empty() {
                self.remove_turn(priority, 0);
            }
            return Some(item);
        }
        for (priority, level) in self.levels.range_mut(..=self.next).rev() {
            work::step();
            let (priority, lanes) = (*priority, &mut self.lanes);
            self.next = priority;
            let taken = level.take(|at| {
                let LaneItems { lane, queue } = &lanes[at];
                queue.front().is_some_and(|item| accepts(*lane, item))
            });
            if !level.refused.is_empty() {
                self.refused = Some(self.refused.map_or(priority, |lowest| lowest.min(priority)));
            }
            let Some(at) = taken else { continue };
            let queue = &mut lanes[at].queue;
            let item = queue.pop_front()?;
            self.len -= 1;
            if queue.is_empty() {
                self.note_empty(priority, at);
            } else {
                level.turns.push_back(at);
            }
            return Some(item);
        }
        if !self.is_mixed() {
            self.begin_round();
        }
        None
    }

    /// Takes the front of the longest among the lanes of the lowest priority that `accepts` admits, to make room. The
    /// round-robin order stays.
    pub fn evict(&mut self, accepts: impl FnMut(Lane) -> bool) -> Option<(Lane, T)> {
        let at = self.find_victim(accepts)?;
        let LaneItems { lane, queue } = &mut self.lanes[at];
        let (lane, item) = (*lane, queue.pop_front()?);
        self.len -= 1;
        if queue.is_empty() {
            self.remove_turn(lane.priority, at);
        }
        Some((lane, item))
    }

    /// Lane of which [`evict`](Self::evict) would take the front.
    pub fn victim(&self, accepts: impl FnMut(Lane) -> bool) -> Option<Lane> {
        self.find_victim(accepts).map(|at| self.lanes[at].lane)
    }

    /// Index of the lane from which [`evict`](Self::evict) takes.
    fn find_victim(&self, mut accepts: impl FnMut(Lane) -> bool) -> Option<usize> {
        let lanes = &self.lanes;
        self.levels.values().find_map(|level| {
            let accepted = level.order().filter(|at| accepts(lanes[*at].lane));
            accepted.max_by_key(|at| lanes[*at].queue.len())
        })
    }

    /// Removes a lane that became empty from its level.
    fn remove_turn(&mut self, priority: Priority, at: usize) {
        if let Some(level) = self.levels.get_mut(&priority) {
            level.retain(|other| other != at);
        }
        self.note_empty(priority, at);
    }

    /// Notes that a lane became empty, which its level does not have any more.
    fn note_empty(&mut self, priority: Priority, at: usize) {
        self.nonempty -= 1;
        if self.levels.len() > KEEP_LEVELS && self.levels.get(&priority).is_some_and(|level| level.len() == 0)
        {
            self.levels.remove(&priority);
        }
        let keep = KEEP_CAPACITY[usize::from(self.lanes.len() > FEW_LANES)];
        let queue = &mut self.lanes[at].queue;
        if queue.capacity() > keep {
            *queue = VecDeque::new();
        }
    }

    /// Whether more than one lane has items.
    pub fn is_mixed(&self) -> bool {
        self.nonempty > 1
    }

    /// Whether a stream has items.
    pub fn waits_on(&self, stream: StreamKey) -> bool {
        self.stream_lanes(stream).iter().any(|(_, at)| !self.lanes[*at].queue.is_empty())
    }

    /// Lanes of a stream, with their indices into `lanes`.
    fn stream_lanes(&self, stream: StreamKey) -> &[(Lane, usize)] {
        let begin = self.by_lane.partition_point(|(lane, _)| lane.stream < stream);
        let end = self.by_lane.partition_point(|(lane, _)| lane.stream <= stream);
        &self.by_lane[begin..end]
    }

    /// Highest priority with items.
    pub fn first_priority(&self) -> Option<Priority> {
        let mut levels = self.levels.iter().rev();
        levels.find(|(_, level)| level.len() > 0).map(|(priority, _)| *priority)
    }

    /// Drops the items that `keep` refuses, and returns their number.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) -> usize {
        let before = self.len;
        for items in &mut self.lanes {
            items.queue.retain(|item| keep(item));
        }
        for level in self.levels.values_mut() {
            level.retain(|at| !self.lanes[at].queue.is_empty());
        }
        if self.levels.len() > KEEP_LEVELS {
            self.levels.retain(|_, level| level.len() > 0);
        }
        self.nonempty = self.levels.values().map(|level| level.len()).sum();
        self.len = self.lanes.iter().map(|items| items.queue.len()).sum();
        before - self.len
    }

    /// Takes all items of a stream, in the order of sending. The cost depends on this stream only.
    pub fn take_stream(&mut self, stream: StreamKey) -> impl Iterator<Item = T> + use<T> {
        // Lanes of one stream are in ascending priority.
        let lanes: Vec<_> = self.stream_lanes(stream).iter().rev().map(|(_, at)| *at).collect();
        let mut taken = Vec::with_capacity(lanes.len());
        for at in lanes {
            let LaneItems { lane, queue } = &mut self.lanes[at];
            if queue.is_empty() {
                continue;
            }
            self.len -= queue.len();
            taken.push(std::mem::take(queue));
            let priority = lane.priority;
            self.remove_turn(priority, at);
        }
        taken.into_iter().flatten()
    }

    /// Takes all items, in the order of sending.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        let Self { mut lanes, levels, .. } = std::mem::take(self);
        let order = levels.into_values().rev().flat_map(|level| level.refused.into_iter().chain(level.turns));
        order.flat_map(move |at| std::mem::take(&mut lanes[at].queue))
    }

    /// Lanes with items, in the order of sending: the item that is next, and the number of all.
    pub fn lanes(&self) -> impl Iterator<Item = (Lane, &T, usize)> {
        let order = self.levels.values().rev().flat_map(|level| level.order());
        order.filter_map(|at| {
            let LaneItems { lane, queue } = &self.lanes[at];
            Some((*lane, queue.front()?, queue.len()))
        })
    }

    /// Items in the order of sending.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let order = self.levels.values().rev().flat_map(|level| level.order());
        order.flat_map(|at| &self.lanes[at].queue)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn lane(stream: u32, priority: u16) -> Lane {
        Lane { stream: StreamKey::bidi(stream), priority: Priority::new(priority) }
    }

    fn all(queue: &mut LaneQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop(|_, _| true)).collect()
    }

    /// [BQ-53]
    #[test]
    fn strict_priority_and_round_robin_among_equals() {
        let mut queue = LaneQueue::default();
        for n in 0..3 {
            queue.push_back(lane(1, 5), 10 + n);
            queue.push_back(lane(2, 5), 20 + n);
            queue.push_back(lane(1, 9), 90 + n);
        }
        assert!(queue.is_mixed() && queue.first_priority() == Some(Priority::new(9)));
        let lanes: Vec<_> = queue.lanes().map(|(lane, next, len)| (lane, *next, len)).collect();
        assert_eq!(lanes, [(lane(1, 9), 90, 3), (lane(1, 5), 10, 3), (lane(2, 5), 20, 3)]);
        assert_eq!(all(&mut queue), [90, 91, 92, 10, 20, 11, 21, 12, 22]);
        assert!(queue.is_empty() && !queue.is_mixed());
    }

    /// [BQ-55]
    #[test]
    fn a_blocked_lane_does_not_block_others() {
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
    fn retain_and_drain_keep_the_count() {
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
        // Model: a list in the order of arrival.
        let mut model: Vec<(Lane, u32)> = Vec::new();
        for n in 0..20_000 {
            let dice = rng.u8(0..20);
            if dice < 11 {
                // Streams begin and end.
                let to = lane(n / 50 + rng.u32(0..4), rng.u16(0..3));
                queue.push_back(to, n);
                model.push((to, n));
            } else if dice == 11 {
                let spared = StreamKey::bidi(n / 50 + rng.u32(0..4));
                let named = queue.victim(|at| at.stream != spared);
                let popped = queue.evict(|at| at.stream != spared);
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
                queue.iter().count() == model.len() && queue.lanes.len() <= 3 * model.len() + KEEP_LANES + 1
            );
        }
    }

    /// Naive model of rounds: lanes in the order of their turns, whatever their priorities.
    #[derive(Default)]
    struct Rounds {
        turns: Vec<(Lane, VecDeque<u32>)>,
        refused: BTreeSet<Lane>,
    }

    impl Rounds {
        /// Indices into `turns` in the order of sending.
        fn order(&self) -> Vec<usize> {
            let mut order: Vec<_> = (0..self.turns.len()).collect();
            order.sort_by_key(|at| std::cmp::Reverse(self.turns[*at].0.priority));
            order
        }

        fn queue(&mut self, lane: Lane) -> &mut VecDeque<u32> {
            let found = self.turns.iter().position(|(other, _)| *other == lane);
            let at = found.unwrap_or(self.turns.len());
            if found.is_none() {
                self.turns.push((lane, VecDeque::new()));
            }
            &mut self.turns[at].1
        }

        fn pop(&mut self, mut accepts: impl FnMut(Lane) -> bool) -> Option<u32> {
            if self.turns.len() <= 1 {
                self.refused.clear();
            }
            for at in self.order() {
                let lane = self.turns[at].0;
                if self.refused.contains(&lane) {
                    continue;
                }
                if accepts(lane) {
                    let (lane, mut queue) = self.turns.remove(at);
                    let item = queue.pop_front();
                    self.turns.push((lane, queue));
                    self.remove_empty();
                    return item;
                }
                if self.turns.len() > 1 {
                    self.refused.insert(lane);
                }
            }
            None
        }

        fn evict(&mut self, spared: StreamKey) -> Option<u32> {
            let open = self.order().into_iter().filter(|at| self.turns[*at].0.stream != spared);
            let longest = open.max_by_key(|at| {
                let (lane, queue) = &self.turns[*at];
                (std::cmp::Reverse(lane.priority), queue.len())
            })?;
            let item = self.turns[longest].1.pop_front();
            self.remove_empty();
            item
        }

        fn remove_empty(&mut self) {
            for (lane, _) in self.turns.extract_if(.., |(_, queue)| queue.is_empty()) {
                self.refused.remove(&lane);
            }
        }
    }

    /// [BQ-53], [BQ-55]
    #[test]
    fn rounds_ask_the_lanes_and_give_the_items_of_a_list_of_turns() {
        let mut rng = fastrand::Rng::with_seed(12);
        let (mut queue, mut model) = (LaneQueue::default(), Rounds::default());
        for n in 0..15_000_u32 {
            let to = lane(n / 200 + rng.u32(0..8), rng.u16(0..12) * rng.u16(0..2));
            match rng.u8(0..24) {
                0..9 => {
                    queue.push_back(to, n);
                    model.queue(to).push_back(n);
                }
                9 => {
                    queue.push_front(to, n);
                    model.queue(to).push_front(n);
                }
                10 => {
                    let spared = to.stream;
                    let evicted = queue.evict(|lane| lane.stream != spared).map(|(_, item)| item);
                    assert_eq!(evicted, model.evict(spared));
                }
                11 if n % 8 == 0 => {
                    let in_order =
                        model.order().into_iter().filter(|at| model.turns[*at].0.stream == to.stream);
                    let items: Vec<_> = in_order.flat_map(|at| model.turns[at].1.clone()).collect();
                    assert_eq!(queue.take_stream(to.stream).collect::<Vec<_>>(), items);
                    model.turns.retain(|(lane, _)| lane.stream != to.stream);
                    model.refused.retain(|lane| lane.stream != to.stream);
                }
                12 if n % 8 == 0 => {
                    queue.retain(|item| item % 3 > 0);
                    model.turns.iter_mut().for_each(|(_, queue)| queue.retain(|item| item % 3 > 0));
                    model.remove_empty();
                }
                13 => {
                    queue.begin_round();
                    model.refused.clear();
                }
                dice => {
                    let seed = rng.u32(..);
                    let number =
                        |lane: Lane| lane.stream.index().wrapping_mul(31) ^ u32::from(lane.priority.value());
                    let accepts = |lane: Lane| (number(lane) & seed).count_ones().is_multiple_of(2);
                    let (mut asked, mut expected) = (Vec::new(), Vec::new());
                    let log = |lane: Lane, asked: &mut Vec<Lane>| {
                        asked.push(lane);
                        accepts(lane)
                    };
                    let popped = if dice < 16 {
                        model.refused.clear();
                        queue.pop(|lane, _| log(lane, &mut asked))
                    } else {
                        queue.pop_next(|lane, _| log(lane, &mut asked))
                    };
                    assert_eq!(popped, model.pop(|lane| log(lane, &mut expected)));
                    assert_eq!(asked, expected);
                }
            }
            let items: Vec<_> = model.order().into_iter().flat_map(|at| model.turns[at].1.clone()).collect();
            assert_eq!(queue.iter().copied().collect::<Vec<_>>(), items);
            assert_eq!((queue.len(), queue.is_mixed()), (items.len(), model.turns.len() > 1));
        }
    }

    /// [BQ-55]: one client may have ten thousand lanes, none of which it reads.
    #[test]
    fn refused_lanes_cost_their_number_once_in_a_round() {
        const LANES: u16 = 10_000;
        for priorities in [1, LANES] {
            let mut queue = LaneQueue::default();
            (0..LANES).for_each(|n| {
                let to = lane(n.into(), n % priorities);
                (0..2).for_each(|item| queue.push_back(to, item));
            });
            for round in 0..2 {
                let steps = work::steps(|| {
                    queue.begin_round();
                    let mut popped = 0;
                    while queue.pop_next(|lane, _| lane.stream.index().is_multiple_of(2)).is_some() {
                        popped += 1;
                    }
                    assert_eq!(popped, if round == 0 { LANES } else { 0 });
                });
                assert!(steps <= 6 * u64::from(LANES), "{steps} with {priorities} priorities");
            }
        }
    }
}
