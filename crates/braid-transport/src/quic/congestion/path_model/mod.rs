//! Model of a path: samples in, send decisions out. No clock, no runtime, no random numbers.
//!
//! A path limits in one of two ways: a policer drops what exceeds its rate and delays nothing, a bottleneck with a
//! queue delays. For a policer and a slow queue the gate keeps a model of what the bottleneck holds, corrects it by the
//! fate and the RTT of each packet, and permits bulk only while an urgent packet would still find room; for a faster
//! queue it keeps a window. Then no other window limits.
//! A path that shows neither is left to the congestion controller. [`class`] decides which it is.

mod arrival_period;
mod class;
mod loss_intervals;
mod policer_model;
mod queue_model;
mod rtt_samples;
mod send_decision;
mod sent_packets;
mod service_schedule;
mod standing_queue;
mod startup;
mod tail_pings;
#[cfg(test)]
mod tests;
mod window_model;

use std::time::{Duration, Instant};

use arrival_period::UrgentBytes;
pub use class::{Class, Reason};
use class::{Model, REFUTED};
use rtt_samples::RttSamples;
pub(in crate::quic) use send_decision::SendDecision;
use sent_packets::{Fate, SentPacket, SentPackets};
pub(in crate::quic) use startup::FateCounts;
use startup::Startup;
use tail_pings::TailPings;

/// Packets a second above which a path is left to the congestion controller: one of them is soon gone.
const FAST: f64 = 5000.0;

/// Resolution (s) of timers.
const TICK: f64 = 0.001;

/// The gate: decides when a packet may leave, so that an urgent one never finds a queue.
#[derive(Clone, Debug)]
pub(in crate::quic) struct Gate {
    epoch: Instant,
    /// Tokens of a policer's bucket that bulk leaves for urgent packets.
    reserve: f64,
    model: Model,
    reason: Reason,
    /// Time (s) at which lost packets last turned out to be late.
    late_at: f64,
    /// Time (s) until which drops make no policer.
    ignore_loss_until: f64,
    /// Time (s) for which that is so once a policer is refuted again.
    refuted: f64,
    /// Time (s) until which a slow queue is not modelled.
    no_queue_until: f64,
    sent: SentPackets,
    rtt: RttSamples,
    urgent: UrgentBytes,
    tail: TailPings,
}

impl Gate {
    /// `reserve`: tokens of a policer's bucket that bulk leaves for urgent packets.
    pub(in crate::quic) fn new(now: Instant, mtu: u16, reserve: u8) -> Self {
        Self {
            epoch: now,
            reserve: reserve.into(),
            model: Model::Startup(Startup::new(0.0)),
            reason: Reason::NewPath,
            late_at: f64::NEG_INFINITY,
            ignore_loss_until: 0.0,
            refuted: REFUTED,
            no_queue_until: 0.0,
            sent: SentPackets::new(mtu),
            rtt: RttSamples::default(),
            urgent: UrgentBytes::default(),
            tail: TailPings::default(),
        }
    }

    /// Begins with so many packets in flight.
    #[must_use]
    pub(in crate::quic) fn with_window(self, packets: u64) -> Self {
        Self { model: Model::Startup(Startup::with_window(packets as f64, 0.0)), ..self }
    }

