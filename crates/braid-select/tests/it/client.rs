//! Client network that follows a selector: its turns are those of simulated connections, over and over again.

#![expect(clippy::cast_possible_truncation, reason = "rates of simulated links are small")]

use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::time::Duration;

use braid_select::{
    Config, Decision, DeliveryRate, Key, Mode, Protocol, QuicMeter, QuicReading, Selector, TcpMeter,
    TcpReading,
};

use crate::network::{Link, PACKET};
use crate::sender::{Connection, LARGE, Turn};

/// Time between two turns.
pub(crate) const STEP: u64 = 5;

/// Turns of a connection and what they cost.
pub(crate) struct Recording {
    pub(crate) turns: Vec<Turn>,
    /// 99th percentile of small responses, mean completion of large ones, and processor time of both: seconds a turn.
    pub(crate) cost: f64,
}

impl Recording {
    /// Simulates a connection: a warm-up of two turns, then so many.
    pub(crate) fn new(protocol: Protocol, link: Link, turns: usize, seed: u64) -> Self {
        let mut connection = Connection::new(protocol, link, seed);
        (0..2).for_each(|_| drop(connection.turn()));
        let turns: Vec<Turn> = (0..turns).map(|_| connection.turn()).collect();
        let mut small: Vec<f64> = turns.iter().flat_map(|turn| turn.small.iter().copied()).collect();
        small.sort_by(f64::total_cmp);
        let urgent = small[small.len() * 99 / 100];
        let count = turns.len() as f64;
        let large = turns.iter().map(|turn| turn.large).sum::<f64>() / count;
        let packets = turns.iter().map(|turn| turn.sent).sum::<u64>() as f64 / count;
        let packet_cpu = if protocol == Protocol::Tcp { 2e-6 } else { 5e-6 };
        Self { turns, cost: urgent + large + packets * packet_cpu }
    }

    /// Recording of published completion times: turns are those of a simulation, each as long as was published, with
    /// so many spurious retransmissions.
    pub(crate) fn published(self, completion: f64, retransmissions: u64) -> Self {
        let turns = self
            .turns
            .into_iter()
            .map(|turn| Turn {
                large: completion,
                lost: turn.lost + retransmissions,
                spurious: turn.spurious + retransmissions,
                duplicates: turn.duplicates + retransmissions,
                ..turn
            })
            .collect();
        Self { turns, cost: completion }
    }
}

/// Result of a run.
pub(crate) struct Outcome {
    /// Mean cost in seconds a turn.
    pub(crate) cost: f64,
    pub(crate) decisions: Vec<Decision>,
    pub(crate) chosen: Protocol,
    /// Longest run of the protocol that costs more, in seconds.
    pub(crate) longest_wrong: u64,
}

impl Outcome {
    /// Most changes to TCP within any ten minutes.
    pub(crate) fn flaps(&self) -> usize {
        let downs: Vec<Duration> = self
            .decisions
            .iter()
            .filter(|decision| decision.to == Protocol::Tcp)
            .map(|decision| decision.when)
            .collect();
        let within = |from: &Duration| {
            downs.iter().filter(|at| **at >= *from && **at < *from + Duration::from_secs(600)).count()
        };
        downs.iter().map(within).max().unwrap_or(0)
    }
}

#[derive(Default)]
struct Meters {
    tcp: TcpMeter,
    quic: QuicMeter,
    tcp_reading: TcpReading,
    quic_reading: QuicReading,
}

impl Meters {
    fn observe(
        &mut self,
        selector: &mut Selector,
        now: Duration,
        key: &Key,
        of: Protocol,
        turn: &Turn,
    ) -> Option<Decision> {
        let (srtt, rttvar) = (Duration::from_secs_f64(turn.srtt), Duration::from_secs_f64(turn.rttvar));
        let min_rtt = Duration::from_secs_f64(turn.min_rtt);
        let delivery_rate = NonZeroU64::new(turn.rate.0 as u64)
            .map(|bytes_per_second| DeliveryRate { bytes_per_second, app_limited: turn.rate.1 });
        let event = match of {
            Protocol::Tcp => {
                let so_far = self.tcp_reading;
                self.tcp_reading = TcpReading {
                    srtt,
                    rttvar,
                    min_rtt,
                    total_retrans: so_far.total_retrans + turn.lost,
                    segments_out: so_far.segments_out + turn.sent,
                    delivered: so_far.delivered + turn.sent - turn.lost,
                    dsack_dups: so_far.dsack_dups + turn.duplicates,
                    snd_ssthresh: turn.ssthresh,
                    delivery_rate,
                    ..TcpReading::default()
                };
                selector.observe_tcp(now, key, &mut self.tcp, &self.tcp_reading)
            }
            Protocol::Quic => {
                let so_far = self.quic_reading;
                self.quic_reading = QuicReading {
                    srtt,
                    rttvar,
                    min_rtt,
                    sent: so_far.sent + turn.sent,
                    lost: so_far.lost + turn.lost,
                    spurious: so_far.spurious + turn.spurious,
                    delivered: so_far.delivered + turn.sent,
                    pto_count: 0,
                    // A client acknowledges every second packet.
                    largest_received: so_far.largest_received + turn.sent / 2,
                    delivery_rate,
                };
                selector.observe_quic(now, key, &mut self.quic, &self.quic_reading)
            }
        };
        let large = Duration::from_secs_f64(turn.large);
        let response = selector.observe_response(now, key, of, (LARGE as f64 * PACKET) as u64, large);
        event.or(response)
    }
}

/// Runs a selector for so many seconds. Without a recording of QUIC, UDP is blocked: an attempt costs the stagger of
/// 250 ms once, and 5 ms a turn from then on.
pub(crate) fn run(mode: Mode, tcp: &Recording, quic: Option<&Recording>, seconds: u64) -> Outcome {
    let mut selector = Selector::new(&Config::new(mode, Protocol::Tcp, 7));
    let key = Key::new(Ipv4Addr::LOCALHOST.into(), "test".into());
    let mut meters = Meters::default();
    let (mut sum, mut decisions, mut tried) = (0.0, Vec::new(), false);
    let (mut wrong, mut longest_wrong) = (0, 0);
    let better = if quic.is_some_and(|quic| quic.cost < tcp.cost) { Protocol::Quic } else { Protocol::Tcp };
    for step in 0..seconds / STEP {
        let now = Duration::from_secs(step * STEP);
        let chosen = selector.chosen(now, &key);
        wrong = if chosen == better { 0 } else { wrong + STEP };
        longest_wrong = wrong.max(longest_wrong);
        let (of, recording, extra) = match (chosen, quic) {
            (Protocol::Quic, Some(quic)) => (Protocol::Quic, quic, 0.0),
            (Protocol::Quic, None) => {
                let extra = if std::mem::replace(&mut tried, true) { 0.005 } else { 0.25 };
                (Protocol::Tcp, tcp, extra)
            }
            (Protocol::Tcp, _) => (Protocol::Tcp, tcp, 0.0),
        };
        sum += recording.cost + extra;
        let turn = &recording.turns[step as usize % recording.turns.len()];
        decisions.extend(meters.observe(&mut selector, now, &key, of, turn));
    }
    let chosen = selector.chosen(Duration::from_secs(seconds), &key);
    Outcome { cost: sum / (seconds / STEP) as f64, decisions, chosen, longest_wrong }
}
