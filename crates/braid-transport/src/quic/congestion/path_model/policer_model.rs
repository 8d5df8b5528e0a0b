//! Model of a policer: the tokens in its bucket and the rate at which they come.
//!
//! The model never holds more tokens than the bucket, so that packets within it are not dropped. Each packet is kept
//! with the level before it. A drop shows that there was less than one token, and perhaps none; a delivery at a level
//! below one shows that there was one. Without the second half the model would fall behind for good. The rate is taken
//! a little too low, so the bucket fills up meanwhile: probes find out how far, and whether there is more than a bucket
//! can hold.

use std::collections::VecDeque;

use super::sent_packets::{SentPacket, SentPackets};
use super::{TICK, whole};

/// Share of the measured rate that is used: 3 % too much loses 10 % of urgent packets, 2 % too little costs 2 % of
/// bulk.
const RATE_MARGIN: f64 = 0.98;

/// Tokens that a bucket is taken to hold, unless drops show fewer.
const DEPTH: f64 = 5.0;

/// Share of the excess of the modelled level over the true one by which a bucket is taken to be shallower.
const SHALLOWER: f64 = 0.5;

/// Share of a rate that is used until packets have passed with it.
const UNVERIFIED: f64 = 0.97;

/// Level below which an urgent packet waits: it would be dropped, and be late by more.
const URGENT: f64 = 1.0;

/// Time (s) for which drops are remembered.
const MEMORY: f64 = 6.0;

/// Least time (s) between two drops that measure the rate of a policer.
const POLICER_RATE_SPAN: f64 = 0.1;

/// Share of the former rate below which the rate has fallen.
const FALLEN: f64 = 0.8;

/// Window (s) whose deliveries are a lower bound of the rate.
const WINDOW: f64 = 1.0;

/// Shortest and longest time (s) between two probes.
const SHORTEST: f64 = 1.0;
const LONGEST: f64 = 2.0;

/// Time (s) between two probes after one that failed behind others that passed, and while urgent packets leave nothing
/// for bulk.
const SOON: f64 = 0.5;

/// Packets beyond what a bucket can have held that show a higher rate, and bounds of the factor by which it is raised.
const SURPLUS: f64 = 0.5;
const FASTER: f64 = 1.5;
const FASTER_AT_LEAST: f64 = 1.05;

/// Factor above which the rate is higher than before probes that passed.
const HIGHER: f64 = 1.1;

/// Packets a second above which buckets are deeper, and save what the modelled rate leaves: the tokens of this time
/// (s).
const MANY: f64 = 80.0;
const SAVED: f64 = 0.05;

/// Packets by which the third and later probes of a row exceed the first, until a surplus shows.
const MORE: u32 = 1;

/// Time (s) of waiting after which bulk or urgent packets count as starved.
pub(super) const STARVED: f64 = 0.5;

/// A probe follows an urgent packet after this time (s), and within the second one: the next urgent packet is longest
/// away then.
const BEHIND: f64 = 0.012;
const WITHIN: f64 = 0.02;

/// Drops in a row that no policer with this rate makes: the path is interrupted, and its drops show nothing.
const OUTAGE: u32 = 5;

/// Share of the highest rate that other senders leave, and share of that rate which is remembered after a drop.
const SHARE: f64 = 0.28;
const FADING: f64 = 0.995;

/// Lowest rate in packets a second.
const LEAST: f64 = 1.0;

#[derive(Clone, Debug, Default)]
pub(super) struct PolicerModel {
    /// Tokens that bulk leaves for urgent packets.
    reserve: f64,
    bucket: TokenBucket,
    /// Sum of the upward corrections that deliveries made.
    raised: f64,
    drops: VecDeque<Mark>,
    /// Packets that passed.
    passed: u64,
    passes: VecDeque<Mark>,
    probes: Probes,
    /// Tests whether losses correlate with the level at all, for packets sent after `fallen_at`.
    random_loss: RandomLoss,
    /// Time (s) at which the rate fell.
    fallen_at: f64,
    run: DropRun,
    /// Highest rate, a little less with each drop.
    most: f64,
}

