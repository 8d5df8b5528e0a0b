//! A mirror of a policer's token bucket: how many tokens it has now, and how many come in a second.
//!
//! The mirror has no more than the bucket, so that what leaves within it is not dropped. Each packet is kept with the level
//! that the mirror had before it. A drop says that there was less than one token then, and may have been none; a packet
//! that passes where the mirror had less than one says that there was one. Without the second half the mirror would fall
//! behind for good. Since the rate is taken a little too low, the bucket fills up meanwhile; probes find out how far, and
//! whether there is more than a bucket can hold.

use std::collections::VecDeque;

use super::random_loss::{Chance, has_tokens};
use super::sent_packets::{Ledger, Sent};
use super::whole;

/// A little less than what is measured: 3 % too much loses 10 % of what is urgent, 2 % too little costs 2 % of bulk.
const SHY: f64 = 0.98;

/// Tokens that a bucket is taken to hold.
const DEPTH: f64 = 5.0;

/// What is urgent waits below this level: it would be dropped, and have to wait for longer.
const URGENT: f64 = 1.0;

/// Drops are remembered for so long (s).
const MEMORY: f64 = 6.0;

/// Two drops say something about the rate when they are so far apart (s).
const SPAN: f64 = 0.1;

/// A rate below this share of what it was has fallen.
const FALLEN: f64 = 0.8;

/// What passed within this time (s) says how high the rate is at least.
const WINDOW: f64 = 1.0;

/// The shortest and longest time (s) between two probes upward.
const SHORTEST: f64 = 1.0;
const LONGEST: f64 = 2.0;

/// So long (s) after a probe that failed behind others that passed, or while what is urgent leaves nothing for bulk.
const SOON: f64 = 0.5;

/// So many packets beyond what a bucket can have held say that the rate is higher, and it is taken to be higher by a
/// factor between these.
const SURE: f64 = 0.5;
const FASTER: f64 = 1.5;
const FASTER_AT_LEAST: f64 = 1.05;

/// Until then the third probe of a row, and those after it, are larger than the first by so many packets.
const MORE: u32 = 1;

/// Who waits is starved after so long (s).
pub(super) const STARVED: f64 = 0.5;

/// A probe upward follows something urgent after this time (s), and within that one: the next is longest away then.
const BEHIND: f64 = 0.012;
const WITHIN: f64 = 0.02;

/// So many packets in a row are not lost to a policer with this rate: the path is interrupted, and says nothing.
const OUTAGE: u32 = 5;

/// Where such a share has passed before, so many drops may be the beginning of one. Each packet is this part of that share.
const HEALTHY: f64 = 0.6;
const SUSPECT: u32 = 3;
const NEW: f64 = 0.1;

/// The lowest rate, in packets a second.
const LEAST: f64 = 1.0;

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// What bulk leaves for what is urgent.
    reserve: f64,
    /// Tokens per second.
    rate: f64,
    level: f64,
    at: f64,
    /// Corrections in sum, and of them those upward because something has passed.
    shift: f64,
    raised: f64,
    drops: VecDeque<Drop>,
    passed: u64,
    probe: Option<Probe>,
    /// Since when (s) bulk is refused.
    refused: Option<f64>,
    next_probe: f64,
    interval: f64,
    /// Whether drops follow the level at all: of what was sent since then (s).
    chance: Chance,
    fallen: f64,
    /// Probes in a row that passed.
    climb: Option<Climb>,
    /// Packets in a row that were dropped.
    run: Run,
    /// The share that passed of late.
    health: f64,
    passes: VecDeque<(f64, f64)>,
}

#[derive(Clone, Copy, Debug)]
struct Drop {
    at: f64,
    /// Datagrams that passed before.
    passed: f64,
}

/// Packets in a row that were dropped.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    packets: u32,
    /// Of them, those that had found tokens.
    unexplained: u32,
    /// When (s) the first was sent.
    begun: f64,
    /// The rate until then and the share that passed, if that was enough to take it for an interruption.
    before: Option<(f64, f64)>,
}

impl Run {
    /// No policer with this rate drops as many.
    fn is_outage(&self) -> bool {
        self.packets >= OUTAGE
    }

    /// It may become an interruption.
    fn may_be_outage(&self) -> bool {
        self.packets >= if self.before.is_some() { SUSPECT } else { OUTAGE }
    }
}

/// Probes in a row.
#[derive(Clone, Copy, Debug)]
struct Climb {
    /// Tokens that a bucket can have held beyond those of the mirror when the first began.
    room: f64,
    /// `raised` at that time.
    raised: f64,
    /// s
    begun: f64,
    /// So many have passed.
    passed: u32,
    /// Nothing but what is urgent was sent for some time before.
    is_starved: bool,
}

impl Climb {
    /// What has passed beyond all that a bucket can have held.
    fn surplus(&self, raised: f64) -> f64 {
        raised - self.raised - self.room
    }
}

/// Packets beyond what the mirror has.
#[derive(Clone, Copy, Debug)]
struct Probe {
    begun: f64,
    left: u64,
}

