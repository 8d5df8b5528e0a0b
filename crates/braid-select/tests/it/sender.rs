//! Simulated sender and receiver: packets, acknowledgements, loss detection, timers and a congestion window.
//!
//! The simulation knows none of the formulae of the cost model. It sends packets one by one over a [`Link`], and
//! measures when responses are complete. TCP: CUBIC, RACK with an adaptive window, tail loss probes and a
//! retransmission timer of at least 200 ms; the application gets the stream in order. QUIC: RFC 9002 with a window of
//! twice the bandwidth-delay product (BBR); each response is complete by itself.

#![expect(clippy::cast_possible_truncation, reason = "rates of simulated links are small")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use braid_select::Protocol;
use fastrand::Rng;

use crate::network::{Link, PACKET};

/// Small responses that are sent at once.
pub(crate) const STREAMS: usize = 8;
/// Packets of a large response of 64 KiB.
pub(crate) const LARGE: usize = 55;
/// Longest timer of both, in seconds.
const MAX_TIMER: f64 = 60.0;

/// Statistics of one turn: eight small responses at once, then a large one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turn {
    pub(crate) small: Vec<f64>,
    pub(crate) large: f64,
    pub(crate) sent: u64,
    /// Retransmissions of TCP, packets that QUIC declared lost.
    pub(crate) lost: u64,
    /// Losses that were none: late acknowledgements in QUIC.
    pub(crate) spurious: u64,
    /// Duplicates that the receiver of TCP reported.
    pub(crate) duplicates: u64,
    pub(crate) srtt: f64,
    pub(crate) rttvar: f64,
    pub(crate) min_rtt: f64,
    pub(crate) ssthresh: u32,
    /// Bytes a second, and true if the window did not limit them.
    pub(crate) rate: (f64, bool),
}

#[derive(Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Transmission on its way: number of the transmission, number of the packet's content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive { transmission: u64, content: usize },
    Acknowledge { transmission: u64, content: usize, duplicate: bool },
}

#[derive(Clone, Copy)]
struct Flight {
    content: usize,
    at: f64,
    delivered: u64,
    delivered_at: f64,
}

pub(crate) struct Connection {
    protocol: Protocol,
    link: Link,
    rng: Rng,
    now: f64,
    events: BinaryHeap<Reverse<(Time, Event)>>,
    /// Contents to send, retransmissions in front.
    pending: VecDeque<usize>,
    flights: BTreeMap<u64, Flight>,
    next: u64,
    acknowledged: Vec<bool>,
    received: Vec<bool>,
    transmitted: Vec<bool>,
    /// Contents of the present responses that are not acknowledged.
    unacknowledged: usize,
    /// A packet arrived in the latest step.
    arrived: bool,
    /// Contents that were declared lost, by transmission, for late acknowledgements.
    declared: BTreeMap<u64, f64>,
    srtt: f64,
    rttvar: f64,
    min_rtt: f64,
    /// Latest send time among acknowledged transmissions, and largest number.
    newest: (f64, u64),
    /// Multiple of a quarter of the RTT that RACK waits.
    reorder: f64,
    timer_base: f64,
    timeouts: i32,
    probed: bool,
    window: Window,
    delivered: u64,
    delivered_at: f64,
    /// Window was the limit since this turn began.
    window_limited: bool,
    turn: Turn,
}

struct Window {
    packets: f64,
    threshold: f64,
    /// CUBIC: window and time of the last reduction.
    max: f64,
    reduced: f64,
    /// State before the last reduction, for its undoing.
    before: (f64, f64),
    /// Largest delivery rate in packets a second, with its time.
    rate: (f64, f64),
}

