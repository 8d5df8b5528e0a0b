//! `braidmq lab render`.

use std::path::PathBuf;
use std::process::ExitCode;

use braid_lab::report;

use super::refuse;

/// Write the page, the pictures and the table of a report.json again
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The report
    #[arg(value_name = "report.json")]
    report: PathBuf,
    /// Write here [default: beside the report]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
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
