//! Streams that found no room, and whose turn it is when there is some.
//!
//! The library tells all that wait for its send window at once, so that whoever writes first could
//! take all of it, each time. Among equals the one that has waited longest comes first, and takes a
//! share if others were told too. A turn that is not used is lost with the next round of writes:
//! only who still wants room can hold up others, and nobody for long.

use std::collections::BTreeSet;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

/// Bytes that one write takes at most while equals were told of room as well.
const SHARE: usize = 16 * 1024;

#[derive(Default)]
pub(super) struct WriteScheduler {
    waits: FxHashMap<StreamKey, Wait>,
    /// Those that were told of room and have not written since: priority, number of the wait.
    told: BTreeSet<(i32, u64, StreamKey)>,
    /// Waits so far.
    begun: u64,
}

struct Wait {
    priority: i32,
    /// Who has waited longer has the smaller one.
    number: u64,
    /// How often it found no room during this wait.
    refusals: u32,
    refused_at: Instant,
    /// Its bell has rung since.
    is_told: bool,
    /// For whom it had to step back last: number and refusals of that wait.
    stepped_back: Option<(u64, u32)>,
}

/// Whether a stream may write now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// So many bytes.
    Now(usize),
    /// After others, and without a bell: it has to ask again.
    AfterOthers,
    /// Not before its bell rings.
    Blocked,
}

/// What of others stands before a stream.
pub(super) struct Rivals {
    /// Something of a higher priority waits for the connection.
    pub(super) is_outranked: bool,
    /// Streams of the same priority that do.
    pub(super) equals: u64,
}

impl WriteScheduler {
    /// A stream asks whether it may write.
    pub(super) fn turn(&mut self, key: StreamKey, priority: i32) -> Turn {
        if self.waits.get(&key).is_some_and(|wait| !wait.is_told) {
            return Turn::Blocked;
        }
        let Some((number, first)) = self.first(priority).filter(|(_, first)| *first != key) else {
            let is_alone = self.with(priority).nth(1).is_none();
            return Turn::Now(if is_alone { usize::MAX } else { SHARE });
        };
        let place = (number, self.waits.get(&first).map_or(0, |wait| wait.refusals));
        let begun = &mut self.begun;
        let wait = self.waits.entry(key).or_insert_with(|| Wait::new(begun, priority));
        wait.is_told = true;
        self.told.insert((priority, wait.number, key));
        if wait.stepped_back.replace(place) != Some(place) {
            return Turn::AfterOthers;
        }
        // All others were asked in between: who did not come wants no room any more.
        while let Some((_, first)) = self.first(priority).filter(|(_, first)| *first != key) {
            if self.waits.get(&first).is_some_and(|wait| wait.stepped_back == Some(place)) {
                return Turn::AfterOthers;
            }
            self.forget(first);
        }
        self.turn(key, priority)
    }

    /// It found no room.
    pub(super) fn refused(&mut self, key: StreamKey, priority: i32) {
        let begun = &mut self.begun;
        let wait = self.waits.entry(key).or_insert_with(|| Wait::new(begun, priority));
        self.told.remove(&(wait.priority, wait.number, key));
        wait.is_told = false;
        wait.refusals += 1;
        wait.refused_at = Instant::now();
    }

    /// Its bell has rung.
    pub(super) fn told(&mut self, key: StreamKey) {
        if let Some(wait) = self.waits.get_mut(&key) {
            wait.is_told = true;
            self.told.insert((wait.priority, wait.number, key));
        }
    }

    /// It has written, or never will again.
    pub(super) fn forget(&mut self, key: StreamKey) {
        if let Some(wait) = self.waits.remove(&key) {
            self.told.remove(&(wait.priority, wait.number, key));
        }
    }

    pub(super) fn set_priority(&mut self, key: StreamKey, priority: i32) {
        if let Some(wait) = self.waits.get_mut(&key) {
            let was_told = self.told.remove(&(wait.priority, wait.number, key));
            wait.priority = priority;
            if was_told {
                self.told.insert((priority, wait.number, key));
            }
        }
    }

    /// Whether a stream found no room within this time, and waits for its bell. Who waits longer
    /// waits for its own reader: room for all comes with every acknowledgement.
    pub(super) fn is_any_blocked(&self, within: Duration) -> bool {
        self.recent(within).any(|wait| !wait.is_told)
    }

    /// Of those that found no room within this time and have not written since.
    pub(super) fn rivals(&self, priority: i32, within: Duration) -> Rivals {
        let (mut is_outranked, mut equals) = (false, 0);
        for wait in self.recent(within) {
            is_outranked |= wait.priority > priority;
            equals += u64::from(wait.priority == priority);
        }
        Rivals { is_outranked, equals }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waits.len() + self.told.len()
    }

    fn recent(&self, within: Duration) -> impl Iterator<Item = &Wait> {
        let now = Instant::now();
        self.waits.values().filter(move |wait| now - wait.refused_at < within)
    }

    /// Who has been told of room, the longest waiting first.
    fn with(&self, priority: i32) -> impl Iterator<Item = (u64, StreamKey)> {
        let start = (priority, 0, StreamKey::CONTROL);
        let those = self.told.range(start..).take_while(move |(other, ..)| *other == priority);
        those.map(|(_, number, key)| (*number, *key))
    }

