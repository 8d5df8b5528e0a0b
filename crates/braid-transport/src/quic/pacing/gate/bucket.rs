//! A mirror of a policer's token bucket: how many tokens it has now, and how many come in a second.
//!
//! Each packet is kept with the level that the mirror had before it. A drop says that there was less than one token
//! then; a packet that passes where the mirror had less than one says that there was one. Without the second half the
//! mirror would fall behind for good.

use std::collections::VecDeque;

use super::ledger::{Ledger, Sent};
use super::whole;

/// A little less than what is measured: 3 % too much loses 10 % of what is urgent, 2 % too little costs 2 % of bulk.
const SHY: f64 = 0.98;

/// Tokens that a bucket is taken to hold.
const DEPTH: f64 = 5.0;

/// The mirror owes no more than this: a longer debt would starve bulk for what is long over.
const DEBT: f64 = -3.0;

/// What bulk leaves for the urgent class, in tokens.
const RESERVE: f64 = 1.0;

/// What is urgent waits below this level: the mirror may be wrong by that much.
const URGENT: f64 = 0.3;

/// Drops are remembered for so long (s).
const MEMORY: f64 = 6.0;

/// Two drops say something about the rate when they are so far apart (s).
const SPAN: f64 = 0.1;

/// What passed within this time (s) says how high the rate is at least.
const WINDOW: f64 = 1.0;

/// The shortest and longest time (s) between two probes upward.
const SHORTEST: f64 = 1.0;
const LONGEST: f64 = 4.0;

/// So long (s) after a probe that failed behind others that passed.
const SOON: f64 = 0.5;

/// Tokens beyond those of the mirror since the last drop that say that the rate has risen.
const GAINED: f64 = 4.0;

/// Bulk is starved after so long (s).
const STARVED: f64 = 0.5;

/// A probe upward follows something urgent within this time (s): the next is longest away then.
const BEHIND: f64 = 0.02;

/// Where so many of so many packets are lost, twice in a row, although there were so many tokens, there is no policer.
const COUNT: u32 = 40;
const LOSSY: u32 = 3;
const PLENTY: f64 = 1.5;

/// So many packets in a row are not lost to a policer with this rate: the path is interrupted, and says nothing.
const OUTAGE: u32 = 5;

/// The lowest rate, in packets a second.
const LEAST: f64 = 1.0;

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Tokens per second.
    rate: f64,
    level: f64,
    at: f64,
    /// Corrections upward, in sum.
    raised: f64,
    drops: VecDeque<Drop>,
    passed: u64,
    probe: Option<Probe>,
    last_bulk: f64,
    next_probe: f64,
    interval: f64,
    /// Whether drops follow the level at all.
    chance: Chance,
    /// `raised` at the last drop, and when (s) that was.
    base: f64,
    base_at: f64,
    /// Probes in a row that passed.
    row: u32,
    /// Packets in a row that were dropped.
    lost: u32,
    passes: VecDeque<(f64, f64)>,
}

/// Packets that found tokens enough, and how many of them were lost.
#[derive(Clone, Copy, Debug, Default)]
struct Chance {
    packets: u32,
    lost: u32,
    /// Counts in a row with too many.
    lossy: u32,
}

impl Chance {
    fn count(&mut self, is_lost: bool) {
        self.packets += 1;
        self.lost += u32::from(is_lost);
        if self.packets < COUNT {
            return;
        }
        if self.lost < LOSSY {
            self.lossy = 0;
        } else {
            self.lossy += 1;
        }
        (self.packets, self.lost) = (0, 0);
    }

    /// Sending less has not ended the losses.
    fn is_random(&self) -> bool {
        self.lossy >= 2
    }
}

/// No policer would drop it, however wrong the mirror is.
fn has_tokens(sent: &Sent) -> bool {
    !sent.is_probe && sent.level >= PLENTY
}

#[derive(Clone, Copy, Debug)]
struct Drop {
    at: f64,
    /// Datagrams that passed before.
    passed: f64,
}

/// Packets beyond what the mirror has.
#[derive(Clone, Copy, Debug)]
struct Probe {
    begun: f64,
    left: u64,
}

