//! Gates against a policer as it is, a millisecond at a time: nothing of QUIC, and no clock.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::super::{Gate, Permit};

const MTU: u64 = 1452;

/// An alarm every 100 ms, and a ping every half second, at any time between.
const ALARM: u64 = 100;
const PING: u64 = 503;

/// Until then (ms) a gate may find out.
const CONVERGENCE: u64 = 3000;

/// As often the library asks in a batch.
const BATCH: usize = 10;

/// Bytes of an alarm or of a ping.
const URGENT: u64 = 80;

pub(super) struct Path {
    begun: Instant,
    /// ms
    now: u64,
    /// Packets a second, and at once.
    pub(super) rate: f64,
    depth: f64,
    tokens: f64,
    /// ms
    trip: u64,
    /// When (ms) there is no bulk.
    pub(super) pause: Range<u64>,
    pub(super) senders: Vec<Sender>,
}

pub(super) struct Sender {
    pub(super) gate: Gate,
    sent: u64,
    /// Number, when (ms) it is heard of, and whether it has passed.
    under_way: VecDeque<(u64, u64, bool)>,
    /// What was lost, until a later one is acknowledged.
    lost: Vec<u64>,
    /// When (ms) what is urgent was written.
    waiting: VecDeque<u64>,
    pub(super) counts: Counts,
}

/// Since convergence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) passed: usize,
    pub(super) dropped: usize,
    pub(super) urgent: usize,
    pub(super) urgent_dropped: usize,
    /// Urgent, and kept back for more than 5 ms.
    pub(super) late: usize,
    /// The longest (ms).
    pub(super) latest: u64,
}

impl Path {
    pub(super) fn new(rate: f64, trip: u64, senders: usize) -> Self {
        let begun = Instant::now();
        let sender = || Sender {
            gate: Gate::new(begun, 1452, 2),
            sent: 0,
            under_way: VecDeque::new(),
            lost: Vec::new(),
            waiting: VecDeque::new(),
            counts: Counts::default(),
        };
        let senders = std::iter::repeat_with(sender).take(senders).collect();
        Self { begun, now: 0, rate, depth: 5.0, tokens: 5.0, trip, pause: 0..0, senders }
    }

    /// With bulk at any time.
    pub(super) fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 1000 {
            self.now += 1;
            self.tokens = (self.tokens + self.rate / 1000.0).min(self.depth);
            let at = self.begun + Duration::from_millis(self.now);
            let Self { now, trip, tokens, pause, senders, .. } = self;
            for (place, sender) in senders.iter_mut().enumerate() {
                // Senders do not know of each other.
                let clock = *now + 31 * place as u64;
                sender.hear(*now, *trip, at);
                if clock.is_multiple_of(ALARM) || clock.is_multiple_of(PING) {
                    sender.gate.handle_urgent(URGENT, at);
                    sender.waiting.push_back(*now);
                }
                if !pause.contains(now) || !sender.waiting.is_empty() {
                    let most = if pause.contains(now) { 1 } else { BATCH };
                    sender.send(most, *now, *trip, tokens, at);
                }
            }
        }
    }

    /// Forgets what was counted.
    pub(super) fn count_anew(&mut self) {
        self.senders.iter_mut().for_each(|sender| sender.counts = Counts::default());
    }
}

impl Sender {
    fn hear(&mut self, now: u64, trip: u64, at: Instant) {
        while let Some((number, _, has_passed)) = self.under_way.pop_front_if(|(_, heard, _)| *heard <= now) {
            if !has_passed {
                self.lost.push(number);
                continue;
            }
            self.gate.handle_acked(number, trip as f64 / 1000.0, at);
            self.gate.handle_end_of_acks();
            self.lost.drain(..).for_each(|lost| self.gate.handle_lost(lost, at));
        }
    }

    fn send(&mut self, most: usize, now: u64, trip: u64, tokens: &mut f64, at: Instant) {
        for _ in 0..most {
            let on_the_way = (self.under_way.len() + self.lost.len()) as u64;
            let may = match self.gate.permit(at) {
                Permit::Window(packets) => on_the_way < packets,
                Permit::Open | Permit::One | Permit::Yes => true,
                Permit::No => false,
            };
            if !may {
                return;
            }
            self.sent += 1;
            self.gate.handle_packet(self.sent, MTU, at);
            self.gate.handle_transmit(MTU, at);
            let has_passed = *tokens >= 1.0;
            *tokens -= f64::from(u8::from(has_passed));
            self.under_way.push_back((self.sent, now + trip, has_passed));
            let urgent = std::mem::take(&mut self.waiting);
            if now > CONVERGENCE {
                self.counts.passed += usize::from(has_passed);
                self.counts.dropped += usize::from(!has_passed);
                self.counts.urgent += urgent.len();
                self.counts.late += urgent.iter().filter(|written| now - **written > 5).count();
                self.counts.latest =
                    urgent.iter().map(|written| now - written).fold(self.counts.latest, u64::max);
                self.counts.urgent_dropped += if has_passed { 0 } else { urgent.len() };
            }
        }
    }
}
