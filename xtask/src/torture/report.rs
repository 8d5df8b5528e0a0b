//! What was found: lines while it goes on, and the result.

use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Transport;
use super::kind::{Kind, Overflow, Plan};
use super::oracle::Report;
use crate::bench::machine::{Machine, load_average};

/// A line of progress comes so often at most.
const OFTEN: Duration = Duration::from_secs(5);
/// How long a start takes, as long as there was none.
const USUAL_START: Duration = Duration::from_millis(50);

/// All kinds of a run, and where it ran.
pub(super) struct Record {
    machine: Machine,
    version: String,
    transports: Vec<Transport>,
    seed: u64,
    is_release: bool,
    pub(super) runs: Vec<Summary>,
}

/// Everything that was seen of one kind.
pub(super) struct Summary {
    plan: Plan,
    began: Instant,
    /// All of it, once it has ended.
    took_all: Option<Duration>,
    pub(super) rounds: u32,
    /// SIGKILL.
    pub(super) kills: u32,
    /// SIGSTOP.
    pub(super) stops: u32,
    /// The broker ended by itself while it served.
    pub(super) failures: u32,
    /// The broker did not start on a disk that did not serve it.
    pub(super) refusals: u32,
    /// Blocks that were written, not synced, and lost with the device.
    pub(super) lost_blocks: u32,
    /// From the start of each process to its first connection that could be accepted.
    pub(super) starts: Vec<Duration>,
    /// Each round, with its last check.
    took: Vec<Duration>,
    report: Option<Report>,
    /// What ended it before its time, or was wrong after its end.
    wrong: Vec<String>,
}

/// Milliseconds.
#[derive(Serialize)]
struct Spread {
    least: f64,
    median: f64,
    p99: f64,
    most: f64,
}

#[derive(Serialize)]
struct WrittenRecord<'a> {
    machine: &'a Machine,
    load_average_at_end: String,
    version: &'a str,
    profile: &'static str,
    transports: &'a [Transport],
    seed: u64,
    runs: Vec<WrittenSummary<'a>>,
}

#[derive(Serialize)]
struct WrittenSummary<'a> {
    kind: Kind,
    queue: Option<Overflow>,
    rounds: u32,
    kills: u32,
    stops: u32,
    failures: u32,
    refusals: u32,
    lost_blocks: u32,
    seconds: f64,
    start_ms: Option<Spread>,
    round_ms: Option<Spread>,
    oracle: Option<&'a serde_json::Map<String, serde_json::Value>>,
    faults: u64,
    told: Vec<&'a String>,
}

