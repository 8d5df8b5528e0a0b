//! Statistics of connections, as the kernel and the QUIC library give them.

use std::num::NonZeroU64;
use std::time::Duration;

/// Fields of Linux' `struct tcp_info`. Counters are those of the whole connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpReading {
    /// Smoothed RTT (`tcpi_rtt`, there in microseconds).
    pub srtt: Duration,
    /// Mean deviation of the RTT (`tcpi_rttvar`, there in microseconds).
    pub rttvar: Duration,
    /// Minimum RTT (`tcpi_min_rtt`, there in microseconds).
    pub min_rtt: Duration,
    /// Retransmissions of the first unacknowledged segment by its timer, one after the other (`tcpi_retransmits`).
    pub retransmits: u32,
    /// Segments that are retransmitted and not yet acknowledged (`tcpi_retrans`).
    pub retrans: u32,
    /// Segments that are taken for lost and not yet acknowledged (`tcpi_lost`).
    pub lost: u32,
    /// Retransmissions (`tcpi_total_retrans`).
    pub total_retrans: u64,
    /// Segments with data, retransmissions included (`tcpi_data_segs_out`).
    pub segments_out: u64,
    /// Segments that were acknowledged (`tcpi_delivered`).
    pub delivered: u64,
    /// Duplicate segments that the peer reported (`tcpi_dsack_dups`, RFC 2883).
    pub dsack_dups: u64,
    /// Slow start threshold in segments (`tcpi_snd_ssthresh`).
    pub snd_ssthresh: u32,
    /// Latest delivery rate (`tcpi_delivery_rate`, `tcpi_delivery_rate_app_limited`); `None` if it is 0.
    pub delivery_rate: Option<DeliveryRate>,
}

/// Path statistics of a QUIC connection (RFC 9002). Counters are those of the whole connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuicReading {
    /// Smoothed RTT.
    pub srtt: Duration,
    /// Mean deviation of the RTT.
    pub rttvar: Duration,
    /// Minimum RTT.
    pub min_rtt: Duration,
    /// Packets sent.
    pub sent: u64,
    /// Packets that were declared lost.
    pub lost: u64,
    /// Packets among those lost that were acknowledged later; 0 if the library does not count them.
    pub spurious: u64,
    /// Packets that were acknowledged.
    pub delivered: u64,
    /// Probe timeouts one after the other, without an acknowledgement between them.
    pub pto_count: u32,
    /// Largest packet number received from the peer.
    pub largest_received: u64,
    /// Latest delivery rate; `None` if it is unknown.
    pub delivery_rate: Option<DeliveryRate>,
}

/// Counters of a QUIC connection, as libraries give them that tell neither the deviation of the RTT nor the number of
/// probe timeouts.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuicCounters {
    /// Smoothed RTT.
    pub srtt: Duration,
    /// Packets sent.
    pub sent: u64,
    /// Packets that were declared lost.
    pub lost: u64,
    /// Datagrams received.
    pub received: u64,
    /// Rate that the congestion controller estimates, in bytes a second; `None` if it does not.
    pub rate: Option<NonZeroU64>,
    /// Payload of a datagram that the path carries, in bytes.
    pub mtu: u16,
}

/// Readings of one QUIC connection, made of its counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuicSampler {
    last: QuicCounters,
    sampled: Duration,
    /// Mean deviation of the smoothed RTT.
    rttvar: Option<Duration>,
    min_rtt: Option<Duration>,
    /// Samples in a row in which packets were sent and none arrived.
    unanswered: u32,
}

impl QuicSampler {
    /// Forgets the path, because the connection has moved to another one.
    pub fn moved(&mut self) {
        (self.rttvar, self.min_rtt, self.unanswered) = (None, None, 0);
    }

    /// Makes a reading of the counters at `now`.
    pub fn sample(&mut self, now: Duration, counters: &QuicCounters) -> QuicReading {
        let last = std::mem::replace(&mut self.last, *counters);
        let interval = now.saturating_sub(std::mem::replace(&mut self.sampled, now));
        let sent = counters.sent.saturating_sub(last.sent);
        let is_answered = counters.received > last.received;
        self.unanswered = match (is_answered, sent > 0) {
            (true, _) => 0,
            (false, true) => self.unanswered.saturating_add(1),
            (false, false) => self.unanswered,
        };
        // RFC 6298, 2.2 and 2.3.
        let rttvar = match self.rttvar {
            None => counters.srtt / 2,
            Some(rttvar) => (rttvar * 3 + counters.srtt.abs_diff(last.srtt)) / 4,
        };
        self.rttvar = Some(rttvar);
        let min_rtt = self.min_rtt.map_or(counters.srtt, |min| min.min(counters.srtt));
        self.min_rtt = Some(min_rtt);
        let delivery_rate = counters.rate.map(|bytes_per_second| {
            // The estimate is that of the path if the connection made use of at least half of it.
            let possible = interval.as_secs_f64() * bytes_per_second.get() as f64;
            let app_limited = (sent as f64) * f64::from(counters.mtu) < possible / 2.0;
            DeliveryRate { bytes_per_second, app_limited }
        });
        QuicReading {
            srtt: counters.srtt,
            rttvar,
            min_rtt,
            sent: counters.sent,
            lost: counters.lost,
            spurious: 0,
            // Acknowledgements are not counted; every datagram may have one.
            delivered: counters.received,
            pto_count: self.unanswered,
            // Libraries do not tell packet numbers. Without losses they are as many as datagrams.
            largest_received: counters.received,
            delivery_rate,
        }
    }
}

