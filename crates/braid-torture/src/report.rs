//! Findings: lines of progress, the result as text and as JSON.

use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::time::{Duration, Instant};

use braid_measure::machine::{Machine, load_average};
use braid_measure::quantile;
use braid_torture::version;
use serde::Serialize;
use serde_json::{Value, json};

use super::oracle::{Counts, Report};
use super::plan::{Plan, Transport};

/// Least time between two lines of progress.
const OFTEN: Duration = Duration::from_secs(5);
/// Assumed duration of a start before the first one.
const USUAL_START: Duration = Duration::from_millis(50);

/// All plans of a run, and its machine.
pub(crate) struct Record {
    machine: Machine,
    version: String,
    transports: Vec<Transport>,
    seed: u64,
    is_release: bool,
    pub(crate) runs: Vec<Summary>,
}

/// Findings of one plan.
pub(crate) struct Summary {
    plan: Plan,
    began: Instant,
    /// Duration of the plan, once it has ended.
    took_all: Option<Duration>,
    pub(crate) rounds: u32,
    /// SIGKILL.
    pub(crate) kills: u32,
    /// SIGSTOP.
    pub(crate) stops: u32,
    /// Ends of the broker by itself while it served.
    pub(crate) failures: u32,
    /// Starts that the broker refused because of its disk.
    pub(crate) refusals: u32,
    /// Blocks written, not synced, and lost with the device.
    pub(crate) lost_blocks: u32,
    /// Time from the start of each process until it listened.
    pub(crate) starts: Vec<Duration>,
    /// Duration of each round with its check.
    took: Vec<Duration>,
    report: Option<Report>,
    /// Faults that ended the plan early or were found after its end.
    wrong: Vec<String>,
}

/// Spread of durations in milliseconds.
#[derive(Serialize)]
pub(crate) struct Spread {
    least: f64,
    pub(crate) median: f64,
    p99: f64,
    pub(crate) most: f64,
}

impl Record {
    pub(crate) fn begin(transports: Vec<Transport>, seed: u64, binary: &Path) -> Self {
        let is_release = binary.components().any(|part| part.as_os_str() == "release");
        let version = version(binary);
        Self { machine: Machine::here(), version, transports, seed, is_release, runs: Vec::new() }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.runs.iter().all(Summary::is_good)
    }

    pub(crate) fn write(&self, file: &Path) -> Result<(), String> {
        let written = json!({
            "machine": self.machine,
            "load_average_at_end": load_average(),
            "version": self.version,
            "profile": if self.is_release { "release" } else { "debug" },
            "transports": self.transports,
            "seed": self.seed,
            "runs": self.runs.iter().map(Summary::written).collect::<Vec<_>>(),
        });
        write_json(file, &written)
    }
}

/// Writes findings to a file.
pub(crate) fn write_json(file: &Path, findings: &Value) -> Result<(), String> {
    let text = serde_json::to_string_pretty(findings).map_err(|error| error.to_string())? + "\n";
    std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

impl Summary {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            began: Instant::now(),
            took_all: None,
            rounds: 0,
            kills: 0,
            stops: 0,
            failures: 0,
            refusals: 0,
            lost_blocks: 0,
            starts: Vec::new(),
            took: Vec::new(),
            report: None,
            wrong: Vec::new(),
        }
    }

    pub(crate) fn note(&mut self, round: u32, report: Report, took: Duration) {
        self.rounds = round;
        self.took.push(took);
        self.report = Some(report);
    }

    pub(crate) fn wrong(&mut self, reason: &str) {
        self.wrong.push(reason.to_owned());
    }

    /// Takes the duration of the plan.
    pub(crate) fn end(&mut self) {
        self.took_all = Some(self.began.elapsed());
    }

    pub(crate) fn is_good(&self) -> bool {
        self.wrong.is_empty() && self.faults() == 0
    }

    fn faults(&self) -> u64 {
        self.report.as_ref().map_or(0, |report| report.faults)
    }

    fn seconds(&self) -> f64 {
        self.took_all.unwrap_or_else(|| self.began.elapsed()).as_secs_f64()
    }

    pub(crate) fn usual_start(&self) -> Duration {
        let mut starts = self.starts.clone();
        starts.sort_unstable();
        starts.get(starts.len() / 2).copied().unwrap_or(USUAL_START)
    }

    fn written(&self) -> Value {
        let fault_lines = self.report.iter().flat_map(|report| &report.fault_lines).chain(&self.wrong);
        json!({
            "kind": self.plan.kind,
            "queue": self.plan.queue,
            "rounds": self.rounds,
            "kills": self.kills,
            "stops": self.stops,
            "failures": self.failures,
            "refusals": self.refusals,
            "lost_blocks": self.lost_blocks,
            "seconds": self.seconds(),
            "start_ms": Spread::of(&self.starts),
            "round_ms": Spread::of(&self.took),
            "oracle": self.report.as_ref().map(|report| &report.counts),
            "faults": self.faults(),
            "told": fault_lines.collect::<Vec<_>>(),
        })
    }

    /// Faults injected so far, as text.
    fn injected_faults(&self) -> String {
        let Self { kills, stops, failures, refusals, lost_blocks, .. } = *self;
        let injected_faults = [
            (kills, "kills"),
            (stops, "stops"),
            (failures, "failures of the disk"),
            (refusals, "starts refused"),
            (lost_blocks, "blocks lost that were not synced"),
        ];
        let injected_faults = injected_faults.into_iter().filter(|(count, _)| *count > 0);
        injected_faults.map(|(count, what)| format!(", {count} {what}")).collect()
    }
}

