//! `braidmq store`: check, statistics, backup and restore of a stopped broker's store.

mod check;
mod export;
pub(crate) mod failure;
pub(crate) mod import;
pub(crate) mod progress;
mod stats;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use failure::Failure;

use crate::output;
use crate::printable::printable;

/// Exit code of damage and failure.
const DAMAGED: u8 = 1;
/// Exit code when nothing was done and the user must change something.
const REFUSED: u8 = 2;

/// Check, count, back up and restore a broker's sessions, queued messages and retained messages.
///
/// They are in store.redb and store.journal in the broker's data directory. Stop the broker first: it locks them
/// while it runs. After a crash the journal is replayed, as when the broker starts.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

const HELP: &str = "\
Examples:
  braidmq store check                             # integrity check, for instance after a crash
  braidmq store stats                             # content, and the longest queues
  braidmq store export backup.jsonl               # a backup, one JSON object on each line
  braidmq store export | zstd > backup.jsonl.zst
  braidmq store import --data-dir restored backup.jsonl
  braidmq store import --replace backup.jsonl     # replace the existing store, damaged or not

Exit codes:
  0  done, and the store is sound
  1  damage or failure of the store, the disk, or the imported records
  2  nothing was done: the line on standard error names the remedy";

#[derive(Subcommand, Debug)]
enum Command {
    Check(check::Args),
    Stats(stats::Args),
    Export(export::Args),
    Import(import::Args),
}

/// Location of the store.
#[derive(clap::Args, Debug)]
struct Location {
    /// The broker's data directory, as of `braidmq serve`
    #[arg(long, value_name = "DIR", env = "BRAIDMQ_DATA_DIR", default_value = "braidmq-data")]
    data_dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = match &args.command {
        Command::Check(args) => check::run(args),
        Command::Stats(args) => stats::run(args),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("braidmq: {}", printable(&failure.message));
        ExitCode::from(failure.code)
    })
}

/// Writes to standard output.
fn print(text: &str) -> Result<(), Failure> {
    output::print(text).map_err(|error| Failure::damaged(format!("cannot write standard output: {error}")))
}

/// Formats a number with thousands separators: 1,234,567.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
    }
}
