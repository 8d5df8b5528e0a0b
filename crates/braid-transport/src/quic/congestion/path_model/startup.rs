//! Models of paths without a known bottleneck: at startup, and left to the congestion controller.

use super::{FAST, whole};

/// Packets in flight at first: the handshake has used the tokens of a policer with a burst of five.
const FIRST: f64 = 4.0;

/// Least time (s) between two drops that make a policer, and least share of dropped packets between them.
const DROPS_SPAN: f64 = 0.15;
const DROPS_SHARE: f64 = 0.15;

/// Random losses with this probability stay below so many standard deviations. A policer that is sent more than it
/// passes soon drops a third and more, as what it drops is sent again.
const RANDOM_LOSS: f64 = 0.2;
const DEVIATIONS: f64 = 3.0;

/// Losses of so many packets that are random with this probability, and so many standard deviations more.
pub(super) fn random_losses(packets: f64, probability: f64, deviations: f64) -> f64 {
    probability.mul_add(packets, deviations * (packets * probability * (1.0 - probability)).sqrt())
}

/// Packets that a policer passes between two drops, unless it has dropped fewer than an outage would.
const PASSED: u32 = 2;
const OUTAGE: u32 = 5;

/// Number of packets of which a policer would have dropped more than a few.
const ENOUGH: u32 = 60;
const FEW: u32 = 3;

/// Drops so far apart (s) are independent: alarms between them pass any policer.
const INDEPENDENT: f64 = 1.0;

/// Independent drops that are random losses, if they are more than one in so many packets.
const LONE: u32 = 2;
const LONE_SHARE: u32 = 60;

/// Window below which it quadruples in a long round trip. Above, it triples until a packet is dropped, as that of BBR
/// does.
const QUICK: f64 = 200.0;

/// Window beyond which a path has shown that it is not one of the slowest, on which packets that startup sends too much
/// are 34 ms each.
const WIDE: f64 = 12.0;

/// Share by which the window grows in a round trip beyond what the path is known to hold.
const BEYOND_KNOWN: f64 = 0.25;

/// Multiple of that at which the path has turned out to be another, and the window doubles again.
const SLOW_UNTIL: f64 = 1.5;

/// Packets of a row whose rate is measured.
const RUN: u32 = 64;

/// Startup: few packets, then as many as the path answers for, until it shows its limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Startup {
    window: f64,
    /// Packets that the path held for an earlier connection.
    known: Option<f64>,
    /// Nothing was dropped.
    is_clear: bool,
    first_drop: Option<f64>,
    last_drop: f64,
    passed: u32,
    dropped: u32,
    /// Datagrams without ack-eliciting packets until the first drop.
    ack_only: u64,
    /// Packets that passed since this time (s).
    run: (u32, f64),
    /// Packets since the first drop that passed, and that were lost.
    fates: (u32, u32),
    /// All packets that passed, and independent drops.
    lone: (u32, u32),
}

impl Startup {
    pub(super) fn new(now: f64) -> Self {
        Self { window: FIRST, is_clear: true, last_drop: now, run: (0, now), ..Self::default() }
    }

    /// Startup with so many packets in flight.
    pub(super) fn with_window(packets: f64, now: f64) -> Self {
        Self { window: packets.max(FIRST), ..Self::new(now) }
    }

    /// Startup on a path that held so many packets for an earlier connection, of which it permits this part at once.
    pub(super) fn resumed(known: f64, part: f64, now: f64) -> Self {
        Self { known: Some(known), ..Self::with_window(known * part, now) }
    }

    /// Packets that may be in flight.
    pub(super) fn window(&self) -> u64 {
        whole(self.window)
    }

    /// True if urgent packets may pass the window of the congestion controller: on a path without drops so far, of
    /// which nothing was known before.
    pub(super) fn favours_urgent(&self) -> bool {
        self.is_clear && self.known.is_none()
    }

    pub(super) fn is_resumed(&self) -> bool {
        self.known.is_some()
    }

    /// Counts a delivered packet. `in_flight`: with it; `is_long`: round trips are long, and show no queue; `is_new`:
    /// the path has shown no limit before. True: the path is so fast that its rate need not be known.
    pub(super) fn passed(&mut self, in_flight: u64, is_long: bool, is_new: bool, now: f64) -> bool {
        // The first packets of a window that leaves at once find few in flight.
        let divisor = if is_long && is_new && self.window > WIDE { 4 } else { 2 };
        if in_flight * divisor > self.window() {
            self.window += match self.known {
                Some(known) if (known..known * SLOW_UNTIL).contains(&self.window) => BEYOND_KNOWN,
                _ if is_long && self.first_drop.is_none() && self.window < QUICK => 3.0,
                _ if is_long && is_new && self.is_clear => 2.0,
                _ => 1.0,
            };
        }
        self.lone.0 += 1;
        if self.first_drop.is_some() {
            self.passed += 1;
            self.fates.0 += 1;
        }
        let (count, since) = self.run;
        let is_over = count + 1 == RUN;
        self.run = if is_over { (0, now) } else { (count + 1, since) };
        is_over && now - since < f64::from(RUN) / FAST
    }