impl Connection {
    pub(crate) fn new(protocol: Protocol, link: Link, seed: u64) -> Self {
        let rtt = 2.0 * link.delay + PACKET / link.rate;
        Self {
            protocol,
            link,
            rng: Rng::with_seed(seed),
            now: 0.0,
            events: BinaryHeap::new(),
            pending: VecDeque::new(),
            flights: BTreeMap::new(),
            next: 0,
            acknowledged: Vec::new(),
            received: Vec::new(),
            transmitted: Vec::new(),
            unacknowledged: 0,
            arrived: false,
            declared: BTreeMap::new(),
            srtt: rtt,
            rttvar: rtt / 2.0,
            min_rtt: rtt,
            newest: (0.0, 0),
            reorder: 1.0,
            timer_base: 0.0,
            timeouts: 0,
            probed: false,
            window: Window {
                packets: 10.0,
                threshold: f64::INFINITY,
                max: 0.0,
                reduced: 0.0,
                before: (10.0, f64::INFINITY),
                rate: (0.0, 0.0),
            },
            delivered: 0,
            delivered_at: 0.0,
            window_limited: false,
            turn: Turn::default(),
        }
    }

    /// Sends eight small responses at once, then a large one, and returns the statistics.
    pub(crate) fn turn(&mut self) -> Turn {
        self.turn = Turn::default();
        let start = self.now;
        let done = self.respond(&[1; STREAMS]);
        self.turn.small = done.iter().map(|at| at - start).collect();
        self.now += self.min_rtt;
        (self.window_limited, self.delivered_at) = (false, self.now);
        let (start, delivered) = (self.now, self.delivered);
        let done = self.respond(&[LARGE])[0];
        self.turn.large = done - start;
        // First packet to last one at the receiver, as delivery rate estimation has it.
        let took = (done - start - self.link.delay).max(PACKET / self.link.rate);
        self.turn.rate = ((self.delivered - delivered) as f64 * PACKET / took, !self.window_limited);
        (self.turn.srtt, self.turn.rttvar, self.turn.min_rtt) = (self.srtt, self.rttvar, self.min_rtt);
        self.turn.ssthresh = self.window.threshold.min(f64::from(i32::MAX)) as u32;
        self.now += self.min_rtt;
        self.turn.clone()
    }

    /// Sends responses of so many packets until all are acknowledged: times at which the application had each.
    fn respond(&mut self, packets: &[usize]) -> Vec<f64> {
        let first = self.received.len();
        let total: usize = packets.iter().sum();
        self.received.resize(first + total, false);
        self.acknowledged.resize(first + total, false);
        self.transmitted.resize(first + total, false);
        self.pending.extend(first..first + total);
        self.timer_base = self.now;
        let ends: Vec<usize> = packets
            .iter()
            .scan(first, |end, packets| {
                *end += packets;
                Some(*end)
            })
            .collect();
        let mut done = vec![f64::INFINITY; ends.len()];
        let mut in_order = first;
        self.unacknowledged = total;
        while self.unacknowledged > 0 {
            self.send();
            self.arrived = false;
            self.step();
            if !self.arrived {
                continue;
            }
            while in_order < self.received.len() && self.received[in_order] {
                in_order += 1;
            }
            let mut begin = first;
            for (end, done) in ends.iter().zip(&mut done) {
                let is_done = match self.protocol {
                    Protocol::Tcp => in_order >= *end,
                    Protocol::Quic => self.received[begin..*end].iter().all(|is| *is),
                };
                if is_done && done.is_infinite() {
                    *done = self.now;
                }
                begin = *end;
            }
        }
        // Late copies and acknowledgements.
        while let Some(Reverse((at, event))) = self.events.pop() {
            self.now = self.now.max(at.0);
            self.handle(event);
        }
        self.pending.clear();
        self.flights.clear();
        self.timeouts = 0;
        done
    }

    fn send(&mut self) {
        while let Some(content) = self.pending.front().copied() {
            if self.acknowledged[content] {
                self.pending.pop_front();
                continue;
            }
            if self.flights.len() as f64 >= self.window.packets.floor().max(1.0) {
                self.window_limited = true;
                return;
            }
            self.pending.pop_front();
            self.transmit(content);
        }
    }