impl Bucket {
    /// `rate`: datagrams a second that pass, as measured. `reserve`: tokens that bulk leaves for what is urgent. The bucket
    /// is empty now.
    pub(super) fn new(rate: f64, reserve: f64, now: f64) -> Self {
        Self {
            reserve,
            rate: (rate * SHY).max(LEAST),
            level: 0.0,
            at: now,
            shift: 0.0,
            raised: 0.0,
            drops: VecDeque::new(),
            passed: 0,
            probe: None,
            refused: None,
            next_probe: now + SHORTEST / 2.0,
            interval: SHORTEST,
            chance: Chance::default(),
            fallen: 0.0,
            climb: None,
            run: Run::default(),
            health: 0.0,
            passes: VecDeque::new(),
        }
    }

    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// Tokens that bulk leaves for what is urgent.
    pub(super) fn reserve(&self) -> f64 {
        self.reserve
    }

    /// Packets are lost whatever is sent: there is no policer.
    pub(super) fn is_chance(&self) -> bool {
        self.chance.is_random()
    }

    /// Corrections of the level so far, in sum.
    pub(super) fn shifted(&self) -> f64 {
        self.shift
    }

    pub(super) fn level(&self, now: f64) -> f64 {
        (self.level + (now - self.at).max(0.0) * self.rate).min(DEPTH)
    }

    fn settle(&mut self, now: f64) {
        self.level = self.level(now);
        self.at = self.at.max(now);
    }

    /// Corrects the level, and with it that of all packets of which nothing is known yet.
    fn shift(&mut self, by: f64, now: f64) {
        self.settle(now);
        let level = (self.level + by).clamp(0.0, DEPTH);
        self.shift += level - std::mem::replace(&mut self.level, level);
    }

    /// A datagram leaves.
    pub(super) fn charge(&mut self, now: f64) {
        self.settle(now);
        self.level = (self.level - 1.0).max(0.0);
    }

    /// No policer with the rate of now would drop it.
    fn had_tokens(&self, sent: &Sent) -> bool {
        has_tokens(sent) && sent.at > self.fallen
    }

    /// Bulk is there and may not leave.
    pub(super) fn refuse_bulk(&mut self, now: f64) {
        self.refused.get_or_insert(now);
    }

    /// What is urgent has left nothing for bulk for some time.
    fn is_starved(&self, now: f64) -> bool {
        self.refused.is_some_and(|since| now - since > STARVED)
    }

    /// A packet leaves that is not urgent; whether it belongs to a probe.
    pub(super) fn take_bulk(&mut self) -> bool {
        self.refused = None;
        let Some(probe) = self.probe.as_mut().filter(|probe| probe.left > 0) else { return false };
        probe.left -= 1;
        true
    }

    pub(super) fn passed(&mut self, sent: &Sent, ledger: &Ledger, now: f64) {
        self.passed += 1;
        self.end_run();
        self.health += (1.0 - self.health) * NEW;
        if self.had_tokens(sent) {
            self.chance.count(false);
        }
        let need = 1.0 - (sent.level + self.shift - sent.shift);
        self.raised += need.max(0.0);
        self.raise(sent);
        if sent.is_probe && self.probe.is_some_and(|probe| probe.left == 0) && !ledger.has_open_probe() {
            // All of it came through: more is let through than was known.
            self.settle(now);
            self.probe = None;
            self.next_probe = now + 0.05;
            if let Some(climb) = &mut self.climb {
                climb.passed += 1;
            }
            self.rise(false, sent.at);
        }
    }

    /// Whether more has passed since probes began than the rate and a full bucket explain: then the rate is higher.
    /// `is_over`: one of them was dropped.
    fn rise(&mut self, is_over: bool, at: f64) -> bool {
        let Some(climb) = self.climb else { return false };
        let surplus = climb.surplus(self.raised);
        if surplus <= SURE {
            return false;
        }
        if is_over && !climb.is_starved {
            // It was raised with each that passed.
            return true;
        }
        let least = if is_over { 1.0 } else { FASTER_AT_LEAST };
        let rate = self.rate + surplus / (at - climb.begun).max(SPAN);
        self.rate = rate.clamp(self.rate * least, self.rate * FASTER);
        self.drops.clear();
        self.passes.clear();
        true
    }