impl Bucket {
    /// `rate`: datagrams a second that pass, as measured. The bucket is empty now.
    pub(super) fn new(rate: f64, now: f64) -> Self {
        Self {
            rate: (rate * SHY).max(LEAST),
            level: 0.0,
            at: now,
            raised: 0.0,
            drops: VecDeque::new(),
            passed: 0,
            probe: None,
            last_bulk: now,
            next_probe: now + SHORTEST / 2.0,
            interval: SHORTEST,
            chance: Chance::default(),
            base: 0.0,
            base_at: now,
            row: 0,
            lost: 0,
            passes: VecDeque::new(),
        }
    }

    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// Tokens that bulk leaves for what is urgent.
    pub(super) fn reserve(&self) -> f64 {
        RESERVE
    }

    /// Packets are lost whatever is sent: there is no policer.
    pub(super) fn is_chance(&self) -> bool {
        self.chance.is_random()
    }

    pub(super) fn raised(&self) -> f64 {
        self.raised
    }

    pub(super) fn level(&self, now: f64) -> f64 {
        (self.level + (now - self.at).max(0.0) * self.rate).min(DEPTH)
    }

    fn settle(&mut self, now: f64) {
        self.level = self.level(now);
        self.at = self.at.max(now);
    }

    /// A datagram leaves.
    pub(super) fn charge(&mut self, now: f64) {
        self.settle(now);
        self.level = (self.level - 1.0).max(DEBT);
    }

    /// A packet leaves that is not urgent; whether it belongs to a probe.
    pub(super) fn take_bulk(&mut self, now: f64) -> bool {
        match &mut self.probe {
            Some(probe) if probe.left > 0 => {
                probe.left -= 1;
                true
            }
            _ => {
                self.last_bulk = now;
                false
            }
        }
    }

    pub(super) fn passed(&mut self, sent: &Sent, ledger: &Ledger, now: f64) {
        self.passed += 1;
        self.lost = 0;
        if has_tokens(sent) {
            self.chance.count(false);
        }
        let need = 1.0 - (sent.level + self.raised - sent.raised);
        if need > 0.0 {
            self.settle(now);
            self.level = (self.level + need).min(DEPTH);
            self.raised += need;
        }
        self.raise(sent);
        if sent.is_probe && self.probe.is_some_and(|probe| probe.left == 0) && !ledger.has_open_probe() {
            // All of it came through: more is let through than was known.
            self.settle(now);
            self.probe = None;
            self.next_probe = now + 0.05;
            self.row = (self.row + 1).min(4);
            if self.row >= 3 && self.raised - self.base > DEPTH {
                self.quicken(now);
            }
        }
    }

    /// More has passed beyond the mirror than a bucket can have held.
    fn quicken(&mut self, now: f64) {
        let gained = self.raised - std::mem::replace(&mut self.base, self.raised);
        let span = now - std::mem::replace(&mut self.base_at, now);
        let rate = self.rate + (gained - 1.0).max(0.0) / span.max(1e-3);
        self.rate = self.rate.max((rate * SHY).min(self.rate * 1.25));
        self.drops.clear();
        self.passes.clear();
    }

    /// A rate from below: as many as passed must have come as tokens, but for what the bucket held.
    fn raise(&mut self, sent: &Sent) {
        let passed = (self.passed + sent.silent) as f64;
        while self.passes.front().is_some_and(|(at, _)| sent.at - at > WINDOW) {
            self.passes.pop_front();
        }
        let mut least = 0.0_f64;
        if let Some(drop) = self.drops.back() {
            let span = sent.at - drop.at;
            if span > 0.3 {
                least = least.max((passed - drop.passed - 1.0) / span);
            }
        }
        if let Some((at, before)) = self.passes.front() {
            let span = sent.at - at;
            if span > WINDOW * 0.8 {
                least = least.max((passed - before - DEPTH) / span);
            }
        }
        self.passes.push_back((sent.at, passed));
        if least * SHY > self.rate {
            self.settle(sent.at.max(self.at));
            self.rate = least * SHY;
        }
    }

