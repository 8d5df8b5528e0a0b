//! Files that programs wrote: summaries with their events, and gate logs (`--gate-log`).

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use braid_bench::http::{HttpSummary, SCHEMA as HTTP_SCHEMA};
use braid_bench::summary::{self, ConnectionsSummary, Role, RunSummary, TopicSummary};
use serde::Deserialize;

use super::Plan;
use super::measure::Evidence;
use crate::report::{Event, GateRun, PathClass};
use crate::testbed::Topology;

/// Summaries of the programs whose command line has `{json}`. A missing one refuses the run.
pub(super) fn summaries(
    plan: &Plan,
    variant: &str,
    dir: &Path,
    refused: &mut Vec<String>,
) -> BTreeMap<String, RunSummary> {
    let mut summaries = BTreeMap::new();
    for program in plan.scenario.programs.iter().filter(|program| program.runs_in(variant)) {
        if !plan.line_of(program).contains("{json}") {
            continue;
        }
        match summary(&dir.join(format!("{}.json", program.name))) {
            Ok(summary) => drop(summaries.insert(program.name.clone(), summary)),
            Err(problem) => refused.push(format!("{} wrote no summary: {problem}", program.name)),
        }
    }
    summaries
}

fn summary(path: &Path) -> Result<RunSummary, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let wrong = |error: serde_json::Error| format!("{}: {error}", path.display());
    let Schema { schema } = serde_json::from_str(&text).map_err(wrong)?;
    match schema.as_str() {
        summary::SCHEMA => serde_json::from_str(&text).map_err(wrong),
        HTTP_SCHEMA => serde_json::from_str(&text).map(of_http).map_err(wrong),
        _ => Err(format!(
            "{}: schema {schema:?}, not {:?} or {HTTP_SCHEMA:?}",
            path.display(),
            summary::SCHEMA
        )),
    }
}

/// Part that all summaries have.
#[derive(Deserialize)]
struct Schema {
    schema: String,
}

/// Topic of the requests of `braidmq bench http`.
const REQUESTS: &str = "requests";

/// Summary of `braidmq bench http`, with its requests as one topic and its counts as counters.
fn of_http(http: HttpSummary) -> RunSummary {
    let counts = http.requests;
    let counters = [
        ("succeeded", counts.succeeded),
        ("failed", counts.failed),
        ("errored", counts.errored),
        ("timed_out", counts.timed_out),
        ("wrong_bodies", counts.wrong_bodies),
        ("connections", counts.connections),
        ("over_quic", counts.over_quic),
        ("switches", counts.switches),
        ("repeated", counts.repeated),
        ("quic_failures", counts.quic_failures),
    ];
    let topic = TopicSummary {
        topic: REQUESTS.to_owned(),
        sent: counts.started,
        acked: counts.succeeded,
        failed: counts.total.saturating_sub(counts.succeeded),
        bytes: http.traffic.body_bytes,
        per_second: http.done_per_second,
        latency_us: http.request_quantiles_us,
        latency_cdf: http.request_curve_us,
        ..TopicSummary::default()
    };
    let connections = ConnectionsSummary {
        wanted: counts.connections,
        established: counts.connections,
        connect_us: http.connect_quantiles_us,
        ..ConnectionsSummary::default()
    };
    let event = |error: braid_bench::http::ClientError| summary::Event {
        at: http.seconds,
        what: format!("{} clients ended: {}", error.clients, error.what),
    };
    RunSummary {
        schema: summary::SCHEMA.to_owned(),
        role: Role::Request,
        started_unix_us: http.started_unix_us,
        seconds: http.seconds,
        counters: counters.into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
        connections,
        topics: vec![topic],
        events: http.errors.into_iter().map(event).collect(),
        ..RunSummary::default()
    }
}