/// Delivery rate of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryRate {
    /// Bytes a second.
    pub bytes_per_second: NonZeroU64,
    /// True if the application, not the path, limited it.
    pub app_limited: bool,
}

/// Changes between two readings of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval {
    /// Smoothed RTT in seconds.
    pub(crate) srtt: f64,
    /// Mean deviation of the RTT in seconds.
    pub(crate) rttvar: f64,
    /// Minimum RTT in seconds.
    pub(crate) min_rtt: f64,
    pub(crate) sent: u64,
    /// Lost packets; negative if losses of earlier intervals turned out to be spurious.
    pub(crate) lost: f64,
    /// True if the peer acknowledged anything.
    pub(crate) progress: bool,
    pub(crate) rate: Option<DeliveryRate>,
}

/// Latest reading of one TCP connection, which the owner of the connection keeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpMeter {
    last: TcpReading,
    /// Largest slow start threshold that was read, for [`Mode::AutoquicCompat`](crate::Mode::AutoquicCompat).
    pub(crate) max_ssthresh: u32,
}

/// Duplicates beyond retransmissions that are no evidence of a network that duplicates.
const DUPLICATES_AT_RANDOM: u64 = 8;

impl TcpMeter {
    /// Takes a reading. A counter below that of the last reading counts as unchanged.
    pub(crate) fn advance(&mut self, reading: &TcpReading) -> Interval {
        let last = std::mem::replace(&mut self.last, *reading);
        self.max_ssthresh = self.max_ssthresh.max(reading.snd_ssthresh);
        // Clearly more duplicates than retransmissions: the network duplicates, and the reports say nothing about
        // retransmissions (RFC 3708, 3; `tcp_dsack_seen` of Linux).
        let retransmissions = reading.total_retrans;
        let network_duplicates = reading.dsack_dups
            > retransmissions.saturating_add(retransmissions / 8).saturating_add(DUPLICATES_AT_RANDOM);
        let spurious =
            if network_duplicates { 0 } else { reading.dsack_dups.saturating_sub(last.dsack_dups) };
        Interval {
            srtt: reading.srtt.as_secs_f64(),
            rttvar: reading.rttvar.as_secs_f64(),
            min_rtt: reading.min_rtt.as_secs_f64(),
            sent: reading.segments_out.saturating_sub(last.segments_out),
            lost: reading.total_retrans.saturating_sub(last.total_retrans) as f64 - spurious as f64,
            progress: reading.delivered > last.delivered,
            rate: reading.delivery_rate,
        }
    }
}

/// Latest reading of one QUIC connection, which the owner of the connection keeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuicMeter {
    last: QuicReading,
}

impl QuicMeter {
    /// Takes a reading. A counter below that of the last reading counts as unchanged.
    pub(crate) fn advance(&mut self, reading: &QuicReading) -> Interval {
        let last = std::mem::replace(&mut self.last, *reading);
        let spurious = reading.spurious.saturating_sub(last.spurious);
        Interval {
            srtt: reading.srtt.as_secs_f64(),
            rttvar: reading.rttvar.as_secs_f64(),
            min_rtt: reading.min_rtt.as_secs_f64(),
            sent: reading.sent.saturating_sub(last.sent),
            lost: reading.lost.saturating_sub(last.lost) as f64 - spurious as f64,
            progress: reading.delivered > last.delivered,
            rate: reading.delivery_rate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_cancel_retransmissions_unless_the_network_makes_them() {
        // (retransmissions, duplicates) so far, lost packets of the interval.
        let mut meter = TcpMeter::default();
        for (total_retrans, dsack_dups, lost) in
            [(10, 0, 10.0), (10, 9, -9.0), (20, 12, 7.0), (29, 60, 9.0), (5, 2, 0.0)]
        {
            let reading = TcpReading { total_retrans, dsack_dups, ..TcpReading::default() };
            assert_eq!(meter.advance(&reading).lost, lost, "{total_retrans} {dsack_dups}");
        }
    }

    #[test]
    fn counters_are_differences() {
        let mut meter = QuicMeter::default();
        let reading = |sent, lost, spurious, delivered| QuicReading {
            sent,
            lost,
            spurious,
            delivered,
            ..QuicReading::default()
        };
        let first = meter.advance(&reading(100, 10, 0, 80));
        assert_eq!((first.sent, first.lost, first.progress), (100, 10.0, true));
        let second = meter.advance(&reading(150, 12, 5, 80));
        assert_eq!((second.sent, second.lost, second.progress), (50, -3.0, false));
        let backwards = meter.advance(&reading(0, 0, 0, 0));
        assert_eq!((backwards.sent, backwards.lost, backwards.progress), (0, 0.0, false));
    }
}
