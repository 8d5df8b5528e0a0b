//! `cargo xtask soak`: `braidmq serve` for a long time under a load of every kind, with a sample of its memory and of
//! its store's file every second.
//!
//! The load is that of `torture`, with clients besides that come and go. At the end every acknowledged message must
//! have been delivered, and neither memory nor file may have grown from the first third of the run to the last.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use braid_measure::machine::{Machine, load_average};
use braid_measure::process::Resident;
use braid_measure::{Axis, Chart, Format, Line, Panel};
use braid_torture::{Broker, broker_binary, version};
use serde::Serialize;
use tempfile::TempDir;

use super::oracle::{Counts, Options, Oracle, Report};
use super::plan::Transport;

/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(1);
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(60);
/// Least time between two fillings of a publisher's window, which gives about a thousand messages a second.
const PACE: Duration = Duration::from_millis(150);
/// Loads, one a second, after which an offline subscriber returns, so that queues soon reach their largest size.
const MOST_OFFLINE: u64 = 4;
/// TLS tickets of QUIC clients, some eighty a second, reach this limit within the warm-up. The default is ten times as
/// many, 35 MiB.
const SETTINGS: [&str; 1] = ["quic.tickets=10000"];
/// Part of the samples that is left out: queues of slow subscribers are full by then.
const WARM_UP: f64 = 0.1;
/// Growth from the first third to the last that is allowed: a tenth, and ...
const ALLOWED_SHARE: f64 = 0.1;
/// ... so many MiB.
const ALLOWED_MIB: f64 = 4.0;
const MIB: f64 = 1_048_576.0;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Minutes to run.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Seed of all random choices. Default: random.
    #[arg(long)]
    seed: Option<u64>,
    /// The braidmq binary; without it, a release build is made.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Write the measurements as FILE.json, and their chart as FILE.svg.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Findings of a run.
#[derive(Serialize)]
struct Record {
    machine: Machine,
    load_average_at_end: String,
    version: String,
    seed: u64,
    minutes: u64,
    /// Anonymous memory, MiB.
    memory: Growth,
    /// The store's file, MiB.
    file: Growth,
    /// Counters of the oracle.
    oracle: Counts,
    /// Descriptions of faults.
    wrong: Vec<String>,
    samples: Vec<Sample>,
}

/// Sample of a broker's resources.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    /// Since the start.
    seconds: f64,
    /// Anonymous resident memory, MiB.
    memory: f64,
    /// The store's file, MiB.
    file: f64,
}

/// Growth of one resource, MiB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Growth {
    /// Mean of the first third after the warm-up.
    first_third: f64,
    /// Mean of the last third.
    last_third: f64,
    /// Maximum.
    most: f64,
}

/// Runs the soak; true without faults.
pub(crate) fn run(args: &Args) -> Result<bool, String> {
    let binary = broker_binary(args.binary.as_deref())?;
    let home = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let outcome = soak(args, &binary, home.path());
    keep_evidence(home, matches!(outcome, Ok(true)));
    outcome
}

/// Keeps store and log of a run that is not good, and says where they are.
fn keep_evidence(home: TempDir, is_good: bool) {
    if !is_good {
        println!("soak: its files are in {}", home.keep().display());
    }
}

/// Runs the soak below `home`; true without faults.
fn soak(args: &Args, binary: &Path, home: &Path) -> Result<bool, String> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("soak: {} minutes, seed {seed}, {}", args.minutes, binary.display());
    let machine = Machine::here();
    let mut soak = Soak::begin(binary, home, seed)?;
    let samples = soak.watch(Duration::from_secs(args.minutes * 60))?;
    let (report, mut wrong) = soak.end()?;
    let memory = Growth::of(&samples, |sample| sample.memory);
    let file = Growth::of(&samples, |sample| sample.file);
    wrong.extend(memory.fault("memory"));
    wrong.extend(file.fault("the store's file"));
    println!("soak: memory {memory}; file {file}; {} messages acknowledged", report.acknowledged());
    let record = Record {
        machine,
        load_average_at_end: load_average(),
        version: version(binary),
        seed,
        minutes: args.minutes,
        memory,
        file,
        oracle: report.counts,
        wrong,
        samples,
    };
    if let Some(out) = &args.out {
        record.write(out)?;
    }
    record.wrong.iter().for_each(|line| eprintln!("soak: {line}"));
    Ok(record.wrong.is_empty())
}