/// Events of all programs in the order of time.
pub(super) fn events(evidence: &Evidence<'_>) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    for (name, summary) in &evidence.summaries {
        let shift = evidence.shift(summary);
        events.extend(summary.events.iter().map(|event| Event {
            at: event.at + shift,
            source: name.clone(),
            what: event.what.clone(),
        }));
    }
    events.sort_by(|a, b| a.at.total_cmp(&b.at));
    events
}

// === Gate logs ===

/// Least interval of samples in the report, seconds.
const INTERVAL: f64 = 0.3;

/// Limit of connections per program in the report; the longest logs are kept.
const MOST_CONNECTIONS: usize = 4;

/// File of a program's gate log, in the directory of the run.
pub(super) fn gate_log(program: &str) -> String {
    format!("{program}.gate.jsonl")
}

/// Paths of a program: for each peer address the link and direction, `bad up`.
pub(super) struct PathOf {
    program: String,
    to: Vec<(Ipv4Addr, String)>,
}

/// Paths from each program to its peers.
pub(super) fn gate_paths(plan: &Plan, topology: &Topology) -> Vec<PathOf> {
    let of_program = |program: &crate::scenario::Program| {
        let mut to = Vec::new();
        for link in &plan.scenario.links {
            let [left, right] = &link.between;
            let (other, way) = if *left == program.at { (right, "up") } else { (left, "down") };
            if *left != program.at && *right != program.at {
                continue;
            }
            to.extend(topology.address(other, &program.at).map(|to| (to, format!("{} {way}", link.name))));
        }
        PathOf { program: program.name.clone(), to }
    };
    plan.scenario.programs.iter().map(of_program).collect()
}

/// Gate logs of a run; programs without a log are skipped. A log that cannot be read refuses the run.
pub(super) fn gates(
    dir: &Path,
    paths: &[PathOf],
    origin_unix_us: u64,
    refused: &mut Vec<String>,
) -> Vec<GateRun> {
    let mut gates = Vec::new();
    for path in paths {
        let name = gate_log(&path.program);
        let read = match fs::read_to_string(dir.join(&name)) {
            Ok(text) => parse(&text, path, origin_unix_us),
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(read) => gates.extend(read),
            Err(problem) => refused.push(format!("{name}: {problem}")),
        }
    }
    gates
}

/// Line of the log.
#[derive(Deserialize)]
struct Sample {
    unix_us: u64,
    peer: String,
    class: PathClass,
    packets_per_second: Option<f64>,
    bytes_per_second: Option<f64>,
    tokens: Option<f64>,
    reserve_tokens: Option<f64>,
    wait_ms: Option<f64>,
    aim_ms: Option<f64>,
    packets: u64,
}

/// Samples of a log, by connection.
fn parse(text: &str, path: &PathOf, origin_unix_us: u64) -> Result<Vec<GateRun>, String> {
    let mut gates: Vec<GateRun> = Vec::new();
    for (at, line) in text.split_inclusive('\n').enumerate() {
        let sample: Sample = match serde_json::from_str(line) {
            Ok(sample) => sample,
            // The program ended while it wrote its last line.
            Err(_) if !line.ends_with('\n') => break,
            Err(error) => return Err(format!("line {}: {error}", at + 1)),
        };
        let gate = match gates.iter_mut().position(|gate| gate.peer == sample.peer) {
            Some(at) => &mut gates[at],
            None => {
                gates.push(GateRun {
                    program: path.program.clone(),
                    peer: sample.peer.clone(),
                    path: path.towards(&sample.peer),
                    ..GateRun::default()
                });
                let last = gates.len() - 1;
                &mut gates[last]
            }
        };
        let at = (sample.unix_us as f64 - origin_unix_us as f64) / 1e6;
        if gate.at.last().is_none_or(|last| at - last >= INTERVAL) {
            push(gate, at, &sample);
        }
    }
    gates.sort_by_key(|gate| std::cmp::Reverse(gate.at.len()));
    gates.truncate(MOST_CONNECTIONS);
    Ok(gates)
}

