//! The bulk gate: when a packet may leave, so that what is urgent never finds a queue.
//!
//! A path that limits shows how: a policer drops what exceeds its rate and delays nothing, a bottleneck with a queue
//! delays. For either the gate keeps a mirror of what the bottleneck holds, corrected by what became of each packet, and
//! lets bulk out only while there is room for something urgent besides. Nothing else limits then; a path that shows neither
//! is left to the congestion controller.

mod arrival_period;
mod base_delay;
mod deferred_packet;
mod loss_tolerant;
mod min_rtt;
mod passthrough;
mod policer_model;
mod queue_model;
mod random_loss;
mod rtt_samples;
mod send_decision;
mod sent_packets;
mod startup;
mod state;
#[cfg(test)]
mod tests;

use std::time::Instant;

use arrival_period::Rhythm;
use deferred_packet::Later;
pub(in crate::quic) use deferred_packet::Leave;
use loss_tolerant::Search;
use min_rtt::Trip;
use passthrough::Open;
use policer_model::Bucket;
use queue_model::Queue;
use sent_packets::{Fate, Ledger, Sent};
use startup::Start;
pub use state::{GateState, Level};

/// A path that carries so many packets a second is left to the congestion controller: one of them is soon gone.
const FAST: f64 = 5000.0;

/// A wait (s) that shows a queue.
const QUEUED: f64 = 0.01;

/// What was taken for a policer has a queue when so many packets in a row wait, for such a time (s) at least.
const DELAYED: u32 = 8;
const DELAYED_FOR: f64 = 0.3;

/// Departures say how long each takes when they are so far apart (s).
const ENOUGH: f64 = 0.015;

/// Acknowledgements are due so long (s) after what they acknowledge, and are taken along when they are due within the
/// other.
const ACK_DELAY: f64 = 0.025;
const ACK_SOON: f64 = 0.004;

/// So long (s) after it was found that a path loses at random, drops make no policer.
const DEAF: f64 = 60.0;

/// Packets that may be on their way at first on a path that takes the place of another.
const MOVED: f64 = 32.0;

/// An acknowledgement is due after 25 ms, and missed soon after.
const SILENCE: f64 = 0.03;

/// Where the path limits, what leaves out of turn is missing later: four packets later, or after this time (s).
const LIMITED_SILENCE: f64 = 0.2;

/// Beyond two round trips an acknowledgement may take so long (s).
const PATIENCE: f64 = 0.5;

/// The library tells what became of a packet at the latest so many round trips, and so long (s), after it has told that of
/// a later one.
const TOLD: f64 = 2.0;
const TOLD_LATE: f64 = 0.05;

/// Of what is sent in so long (s), and of as much as is on its way, the library may have that much again.
const AHEAD: f64 = 0.1;

/// Packets that it may have while nothing is known.
const AHEAD_AT_FIRST: u64 = 32;

/// A round trip (s) of which each counts while the sender finds out.
const LONG: f64 = 0.01;

/// Bytes of a packet that are not payload of streams, about.
const OVERHEAD: u64 = 40;

/// What the path is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Not known yet.
    Start,
    /// Nothing that the gate has to know.
    Open,
    /// It loses at random; what limits it is looked for.
    Search,
    /// It drops what exceeds a rate, and delays nothing.
    Policed,
    /// It queues.
    Queued,
}

impl Class {
    /// The gate decides, not the congestion controller.
    pub(in crate::quic) fn is_limited(self) -> bool {
        matches!(self, Self::Search | Self::Policed | Self::Queued)
    }
}

/// Whether the next packet may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quic) enum Permit {
    /// The congestion controller decides.
    Open,
    /// So many packets may be on their way, unless the congestion controller wants fewer.
    Window(u64),
    /// One, however many are on their way.
    One,
    Yes,
    No,
}

#[derive(Clone, Debug)]
enum State {
    Start(Start),
    Open(Open),
    Search(Search),
    Policed(Bucket),
    Queued(Queue),
}