impl Record {
    fn write(&self, out: &Path) -> Result<(), String> {
        let text = serde_json::to_string(self).map_err(|error| error.to_string())?;
        // One line for each sample.
        let text = text.replace("},{", "},\n{").replace("\"samples\":[", "\"samples\":[\n") + "\n";
        for (extension, content) in [("json", text), ("svg", chart(&self.samples).svg(Format::File))] {
            let file = out.with_extension(extension);
            fs::write(&file, content).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        Ok(())
    }
}

/// Memory and file over time, one above the other.
fn chart(samples: &[Sample]) -> Chart {
    let panel = |heading: &str, colour, of: fn(&Sample) -> f64| {
        let points = samples.iter().map(|sample| (sample.seconds / 60.0, of(sample))).collect();
        let lines = vec![Line { colour, points, filled: false, ends: false }];
        let y = Some(Axis::linear("MiB", samples.iter().map(of)));
        Panel { heading: heading.to_owned(), y, lines, ..Panel::default() }
    };
    Chart {
        title: "Memory and store of a broker under load".to_owned(),
        footer: String::new(),
        legend: Vec::new(),
        x: Axis::until("minutes", samples.last().map_or(1.0, |sample| sample.seconds / 60.0)),
        y: Axis::linear("MiB", []),
        panels: vec![
            panel("Anonymous resident memory of the broker", 0, |sample| sample.memory),
            panel("File of its store", 1, |sample| sample.file),
        ],
        panel_height: 190,
    }
}

/// A broker and its load.
struct Soak {
    broker: Broker,
    oracle: Oracle,
    store: PathBuf,
}

impl Soak {
    fn begin(binary: &Path, home: &Path, seed: u64) -> Result<Self, String> {
        let ports = Transport::free_ports(&Transport::ALL)?;
        let data_dir = home.join("data");
        let settings = SETTINGS.map(str::to_owned).into();
        let listeners = Transport::listeners(&ports);
        let mut broker = Broker::new(binary, &data_dir, &home.join("broker.log"), listeners, settings);
        broker.start()?;
        let options = Options { seed, pace: PACE, most_offline: MOST_OFFLINE, crowd: true, bounded: None };
        let oracle = Oracle::start(&ports, &data_dir.join("cert.pem"), options)?;
        oracle.up()?;
        oracle.load(&mut broker)?;
        Ok(Self { broker, oracle, store: data_dir.join("store.redb") })
    }

    /// Takes a sample and begins a new load every second.
    fn watch(&mut self, time: Duration) -> Result<Vec<Sample>, String> {
        let began = Instant::now();
        let mut samples = Vec::new();
        let mut printed_at = Duration::ZERO;
        while began.elapsed() < time {
            std::thread::sleep(PERIOD);
            self.oracle.begin_load()?;
            let sample = Sample::take(began.elapsed(), self.broker.id(), &self.store)?;
            samples.push(sample);
            if began.elapsed() >= printed_at + PROGRESS {
                printed_at = began.elapsed();
                let Sample { memory, file, .. } = sample;
                println!("soak: {} s, memory {memory:.1} MiB, file {file:.1} MiB", printed_at.as_secs());
            }
        }
        Ok(samples)
    }

