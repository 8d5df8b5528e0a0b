//! Cost of rules per message: the same load on a broker with a list and on one without, in alternation.

use std::path::Path;
use std::time::Duration;

use braid_measure::Spread;
use serde::Serialize;
use tempfile::TempDir;

use super::{files, line, verdict};
use crate::brokers::{Broker, Running, installed};
use crate::case::{Flow, Shape};
use crate::{callgrind, load};

/// Number of rules.
const RULES: u32 = 1000;
/// Upper bound of the ratio.
const BOUND: f64 = 1.10;
const WARM_UP: Duration = Duration::from_secs(1);
/// Length of a run under valgrind, in which the broker is slower by a factor of about 50.
const COUNTED: Duration = Duration::from_secs(6);
/// Length of a run with thousands of topics, so that the first questions about each are few beside the messages.
const COUNTED_LONGER: Duration = Duration::from_secs(24);
/// Topics of a publisher, in turn. A connection caches answers about 8,192.
const MANY_TOPICS: [u32; 3] = [128, 1024, 4096];

/// Costs of one load.
#[derive(Serialize)]
pub(super) struct CostRow {
    load: String,
    /// Processor time per message, nanoseconds: without rules and with them, in neighbouring runs.
    cpu: Vec<[f64; 2]>,
    /// Instructions per message; `None` without valgrind.
    instructions: Option<[f64; 2]>,
}

/// Measures all loads.
///
/// # Errors
/// The broker does not start, or the load fails.
pub(super) fn measure(broker: &Broker, rounds: u32, seconds: u64) -> Result<Vec<CostRow>, String> {
    let home = TempDir::new().map_err(|error| format!("no directory for files: {error}"))?;
    let acl = home.path().join("acl");
    files::write(&acl, &files::rules(0, RULES))?;
    let configuration = files::configuration(&acl, None)?.display().to_string();
    let brokers = [broker.variant("no rules", &[]), broker.variant("rules", &["--config", &configuration])];
    let mut rows = Vec::new();
    for flow in flows() {
        let mut cpu = Vec::new();
        for round in 0..rounds {
            let mut pair = [0.0; 2];
            // The order changes, so that a machine that becomes slower favours neither.
            for turn in 0..2 {
                let which = (round as usize + turn) % 2;
                pair[which] = processor_time(&brokers[which], &flow, Duration::from_secs(seconds))?;
            }
            eprintln!("# {} round {}: {:.0} > {:.0} ns", flow.describe(), round + 1, pair[0], pair[1]);
            cpu.push(pair);
        }
        let instructions = match installed("callgrind_control", "apt-get install valgrind") {
            Ok(_) => Some([
                instructions(&brokers[0], &flow, home.path())?,
                instructions(&brokers[1], &flow, home.path())?,
            ]),
            Err(reason) => {
                eprintln!("# no instructions are counted: {reason}");
                None
            }
        };
        rows.push(CostRow { load: flow.describe(), cpu, instructions });
    }
    Ok(rows)
}

fn flows() -> Vec<Flow> {
    let flow = |shape, qos, window, topics| Flow { shape, qos, payload: 64, window, pace: None, topics };
    vec![
        flow(Shape::Pairs(10), 0, 1000, 1),
        flow(Shape::Pairs(10), 1, 100, 1),
        flow(Shape::FanOut(100), 0, 200, 1),
        flow(Shape::Pairs(10), 0, 1000, MANY_TOPICS[0]),
        flow(Shape::Pairs(10), 1, 100, MANY_TOPICS[0]),
        flow(Shape::Pairs(10), 0, 1000, MANY_TOPICS[1]),
        flow(Shape::Pairs(2), 0, 1000, MANY_TOPICS[2]),
    ]
}

/// Processor time per message of a broker of its own, nanoseconds.
fn processor_time(broker: &Broker, flow: &Flow, measured: Duration) -> Result<f64, String> {
    let running = broker.start()?;
    let result = load::run(flow, running.address, running.pid(), WARM_UP, measured);
    result.map(|result| result.cpu_nanoseconds).map_err(|reason| told(&running, reason))
}

