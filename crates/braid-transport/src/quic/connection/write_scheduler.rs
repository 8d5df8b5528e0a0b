//! Order of writes among the streams of a link: fair turns, priorities in use, and urgent writes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

/// Upper bound of the priorities that are told apart for one connection: subscribers choose them.
pub(super) const MAX_PRIORITIES: usize = 256;

/// Bytes that one write takes at most while other streams of its priority were woken as well.
const SHARE: usize = 16 * 1024;

/// Time for which a priority counts as used.
const RECENT: Duration = Duration::from_secs(30);

// === Turns ===

/// Streams that were refused room, and their order when there is some.
///
/// The library wakes all that wait for its send window at once, and the first to write could take all of it each time.
/// Among equals the longest waiting comes first, and takes a share if others were woken too. A turn that is not used is
/// lost with the next round of writes, so that only a stream that still wants room can delay others.
#[derive(Default)]
pub(super) struct WriteScheduler {
    waits: FxHashMap<StreamKey, Wait>,
    /// Streams that were woken and have not written since: priority, number of the wait.
    woken: BTreeSet<(i32, u64, StreamKey)>,
    /// Waits so far.
    count: u64,
}

struct Wait {
    priority: i32,
    /// A longer wait has a smaller number.
    number: u64,
    /// Refusals during this wait.
    refusals: u32,
    refused_at: Instant,
    /// Its waker was woken since.
    is_woken: bool,
    /// Wait that it last yielded to: number and refusals.
    yielded_to: Option<(u64, u32)>,
}

/// Decision on a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// At most this many bytes now.
    Now(usize),
    /// After other streams, and without a wake-up: the caller has to ask again.
    AfterOthers,
    /// Blocked until its waker is woken.
    Blocked,
}

/// Competition of other streams with the write of one.
pub(super) struct Contention {
    /// A stream of a higher priority waits for room.
    pub(super) is_outranked: bool,
    /// Number of waiting streams of the same priority.
    pub(super) equals: u64,
}

impl WriteScheduler {
    /// Decides whether a stream may write.
    pub(super) fn turn(&mut self, key: StreamKey, priority: i32) -> Turn {
        if self.waits.get(&key).is_some_and(|wait| !wait.is_woken) {
            return Turn::Blocked;
        }
        let Some((number, first)) = self.first(priority).filter(|(_, first)| *first != key) else {
            let is_alone = self.woken(priority).nth(1).is_none();
            return Turn::Now(if is_alone { usize::MAX } else { SHARE });
        };
        let first_wait = (number, self.waits.get(&first).map_or(0, |wait| wait.refusals));
        let wait = wait(&mut self.waits, &mut self.count, key, priority);
        wait.is_woken = true;
        self.woken.insert((priority, wait.number, key));
        if wait.yielded_to.replace(first_wait) != Some(first_wait) {
            return Turn::AfterOthers;
        }
        // All others were asked in between: those that did not ask want no room any more.
        while let Some((_, first)) = self.first(priority).filter(|(_, first)| *first != key) {
            if self.waits.get(&first).is_some_and(|wait| wait.yielded_to == Some(first_wait)) {
                return Turn::AfterOthers;
            }
            self.remove(first);
        }
        self.turn(key, priority)
    }

    /// A write found no room.
    pub(super) fn handle_refused(&mut self, key: StreamKey, priority: i32) {
        let wait = wait(&mut self.waits, &mut self.count, key, priority);
        self.woken.remove(&(wait.priority, wait.number, key));
        wait.is_woken = false;
        wait.refusals += 1;
        wait.refused_at = Instant::now();
    }

    /// The waker of a stream was woken.
    pub(super) fn handle_woken(&mut self, key: StreamKey) {
        if let Some(wait) = self.waits.get_mut(&key) {
            wait.is_woken = true;
            self.woken.insert((wait.priority, wait.number, key));
        }
    }

    /// The stream has written, or never will again.
    pub(super) fn remove(&mut self, key: StreamKey) {
        if let Some(wait) = self.waits.remove(&key) {
            self.woken.remove(&(wait.priority, wait.number, key));
        }
    }

    pub(super) fn set_priority(&mut self, key: StreamKey, priority: i32) {
        if let Some(wait) = self.waits.get_mut(&key) {
            if self.woken.remove(&(wait.priority, wait.number, key)) {
                self.woken.insert((priority, wait.number, key));
            }
            wait.priority = priority;
        }
    }

