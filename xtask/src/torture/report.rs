//! What was found: lines while it goes on, and the result.

use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::oracle::Report;
use super::{Fault, Transport};
use crate::bench::machine::{Machine, load_average};

/// A line of progress comes so often at most.
const OFTEN: Duration = Duration::from_secs(5);
/// How long a start takes, as long as there was none.
const USUAL_START: Duration = Duration::from_millis(50);

/// Everything that was seen.
pub(super) struct Summary {
    machine: Machine,
    fault: Fault,
    transports: Vec<Transport>,
    seed: u64,
    is_release: bool,
    began: Instant,
    pub(super) rounds: u32,
    /// SIGKILL.
    pub(super) kills: u32,
    /// SIGSTOP.
    pub(super) stops: u32,
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
struct Outcome<'a> {
    machine: &'a Machine,
    load_average_at_end: String,
    fault: Fault,
    transports: &'a [Transport],
    seed: u64,
    profile: &'static str,
    rounds: u32,
    kills: u32,
    stops: u32,
    seconds: f64,
    start_ms: Option<Spread>,
    round_ms: Option<Spread>,
    oracle: Option<&'a serde_json::Map<String, serde_json::Value>>,
    faults: u64,
    told: Vec<&'a String>,
}

impl Summary {
    pub(super) fn new(fault: Fault, transports: Vec<Transport>, seed: u64, binary: &Path) -> Self {
        Self {
            machine: Machine::here(),
            fault,
            transports,
            seed,
            is_release: binary.components().any(|part| part.as_os_str() == "release"),
            began: Instant::now(),
            rounds: 0,
            kills: 0,
            stops: 0,
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

    pub(super) fn is_good(&self) -> bool {
        self.wrong.is_empty() && self.faults() == 0
    }

    fn faults(&self) -> u64 {
        self.report.as_ref().map_or(0, |report| report.faults)
    }

    pub(super) fn usual_start(&self) -> Duration {
        let mut starts = self.starts.clone();
        starts.sort_unstable();
        starts.get(starts.len() / 2).copied().unwrap_or(USUAL_START)
    }

    pub(super) fn write(&self, file: &Path) -> Result<(), String> {
        let told = self.report.iter().flat_map(|report| &report.told).chain(&self.wrong);
        let outcome = Outcome {
            machine: &self.machine,
            load_average_at_end: load_average(),
            fault: self.fault,
            transports: &self.transports,
            seed: self.seed,
            profile: if self.is_release { "release" } else { "debug" },
            rounds: self.rounds,
            kills: self.kills,
            stops: self.stops,
            seconds: self.began.elapsed().as_secs_f64(),
            start_ms: Spread::of(&self.starts),
            round_ms: Spread::of(&self.took),
            oracle: self.report.as_ref().map(|report| &report.counts),
            faults: self.faults(),
            told: told.collect(),
        };
        let text = serde_json::to_string_pretty(&outcome).map_err(|error| error.to_string())? + "\n";
        std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
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
        let seconds = self.began.elapsed().as_secs_f64();
        write!(out, "torture: {} rounds in {seconds:.1} s, {} kills", self.rounds, self.kills)?;
        if self.stops > 0 {
            write!(out, ", {} stops", self.stops)?;
        }
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
            "torture: round {} of {rounds}, {} kills, {} acknowledged, {} faults",
            summary.rounds,
            summary.kills,
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