fn push(gate: &mut GateRun, at: f64, sample: &Sample) {
    gate.at.push(at);
    gate.class.push(sample.class);
    gate.packets_per_second.push(sample.packets_per_second);
    gate.bytes_per_second.push(sample.bytes_per_second);
    gate.tokens.push(sample.tokens);
    gate.reserve_tokens.push(sample.reserve_tokens);
    gate.wait_ms.push(sample.wait_ms);
    gate.aim_ms.push(sample.aim_ms);
    gate.packets.push(sample.packets);
}

impl PathOf {
    /// Path to a peer, given by address and port.
    fn towards(&self, peer: &str) -> Option<String> {
        let peer: SocketAddr = peer.parse().ok()?;
        self.to.iter().find(|(to, _)| peer.ip() == *to).map(|(_, path)| path.clone())
    }
}

#[cfg(test)]
mod tests {
    use braid_transport::quic::PathClass as Class;

    use super::super::job::tests::plan;
    use super::super::measure::tests::{consumer, of_programs};
    use super::*;

    /// Summary of a program with this start (microseconds) and these events.
    fn summary(started_unix_us: u64, events: &[(f64, &str)]) -> RunSummary {
        let event = |&(at, what): &(f64, &str)| summary::Event { at, what: what.into() };
        RunSummary { started_unix_us, events: events.iter().map(event).collect(), ..consumer() }
    }

    /// Summaries of a directory where `ping.json` has this text, and the reasons to refuse the run.
    fn found(text: Option<&str>) -> (BTreeMap<String, RunSummary>, Vec<String>) {
        let folder = tempfile::tempdir().expect("a directory");
        if let Some(text) = text {
            fs::write(folder.path().join("ping.json"), text).expect("a file");
        }
        let mut refused = Vec::new();
        (summaries(&plan(), "one", folder.path(), &mut refused), refused)
    }

    #[test]
    fn a_written_summary_is_read() {
        let written = summary(1, &[]);
        let (summaries, refused) = found(Some(&serde_json::to_string(&written).expect("JSON")));
        assert_eq!(refused, Vec::<String>::new(), "the other program is not asked for one");
        assert_eq!(summaries, BTreeMap::from([("ping".to_owned(), written)]));
    }

    #[test]
    fn a_missing_or_invalid_summary_refuses_the_run() {
        let other = serde_json::to_string(&RunSummary { schema: "other/1".into(), ..summary(1, &[]) });
        let other = other.expect("JSON");
        for (text, why) in [
            (None, "No such file"),
            (Some("{"), "EOF while parsing"),
            (Some("{\"schema\": \"braidmq-bench/1\"}"), "missing field"),
            (Some(other.as_str()), "schema \"other/1\", not \"braidmq-bench/1\""),
        ] {
            let (summaries, refused) = found(text);
            assert!(summaries.is_empty());
            let [reason] = refused.try_into().expect("one reason");
            assert!(reason.starts_with("ping wrote no summary: "), "{reason}");
            assert!(reason.contains("ping.json") && reason.contains(why), "{reason}");
        }
    }

    #[test]
    fn a_replaced_program_without_json_needs_no_summary() {
        let mut plan = plan();
        plan.replaced.insert("ping".into(), "ping {b}".into());
        let mut refused = Vec::new();
        assert!(summaries(&plan, "one", Path::new("nowhere"), &mut refused).is_empty());
        assert_eq!(refused, Vec::<String>::new());
    }

    #[test]
    fn events_of_all_programs_are_sorted_by_workload_time() {
        let summaries = BTreeMap::from([
            ("early".to_owned(), summary(8_000_000, &[(0.5, "connected"), (4.0, "lost")])),
            ("late".to_owned(), summary(11_000_000, &[(0.5, "connected")])),
        ]);
        let evidence = Evidence { origin_unix_us: 10_000_000, ..of_programs(summaries) };
        let events = events(&evidence);
        let found: Vec<_> =
            events.iter().map(|event| (event.at, event.source.as_str(), &*event.what)).collect();
        assert_eq!(found, [(-1.5, "early", "connected"), (1.5, "late", "connected"), (2.0, "early", "lost")]);
    }