impl Spread {
    /// Spread of `times`; `None` without any.
    pub(crate) fn of(times: &[Duration]) -> Option<Self> {
        let mut sorted: Vec<_> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |fraction| quantile(&sorted, fraction);
        Some(Self { least: at(0.0)?, median: at(0.5)?, p99: at(0.99)?, most: at(1.0)? })
    }
}

impl Display for Summary {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds();
        write!(
            out,
            "torture: {}, {} rounds in {seconds:.1} s{}",
            self.plan.name(),
            self.rounds,
            self.injected_faults()
        )?;
        if let Some(Spread { median, most, .. }) = Spread::of(&self.starts) {
            write!(out, ", start {median:.0} ms, {most:.0} ms at most")?;
        }
        let Some(report) = &self.report else { return self.fmt_wrong(out) };
        let Counts { delivered, faults, large, cut, expired, displaced, .. } = &report.counts;
        write!(
            out,
            "\ntorture: {} messages acknowledged, {delivered} delivered, {} lost, {} duplicates of QoS 2, {} other faults",
            report.acknowledged(),
            faults.lost,
            faults.duplicates,
            report.faults - faults.lost - faults.duplicates,
        )?;
        let extras = [
            (large, "large ones acknowledged"),
            (cut, "connections cut in the middle of one"),
            (expired, "expired before their subscriber was there"),
            (displaced, "had no room in a queue"),
        ];
        let extras: Vec<_> = extras.iter().filter(|(count, _)| **count > 0).collect();
        if !extras.is_empty() {
            let extras: Vec<_> = extras.iter().map(|(count, what)| format!("{count} {what}")).collect();
            write!(out, "\ntorture: {}", extras.join(", "))?;
        }
        for line in &report.fault_lines {
            write!(out, "\ntorture: {line}")?;
        }
        self.fmt_wrong(out)
    }
}

impl Summary {
    fn fmt_wrong(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.wrong.iter().try_for_each(|line| write!(out, "\ntorture: {line}"))
    }
}

/// Printer of progress.
pub(crate) struct Progress {
    next: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self { next: Instant::now() + OFTEN }
    }
}

impl Progress {
    pub(crate) fn print(&mut self, summary: &Summary, rounds: u32) {
        let Some(report) = summary.report.as_ref().filter(|_| Instant::now() >= self.next) else { return };
        self.next = Instant::now() + OFTEN;
        println!(
            "torture: {}, round {} of {rounds}{}, {} acknowledged, {} faults",
            summary.plan.name(),
            summary.rounds,
            summary.injected_faults(),
            report.acknowledged(),
            report.faults
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_values_that_were_measured() {
        assert!(Spread::of(&[]).is_none());
        let times: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        let Spread { least, median, p99, most } = Spread::of(&times).unwrap();
        assert_eq!([least, median, p99, most], [1.0, 100.0, 198.0, 200.0]);
    }
}