/// A packet that was acknowledged.
#[derive(Clone, Copy, Debug)]
struct Heard {
    sent: Sent,
    /// s
    at: f64,
    /// Its acknowledgement told of no other: it may have been held back.
    is_single: bool,
}

#[derive(Clone, Debug)]
pub(in crate::quic) struct Gate {
    epoch: Instant,
    /// Tokens of a policer's bucket.
    reserve: f64,
    state: State,
    /// Until then (s) drops make no policer.
    deaf_until: f64,
    /// Until then round trips make no queue.
    blind_until: f64,
    ledger: Ledger,
    trip: Trip,
    rhythm: Rhythm,
    /// Bytes written that are urgent and not sent yet, about.
    urgent: u64,
    /// Since when (s) there were some.
    urgent_since: Option<f64>,
    owes_ack: Option<f64>,
    /// When (s) something last left.
    last_sent: f64,
    mtu: u64,
    /// Datagrams that ask for no acknowledgement.
    silent: u64,
    /// All of them.
    datagrams: u64,
    /// Bytes of the present batch that stay here.
    withheld: u64,
    /// Packets since the last transmit that do.
    eliciting: u64,
    /// What stays here until it may leave.
    later: Option<Later>,
    /// The round trip as the library knows it, and what was acknowledged last: its round trip comes with the next.
    smoothed: Option<f64>,
    newest: Option<Heard>,
    /// Packets that the present acknowledgement is the first to tell of.
    acked: u32,
    /// Something was lost since a round trip was known last.
    has_lost: bool,
    /// The peer waits with an acknowledgement of one packet.
    peer_waits: bool,
    /// What the path was taken for does not explain what is lost.
    is_hopeless: bool,
    /// The last packet whose round trip is known: which it was, and when (s) it left the bottleneck.
    left: Option<(u64, f64)>,
    /// The same of the first that waited in a row of them.
    queued_since: Option<(u64, f64)>,
    /// Behind what was taken for a policer: packets in a row that waited, and since when (s).
    delayed: Option<(u32, f64)>,
}

impl Gate {
    /// `reserve`: packets that are left for what is urgent.
    pub(in crate::quic) fn new(now: Instant, mtu: u16, reserve: u8) -> Self {
        Self {
            epoch: now,
            reserve: reserve.into(),
            state: State::Start(Start::new(0.0)),
            deaf_until: 0.0,
            blind_until: 0.0,
            ledger: Ledger::default(),
            trip: Trip::default(),
            rhythm: Rhythm::default(),
            urgent: 0,
            urgent_since: None,
            owes_ack: None,
            last_sent: 0.0,
            mtu: mtu.into(),
            silent: 0,
            datagrams: 0,
            withheld: 0,
            eliciting: 0,
            later: None,
            smoothed: None,
            newest: None,
            acked: 0,
            has_lost: false,
            peer_waits: false,
            is_hopeless: false,
            left: None,
            queued_since: None,
            delayed: None,
        }
    }