    /// A packet has passed: what is known of those before it that were dropped.
    fn end_run(&mut self) {
        let run = std::mem::take(&mut self.run);
        if !run.is_outage() {
            (0..run.unexplained).for_each(|_| self.chance.count(true));
        } else if let Some((rate, health)) = run.before {
            (self.rate, self.health) = (rate, health);
            self.drops.retain(|drop| drop.at < run.begun);
        }
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

    pub(super) fn dropped(&mut self, sent: &Sent, now: f64) {
        if self.run.packets == 0 {
            let before = (self.health >= HEALTHY).then_some((self.rate, self.health));
            self.run = Run { begun: sent.at, before, ..Run::default() };
        }
        self.health -= self.health * NEW;
        self.run.packets += 1;
        self.run.unexplained += u32::from(self.had_tokens(sent));
        let level = sent.level + self.shift - sent.shift;
        if level > 1.0 {
            // There was less than one token, perhaps none, and who drops takes none.
            self.shift(1.0 - level, now);
        }
        let passed = (self.passed + sent.silent) as f64;
        if self.drops.back().is_some_and(|drop| sent.at <= drop.at) {
            return;
        }
        let has_risen = self.rise(true, sent.at);
        self.drops.push_back(Drop { at: sent.at, passed });
        while self.drops.len() > 2 && self.drops.front().is_some_and(|drop| sent.at - drop.at > MEMORY) {
            self.drops.pop_front();
        }
        self.passes.clear();
        let climb = self.climb.take();
        if self.probe.take().is_some() {
            let may_be_more = has_risen || climb.is_some_and(|climb| climb.is_starved);
            self.space_probes(may_be_more, now);
        }
        if !self.run.may_be_outage() {
            self.measure(sent.at, passed, level >= 1.0, now);
        }
    }

    /// A probe has failed: when the next may begin.
    fn space_probes(&mut self, may_be_more: bool, now: f64) {
        self.interval = if may_be_more { SOON } else { (self.interval * 2.0).clamp(SHORTEST, LONGEST) };
        self.next_probe = now + self.interval;
    }

    /// The rate between drops, exact to one packet: the longest span that agrees with the shorter ones counts. A rate that has
    /// fallen is not taken for lower than it must be: one that is too low is found out much later.
    fn measure(&mut self, at: f64, passed: f64, is_wrong: bool, now: f64) {
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
        let rate = if rate < expected { (rate + error * 0.5).min(expected) } else { rate };
        if if rate < expected { is_wrong } else { error < 0.05 * rate } {
            if rate < expected * FALLEN {
                // What was sent until now was sent at a rate that is over.
                (self.fallen, self.run.unexplained, self.chance) = (now, 0, Chance::default());
            }
            self.rate = (rate.min(expected * 1.25) * SHY).max(LEAST);
        }
    }

    /// Whether a packet without anything urgent may leave.
    pub(super) fn permits_bulk(&self, owes_ack: bool, now: f64) -> bool {
        let level = self.level(now) + 1e-9;
        self.probe.is_some_and(|probe| probe.left > 0)
            || level >= 1.0 + self.reserve
            // An acknowledgement would leave now, in a packet of its own.
            || (owes_ack && level >= self.reserve)
    }

    pub(super) fn permits_urgent(&self, now: f64) -> bool {
        self.level(now) + 1e-9 >= URGENT
    }

    /// When (s) what is urgent may leave.
    pub(super) fn permits_urgent_at(&self, now: f64) -> f64 {
        self.reaches_at(URGENT, now)
    }

    /// When (s) there are so many tokens.
    fn reaches_at(&self, tokens: f64, now: f64) -> f64 {
        now + ((tokens - self.level(now)) / self.rate).max(0.0)
    }

    /// Begins a probe, if it is time for one, behind something urgent, but not so close that this may have been early.
    pub(super) fn look(&mut self, last_urgent: f64, now: f64) {
        let since = now - last_urgent;
        let is_behind = (BEHIND..BEHIND + WITHIN).contains(&since) || since > 1.0;
        if is_behind || self.is_starved(now) || self.climb.is_some_and(|climb| climb.is_starved) {
            self.probe(now);
        }
    }

    /// Begins a probe, if it is time for one.
    pub(super) fn probe(&mut self, now: f64) {
        if let Some(probe) = self.probe
            && now - probe.begun > 1.0
        {
            self.probe = None;
            self.next_probe = now + self.interval;
        }
        let level = self.level(now);
        if self.probe.is_some() || now < self.next_probe {
            return;
        }
        let room = DEPTH - 1.0 - level;
        let is_starved = self.is_starved(now);
        let climb =
            self.climb.get_or_insert(Climb { room, raised: self.raised, begun: now, passed: 0, is_starved });
        // Of what is lost there is little to learn: more follows when it is sure that there is room.
        let more =
            if climb.surplus(self.raised) > SURE { climb.passed } else { (climb.passed / 2).min(MORE) };
        let left = whole(level) + 1 + u64::from(more);
        self.probe = Some(Probe { begun: now, left });
        self.next_probe = f64::INFINITY;
    }

    /// When more is permitted than now; `ack`: from when on one may be taken along.
    pub(super) fn next(&self, last_urgent: f64, ack: Option<f64>, now: f64) -> f64 {
        let goal = if self.level(now) < URGENT { URGENT } else { 1.0 + self.reserve };
        let mut next = self.reaches_at(goal, now);
        if let Some(ack) = ack {
            next = next.min(ack.max(self.reaches_at(self.reserve, now)));
        }
        let probe = self.next_probe.max(last_urgent + BEHIND);
        if probe > now { next.min(probe) } else { next }
    }
}
