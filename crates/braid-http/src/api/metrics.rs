//! Metrics in the text format of Prometheus, version 0.0.4.

use std::fmt::{Display, Write};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use braid_broker::Handle;
use braid_broker::view::{ListenerStatus, Metric, MetricKind};

use super::extract::{NoParams, Params, Refused};
use super::{Api, address_text};
use crate::autoquic::AutoQuic;
use crate::counters::{DURATIONS, FrontCounters, FrontListener};

/// Prefix of all names.
const PREFIX: &str = "braidmq_";

/// Beginning of the topics of counters of limits, which are one family: their number is that of the limits.
const LIMITS: &str = "limits/";

/// Value of the metric with this topic below `$SYS/broker/`.
pub(super) fn value(handle: &Handle, topic: &str) -> Option<u64> {
    handle.metrics().into_iter().find(|metric| metric.topic == topic).map(|metric| metric.value)
}

/// Metrics in the text format.
#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        if !help.is_empty() {
            let help = help.replace('\\', "\\\\").replace('\n', "\\n");
            self.line(format_args!("# HELP {PREFIX}{name} {help}"));
        }
        self.line(format_args!("# TYPE {PREFIX}{name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, String)], value: impl Display) {
        let labels: Vec<_> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        self.line(format_args!("{PREFIX}{name}{labels} {value}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn metric(&mut self, metric: &Metric) {
        let name = metric.name();
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        self.family(&name, kind, metric.help);
        self.sample(&name, &[], metric.value);
    }
}

/// Escapes the value of a label.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Listener of the broker or of the front.
struct Row {
    tag: String,
    transport: String,
    address: String,
    connections: u64,
    accepted: u64,
    is_available: bool,
    restarts: u64,
}

impl From<&ListenerStatus> for Row {
    fn from(status: &ListenerStatus) -> Self {
        Self {
            tag: status.tag.as_deref().unwrap_or_default().to_owned(),
            transport: status.transport.to_string(),
            address: status.address.map(address_text).unwrap_or_default(),
            connections: status.connections,
            accepted: status.accepted,
            is_available: status.is_available,
            restarts: status.restarts,
        }
    }
}

impl From<&Arc<FrontListener>> for Row {
    fn from(listener: &Arc<FrontListener>) -> Self {
        let ((connections, accepted), health) = (listener.counts(), listener.health());
        Self {
            tag: String::new(),
            transport: listener.kind.to_owned(),
            address: address_text(listener.address),
            connections,
            accepted,
            is_available: health.is_available,
            restarts: health.restarts,
        }
    }
}

/// Number of a listener.
type OfListener = fn(&Row) -> u64;

/// Families with one sample for each listener: name, kind, help, value. The configuration bounds their number.
const OF_LISTENERS: [(&str, &str, &str, OfListener); 4] = [
    ("listener_connections", "gauge", "Open connections of a listener.", |one| one.connections),
    ("listener_accepted_total", "counter", "Connections that a listener accepted.", |one| one.accepted),
    (
        "listener_available",
        "gauge",
        "1 unless the QUIC endpoint of a listener has failed and cannot restart.",
        |one| one.is_available.into(),
    ),
    (
        "listener_restarts_total",
        "counter",
        "Restarts of the QUIC endpoint of a listener after a failure.",
        |one| one.restarts,
    ),
];

/// Families of the automatic upgrade. The labels have two protocols and nine reasons.
fn autoquic(text: &mut Text, policy: &AutoQuic) {
    text.family("http_autoquic_networks", "gauge", "Client networks with measurements, on each listener.");
    text.sample("http_autoquic_networks", &[], policy.len());
    let name = "http_autoquic_changes_total";
    text.family(name, "counter", "Changes of the protocol that a client network is offered.");
    for ((to, reason), count) in policy.counts() {
        text.sample(name, &[("to", to.to_owned()), ("reason", reason.to_owned())], count);
    }
}

/// Families of the HTTP front. The labels have three versions, five status classes and two reasons.
fn served(text: &mut Text, front: &FrontCounters) {
    let label = |name: &'static str, value: &str| (name, value.to_owned());
    let name = "http_requests_total";
    text.family(name, "counter", "Responses of the HTTP front, by version of HTTP and class of the status.");
    for (version, class, count) in front.requests() {
        text.sample(name, &[label("version", version), label("status", class)], count);
    }
    let name = "http_connections";
    text.family(
        name,
        "gauge",
        "Open connections of the HTTP front, by the version that ALPN chose; else 1.1.",
    );
    for (version, count) in front.open() {
        text.sample(name, &[label("version", version)], count);
    }
    let name = "http_sent_bytes_total";
    let help = "Bytes that the HTTP front sent, before encryption; on HTTP/3 those of the content of complete responses.";
    text.family(name, "counter", help);
    for (version, bytes) in front.sent_bytes() {
        text.sample(name, &[label("version", version)], bytes);
    }
    let name = "http_upstream_errors_total";
    text.family(name, "counter", "Requests to which an upstream gave no valid response, or none in time.");
    for (reason, count) in front.upstream_failures() {
        text.sample(name, &[label("reason", reason)], count);
    }
    let name = "http_request_duration_seconds";
    text.family(name, "histogram", "Time from the head of a request to the head of its response.");
    let (counts, sum_micros) = front.durations();
    let bounds = DURATIONS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    for (bound, count) in bounds.zip(counts) {
        text.sample(&format!("{name}_bucket"), &[("le", bound)], count);
    }
    let sum = Duration::from_micros(sum_micros).as_secs_f64();
    text.sample(&format!("{name}_sum"), &[], sum);
    text.sample(&format!("{name}_count"), &[], counts[counts.len() - 1]);
}

fn text(
    metrics: &[Metric],
    listeners: &[ListenerStatus],
    policy: Option<&AutoQuic>,
    front: &FrontCounters,
    uptime_secs: f64,
) -> String {
    let mut text = Text::default();
    text.family("build_info", "gauge", "Version of the broker; the value is 1.");
    text.sample("build_info", &[("version", env!("CARGO_PKG_VERSION").to_owned())], 1);
    text.family("uptime_seconds", "gauge", "Time since the start of the process.");
    text.sample("uptime_seconds", &[], uptime_secs);
    let (limits, others): (Vec<_>, Vec<_>) = metrics
        .iter()
        .partition(|metric| metric.topic.starts_with(LIMITS) && metric.kind == MetricKind::Counter);
    for metric in others {
        text.metric(metric);
    }
    text.family("limits_reached_total", "counter", "Times that a client met a limit, by the limit.");
    for metric in limits {
        let limit = metric.topic.trim_start_matches(LIMITS).to_owned();
        text.sample("limits_reached_total", &[("limit", limit)], metric.value);
    }
    let of_front = front.listeners();
    let rows: Vec<_> = listeners.iter().map(Row::from).chain(of_front.iter().map(Row::from)).collect();
    for (name, kind, help, value) in OF_LISTENERS {
        text.family(name, kind, help);
        for row in &rows {
            let labels = [
                ("listener", row.tag.clone()),
                ("transport", row.transport.clone()),
                ("address", row.address.clone()),
            ];
            text.sample(name, &labels, value(row));
        }
    }
    if let Some(policy) = policy {
        autoquic(&mut text, policy);
    }
    served(&mut text, front);
    text.family(
        "http_refused_total",
        "counter",
        "Connections and requests that the HTTP front refused, by limit or check.",
    );
    for (reason, count) in front.values() {
        text.sample("http_refused_total", &[("reason", reason.to_owned())], count);
    }
    text.0
}

/// Metrics for Prometheus.
pub(super) async fn read(
    State(api): State<Api>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Response, Refused> {
    let handle = api.handle()?;
    let uptime_secs = api.0.began.elapsed().as_secs_f64();
    let policy = api.0.autoquic.as_ref();
    let response = text(&handle.metrics(), &handle.listeners(), policy, &api.0.front, uptime_secs);
    let mut response = response.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_help_are_escaped() {
        let mut text = Text::default();
        text.family("a", "gauge", "one \\ two\nthree");
        text.sample("a", &[("tag", "x\"y\\z\n".to_owned()), ("b", String::new())], 1.5);
        let expected = "# HELP braidmq_a one \\\\ two\\nthree\n# TYPE braidmq_a gauge\n\
                        braidmq_a{tag=\"x\\\"y\\\\z\\n\",b=\"\"} 1.5\n";
        assert_eq!(text.0, expected);
    }
}