    /// Of a path that takes the place of another: the answers that prove it must not wait for what is on its way.
    pub(in crate::quic) fn moved(now: Instant, mtu: u16, reserve: u8) -> Self {
        Self { state: State::Start(Start::again(MOVED, 0.0)), ..Self::new(now, mtu, reserve) }
    }

    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.epoch).as_secs_f64()
    }

    pub(in crate::quic) fn class(&self) -> Class {
        match self.state {
            State::Start(_) => Class::Start,
            State::Open(_) => Class::Open,
            State::Search(_) => Class::Search,
            State::Policed(_) => Class::Policed,
            State::Queued(_) => Class::Queued,
        }
    }

    /// Packets per second, where something limits them.
    pub(in crate::quic) fn rate(&self) -> Option<f64> {
        match &self.state {
            State::Start(_) | State::Open(_) | State::Search(_) => None,
            State::Policed(bucket) => Some(bucket.rate()),
            State::Queued(queue) => Some(queue.rate()),
        }
    }

    pub(in crate::quic) fn handle_mtu(&mut self, mtu: u16) {
        self.mtu = mtu.into();
    }

    /// So many bytes were written that are more urgent than others.
    pub(in crate::quic) fn handle_urgent(&mut self, bytes: u64, now: Instant) {
        let now = self.seconds(now);
        self.urgent += bytes;
        self.urgent_since.get_or_insert(now);
        self.rhythm.handle(now);
    }

    /// What was said to be urgent is not.
    pub(in crate::quic) fn forget_urgent(&mut self) {
        self.urgent = 0;
        self.urgent_since = None;
    }

    /// Something has come that has to be acknowledged.
    pub(in crate::quic) fn handle_received(&mut self, now: Instant) {
        let due = self.seconds(now) + ACK_DELAY;
        self.owes_ack.get_or_insert(due);
    }

    /// A packet leaves that asks for an acknowledgement.
    pub(in crate::quic) fn handle_packet(&mut self, number: u64, bytes: u64, now: Instant) {
        let now = self.seconds(now);
        self.owes_ack = None;
        self.last_sent = now;
        if matches!(self.state, State::Open(_)) {
            self.urgent = 0;
            return;
        }
        let urgent = self.urgent.min(bytes.saturating_sub(OVERHEAD));
        self.urgent -= urgent;
        if self.urgent == 0 {
            self.urgent_since = None;
        }
        self.datagrams += 1;
        let mut sent = Sent {
            number,
            at: now,
            urgent,
            silent: self.silent,
            on_the_way: self.ledger.on_the_way() + 1,
            is_full: bytes * 10 >= self.mtu * 9,
            is_probe: false,
            level: 0.0,
            shift: 0.0,
            place: self.datagrams,
            expected: None,
            fate: None,
            told: 0.0,
        };
        match &mut self.state {
            State::Policed(bucket) => {
                let has_token = urgent > 0 && bucket.permits_urgent(now);
                sent.is_probe = !has_token && bucket.take_bulk();
                (sent.level, sent.shift) = (bucket.level(now), bucket.shifted());
                bucket.charge(now);
            }
            State::Queued(queue) => {
                sent.expected = Some(queue.wait(now));
                queue.charge(sent.place, now);
            }
            State::Start(_) | State::Open(_) | State::Search(_) => {}
        }
        self.eliciting += 1;
        // A probe for a larger MTU is not told of when it is lost.
        if bytes <= self.mtu {
            self.ledger.push(sent);
        }
    }

    /// A packet of so many bytes stays here.
    pub(in crate::quic) fn handle_withheld(&mut self, bytes: u64) {
        self.withheld += bytes;
    }

    /// Whether something may leave that asks why no acknowledgement comes.
    pub(in crate::quic) fn permits_probe(&self, now: Instant) -> bool {
        let now = self.seconds(now);
        if self.is_silent(now) {
            return true;
        }
        match &self.state {
            State::Start(_) | State::Open(_) | State::Search(_) => true,
            State::Policed(bucket) => bucket.permits_urgent(now),
            State::Queued(queue) => queue.permits_urgent(now),
        }
    }

    /// `bytes` have left, in one or more datagrams.
    pub(in crate::quic) fn handle_transmit(&mut self, bytes: u64, now: Instant) {
        let now = self.seconds(now);
        let bytes = bytes - std::mem::take(&mut self.withheld).min(bytes);
        let datagrams = bytes.div_ceil(self.mtu.max(1));
        for _ in self.eliciting..datagrams {
            self.silent += 1;
            self.last_sent = now;
            self.datagrams += 1;
            self.owes_ack = None;
            match &mut self.state {
                State::Policed(bucket) => bucket.charge(now),
                State::Queued(queue) => queue.charge(self.datagrams, now),
                State::Start(_) | State::Open(_) | State::Search(_) => {}
            }
        }
        self.eliciting = 0;
    }

    /// `smoothed`: the round trip as the library knows it before this acknowledgement.
    pub(in crate::quic) fn handle_acked(&mut self, number: u64, smoothed: f64, now: Instant) {
        let now = self.seconds(now);
        self.handle_smoothed(smoothed, now);
        let Some(sent) = self.ledger.settle(number, Fate::Passed, now) else { return };
        self.acked += 1;
        if self.newest.is_none_or(|newest| newest.sent.number < sent.number) {
            self.newest = Some(Heard { sent, at: now, is_single: self.acked == 1 });
        }
        let on_the_way = sent.on_the_way;
        match &mut self.state {
            State::Start(start) => {
                let is_full = on_the_way * 2 > start.window();
                let is_long = self.trip.base().is_some_and(|base| base > LONG) && self.queued_since.is_none();
                if start.passed(is_full, is_long, now) {
                    self.open(now);
                }
            }
            State::Search(search) => search.passed(on_the_way * 2 > search.window()),
            _ => {}
        }
        self.settle(now);
    }

    /// More is lost than what the path was taken for would lose.
    fn give_up(&mut self, now: f64) {
        if matches!(self.state, State::Search(_)) {
            self.open(now);
        } else if now >= self.deaf_until {
            // It is not only a queue, if it ever was one.
            self.trip = Trip::default();
            self.state = State::Start(Start::new(now));
        }
    }

    /// The congestion controller decides from now on.
    fn open(&mut self, now: f64) {
        self.state = State::Open(Open::new(now, self.trip.base().unwrap_or(f64::INFINITY)));
        self.ledger.clear();
        self.urgent = 0;
        self.newest = None;
        self.left = None;
        self.queued_since = None;
    }

    pub(in crate::quic) fn handle_lost(&mut self, number: u64, now: Instant) {
        let now = self.seconds(now);
        // What was in it is sent again.
        self.give_up_later(|kept| kept == number, now);
        let Some(sent) = self.ledger.settle(number, Fate::Lost, now) else { return };
        self.has_lost = true;
        if sent.urgent > 0 {
            self.urgent += sent.urgent;
            self.urgent_since.get_or_insert(now);
        }
        self.settle(now);
    }

    fn settle(&mut self, now: f64) {
        let patience = self.smoothed.map_or(f64::INFINITY, |smoothed| smoothed * TOLD + TOLD_LATE);
        while let Some((sent, fate)) = self.ledger.next(patience, now) {
            match (&mut self.state, fate) {
                (State::Policed(bucket), fate) => {
                    match fate {
                        Fate::Passed => bucket.passed(&sent, &self.ledger, now),
                        Fate::Lost => bucket.dropped(&sent, now),
                    }
                    if bucket.is_chance() {
                        self.deaf_until = now + DEAF;
                        self.state = State::Search(Search::new());
                    }
                }
                (State::Start(start), Fate::Lost) => {
                    let policed = start.dropped(sent.at, sent.silent);
                    if let Some(rate) = policed.filter(|_| now >= self.deaf_until) {
                        self.state = State::Policed(Bucket::new(rate, self.reserve, now));
                    } else if start.is_chance() {
                        self.deaf_until = now + DEAF;
                        self.state = State::Search(Search::new());
                    }
                }
                (State::Search(search), Fate::Lost) => self.is_hopeless = search.dropped(),
                (State::Queued(queue), fate) => self.is_hopeless = queue.is_lossy(fate),
                _ => {}
            }
        }
        if std::mem::take(&mut self.is_hopeless) {
            self.give_up(now);
        } else if self.rate().is_some_and(|rate| rate > FAST) {
            self.open(now);
        }
    }
}

/// A number of packets.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is too large or too small is cut off"
)]
fn whole(packets: f64) -> u64 {
    packets as u64
}
