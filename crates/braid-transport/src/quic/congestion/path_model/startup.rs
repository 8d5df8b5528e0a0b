//! The beginning of a connection: few packets, then as many as the path answers for, until it shows what it is.

use super::{FAST, whole};

/// Packets on their way at first: a policer with a burst of five has had the handshake.
const FIRST: f64 = 4.0;

/// Two drops so far apart (s), and this share of packets between them, make a policer.
const SPAN: f64 = 0.15;
const SHARE: f64 = 0.15;

/// Where packets are lost by chance with this probability, fewer are but for so many standard deviations.
const CHANCE: f64 = 0.1;
const SURE: f64 = 3.0;

/// A policer lets so many through between them, or fewer where it has dropped less than an interruption would.
const SOME: u32 = 2;
const OUTAGE: u32 = 5;

/// Of so many packets a policer would have dropped more than a few.
const ENOUGH: u32 = 60;
const FEW: u32 = 3;

/// Drops that are so far apart (s) have nothing to do with each other: alarms between them pass any policer.
const OVER: f64 = 1.0;

/// Up to so many packets the window quadruples in a long round trip.
const QUICK: f64 = 200.0;

/// As many packets in a row say how fast it is.
const RUN: u32 = 64;

#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    window: f64,
    first_drop: Option<f64>,
    last_drop: f64,
    passed: u32,
    dropped: u32,
    silent: u64,
    /// Packets that passed since then (s).
    run: (u32, f64),
    /// Packets since the first drop that are known to have passed, and to be lost.
    all: (u32, u32),
}

impl Start {
    pub(super) fn new(now: f64) -> Self {
        Self {
            window: FIRST,
            first_drop: None,
            last_drop: now,
            passed: 0,
            dropped: 0,
            silent: 0,
            run: (0, now),
            all: (0, 0),
        }
    }

    /// So many packets were on their way before.
    pub(super) fn again(packets: f64, now: f64) -> Self {
        Self { window: packets.max(FIRST), ..Self::new(now) }
    }

    /// Packets that may be on their way.
    pub(super) fn window(&self) -> u64 {
        whole(self.window)
    }

    /// `is_long`: round trips are, and show no queue. True: so many pass that it need not be known how many.
    pub(super) fn passed(&mut self, is_full: bool, is_long: bool, now: f64) -> bool {
        if is_full {
            self.window +=
                if is_long && self.window < QUICK && self.first_drop.is_none() { 3.0 } else { 1.0 };
        }
        if self.first_drop.is_some() {
            self.passed += 1;
            self.all.0 += 1;
        }
        let (count, since) = &mut self.run;
        *count += 1;
        if *count < RUN {
            return false;
        }
        let is_fast = now - std::mem::replace(since, now) < f64::from(RUN) / FAST;
        *count = 0;
        is_fast
    }

    /// Some are lost again and again, and they make no policer: they are lost by chance, or overtaken.
    pub(super) fn is_chance(&self) -> bool {
        let (passed, lost) = self.all;
        passed + lost >= ENOUGH && lost >= FEW && f64::from(lost) < f64::from(passed + lost) * SHARE
    }

    /// A queue delays: what is dropped there is no policer's.
    pub(super) fn handle_queue(&mut self) {
        self.first_drop = None;
        (self.passed, self.dropped) = (0, 0);
    }

    /// Datagrams per second that a policer lets through, if it is one. `sent`: when (s) the packet was; `silent`: see
    /// [`Sent`](super::sent_packets::Sent).
    pub(super) fn dropped(&mut self, sent: f64, silent: u64) -> Option<f64> {
        self.window = (self.window / 2.0).max(FIRST);
        if sent - self.last_drop > OVER {
            // What was dropped before has nothing to do with it.
            self.handle_queue();
            self.all = (0, 0);
        }
        self.last_drop = sent;
        self.all.1 += 1;
        let Some(first) = self.first_drop else {
            (self.first_drop, self.silent) = (Some(sent), silent);
            return None;
        };
        self.dropped += 1;
        let span = sent - first;
        if span < SPAN {
            return None;
        }
        let (dropped, all) = (f64::from(self.dropped), f64::from(self.passed + self.dropped));
        // Where nothing passes the path is interrupted, and that ends by itself.
        let is_outage = self.passed < SOME && self.dropped >= OUTAGE;
        if self.passed < SOME && !is_outage {
            return None;
        }
        if dropped < all * SHARE || is_outage {
            (self.first_drop, self.passed, self.dropped, self.silent) = (Some(sent), 0, 0, silent);
            return None;
        }
        if dropped < CHANCE.mul_add(all, SURE * (all * CHANCE * (1.0 - CHANCE)).sqrt()) {
            return None;
        }
        let passed = f64::from(self.passed) + silent.saturating_sub(self.silent) as f64;
        Some(passed.max(1.0) / span)
    }
}
