//! How much of what was written may still wait to be sent for the first time, over all streams.
//!
//! The library does not tell that. It counts the bytes of the packets it sends, and those of the packets it takes for
//! lost: what grows between the two has carried what was written before. An estimate from above, as long as packets are
//! full; where they are not, there was nothing else to send. What is written later delays what is there only with a
//! higher priority, or with the same, in turns.

use std::collections::BTreeMap;
use std::ops::Bound;

use noq::ConnectionStats;

/// A look costs a lock of the connection: it is due after so many bytes.
const BETWEEN_LOOKS: u64 = 8 << 10;

#[derive(Default)]
pub(super) struct UnsentBytes {
    /// At the last look, in bytes.
    bytes: u64,
    /// Since then, in bytes.
    written: u64,
    /// Where the connection was then.
    at: Progress,
    /// All that was ever written, by priority.
    totals: BTreeMap<i32, u64>,
}

/// What is there at some time, with a priority.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    priority: i32,
    at: Progress,
    bytes: u64,
    /// Of it, of the stream itself.
    own: u64,
    /// Written until then with a higher priority.
    above: u64,
    /// Written until then with the same.
    beside: u64,
}

/// Bytes of packets that were sent and not lost. Later is more.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Progress(u64);

impl From<ConnectionStats> for Progress {
    fn from(stats: ConnectionStats) -> Self {
        Self(stats.sent_bytes.saturating_sub(stats.lost_bytes))
    }
}

impl UnsentBytes {
    /// So many bytes were written with a priority; whether it is time to look.
    pub(super) fn wrote(&mut self, bytes: usize, priority: i32) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.written = self.written.saturating_add(bytes);
        let total = self.totals.entry(priority).or_default();
        *total = total.saturating_add(bytes);
        self.written >= BETWEEN_LOOKS
    }

    /// A look at how far the connection is. `window` bytes are the most that it can hold.
    pub(super) fn look(&mut self, now: Progress, window: u64) {
        let sent = now.0.saturating_sub(self.at.0);
        self.bytes = self.bytes.saturating_sub(sent).saturating_add(self.written).min(window);
        self.written = 0;
        self.at = now;
    }

    /// A write found no room: the connection holds what it can.
    pub(super) fn fill(&mut self, now: Progress, window: u64) {
        (self.bytes, self.written, self.at) = (window, 0, now);
    }

    /// What is there as of the last look, `own` bytes of it at most of a stream with this priority.
    pub(super) fn mark(&self, priority: i32, own: u64) -> Mark {
        let own = own.min(self.bytes);
        let (above, beside) = (self.above(priority), self.beside(priority));
        Mark { priority, at: self.at, bytes: self.bytes, own, above, beside }
    }

    /// How far the connection is when all that was there at the mark has been sent, as far as can be known by now.
    pub(super) fn until(&self, mark: &Mark) -> Progress {
        let beside = (self.beside(mark.priority) - mark.beside).min(mark.own);
        let bytes = mark.bytes.saturating_add(self.above(mark.priority) - mark.above).saturating_add(beside);
        // Headers and other frames take an eighth at most.
        Progress(mark.at.0.saturating_add(bytes).saturating_add(bytes / 8))
    }

    fn above(&self, priority: i32) -> u64 {
        let higher = (Bound::Excluded(priority), Bound::Unbounded);
        self.totals.range(higher).fold(0, |sum, (_, total)| sum.saturating_add(*total))
    }

    fn beside(&self, priority: i32) -> u64 {
        self.totals.get(&priority).copied().unwrap_or(0)
    }
}

impl Mark {
    /// Whether anything was sent since.
    pub(super) fn has_moved(&self, now: Progress) -> bool {
        now > self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 32 << 10;

    /// When all is sent that is there now.
    fn end(unsent_bytes: &UnsentBytes) -> Progress {
        unsent_bytes.until(&unsent_bytes.mark(0, 0))
    }

    #[test]
    fn what_packets_carry_makes_it_less() {
        let mut unsent_bytes = UnsentBytes::default();
        assert!(!unsent_bytes.wrote(8000, 0));
        unsent_bytes.look(Progress(100), WINDOW);
        assert_eq!(end(&unsent_bytes), Progress(9100));
        unsent_bytes.look(Progress(6100), WINDOW);
        assert_eq!(end(&unsent_bytes), Progress(6100 + 2000 + 250));
        unsent_bytes.look(Progress(9100), WINDOW);
        assert_eq!(end(&unsent_bytes), Progress(9100), "all is sent");
    }

    #[test]
    fn what_was_sent_before_a_write_did_not_carry_it() {
        let mut unsent_bytes = UnsentBytes::default();
        assert!(unsent_bytes.wrote(10_000, 0), "time to look");
        unsent_bytes.look(Progress(50_000), WINDOW);
        assert!(end(&unsent_bytes) >= Progress(60_000));
    }

    #[test]
    fn a_stream_of_small_messages_leaves_nothing_behind() {
        let mut unsent_bytes = UnsentBytes::default();
        for turn in 1..1000 {
            unsent_bytes.wrote(100, 0);
            unsent_bytes.look(Progress(turn * 135), WINDOW);
        }
        assert!(end(&unsent_bytes) <= Progress(999 * 135 + 113), "{:?}", end(&unsent_bytes));
    }

    #[test]
    fn it_is_no_more_than_the_connection_holds() {
        let mut unsent_bytes = UnsentBytes::default();
        unsent_bytes.wrote(1_000_000, 0);
        unsent_bytes.look(Progress(0), WINDOW);
        assert_eq!(end(&unsent_bytes), Progress(WINDOW + WINDOW / 8));
        unsent_bytes.fill(Progress(5000), WINDOW);
        assert_eq!(end(&unsent_bytes), Progress(5000 + WINDOW + WINDOW / 8), "full");
    }

    #[test]
    fn what_is_written_later_delays_it_by_its_priority() {
        let mut unsent_bytes = UnsentBytes::default();
        unsent_bytes.wrote(800, 0);
        unsent_bytes.look(Progress(0), WINDOW);
        let mark = unsent_bytes.mark(0, 800);
        unsent_bytes.wrote(8000, -1);
        assert_eq!(unsent_bytes.until(&mark), Progress(900), "less urgent");
        unsent_bytes.wrote(8000, 0);
        assert_eq!(unsent_bytes.until(&mark), Progress(1800), "in turns");
        unsent_bytes.wrote(8000, 1);
        assert_eq!(unsent_bytes.until(&mark), Progress(10_800), "more urgent");
    }

    #[test]
    fn repetitions_of_what_was_lost_carry_nothing_new() {
        let mut stats = ConnectionStats::default();
        (stats.sent_bytes, stats.lost_bytes) = (5000, 2000);
        assert_eq!(Progress::from(stats), Progress(3000));
    }
}