    /// Time at which a stream was refused room that it has not got since.
    pub(super) fn blocked_since(&self, key: StreamKey) -> Option<Instant> {
        self.waits.get(&key).filter(|wait| !wait.is_woken).map(|wait| wait.refused_at)
    }

    /// True if a stream was refused room within this time and has not been woken. A longer wait is one for its own
    /// receiver: room for all comes with every acknowledgement.
    pub(super) fn is_any_blocked(&self, within: Duration) -> bool {
        self.recent(within).any(|wait| !wait.is_woken)
    }

    /// Contention with the streams that were refused room within this time and have not written since.
    pub(super) fn contention(&self, priority: i32, within: Duration) -> Contention {
        let (mut is_outranked, mut equals) = (false, 0);
        for wait in self.recent(within) {
            is_outranked |= wait.priority > priority;
            equals += u64::from(wait.priority == priority);
        }
        Contention { is_outranked, equals }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waits.len() + self.woken.len()
    }

    fn recent(&self, within: Duration) -> impl Iterator<Item = &Wait> {
        let now = Instant::now();
        self.waits.values().filter(move |wait| now - wait.refused_at < within)
    }

    /// Woken streams of a priority, the longest waiting first.
    fn woken(&self, priority: i32) -> impl Iterator<Item = (u64, StreamKey)> {
        let from = (priority, 0, StreamKey::CONTROL);
        let equals = self.woken.range(from..).take_while(move |(other, ..)| *other == priority);
        equals.map(|(_, number, key)| (*number, *key))
    }

    fn first(&self, priority: i32) -> Option<(u64, StreamKey)> {
        self.woken(priority).next()
    }
}

/// The wait of a stream; a new one if there is none.
fn wait<'a>(
    waits: &'a mut FxHashMap<StreamKey, Wait>,
    count: &mut u64,
    key: StreamKey,
    priority: i32,
) -> &'a mut Wait {
    waits.entry(key).or_insert_with(|| {
        *count += 1;
        Wait {
            priority,
            number: *count,
            refusals: 0,
            refused_at: Instant::now(),
            is_woken: false,
            yielded_to: None,
        }
    })
}

// === Priorities in use ===

/// Data streams on which something was written and that have not ended, by priority. A write that is refused asks for
/// the priorities below its own, and must not look at every stream for that.
#[derive(Default)]
pub(super) struct ActivePriorities {
    priorities: FxHashMap<StreamKey, i32>,
    /// Streams of each priority; never 0.
    counts: BTreeMap<i32, usize>,
}

impl ActivePriorities {
    /// Something was written on the stream for the first time.
    pub(super) fn insert(&mut self, key: StreamKey, priority: i32) {
        self.remove(key);
        self.priorities.insert(key, priority);
        *self.counts.entry(priority).or_default() += 1;
    }

    /// Changes the priority of a stream that is in here.
    pub(super) fn set_priority(&mut self, key: StreamKey, priority: i32) {
        if self.priorities.get(&key).is_some_and(|before| *before != priority) {
            self.insert(key, priority);
        }
    }

    /// The sending half of the stream has ended.
    pub(super) fn remove(&mut self, key: StreamKey) {
        let Some(priority) = self.priorities.remove(&key) else { return };
        if let Some(count) = self.counts.get_mut(&priority) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&priority);
            }
        }
    }

    /// Number of streams with this priority.
    pub(super) fn count(&self, priority: i32) -> usize {
        self.counts.get(&priority).copied().unwrap_or(0)
    }

    /// Number of different priorities below this one.
    pub(super) fn count_below(&self, priority: i32) -> usize {
        self.counts.range(..priority).count()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.priorities.len() + self.counts.len()
    }
}

// === Urgency ===

/// Classifier of writes into urgent ones, for which the gate keeps room, and bulk.
///
/// Urgency needs a lower priority in use. The highest priority that was written with lately is urgent, and all below it
/// is bulk. A priority with which more is written than the connection takes is bulk as well: it would leave no reserve.
#[derive(Default)]
pub(super) struct Urgency {
    classes: BTreeMap<i32, Class>,
}

#[derive(Clone, Copy, Default)]
struct Class {
    written: Option<Instant>,
    refused: Option<Instant>,
}

