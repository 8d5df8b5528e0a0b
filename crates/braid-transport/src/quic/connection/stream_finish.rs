//! Estimates for the FIN of a stream: when its bytes can be sent and acknowledged.
//!
//! FIN must not travel with payload that was not sent before [BQ-31], and best after the payload was acknowledged, so
//! that it does not travel with a retransmission either. The library reports the acknowledgements of a stream only once
//! it is finished. So a stream is finished when nothing on the whole connection is unacknowledged; or, while other
//! streams keep the connection busy, three round trips after its bytes can have been sent, and as many bytes were sent
//! as may have waited before them: the gate may hold them for long, and so may a busy machine. A stream that is not
//! read by its receiver delays no other; a higher priority that keeps the connection busy does, for 3 seconds at most.
//! Nothing is lost in any case.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::pin::Pin;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use noq_proto::ConnectionStats;
use tokio::time::{Instant, Sleep};

use super::write_scheduler::MAX_PRIORITIES;

/// Round trips after which what was sent is acknowledged, unless it was lost more than once.
const ROUND_TRIPS: u32 = 3;

/// Time without a packet after which no bytes wait to be sent.
const SILENCE: Duration = Duration::from_millis(100);

/// Longest wait of a FIN: the peer needs its credit back.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(3);

/// Bytes between two calls of [`UnsentBytes::update`], which sum up the statistics of all paths.
const UPDATE_INTERVAL: u64 = 8 << 10;

/// FINs that wait, by the time at which they are sent without an acknowledgement.
#[derive(Default)]
pub(super) struct PendingFinishes {
    pub(super) by_due: BTreeMap<(Instant, StreamKey), PendingFinish>,
    pub(super) timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Copy)]
pub(super) struct PendingFinish {
    since: Instant,
    mark: Mark,
}

impl PendingFinish {
    pub(super) fn new(mark: Mark) -> Self {
        Self { since: Instant::now(), mark }
    }

    /// End of the longest wait.
    pub(super) fn latest(&self) -> Instant {
        self.since + MAX_WAIT
    }

    /// True if bytes of before the FIN may still wait to be sent.
    pub(super) fn may_be_unsent(&self, unsent: &UnsentBytes, now: Progress) -> bool {
        let is_silent = now <= self.mark.at && self.since.elapsed() >= SILENCE;
        now < unsent.until(&self.mark) && !is_silent
    }
}

/// Round trip and window of the path.
pub(super) struct PathCapacity {
    pub(super) rtt: Duration,
    /// Bytes that may be in flight.
    pub(super) window: u64,
}

impl PathCapacity {
    /// Time in which so many bytes are sent and acknowledged, at most [`MAX_WAIT`].
    pub(super) fn delivery_time(&self, bytes: u64) -> Duration {
        let rounds = u32::try_from(bytes / self.window.max(1)).unwrap_or(u32::MAX);
        self.rtt.saturating_mul(rounds.saturating_add(ROUND_TRIPS)).min(MAX_WAIT)
    }
}

/// Upper estimate of the written bytes that wait to be sent for the first time, over all streams.
///
/// The library does not report them. It counts the bytes of the packets that it sends, and of those that it takes for
/// lost: the growth of the difference has carried what was written before, as long as packets are full; where they are
/// not, nothing else had to be sent. Bytes that are written later delay earlier ones only with a higher priority, or
/// with the same, in turns.
#[derive(Default)]
pub(super) struct UnsentBytes {
    /// Bytes at the last update.
    bytes: u64,
    /// Bytes written since then.
    written: u64,
    /// Progress of the connection then.
    at: Progress,
    /// Totals by priority. At the limit of priorities the lowest is counted with the next one, so that a mark waits too
    /// long rather than too short.
    totals: BTreeMap<i32, Total>,
}

/// Everything that was ever written with a priority.
#[derive(Clone, Copy, Default)]
struct Total {
    bytes: u64,
    /// Streams that began with it.
    streams: u64,
}