    fn first(&self, priority: i32) -> Option<(u64, StreamKey)> {
        self.with(priority).next()
    }
}

impl Wait {
    fn new(begun: &mut u64, priority: i32) -> Self {
        *begun += 1;
        let refused_at = Instant::now();
        Self { priority, number: *begun, refusals: 0, refused_at, is_told: false, stepped_back: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: StreamKey = StreamKey::bidi(1);
    const TWO: StreamKey = StreamKey::bidi(2);
    const THREE: StreamKey = StreamKey::bidi(3);

    #[test]
    fn who_waits_alone_takes_all() {
        let mut write_scheduler = WriteScheduler::default();
        assert_eq!(write_scheduler.turn(ONE, 5), Turn::Now(usize::MAX));
        write_scheduler.refused(ONE, 5);
        assert_eq!(write_scheduler.turn(ONE, 5), Turn::Blocked);
        write_scheduler.told(ONE);
        assert_eq!(write_scheduler.turn(ONE, 5), Turn::Now(usize::MAX));
        // Another priority is not concerned.
        write_scheduler.refused(TWO, 6);
        write_scheduler.told(TWO);
        assert_eq!(write_scheduler.turn(ONE, 5), Turn::Now(usize::MAX));
        assert_eq!(write_scheduler.turn(TWO, 6), Turn::Now(usize::MAX));
    }

    #[test]
    fn who_has_waited_longest_comes_first_and_takes_a_share() {
        let mut write_scheduler = WriteScheduler::default();
        for key in [TWO, ONE] {
            write_scheduler.refused(key, 5);
        }
        // The library tells them in whatever order.
        for key in [ONE, TWO] {
            write_scheduler.told(key);
        }
        assert_eq!(write_scheduler.turn(ONE, 5), Turn::AfterOthers);
        assert_eq!(write_scheduler.turn(TWO, 5), Turn::Now(SHARE));
        write_scheduler.forget(TWO);
        assert_eq!(write_scheduler.turn(TWO, 5), Turn::AfterOthers);
        assert_eq!(write_scheduler.turn(THREE, 5), Turn::AfterOthers);
        assert_eq!(write_scheduler.turn(ONE, 5), Turn::Now(SHARE));
        write_scheduler.forget(ONE);
        assert_eq!(write_scheduler.turn(TWO, 5), Turn::Now(SHARE));
    }

    #[test]
    fn a_refusal_keeps_the_place() {
        let mut write_scheduler = WriteScheduler::default();
        for key in [TWO, ONE] {
            write_scheduler.refused(key, 5);
        }
        for _ in 0..3 {
            for key in [ONE, TWO] {
                write_scheduler.told(key);
            }
            assert_eq!(write_scheduler.turn(ONE, 5), Turn::AfterOthers);
            write_scheduler.refused(TWO, 5);
            assert_eq!(write_scheduler.turn(ONE, 5), Turn::Now(usize::MAX));
            write_scheduler.refused(ONE, 5);
        }
    }

    #[test]
    fn a_turn_that_is_not_used_is_lost() {
        let mut write_scheduler = WriteScheduler::default();
        for key in [TWO, THREE] {
            write_scheduler.refused(key, 5);
            write_scheduler.told(key);
        }
        // Nobody but the first writes any more.
        assert_eq!(write_scheduler.turn(ONE, 5), Turn::AfterOthers);
        assert_eq!(write_scheduler.turn(ONE, 5), Turn::Now(usize::MAX));
        write_scheduler.forget(ONE);
        assert_eq!(write_scheduler.len(), 0);
    }

    #[test]
    fn a_turn_is_lost_to_those_that_still_ask() {
        let mut write_scheduler = WriteScheduler::default();
        for key in [TWO, THREE] {
            write_scheduler.refused(key, 5);
            write_scheduler.told(key);
        }
        // The second does not write any more, the third does.
        assert_eq!(write_scheduler.turn(ONE, 5), Turn::AfterOthers);
        assert_eq!(write_scheduler.turn(THREE, 5), Turn::AfterOthers);
        assert_eq!(write_scheduler.turn(ONE, 5), Turn::AfterOthers);
        assert_eq!(write_scheduler.turn(THREE, 5), Turn::Now(SHARE));
        write_scheduler.forget(THREE);
        assert_eq!(write_scheduler.turn(ONE, 5), Turn::Now(usize::MAX));
    }

    #[test]
    fn a_new_priority_is_a_new_place() {
        let mut write_scheduler = WriteScheduler::default();
        for key in [ONE, TWO] {
            write_scheduler.refused(key, 5);
            write_scheduler.told(key);
        }
        write_scheduler.set_priority(ONE, 4);
        assert_eq!(write_scheduler.turn(TWO, 5), Turn::Now(usize::MAX));
        assert_eq!(write_scheduler.turn(ONE, 4), Turn::Now(usize::MAX));
        write_scheduler.forget(ONE);
        write_scheduler.forget(TWO);
        assert_eq!(write_scheduler.len(), 0);
    }
}