impl Urgency {
    /// Something was written on a data stream with this priority; true if it is urgent.
    pub(super) fn handle_written(&mut self, priority: i32, now: Instant) -> bool {
        let class = self.class(priority, now);
        class.written = Some(now);
        let is_bulk = is_recent(class.refused, now);
        let mut higher = self.classes.range((Bound::Excluded(priority), Bound::Unbounded));
        !is_bulk && !higher.any(|(_, class)| is_recent(class.written, now) && !is_recent(class.refused, now))
    }

    /// A write on a data stream with this priority was refused; true if earlier writes were urgent until now.
    pub(super) fn handle_refused(&mut self, priority: i32, now: Instant) -> bool {
        let class = self.class(priority, now);
        let refused = class.refused.replace(now);
        is_recent(class.written, now) && !is_recent(refused, now)
    }

    /// State of a priority. At the limit unused priorities are dropped, or else the least recently used one.
    fn class(&mut self, priority: i32, now: Instant) -> &mut Class {
        if self.classes.len() >= MAX_PRIORITIES && !self.classes.contains_key(&priority) {
            self.classes.retain(|_, class| is_recent(class.last_use(), now));
            let oldest = self.classes.iter().min_by_key(|(_, class)| class.last_use());
            let oldest = oldest.map(|(priority, _)| *priority);
            if let Some(oldest) = oldest.filter(|_| self.classes.len() >= MAX_PRIORITIES) {
                self.classes.remove(&oldest);
            }
        }
        self.classes.entry(priority).or_default()
    }
}

impl Class {
    fn last_use(&self) -> Option<Instant> {
        self.written.max(self.refused)
    }
}

