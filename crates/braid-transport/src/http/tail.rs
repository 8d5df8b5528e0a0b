//! Probes behind a burst of requests or responses on a lossy path of QUIC.
//!
//! When the last packets of a burst are lost, nothing follows them whose acknowledgement would show it. The probe
//! timeout [RFC 9002, 6.2] waits for the smoothed round trip and four deviations, which include the time that a busy
//! client or server needed for the burst itself: often a second, for a path of a millisecond. It doubles with each lost
//! probe. So a few PINGs follow the burst, with growing gaps, if the connection has lost packets before, or if nothing
//! is acknowledged. They are subject to congestion control as all packets, unless the path is silent.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::path_sample::PathStats;
use crate::quic::http3::PathProbe;

/// First gap. A few acknowledged packets behind a lost one show its loss [RFC 9002, 6.1.1].
const GAP: Duration = Duration::from_millis(10);

/// Each gap is longer than the one before by a part of the time since the burst.
const GROWTH: u32 = 10;

/// Time for which probes follow a burst.
const LIMIT: Duration = Duration::from_secs(30);

/// A path is lossy from one lost packet in so many that were sent before the probes. Acknowledgements count among
/// these, and are not known to be lost.
const LOSSY: u64 = 40;

/// Probes of one connection.
#[derive(Debug)]
pub struct TailProbes {
    path: PathProbe,
    tail: Option<Tail>,
    /// Probes that were sent.
    sent: u64,
}

#[derive(Clone, Copy, Debug)]
struct Tail {
    begun: Instant,
    next: Instant,
    /// The path was found lossy or silent.
    is_lossy: bool,
}

impl TailProbes {
    /// No probes, until there is a burst on `path`.
    #[must_use]
    pub fn new(path: PathProbe) -> Self {
        Self { path, tail: None, sent: 0 }
    }

    /// Follows a burst that may end now. True: nothing was due before.
    pub fn begin(&mut self, now: Instant) -> bool {
        self.tail.replace(Tail::new(now)).is_none()
    }

    /// Waits for the next probe; forever without one. Does not hold the probes, which may be begun anew meanwhile.
    pub fn due(&self) -> impl Future<Output = ()> + use<> {
        let next = self.tail.map(|tail| tail.next);
        async move {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Sends the probe that is due, if one is and the path loses packets or is silent.
    pub fn send(&mut self, now: Instant) {
        let Some(tail) = self.tail.filter(|tail| tail.next <= now) else { return };
        let sent = self.sent;
        let is_lossy =
            |stats: &PathStats| is_lossy(stats.lost_packets, stats.sent_packets.saturating_sub(sent));
        let probed = self.path.ping(|stats| tail.is_lossy || is_lossy(stats), now.into_std());
        // An error: the connection is closed.
        self.tail = probed.ok().and_then(|is_sent| {
            self.sent += u64::from(is_sent);
            tail.after(is_sent, now)
        });
    }
}

fn is_lossy(lost_packets: u64, sent_packets: u64) -> bool {
    lost_packets > 0 && lost_packets * LOSSY >= sent_packets
}

impl Tail {
    fn new(begun: Instant) -> Self {
        Self { begun, next: begun + GAP, is_lossy: false }
    }

    /// The tail behind a probe now; `None`: that was the last.
    fn after(self, is_lossy: bool, now: Instant) -> Option<Self> {
        let since = now.saturating_duration_since(self.begun);
        // Losses of this burst may become known later, on most paths none do.
        let gap = GAP.max(if is_lossy { since / GROWTH } else { since });
        (since < LIMIT).then(|| Self { next: now + gap, is_lossy, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of the looks at a path after a burst, in milliseconds since its end.
    fn looks(is_lossy: bool) -> Vec<u128> {
        let begun = Instant::now();
        let mut tail = Some(Tail::new(begun));
        let mut at = Vec::new();
        while let Some(now) = tail {
            at.push((now.next - begun).as_millis());
            tail = now.after(is_lossy, now.next);
        }
        at
    }

    #[test]
    fn probes_have_growing_gaps_for_half_a_minute() {
        let at = looks(true);
        assert_eq!(at[..4], [10, 20, 30, 40]);
        assert!((60..80).contains(&at.len()), "{}", at.len());
        assert!(at.windows(3).all(|gaps| gaps[2] - gaps[1] + 1 >= gaps[1] - gaps[0]), "{at:?}");
        assert!((30_000..33_100).contains(at.last().unwrap()), "{at:?}");
    }

    #[test]
    fn a_clean_path_is_looked_at_less_and_less() {
        let doubled: Vec<u128> = (0..13).map(|n| 10 << n).collect();
        assert_eq!(looks(false), doubled);
    }

    #[test]
    fn a_path_is_lossy_from_one_packet_in_forty() {
        assert!(is_lossy(1, 1) && is_lossy(1, 40) && is_lossy(10, 400));
        assert!(!is_lossy(0, 0) && !is_lossy(1, 41) && !is_lossy(9, 400));
    }
}
