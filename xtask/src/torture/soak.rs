//! `cargo xtask soak`: a release build of `braidmq serve` for a long time under a load of every kind, with a look at its
//! memory and at its store's file every second.
//!
//! The load is that of `torture`, with clients beside it that come and go. At the end nothing acknowledged may be
//! missing, as there; and neither memory nor file may have grown from the first third of the run to the last.

mod picture;
mod samples;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::broker::Broker;
use super::oracle::{Oracle, Report};
use super::{Profile, Transport, programs};
use crate::bench::machine::{Machine, load_average};
use samples::{Growth, Sample};

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// A line of progress comes so often.
const OFTEN: Duration = Duration::from_secs(60);
/// What the oracle is told: others come and go, about a thousand messages a second are published, and nobody is away for
/// more than some seconds, so that what waits for them has soon been as much as it ever is.
const LOAD: [&str; 5] = ["--crowd", "--pace", "150", "--most-away", "4"];
/// The tickets of clients of QUIC, of which some eighty are given out every second, are as many as they may be within the
/// warm-up. By itself a broker keeps ten times as many, which is 35 MiB.
const SETTINGS: [&str; 1] = ["quic.tickets=10000"];
/// Queues of readers who are slow are full within this part of a run, which is left out.
const WARM_UP: f64 = 0.1;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// For everything that is drawn. Default: the time.
    #[arg(long)]
    seed: Option<u64>,
    /// The braidmq binary; without it, a release build is made.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Write what was measured as FILE.json, and its picture as FILE.svg.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// What was found.
#[derive(Serialize)]
struct Record {
    machine: Machine,
    load_average_at_end: String,
    version: String,
    seed: u64,
    minutes: u64,
    /// Of anonymous memory, in MiB.
    memory: Growth,
    /// Of the store's file, in MiB.
    file: Growth,
    /// What the oracle counted.
    oracle: serde_json::Map<String, serde_json::Value>,
    /// What is wrong.
    wrong: Vec<String>,
    samples: Vec<Sample>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match soak(args) {
        Ok(record) if record.wrong.is_empty() => ExitCode::SUCCESS,
        Ok(record) => {
            record.wrong.iter().for_each(|line| eprintln!("soak: {line}"));
            ExitCode::FAILURE
        }
        Err(reason) => {
            eprintln!("soak: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn soak(args: &Args) -> Result<Record, String> {
    let (binary, oracle) = programs(args.binary.as_deref(), Profile::Release)?;
    let home = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("soak: {} minutes, seed {seed}, {}", args.minutes, binary.display());
    let machine = Machine::here();
    let mut soak = Soak::begin(&binary, &oracle, home.path(), seed)?;
    let samples = soak.watch(Duration::from_secs(args.minutes * 60))?;
    let Told { counts, acknowledged, mut wrong } = soak.end()?;
    let memory = Growth::of(&samples, |sample| sample.memory);
    let file = Growth::of(&samples, |sample| sample.file);
    wrong.extend(memory.wrong("memory"));
    wrong.extend(file.wrong("the store's file"));
    println!("soak: memory {memory}; file {file}; {acknowledged} messages acknowledged");
    let record = Record {
        machine,
        load_average_at_end: load_average(),
        version: super::report::version(&binary),
        seed,
        minutes: args.minutes,
        memory,
        file,
        oracle: counts,
        wrong,
        samples,
    };
    if let Some(out) = &args.out {
        record.write(out)?;
    }
    Ok(record)
}

impl Record {
    fn write(&self, out: &Path) -> Result<(), String> {
        let text = serde_json::to_string(self).map_err(|error| error.to_string())?;
        // A sample is a line: the file can be read, and compared.
        let text = text.replace("},{", "},\n{").replace("\"samples\":[", "\"samples\":[\n") + "\n";
        for (extension, content) in [("json", text), ("svg", picture::draw(&self.samples)?)] {
            let file = out.with_extension(extension);
            std::fs::write(&file, content)
                .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        Ok(())
    }
}

/// A broker, its load, and what was seen.
struct Soak {
    broker: Broker,
    oracle: Oracle,
    store: PathBuf,
}

/// What the oracle said at the end.
struct Told {
    counts: serde_json::Map<String, serde_json::Value>,
    acknowledged: u64,
    wrong: Vec<String>,
}

impl Soak {
    fn begin(binary: &Path, oracle: &Path, home: &Path, seed: u64) -> Result<Self, String> {
        let all = [Transport::Mqtt, Transport::Mqtts, Transport::Quic];
        let ports = all.into_iter().map(|one| one.free_port().map(|port| (one, port)));
        let ports = ports.collect::<Result<Vec<_>, _>>()?;
        let data_dir = home.join("data");
        let settings = SETTINGS.map(str::to_owned).into();
        let mut broker = Broker::new(binary, &data_dir, &home.join("broker.log"), ports.clone(), settings);
        broker.start()?;
        let options = LOAD.map(str::to_owned);
        let mut oracle = Oracle::start(oracle, &ports, &data_dir.join("cert.pem"), seed, &options)?;
        oracle.tell("up")?;
        oracle.load()?;
        Ok(Self { broker, oracle, store: data_dir.join("store.redb") })
    }

    /// Looks at the broker every second, and lets readers make up their minds anew.
    fn watch(&mut self, time: Duration) -> Result<Vec<Sample>, String> {
        let began = Instant::now();
        let mut samples = Vec::new();
        let mut told_at = Duration::ZERO;
        while began.elapsed() < time {
            std::thread::sleep(PERIOD);
            self.oracle.tell("more")?;
            let sample = Sample::take(began.elapsed(), self.broker.id(), &self.store)?;
            samples.push(sample);
            if began.elapsed() >= told_at + OFTEN {
                told_at = began.elapsed();
                println!(
                    "soak: {} s, memory {:.1} MiB, file {:.1} MiB",
                    told_at.as_secs(),
                    sample.memory,
                    sample.file
                );
            }
        }
        Ok(samples)
    }

    /// Waits for everything that was promised, and stops the broker.
    fn end(&mut self) -> Result<Told, String> {
        let report = self.oracle.check(true)?;
        let status = self.broker.terminate()?;
        let acknowledged = report.acknowledged();
        let Report { counts, faults, told: mut wrong } = report;
        if faults > 0 {
            wrong.insert(0, format!("{faults} promises were broken"));
        }
        if !status.success() {
            wrong.push(format!("the broker ended with {status} after SIGTERM"));
        }
        wrong.extend(self.broker.check_store().err());
        Ok(Told { counts, acknowledged, wrong })
    }
}