fn is_recent(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now.saturating_duration_since(at) < RECENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: StreamKey = StreamKey::bidi(1);
    const TWO: StreamKey = StreamKey::bidi(2);
    const THREE: StreamKey = StreamKey::bidi(3);
    const ALARMS: i32 = 200;
    const MEDIA: i32 = 100;

    /// A scheduler in which these streams were refused and woken in this order, with priority 5.
    fn woken(keys: &[StreamKey]) -> WriteScheduler {
        let mut scheduler = WriteScheduler::default();
        for key in keys {
            scheduler.handle_refused(*key, 5);
            scheduler.handle_woken(*key);
        }
        scheduler
    }

    #[test]
    fn stream_that_waits_alone_takes_all() {
        let mut scheduler = WriteScheduler::default();
        assert_eq!(scheduler.turn(ONE, 5), Turn::Now(usize::MAX));
        scheduler.handle_refused(ONE, 5);
        assert_eq!(scheduler.turn(ONE, 5), Turn::Blocked);
        scheduler.handle_woken(ONE);
        assert_eq!(scheduler.turn(ONE, 5), Turn::Now(usize::MAX));
        // Another priority does not matter.
        scheduler.handle_refused(TWO, 6);
        scheduler.handle_woken(TWO);
        assert_eq!(scheduler.turn(ONE, 5), Turn::Now(usize::MAX));
        assert_eq!(scheduler.turn(TWO, 6), Turn::Now(usize::MAX));
    }

    #[test]
    fn longest_waiting_stream_comes_first_and_takes_a_share() {
        let mut scheduler = WriteScheduler::default();
        for key in [TWO, ONE] {
            scheduler.handle_refused(key, 5);
        }
        // The library wakes them in any order.
        for key in [ONE, TWO] {
            scheduler.handle_woken(key);
        }
        assert_eq!(scheduler.turn(ONE, 5), Turn::AfterOthers);
        assert_eq!(scheduler.turn(TWO, 5), Turn::Now(SHARE));
        scheduler.remove(TWO);
        assert_eq!(scheduler.turn(TWO, 5), Turn::AfterOthers);
        assert_eq!(scheduler.turn(THREE, 5), Turn::AfterOthers);
        assert_eq!(scheduler.turn(ONE, 5), Turn::Now(SHARE));
        scheduler.remove(ONE);
        assert_eq!(scheduler.turn(TWO, 5), Turn::Now(SHARE));
    }

    #[test]
    fn refusal_keeps_the_order() {
        let mut scheduler = WriteScheduler::default();
        for key in [TWO, ONE] {
            scheduler.handle_refused(key, 5);
        }
        for _ in 0..3 {
            for key in [ONE, TWO] {
                scheduler.handle_woken(key);
            }
            assert_eq!(scheduler.turn(ONE, 5), Turn::AfterOthers);
            scheduler.handle_refused(TWO, 5);
            assert_eq!(scheduler.turn(ONE, 5), Turn::Now(usize::MAX));
            scheduler.handle_refused(ONE, 5);
        }
    }

    #[test]
    fn unused_turn_is_lost() {
        let mut scheduler = woken(&[TWO, THREE]);
        // Only the first stream still writes.
        assert_eq!(scheduler.turn(ONE, 5), Turn::AfterOthers);
        assert_eq!(scheduler.turn(ONE, 5), Turn::Now(usize::MAX));
        scheduler.remove(ONE);
        assert_eq!(scheduler.len(), 0);
    }

    #[test]
    fn turn_is_lost_to_streams_that_still_ask() {
        let mut scheduler = woken(&[TWO, THREE]);
        // The second stream does not write any more, the third does.
        assert_eq!(scheduler.turn(ONE, 5), Turn::AfterOthers);
        assert_eq!(scheduler.turn(THREE, 5), Turn::AfterOthers);
        assert_eq!(scheduler.turn(ONE, 5), Turn::AfterOthers);
        assert_eq!(scheduler.turn(THREE, 5), Turn::Now(SHARE));
        scheduler.remove(THREE);
        assert_eq!(scheduler.turn(ONE, 5), Turn::Now(usize::MAX));
    }

    #[test]
    fn new_priority_is_a_new_wait() {
        let mut scheduler = woken(&[ONE, TWO]);
        scheduler.set_priority(ONE, 4);
        assert_eq!(scheduler.turn(TWO, 5), Turn::Now(usize::MAX));
        assert_eq!(scheduler.turn(ONE, 4), Turn::Now(usize::MAX));
        scheduler.remove(ONE);
        scheduler.remove(TWO);
        assert_eq!(scheduler.len(), 0);
    }

    #[test]
    fn each_priority_counts_once_and_while_a_stream_has_it() {
        let mut active = ActivePriorities::default();
        for (key, priority) in [(ONE, 5), (TWO, 5), (THREE, 7)] {
            active.insert(key, priority);
        }
        assert_eq!([5, 6, 7, 8].map(|priority| active.count_below(priority)), [0, 1, 1, 2]);
        active.set_priority(TWO, 6);
        assert_eq!([5, 6, 7, 8].map(|priority| active.count_below(priority)), [0, 1, 2, 3]);
        active.remove(ONE);
        active.set_priority(ONE, 1);
        assert_eq!([5, 6, 7, 8].map(|priority| active.count_below(priority)), [0, 0, 1, 2]);
        active.remove(TWO);
        active.remove(THREE);
        assert_eq!(active.len(), 0);
    }

    #[test]
    fn highest_recent_priority_is_urgent() {
        let mut urgency = Urgency::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(urgency.handle_written(MEDIA, at(0)), "nothing is above it");
        assert!(urgency.handle_written(ALARMS, at(1)));
        assert!(!urgency.handle_written(MEDIA, at(1)));
        assert!(!urgency.handle_written(MEDIA, at(30)));
        assert!(urgency.handle_written(MEDIA, at(31)), "no alarm for long");
        assert!(urgency.handle_written(ALARMS, at(32)));
    }

    #[test]
    fn priority_that_was_refused_is_bulk() {
        let mut urgency = Urgency::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(urgency.handle_written(MEDIA, at(0)));
        assert!(urgency.handle_refused(MEDIA, at(1)), "for the first time");
        assert!(!urgency.handle_written(MEDIA, at(2)));
        assert!(!urgency.handle_refused(MEDIA, at(20)));
        assert!(!urgency.handle_written(MEDIA, at(49)));
        assert!(urgency.handle_written(MEDIA, at(50)));
        assert!(urgency.handle_written(ALARMS, at(50)) && urgency.handle_refused(ALARMS, at(50)));
        assert!(urgency.handle_written(MEDIA, at(51)), "what is above it is bulk");
    }

    #[test]
    fn number_of_classified_priorities_is_bounded() {
        let mut urgency = Urgency::default();
        let begun = Instant::now();
        for priority in 0..5_000 {
            urgency.handle_written(priority, begun + Duration::from_millis(priority.unsigned_abs().into()));
        }
        assert_eq!(urgency.classes.len(), MAX_PRIORITIES);
        assert!(urgency.handle_written(5_000, begun + Duration::from_secs(5)), "the highest is urgent");
        assert!(!urgency.handle_written(4_999, begun + Duration::from_secs(5)));
        urgency.handle_written(1, begun + Duration::from_secs(60));
        assert_eq!(urgency.classes.len(), 1, "all others are unused for long");
    }
}