/// Instructions per message of a broker of its own, counted by valgrind from the first client on.
fn instructions(broker: &Broker, flow: &Flow, home: &Path) -> Result<f64, String> {
    let out = home.join("callgrind.out");
    let running = broker.wrapped(callgrind::wrapper(&out)).start()?;
    callgrind::control("--instr=on", running.pid())?;
    let counted = if flow.topics > MANY_TOPICS[0] { COUNTED_LONGER } else { COUNTED };
    let result = load::run(flow, running.address, running.pid(), Duration::ZERO, counted);
    let result = result.map_err(|reason| told(&running, reason))?;
    running.end()?;
    let total = callgrind::sum(&out)?;
    Ok(total / (result.expected - result.lost).max(1) as f64)
}

fn told(running: &Running, reason: String) -> String {
    match running.last_words() {
        words if words.is_empty() => reason,
        words => format!("{reason} (the broker's log: {words})"),
    }
}

impl CostRow {
    fn cpu_ratio(&self) -> Option<Spread> {
        Spread::of(self.cpu.iter().map(|[none, rules]| rules / none))
    }

    fn instruction_ratio(&self) -> Option<f64> {
        self.instructions.map(|[none, rules]| rules / none)
    }

    /// Ratio that decides: that of instructions, which do not scatter; without them the median of processor time.
    fn ratio(&self) -> f64 {
        let cpu = || self.cpu_ratio().map_or(f64::NAN, |spread| spread.median);
        self.instruction_ratio().unwrap_or_else(cpu)
    }

    pub(super) fn is_good(&self) -> bool {
        self.ratio() <= BOUND
    }

    fn cells(&self) -> Vec<String> {
        let median = |which: usize| {
            let spread = Spread::of(self.cpu.iter().map(|pair| pair[which]));
            format!("{:.0}", spread.map_or(f64::NAN, |spread| spread.median))
        };
        let counted = |which: usize| {
            self.instructions.map_or("-".to_owned(), |instructions| format!("{:.0}", instructions[which]))
        };
        vec![
            self.load.clone(),
            median(0),
            median(1),
            self.cpu_ratio().map_or_else(String::new, |spread| spread.show(2)),
            counted(0),
            counted(1),
            self.instruction_ratio().map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
            verdict(self.is_good()),
        ]
    }
}

/// Table of all loads.
pub(super) fn markdown(rows: &[CostRow]) -> String {
    let rounds = rows.first().map_or(0, |row| row.cpu.len());
    let titles =
        ["load", "CPU ns/msg", "with rules", "ratio", "instructions/msg", "with rules", "ratio", "verdict"];
    let mut text = format!(
        "## Rules, per message\n\n\
         A list of {RULES} rules beside none, the same binary, one fresh process for each run, {rounds} rounds in \
         alternation: medians, and the ratio of neighbouring runs with its least and greatest. Half of the rules are \
         about users, a quarter about another tree of topics, a quarter deny topics beside those of the load, and the \
         last one permits the load. Topics of MQTT 3.1.1 over TCP. A connection caches answers about 8,192 topics at \
         most. Instructions are counted by \
         callgrind, from the first client to the end of the broker; processor time scatters on a shared machine, so their ratio is \
         the one that decides: at most {BOUND:.2}.\n\n"
    );
    text.push_str(&line(&titles.map(str::to_owned)));
    text.push_str(&line(&titles.map(|_| "---".to_owned())));
    rows.iter().for_each(|row| text.push_str(&line(&row.cells())));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_decide_and_processor_time_without_them() {
        let row = |instructions| CostRow {
            load: String::new(),
            cpu: vec![[100.0, 120.0], [100.0, 105.0], [200.0, 240.0]],
            instructions,
        };
        assert!(!row(None).is_good(), "the median is 1.2");
        assert!(row(Some([100.0, 110.0])).is_good());
        assert!(!row(Some([100.0, 110.1])).is_good());
        assert!(!CostRow { cpu: Vec::new(), ..row(None) }.is_good(), "nothing was measured");
    }
}
