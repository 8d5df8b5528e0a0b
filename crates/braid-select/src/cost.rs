//! Cost model: urgent latency, completion time and processor time of a workload on a path.
//!
//! All formulae are in seconds, packets and bytes a second. Packets are lost independently with the loss ratio `p`,
//! in one direction. Both protocols detect a loss in one of two ways:
//!
//! - **fast**: a later packet was acknowledged. QUIC: 9/8 RTT after it was sent (RFC 9002, 6.1.2). TCP: 5/4 RTT
//!   (RACK with a window of a quarter of the RTT, RFC 8985, 6.2).
//! - **timer**: nothing later was acknowledged. QUIC: `srtt + max(4 rttvar, 1 ms) + 25 ms` (probe timeout, RFC 9002,
//!   6.2.1). TCP: `srtt + max(4 rttvar, 200 ms)` (RFC 6298 with the lower bound of Linux, which also holds for its tail
//!   loss probe of one segment). Each further loss doubles it.
//!
//! **Urgent latency**: 99th percentile of the delivery of small responses of one packet, `streams` of which are sent at
//! once. A response is late if it is lost; in TCP also if one before it is lost (head-of-line blocking), of which
//! there are `h = (streams + 1) / 2` in the mean with itself. The probability of a fast recovery is
//! `e0 = 1 - (1 - p)^h`, of a timer `e1 = 1 - (1 - p/streams - p^2)^h` (the last packet, or a retransmission), of each
//! further timer `p` times that; QUIC has `h = 1`. A level counts from a probability of 1 % on, and in part from 0.5 %
//! on, because a small change of `p` must not change a decision by a step.
//!
//! **Completion**: mean time of a large response of `n` packets: `RTT/2 + n·MSS/(rate·(1-p))`, or a round trip for each
//! window of a loss-based congestion controller beyond the first, if that is longer, plus recovery. The window is
//! `W = sqrt(3/(2p))` packets (Mathis et al., CCR 1997) or `1.054·(RTT/p)^(3/4)` (CUBIC, RFC 9438, 5.1), whichever is
//! larger; here the RTT is the minimum RTT. A timer of it ends when a whole window is lost,
//! `n/W·p^W` times, and doubles with each loss: `T/(1-2p)`. The timer term of PFTK (Padhye et al., SIGCOMM 1998) is
//! not used: it counts on three duplicate acknowledgements, and with RACK it is up to forty times too large.
//! Recovery takes `sum over j of (1 - (1 - p^j)^n)·c_j`: the j-th retransmission of any packet is fast while two
//! packets and more are outstanding (`n·p^(j-1) >= 2`), and a timer when it is one.
//!
//! **Processor time**: packets of all these responses, divided by `1 - p`, times the price of a packet.

use std::fmt;

/// Bytes of payload in a packet.
const MSS: f64 = 1200.0;

/// Most repeated losses that are looked at. More are below one in a thousand for loss ratios up to 0.5.
const MAX_LOSSES: i32 = 10;

/// Responses whose cost is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Small responses of one packet that are sent at once, each on its own stream; at least 1.
    pub streams: u16,
    /// Bytes of a large response; at least 1.
    pub large_bytes: u32,
}

impl Default for Workload {
    /// Eight streams and 64 KiB.
    fn default() -> Self {
        Self { streams: 8, large_bytes: 64 * 1024 }
    }
}

/// Measured path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// Smoothed RTT in seconds.
    pub srtt: f64,
    /// Mean deviation of the RTT in seconds.
    pub rttvar: f64,
    /// Minimum RTT in seconds: without the queue that the sender itself makes.
    pub min_rtt: f64,
    /// Lost part of the packets, 0 to 0.9, spurious losses left out.
    pub loss: f64,
    /// Delivery rate in bytes a second; `None` if the path did not limit it.
    pub rate: Option<f64>,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rtt, var) = (self.srtt * 1e3, self.rttvar * 1e3);
        write!(f, "RTT {rtt:.1} ms (deviation {var:.1} ms), loss {:.1} %", self.loss * 100.0)?;
        match self.rate {
            Some(rate) => write!(f, ", {:.2} Mbit/s", rate * 8e-6),
            None => f.write_str(", rate not limited"),
        }
    }
}

/// Congestion controller of a sender, by its reaction to losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// Losses make the window smaller (Reno, CUBIC).
    LossBased,
    /// Random losses do not (BBR, the congestion gate of this project).
    LossTolerant,
}

