//! Simulated bottleneck that gates send to, in steps of a millisecond, without QUIC and without a clock.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::super::{Gate, SendDecision, whole};

const MTU: u64 = 1452;

/// An alarm every 100 ms, and a ping every half second, at any time between.
const ALARM: u64 = 100;
const PING: u64 = 503;

/// Time (ms) until which a gate may learn.
const CONVERGENCE: u64 = 3000;

/// Packets of a batch of the library.
const BATCH: usize = 10;

/// Bytes of an alarm or of a ping.
const URGENT: u64 = 80;

pub(super) struct Path {
    begun: Instant,
    /// ms
    now: u64,
    /// Packets a second.
    pub(super) rate: f64,
    pub(super) limit: Limit,
    tokens: f64,
    /// Time (ms) at which the last packet of the queue leaves.
    left: f64,
    /// ms
    pub(super) rtt: u64,
    /// Lateness (ms) of the peer's acknowledgements.
    pub(super) lateness: u64,
    /// Share of packets that is lost at random, and the state of the generator.
    pub(super) loss: f64,
    pub(super) chance: u64,
    /// Time (ms) in which nothing passes.
    pub(super) outage: Range<u64>,
    /// Time (ms) without bulk.
    pub(super) pause: Range<u64>,
    pub(super) senders: Vec<Sender>,
}

/// Limit of the bottleneck.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    /// Drops packets above the rate, but for a burst of `depth`.
    Policer { depth: f64 },
    /// Queues packets above the rate, at most so many.
    Queue { most: f64 },
}

pub(super) struct Sender {
    pub(super) gate: Gate,
    sent: u64,
    in_flight: VecDeque<Packet>,
    /// The smoothed round rtt (s).
    smoothed: Option<f64>,
    /// Lost packets, until a later one is acknowledged.
    lost: Vec<u64>,
    /// Times (ms) at which unsent urgent messages were written.
    waiting: VecDeque<u64>,
    pub(super) counts: Counts,
}

struct Packet {
    number: u64,
    /// ms
    sent: u64,
    /// Time (ms) at which the sender learns its fate.
    heard: u64,
    has_passed: bool,
}

/// Counts since convergence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) passed: usize,
    pub(super) dropped: usize,
    pub(super) urgent: usize,
    pub(super) urgent_dropped: usize,
    /// Urgent messages that were more than 5 ms late.
    pub(super) late: usize,
    /// Longest delay (ms) of an urgent message.
    pub(super) latest: u64,
}

impl Path {
    pub(super) fn new(rate: f64, rtt: u64, senders: usize) -> Self {
        let begun = Instant::now();
        let sender = || Sender {
            gate: Gate::new(begun, 1452, 2),
            sent: 0,
            in_flight: VecDeque::new(),
            smoothed: None,
            lost: Vec::new(),
            waiting: VecDeque::new(),
            counts: Counts::default(),
        };
        let senders = std::iter::repeat_with(sender).take(senders).collect();
        let limit = Limit::Policer { depth: 5.0 };
        let (lateness, loss, chance, outage, pause) = (0, 0.0, 1, 0..0, 0..0);
        let (now, tokens, left) = (0, 5.0, 0.0);
        Self { begun, now, rate, limit, tokens, left, rtt, lateness, loss, chance, outage, pause, senders }
    }

    pub(super) fn instant(&self) -> Instant {
        self.begun + Duration::from_millis(self.now)
    }

    /// Runs for so many seconds.
    pub(super) fn run(&mut self, seconds: u64) {
        self.run_for(seconds * 1000);
    }

