//! Commands on files of the laboratory: `braidmq lab compare`, `render` and `replay`.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use braid_lab::report;
use braid_lab::wire::VerdictLog;

use super::{BROKEN, Refusal};

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

pub(super) fn compare(args: &CompareArgs) -> Result<ExitCode, Refusal> {
    let comparison = report::compare(&report::load(&args.a)?, &report::load(&args.b)?)?;
    // Standard output may be closed.
    let _ = if args.json {
        writeln!(stdout(), "{}", serde_json::to_string_pretty(&comparison).unwrap_or_default())
    } else {
        write!(stdout(), "{comparison}")
    };
    Ok(ExitCode::SUCCESS)
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

pub(super) fn render(args: &RenderArgs) -> Result<ExitCode, Refusal> {
    let report = report::load(&args.report)?;
    let beside = || args.report.parent().map(PathBuf::from).unwrap_or_default();
    let written = report::write(&report, &args.out.clone().unwrap_or_else(beside))?;
    // Standard output may be closed.
    let _ = writeln!(stdout(), "{}\nreport: {}", report::table(&report), written.html.display());
    Ok(ExitCode::SUCCESS)
}

/// Repeat the decisions about the packets of a log, and print those that differ
///
/// The log is `LINK.verdicts`, written by --logs. None should differ: the decisions of a link depend only on its seed,
/// its packets and their times.
#[derive(clap::Args, Debug)]
#[command(after_help = "Exit codes: 0 no difference; 1 a difference, or an incomplete log; 2 no such log.")]
pub(crate) struct ReplayArgs {
    /// The log
    #[arg(value_name = "LINK.verdicts")]
    log: PathBuf,
}

pub(super) fn replay(args: &ReplayArgs) -> Result<ExitCode, Refusal> {
    let path = args.log.display();
    let text = std::fs::read_to_string(&args.log).map_err(|error| format!("{path}: {error}"))?;
    let log: VerdictLog = text.parse().map_err(|error| format!("{path}: {error}"))?;
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
    let is_same = differences.is_empty() && unlogged == 0;
    Ok(if is_same { ExitCode::SUCCESS } else { ExitCode::from(BROKEN) })
}