/// Token bucket as modelled.
#[derive(Clone, Copy, Debug, Default)]
struct TokenBucket {
    /// Tokens per second.
    rate: f64,
    level: f64,
    /// Tokens that it can hold.
    depth: f64,
    at: f64,
    /// Sum of all corrections.
    correction: f64,
}

impl TokenBucket {
    fn level(&self, now: f64) -> f64 {
        (self.level + (now - self.at).max(0.0) * self.rate).min(self.depth)
    }

    /// Adds the tokens until now.
    fn refill(&mut self, now: f64) {
        self.level = self.level(now);
        self.at = self.at.max(now);
    }

    /// Corrects the level, and with it that of all packets without a fate.
    fn correct(&mut self, by: f64, now: f64) {
        self.refill(now);
        let level = (self.level + by).clamp(0.0, self.depth);
        self.correction += level - std::mem::replace(&mut self.level, level);
    }

    /// Level before a packet, with the corrections since it was sent.
    fn level_before(&self, sent: &SentPacket) -> f64 {
        sent.level + self.correction - sent.correction
    }

    /// Time (s) at which there are so many tokens.
    fn reaches_at(&self, tokens: f64, now: f64) -> f64 {
        now + ((tokens - self.level(now)) / self.rate).max(0.0)
    }
}

/// Packet that passed or was dropped.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Time of sending (s).
    at: f64,
    /// Datagrams that had passed by then.
    passed: f64,
}

/// Drops in a row.
#[derive(Clone, Copy, Debug, Default)]
struct DropRun {
    packets: u32,
    /// Drops for which the model had tokens.
    unexplained: u32,
    /// Time of sending (s) of the first.
    begun: f64,
    /// Rate before.
    before: f64,
}

impl DropRun {
    /// True if no policer with this rate drops as many.
    fn is_outage(&self) -> bool {
        self.packets >= OUTAGE
    }
}

/// Packets beyond the model's tokens: when they are sent, and what they have shown.
#[derive(Clone, Copy, Debug, Default)]
struct Probes {
    current: Option<Probe>,
    /// Earliest begin (s) of the next.
    next_at: f64,
    interval: f64,
    /// Probes in a row that passed.
    climb: Option<Climb>,
    /// Time (s) since which bulk is refused.
    refused_since: Option<f64>,
}

impl Probes {
    /// True if urgent packets have left nothing for bulk for some time.
    fn is_starved(&self, now: f64) -> bool {
        self.refused_since.is_some_and(|since| now - since > STARVED)
    }

    /// Schedules the next probe after a failed one.
    fn schedule(&mut self, may_be_more: bool, now: f64) {
        self.interval = if may_be_more { SOON } else { (self.interval * 2.0).clamp(SHORTEST, LONGEST) };
        self.next_at = now + self.interval;
    }
}

/// Probe that is being sent, or whose fate is unknown.
#[derive(Clone, Copy, Debug)]
struct Probe {
    begun: f64,
    /// Packets yet to be sent.
    left: u64,
}

/// Probes in a row that passed.
#[derive(Clone, Copy, Debug)]
struct Climb {
    /// Tokens that a bucket can have held beyond the model's when the first began.
    room: f64,
    /// `raised` at that time.
    raised: f64,
    /// s
    begun: f64,
    /// Rate at that time.
    rate: f64,
    passed: u32,
    /// Urgent packets left nothing for bulk for some time before.
    is_starved: bool,
}

impl Climb {
    /// Packets that passed beyond all that a bucket can have held.
    fn surplus(&self, raised: f64) -> f64 {
        raised - self.raised - self.room
    }
}

impl PolicerModel {
    /// Model of an empty bucket. `rate`: measured datagrams per second. `reserve`: tokens that bulk leaves for urgent
    /// packets.
    pub(super) fn new(rate: f64, reserve: f64, now: f64) -> Self {
        let rate = (rate * RATE_MARGIN).max(LEAST);
        let bucket = TokenBucket { rate, depth: DEPTH, at: now, ..TokenBucket::default() };
        let next_at = now + SHORTEST / 2.0;
        let probes = Probes { next_at, interval: SHORTEST, ..Probes::default() };
        Self { reserve, bucket, probes, most: rate, ..Self::default() }
    }

