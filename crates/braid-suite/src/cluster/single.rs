//! Part `single`: one broker without a cluster, beside the braidmq of before.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::report::{Bar, Row};
use super::testbed::free_addresses;
use super::{Setup, in_turn};
use crate::case::{self, Flow, Work};
use crate::load;
use crate::load::session::connect;

/// Name of the part.
pub(super) const PART: &str = "single";
/// Cases of `bench broker` that are run.
const CASES: [&str; 2] = ["pairs-qos0", "pairs-qos1"];
/// Bar of the issue: ratio of the processor times.
const COST: f64 = 1.02;
/// Time limit until a broker accepts a client.
const START: Duration = Duration::from_secs(60);

/// Measures the processor time of a message, if there is a braidmq of before.
pub(super) fn run(setup: &Setup<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let Some(before) = setup.before else { return Ok(()) };
    for case in case::select(&CASES.map(str::to_owned), 0, None)? {
        let Work::Flow(flow) = &case.work else { continue };
        let mut costs = Vec::new();
        for round in 0..setup.rounds as usize {
            let pair =
                in_turn(round, || cost(setup, before, flow), || cost(setup, setup.programs.broker, flow))?;
            setup.note(PART, round, &format!("{}: {:.2} and {:.2} us", case.name, pair[0], pair[1]));
            costs.push(pair);
        }
        let what = (format!("one broker, {}: processor time of a message", flow.describe()), "us");
        setup.push(rows, Row::beside(PART, "before", what, costs, Bar::RatioAtMost(COST)));
    }
    Ok(())
}

/// Processor time of a message, microseconds.
fn cost(setup: &Setup<'_>, program: &Path, flow: &Flow) -> Result<f64, String> {
    let home = TempDir::with_prefix_in("braidmq-bench-", &setup.directory)
        .map_err(|error| format!("cannot make a directory in {}: {error}", setup.directory.display()))?;
    setup.processes.own_directory(home.path());
    let address = free_addresses(1)?[0];
    let mut command = Command::new(program);
    command.args(["serve", "--tcp", &address.to_string(), "--data-dir"]).arg(home.path().join("data"));
    setup.processes.start(PART, &mut command, &home.path().join("log"))?;
    let give_up = Instant::now() + START;
    while connect(address, "bench-ready").is_err() {
        setup.processes.check()?;
        if Instant::now() > give_up {
            let words = setup.processes.last_lines(PART);
            return Err(format!("{} accepts no client; its log: {words}", program.display()));
        }
        thread::sleep(Duration::from_millis(20));
    }
    let pid = setup.processes.id(PART)?;
    let result = load::run(flow, address, pid, setup.warm_up(), setup.measured());
    setup.processes.kill(PART);
    Ok(result?.cpu_nanoseconds / 1e3)
}
