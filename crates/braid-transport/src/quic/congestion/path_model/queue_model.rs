//! A mirror of a bottleneck with a queue: when it will be free, and how long each packet occupies it.
//!
//! Each packet is kept with how long it was expected to wait. Its round trip says how long it did wait; the
//! difference corrects the mirror. How long one packet occupies the bottleneck is the time between two departures of
//! packets of which the second had to wait for the first.

use std::collections::VecDeque;

use super::arrival_period::Expected;
use super::base_delay::Offset;
use super::rtt_samples::median;
use super::sent_packets::{Fate, Sent};

/// Measurements of the service time that count: their median does.
const SAMPLES: usize = 7;

/// Of the difference between what was expected and what was measured, so much is believed.
const BELIEVED: f64 = 0.6;

/// A bottleneck for which so many packets in a row did not wait is faster than thought.
const IDLE: u32 = 12;

/// Of the last 64 packets. A policer that has taken its place loses more soon, since nothing waits and the mirror hurries; of
/// ten in a hundred that are lost by chance there are as many once in a hundred thousand packets.
const MOST_LOST: u32 = 20;

/// As many datagrams are known at most: what is not known is not waited for, and the queue grows.
pub(super) const OUTSTANDING: usize = 8192;

/// Waits of so many packets are compared.
const LAG: usize = 8;

/// They have grown if they are longer by so much (s).
const GROWN: f64 = 0.001;

/// A timer is so late (s) that the bottleneck is still close to busy.
const CLOSE: f64 = 0.002;

/// Below that (s) a wait is not told from noise.
const NOISE: f64 = 0.000_5;

/// A processor that is busy with something else makes waits differ, but not for so long (s), nor so many.
const NOISY: f64 = 0.5;
const NOISY_WAITS: u32 = 32;

/// Errors of so much (s) are those of timers, not of the path.
const UNSURE: f64 = 0.002;

/// Bulk aims at a wait of this share of a service time, so that it notices when the bottleneck becomes faster.
const AIM: f64 = 0.1;
const LEAST_AIM: f64 = 0.001;
const MOST_AIM: f64 = 0.004;

/// The same where an acknowledgement is taken along.
const ACK_AIM: f64 = 0.5;

/// Urgent packets wait for each other beyond so many.
const URGENT: f64 = 2.0;

/// A packet that is urgent and expected may find the bottleneck busy for this share of a service time.
const SLACK: f64 = 0.38;

/// An urgent packet that is so late (s) is not expected any more.
const LATE: f64 = 0.01;

/// The slowest bottleneck: s per packet.
const SLOWEST: f64 = 1.0;

#[derive(Clone, Debug)]
pub(super) struct Queue {
    /// s per packet.
    service: f64,
    /// When the bottleneck is done with all that was sent.
    free_at: f64,
    samples: VecDeque<f64>,
    /// How far (s) waits are from what was expected, on average.
    error: f64,
    /// By how much they may be: two service times at first sight, since errors make them longer.
    most: f64,
    /// Since when (s) they are by more, and how many waits were.
    noisy: Option<(f64, u32)>,
    /// Packets in a row that should have found the bottleneck just free, and did not wait.
    idle: u32,
    /// When (s) the last one was sent before it was taken to be faster for that.
    quickened: f64,
    /// A bit for each of the last packets: it is lost.
    lost: u64,
    /// What waits are longer by without a queue.
    offset: Offset,
    /// The last packet whose wait is known: its place, and when its service began.
    last: (u64, f64),
    /// The last ones as they were measured.
    measured: VecDeque<Measured>,
    /// s per packet, as learnt from waits that grew, or from less.
    certain: f64,
    /// Datagrams after `last`.
    outstanding: VecDeque<Outstanding>,
}

/// A datagram whose wait is known.
#[derive(Clone, Copy, Debug)]
struct Measured {
    place: u64,
    /// When (s) its service began.
    left: f64,
    /// s
    wait: f64,
}