    fn path() -> PathOf {
        PathOf { program: "broker".into(), to: vec![([10, 0, 0, 2].into(), "bad down".into())] }
    }

    #[test]
    fn samples_are_grouped_by_connection_in_workload_time() {
        let far = r#""peer":"10.0.0.2:5","packets":7"#;
        let text = format!(
            "{{\"unix_us\":1000000,{far},\"class\":\"start\"}}\n\
             {{\"unix_us\":1100000,\"peer\":\"10.0.0.9:1\",\"class\":\"open\",\"packets\":0}}\n\
             {{\"unix_us\":1200000,{far},\"class\":\"start\"}}\n\
             {{\"unix_us\":1400000,{far},\"class\":\"policed\",\"packets_per_second\":28.5,\"bytes_per_second\":100.0,\
             \"tokens\":-1.5,\"reserve_tokens\":1.0}}\n\
             {{\"unix_us\":1600"
        );
        let gates = parse(&text, &path(), 1_500_000).expect("a log whose last line is incomplete");
        assert_eq!(gates.len(), 2);
        let gate = &gates[0];
        assert_eq!((gate.program.as_str(), gate.peer.as_str()), ("broker", "10.0.0.2:5"));
        assert_eq!(gate.path.as_deref(), Some("bad down"));
        assert_eq!(gate.at, [-0.5, -0.1], "the second one was too soon");
        assert_eq!(gate.class, [PathClass::Start, PathClass::Policed]);
        assert_eq!(gate.packets_per_second, [None, Some(28.5)]);
        assert_eq!((&gate.tokens[1], &gate.wait_ms[1]), (&Some(-1.5), &None));
        assert_eq!((gates[1].path.as_deref(), gates[1].class[0]), (None, PathClass::Open));
    }

    #[test]
    fn without_a_log_there_is_no_gate() {
        let mut refused = Vec::new();
        assert_eq!(gates(Path::new("nowhere"), &[path()], 0, &mut refused), []);
        assert_eq!(refused, Vec::<String>::new());
        assert_eq!(parse("", &path(), 0), Ok(Vec::new()));
    }

    /// Line of a log with this class.
    fn of_class(class: &str, unix_us: u64) -> String {
        let peer = "10.0.0.2:5";
        let line = serde_json::json!({ "unix_us": unix_us, "peer": peer, "class": class, "packets": 7 });
        format!("{line}\n")
    }

    #[test]
    fn each_class_of_the_gate_is_read() {
        let classes = [Class::Startup, Class::Passthrough, Class::Windowed, Class::Policed, Class::Queued];
        let lines = classes.iter().zip(1..).map(|(class, second)| of_class(class.name(), second * 1_000_000));
        let gates = parse(&lines.collect::<String>(), &path(), 0).expect("all classes are known");
        let known =
            [PathClass::Start, PathClass::Open, PathClass::Window, PathClass::Policed, PathClass::Queued];
        assert_eq!(gates[0].class, known);
        let older: PathClass = serde_json::from_str("\"search\"").expect("the name in older reports");
        assert_eq!(older, PathClass::Window);
    }

    #[test]
    fn an_unknown_class_refuses_the_run() {
        let folder = tempfile::tempdir().expect("a directory");
        let text = of_class("start", 1) + &of_class("other", 2) + &of_class("start", 3);
        fs::write(folder.path().join(gate_log("broker")), text).expect("a file");
        let mut refused = Vec::new();
        assert_eq!(gates(folder.path(), &[path()], 0, &mut refused), []);
        let [reason] = refused.try_into().expect("one reason");
        assert!(reason.starts_with("broker.gate.jsonl: line 2: unknown variant `other`"), "{reason}");
        let last = of_class("start", 1) + &of_class("other", 2);
        assert!(parse(&last, &path(), 0).is_err(), "a whole last line is no incomplete one");
    }
}
