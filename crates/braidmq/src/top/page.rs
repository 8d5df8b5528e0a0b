//! Text of the pages.

use braid_measure::number::{bytes, short};
use braid_measure::text::line;
use braid_measure::{Alignment, Table};
use serde::Deserialize;

/// Longest bar of what waits on a stream.
const BAR: usize = 20;

/// Fields of the overview that are shown.
#[derive(Debug, Deserialize)]
pub(super) struct Overview {
    version: String,
    uptime_secs: f64,
    status: String,
    reasons: Vec<String>,
    totals: Totals,
    connections: Connections,
    sessions: u64,
    subscriptions: u64,
    retained: Retained,
    memory: Memory,
    store: Store,
    spool: Store,
}

/// Counters, from which rates are computed: those of the server are of a time that it chooses.
#[derive(Debug, Deserialize)]
struct Totals {
    messages_in: u64,
    messages_out: u64,
    bytes_in: u64,
    bytes_out: u64,
    connects: u64,
    refused: u64,
}

#[derive(Debug, Deserialize)]
struct Connections {
    tcp: u64,
    tls: u64,
    ws: u64,
    wss: u64,
    quic: u64,
    total: u64,
}

#[derive(Debug, Deserialize)]
struct Retained {
    count: u64,
}

#[derive(Debug, Deserialize)]
struct Memory {
    used_bytes: u64,
    resting_bytes: u64,
    high_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Store {
    state: String,
    bytes: u64,
}

/// First page of the clients.
#[derive(Debug, Deserialize)]
pub(super) struct Clients {
    items: Vec<Client>,
    total: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Client {
    client_id: String,
    user: Option<String>,
    address: Option<String>,
    transport: Option<String>,
    subscriptions: u64,
    queued_messages: u64,
    queued_bytes: u64,
    inflight: u64,
    dropped: u64,
}

/// Streams of a client.
#[derive(Debug, Deserialize)]
pub(super) struct Streams {
    client_id: String,
    at: f64,
    path: Option<Path>,
    gate: Option<Gate>,
    streams: Vec<Stream>,
    omitted: u64,
}

#[derive(Debug, Deserialize)]
struct Path {
    rtt_ms: f64,
    loss_ratio: f64,
    cwnd_bytes: u64,
    moves: u64,
}

#[derive(Debug, Deserialize)]
struct Gate {
    state: String,
    rate_per_sec: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Stream {
    stream: u64,
    kind: String,
    priority: u16,
    bytes_in: u64,
    bytes_out: u64,
    #[serde(rename = "backlog_messages")]
    queued_messages: u64,
    #[serde(rename = "backlog_bytes")]
    queued_bytes: u64,
    oldest_ms: Option<f64>,
    waits_for: Option<String>,
    behind: Option<u64>,
}

/// Bytes of a rate; the sign is never negative.
fn rate(per_sec: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate of bytes, saturating"
    )]
    let whole = per_sec.round() as u64;
    format!("{}/s", bytes(whole))
}

fn dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

/// Increase in a second since the look before; none at the first look, and after a restart of the broker.
fn increase(now: &Overview, before: Option<&Overview>, of: fn(&Totals) -> u64) -> Option<f64> {
    let before = before.filter(|before| before.uptime_secs < now.uptime_secs)?;
    // Exact up to 2^53.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let increase = of(&now.totals).saturating_sub(of(&before.totals)) as f64;
    Some(increase / (now.uptime_secs - before.uptime_secs))
}

/// Overview with rates since the look before, and clients in the order of what waits for them.
pub(super) fn clients_page(overview: &Overview, before: Option<&Overview>, clients: &Clients) -> Vec<String> {
    let Overview { connections, memory, .. } = overview;
    let per_sec = |of: fn(&Totals) -> u64| {
        increase(overview, before, of).map_or_else(|| "-".to_owned(), |rate| format!("{}/s", short(rate)))
    };
    let bytes_per_sec =
        |of: fn(&Totals) -> u64| increase(overview, before, of).map_or_else(|| "-".to_owned(), rate);
    let mut lines = vec![
        format!(
            "BraidMQ {}  {}  up {} s",
            overview.version,
            overview.status,
            short(overview.uptime_secs.floor())
        ),
        format!(
            "messages  in {}  out {}    bytes  in {}  out {}    connects {}  refused {}",
            per_sec(|totals| totals.messages_in),
            per_sec(|totals| totals.messages_out),
            bytes_per_sec(|totals| totals.bytes_in),
            bytes_per_sec(|totals| totals.bytes_out),
            per_sec(|totals| totals.connects),
            per_sec(|totals| totals.refused),
        ),
        format!(
            "connections {}  (tcp {}, tls {}, ws {}, wss {}, quic {})    sessions {}  subscriptions {}  retained {}",
            connections.total,
            connections.tcp,
            connections.tls,
            connections.ws,
            connections.wss,
            connections.quic,
            overview.sessions,
            overview.subscriptions,
            overview.retained.count,
        ),
        format!(
            "memory {} of {}  at rest {}    store {} {}    spool {} {}",
            bytes(memory.used_bytes),
            bytes(memory.high_bytes),
            bytes(memory.resting_bytes),
            overview.store.state,
            bytes(overview.store.bytes),
            overview.spool.state,
            bytes(overview.spool.bytes),
        ),
    ];
    lines.extend(overview.reasons.iter().map(|reason| format!("! {reason}")));
    lines.push(String::new());
    let titles =
        ["client", "user", "address", "transport", "filters", "queued", "bytes", "inflight", "dropped"];
    let mut table = Table::new(Alignment::Right, titles);
    let mut sorted: Vec<_> = clients.items.iter().collect();
    sorted.sort_by_key(|one| std::cmp::Reverse((one.queued_bytes, one.inflight, one.dropped)));
    for one in sorted {
        table.row([
            one.client_id.clone(),
            dash(one.user.as_deref()),
            dash(one.address.as_deref()),
            one.transport.clone().unwrap_or_else(|| "offline".to_owned()),
            one.subscriptions.to_string(),
            one.queued_messages.to_string(),
            bytes(one.queued_bytes),
            one.inflight.to_string(),
            one.dropped.to_string(),
        ]);
    }
    lines.extend(table.lines());
    let shown = clients.items.len() as u64;
    if let Some(total) = clients.total.filter(|total| *total > shown) {
        lines.push(format!("the {shown} of {total} clients with most to get"));
    }
    lines.iter().map(|text| line(text)).collect()
}

/// Streams of a client, with rates since the look before.
pub(super) fn streams_page(now: &Streams, before: Option<&Streams>) -> Vec<String> {
    let mut lines = vec![match &now.path {
        None => format!("{}  without QUIC", now.client_id),
        Some(path) => format!(
            "{}  RTT {:.1} ms  loss {:.2} %  window {}  moves {}",
            now.client_id,
            path.rtt_ms,
            path.loss_ratio * 100.0,
            bytes(path.cwnd_bytes),
            path.moves,
        ),
    }];
    if let Some(gate) = &now.gate {
        let of_path =
            gate.rate_per_sec.map_or_else(String::new, |per_sec| format!("  path {}", rate(per_sec)));
        lines.push(format!("gate {}{of_path}", gate.state));
    }
    lines.push(String::new());
    let titles = ["stream", "priority", "out", "in", "waiting", "bytes", "oldest", "", "waits for"];
    let mut table = Table::new(Alignment::Right, titles);
    let most = now.streams.iter().map(|one| one.queued_bytes).max().unwrap_or(0).max(1);
    let mut sorted: Vec<_> = now.streams.iter().collect();
    sorted.sort_by_key(|one| (one.kind != "control", std::cmp::Reverse(one.priority), one.stream));
    for one in sorted {
        let earlier =
            before.and_then(|before| before.streams.iter().find(|other| other.stream == one.stream));
        let since = before.map_or(0.0, |before| now.at - before.at);
        let increase = |value: u64, of: fn(&Stream) -> u64| {
            // Exact up to 2^53 bytes.
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let bytes = value.saturating_sub(earlier.map_or(value, of)) as f64;
            if earlier.is_some() && since > 0.0 { rate(bytes / since) } else { "-".to_owned() }
        };
        let filled =
            usize::try_from(one.queued_bytes.saturating_mul(BAR as u64).div_ceil(most)).unwrap_or(BAR);
        let behind = one.behind.map_or_else(String::new, |first| format!(" behind {first}"));
        table.row([
            if one.kind == "control" { "control".to_owned() } else { one.stream.to_string() },
            one.priority.to_string(),
            increase(one.bytes_out, |one| one.bytes_out),
            increase(one.bytes_in, |one| one.bytes_in),
            one.queued_messages.to_string(),
            bytes(one.queued_bytes),
            one.oldest_ms.map_or_else(|| "-".to_owned(), |oldest| format!("{oldest:.0} ms")),
            "#".repeat(filled.min(BAR)),
            one.waits_for.as_ref().map_or_else(|| "-".to_owned(), |reason| format!("{reason}{behind}")),
        ]);
    }
    lines.extend(table.lines());
    if now.omitted > 0 {
        lines.push(format!("and {} more streams", now.omitted));
    }
    lines.iter().map(|text| line(text)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn streams(at: f64, bytes_out: u64) -> Streams {
        let stream = |number: u64, kind: &str, priority: u16, queued: u64| {
            json!({ "stream": number, "kind": kind, "priority": priority, "bytes_in": 0, "bytes_out": bytes_out,
                "backlog_messages": queued / 10, "backlog_bytes": queued, "oldest_ms": null,
                "waits_for": (queued > 0).then_some("gate"), "behind": (queued > 0).then_some(8) })
        };
        let streams = [
            stream(0, "control", 100, 0),
            stream(4, "data", 8, 1000),
            stream(8, "data", 200, 50),
            stream(12, "data", 8, 0),
        ];
        let path = json!({ "rtt_ms": 12.34, "loss_ratio": 0.01, "cwnd_bytes": 12000, "moves": 1 });
        let gate = json!({ "state": "holding", "rate_per_sec": 1e6 });
        let all = json!({ "client_id": "c\u{1b}[1m", "at": at, "path": path, "gate": gate, "streams": streams, "omitted": 2 });
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn streams_are_lanes_in_the_order_of_priority() {
        let first = streams_page(&streams(10.0, 1000), None).join("\n");
        assert!(
            first.contains("RTT 12.3 ms  loss 1.00 %") && first.contains("gate holding  path "),
            "{first}"
        );
        let lines = streams_page(&streams(12.0, 5000), Some(&streams(10.0, 1000)));
        let rows: Vec<Vec<_>> = lines.iter().skip(4).map(|line| line.split_whitespace().collect()).collect();
        let names: Vec<_> = rows.iter().map(|row| row[0]).collect();
        assert_eq!(names, ["control", "8", "4", "12", "and"], "{lines:#?}");
        assert!(
            rows[0][2].starts_with('2') && lines[4].contains("/s"),
            "two kilobytes a second: {}",
            lines[4]
        );
        assert!(lines[6].contains(&"#".repeat(BAR)) && lines[6].ends_with("gate behind 8"), "{}", lines[6]);
        assert!(lines[5].contains(" # ") && !lines[5].contains("##"), "{}", lines[5]);
        assert_eq!(lines.last().map(String::as_str), Some("and 2 more streams"));
    }

    #[test]
    fn clients_with_most_to_get_are_first() {
        let client = |id: &str, queued: u64, transport: Option<&str>| {
            json!({ "client_id": id, "user": null, "address": null, "transport": transport, "subscriptions": 1,
                "queued_messages": queued, "queued_bytes": queued * 100, "inflight": 0, "dropped": 0 })
        };
        let items =
            [client("a", 0, Some("tcp")), client("b\u{1b}[2J", 7, None), client("c", 3, Some("quic"))];
        let clients: Clients = serde_json::from_value(json!({ "items": items, "total": 9 })).unwrap();
        let overview = |uptime: f64, count: u64| -> Overview {
            let totals = json!({ "messages_in": count, "messages_out": 3 * count, "bytes_in": 100_000 * count,
                "bytes_out": 0, "connects": 5, "refused": 0 });
            serde_json::from_value(json!({ "version": "1", "uptime_secs": uptime, "status": "refusing",
                "reasons": ["memory: full"], "totals": totals, "sessions": 3, "subscriptions": 4,
                "connections": { "tcp": 1, "tls": 0, "ws": 0, "wss": 0, "quic": 1, "total": 2 },
                "memory": { "used_bytes": 1000, "resting_bytes": 10, "high_bytes": 2000 }, "retained": { "count": 5 },
                "store": { "state": "ok", "bytes": 1 }, "spool": { "state": "ok", "bytes": 2 } }))
            .unwrap()
        };
        let now = overview(5.7, 30);
        let lines = clients_page(&now, None, &clients);
        assert_eq!(lines[1], "messages  in -  out -    bytes  in -  out -    connects -  refused -");
        let restarted = clients_page(&now, Some(&overview(9.0, 10)), &clients);
        assert_eq!(restarted[1], lines[1]);
        let lines = clients_page(&now, Some(&overview(3.7, 10)), &clients);
        let expected =
            "messages  in 10/s  out 30/s    bytes  in 1 MB/s  out 0 B/s    connects 0/s  refused 0/s";
        assert_eq!(lines[1], expected);
        assert!(lines[0].contains("refusing") && lines[4] == "! memory: full", "{lines:#?}");
        let names: Vec<_> = lines.iter().skip(7).map(|line| line.chars().next().unwrap()).collect();
        assert_eq!(names, ['b', 'c', 'a', 't'], "{lines:#?}");
        assert!(lines[7].contains("offline") && !lines.concat().contains('\u{1b}'), "{}", lines[7]);
        assert_eq!(lines.last().map(String::as_str), Some("the 3 of 9 clients with most to get"));
    }
}