    fn transmit(&mut self, content: usize) {
        let transmission = self.next;
        self.next += 1;
        self.turn.sent += 1;
        let again = std::mem::replace(&mut self.transmitted[content], true);
        if again && self.protocol == Protocol::Tcp {
            self.turn.lost += 1;
        }
        let Self { delivered, delivered_at, .. } = *self;
        self.flights.insert(transmission, Flight { content, at: self.now, delivered, delivered_at });
        self.timer_base = self.now;
        for at in self.link.send(self.now, &mut self.rng) {
            self.events.push(Reverse((Time(at), Event::Arrive { transmission, content })));
        }
    }

    /// Advances to the next event or timer.
    fn step(&mut self) {
        let loss = self.loss_time();
        let timer = self.timer_base + self.timer();
        let event = self.events.peek().map_or(f64::INFINITY, |Reverse((at, _))| at.0);
        let next = event.min(loss).min(timer);
        self.now = self.now.max(next);
        if event <= next {
            let Some(Reverse((_, event))) = self.events.pop() else { return };
            self.handle(event);
            self.detect();
        } else if loss <= next {
            self.detect();
        } else {
            self.time_out();
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive { transmission, content } => {
                self.arrived = true;
                let duplicate = std::mem::replace(&mut self.received[content], true);
                let at = Time(self.now + self.link.delay);
                self.events.push(Reverse((at, Event::Acknowledge { transmission, content, duplicate })));
            }
            Event::Acknowledge { transmission, content, duplicate } => {
                self.acknowledge(transmission, content, duplicate);
            }
        }
    }

    fn acknowledge(&mut self, transmission: u64, content: usize, duplicate: bool) {
        if duplicate && self.protocol == Protocol::Tcp {
            self.turn.duplicates += 1;
        }
        if let Some(at) = self.declared.remove(&transmission) {
            self.spurious(at);
        }
        if !std::mem::replace(&mut self.acknowledged[content], true) {
            self.unacknowledged -= 1;
        }
        let Some(flight) = self.flights.remove(&transmission) else { return };
        self.delivered += 1;
        let rtt = self.now - flight.at;
        self.min_rtt = self.min_rtt.min(rtt);
        self.rttvar += ((self.srtt - rtt).abs() - self.rttvar) / 4.0;
        self.srtt += (rtt - self.srtt) / 8.0;
        self.newest = (self.newest.0.max(flight.at), self.newest.1.max(transmission));
        (self.timer_base, self.timeouts, self.probed) = (self.now, 0, false);
        let elapsed = (self.now - flight.delivered_at.max(flight.at)).max(rtt);
        let rate = (self.delivered - flight.delivered) as f64 / elapsed;
        self.delivered_at = self.now;
        // Linux: a window that is not used does not grow.
        let used = self.flights.len() as f64 + 1.0;
        if self.protocol == Protocol::Quic || 2.0 * used >= self.window.packets {
            self.window.acknowledge(self.protocol, self.now, rate, self.srtt, self.min_rtt);
        }
    }

    /// A transmission that was declared lost was acknowledged.
    fn spurious(&mut self, declared: f64) {
        if self.protocol == Protocol::Quic {
            self.turn.spurious += 1;
            return;
        }
        // Linux learns of it by a duplicate: RACK waits longer, and the reduction is undone.
        self.reorder = (self.reorder + 1.0).min(4.0);
        if declared <= self.window.reduced {
            (self.window.packets, self.window.threshold) = self.window.before;
        }
    }

    /// Time after its sending at which a transmission is lost when later ones were acknowledged.
    fn wait(&self) -> f64 {
        match self.protocol {
            Protocol::Tcp => self.srtt + self.reorder * self.min_rtt / 4.0,
            Protocol::Quic => (1.125 * self.srtt).max(0.001),
        }
    }

    /// Tests whether a later packet was acknowledged.
    fn is_overtaken(&self, transmission: u64) -> bool {
        transmission < self.newest.1
    }

    fn loss_time(&self) -> f64 {
        let first = self.flights.iter().find(|(transmission, _)| self.is_overtaken(**transmission));
        first.map_or(f64::INFINITY, |(_, flight)| flight.at + self.wait())
    }

