//! Commands of the project, the same on a desk and in CI: `cargo xtask --help`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod dist;
mod fuzz;
mod lab;
mod peers;
mod signal;
mod source;
mod spec;
mod tidy;
mod torture;
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
    /// Build the release binary without symbols, and a file with its symbols.
    Dist(dist::Args),
    /// Build and run every fuzz target for a bounded time.
    Fuzz(fuzz::Args),
    /// Run third-party clients against a real `braidmq serve`.
    Peers(peers::Args),
    /// Test the network laboratory, with its main experiment in short.
    Lab(lab::Args),
    /// Measure the broker against its peers in the same run.
    Bench(bench::Args),
    /// Inject faults into a real `braidmq serve` under load: nothing acknowledged may be lost.
    Torture(torture::Args),
    /// Run clients of every kind against a `braidmq serve` for half an hour: its memory may not grow.
    Soak(torture::soak::Args),
}

fn main() -> ExitCode {
    match Cli::parse().chore {
        Chore::Tidy(args) => tidy::run(&args),
        Chore::Spec(args) => spec::run(&args),
        Chore::Dist(args) => dist::run(&args),
        Chore::Fuzz(args) => fuzz::run(&args),
        Chore::Peers(args) => peers::run(&args),
        Chore::Lab(args) => lab::run(&args),
        Chore::Bench(args) => bench::run(&args),
        Chore::Torture(args) => torture::run(&args),
        Chore::Soak(args) => torture::soak::run(&args),
    }
}
