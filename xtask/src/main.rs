//! Every chore of the project, the same on a desk and in CI: `cargo xtask --help`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod fuzz;
mod lab;
mod peers;
mod signal;
mod source;
mod spec;
mod tidy;
mod torture;
mod tree;

/// The chores of the BraidMQ project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check the budgets of the house: sizes, crate arrows, exports, docs.
    Tidy(tidy::Args),
    /// Join the specification's normative statements with the code and its tests.
    Spec(spec::Args),
    /// Build and run every fuzz target for a bounded time.
    Fuzz(fuzz::Args),
    /// Run third-party clients against a real `braidmq serve`.
    Peers(peers::Args),
    /// Test the laboratory on this machine, and the main experiment in its short form.
    Lab(lab::Args),
    /// Measure the broker against its peers in the same run.
    Bench(bench::Args),
    /// Kill, stop and starve a real `braidmq serve` under load, and see that nothing acknowledged is lost.
    Torture(torture::Args),
    /// Let clients of every kind use a `braidmq serve` for half an hour, and see that nothing of it grows.
    Soak(torture::soak::Args),
}

fn main() -> ExitCode {
    match Cli::parse().chore {
        Chore::Tidy(args) => tidy::run(&args),
        Chore::Spec(args) => spec::run(&args),
        Chore::Fuzz(args) => fuzz::run(&args),
        Chore::Peers(args) => peers::run(&args),
        Chore::Lab(args) => lab::run(&args),
        Chore::Bench(args) => bench::run(&args),
        Chore::Torture(args) => torture::run(&args),
        Chore::Soak(args) => torture::soak::run(&args),
    }
}
