use braid_measure::Quantiles;
use serde::{Deserialize, Serialize};

/// Value of [`HttpSummary::schema`]. A change that readers have to know of changes the number.
pub const SCHEMA: &str = "braidmq-bench-http/1";

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HttpSummary {
    /// Value of [`SCHEMA`].
    pub schema: String,
    /// Version of HTTP by its name in ALPN, `h2c` for HTTP/2 without TLS; empty without a connection.
    pub protocol: String,
    /// Begin of the run, microseconds since the Unix epoch; 0 in files of earlier versions.
    #[serde(default)]
    pub started_unix_us: u64,
    /// Duration of the run in seconds, with the warm-up.
    pub seconds: f64,
    /// Duration in which requests were counted, in seconds.
    pub measured_seconds: f64,
    /// CPU time of this process in seconds, from the begin of the run to its end.
    pub cpu_seconds: f64,
    /// Requests with a whole response per second.
    pub requests_per_second: f64,
    /// Received bytes per second.
    pub bytes_per_second: f64,
    /// Requests, by what became of them.
    pub requests: Counts,
    /// Received bytes.
    pub traffic: Traffic,
    /// Time from a request to the end of its response, in microseconds.
    pub request_us: Moments,
    /// Quantiles of it. `None`: there was no response.
    pub request_quantiles_us: Option<Quantiles>,
    /// Distribution of it: microseconds, and the share (0 to 1) of the responses that took no longer.
    #[serde(default)]
    pub request_curve_us: Vec<(u64, f64)>,
    /// Requests that were done, by whole seconds since the begin.
    #[serde(default)]
    pub done_per_second: Vec<u64>,
    /// Time to connect, for each client, in microseconds.
    pub connect_us: Moments,
    /// Quantiles of it. `None`: no client has connected.
    #[serde(default)]
    pub connect_quantiles_us: Option<Quantiles>,
    /// Time from the begin of the connection to the first byte of a response, for each client, in microseconds.
    pub first_byte_us: Moments,
    /// Requests per second of each client.
    pub client_requests_per_second: Moments,
    /// Errors that ended clients, the most frequent first.
    pub errors: Vec<ClientError>,
}

/// Error that ended clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientError {
    /// Text.
    pub what: String,
    /// Number of clients.
    pub clients: u64,
}

/// Requests by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests of the load; with a duration, those that were done.
    pub total: u64,
    /// Sent.
    pub started: u64,
    /// With a whole response, or a stream that was reset.
    pub done: u64,
    /// Status 2xx or 3xx.
    pub succeeded: u64,
    /// Status 4xx or 5xx, and all errored.
    pub failed: u64,
    /// Without a whole response.
    pub errored: u64,
    /// In flight when a timeout ended their connection; errored, too.
    pub timed_out: u64,
    /// Responses by class: 2xx, 3xx, 4xx, 5xx.
    pub status: [u64; 4],
    /// Successful responses with another body than expected.
    pub wrong_bodies: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Done over HTTP/3.
    #[serde(default)]
    pub over_quic: u64,
    /// In flight when their connection ended, and begun again on another one.
    #[serde(default)]
    pub repeated: u64,
    /// Connections over QUIC to an alternative that failed.
    #[serde(default)]
    pub quic_failures: u64,
    /// Changes of clients between TCP and QUIC, which `Alt-Svc` or a failure of QUIC caused.
    #[serde(default)]
    pub switches: u64,
}

/// Received bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// All: above TLS, and on HTTP/3 datagrams.
    pub bytes: u64,
    /// Header fields as they came: frames of HTTP/2, otherwise names and values.
    pub header_bytes: u64,
    /// Names and values of the header fields.
    pub plain_header_bytes: u64,
    /// Bodies.
    pub body_bytes: u64,
}

/// Moments of a distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation.
    pub sd: f64,
    /// Percentage of the values within a standard deviation of the mean.
    pub within_sd: f64,
}

impl Counts {
    /// Counts a whole response; true if its status is 2xx or 3xx.
    pub(super) fn complete(&mut self, status: u16) -> bool {
        self.done += 1;
        let class = usize::from(status / 100);
        if let Some(count) = class.checked_sub(2).and_then(|at| self.status.get_mut(at)) {
            *count += 1;
        }
        let is_success = matches!(class, 2 | 3);
        if is_success {
            self.succeeded += 1;
        } else {
            self.failed += 1;
        }
        is_success
    }

    /// Counts a stream that was reset.
    pub(super) fn fail_stream(&mut self) {
        self.done += 1;
        self.abandon(1);
    }

    /// Counts requests that will have no response.
    pub(super) fn abandon(&mut self, requests: u64) {
        self.failed += requests;
        self.errored += requests;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.total += other.total;
        self.started += other.started;
        self.done += other.done;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.errored += other.errored;
        self.timed_out += other.timed_out;
        self.status.iter_mut().zip(other.status).for_each(|(sum, count)| *sum += count);
        self.wrong_bodies += other.wrong_bodies;
        self.connections += other.connections;
        self.over_quic += other.over_quic;
        self.switches += other.switches;
        self.repeated += other.repeated;
        self.quic_failures += other.quic_failures;
    }

    /// Requests with a whole response, whatever its status.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.succeeded + self.failed - self.errored
    }
}

impl Traffic {
    pub(super) fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.header_bytes += other.header_bytes;
        self.plain_header_bytes += other.plain_header_bytes;
        self.body_bytes += other.body_bytes;
    }

    /// Percentage that the compression of header fields saves.
    #[must_use]
    pub fn space_savings(&self) -> f64 {
        if self.plain_header_bytes == 0 {
            return 0.0;
        }
        (1.0 - self.header_bytes as f64 / self.plain_header_bytes as f64) * 100.0
    }
}
