//! `bench store`: cost of durability: QoS 1 to an offline session, a queue that drains, offline sessions, and a start over
//! a large store.

mod drain;
mod durable;
mod log_server;
mod publishers;
mod recovery;
mod report;
mod sessions;
mod yardstick;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use braid_measure::machine::{Machine, load_average};
use serde::Serialize;

use super::brokers::{self, Broker};
use super::load::payload::MINIMUM;
use super::system::{disk_directory, write_json};
use super::{Tuning, wants};
use yardstick::Yardstick;

/// Arguments of `braidmq serve` without limits for one queue.
const NO_CAPS: [&str; 4] =
    ["--set", "limits.queued_messages=100000000", "--set", "limits.queued_bytes=100000000000"];
/// Inflight messages to a client, the same for every broker.
const INFLIGHT: u32 = 1000;
/// Labels of the variants of braidmq.
const SYNC: &str = "braidmq sync";
const ASYNC: &str = "braidmq async";
const MEMORY: &str = "braidmq memory";
/// Names for `--cases`.
const CASES: [&str; 4] = ["durable", "drain", "sessions", "recovery"];

/// Arguments of `bench store`.
#[derive(clap::Args)]
pub(crate) struct StoreArgs {
    /// The broker, braidmq or braidmq=PROGRAM.
    #[arg(long, default_value = "braidmq", value_name = "NAME[=PROGRAM]")]
    broker: String,
    /// durable, drain, sessions, recovery; default all.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    cases: Vec<String>,
    /// Rounds of every measurement.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds measured per run of the case durable.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    seconds: f64,
    /// Bytes of a message of the case durable.
    #[arg(long, value_delimiter = ',', default_values_t = [256], value_name = "BYTES")]
    payloads: Vec<usize>,
    /// Messages that may be unacknowledged in the case durable, of all publishers together; a multiple of 16 above 16.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256], value_name = "MESSAGES")]
    windows: Vec<u32>,
    /// Queued messages of the case drain.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    queued: u64,
    /// Sessions of the case sessions.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    sessions: u32,
    /// Queued messages of the case recovery, for a tenth as many sessions.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10..))]
    stored: u64,
    /// Before every round of durable and drain, wait up to this long until other programs are idle.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    quiet_wait: f64,
    /// Directory of the brokers' stores, on a disk. Default: bench-store beside the built programs.
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// Also write everything measured as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Measurements of one call; cases that were not wanted are empty.
#[derive(Serialize)]
struct Report {
    machine: Machine,
    load_average_at_end: String,
    rounds: u32,
    seconds: f64,
    brokers: Vec<Broker>,
    durable: Vec<durable::Row>,
    drain: Vec<drain::Row>,
    sessions: Vec<sessions::Row>,
    recovery: Option<recovery::Recovery>,
}

/// Measures and prints.
///
/// # Errors
/// mosquitto or a disk is missing, or a measurement fails.
pub(crate) fn run(args: &StoreArgs) -> Result<ExitCode, String> {
    if let Some(unknown) = args.cases.iter().find(|case| !CASES.contains(&case.as_str())) {
        return Err(format!("no case is called `{unknown}`; there are {}", CASES.join(", ")));
    }
    if !(0.1..=3600.0).contains(&args.seconds) {
        return Err("--seconds must be 0.1 to 3600".to_owned());
    }
    if let Some(small) = args.payloads.iter().find(|&&payload| payload < MINIMUM) {
        return Err(format!("a payload needs {} bytes, not {small}", MINIMUM));
    }
    if args.windows.contains(&0) {
        return Err("a window of 0 lets nothing through".to_owned());
    }
    let quiet_wait =
        Duration::try_from_secs_f64(args.quiet_wait).map_err(|error| format!("--quiet-wait: {error}"))?;
    let brokers = Brokers::select(&args.broker)?;
    let yardstick = Yardstick::build()?;
    let directory = disk_directory(args.dir.as_deref(), "bench-store")?;
    let mut report = Report {
        machine: Machine::here(),
        load_average_at_end: String::new(),
        rounds: args.rounds,
        seconds: args.seconds,
        brokers: brokers.all.clone(),
        durable: Vec::new(),
        drain: Vec::new(),
        sessions: Vec::new(),
        recovery: None,
    };
    print!("{}", report::head(&report));
    let asked = |case: &str| args.cases.is_empty() || wants(&args.cases, case);
    if asked("durable") {
        let plan = durable::Plan {
            rounds: args.rounds,
            measured: Duration::from_secs_f64(args.seconds),
            payloads: &args.payloads,
            windows: &args.windows,
            quiet_wait,
            directory: &directory,
        };
        let each = |row: &durable::Row| print!("{}", report::durable(row, &brokers.labels()));
        report.durable = durable::run(&plan, &yardstick, &brokers.all, each)?;
    }
    if asked("drain") {
        report.drain = drain::run(&directory, &brokers.durable(), args.rounds, args.queued, quiet_wait)?;
        print!("{}", report::drain(&report.drain));
    }
    if asked("sessions") {
        report.sessions = sessions::run(&directory, &brokers.durable(), args.rounds, args.sessions)?;
        print!("{}", report::sessions(&report.sessions));
    }
    if asked("recovery") {
        let amount = recovery::Amount { messages: args.stored, sessions: args.stored / 10 };
        let recovery = recovery::run(&directory, &brokers.sync, args.rounds, amount)?;
        print!("{}", report::recovery(&recovery));
        report.recovery = Some(recovery);
    }
    report.load_average_at_end = load_average();
    println!("\nload average at the end: {}", report.load_average_at_end);
    if let Some(file) = &args.json {
        write_json(&report, file)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Brokers under test.
struct Brokers {
    sync: Broker,
    /// In the order of their turns.
    all: Vec<Broker>,
}

impl Brokers {
    fn select(braidmq: &str) -> Result<Self, String> {
        let inflight = format!("mqtt.maximum_inflight={INFLIGHT}");
        let mut arguments = vec!["--set".to_owned(), inflight];
        arguments.extend(NO_CAPS.map(str::to_owned));
        let tuning = Tuning { braidmq_arg: arguments, mosquitto_inflight: INFLIGHT, ..Tuning::default() };
        let mut found = brokers::select(&[braidmq.to_owned(), "mosquitto".to_owned()], &tuning)?;
        let mosquitto = found.pop().ok_or("no mosquitto")?.persistent();
        let ours = found.pop().filter(Broker::is_braidmq).ok_or("--broker names no braidmq")?;
        let variant = |label: &str, durability: &str| {
            ours.variant(label, &["--set", &format!("store.durability={durability}")])
        };
        let sync = variant(SYNC, "sync");
        let all = vec![sync.clone(), variant(ASYNC, "async"), variant(MEMORY, "memory"), mosquitto];
        Ok(Self { sync, all })
    }

    /// braidmq with default durability, and the reference.
    fn durable(&self) -> Vec<Broker> {
        let reference = self.all.iter().filter(|broker| broker.is_mosquitto()).cloned();
        [self.sync.clone()].into_iter().chain(reference).collect()
    }

    fn labels(&self) -> Vec<&str> {
        self.all.iter().map(|broker| broker.label.as_str()).collect()
    }
}
