//! `cargo xtask bench`: brokers measured beside each other, in the same run, on the same machine.
//!
//! The load generator is our own (see [`load`]) because it shares its cores with the broker under test. What
//! counts is always a ratio of neighbouring runs, never an absolute number of one machine.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

mod board;
mod brokers;
mod case;
mod compare;
mod example;
mod first;
mod idle;
mod kernel;
mod load;
pub(crate) mod machine;
mod packets;
mod payload;
mod profile;
mod publishers;
mod report;
mod spool;
mod spread;
mod store;
mod streams;
mod subscribers;
mod usage;

/// Which measurement to make.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(clap::Subcommand)]
enum Measurement {
    /// Measure the broker against its peers, alternating between them, and print ratios.
    Broker(BrokerArgs),
    /// Run one case under `perf record` and print the symbols that cost most.
    Profile(ProfileArgs),
    /// Measure what durability costs, beside mosquitto and the disk itself.
    Store(store::StoreArgs),
    /// Measure what the broker holds of large messages that come slowly.
    Spool(spool::SpoolArgs),
    /// Measure MQTT over QUIC by number of streams beside TCP and TLS, and print ratios.
    Streams(StreamsArgs),
    /// One large message over good and middling networks, on virtual time; `bench bulk -- --help` has the options.
    Bulk {
        /// For the measurement itself.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Urgent messages beside bulk through a bad link, on virtual time; `bench urgent -- --help` has the options.
    Urgent {
        /// For the measurement itself.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
}

/// What `bench streams` takes.
#[derive(clap::Args)]
pub(crate) struct StreamsArgs {
    /// The broker, braidmq or braidmq=PROGRAM.
    #[arg(long, default_value = "braidmq", value_name = "NAME[=PROGRAM]")]
    broker: String,
    /// A build of the load to use, in place of building it.
    #[arg(long, value_name = "PROGRAM")]
    load: Option<PathBuf>,
    /// saturated-qos0, saturated-qos1, paced-qos0, paced-qos1, idle; default all.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    cases: Vec<String>,
    /// How often each row is measured.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds measured per run.
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    seconds: f64,
    /// Connections of the idle case.
    #[arg(long, default_value_t = 2000, value_name = "COUNT")]
    idle_connections: u32,
    /// Also write everything measured as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What `bench broker` takes.
#[derive(clap::Args)]
pub(crate) struct BrokerArgs {
    /// Brokers to compare, each NAME or NAME=PROGRAM; the last one is the reference of every ratio. Default:
    /// braidmq, rumqttd when it is installed, mosquitto.
    #[arg(long, value_delimiter = ',', value_name = "NAME[=PROGRAM]")]
    brokers: Vec<String>,
    /// Cases to run, comma-separated; default all. `--list` names them.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    cases: Vec<String>,
    /// List the cases and leave.
    #[arg(long)]
    list: bool,
    /// How often each broker is measured per case.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds measured per run.
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    seconds: f64,
    /// Seconds of load before the measurement starts.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    warm_up: f64,
    /// One round of one second and 1,000 idle connections: shows that everything works, measures little.
    #[arg(long)]
    quick: bool,
    /// On a busy machine, as root: run brokers and generator alike at nice -10, the session too.
    #[arg(long)]
    go_first: bool,
    /// Before every run, wait up to this long until other programs leave the processors alone.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    quiet_wait: f64,
    /// Also write everything measured as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    tuning: Tuning,
}

/// What `bench profile` takes.
#[derive(clap::Args)]
pub(crate) struct ProfileArgs {
    /// The case to run.
    #[arg(long, value_name = "NAME")]
    case: String,
    /// The broker to look into, NAME or NAME=PROGRAM.
    #[arg(long, default_value = "braidmq", value_name = "NAME[=PROGRAM]")]
    broker: String,
    /// Seconds recorded.
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    seconds: f64,
    /// How many symbols to print.
    #[arg(long, default_value_t = 25)]
    top: usize,
    /// Keep perf's recording here, for `perf report` with its call graphs.
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    tuning: Tuning,
}

/// Knobs of both measurements.
#[derive(clap::Args, Default)]
pub(crate) struct Tuning {
    /// Unanswered messages per publisher instead of the case's own number; 0 leaves QoS 0 to TCP alone.
    #[arg(long, value_name = "MESSAGES")]
    window: Option<u32>,
    /// Connections of the idle case.
    #[arg(long, default_value_t = 10_000, value_name = "COUNT")]
    idle_connections: u32,
    /// One more argument for `braidmq serve`; repeatable.
    #[arg(long, allow_hyphen_values = true, value_name = "ARG")]
    braidmq_arg: Vec<String>,
    /// mosquitto's max_inflight_messages; 0 is no maximum. Its own default of 20 makes fan-in three times as slow.
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    mosquitto_inflight: u32,
}

/// Runs the measurement; builds and becomes the optimised xtask first when it is not that already.
pub(crate) fn run(args: &Args) -> ExitCode {
    let is_plain = matches!(&args.measurement, Measurement::Spool(args) if args.debug);
    if cfg!(debug_assertions) && !is_plain {
        return become_release();
    }
    let outcome = match &args.measurement {
        Measurement::Broker(args) => compare::run(args),
        Measurement::Profile(args) => profile::run(args),
        Measurement::Store(args) => store::run(args),
        Measurement::Spool(args) => spool::run(args),
        Measurement::Streams(args) => streams::run(args),
        Measurement::Bulk { arguments } => example::run("bulk", arguments),
        Measurement::Urgent { arguments } => example::run("urgent", arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(reason) => {
            eprintln!("bench: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Is `name` among those that were asked for?
fn wants(names: &[String], name: &str) -> bool {
    names.iter().any(|wanted| wanted == name)
}

/// Replaces this process by the release build of itself: a generator without optimisation would be the slowest
/// part of what it measures. Returns only when that failed.
fn become_release() -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let reason = Command::new(cargo)
        .args(["run", "--quiet", "--release", "--package", "xtask", "--"])
        .args(std::env::args_os().skip(1))
        .exec();
    eprintln!(
        "bench: cannot start the release build: {reason}; run `cargo run --release -p xtask -- bench ...`"
    );
    ExitCode::FAILURE
}
