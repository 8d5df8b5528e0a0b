//! Commands on files of the laboratory: `braidmq lab compare`, `render` and `replay`.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use braid_lab::report;
use braid_lab::wire::VerdictLog;

use super::{BROKEN, refuse};

/// Compare two reports: medians, ratios, and whether their spreads overlap
#[derive(clap::Args, Debug)]
pub(crate) struct CompareArgs {
    /// The report.json of the first
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The report.json of the second
    #[arg(value_name = "B.json")]
    b: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn compare(args: &CompareArgs) -> ExitCode {
    let loaded = report::load(&args.a).and_then(|a| Ok((a, report::load(&args.b)?)));
    let (a, b) = match loaded {
        Ok(both) => both,
        Err(error) => return refuse(&error),
    };
    let comparison = match report::compare(&a, &b) {
        Ok(comparison) => comparison,
        Err(error) => return refuse(&error),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&comparison).unwrap_or_default());
    } else {
        print!("{comparison}");
    }
    ExitCode::SUCCESS
}

/// Write the page, the pictures and the table of a report.json again
#[derive(clap::Args, Debug)]
pub(crate) struct RenderArgs {
    /// The report
    #[arg(value_name = "report.json")]
    report: PathBuf,
    /// Write here [default: beside the report]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn render(args: &RenderArgs) -> ExitCode {
    let report = match report::load(&args.report) {
        Ok(report) => report,
        Err(error) => return refuse(&error),
    };
    let beside = || args.report.parent().map(PathBuf::from).unwrap_or_default();
    match report::write(&report, &args.out.clone().unwrap_or_else(beside)) {
        Ok(written) => {
            print!("{}", report::table(&report));
            println!("\nreport: {}", written.html.display());
            ExitCode::SUCCESS
        }
        Err(error) => refuse(&error),
    }
}

/// Repeat the decisions about the packets of a log, and print those that differ
///
/// The log is `LINK.verdicts`, written by --logs. None should differ: the decisions of a link depend only on its seed, its
/// packets and their times.
#[derive(clap::Args, Debug)]
#[command(after_help = "Exit codes: 0 no difference; 1 a difference, or an incomplete log; 2 no such log.")]
pub(crate) struct ReplayArgs {
    /// The log
    #[arg(value_name = "LINK.verdicts")]
    log: PathBuf,
}

pub(super) fn replay(args: &ReplayArgs) -> ExitCode {
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
        // The reader has closed the pipe.
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