/// Properties of an implementation of a protocol.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// True if a lost packet delays all later ones (one ordered stream of bytes).
    pub ordered: bool,
    /// RTTs after which a loss is detected if later packets arrive.
    pub fast: f64,
    /// Lower bound of the part of a timer beyond the RTT, in seconds.
    pub min_deviation: f64,
    /// Time (s) that timers leave for a delayed acknowledgement.
    pub ack_delay: f64,
    /// Congestion controller.
    pub congestion: Congestion,
    /// Processor time of a packet in seconds.
    pub packet_cpu: f64,
}

impl Stack {
    /// TCP of Linux with CUBIC. The kernel segments: about 2 us of processor time for each packet.
    pub const TCP: Self = Self {
        ordered: true,
        fast: 1.25,
        min_deviation: 0.2,
        ack_delay: 0.0,
        congestion: Congestion::LossBased,
        packet_cpu: 2e-6,
    };

    /// QUIC of this project: its probe timeout leaves the 25 ms of RFC 9000, 18.2. About 5 us of processor time for
    /// each packet.
    pub const QUIC: Self = Self {
        ordered: false,
        fast: 1.125,
        min_deviation: 0.001,
        ack_delay: 0.025,
        congestion: Congestion::LossTolerant,
        packet_cpu: 5e-6,
    };

    /// Timer (s) after which the last packet of a flight is sent again.
    fn timer(&self, path: &Path) -> f64 {
        path.srtt + (4.0 * path.rttvar).max(self.min_deviation) + self.ack_delay
    }

    /// Window (packets) that losses permit a loss-based controller; infinite without losses.
    fn loss_window(&self, path: &Path) -> f64 {
        match self.congestion {
            Congestion::LossBased if path.loss > 0.0 => {
                let cubic = 1.054 * (path.min_rtt / path.loss).powf(0.75);
                (1.5 / path.loss).sqrt().max(cubic).max(1.0)
            }
            _ => f64::INFINITY,
        }
    }

    /// Delivery rate (bytes/s) that losses permit.
    pub(crate) fn loss_limited_rate(&self, path: &Path) -> f64 {
        self.loss_window(path) * MSS / path.min_rtt.max(1e-6)
    }

    /// 99th percentile (s) of the delivery of a small response.
    fn urgent(&self, path: &Path, workload: &Workload) -> f64 {
        const TAIL: f64 = 0.01;
        let p = path.loss;
        let streams = f64::from(workload.streams.max(1));
        let before = if self.ordered { (streams + 1.0) / 2.0 } else { 1.0 };
        let any = |chance: f64| 1.0 - (1.0 - chance.min(1.0)).powf(before);
        let timer = self.timer(path);
        // A level adds its delay as its probability goes from half a percent to one percent.
        let reached = |chance: f64| (2.0 * chance / TAIL - 1.0).clamp(0.0, 1.0);
        let fast = self.fast * path.srtt;
        let mut delay = fast * reached(any(p));
        let (mut timers, mut added, mut wait) = (any(p / streams + p * p), (timer - fast).max(0.0), timer);
        for _ in 0..MAX_LOSSES {
            delay += added * reached(timers);
            timers *= p;
            wait *= 2.0;
            added = wait;
        }
        path.srtt / 2.0 + delay
    }

    /// Mean time (s) to deliver `bytes`.
    pub(crate) fn completion(&self, path: &Path, bytes: f64) -> f64 {
        let p = path.loss;
        let packets = (bytes / MSS).ceil().max(1.0);
        let serial = path.rate.map_or(0.0, |rate| packets * MSS / (rate * (1.0 - p)));
        let window = self.loss_window(path);
        let windows = packets / window;
        let lost_windows = windows * p.powf(window) * self.timer(path) / (1.0 - 2.0 * p.min(0.45));
        let (mut recovery, mut repeated, mut timer) = (0.0, 1.0, self.timer(path));
        for _ in 0..MAX_LOSSES {
            let outstanding = packets * repeated;
            repeated *= p;
            let chance = 1.0 - (1.0 - repeated).powf(packets);
            // From two outstanding packets to one, without a step.
            let fast = (outstanding - 1.0).clamp(0.0, 1.0);
            recovery += chance * (fast * self.fast * path.srtt + (1.0 - fast) * timer);
            timer *= 2.0 - fast;
        }
        path.srtt / 2.0 + serial.max((windows - 1.0).max(0.0) * path.min_rtt) + lost_windows + recovery
    }

    /// Predicted cost of a workload on a path. `random_loss` is the loss ratio of small responses, which is that of the
    /// path or below.
    pub fn cost(&self, path: &Path, random_loss: f64, workload: &Workload) -> Cost {
        let bytes = f64::from(workload.large_bytes.max(1));
        let packets = f64::from(workload.streams.max(1)) + (bytes / MSS).ceil();
        Cost {
            urgent: self.urgent(&Path { loss: random_loss, ..*path }, workload),
            completion: self.completion(path, bytes),
            cpu: packets / (1.0 - path.loss) * self.packet_cpu,
        }
    }
}