    /// Begins on a path that held so many packets for an earlier connection, and permits one in `part` of them.
    #[must_use]
    pub(in crate::quic) fn resumed(self, packets: u64, part: u64) -> Self {
        let startup = Startup::resumed(packets as f64, 1.0 / part as f64, 0.0);
        Self { model: Model::Startup(startup), ..self }
    }

    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.epoch).as_secs_f64()
    }

    pub(in crate::quic) fn class(&self) -> Class {
        self.model.class()
    }

    pub(in crate::quic) fn handle_mtu(&mut self, mtu: u16) {
        self.sent.mtu = mtu.into();
    }

    /// Notes urgent bytes that were written.
    pub(in crate::quic) fn handle_urgent(&mut self, bytes: u64, now: Instant) {
        let now = self.seconds(now);
        self.urgent.add(bytes, now);
        self.urgent.arrivals.handle_arrival(now);
    }

    /// Forgets the urgent bytes that were written.
    pub(in crate::quic) fn forget_urgent(&mut self) {
        self.urgent.forget();
    }

    /// Notes that the next packet holds as much as it can, though it may be smaller than others.
    pub(in crate::quic) fn handle_filled(&mut self) {
        self.sent.is_next_full = true;
    }

    /// Notes an ack-eliciting packet that leaves.
    pub(in crate::quic) fn handle_packet(&mut self, number: u64, bytes: u64, now: Instant) {
        let now = self.seconds(now);
        self.sent.last_at = now;
        if let Model::Passthrough(_) = self.model {
            return self.urgent.forget();
        }
        let is_ping = bytes <= self.sent.mtu && self.tail.handle_packet(number, bytes, now);
        let urgent = self.urgent.take(bytes);
        self.sent.datagrams += 1;
        let mut sent = SentPacket {
            number,
            at: now,
            urgent,
            ack_only: self.sent.ack_only,
            in_flight: self.sent.in_flight() + 1,
            is_full: std::mem::take(&mut self.sent.is_next_full) || bytes * 10 >= self.sent.mtu * 9,
            is_ping,
            ordinal: self.sent.datagrams,
            ..SentPacket::default()
        };
        match &mut self.model {
            Model::Policed(policer) => policer.note(&mut sent, now),
            Model::Queued(queue) => sent.expected = Some(queue.wait(now)),
            Model::Windowed(path) => path.charge(sent.ordinal, sent.in_flight, now),
            _ => {}
        }
        self.charge(now);
        self.sent.eliciting += 1;
        // The library does not report the loss of a probe for a larger MTU.
        if bytes <= self.sent.mtu {
            self.sent.push(sent);
        }
    }

    /// Adds the datagram that was counted last to the model.
    fn charge(&mut self, now: f64) {
        match &mut self.model {
            Model::Policed(policer) => policer.charge(now),
            Model::Queued(queue) => queue.charge(self.sent.datagrams, now),
            _ => {}
        }
    }

    /// Notes bytes of a batch that do not leave.
    pub(in crate::quic) fn handle_withheld(&mut self, bytes: u64) {
        self.sent.withheld += bytes;
    }

    /// Notes the end of a batch of `bytes`, in one or more datagrams.
    pub(in crate::quic) fn handle_transmit(&mut self, bytes: u64, now: Instant) {
        let now = self.seconds(now);
        let bytes = bytes - std::mem::take(&mut self.sent.withheld).min(bytes);
        let datagrams = bytes.div_ceil(self.sent.mtu.max(1));
        for _ in std::mem::take(&mut self.sent.eliciting)..datagrams {
            self.sent.ack_only += 1;
            self.sent.last_at = now;
            self.sent.datagrams += 1;
            self.charge(now);
        }
    }

    /// Notes an acknowledged packet. `smoothed`: RTT (s) of the library before this acknowledgement.
    pub(in crate::quic) fn handle_acked(&mut self, number: u64, smoothed: f64, now: Instant) {
        let now = self.seconds(now);
        if let Some(sample) = self.rtt.sample(smoothed) {
            self.handle_sample(&sample, now);
        }
        self.tail.handle_acked(number);
        let Some(sent) = self.sent.resolve(number, Fate::Passed, now) else { return };
        self.rtt.handle_acked(sent, now);
        self.handle_delivered(&sent, now);
        self.handle_fates(now);
    }

    /// Notes that all packets of an acknowledgement were reported.
    pub(in crate::quic) fn handle_end_of_acks(&mut self) {
        self.rtt.handle_end_of_acks();
    }

    /// Notes a lost packet.
    pub(in crate::quic) fn handle_lost(&mut self, number: u64, now: Instant) {
        let now = self.seconds(now);
        // Withheld probes and packets of the path before are not lost here.
        let Some(sent) = self.sent.resolve(number, Fate::Lost, now) else { return };
        // Where a window measures a policer, PINGs would take its tokens.
        if self.class() == Class::Windowed && self.reason != Reason::DropsAboveRate {
            self.tail.handle_random_loss(now);
        }
        if sent.urgent > 0 {
            self.urgent.add(sent.urgent, now);
        }
        self.handle_fates(now);
    }

    /// Notes a lost packet without data. Only of a PING behind other packets it is known that it has left.
    pub(in crate::quic) fn handle_lost_bare(&mut self, number: u64, now: Instant) {
        if self.sent.is_ping(number) {
            self.handle_lost(number, now);
        }
    }

    /// Bytes per second, and shortest round trip, of a path with a window.
    pub(in crate::quic) fn capacity(&self) -> Option<(u64, Duration)> {
        let Model::Windowed(path) = &self.model else { return None };
        Some((whole(path.rate() * self.sent.mtu as f64), duration(self.rtt.min.rtt?)))
    }

    /// Returns a snapshot for statistics.
    pub(in crate::quic) fn state(&self, now: Instant) -> GateState {
        let now = self.seconds(now);
        let of_queue = |wait, aim| Some(Level::Queue { wait: duration(wait), aim: duration(aim) });
        let level = match &self.model {
            Model::Policed(policer) => {
                Some(Level::Tokens { left: policer.level(now), reserve: policer.reserve() })
            }
            Model::Queued(queue) => of_queue(queue.wait(now), queue.aim()),
            Model::Windowed(path) => of_queue(path.wait(), path.aim()),
            _ => None,
        };
        GateState {
            class: self.class(),
            reason: self.reason,
            packets_per_second: self.model.rate(),
            bytes_per_second: self.model.rate().map(|rate| rate * self.sent.mtu as f64),
            level,
            on_the_way: self.sent.in_flight(),
            packets: self.sent.datagrams,
        }
    }
}

/// Snapshot of the gate of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateState {
    /// Limit that the path is taken to have.
    pub class: Class,
    /// Reason for the class.
    pub reason: Reason,
    /// Estimated packets per second that the path passes. `None`: no limit is known.
    pub packets_per_second: Option<f64>,
    /// Estimated bytes of UDP payload per second, if all packets are as large as the path permits.
    pub bytes_per_second: Option<f64>,
    /// State of the bottleneck, where there is one.
    pub level: Option<Level>,
    /// Packets that are neither acknowledged nor lost.
    pub on_the_way: u64,
    /// Packets that left on this path while the congestion controller did not decide alone, those of startup included.
    pub packets: u64,
}

/// State of a bottleneck, as modelled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Level {
    /// State of a policer.
    Tokens {
        /// Packets that the policer would pass at once.
        left: f64,
        /// Packets of them that bulk leaves for urgent ones.
        reserve: f64,
    },
    /// State of a queue.
    Queue {
        /// Wait of a packet that is sent now.
        wait: Duration,
        /// Longest wait of bulk: a packet that would wait longer is kept back.
        aim: Duration,
    },
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}

/// Number of packets, cut off at the bounds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is too large or too small is cut off"
)]
fn whole(packets: f64) -> u64 {
    packets as u64
}
