//! Commands of the project, the same on a desk and in CI: `cargo xtask --help`.

use std::fmt::Display;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod dist;
mod fuzz;
mod lab;
mod launch;
mod peers;
mod signal;
mod source;
mod spec;
mod tidy;
mod tree;

/// Commands of the BraidMQ project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check sizes, names, words, imports between crates and files, exports, docs.
    Tidy(tidy::Args),
    /// Join the specification's normative statements with the code and its tests.
    Spec(spec::Args),
    /// Build the release: the binary, its symbols, and a Debian package with a systemd unit.
    Dist(dist::Args),
    /// Build and run every fuzz target for a bounded time.
    Fuzz(fuzz::Args),
    /// Run third-party clients against a real `braidmq serve`.
    Peers(peers::Args),
    /// Test the network laboratory, with its main experiment in short.
    Lab(lab::Args),
    /// Measure the broker against its peers in the same run.
    #[command(disable_help_flag = true)]
    Bench(launch::Args),
    /// Inject faults into a real `braidmq serve` under load: no acknowledged message may be lost.
    #[command(disable_help_flag = true)]
    Torture(launch::Args),
    /// Inject faults into a cluster of three nodes under load: no acknowledged message may be lost.
    #[command(disable_help_flag = true)]
    TortureCluster(launch::Args),
    /// Run clients of every kind against a `braidmq serve` for half an hour: its memory may not grow.
    #[command(disable_help_flag = true)]
    Soak(launch::Args),
    /// Check what the clients of a run wrote down: no message lost, duplicated or out of order, one owner of a session.
    #[command(disable_help_flag = true)]
    History(launch::Args),
    /// Run hostile clients against a real `braidmq serve`, with well-behaved clients beside them.
    #[command(disable_help_flag = true)]
    Hostile(launch::Args),
}

fn main() -> ExitCode {
    match Cli::parse().chore {
        Chore::Tidy(args) => exit_code("tidy", 2, tidy::run(&args)),
        Chore::Spec(args) => exit_code("spec", 2, spec::run(&args)),
        Chore::Dist(args) => exit_code("dist", 1, dist::run(&args)),
        Chore::Fuzz(args) => exit_code("fuzz", 2, fuzz::run(&args)),
        Chore::Peers(args) => exit_code("peers", 1, peers::run(&args)),
        Chore::Lab(args) => exit_code("xtask lab", 1, lab::run(&args)),
        Chore::Bench(args) => launch::bench(&args),
        Chore::Torture(args) => launch::torture(&args),
        Chore::TortureCluster(args) => launch::torture_cluster(&args),
        Chore::Soak(args) => launch::soak(&args),
        Chore::History(args) => launch::history(&args),
        Chore::Hostile(args) => launch::hostile(&args),
    }
}

/// Exit code 0 for true, 1 for false, `failed` for an error, which is printed.
fn exit_code(name: &str, failed: u8, outcome: Result<bool, impl Display>) -> ExitCode {
    match outcome {
        Ok(is_good) => ExitCode::from(u8::from(!is_good)),
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::from(failed)
        }
    }
}