    pub(super) fn dropped(&mut self, sent: &Sent, ledger: &Ledger, now: f64) {
        self.lost += 1;
        if has_tokens(sent) {
            self.chance.count(true);
        }
        let passed = (self.passed + sent.silent) as f64;
        if self.drops.back().is_some_and(|drop| sent.at <= drop.at) {
            return;
        }
        self.drops.push_back(Drop { at: sent.at, passed });
        while self.drops.len() > 2 && self.drops.front().is_some_and(|drop| sent.at - drop.at > MEMORY) {
            self.drops.pop_front();
        }
        self.passes.clear();
        let gained = self.raised - std::mem::replace(&mut self.base, self.raised);
        self.base_at = now;
        if self.probe.take().is_some() {
            self.space_probes(gained, now);
        }
        self.row = 0;
        if self.lost < OUTAGE {
            self.measure(sent.at, passed);
        }
        // At that time there was less than one token: half of one, on average.
        let level = 0.5 + (now - sent.at) * self.rate - ledger.since(sent.at) as f64;
        self.settle(now);
        // Who drops takes no token for it.
        self.level = (self.level + 1.0).min(level.max(DEBT));
    }

    /// A probe has failed: when the next may begin.
    fn space_probes(&mut self, gained: f64, now: f64) {
        self.interval = if gained > GAINED {
            // The rate has risen: there may be more.
            SOON
        } else if now - self.last_bulk > STARVED {
            SHORTEST
        } else {
            (self.interval * 2.0).clamp(SHORTEST, LONGEST)
        };
        self.next_probe = now + self.interval;
    }

    /// The rate between drops, exact to one packet: the longest span that agrees with the shorter ones counts.
    fn measure(&mut self, at: f64, passed: f64) {
        let mut best: Option<(f64, f64)> = None;
        for drop in self.drops.iter().rev().skip(1) {
            let span = at - drop.at;
            if span < SPAN {
                continue;
            }
            let (rate, error) = ((passed - drop.passed) / span, 1.0 / span);
            match best {
                Some((known, within)) if (rate - known).abs() > within + error => break,
                _ => best = Some((rate, error)),
            }
        }
        let Some((rate, error)) = best else { return };
        let expected = self.rate / SHY;
        if rate < expected || error < 0.05 * rate {
            self.rate = (rate.min(expected * 1.25) * SHY).max(LEAST);
        }
    }

    /// Whether a packet without anything urgent may leave.
    pub(super) fn permits_bulk(&self, owes_ack: bool, now: f64) -> bool {
        let level = self.level(now) + 1e-9;
        self.probe.is_some_and(|probe| probe.left > 0)
            || level >= 1.0 + RESERVE
            // An acknowledgement would leave now, in a packet of its own.
            || (owes_ack && level >= 1.0)
    }

    pub(super) fn permits_urgent(&self, now: f64) -> bool {
        self.level(now) + 1e-9 >= URGENT
    }

    /// Begins a probe, if it is time for one.
    pub(super) fn look(&mut self, last_urgent: f64, now: f64) {
        if let Some(probe) = self.probe
            && now - probe.begun > 1.0
        {
            self.probe = None;
            self.next_probe = now + self.interval;
        }
        let is_behind = now - last_urgent < BEHIND || now - last_urgent > 1.0;
        if self.probe.is_none() && now >= self.next_probe && is_behind && self.level(now) >= -0.5 {
            let left = whole(self.level(now)) + 1 + u64::from(self.row.saturating_sub(2));
            self.probe = Some(Probe { begun: now, left });
            self.next_probe = f64::INFINITY;
        }
    }

    /// When more is permitted than now; `ack`: from when on one may be taken along.
    pub(super) fn next(&self, ack: Option<f64>, now: f64) -> f64 {
        let level = self.level(now);
        let at = |goal: f64| now + ((goal - level) / self.rate).max(0.0);
        let mut next = at(if level < URGENT { URGENT } else { 1.0 + RESERVE });
        if let Some(ack) = ack {
            next = next.min(ack.max(at(1.0)));
        }
        if self.next_probe > now { next.min(self.next_probe) } else { next }
    }
}