    fn detect(&mut self) {
        let wait = self.wait();
        let by_number = if self.protocol == Protocol::Quic { 3 } else { u64::MAX };
        let lost: Vec<u64> = self
            .flights
            .iter()
            .filter(|(transmission, flight)| {
                self.is_overtaken(**transmission)
                    && (flight.at + wait <= self.now + 1e-9 || self.newest.1 - **transmission >= by_number)
            })
            .map(|(transmission, _)| *transmission)
            .collect();
        for transmission in lost.into_iter().rev() {
            self.lose(transmission);
        }
    }

    fn lose(&mut self, transmission: u64) {
        let Some(flight) = self.flights.remove(&transmission) else { return };
        if self.protocol == Protocol::Quic {
            self.turn.lost += 1;
        }
        self.declared.insert(transmission, self.now);
        if !self.acknowledged[flight.content] {
            self.pending.push_front(flight.content);
        }
        if self.protocol == Protocol::Tcp && flight.at > self.window.reduced {
            self.window.reduce(self.now);
        }
    }

    /// Timer from the last transmission or acknowledgement on.
    fn timer(&self) -> f64 {
        if self.flights.is_empty() {
            return f64::INFINITY;
        }
        let deviation = 4.0 * self.rttvar;
        let timer = match self.protocol {
            Protocol::Quic => self.srtt + deviation.max(0.001) + 0.025,
            Protocol::Tcp => {
                let timer = self.srtt + deviation.max(0.2);
                let probe = 2.0 * self.srtt + if self.flights.len() == 1 { 0.2 } else { 0.002 };
                if self.probed || self.timeouts > 0 { timer } else { probe.min(timer) }
            }
        };
        (timer * 2_f64.powi(self.timeouts)).min(MAX_TIMER)
    }

    fn time_out(&mut self) {
        let Some((last, flight)) = self.flights.last_key_value().map(|(last, flight)| (*last, *flight))
        else {
            return;
        };
        match self.protocol {
            // One probe with the oldest content beyond the window, and no verdict on the rest.
            Protocol::Quic => {
                self.timeouts += 1;
                let oldest = self.flights.values().map(|flight| flight.content).min();
                self.transmit(oldest.unwrap_or(flight.content));
            }
            Protocol::Tcp if !self.probed && self.timeouts == 0 => {
                self.probed = true;
                self.flights.remove(&last);
                self.transmit(flight.content);
            }
            Protocol::Tcp => {
                let flights: Vec<u64> = self.flights.keys().copied().collect();
                for transmission in flights.into_iter().rev() {
                    self.lose(transmission);
                }
                self.timeouts += 1;
                self.window.packets = 1.0;
                self.timer_base = self.now;
            }
        }
    }
}

impl Window {
    fn acknowledge(&mut self, protocol: Protocol, now: f64, rate: f64, srtt: f64, min_rtt: f64) {
        match protocol {
            Protocol::Tcp if self.packets < self.threshold => self.packets += 1.0,
            Protocol::Tcp => {
                // RFC 9438: C = 0.4, beta = 0.7, and never below Reno.
                let k = (self.max * 0.3 / 0.4).cbrt();
                let cubic = 0.4 * (now - self.reduced - k).powi(3) + self.max;
                let reno = 3.0 * 0.3 / 1.7 / self.packets;
                self.packets += ((cubic - self.packets) / self.packets).clamp(0.0, 0.5).max(reno);
            }
            Protocol::Quic => {
                if rate >= self.rate.0 || now - self.rate.1 > 10.0 * srtt.max(1.0) {
                    self.rate = (rate, now);
                }
                self.packets = (2.0 * self.rate.0 * min_rtt).max(10.0);
            }
        }
    }

    fn reduce(&mut self, now: f64) {
        self.before = (self.packets, self.threshold);
        (self.max, self.reduced) = (self.packets, now);
        self.packets = (self.packets * 0.7).max(2.0);
        self.threshold = self.packets;
    }
}
