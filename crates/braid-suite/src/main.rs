//! `cargo xtask bench`: brokers measured beside each other, in the same run, on the same machine.
//!
//! The load generator ([`load`]) is our own, because it shares its cores with the broker under test. The result is
//! always a ratio of neighbouring runs, never an absolute number of one machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

mod access;
mod brokers;
mod callgrind;
mod case;
mod cluster;
mod compare;
mod http;
mod idle;
mod load;
mod profile;
mod report;
mod sim;
mod spool;
mod store;
mod streams;
mod system;

/// Measure brokers beside each other, in the same run.
#[derive(Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
struct Cli {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(clap::Subcommand)]
enum Suite {
    /// Measure the broker against its peers, alternating between them, and print ratios.
    Broker(BrokerArgs),
    /// Run one case under `perf record` and print the symbols with most samples; builds braidmq with symbols.
    Profile(ProfileArgs),
    /// Measure the cost of durability, beside mosquitto and the disk itself.
    Store(store::StoreArgs),
    /// Measure the cost of access control: rules per message, and a reload of users and rules.
    Access(access::AccessArgs),
    /// Measure requests for a small file per processor second, beside nginx, over HTTP/1.1, 2 and 3.
    Http(http::HttpArgs),
    /// Measure the cost of a cluster of three nodes, beside NATS itself on the same servers.
    Cluster(cluster::ClusterArgs),
    /// Measure the memory of the broker while large messages arrive slowly.
    Spool(spool::SpoolArgs),
    /// Measure MQTT over QUIC by number of streams beside TCP and TLS, and print ratios.
    Streams(StreamsArgs),
    /// One large message over good and middling networks, on virtual time; `bench bulk -- --help` has the options.
    Bulk(Passed),
    /// Urgent messages beside bulk through a bad link, on virtual time; `bench urgent -- --help` has the options.
    Urgent(Passed),
    /// Urgent messages beside bulk on links as they are found, on virtual time; `bench real-links -- --help` has the
    /// options.
    RealLinks(Passed),
    /// Bulk of several connections that share a link, on virtual time; `bench neighbours -- --help` has the options.
    Neighbours(Passed),
}

/// Arguments behind `--`.
#[derive(clap::Args)]
struct Passed {
    /// Options of the measurement.
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// Arguments of `bench streams`.
#[derive(clap::Args)]
pub(crate) struct StreamsArgs {
    /// The broker, braidmq or braidmq=PROGRAM.
    #[arg(long, default_value = "braidmq", value_name = "NAME[=PROGRAM]")]
    broker: String,
    /// Cases to run; default all.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = streams::NAMES)]
    cases: Vec<String>,
    /// Rounds of each row.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds measured per run, 0.1 to 3600.
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS", value_parser = streams::seconds)]
    seconds: f64,
    /// Connections of the idle case.
    #[arg(long, default_value_t = 2000, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    idle_connections: u32,
    /// Also write the measurements as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Arguments of `bench broker`.
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
    /// Rounds of each case.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds measured per run.
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    seconds: f64,
    /// Seconds of load before the measurement starts.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    warm_up: f64,
    /// One round of one second and 1,000 idle connections: a test, not a measurement.
    #[arg(long)]
    quick: bool,
    /// On a busy machine, as root: run brokers and generator alike at nice -10, the session too.
    #[arg(long)]
    go_first: bool,
    /// Before every run, wait up to this long until other programs are idle.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    quiet_wait: f64,
    /// Also write the measurements as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    tuning: Tuning,
}

/// Arguments of `bench profile`.
#[derive(clap::Args)]
pub(crate) struct ProfileArgs {
    /// The case to run.
    #[arg(long, value_name = "NAME")]
    case: String,
    /// The broker to profile, NAME or NAME=PROGRAM; a program needs its symbols.
    #[arg(long, default_value = "braidmq", value_name = "NAME[=PROGRAM]")]
    broker: String,
    /// Seconds recorded.
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    seconds: f64,
    /// Number of symbols to print.
    #[arg(long, default_value_t = 25)]
    top: usize,
    /// Keep perf's recording here, for `perf report` with its call graphs.
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    tuning: Tuning,
}

/// Settings of the brokers and of their load.
#[derive(clap::Args, Clone, Default)]
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
    /// Builds braidmq in the profile `symbols`.
    #[arg(skip)]
    has_symbols: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let is_accepted = match &cli.suite {
        Suite::Spool(args) => args.debug,
        Suite::Cluster(args) => args.debug,
        _ => false,
    };
    if cfg!(debug_assertions) && !is_accepted {
        eprintln!("bench: a debug build: its figures are no measurement");
    }
    let outcome = match &cli.suite {
        Suite::Broker(args) => compare::run(args),
        Suite::Profile(args) => profile::run(args),
        Suite::Store(args) => store::run(args),
        Suite::Access(args) => access::run(args),
        Suite::Http(args) => http::run(args),
        Suite::Cluster(args) => cluster::run(args),
        Suite::Spool(args) => spool::run(args),
        Suite::Streams(args) => streams::run(args),
        Suite::Bulk(passed) => simulate(sim::bulk::run, passed),
        Suite::Urgent(passed) => simulate(sim::urgent::run, passed),
        Suite::RealLinks(passed) => simulate(sim::real_links::run, passed),
        Suite::Neighbours(passed) => simulate(sim::neighbours::run, passed),
    };
    outcome.unwrap_or_else(|reason| {
        eprintln!("bench: {reason}");
        ExitCode::FAILURE
    })
}

/// Runs a suite on virtual time with the arguments behind `--`.
fn simulate<T: Parser>(
    run: fn(&T) -> Result<(), Box<dyn std::error::Error>>,
    passed: &Passed,
) -> Result<ExitCode, String> {
    // The first argument is the name of the program, which clap knows.
    let arguments = [OsString::new()].into_iter().chain(passed.arguments.iter().cloned());
    run(&T::parse_from(arguments)).map_err(|error| error.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// True if `name` is in the list.
fn wants(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|wanted| wanted == name)
}