/// A datagram whose wait is not known.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    place: u64,
    at: f64,
    /// When its service begins, as expected.
    start: f64,
    /// It has to wait for the one before.
    is_queued: bool,
    /// It leaves as soon as the bottleneck is free, or sooner.
    is_close: bool,
}

impl Outstanding {
    /// The same, where the bottleneck is done with all before it at this time.
    fn behind(self, free_at: f64) -> Self {
        let (start, late) = (free_at.max(self.at), self.at - free_at);
        Self { start, is_queued: late < 0.0, is_close: late < CLOSE, ..self }
    }
}

impl Queue {
    /// `rate`: datagrams a second that it lets through. `last`: the last packet whose wait is known, by its place and the
    /// time when its service began; `since`: place and time of those sent after it.
    pub(super) fn new(rate: f64, last: (u64, f64), since: impl Iterator<Item = (u64, f64)>) -> Self {
        let service = (1.0 / rate).min(SLOWEST);
        let outstanding = since
            .map(|(place, at)| Outstanding { place, at, start: at, is_queued: true, is_close: true })
            .collect();
        let mut queue = Self {
            service,
            free_at: 0.0,
            samples: VecDeque::new(),
            error: 0.0,
            most: (service * 2.0).max(UNSURE),
            noisy: None,
            idle: 0,
            quickened: 0.0,
            lost: 0,
            offset: Offset::default(),
            last,
            measured: VecDeque::new(),
            certain: service,
            outstanding,
        };
        queue.expect();
        queue
    }

    pub(super) fn rate(&self) -> f64 {
        1.0 / self.service
    }

    /// Waits differ by more than what is to be measured: the mirror would follow chance.
    pub(super) fn is_too_noisy(&self, now: f64) -> bool {
        self.noisy.is_some_and(|(since, count)| now - since > NOISY && count > NOISY_WAITS)
    }

    /// More is lost than a queue loses that is kept short.
    pub(super) fn is_lossy(&mut self, fate: Fate) -> bool {
        self.lost = self.lost << 1 | u64::from(fate == Fate::Lost);
        self.lost.count_ones() > MOST_LOST
    }

    /// How long (s) a packet would wait that is sent now.
    pub(super) fn wait(&self, now: f64) -> f64 {
        (self.free_at - now).max(0.0)
    }

    /// A datagram leaves; `place`: which one.
    pub(super) fn charge(&mut self, place: u64, now: f64) {
        if self.outstanding.len() == OUTSTANDING {
            self.outstanding.pop_front();
        }
        let datagram = Outstanding { place, at: now, start: now, is_queued: false, is_close: false };
        self.outstanding.push_back(datagram.behind(self.free_at));
        self.free_at = self.free_at.max(now) + self.service;
    }

    /// Works out anew what waits for how long.
    fn expect(&mut self) {
        let mut free_at = self.last.1 + self.service;
        for datagram in &mut self.outstanding {
            *datagram = datagram.behind(free_at);
            free_at = datagram.start + self.service;
        }
        self.free_at = free_at;
    }

    /// It has waited `wait` s, as far as its round trip says; `is_sure`: all before it have passed, so that what was
    /// expected was expected of packets that came there.
    pub(super) fn handle_wait(&mut self, sent: &Sent, wait: f64, is_sure: bool, now: f64) {
        let (mut is_queued, mut is_close, mut expected) = (true, false, None);
        while let Some(first) = self.outstanding.front().filter(|first| first.place <= sent.place) {
            is_queued &= first.is_queued;
            if first.place == sent.place {
                (expected, is_close) = (Some(first.start), first.is_close);
            }
            self.outstanding.pop_front();
        }
        // Its wait, or that of a later one, was known before.
        let Some(expected) = expected else { return };
        let wait = wait - self.offset.value();
        let measured = sent.at + wait;
        let residual = measured - expected;
        if is_sure {
            self.error += (residual.abs() - self.error) / 16.0;
            let (since, count) = self.noisy.unwrap_or((now, 0));
            self.noisy = (self.error > self.most).then_some((since, count + 1));
        }
        self.look_for_growth(Measured { place: sent.place, left: measured, wait });
        if self.offset.handle(sent.place, sent.at, residual, self.certain, now) {
            self.service = self.certain;
            self.samples.clear();
        }
        let (place, before) = self.last;
        let service = (measured - before) / (sent.place - place) as f64;
        if wait > NOISE && service > 0.0 && (is_queued || sent.place == place + 1) {
            self.learn(service);
        } else if wait <= NOISE && expected - sent.at > NOISE {
            self.quicken(expected - sent.at);
        }
        if is_close && sent.at > self.quickened {
            self.look_for_idleness(wait);
        }
        self.last = (sent.place, expected + residual * BELIEVED);
        self.expect();
    }

