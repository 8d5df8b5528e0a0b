//! Measurements of one connection, in the form that the selector takes.

use std::time::Duration;

use braid_select::{QuicCounters, QuicMeter, QuicReading, QuicSampler, TcpMeter, TcpReading};
use braid_transport::http::{PathStats, TcpMetrics};

use crate::upgrade::Sent;

/// Part of a period for which there may have been nothing to send: more, and its time says little about the path.
const PAUSED: u32 = 8;

/// Bytes of responses, and the time until the client had them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
}

/// TCP connection.
#[derive(Debug, Default)]
pub(super) struct TcpConnection {
    pub(super) meter: TcpMeter,
    /// Acknowledged bytes and busy time at the last sample.
    last: (u64, Duration),
    srtt: Duration,
    /// Latest response.
    written: Option<Duration>,
    /// Responses since the last sample before which nothing was being sent.
    periods: u32,
}

impl TcpConnection {
    /// Notes that a response is about to be written. One within a round trip of the last one is sent while that is not
    /// acknowledged, so both are one.
    pub(super) fn responds(&mut self, now: Duration) {
        if self.written.is_none_or(|written| now.saturating_sub(written) >= self.srtt) {
            self.periods = self.periods.saturating_add(1);
        }
        self.written = Some(now);
    }

    /// Acknowledged bytes at the last sample.
    pub(super) fn acknowledged(&self) -> u64 {
        self.last.0
    }

    /// Takes a sample. The kernel measures for how long bytes were on their way.
    pub(super) fn sample(&mut self, metrics: &TcpMetrics) -> (TcpReading, Option<Completion>) {
        let (acknowledged, busy) =
            std::mem::replace(&mut self.last, (metrics.acknowledged_bytes, metrics.busy));
        let bytes = metrics.acknowledged_bytes.saturating_sub(acknowledged);
        let elapsed = metrics.busy.saturating_sub(busy);
        let periods = std::mem::take(&mut self.periods);
        let completion = (periods > 0 && bytes > 0)
            .then(|| Completion { bytes: bytes / u64::from(periods), elapsed: elapsed / periods });
        self.srtt = metrics.srtt;
        (TcpReading::from(metrics), completion)
    }
}

/// QUIC connection.
#[derive(Debug, Default)]
pub(super) struct QuicConnection {
    pub(super) meter: QuicMeter,
    sampler: QuicSampler,
    /// Responses that are being sent.
    in_flight: usize,
    /// Responses that are timed: from one that is sent alone until nothing is being sent.
    period: Option<Period>,
}

/// Period of a QUIC connection in which responses are sent.
#[derive(Clone, Copy, Debug)]
struct Period {
    began: Duration,
    /// Sums of its responses.
    sent: Sent,
}

impl QuicConnection {
    /// Notes that a response is about to be sent. Returns true if it is the first of a period, and is to be timed.
    pub(super) fn responds(&mut self, now: Duration, is_due: bool) -> bool {
        self.in_flight += 1;
        let is_first = self.in_flight == 1 && is_due;
        if is_first {
            self.period = Some(Period { began: now, sent: Sent::default() });
        }
        is_first
    }

    /// Forgets the path, because the client has moved.
    pub(super) fn moved(&mut self) {
        self.sampler.moved();
        self.period = None;
    }