/// Cost of a workload, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// 99th percentile of the latency of small responses.
    pub urgent: f64,
    /// Mean completion time of the large response.
    pub completion: f64,
    /// Processor time of all of them.
    pub cpu: f64,
}

impl Cost {
    /// Sum, in seconds: a second of the processor is as expensive as a second of waiting.
    pub fn total(&self) -> f64 {
        self.urgent + self.completion + self.cpu
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [total, urgent, completion, cpu] =
            [self.total(), self.urgent, self.completion, self.cpu].map(|seconds| seconds * 1e3);
        write!(
            f,
            "{total:.1} ms (small responses {urgent:.1}, a large one {completion:.1}, processor {cpu:.2})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(rtt_ms: f64, loss: f64) -> Path {
        Path { srtt: rtt_ms / 1e3, rttvar: rtt_ms / 1e4, min_rtt: rtt_ms / 1e3, loss, rate: None }
    }

    #[test]
    fn throughput_is_that_of_mathis() {
        // Mathis: sqrt(3/2) / (RTT sqrt(p)) packets a second.
        let limit = Stack::TCP.loss_limited_rate(&path(100.0, 0.01)) / MSS;
        assert!((limit - 1.5_f64.sqrt() / (0.1 * 0.1)).abs() < 1e-6, "{limit}");
        assert_eq!(Stack::QUIC.loss_limited_rate(&path(100.0, 0.1)), f64::INFINITY);
    }

    #[test]
    fn timers_are_those_of_the_standards() {
        let jitter = Path { rttvar: 0.1, ..path(100.0, 0.0) };
        for (stack, path, timer) in [
            (Stack::TCP, path(100.0, 0.0), 0.3),
            (Stack::TCP, jitter, 0.5),
            (Stack::QUIC, path(100.0, 0.0), 0.165),
            (Stack::QUIC, path(0.2, 0.0), 0.0262),
            (Stack::QUIC, jitter, 0.525),
        ] {
            assert!((stack.timer(&path) - timer).abs() < 1e-9, "{stack:?} {path:?}");
        }
    }

    #[test]
    fn costs_rise_with_loss_without_steps() {
        for stack in [Stack::TCP, Stack::QUIC] {
            for rtt in [0.2, 50.0] {
                let mut last = 0.0;
                for step in 0..=500 {
                    let total = stack
                        .cost(
                            &path(rtt, f64::from(step) / 1000.0),
                            f64::from(step) / 1000.0,
                            &Workload::default(),
                        )
                        .total();
                    assert!(
                        total.is_finite() && total >= 0.95 * last,
                        "{stack:?} {rtt} {step}: {total} < {last}"
                    );
                    assert!(total < 1.5 * last + 0.1, "{stack:?} {rtt} {step}: {last} to {total}");
                    last = total;
                }
            }
        }
    }

    #[test]
    fn a_clean_path_costs_both_the_same_but_for_the_processor() {
        let workload = Workload::default();
        let (tcp, quic) = (
            Stack::TCP.cost(&path(50.0, 0.0), 0.0, &workload),
            Stack::QUIC.cost(&path(50.0, 0.0), 0.0, &workload),
        );
        assert_eq!((tcp.urgent, tcp.completion), (quic.urgent, quic.completion));
        assert!((tcp.urgent - 0.025).abs() < 1e-9 && tcp.cpu < quic.cpu);
    }

    #[test]
    fn a_lost_packet_blocks_the_streams_of_tcp_only() {
        let urgent = |stack: Stack, streams| {
            stack.cost(&path(100.0, 0.009), 0.009, &Workload { streams, ..Workload::default() }).urgent
        };
        assert!(urgent(Stack::TCP, 32) > urgent(Stack::TCP, 8));
        assert!(urgent(Stack::QUIC, 32) <= urgent(Stack::QUIC, 8));
    }

    #[test]
    fn extreme_numbers_stay_finite() {
        for (srtt, loss, rate) in [(0.0, 0.9, Some(1.0)), (1e9, 0.0, None), (0.0, 0.0, None)] {
            for workload in [
                Workload { streams: 0, large_bytes: 0 },
                Workload { streams: u16::MAX, large_bytes: u32::MAX },
            ] {
                for stack in [Stack::TCP, Stack::QUIC] {
                    let total = stack
                        .cost(&Path { srtt, rttvar: srtt, min_rtt: srtt, loss, rate }, loss, &workload)
                        .total();
                    assert!(total.is_finite() && total > 0.0, "{srtt} {loss} {total}");
                }
            }
        }
    }
}
