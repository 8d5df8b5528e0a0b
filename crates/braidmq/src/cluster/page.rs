//! State of a cluster as text and as JSON.

use std::time::Duration;

use braid_cluster::status::{
    ClusterStatus, NodeStatus, Replica, ServerStatus, SessionCounts, StreamState, StreamStatus,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::printable::printable;
use crate::store::thousands;

/// Side to which a column is aligned.
#[derive(Clone, Copy)]
pub(super) enum Align {
    Left,
    Right,
}
use Align::{Left, Right};

/// The state for people: aligned tables, then the problems.
pub(super) fn text(status: &ClusterStatus) -> String {
    let problems = status.problems();
    let state = match problems.len() {
        0 => "all is well".to_owned(),
        1 => "degraded, 1 problem".to_owned(),
        count => format!("degraded, {count} problems"),
    };
    let mut out = format!("cluster {}: {state}\n", status.cluster);
    nodes(&mut out, status);
    if !status.is_missing() {
        streams(&mut out, &status.streams);
    }
    servers(&mut out, &status.servers);
    if !problems.is_empty() {
        out += "\nproblems\n";
        for problem in problems {
            out += &format!("  {}\n", printable(&problem));
        }
    }
    out
}

fn nodes(out: &mut String, status: &ClusterStatus) {
    let none = SessionCounts::default();
    let counts = status.sessions.as_ref().unwrap_or(&none);
    let nodes = status.nodes.as_deref().unwrap_or_default();
    let sessions = |name: &str| counts.by_node.get(name).copied().unwrap_or(0);
    let rows = nodes.iter().map(|NodeStatus { name, record, renewed }| {
        let address = if record.address.is_empty() { "-" } else { &record.address };
        let lease = format!("{} ago", seconds(*renewed));
        let sessions = thousands(sessions(name));
        [name.clone(), record.version.clone(), since(record.since), lease, sessions, address.to_owned()]
    });
    let columns = [
        ("node", Left),
        ("version", Left),
        ("since", Left),
        ("renewed", Right),
        ("sessions", Right),
        ("address", Left),
    ];
    table(out, columns, rows.collect());
    let total = counts.unowned + counts.by_node.values().sum::<u64>();
    if status.sessions.is_err() || total == 0 {
        return;
    }
    if nodes.is_empty() {
        *out += "\n";
    }
    *out += &format!("{} sessions, {} of them at no node\n", thousands(total), thousands(counts.unowned));
    // Nodes whose lease has ended: another one is about to mark their sessions.
    for (name, count) in &counts.by_node {
        if status.nodes.is_ok() && nodes.iter().all(|node| node.name != *name) {
            *out += &format!("{} sessions at {}, which has no lease\n", thousands(*count), printable(name));
        }
    }
}

fn streams(out: &mut String, streams: &[StreamStatus]) {
    let rows = streams.iter().map(|StreamStatus { name, state }| match state {
        Ok(state) => {
            let leader = state.leader.clone().unwrap_or_else(|| "none".to_owned());
            let [messages, first, last] = [state.messages, state.first, state.last].map(thousands);
            [name.clone(), messages, size(state.bytes), first, last, leader, replicas(&state.replicas)]
        }
        Err(_) => [name.clone(), "?".into(), "?".into(), "?".into(), "?".into(), "?".into(), "?".into()],
    });
    let columns = [
        ("stream", Left),
        ("messages", Right),
        ("size", Right),
        ("first", Right),
        ("last", Right),
        ("leader", Left),
        ("replicas", Left),
    ];
    table(out, columns, rows.collect());
}

fn replicas(replicas: &[Replica]) -> String {
    let texts = replicas.iter().map(|replica| match replica {
        Replica { server, is_offline: true, .. } => format!("{server} (offline)"),
        Replica { server, seen, .. } if !replica.is_live() => {
            format!("{server} (not seen for {})", seconds(*seen))
        }
        Replica { server, is_current: false, lag, .. } => format!("{server} ({} behind)", thousands(*lag)),
        Replica { server, .. } => server.clone(),
    });
    let texts: Vec<_> = texts.collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

fn servers(out: &mut String, servers: &[ServerStatus]) {
    let rows = servers.iter().map(|server| {
        let syncs = match server.syncs_always {
            Some(true) => "always",
            Some(false) => "later",
            None => "unknown",
        };
        let monitor = if server.monitor.is_empty() { "-" } else { &server.monitor };
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".to_owned());
        [text(&server.name), text(&server.version), syncs.to_owned(), monitor.to_owned()]
    });
    let columns = [("server", Left), ("version", Left), ("syncs", Left), ("monitor", Left)];
    table(out, columns, rows.collect());
}

/// Writes an empty line and a table, whose columns are as wide as their longest cell; nothing if it has no rows.
pub(super) fn table<const N: usize>(out: &mut String, columns: [(&str, Align); N], rows: Vec<[String; N]>) {
    if rows.is_empty() {
        return;
    }
    let rows: Vec<_> = rows.into_iter().map(|row| row.map(|cell| printable(&cell).into_owned())).collect();
    let heading = columns.map(|(name, _)| name.to_owned());
    let width = |column: usize| {
        let cells = rows.iter().chain([&heading]).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    *out += "\n";
    for row in [&heading].into_iter().chain(&rows) {
        let cells = row.iter().zip(columns).zip(widths).map(|((cell, (_, align)), width)| match align {
            Left => format!("{cell:<width$}"),
            Right => format!("{cell:>width$}"),
        });
        *out += cells.collect::<Vec<_>>().join("  ").trim_end();
        *out += "\n";
    }
}

pub(super) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// Time in UTC; `-` if there is none.
fn since(secs: u64) -> String {
    let at = i64::try_from(secs).ok().and_then(|secs| Timestamp::from_second(secs).ok());
    at.map_or_else(|| "-".to_owned(), |at| at.to_string())
}

/// Bytes in the largest unit of which there is one.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => {
            // Tenths, cut off.
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

/// The state for programs.
pub(super) fn json(status: &ClusterStatus) -> Value {
    let problems = status.problems();
    let counts = status.sessions.as_ref().ok();
    let node = |NodeStatus { name, record, renewed }: &NodeStatus| {
        json!({
            "name": name,
            "version": record.version,
            "instance": record.instance,
            "since": since(record.since),
            "renewed_secs_ago": renewed.as_secs_f64(),
            "address": (!record.address.is_empty()).then_some(&record.address),
            "sessions": counts.map(|counts| counts.by_node.get(name).copied().unwrap_or(0)),
        })
    };
    let sessions = counts.map(|SessionCounts { by_node, unowned, unreadable }| {
        json!({ "by_node": by_node, "unowned": unowned, "unreadable": unreadable })
    });
    let server = |ServerStatus { monitor, name, version, syncs_always, problem }: &ServerStatus| {
        json!({
            "name": name,
            "version": version,
            "syncs_always": syncs_always,
            "monitor": (!monitor.is_empty()).then_some(monitor),
            "problem": problem,
        })
    };
    json!({
        "cluster": status.cluster.as_str(),
        "is_healthy": problems.is_empty(),
        "problems": problems,
        "nodes": status.nodes.as_ref().ok().map(|nodes| nodes.iter().map(node).collect::<Vec<_>>()),
        "sessions": sessions,
        "streams": status.streams.iter().map(stream).collect::<Vec<_>>(),
        "servers": status.servers.iter().map(server).collect::<Vec<_>>(),
    })
}

fn stream(StreamStatus { name, state }: &StreamStatus) -> Value {
    let state = match state {
        Ok(state) => state,
        Err(problem) => return json!({ "name": name, "problem": problem.to_string() }),
    };
    let StreamState { leader, replicas, wanted, messages, bytes, most_bytes, first, last, uncopied } = state;
    let replica = |replica: &Replica| {
        json!({
            "server": replica.server,
            "is_live": replica.is_live(),
            "is_current": replica.is_current,
            "seen_secs_ago": replica.seen.as_secs_f64(),
            "lag": replica.lag,
        })
    };
    json!({
        "name": name,
        "leader": leader,
        "wanted_replicas": wanted,
        "replicas": replicas.iter().map(replica).collect::<Vec<_>>(),
        "messages": messages,
        "bytes": bytes,
        "most_bytes": most_bytes,
        "first": first,
        "last": last,
        "uncopied": uncopied,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use braid_cluster::NodeRecord;
    use braid_cluster::status::StreamProblem;

    use super::*;

    fn status() -> ClusterStatus {
        let record = |version: &str, address: &str| NodeRecord {
            instance: "1".to_owned(),
            run: "2".to_owned(),
            version: version.to_owned(),
            since: 1_795_690_800,
            address: address.to_owned(),
            positions: Vec::new(),
        };
        let node = |name: &str, record| NodeStatus {
            name: name.to_owned(),
            record,
            renewed: Duration::from_millis(1250),
        };
        let replica = |server: &str| Replica {
            server: server.to_owned(),
            is_current: true,
            is_offline: false,
            seen: Duration::from_millis(100),
            lag: 0,
        };
        let state = StreamState {
            leader: Some("n1".to_owned()),
            replicas: vec![replica("n2"), replica("n3")],
            wanted: 3,
            messages: 1_234_567,
            bytes: 3 << 29,
            most_bytes: Some(10 << 30),
            first: 1,
            last: 1_234_567,
            uncopied: 0,
        };
        let server = |name: &str| ServerStatus {
            monitor: format!("http://{name}:8222"),
            name: Some(name.to_owned()),
            version: Some("2.15.2".to_owned()),
            syncs_always: Some(true),
            problem: None,
        };
        ClusterStatus {
            cluster: "braidmq".parse().unwrap(),
            nodes: Ok(vec![
                node("node-1", record("0.1.0", "mqtt-1.example:8883")),
                node("b", record("0.1.0", "")),
            ]),
            streams: vec![StreamStatus { name: "braidmq-m-0".to_owned(), state: Ok(state) }],
            sessions: Ok(SessionCounts {
                by_node: BTreeMap::from([("node-1".to_owned(), 12_000), ("gone".to_owned(), 2)]),
                unowned: 30,
                unreadable: 0,
            }),
            servers: vec![server("n1")],
        }
    }

    #[test]
    fn tables_are_aligned() {
        let expected = "\
cluster braidmq: all is well

node    version  since                 renewed  sessions  address
node-1  0.1.0    2026-11-26T11:00:00Z  1.2 s ago    12,000  mqtt-1.example:8883
";
        // The column of the lease is as wide as its cells.
        let expected = expected.replace(" renewed  sessions", "   renewed  sessions");
        let text = text(&status());
        assert!(text.starts_with(&expected), "{text}");
        for line in [
            "b       0.1.0    2026-11-26T11:00:00Z  1.2 s ago         0  -\n",
            "\n12,032 sessions, 30 of them at no node\n2 sessions at gone, which has no lease\n\n",
            "\nstream        messages     size  first       last  leader  replicas\n",
            "\nbraidmq-m-0  1,234,567  1.5 GiB      1  1,234,567  n1      n2, n3\n\n",
            "\nserver  version  syncs   monitor\nn1      2.15.2   always  http://n1:8222\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("problems"));
    }

    #[test]
    fn what_is_wrong_is_shown_where_it_is_and_below() {
        let mut status = status();
        let state = status.streams[0].state.as_mut().unwrap();
        (state.replicas[0].is_current, state.replicas[0].lag) = (false, 5000);
        state.replicas[1].seen = Duration::from_secs(60);
        status
            .streams
            .push(StreamStatus { name: "braidmq-r".to_owned(), state: Err(StreamProblem::Missing) });
        status.nodes = Ok(Vec::new());
        status.servers[0] =
            ServerStatus { problem: Some("n1 is old\u{1b}[2J".to_owned()), ..ServerStatus::default() };
        let text = text(&status);
        for line in [
            "cluster braidmq: degraded, 5 problems\n\n12,032 sessions, 30 of them at no node\n",
            "n2 (5,000 behind), n3 (not seen for 60.0 s)\n",
            "braidmq-r            ?        ?      ?          ?  ?       ?\n",
            "?       ?        unknown  -\n",
            "\nproblems\n  no node is running\n  the stream braidmq-m-0 has 2 live replicas of 3\n",
            "\n  n1 is old\\u{1b}[2J\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn json_has_everything() {
        let json = json(&status());
        assert_eq!((&json["is_healthy"], &json["problems"]), (&json!(true), &json!([])));
        let node = &json["nodes"][0];
        assert_eq!((&node["sessions"], &node["address"]), (&json!(12_000), &json!("mqtt-1.example:8883")));
        assert_eq!(json["nodes"][1]["address"], Value::Null);
        assert_eq!(json["sessions"]["unowned"], json!(30));
        let stream = &json["streams"][0];
        assert_eq!((&stream["leader"], &stream["last"]), (&json!("n1"), &json!(1_234_567)));
        assert_eq!(stream["replicas"][1]["server"], json!("n3"));
        assert_eq!(json["servers"][0]["syncs_always"], json!(true));
        let mut status = status();
        (status.nodes, status.sessions) = (Err("x".to_owned()), Err("y".to_owned()));
        let json = super::json(&status);
        assert_eq!(
            (&json["is_healthy"], &json["nodes"], &json["sessions"]),
            (&json!(false), &Value::Null, &Value::Null)
        );
    }

    #[test]
    fn sizes_have_units() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1023.9 KiB"),
            (10 << 30, "10.0 GiB"),
            (u64::MAX, "17179869183.9 GiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }
}