    /// Waits for every due delivery and ends the broker; returns the report and descriptions of faults.
    fn end(&mut self) -> Result<(Report, Vec<String>), String> {
        let report = self.oracle.check(true, &mut self.broker)?;
        let status = self.broker.terminate()?;
        let mut wrong = report.fault_lines.clone();
        if report.faults > 0 {
            wrong.insert(0, format!("{} guarantees were broken", report.faults));
        }
        if !status.success() {
            wrong.push(format!("the broker ended with {status} after SIGTERM"));
        }
        wrong.extend(self.broker.check_panics().err());
        wrong.extend(self.broker.check_store().err());
        Ok((report, wrong))
    }
}

impl Sample {
    fn take(since: Duration, process_id: u32, store: &Path) -> Result<Self, String> {
        let resident = Resident::of(process_id).map_err(|error| format!("the broker has ended: {error}"))?;
        let file = fs::metadata(store).map_err(|error| format!("{}: {error}", store.display()))?;
        // Two places of a MiB suffice.
        let round = |value: f64| (value * 100.0).round() / 100.0;
        Ok(Self {
            seconds: round(since.as_secs_f64()),
            memory: round(resident.anonymous as f64 / MIB),
            file: round(file.len() as f64 / MIB),
        })
    }
}

impl Growth {
    fn of(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the length")]
        let warm = &samples[(samples.len() as f64 * WARM_UP) as usize..];
        let third = warm.len() / 3;
        let mean = |part: &[Sample]| part.iter().map(&of).sum::<f64>() / part.len().max(1) as f64;
        let most = samples.iter().map(&of).fold(0.0, f64::max);
        Self { first_third: mean(&warm[..third]), last_third: mean(&warm[warm.len() - third..]), most }
    }

    /// Description of a growth above the allowed one.
    fn fault(&self, what: &str) -> Option<String> {
        let allowed = self.first_third * (1.0 + ALLOWED_SHARE) + ALLOWED_MIB;
        let grows = self.last_third > allowed;
        grows.then(|| format!("{what} grows: {self}, where {allowed:.1} are allowed"))
    }
}

impl Display for Growth {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { first_third, last_third, most } = self;
        write!(out, "{first_third:.1} MiB in the first third, {last_third:.1} in the last, {most:.1} at most")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(memory: impl Fn(f64) -> f64) -> Vec<Sample> {
        let seconds = (0..100).map(f64::from);
        seconds.map(|seconds| Sample { seconds, memory: memory(seconds), file: 1.0 }).collect()
    }

    #[test]
    fn the_files_of_a_run_that_is_not_good_are_kept() {
        let outer = tempfile::tempdir().unwrap();
        for is_good in [true, false] {
            let home = TempDir::new_in(outer.path()).unwrap();
            let path = home.path().to_owned();
            keep_evidence(home, is_good);
            assert_eq!(path.exists(), !is_good);
        }
    }

    #[test]
    fn a_third_is_compared_with_a_third_behind_the_warm_up() {
        let steep = samples(|seconds| if seconds < 10.0 { 1000.0 } else { seconds });
        let growth = Growth::of(&steep, |sample| sample.memory);
        assert_eq!(growth, Growth { first_third: 24.5, last_third: 84.5, most: 1000.0 });
        assert!(growth.fault("memory").is_some_and(|line| line.starts_with("memory grows: 24.5 MiB")));
    }

    #[test]
    fn growth_within_a_tenth_and_four_mib_is_flat() {
        for (rise, grows) in [(0.0, false), (0.2, false), (0.35, true)] {
            let growth = Growth::of(&samples(|seconds| 80.0 + rise * seconds), |sample| sample.memory);
            assert_eq!(growth.fault("memory").is_some(), grows, "{growth}");
        }
    }

    #[test]
    fn the_chart_has_a_line_for_each_resource() {
        let svg = chart(&samples(|seconds| 20.0 + seconds)).svg(Format::File);
        assert_eq!(svg.matches("<polyline fill=\"none\" opacity=\"1\" stroke=\"#0072B2\"").count(), 1);
        assert_eq!(svg.matches("stroke=\"#D55E00\"").count(), 1);
        assert!(svg.contains("File of its store"), "{svg}");
    }
}
