//! Probes after a burst of responses on a lossy path of QUIC.
//!
//! When the last packets of a page are lost, nothing follows them whose acknowledgement would show it. The probe
//! timeout [RFC 9002, 6.2] waits for the smoothed round trip and four deviations, which include the time that a busy
//! client or server needed for the burst itself: often a second, for a path of a millisecond. So a few PINGs follow the
//! burst, with growing gaps, if the connection has lost packets before. They are subject to congestion control as all
//! packets.

use std::time::Duration;

use braid_transport::http::{PathProbe, PathStats};
use tokio::time::{Instant, sleep_until};

/// First gap. A few acknowledged packets behind a lost one show its loss [RFC 9002, 6.1.1].
const GAP: Duration = Duration::from_millis(10);

/// Each gap is longer than the one before by a part of the time since the burst.
const GROWTH: u32 = 10;

/// Time for which probes follow a burst.
const LIMIT: Duration = Duration::from_secs(5);

/// Packets that were lost, of so many that were sent, on a lossy path: one in twenty, and two at least.
const LOSSY: u64 = 20;
const LEAST_LOST: u64 = 2;

/// Probes of one connection.
#[derive(Debug, Default)]
pub(super) struct TailProbes(Option<Tail>);

#[derive(Clone, Copy, Debug)]
struct Tail {
    begun: Instant,
    next: Instant,
}

impl TailProbes {
    /// A request has come, or its response is complete: the burst may end with it.
    pub(super) fn begin(&mut self, now: Instant) {
        self.0 = Some(Tail { begun: now, next: now + GAP });
    }

    /// Waits for the next probe; forever without one.
    pub(super) async fn due(&self) {
        match self.0 {
            Some(tail) => sleep_until(tail.next).await,
            None => std::future::pending().await,
        }
    }

    /// Sends the probe that is due, if the path loses packets.
    pub(super) fn send(&mut self, path: &PathProbe, now: Instant) {
        match path.sample() {
            Ok(stats) if self.fire(&stats, now) => {
                let _ = path.ping();
            }
            Ok(_) => {}
            // The connection is closed.
            Err(_) => self.0 = None,
        }
    }

    /// Whether a probe is to be sent now; plans the next one.
    fn fire(&mut self, stats: &PathStats, now: Instant) -> bool {
        let Some(Tail { begun, .. }) = self.0 else { return false };
        let since = now.saturating_duration_since(begun);
        let is_lossy = stats.lost_packets >= LEAST_LOST && stats.lost_packets * LOSSY >= stats.sent_packets;
        // Losses of this burst may become known later, on most paths none do.
        let gap = GAP.max(if is_lossy { since / GROWTH } else { since });
        self.0 = (since < LIMIT).then(|| Tail { begun, next: now + gap });
        is_lossy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of the probes of a burst, in milliseconds since its end.
    fn probes(sent_packets: u64, lost_packets: u64) -> Vec<u128> {
        let stats = PathStats { sent_packets, lost_packets, ..PathStats::default() };
        let (begun, mut probes) = (Instant::now(), TailProbes::default());
        probes.begin(begun);
        let mut at = Vec::new();
        while let Some(Tail { next, .. }) = probes.0 {
            if probes.fire(&stats, next) {
                at.push((next - begun).as_millis());
            }
        }
        at
    }

    #[test]
    fn probes_have_growing_gaps_for_five_seconds() {
        let at = probes(100, 5);
        assert_eq!(at[..4], [10, 20, 30, 40]);
        assert!((45..60).contains(&at.len()), "{}", at.len());
        assert!(at.windows(3).all(|gaps| gaps[2] - gaps[1] + 1 >= gaps[1] - gaps[0]), "{at:?}");
        assert!((5000..5600).contains(at.last().unwrap()), "{at:?}");
    }

    #[test]
    fn a_path_that_loses_little_is_not_probed() {
        assert!(probes(101, 5).is_empty() && probes(10, 1).is_empty() && probes(0, 0).is_empty());
        assert!(!probes(40, 2).is_empty());
    }

    #[test]
    fn a_clean_path_is_looked_at_less_and_less() {
        let (begun, mut probes, mut looks) = (Instant::now(), TailProbes::default(), Vec::new());
        probes.begin(begun);
        while let Some(Tail { next, .. }) = probes.0 {
            assert!(!probes.fire(&PathStats { sent_packets: 100, ..PathStats::default() }, next));
            looks.push((next - begun).as_millis());
        }
        assert_eq!(looks, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_due_before_a_burst_and_soon_after_its_last_request() {
        let mut probes = TailProbes::default();
        let is_due = |probes: &TailProbes| {
            let due = futures_util::FutureExt::now_or_never(probes.due());
            due.is_some()
        };
        assert!(!is_due(&probes) && !probes.fire(&PathStats::default(), Instant::now()));
        probes.begin(Instant::now());
        assert!(!is_due(&probes));
        tokio::time::advance(GAP).await;
        probes.due().await;
        probes.begin(Instant::now());
        assert!(!is_due(&probes));
    }
}
