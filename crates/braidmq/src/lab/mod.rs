//! `braidmq lab`: the network laboratory on the command line.

mod at;
mod experiment;
mod files;
mod list;
mod options;
mod progress;
mod selftest;
mod signals;
mod wrap;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use braid_lab::testbed::own_command;
use clap::Subcommand;

/// Exit code for input that must be corrected before anything can run.
const REFUSED: u8 = 2;
/// Exit code of `--check` when a bound does not hold.
const BROKEN: u8 = 1;
/// Exit code for an untrusted machine or run.
const UNTRUSTED: u8 = 3;
/// Exit code after SIGINT or SIGTERM.
const STOPPED: u8 = 130;

/// Measure brokers and clients on emulated networks on this machine.
///
/// A testbed has hosts (network namespaces) joined by emulated links with delay, loss, a policer, a queue, a NAT. It
/// needs Linux and either root or unprivileged user namespaces; nothing remains when the command ends.
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
    Run(Box<options::Args>),
    At(at::Args),
    Selftest(selftest::Args),
    Compare(files::CompareArgs),
    Render(files::RenderArgs),
    Replay(files::ReplayArgs),
}

/// Reason for which nothing was done, on one line.
type Refusal = Box<dyn std::error::Error>;

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = match &args.command {
        Command::List(args) => list::run(args),
        Command::Run(args) => match (&args.link, &args.scenario) {
            (Some(link), _) => wrap::run(args, link),
            (None, Some(scenario)) => experiment::run(args, scenario),
            (None, None) => Err("name a scenario (braidmq lab list) or a link (--link)".into()),
        },
        Command::At(args) => at::run(args),
        Command::Selftest(args) => Ok(selftest::run(args)),
        Command::Compare(args) => files::compare(args),
        Command::Render(args) => files::render(args),
        Command::Replay(args) => files::replay(args),
    };
    done.unwrap_or_else(|error| refuse(&error))
}

/// Command in which a first word `braidmq` is this program, independent of PATH.
fn own(command: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let own = std::env::current_exe();
    let own = own.map_err(|error| format!("cannot find the path of this program: {error}"))?;
    Ok(own_command(command, &own))
}

/// Error with the path of its file.
fn at_path(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Prints the problem on one line.
fn refuse(problem: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("braidmq: {problem}");
    ExitCode::from(REFUSED)
}