    /// Runs for so long (ms).
    pub(super) fn run_for(&mut self, time: u64) {
        for _ in 0..time {
            self.now += 1;
            if let Limit::Policer { depth } = self.limit {
                self.tokens = (self.tokens + self.rate / 1000.0).min(depth);
            }
            let at = self.instant();
            let mut senders = std::mem::take(&mut self.senders);
            for (place, sender) in senders.iter_mut().enumerate() {
                // Senders are not synchronised.
                let now = self.now;
                let clock = now + 31 * place as u64;
                sender.hear(now, at);
                if clock.is_multiple_of(ALARM) || clock.is_multiple_of(PING) {
                    sender.gate.handle_urgent(URGENT, at);
                    sender.waiting.push_back(now);
                }
                if !self.pause.contains(&now) || !sender.waiting.is_empty() {
                    let most = if self.pause.contains(&now) { 1 } else { BATCH };
                    sender.send(most, self, at);
                }
            }
            self.senders = senders;
        }
    }

    /// Wait (ms) of a packet that leaves now; `None`: it is dropped.
    fn wait(&mut self) -> Option<u64> {
        // Numerical Recipes' generator.
        self.chance = self.chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % (1 << 32);
        let is_lost = (self.chance as f64) < self.loss * (1_u64 << 32) as f64;
        if is_lost || self.outage.contains(&self.now) {
            return None;
        }
        match self.limit {
            Limit::Policer { .. } if self.tokens < 1.0 => None,
            Limit::Policer { .. } => {
                self.tokens -= 1.0;
                Some(0)
            }
            Limit::Queue { most } => {
                let (now, service) = (self.now as f64, 1000.0 / self.rate);
                let left = self.left.max(now) + service;
                if left - now > (most + 1.0) * service {
                    return None;
                }
                self.left = left;
                Some(whole((left - now).ceil()))
            }
        }
    }

    /// Resets the counts.
    pub(super) fn count_anew(&mut self) {
        self.senders.iter_mut().for_each(|sender| sender.counts = Counts::default());
    }
}

impl Sender {
    fn hear(&mut self, now: u64, at: Instant) {
        while let Some(packet) = self.in_flight.pop_front_if(|packet| packet.heard <= now) {
            if !packet.has_passed {
                self.lost.push(packet.number);
                continue;
            }
            let rtt = (packet.heard - packet.sent) as f64 / 1000.0;
            self.gate.handle_acked(packet.number, self.smoothed.unwrap_or(rtt), at);
            self.smoothed = Some(self.smoothed.map_or(rtt, |smoothed| smoothed * 0.875 + rtt * 0.125));
            self.gate.handle_end_of_acks();
            self.lost.drain(..).for_each(|lost| self.gate.handle_lost(lost, at));
        }
    }

    fn send(&mut self, most: usize, path: &mut Path, at: Instant) {
        let now = path.now;
        for _ in 0..most {
            let in_flight = (self.in_flight.len() + self.lost.len()) as u64;
            let may = match self.gate.decide(at) {
                SendDecision::Window(packets) | SendDecision::UrgentWindow(packets) => in_flight < packets,
                SendDecision::Controller | SendDecision::One | SendDecision::Send => true,
                SendDecision::Wait => false,
            };
            if !may {
                return;
            }
            self.sent += 1;
            self.gate.handle_packet(self.sent, MTU, at);
            self.gate.handle_transmit(MTU, at);
            let wait = path.wait();
            let has_passed = wait.is_some();
            let before = self.in_flight.back().map_or(0, |packet| packet.heard);
            let heard = (now + path.rtt + path.lateness + wait.unwrap_or(0)).max(before);
            self.in_flight.push_back(Packet { number: self.sent, sent: now, heard, has_passed });
            let urgent = std::mem::take(&mut self.waiting);
            if now > CONVERGENCE {
                let wait = wait.unwrap_or(0);
                self.counts.passed += usize::from(has_passed);
                self.counts.dropped += usize::from(!has_passed);
                self.counts.urgent += urgent.len();
                self.counts.late += urgent.iter().filter(|written| now + wait - **written > 5).count();
                self.counts.latest =
                    urgent.iter().map(|written| now + wait - written).fold(self.counts.latest, u64::max);
                self.counts.urgent_dropped += if has_passed { 0 } else { urgent.len() };
            }
        }
    }
}