/// Bytes that were unsent at some time, as seen from one priority.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    priority: i32,
    at: Progress,
    bytes: u64,
    /// The part of the stream itself.
    own: u64,
    /// Bytes written until then with a higher priority.
    above: u64,
    /// Written until then with the same priority.
    equal: Total,
    /// Streams with the same priority that had begun and not ended.
    active: u64,
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
    /// Counts bytes that were written with a priority, the first of their stream or not; true when an update is due.
    pub(super) fn handle_written(&mut self, bytes: usize, priority: i32, is_first: bool) -> bool {
        let bytes = bytes as u64;
        self.written = self.written.saturating_add(bytes);
        self.totals.entry(priority).or_default().add(Total { bytes, streams: is_first.into() });
        if self.totals.len() > MAX_PRIORITIES
            && let Some((_, lowest)) = self.totals.pop_first()
            && let Some(mut next) = self.totals.first_entry()
        {
            next.get_mut().add(lowest);
        }
        self.written >= UPDATE_INTERVAL
    }

    /// Counts a stream that has got a priority, with what it writes from now on.
    pub(super) fn handle_moved(&mut self, priority: i32) {
        if let Some(total) = self.totals.get_mut(&priority) {
            total.add(Total { bytes: 0, streams: 1 });
        }
    }

    /// Takes the progress of the connection into account. `limit`: bytes that it takes; it may hold more, of before the
    /// limit was lowered.
    pub(super) fn update(&mut self, now: Progress, limit: u64) {
        let left = self.bytes.saturating_sub(now.0.saturating_sub(self.at.0));
        self.bytes = left.saturating_add(self.written).min(limit.max(left));
        (self.written, self.at) = (0, now);
    }

    /// A write found no room: the connection holds what it can.
    pub(super) fn set_full(&mut self, now: Progress, limit: u64) {
        self.written = limit;
        self.update(now, limit);
    }

    /// Mark of the last update, for a stream with this priority that has at most `own` of the bytes and is one of
    /// `active`.
    pub(super) fn mark(&self, priority: i32, own: u64, active: usize) -> Mark {
        let (own, active) = (own.min(self.bytes), active as u64);
        let (above, equal) = (self.above(priority), self.equal(priority));
        Mark { priority, at: self.at, bytes: self.bytes, own, above, equal, active }
    }

    /// Progress at which all bytes of the mark have been sent, as far as can be known by now.
    pub(super) fn until(&self, mark: &Mark) -> Progress {
        let equal = self.equal(mark.priority);
        let streams = mark.active.saturating_add(equal.streams.saturating_sub(mark.equal.streams));
        // Twice, as a turn that finds a packet filled by another is a short one.
        let turns = mark.own.saturating_mul(streams).saturating_mul(2);
        let equal = equal.bytes.saturating_sub(mark.equal.bytes).min(turns);
        let above = self.above(mark.priority).saturating_sub(mark.above);
        let bytes = mark.bytes.saturating_add(above).saturating_add(equal);
        // Headers and other frames take an eighth at most.
        Progress(mark.at.0.saturating_add(bytes).saturating_add(bytes / 8))
    }

    fn above(&self, priority: i32) -> u64 {
        let higher = (Bound::Excluded(priority), Bound::Unbounded);
        self.totals.range(higher).fold(0, |sum, (_, total)| sum.saturating_add(total.bytes))
    }

    fn equal(&self, priority: i32) -> Total {
        self.totals.get(&priority).copied().unwrap_or_default()
    }
}

impl Total {
    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.streams = self.streams.saturating_add(other.streams);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 32 << 10;

    /// Progress when all is sent that is unsent now.
    fn end(unsent: &UnsentBytes) -> Progress {
        unsent.until(&unsent.mark(0, 0, 1))
    }

