//! Gate logs of programs (`--gate-log`).

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use serde::Deserialize;

use super::Plan;
use crate::house::Topology;
use crate::report::{GateRun, PathClass};

/// Samples of a connection are so far apart (s) in the report, at least.
const APART: f64 = 0.3;

/// The most connections of a program in the report; those with the longest logs are taken.
const MOST: usize = 4;

/// The file of a program, in the run's directory.
pub(super) fn file(program: &str) -> String {
    format!("{program}.gate.jsonl")
}

/// A program, and what is between it and an address: `bad up`.
pub(super) struct PathOf {
    program: String,
    to: Vec<(Ipv4Addr, String)>,
}

/// Paths between each program and the others.
pub(super) fn paths(plan: &Plan, topology: &Topology) -> Vec<PathOf> {
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

/// Gate logs of a run. A program without a log has no gate.
pub(super) fn read(dir: &Path, paths: &[PathOf], origin_unix_us: u64) -> Vec<GateRun> {
    let of_program = |path: &PathOf| {
        let text = fs::read_to_string(dir.join(file(&path.program))).unwrap_or_default();
        parse(&text, path, origin_unix_us)
    };
    paths.iter().flat_map(of_program).collect()
}

/// A line of the log.
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

fn parse(text: &str, path: &PathOf, origin_unix_us: u64) -> Vec<GateRun> {
    let mut gates: Vec<GateRun> = Vec::new();
    // The last line may have been cut off by the program's end.
    for sample in text.lines().filter_map(|line| serde_json::from_str::<Sample>(line).ok()) {
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
        if gate.at.last().is_none_or(|last| at - last >= APART) {
            push(gate, at, &sample);
        }
    }
    gates.sort_by_key(|gate| std::cmp::Reverse(gate.at.len()));
    gates.truncate(MOST);
    gates
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
    /// The path towards this address with its port.
    fn towards(&self, peer: &str) -> Option<String> {
        let peer: SocketAddr = peer.parse().ok()?;
        self.to.iter().find(|(to, _)| peer.ip() == *to).map(|(_, path)| path.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> PathOf {
        PathOf { program: "broker".into(), to: vec![([10, 0, 0, 2].into(), "bad down".into())] }
    }

    #[test]
    fn each_connection_has_its_samples_in_the_time_of_the_workload() {
        let far = r#""peer":"10.0.0.2:5","packets":7"#;
        let text = format!(
            "{{\"unix_us\":1000000,{far},\"class\":\"start\"}}\n\
             {{\"unix_us\":1100000,\"peer\":\"10.0.0.9:1\",\"class\":\"open\",\"packets\":0}}\n\
             {{\"unix_us\":1200000,{far},\"class\":\"start\"}}\n\
             {{\"unix_us\":1400000,{far},\"class\":\"policed\",\"packets_per_second\":28.5,\"bytes_per_second\":100.0,\
             \"tokens\":-1.5,\"reserve_tokens\":1.0}}\n\
             {{\"unix_us\":1600"
        );
        let gates = parse(&text, &path(), 1_500_000);
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
    fn who_wrote_nothing_has_no_gate() {
        assert_eq!(read(Path::new("nowhere"), &[path()], 0), []);
        assert_eq!(parse("", &path(), 0), []);
    }
}
