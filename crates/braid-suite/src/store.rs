//! `bench store`: cost of durability: QoS 1 to an offline session, a queue that drains, offline sessions, and a start
//! over a large store.

mod drain;
mod durable;
mod log_server;
pub(crate) mod publishers;
mod recovery;
mod report;
mod sessions;
mod yardstick;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use braid_measure::machine::{Machine, load_average};
use braid_measure::process::wait_for_quiet;
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
    drain: Vec<Row<drain::DrainRound>>,
    sessions: Vec<Row<sessions::SessionsRound>>,
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
    let brokers = select(&args.broker)?;
    let yardstick = Yardstick::build()?;
    let directory = disk_directory(args.dir.as_deref(), "bench-store")?;
    let setup = Setup { args, quiet_wait, directory, brokers };
    let mut report = Report {
        machine: Machine::here(),
        load_average_at_end: String::new(),
        rounds: args.rounds,
        seconds: args.seconds,
        brokers: setup.brokers.clone(),
        durable: Vec::new(),
        drain: Vec::new(),
        sessions: Vec::new(),
        recovery: None,
    };
    print!("{}", report::head(&report));
    let asked = |case: &str| wants(&args.cases, case);
    if asked("durable") {
        let labels: Vec<_> = setup.brokers.iter().map(|broker| broker.label.as_str()).collect();
        let each = |row: &durable::Row| print!("{}", report::durable(row, &labels));
        report.durable = durable::run(&setup, &yardstick, each)?;
    }
    if asked("drain") {
        report.drain = drain::run(&setup)?;
        print!("{}", report::drain(&report.drain));
    }
    if asked("sessions") {
        report.sessions = sessions::run(&setup)?;
        print!("{}", report::sessions(&report.sessions));
    }
    if asked("recovery") {
        let recovery = recovery::run(&setup)?;
        print!("{}", report::recovery(&recovery));
        report.recovery = Some(recovery);
    }
    report.load_average_at_end = load_average();
    println!("\nload average at the end: {}", report.load_average_at_end);
    write_json(&report, args.json.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// Variants of braidmq, the synchronous one first, and mosquitto with persistence, the reference.
fn select(braidmq: &str) -> Result<Vec<Broker>, String> {
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
    Ok(vec![variant(SYNC, "sync"), variant(ASYNC, "async"), variant(MEMORY, "memory"), mosquitto])
}

/// Parameters of every case.
struct Setup<'a> {
    args: &'a StoreArgs,
    quiet_wait: Duration,
    /// Directory on the disk under test.
    directory: PathBuf,
    brokers: Vec<Broker>,
}

/// Size of a case.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Amount {
    Messages(u64),
    Sessions(u32),
}

/// Measurements of one broker.
#[derive(Serialize)]
struct Row<R> {
    broker: String,
    #[serde(flatten)]
    amount: Amount,
    rounds: Vec<R>,
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Messages(count) => count.fmt(f),
            Self::Sessions(count) => count.fmt(f),
        }
    }
}

impl Setup<'_> {
    fn wait_for_quiet(&self) -> Result<(), String> {
        wait_for_quiet(Instant::now() + self.quiet_wait).map_err(|error| error.to_string())
    }

    /// Measures the durable brokers in turns, with a line on stderr for each.
    fn rounds<R>(
        &self,
        case: &str,
        amount: Amount,
        before: impl Fn() -> Result<(), String>,
        once: impl Fn(&Broker) -> Result<R, String>,
        line: impl Fn(&R) -> String,
    ) -> Result<Vec<Row<R>>, String> {
        let durable = self.brokers.iter().filter(|broker| broker.label == SYNC || broker.is_mosquitto());
        let row = |broker: &Broker| Row { broker: broker.label.clone(), amount, rounds: Vec::new() };
        let mut rows: Vec<_> = durable.clone().map(row).collect();
        for _ in 0..self.args.rounds {
            before()?;
            for (broker, row) in durable.clone().zip(&mut rows) {
                let measured = once(broker).map_err(|reason| format!("{}: {reason}", broker.label))?;
                eprintln!("# {case} {}: {}", broker.label, line(&measured));
                row.rounds.push(measured);
            }
        }
        Ok(rows)
    }
}