    /// True if losses go on and are too few for a policer: they are random, or packets were reordered.
    pub(super) fn is_random_loss(&self) -> bool {
        let (packets, drops) = self.lone;
        let (passed, lost) = self.fates;
        let most = random_losses(f64::from(passed + lost), RANDOM_LOSS, DEVIATIONS);
        (drops >= LONE && drops * LONE_SHARE > packets)
            || (passed + lost >= ENOUGH && lost >= FEW && f64::from(lost) < most)
    }

    /// Notes a queue: its drops are no policer's.
    pub(super) fn handle_queue(&mut self) {
        self.first_drop = None;
        (self.passed, self.dropped) = (0, 0);
    }

    /// Datagrams per second that a policer passes, if this drop completes the evidence for one. `sent`: when (s) the
    /// packet left; `ack_only`: see [`SentPacket`](super::sent_packets::SentPacket).
    pub(super) fn dropped(&mut self, sent: f64, ack_only: u64) -> Option<f64> {
        self.is_clear = false;
        self.window = (self.window / 2.0).max(FIRST);
        if sent - self.last_drop > INDEPENDENT {
            self.handle_queue();
            self.fates = (0, 0);
            self.lone.1 += 1;
        }
        self.last_drop = sent;
        self.fates.1 += 1;
        let Some(first) = self.first_drop else {
            (self.first_drop, self.ack_only) = (Some(sent), ack_only);
            return None;
        };
        self.dropped += 1;
        let (span, passes_few) = (sent - first, self.passed < PASSED);
        if span < DROPS_SPAN || (passes_few && self.dropped < OUTAGE) {
            return None;
        }
        let (dropped, all) = (f64::from(self.dropped), f64::from(self.passed + self.dropped));
        // Where nothing passes the path is interrupted, and that ends by itself.
        if dropped < all * DROPS_SHARE || passes_few {
            (self.first_drop, self.passed, self.dropped, self.ack_only) = (Some(sent), 0, 0, ack_only);
            return None;
        }
        let passed = f64::from(self.passed) + ack_only.saturating_sub(self.ack_only) as f64;
        (dropped >= random_losses(all, RANDOM_LOSS, DEVIATIONS)).then_some(passed / span)
    }
}

/// Interval (s) between evaluations of a path in passthrough, and evaluations in a row that make it limited.
const PERIOD: f64 = 0.5;
const PERIODS: u32 = 3;

/// Share of [`FAST`] below which a path is not fast any more.
const NOT_FAST: f64 = 0.8;

/// Share and number of packets that a policer drops at least.
const LOST_SHARE: f64 = 0.2;
const LOST: u32 = 8;

/// Fates of packets in passthrough.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::quic) struct FateCounts {
    pub(in crate::quic) acked: u32,
    pub(in crate::quic) lost: u32,
    /// Smoothed RTT (s), unless the acknowledgement was for packets that elicit none.
    pub(in crate::quic) smoothed: Option<f64>,
}

/// Path that is left to the congestion controller until it shows a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passthrough {
    since: f64,
    acked: u32,
    lost: u32,
    is_app_limited: bool,
    limited: u32,
}

impl Passthrough {
    pub(super) fn new(now: f64) -> Self {
        Self { since: now, acked: 0, lost: 0, is_app_limited: false, limited: 0 }
    }

    /// Counts the packets of an acknowledgement. Returns packets per second, once the gate should decide again: fewer
    /// pass than on a fast path, although there is more to send, or many are lost.
    pub(super) fn count(&mut self, fates: FateCounts, is_app_limited: bool, now: f64) -> Option<f64> {
        self.acked = self.acked.saturating_add(fates.acked);
        self.lost = self.lost.saturating_add(fates.lost);
        self.is_app_limited |= is_app_limited;
        if now - self.since < PERIOD {
            return None;
        }
        let rate = f64::from(self.acked) / (now - self.since);
        let is_lossy =
            self.lost >= LOST && f64::from(self.lost) > f64::from(self.acked + self.lost) * LOST_SHARE;
        let is_limited = rate < FAST * NOT_FAST && (is_lossy || !self.is_app_limited);
        let limited = if is_limited { self.limited + 1 } else { 0 };
        *self = Self { limited, ..Self::new(now) };
        (limited >= PERIODS).then_some(rate)
    }
}