/// What a binary calls itself.
pub(super) fn version(binary: &Path) -> String {
    let output = Command::new(binary).arg("--version").output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

impl Record {
    pub(super) fn begin(transports: Vec<Transport>, seed: u64, binary: &Path) -> Self {
        let is_release = binary.components().any(|part| part.as_os_str() == "release");
        let version = version(binary);
        Self { machine: Machine::here(), version, transports, seed, is_release, runs: Vec::new() }
    }

    pub(super) fn is_good(&self) -> bool {
        self.runs.iter().all(Summary::is_good)
    }

    pub(super) fn write(&self, file: &Path) -> Result<(), String> {
        let written = WrittenRecord {
            machine: &self.machine,
            load_average_at_end: load_average(),
            version: &self.version,
            profile: if self.is_release { "release" } else { "debug" },
            transports: &self.transports,
            seed: self.seed,
            runs: self.runs.iter().map(Summary::written).collect(),
        };
        let text = serde_json::to_string_pretty(&written).map_err(|error| error.to_string())? + "\n";
        std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
    }
}

impl Summary {
    pub(super) fn new(plan: Plan) -> Self {
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

    pub(super) fn note(&mut self, round: u32, report: Report, took: Duration) {
        self.rounds = round;
        self.took.push(took);
        self.report = Some(report);
    }

    pub(super) fn wrong(&mut self, reason: &str) {
        self.wrong.push(reason.to_owned());
    }

    /// Nothing more happens.
    pub(super) fn end(&mut self) {
        self.took_all = Some(self.began.elapsed());
    }

    pub(super) fn is_good(&self) -> bool {
        self.wrong.is_empty() && self.faults() == 0
    }

    fn faults(&self) -> u64 {
        self.report.as_ref().map_or(0, |report| report.faults)
    }

    fn seconds(&self) -> f64 {
        self.took_all.unwrap_or_else(|| self.began.elapsed()).as_secs_f64()
    }

    pub(super) fn usual_start(&self) -> Duration {
        let mut starts = self.starts.clone();
        starts.sort_unstable();
        starts.get(starts.len() / 2).copied().unwrap_or(USUAL_START)
    }

    fn written(&self) -> WrittenSummary<'_> {
        WrittenSummary {
            kind: self.plan.kind,
            queue: self.plan.queue,
            rounds: self.rounds,
            kills: self.kills,
            stops: self.stops,
            failures: self.failures,
            refusals: self.refusals,
            lost_blocks: self.lost_blocks,
            seconds: self.seconds(),
            start_ms: Spread::of(&self.starts),
            round_ms: Spread::of(&self.took),
            oracle: self.report.as_ref().map(|report| &report.counts),
            faults: self.faults(),
            told: self.report.iter().flat_map(|report| &report.told).chain(&self.wrong).collect(),
        }
    }

    /// What was done to the broker.
    fn deeds(&self) -> String {
        let Self { kills, stops, failures, refusals, lost_blocks, .. } = *self;
        let deeds = [
            (kills, "kills"),
            (stops, "stops"),
            (failures, "failures of the disk"),
            (refusals, "starts refused"),
            (lost_blocks, "blocks lost that were not synced"),
        ];
        let deeds = deeds.into_iter().filter(|(count, _)| *count > 0);
        deeds.map(|(count, what)| format!(", {count} {what}")).collect()
    }
}

impl Spread {
    /// `None` of nothing.
    fn of(times: &[Duration]) -> Option<Self> {
        let mut sorted: Vec<_> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |part: usize| sorted.get(((sorted.len() * part).div_ceil(100)).max(1) - 1).copied();
        Some(Self { least: at(0)?, median: at(50)?, p99: at(99)?, most: at(100)? })
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
            self.deeds()
        )?;
        if let Some(Spread { median, most, .. }) = Spread::of(&self.starts) {
            write!(out, ", start {median:.0} ms, {most:.0} ms at most")?;
        }
        let Some(report) = &self.report else { return self.fmt_wrong(out) };
        write!(
            out,
            "\ntorture: {} messages acknowledged, {} delivered, {} lost, {} duplicates of QoS 2, {} other faults",
            report.acknowledged(),
            report.count("delivered"),
            report.count("lost"),
            report.count("duplicates"),
            report.faults - report.count("lost") - report.count("duplicates"),
        )?;
        let extras = [
            ("large", "large ones acknowledged"),
            ("cut", "connections cut in the middle of one"),
            ("expired", "expired before their reader was there"),
            ("displaced", "had no room in a queue"),
        ];
        let extras = extras.map(|(name, what)| (report.count(name), what));
        let extras: Vec<_> = extras.iter().filter(|(count, _)| *count > 0).collect();
        if !extras.is_empty() {
            let extras: Vec<_> = extras.iter().map(|(count, what)| format!("{count} {what}")).collect();
            write!(out, "\ntorture: {}", extras.join(", "))?;
        }
        for line in &report.told {
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

/// Lines while it goes on.
pub(super) struct Progress {
    next: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self { next: Instant::now() + OFTEN }
    }
}

impl Progress {
    pub(super) fn print(&mut self, summary: &Summary, rounds: u32) {
        let Some(report) = summary.report.as_ref().filter(|_| Instant::now() >= self.next) else { return };
        self.next = Instant::now() + OFTEN;
        println!(
            "torture: {}, round {} of {rounds}{}, {} acknowledged, {} faults",
            summary.plan.name(),
            summary.rounds,
            summary.deeds(),
            report.acknowledged(),
            report.faults
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_of_what_was_measured() {
        assert!(Spread::of(&[]).is_none());
        let times: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        let Spread { least, median, p99, most } = Spread::of(&times).unwrap();
        assert_eq!([least, median, p99, most], [1.0, 100.0, 198.0, 200.0]);
    }
}
