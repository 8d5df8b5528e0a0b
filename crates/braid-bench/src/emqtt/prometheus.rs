use std::fmt::Write as _;
use std::time::Duration;

use super::Counters;

const HANDSHAKE_MS: &[u64] = &[1, 3, 5, 10, 20, 50, 100, 200, 500, 1000];
const CONNECT_MS: &[u64] = &[1, 10, 25, 50, 100, 200, 300, 500, 750, 1000];
const LATENCY_MS: &[u64] =
    &[1, 5, 10, 25, 50, 100, 500, 1000, 2000, 3000, 4000, 5000, 7500, 10000, 15000, 20000, 25000, 30000];

/// A duration that Prometheus shows as a histogram, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurationHistogram {
    /// From the start of a client until TCP is connected.
    TcpHandshake,
    /// From the start of a client until TLS or QUIC is connected.
    Handshake,
    /// From the start of a client until CONNACK.
    Connect,
    /// From the start of a client until SUBACK.
    Subscribe,
    /// From the sending of a message until it is received.
    EndToEnd,
}

impl DurationHistogram {
    /// All of them, in the order of [`exposition`].
    pub const ALL: [Self; 5] =
        [Self::TcpHandshake, Self::Handshake, Self::Connect, Self::Subscribe, Self::EndToEnd];

    /// The metric's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.metric().0
    }

    /// The upper bounds of its buckets in milliseconds, each within its bucket.
    #[must_use]
    pub fn bounds(self) -> &'static [u64] {
        self.metric().2
    }

    /// Name, description and bounds.
    fn metric(self) -> (&'static str, &'static str, &'static [u64]) {
        match self {
            Self::TcpHandshake => (
                "mqtt_client_tcp_handshake_duration",
                "Start of a client to TCP connected, in ms",
                HANDSHAKE_MS,
            ),
            Self::Handshake => (
                "mqtt_client_handshake_duration",
                "Start of a client to TLS or QUIC connected, in ms",
                HANDSHAKE_MS,
            ),
            Self::Connect => {
                ("mqtt_client_connect_duration", "Start of a client to CONNACK, in ms", CONNECT_MS)
            }
            Self::Subscribe => {
                ("mqtt_client_subscribe_duration", "Start of a client to SUBACK, in ms", CONNECT_MS)
            }
            Self::EndToEnd => ("e2e_latency", "Sending of a message to its reception, in ms", LATENCY_MS),
        }
    }
}

/// Durations counted by buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One per bound and one for what is above them all.
    counts: Vec<u64>,
    sum_ms: u64,
}

impl Histogram {
    /// An empty one with these upper bounds in milliseconds, which rise.
    #[must_use]
    pub fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum_ms: 0 }
    }

    /// Counts a duration, in whole milliseconds.
    pub fn observe(&mut self, duration: Duration) {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let bucket = self.bounds.partition_point(|&bound| bound < millis);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum_ms = self.sum_ms.saturating_add(millis);
    }

    fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum_ms = self.sum_ms.saturating_add(other.sum_ms);
    }

    fn write(&self, out: &mut String, name: &str) {
        let mut total = 0;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            total += count;
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {total}");
        }
        total += self.counts.last().copied().unwrap_or_default();
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "{name}_count {total}");
        let _ = writeln!(out, "{name}_sum {}", self.sum_ms);
    }
}

/// The histograms of a run.
#[derive(Debug, Clone)]
pub struct Histograms([Histogram; DurationHistogram::ALL.len()]);

impl Default for Histograms {
    fn default() -> Self {
        Self(DurationHistogram::ALL.map(|which| Histogram::new(which.bounds())))
    }
}

impl Histograms {
    /// Counts a duration.
    pub fn observe(&mut self, which: DurationHistogram, duration: Duration) {
        self.0[which as usize].observe(duration);
    }

    /// Adds what others have counted.
    pub fn add(&mut self, others: &Self) {
        self.0.iter_mut().zip(&others.0).for_each(|(histogram, other)| histogram.add(other));
    }
}

/// The answer to `GET /metrics`: Prometheus' text format, `text/plain`.
#[must_use]
pub fn exposition(counters: &Counters, histograms: &Histograms) -> String {
    let mut out = String::new();
    for (counter, value) in counters.iter() {
        let name = counter.name();
        // Writing to a String does not fail.
        let _ = writeln!(out, "# TYPE {name} counter\n# HELP {name} {name}\n{name} {value}");
    }
    for (which, histogram) in DurationHistogram::ALL.into_iter().zip(&histograms.0) {
        let (name, help, _) = which.metric();
        let _ = writeln!(out, "# TYPE {name} histogram\n# HELP {name} {help}");
        histogram.write(&mut out, name);
    }
    out
}
