//! `braidmq lab replay`.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use braid_lab::wire::VerdictLog;

use super::{BROKEN, refuse};

/// Decide again what became of each packet of a log, and say what comes out differently
///
/// The log is what --logs writes, `LINK.verdicts`. Nothing should: a link's decisions depend on its seed, its packets and
/// their times alone.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Exit codes: 0 all the same; 1 something differs, or the log is not whole; 2 it is no such log."
)]
pub(crate) struct Args {
    /// The log
    #[arg(value_name = "LINK.verdicts")]
    log: PathBuf,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let path = args.log.display();
    let log: VerdictLog = match std::fs::read_to_string(&args.log) {
        Ok(text) => match text.parse() {
            Ok(log) => log,
            Err(error) => return refuse(&format_args!("{path}: {error}")),
        },
        Err(error) => return refuse(&format_args!("{path}: {error}")),
    };
    let (lines, unlogged) = log.lines();
    let differences = log.replay();
    let mut out = stdout().lock();
    for difference in &differences {
        // Whoever reads has seen enough.
        if writeln!(out, "{difference}").is_err() {
            break;
        }
    }
    if unlogged > 0 {
        eprintln!("braidmq: {path} lacks {unlogged} packets: the disk was too slow");
    }
    let _ = writeln!(out, "{lines} packets, {} decided otherwise", differences.len());
    if differences.is_empty() && unlogged == 0 { ExitCode::SUCCESS } else { ExitCode::from(BROKEN) }
}
