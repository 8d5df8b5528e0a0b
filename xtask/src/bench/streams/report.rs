//! The tables of `bench streams`.

use std::fmt::Write;

use super::loader::Flowed;
use super::{FlowRow, IdleRow};

/// One case: medians over the rounds, and ratios to the first row.
pub(super) fn flows(rows: &[FlowRow]) -> String {
    let mut text = String::new();
    let Some(first) = rows.first() else { return text };
    let rate = first.case.rate.map_or_else(String::new, |rate| format!(", {rate} messages/s"));
    let _ = writeln!(text, "\n{}: 10 pairs, QoS {}, 64 B{rate}", first.case.name, first.case.qos);
    let _ = writeln!(
        text,
        "{:18} {:>11} {:>7} {:>9} {:>8} {:>7} {:>8} {:>7} {:>7} {:>7}",
        "", "CPU ns/msg", "ratio", "msg/s", "p50 us", "ratio", "p99 us", "ratio", "load", "others"
    );
    for row in rows {
        let cpu = |row: &FlowRow| median(row, |flow| flow.broker_ns_per_message);
        let p50 = |row: &FlowRow| median(row, |flow| flow.said.latency_ms.p50.unwrap_or(f64::NAN) * 1000.0);
        let p99 = |row: &FlowRow| median(row, |flow| flow.said.latency_ms.p99.unwrap_or(f64::NAN) * 1000.0);
        let _ = writeln!(
            text,
            "{:18} {:11.0} {:7.2} {:9.0} {:8.0} {:7.2} {:8.0} {:7.2} {:7.2} {:7.2}",
            name(row),
            cpu(row),
            cpu(row) / cpu(first),
            median(row, Flowed::rate),
            p50(row),
            p50(row) / p50(first),
            p99(row),
            p99(row) / p99(first),
            median(row, |flow| flow.load_cores),
            median(row, |flow| flow.other_cores),
        );
    }
    text
}

/// Memory of idle connections.
pub(super) fn idle(rows: &[IdleRow]) -> String {
    let mut text = String::from("\nidle: bytes of the broker for each connection\n");
    for row in rows {
        let _ = writeln!(
            text,
            "{:18} {:11.0}  ({} connections)",
            row.scheme, row.rss_per_connection, row.connections
        );
    }
    text
}

fn name(row: &FlowRow) -> String {
    match (row.way.scheme, row.way.streams) {
        ("quic", 1) => "quic, 1 stream".to_owned(),
        ("quic", streams) => format!("quic, {streams} streams"),
        (scheme, _) => scheme.to_owned(),
    }
}

fn median(row: &FlowRow, of: impl Fn(&Flowed) -> f64) -> f64 {
    let mut values: Vec<f64> = row.rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