    /// Notes that a response is complete, or broken (`None`). Returns the completion of a period, and whether further
    /// responses are to be timed.
    pub(super) fn sent(&mut self, now: Duration, response: Option<Sent>) -> (Option<Completion>, bool) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match (&mut self.period, response) {
            (Some(Period { sent, .. }), Some(response)) => {
                sent.bytes = sent.bytes.saturating_add(response.bytes);
                sent.paused = sent.paused.saturating_add(response.paused);
            }
            // Its time says nothing.
            (period, _) => *period = None,
        }
        if self.in_flight > 0 {
            return (None, self.period.is_some());
        }
        let completion = self.period.take().and_then(|Period { began, sent }| {
            let elapsed = now.saturating_sub(began);
            let is_steady = sent.paused.saturating_mul(PAUSED) <= elapsed;
            (sent.bytes > 0 && is_steady).then_some(Completion { bytes: sent.bytes, elapsed })
        });
        (completion, false)
    }

    pub(super) fn sample(&mut self, now: Duration, stats: &PathStats) -> QuicReading {
        self.sampler.sample(now, &QuicCounters::from(stats))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn responses_within_a_round_trip_are_one() {
        let mut tcp = TcpConnection::default();
        let metrics = |acknowledged_bytes, busy| TcpMetrics {
            acknowledged_bytes,
            busy: ms(busy),
            srtt: ms(50),
            ..TcpMetrics::default()
        };
        tcp.responds(ms(0));
        assert_eq!(tcp.sample(&metrics(1000, 60)).1, Some(Completion { bytes: 1000, elapsed: ms(60) }));
        // Two at once, and one later.
        for at in [1000, 1049, 2000] {
            tcp.responds(ms(at));
        }
        let (_, completion) = tcp.sample(&metrics(4000, 260));
        assert_eq!(completion, Some(Completion { bytes: 1500, elapsed: ms(100) }));
        // Nothing was sent; nothing was acknowledged.
        assert_eq!(tcp.sample(&metrics(4000, 260)).1, None);
        tcp.responds(ms(3000));
        assert_eq!(tcp.sample(&metrics(4000, 360)).1, None);
    }

    const fn sent(bytes: u64, paused: u64) -> Option<Sent> {
        Some(Sent { bytes, paused: ms(paused) })
    }

    #[test]
    fn a_period_ends_with_its_last_response() {
        let mut quic = QuicConnection::default();
        assert!(!quic.responds(ms(0), false), "not due");
        assert_eq!(quic.sent(ms(1), sent(10, 0)), (None, false));
        assert!(quic.responds(ms(100), true));
        assert!(!quic.responds(ms(120), true), "the second of a period");
        assert_eq!(quic.sent(ms(150), sent(600, 4)), (None, true));
        let completion = Completion { bytes: 1000, elapsed: ms(80) };
        assert_eq!(quic.sent(ms(180), sent(400, 6)), (Some(completion), false));
        // A broken response ends the timing.
        assert!(quic.responds(ms(200), true) && !quic.responds(ms(200), true));
        assert_eq!(quic.sent(ms(210), None), (None, false));
        assert_eq!(quic.sent(ms(220), sent(1, 0)), (None, false));
    }

    #[test]
    fn responses_that_wait_for_their_source_are_not_timed() {
        let mut quic = QuicConnection::default();
        for (paused, is_timed) in [(10, true), (11, false)] {
            assert!(quic.responds(ms(0), true));
            assert_eq!(quic.sent(ms(80), sent(600, paused)).0.is_some(), is_timed, "{paused}");
        }
    }

    #[test]
    fn a_client_that_has_moved_has_another_path() {
        let mut quic = QuicConnection::default();
        let stats = |millis| PathStats { srtt: ms(millis), sent_packets: millis, ..PathStats::default() };
        quic.responds(ms(0), true);
        quic.sample(ms(0), &stats(10));
        quic.moved();
        let reading = quic.sample(ms(1), &stats(90));
        assert_eq!((reading.min_rtt, reading.rttvar, reading.pto_count), (ms(90), ms(45), 1));
        assert_eq!(quic.sent(ms(2), sent(600, 0)).0, None);
    }

    #[test]
    fn silence_counts_only_while_packets_are_sent() {
        let mut quic = QuicConnection::default();
        let mut stats = PathStats::default();
        // Packets sent and received in an interval, unanswered samples after it.
        for (sent, received, unanswered) in
            [(5, 5, 0), (1, 0, 1), (0, 0, 1), (2, 0, 2), (1, 0, 3), (0, 1, 0), (1, 1, 0)]
        {
            stats.sent_packets += sent;
            stats.received_datagrams += received;
            assert_eq!(quic.sample(ms(0), &stats).pto_count, unanswered, "{stats:?}");
        }
    }

    #[test]
    fn a_rate_is_that_of_the_path_when_it_was_used() {
        let mut quic = QuicConnection::default();
        let mut stats = PathStats { rate: Some(1_000_000), mtu: 1000, srtt: ms(20), ..PathStats::default() };
        quic.sample(ms(0), &stats);
        for (at, sent, app_limited) in [(1000, 499, true), (2000, 500, false)] {
            stats.sent_packets += sent;
            let rate = quic.sample(ms(at), &stats).delivery_rate.unwrap();
            assert_eq!((rate.bytes_per_second.get(), rate.app_limited), (1_000_000, app_limited));
        }
        stats.srtt = ms(60);
        let reading = quic.sample(ms(3000), &stats);
        // 10 ms at first, then 10 * 3/4 twice, then (5.625 * 3 + 40) / 4.
        assert_eq!((reading.min_rtt, reading.rttvar.as_micros()), (ms(20), 14_218));
    }
}