    #[test]
    fn packets_that_were_sent_reduce_it() {
        let mut unsent = UnsentBytes::default();
        assert!(!unsent.handle_written(8000, 0, false));
        unsent.update(Progress(100), LIMIT);
        assert_eq!(end(&unsent), Progress(9100));
        unsent.update(Progress(6100), LIMIT);
        assert_eq!(end(&unsent), Progress(6100 + 2000 + 250));
        unsent.update(Progress(9100), LIMIT);
        assert_eq!(end(&unsent), Progress(9100), "all is sent");
    }

    #[test]
    fn packets_from_before_a_write_did_not_carry_it() {
        let mut unsent = UnsentBytes::default();
        assert!(unsent.handle_written(10_000, 0, false), "an update is due");
        unsent.update(Progress(50_000), LIMIT);
        assert!(end(&unsent) >= Progress(60_000));
    }

    #[test]
    fn small_messages_do_not_add_up() {
        let mut unsent = UnsentBytes::default();
        for turn in 1..1000 {
            unsent.handle_written(100, 0, false);
            unsent.update(Progress(turn * 135), LIMIT);
        }
        assert!(end(&unsent) <= Progress(999 * 135 + 113), "{:?}", end(&unsent));
    }

    #[test]
    fn the_estimate_is_at_most_the_limit_of_the_connection() {
        let mut unsent = UnsentBytes::default();
        unsent.handle_written(1_000_000, 0, false);
        unsent.update(Progress(0), LIMIT);
        assert_eq!(end(&unsent), Progress(LIMIT + LIMIT / 8));
        unsent.set_full(Progress(5000), LIMIT);
        assert_eq!(end(&unsent), Progress(5000 + LIMIT + LIMIT / 8), "full");
        unsent.set_full(Progress(6000), LIMIT / 2);
        assert_eq!(end(&unsent), Progress(6000 + (LIMIT - 1000) * 9 / 8), "lowered while it is full");
    }

    #[test]
    fn later_writes_delay_it_by_their_priority() {
        let mut unsent = UnsentBytes::default();
        unsent.handle_written(800, 0, false);
        unsent.update(Progress(0), LIMIT);
        let mark = unsent.mark(0, 800, 2);
        unsent.handle_written(8000, -1, true);
        assert_eq!(unsent.until(&mark), Progress(900), "less urgent");
        unsent.handle_written(400, 0, false);
        assert_eq!(unsent.until(&mark), Progress(1350), "in turns with one that is there");
        unsent.handle_written(8000, 0, false);
        assert_eq!(unsent.until(&mark), Progress(900 + 2 * 2 * 900), "each has at most twice the turns");
        unsent.handle_written(8000, 0, true);
        assert_eq!(unsent.until(&mark), Progress(900 + 3 * 2 * 900), "one more begins");
        unsent.handle_written(8000, 1, true);
        assert_eq!(unsent.until(&mark), Progress(900 + 3 * 2 * 900 + 9000), "more urgent");
    }

    #[test]
    fn number_of_counted_priorities_is_bounded() {
        let mut unsent = UnsentBytes::default();
        unsent.handle_written(800, 2_000, false);
        unsent.update(Progress(0), LIMIT);
        let mark = unsent.mark(2_000, 800, 1);
        for priority in 0..5_000 {
            unsent.handle_written(8, priority, false);
        }
        assert_eq!(unsent.totals.len(), MAX_PRIORITIES);
        assert_eq!(
            unsent.totals.values().map(|total| total.bytes).sum::<u64>(),
            800 + 5_000 * 8,
            "none is forgotten"
        );
        assert!(unsent.until(&mark) >= Progress((800 + 2_999 * 8) * 9 / 8), "all that is more urgent counts");
    }

    #[test]
    fn retransmissions_carry_nothing_new() {
        let mut stats = ConnectionStats::default();
        (stats.sent_bytes, stats.lost_bytes) = (5000, 2000);
        assert_eq!(Progress::from(stats), Progress(3000));
    }
}