    /// Model whose losses may yet turn out to be random: until forty packets have found tokens, drops do not measure
    /// the rate. `rate`, `reserve`: see [`new`](Self::new).
    pub(super) fn unverified(rate: f64, reserve: f64, now: f64) -> Self {
        let mut new = Self::new(rate * UNVERIFIED, reserve, now);
        new.random_loss.is_first = true;
        new
    }

    pub(super) fn rate(&self) -> f64 {
        self.bucket.rate
    }

    pub(super) fn reserve(&self) -> f64 {
        // Tokens that come until a timer fires have to find room.
        let room = self.bucket.depth - 1.0 - self.bucket.rate * TICK;
        self.reserve.min(room).max(0.0)
    }

    /// True if packets are lost whatever is sent: there is no policer.
    pub(super) fn is_random_loss(&self) -> bool {
        let RandomLoss { lossy_counts, is_first, lost, .. } = self.random_loss;
        lossy_counts >= LOSSY_COUNTS || is_first && lost >= LOSSY
    }

    pub(super) fn level(&self, now: f64) -> f64 {
        self.bucket.level(now)
    }

    /// Takes the token of a datagram that leaves.
    pub(super) fn charge(&mut self, now: f64) {
        self.bucket.refill(now);
        self.bucket.level = (self.bucket.level - 1.0).max(0.0);
    }

    /// True if no policer with the present rate would drop it.
    fn had_tokens(&self, sent: &SentPacket) -> bool {
        !sent.is_probe && sent.level >= PLENTY && sent.at > self.fallen_at
    }

    /// Notes that a packet of bulk may not leave.
    pub(super) fn refuse_bulk(&mut self, now: f64) {
        self.probes.refused_since.get_or_insert(now);
    }

    /// Notes the state before a packet that leaves.
    pub(super) fn note(&mut self, sent: &mut SentPacket, now: f64) {
        let has_token = sent.urgent > 0 && self.permits_urgent(now);
        sent.is_probe = !has_token && self.take_bulk();
        (sent.level, sent.correction) = (self.level(now), self.bucket.correction);
    }

    /// Notes a packet of bulk that leaves. True: it belongs to a probe.
    fn take_bulk(&mut self) -> bool {
        self.probes.refused_since = None;
        let Some(probe) = self.probes.current.as_mut().filter(|probe| probe.left > 0) else { return false };
        probe.left -= 1;
        true
    }

    pub(super) fn passed(&mut self, sent: &SentPacket, packets: &SentPackets, now: f64) {
        self.passed += 1;
        self.end_run();
        if self.had_tokens(sent) {
            self.random_loss.count(false);
        }
        let surplus = (1.0 - self.bucket.level_before(sent)).max(0.0);
        self.raised += surplus;
        self.bucket.depth = (self.bucket.depth + surplus).min(DEPTH);
        self.raise(sent);
        let is_sent = self.probes.current.is_some_and(|probe| probe.left == 0);
        if sent.is_probe && is_sent && !packets.has_unresolved_probe() {
            // All of the probe has passed.
            self.bucket.refill(now);
            self.probes.current = None;
            self.probes.next_at = now + 0.05;
            if let Some(climb) = &mut self.probes.climb {
                climb.passed += 1;
            }
            self.rise(false, sent.at);
        }
    }

    /// Raises the rate if more has passed since probes began than the rate and a full bucket explain. `is_over`: a
    /// packet of the probe was dropped.
    fn rise(&mut self, is_over: bool, at: f64) -> bool {
        let Some(climb) = self.probes.climb else { return false };
        let surplus = climb.surplus(self.raised);
        let saved = if self.bucket.rate > MANY { self.bucket.rate * SAVED } else { 0.0 };
        if surplus <= SURPLUS.max(saved) {
            return false;
        }
        if is_over && !climb.is_starved {
            // The rate was raised with each probe that passed.
            return true;
        }
        let least = if is_over { 1.0 } else { FASTER_AT_LEAST };
        let rate = self.bucket.rate;
        let raised = rate + surplus / (at - climb.begun).max(POLICER_RATE_SPAN);
        self.bucket.rate = raised.clamp(rate * least, rate * FASTER);
        self.drops.clear();
        self.passes.clear();
        true
    }

