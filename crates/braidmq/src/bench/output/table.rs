//! Table of percentiles at the end of a run.

use braid_bench::emqtt::Counter;
use braid_bench::summary::RunSummary;
use braid_measure::Quantiles;

use super::columns::{columns, quantile};
use crate::printable::printable;

const HEADER: [&str; 9] =
    ["latency in ms", "stream", "messages", "failed", "p50", "p90", "p99", "p99.9", "max"];

/// The percentiles of a run, by topic and stream; nothing where there are none.
pub(in crate::bench) fn table(summary: &RunSummary) -> String {
    let mut rows = Vec::new();
    if let Some(connect) = &summary.connections.connect_us {
        // Those that a run did without, because it was over before they came, have not failed.
        let failed = summary.counters.get(Counter::ConnectFail.name()).copied().unwrap_or_default();
        let counts = ["-".to_owned(), connect.count.to_string(), failed.to_string()];
        rows.push(row("(connecting)", counts, Some(connect)));
    }
    for topic in &summary.topics {
        let messages = topic.acked.max(topic.received);
        let counts = [topic.stream, messages, topic.failed].map(|count| count.to_string());
        rows.push(row(&topic.topic, counts, topic.latency_us.as_ref()));
    }
    if rows.is_empty() {
        return String::new();
    }
    columns(&HEADER, &rows, usize::MAX).join("\n") + "\n" + &transports(summary)
}

/// Connections by transport, where clients chose it.
fn transports(summary: &RunSummary) -> String {
    let over = |transport: &str| summary.counters.get(&format!("over_{transport}")).copied();
    match (over("quic"), over("tls")) {
        (None, None) => String::new(),
        (quic, tls) => {
            format!("connections over QUIC: {}, over TLS: {}\n", quic.unwrap_or(0), tls.unwrap_or(0))
        }
    }
}

fn row(name: &str, counts: [String; 3], quantiles: Option<&Quantiles>) -> Vec<String> {
    let of: [fn(&Quantiles) -> f64; 5] = [|q| q.p50, |q| q.p90, |q| q.p99, |q| q.p999, |q| q.max];
    let latencies = of.map(|of| quantile(quantiles, of));
    [printable(name).into_owned()].into_iter().chain(counts).chain(latencies).collect()
}
