//! `braidmq lab compare`.

use std::path::PathBuf;
use std::process::ExitCode;

use braid_lab::report;

use super::refuse;

/// Compare two reports: medians, ratios, and whether their spreads overlap
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
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

pub(crate) fn run(args: &Args) -> ExitCode {
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
