//! `cargo xtask torture`, `torture-cluster` and `soak`: a real `braidmq serve` under load.
//!
//! `torture` kills, stops or starves the broker, and an oracle says whether any acknowledged message is lost.
//! `torture-cluster` does that to the processes and the network of a cluster. `soak` runs a broker for a long time and
//! checks that its memory does not grow. `history` checks what clients of a run wrote down.

mod cluster;
mod device;
mod disk;
mod harness;
mod namespace;
mod oracle;
mod payload;
mod plan;
mod report;
mod soak;
mod spool;
mod topic;

use std::path::PathBuf;
use std::process::ExitCode;

use braid_torture::{broker_binary, history};
use clap::{Parser, Subcommand};

use harness::PlanRun;
use plan::{Kind, Plan, Transport};
use report::Record;

/// Faults and long runs for a real `braidmq serve`.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Inject faults into a real `braidmq serve` under load: no acknowledged message may be lost.
    Torture(Args),
    /// Run clients of every kind against a `braidmq serve` for half an hour: its memory may not grow.
    Soak(soak::Args),
    /// Inject faults into a cluster of three nodes under load: no acknowledged message may be lost.
    TortureCluster(cluster::Args),
    /// Check the history of a run: no acknowledged message lost, no duplicate, no wrong order, one owner of a session.
    History(HistoryArgs),
}

#[derive(clap::Args)]
struct HistoryArgs {
    /// Folder with history/*.jsonl, one file for each client.
    dir: PathBuf,
    /// Also write the report as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Args {
    /// Kinds of faults with the number of their rounds, each with its own broker and clients, for example
    /// kill:20,full:3. `kill`: SIGKILL, now and then a second one during the start. `stop`: SIGSTOP for up to 4 s, then
    /// SIGCONT or SIGKILL. `full`: its disk becomes full (a small one in memory; needs `unshare` and `mount`). `dying`:
    /// its device fails to write or to sync (needs `strace`). With +drop-oldest, +drop-newest or +disconnect queues
    /// hold few messages and have this overflow policy, for example kill+drop-oldest:20.
    #[arg(long, value_delimiter = ',', value_name = "KIND[+QUEUE][:ROUNDS]", default_value = "kill")]
    kind: Vec<Plan>,
    /// Rounds of a kind that names no number.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Transports of the clients; default all, at the same time.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCHEME")]
    transport: Vec<Transport>,
    /// Seed of all random choices; the timing of the machine differs all the same. Default: random.
    #[arg(long)]
    seed: Option<u64>,
    /// The braidmq binary; without it, one is built with the profile of this program.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Run this program before each round, and begin the round when it has ended: for a machine with other
    /// measurements.
    #[arg(long, value_name = "PROGRAM")]
    before_round: Option<PathBuf>,
    /// Also write the findings as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The process has a mount namespace of its own.
    #[arg(long, hide = true)]
    inside: bool,
}

impl Args {
    /// Wanted transports in their order.
    fn transports(&self) -> Vec<Transport> {
        let is_wanted = |one: &Transport| self.transport.is_empty() || self.transport.contains(one);
        Transport::ALL.into_iter().filter(is_wanted).collect()
    }

    fn has(&self, kind: Kind) -> bool {
        self.kind.iter().any(|plan| plan.kind == kind)
    }
}

fn main() -> ExitCode {
    let (name, outcome) = match Cli::parse().command {
        Subcommands::Torture(args) => ("torture", torture(&args)),
        Subcommands::Soak(args) => ("soak", soak::run(&args)),
        Subcommands::History(args) => ("history", check_history(&args)),
        Subcommands::TortureCluster(args) => ("torture-cluster", cluster::run(&args)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("{name}: {reason}");
            // A history that cannot be read is not one with violations.
            ExitCode::from(if name == "history" { 2 } else { 1 })
        }
    }
}

/// Checks a history and prints the report; true without violations.
fn check_history(args: &HistoryArgs) -> Result<bool, String> {
    let report = history::check(&args.dir)?;
    println!("{report}");
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())? + "\n";
        std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(report.is_good())
}

/// Runs all plans; true without faults.
fn torture(args: &Args) -> Result<bool, String> {
    if args.has(Kind::FailingDevice) {
        device::check()?;
    }
    if args.has(Kind::Full) && !args.inside {
        return Err(namespace::enter_mounts());
    }
    let binary = broker_binary(args.binary.as_deref())?;
    let home = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let mut record = Record::begin(args.transports(), seed, &binary);
    for plan in &args.kind {
        let rounds = plan.rounds.unwrap_or(args.rounds);
        println!("torture: {}, {rounds} rounds, seed {seed}, {}", plan.name(), binary.display());
        let run = PlanRun { args, binary: &binary, plan: *plan, rounds, seed };
        let (summary, log) = run.execute(&home.path().join(plan.name()))?;
        println!("{summary}");
        record.runs.push(summary);
        if !record.is_good() {
            println!("torture: its files are in {}, its log is {}", home.keep().display(), log.display());
            break;
        }
    }
    if let Some(file) = &args.json {
        record.write(file)?;
    }
    Ok(record.is_good())
}