    /// Waits that grow are those of a queue, and then the time between departures is service time.
    fn look_for_growth(&mut self, new: Measured) {
        let old = self.measured.front().copied();
        if self.measured.len() == LAG {
            self.measured.pop_front();
        }
        self.measured.push_back(new);
        let Some(old) = old else { return };
        let service = (new.left - old.left) / (new.place - old.place) as f64;
        if service > self.certain && new.wait > old.wait + GROWN.max(self.certain * 0.5) {
            self.certain = service;
            self.measured.clear();
        } else if service > 0.0 {
            self.certain = self.certain.min(self.service);
        }
    }

    /// Timers are late, so that waits of less than a tick are never met. What was sent before the last time says nothing
    /// about what is thought since.
    fn look_for_idleness(&mut self, wait: f64) {
        self.idle = if wait <= NOISE { self.idle + 1 } else { 0 };
        if self.idle == IDLE {
            self.idle = 0;
            self.quickened = self.outstanding.back().map_or(0.0, |last| last.at);
            self.quicken(0.0);
        }
    }

    /// Where a wait was expected there was none: it is faster, nobody knows how much.
    fn quicken(&mut self, expected: f64) {
        let factor = if expected > self.service * 0.3 { 0.7 } else { 0.9 };
        self.service *= factor;
        for sample in &mut self.samples {
            *sample = sample.min(self.service);
        }
    }

    fn learn(&mut self, service: f64) {
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(service.min(self.service * 4.0));
        if self.samples.len() >= 3 {
            self.service = median(self.samples.make_contiguous()).min(SLOWEST);
        }
    }

    /// How long (s) bulk may wait.
    pub(super) fn aim(&self) -> f64 {
        (self.service * AIM).clamp(LEAST_AIM, MOST_AIM)
    }

    /// `expected`: when something urgent will come, if that is known.
    pub(super) fn permits_bulk(&self, expected: Option<Expected>, owes_ack: bool, now: f64) -> bool {
        // An acknowledgement would leave now, in a packet of its own.
        if owes_ack && self.wait(now) <= self.service * ACK_AIM + 1e-9 {
            return true;
        }
        self.wait(now) <= self.aim() + 1e-9 && !self.is_kept_for(expected, now)
    }

    fn is_kept_for(&self, expected: Option<Expected>, now: f64) -> bool {
        let end = self.free_at.max(now) + self.service;
        expected.is_some_and(|Expected { at, interval }| {
            let has_room = self.service * 2.5 < interval;
            has_room && now < at + LATE && end > at + self.service * SLACK && at - now < self.service
        })
    }

    pub(super) fn permits_urgent(&self, now: f64) -> bool {
        self.wait(now) <= self.service * URGENT + LEAST_AIM
    }

    /// When (s) what is urgent may leave.
    pub(super) fn permits_urgent_at(&self, now: f64) -> f64 {
        now + (self.wait(now) - self.service * URGENT - LEAST_AIM).max(0.0)
    }

    /// When more is permitted than now; `ack`: from when on one may be taken along.
    pub(super) fn next(&self, expected: Option<Expected>, ack: Option<f64>, now: f64) -> f64 {
        let free = (self.free_at - self.aim()).max(now);
        let next = match expected.filter(|_| self.is_kept_for(expected, free)) {
            Some(Expected { at, .. }) => free.max(at + LATE),
            None => free,
        };
        ack.map_or(next, |ack| next.min(ack.max(self.free_at - self.service * ACK_AIM).max(now)))
    }
}
