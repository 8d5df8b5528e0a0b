//! `bench access`: cost of access control for the broker. A list of 1,000 rules beside none, per message; and a reload
//! of 10,000 users and 10,000 rules, with well-behaved clients beside it.

mod cost;
mod files;
mod reload;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use braid_measure::RaisedPriority;
use braid_measure::machine::{Machine, load_average};
use serde::Serialize;

use super::Tuning;
use super::brokers::{self, Broker};
use super::system::{raise_open_files, write_json};
use cost::CostRow;
use reload::ReloadReport;

/// Arguments of `bench access`.
#[derive(clap::Args)]
pub(crate) struct AccessArgs {
    /// The broker, braidmq or braidmq=PROGRAM.
    #[arg(long, default_value = "braidmq", value_name = "NAME[=PROGRAM]")]
    broker: String,
    /// Rounds of each case, with and without rules.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds measured per run.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Reloads, each with a quiet period before it.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    reloads: u32,
    /// On a busy machine, as root: run broker and generator alike at nice -10, the session too.
    #[arg(long)]
    go_first: bool,
    /// Write the report into this directory, as access.md and access.json.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    machine: Machine,
    load_average_at_end: String,
    command: String,
    broker: String,
    costs: Vec<CostRow>,
    reload: ReloadReport,
}

/// Measures and prints; fails if a bound is exceeded.
///
/// # Errors
/// The broker does not start, or does something other than what it was asked for.
pub(crate) fn run(args: &AccessArgs) -> Result<ExitCode, String> {
    raise_open_files(reload::CLIENTS)?;
    let broker = brokers::select(std::slice::from_ref(&args.broker), &Tuning::default())?.pop();
    let broker = broker.filter(Broker::is_braidmq).ok_or("only braidmq has these files")?;
    let priority = if args.go_first { Some(RaisedPriority::take()?) } else { None };
    let machine = Machine::here();
    let costs = cost::measure(&broker, args.rounds, args.seconds)?;
    let reload = reload::measure(&broker, args.reloads)?;
    drop(priority);
    let report = Report {
        machine,
        load_average_at_end: load_average(),
        command: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
        broker: broker.version,
        costs,
        reload,
    };
    let text = report.markdown();
    print!("{text}");
    if let Some(directory) = &args.out {
        write(directory, &text, &report)?;
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write(directory: &Path, text: &str, report: &Report) -> Result<(), String> {
    let file = directory.join("access.md");
    let failed = |error| format!("cannot write {}: {error}", file.display());
    std::fs::create_dir_all(directory).map_err(failed)?;
    std::fs::write(&file, text).map_err(failed)?;
    write_json(report, Some(&directory.join("access.json")))
}

impl Report {
    fn is_good(&self) -> bool {
        self.costs.iter().all(CostRow::is_good) && self.reload.is_good()
    }

    fn markdown(&self) -> String {
        let Machine { cores, processor, kernel, load_average, .. } = &self.machine;
        let mut text = format!(
            "# Cost of access control\n\n\
             `cargo xtask bench {}`: {}; {}, {cores} cores ({processor}), Linux {kernel}, load average {load_average} \
             at the start and {} at the end.\n\n",
            self.command,
            if self.is_good() { "good" } else { "FAILED" },
            self.broker,
            self.load_average_at_end,
        );
        // Writing into a String cannot fail.
        let _ = write!(text, "{}\n{}", cost::markdown(&self.costs), self.reload.markdown());
        text
    }
}

/// Row of a table in Markdown.
fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// Word for a verdict.
fn verdict(is_good: bool) -> String {
    if is_good { "good" } else { "FAILED" }.to_owned()
}