    /// Ends a row of drops: an outage takes back what they have made of the rate.
    fn end_run(&mut self) {
        let run = std::mem::take(&mut self.run);
        if !run.is_outage() {
            (0..run.unexplained).for_each(|_| self.random_loss.count(true));
        } else {
            self.bucket.rate = run.before;
            self.drops.retain(|drop| drop.at < run.begun);
        }
    }

    /// Raises the rate to its lower bound: as many as passed must have come as tokens, but for those the bucket held.
    fn raise(&mut self, sent: &SentPacket) {
        let passed = (self.passed + sent.ack_only) as f64;
        while self.passes.front().is_some_and(|first| sent.at - first.at > WINDOW) {
            self.passes.pop_front();
        }
        let bound = |since: Option<&Mark>, least_span: f64, held: f64| {
            let (span, count) = since.map(|mark| (sent.at - mark.at, passed - mark.passed))?;
            (span > least_span).then(|| (count - held) / span)
        };
        let bounds = [bound(self.drops.back(), 0.3, 1.0), bound(self.passes.front(), WINDOW * 0.8, DEPTH)];
        let least = bounds.into_iter().flatten().fold(0.0, f64::max);
        self.passes.push_back(Mark { at: sent.at, passed });
        let saved = if self.bucket.rate > MANY { 1.0 + SAVED } else { 1.0 };
        if least * RATE_MARGIN > self.bucket.rate * saved {
            self.bucket.refill(sent.at.max(self.bucket.at));
            self.bucket.rate = least * RATE_MARGIN;
        }
    }

    pub(super) fn dropped(&mut self, sent: &SentPacket, now: f64) {
        if self.run.packets == 0 {
            self.run = DropRun { begun: sent.at, before: self.bucket.rate, ..DropRun::default() };
        }
        self.run.packets += 1;
        self.most = (self.most * FADING).max(self.bucket.rate);
        self.run.unexplained += u32::from(self.had_tokens(sent));
        let level = self.bucket.level_before(sent);
        if level > 1.0 {
            // There was less than one token, perhaps none, and a drop takes none.
            self.bucket.depth = (self.bucket.depth - (level - 1.0) * SHALLOWER).max(1.0);
            self.bucket.correct(1.0 - level, now);
        }
        let passed = (self.passed + sent.ack_only) as f64;
        if self.drops.back().is_some_and(|drop| sent.at <= drop.at) {
            return;
        }
        let has_risen = self.rise(true, sent.at);
        self.drops.push_back(Mark { at: sent.at, passed });
        while self.drops.len() > 2 && self.drops.front().is_some_and(|drop| sent.at - drop.at > MEMORY) {
            self.drops.pop_front();
        }
        self.passes.clear();
        let climb = self.probes.climb.take();
        let has_probed = self.probes.current.take().is_some();
        if !self.run.is_outage() && !self.random_loss.is_first {
            self.measure(sent.at, passed, level >= 1.0, now);
        }
        if has_probed {
            let rate = self.bucket.rate;
            let may_be_more =
                climb.is_some_and(|climb| climb.is_starved || (has_risen && rate > climb.rate * HIGHER));
            self.probes.schedule(may_be_more, now);
        }
    }

    /// Measures the rate between drops, exact to one packet: the longest span that agrees with the shorter ones counts.
    /// A rate that has fallen is not set lower than necessary, since a rate that is too low is noticed much later.
    fn measure(&mut self, at: f64, passed: f64, is_wrong: bool, now: f64) {
        let mut best: Option<(f64, f64)> = None;
        for drop in self.drops.iter().rev().skip(1) {
            let span = at - drop.at;
            if span < POLICER_RATE_SPAN {
                continue;
            }
            let (rate, error) = ((passed - drop.passed) / span, 1.0 / span);
            match best {
                Some((known, within)) if (rate - known).abs() > within + error => break,
                _ => best = Some((rate, error)),
            }
        }
        let Some((rate, error)) = best else { return };
        let expected = self.bucket.rate / RATE_MARGIN;
        let rate = if rate < expected { (rate + error * 0.5).min(expected) } else { rate };
        if if rate < expected { is_wrong } else { error < 0.05 * rate } {
            if rate < expected * FALLEN {
                // Packets until now were sent at a rate that is over.
                (self.fallen_at, self.run.unexplained, self.random_loss) = (now, 0, RandomLoss::default());
            }
            // Alarms alone need as much. Above, a queue that overflows may be taken for a policer.
            let share = if self.most < MANY { self.most * SHARE } else { 0.0 };
            self.bucket.rate = (rate.min(expected * 1.25) * RATE_MARGIN).max(share).max(LEAST);
        }
    }

