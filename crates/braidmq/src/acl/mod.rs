//! `braidmq acl`: decisions of an access control list, its check, and the import of mosquitto's.

mod check;
mod import;
mod list;
mod test;

use std::process::ExitCode;

use clap::Subcommand;

use crate::printable::printable;

/// Exit code of a denied action.
const DENIED: u8 = 1;
/// Exit code when there is no answer and the user must change something.
const REFUSED: u8 = 2;

/// Ask an access control list who may do what, check it, or convert that of mosquitto.
///
/// An access control list is a text file with one rule on each line, such as `allow publish user sensor topic a/#`.
/// The first rule that matches decides. Where none does, the answer is no. The broker need not run.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

const HELP: &str = "\
Examples:
  braidmq acl check rules.acl
  braidmq acl test --acl rules.acl --user jane --client c1 publish home/lamp
  braidmq acl test --config braidmq.toml --client c1 subscribe 'home/#'
  braidmq acl import /etc/mosquitto/acl > rules.acl

The file, for instance:
  # Devices write below their own Client Identifier, and operators read all.
  group operators = jane \"John Doe\"
  deny  publish topic sensors/+/key
  allow publish topic sensors/%c/#
  allow subscribe,receive group operators topic sensors/#

All of it: docs/permissions.md

Exit codes:
  0  permitted, or the file is in order
  1  denied
  2  no answer: the line on standard error names the remedy";

#[derive(Subcommand, Debug)]
enum Command {
    Test(test::Args),
    Check(check::Args),
    Import(import::Args),
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = match &args.command {
        Command::Test(args) => test::run(args),
        Command::Check(args) => check::run(args),
        Command::Import(args) => import::run(args),
    };
    done.unwrap_or_else(|message| {
        eprintln!("braidmq: {}", printable(&message));
        ExitCode::from(REFUSED)
    })
}

/// Writes to standard output.
fn print(text: &str) -> Result<(), String> {
    crate::output::print(text).map_err(|error| format!("cannot write standard output: {error}"))
}
