//! `braidmq lab`: the network laboratory on the command line.

mod at;
mod compare;
mod experiment;
mod house;
mod list;
mod progress;
mod render;
mod replay;
mod right;
mod run;
mod selftest;
mod wrap;

use std::ffi::OsString;
use std::process::ExitCode;

use braid_lab::house::own_command;
use clap::Subcommand;

/// Exit code for everything that the user must change before anything can run.
const REFUSED: u8 = 2;
/// Exit code of `--check` when a bound does not hold.
const BROKEN: u8 = 1;
/// Exit code when the machine or a run could not be trusted.
const UNTRUSTED: u8 = 3;
/// Exit code when somebody said stop.
const STOPPED: u8 = 130;

/// Measure brokers and clients on bad networks, made on this machine.
///
/// A laboratory has hosts of its own (network namespaces) that are joined by emulated links: with delay, loss, a
/// policer, a queue, a NAT. It needs Linux and either root or unprivileged user namespaces; nothing of it stays
/// when the command ends.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  braidmq lab list
  braidmq lab run hol --quick
  braidmq lab run --link \"delay=50ms loss=1%\" -- ping -c 5 192.168.200.1
  braidmq lab compare before/report.json after/report.json")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    List(list::Args),
    Run(Box<run::Args>),
    At(at::Args),
    Selftest(selftest::Args),
    Compare(compare::Args),
    Render(render::Args),
    Replay(replay::Args),
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match &args.command {
        Command::List(args) => list::run(args),
        Command::Run(args) => run::run(args),
        Command::At(args) => at::run(args),
        Command::Selftest(args) => selftest::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Render(args) => render::run(args),
        Command::Replay(args) => replay::run(args),
    }
}

/// A command in which `braidmq` is this program, also where the search path has none or another.
fn own(command: Vec<OsString>) -> std::io::Result<Vec<OsString>> {
    Ok(own_command(command, &std::env::current_exe()?))
}

/// Says on one line why nothing was done.
fn refuse(problem: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("braidmq: {problem}");
    ExitCode::from(REFUSED)
}