    /// Tests whether a packet of bulk may leave.
    pub(super) fn permits_bulk(&self, now: f64) -> bool {
        self.probes.current.is_some_and(|probe| probe.left > 0)
            || self.level(now) + 1e-9 >= 1.0 + self.reserve()
    }

    pub(super) fn permits_urgent(&self, now: f64) -> bool {
        self.level(now) + 1e-9 >= URGENT
    }

    /// Time (s) at which an urgent packet may leave.
    pub(super) fn permits_urgent_at(&self, now: f64) -> f64 {
        self.bucket.reaches_at(URGENT, now)
    }

    /// Begins a probe if one is due and an urgent packet has just left, or packets starve.
    pub(super) fn probe_behind(&mut self, last_urgent: f64, now: f64) {
        let since = now - last_urgent;
        let is_behind = (BEHIND..BEHIND + WITHIN).contains(&since) || since > 1.0;
        if is_behind || self.probes.is_starved(now) || self.probes.climb.is_some_and(|climb| climb.is_starved)
        {
            self.probe(now);
        }
    }

    /// Begins a probe if one is due.
    pub(super) fn probe(&mut self, now: f64) {
        let level = self.level(now);
        let probes = &mut self.probes;
        if probes.current.take_if(|probe| now - probe.begun > 1.0).is_some() {
            probes.next_at = now + probes.interval;
        }
        if probes.current.is_some() || now < probes.next_at {
            return;
        }
        let (room, raised, is_starved) = (DEPTH - 1.0 - level, self.raised, probes.is_starved(now));
        let rate = self.bucket.rate;
        let climb =
            probes.climb.get_or_insert(Climb { room, raised, begun: now, rate, passed: 0, is_starved });
        // A loss shows little: more follow once there is room for sure.
        let more = if climb.surplus(raised) > SURPLUS { climb.passed } else { (climb.passed / 2).min(MORE) };
        probes.current = Some(Probe { begun: now, left: whole(level) + 1 + u64::from(more) });
        probes.next_at = f64::INFINITY;
    }

    /// Time (s) at which more is permitted than now.
    pub(super) fn next(&self, last_urgent: f64, now: f64) -> f64 {
        let goal = if self.level(now) < URGENT { URGENT } else { 1.0 + self.reserve() };
        let next = self.bucket.reaches_at(goal, now);
        let probe = self.probes.next_at.max(last_urgent + BEHIND);
        if probe > now { next.min(probe) } else { next }
    }
}

/// Counts in a row that refute a policer: in each, three of forty packets and more are lost although the model had so
/// many tokens.
const LOSSY_COUNTS: u32 = 2;
const LOSSY: u32 = 3;
const COUNT: u32 = 40;
const PLENTY: f64 = 1.5;

/// Count of packets that found enough tokens, and of those that were lost.
#[derive(Clone, Copy, Debug, Default)]
struct RandomLoss {
    packets: u32,
    lost: u32,
    /// Counts in a row with too many losses.
    lossy_counts: u32,
    /// No count is complete, and too many losses refute the model at once.
    is_first: bool,
}

impl RandomLoss {
    fn count(&mut self, is_lost: bool) {
        self.packets += 1;
        self.lost += u32::from(is_lost);
        if self.packets == COUNT {
            self.lossy_counts = if self.lost < LOSSY { 0 } else { self.lossy_counts + 1 };
            (self.packets, self.lost, self.is_first) = (0, 0, false);
        }
    }
}
