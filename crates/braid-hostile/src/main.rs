//! `cargo xtask hostile`: hostile clients against a real `braidmq serve`, with well-behaved clients beside them.
//!
//! Each row is one attack on a broker of its own: a quiet phase, the attack, and a quiet phase again. Well-behaved
//! publishers and subscribers measure latencies throughout. A row fails if the attack delays them too much, if one of
//! them loses its connection or a message, if memory exceeds the bound of the row, or if the broker does not serve a
//! fresh client afterwards.

mod attack;
mod attacker;
mod http;
mod packets;
mod quic;
mod relay;
mod report;
mod row;
mod run;
mod stream;
mod target;
mod usage;
mod verdict;
mod well_behaved;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use braid_measure::RaisedPriority;
use clap::Parser;

use report::Record;
use row::{ROWS, Row};
use run::RowRun;
use target::Target;
use verdict::Finding;

/// Most time to wait before a row until other processes leave the machine alone.
const QUIET_MACHINE: Duration = Duration::from_secs(30);

/// Hostile clients against a real `braidmq serve`, with well-behaved clients beside them.
#[derive(Parser)]
#[command(name = "cargo xtask hostile", bin_name = "cargo xtask hostile")]
struct Args {
    /// Rows to run; default all. `--list` shows them.
    #[arg(long, value_name = "NAME", value_parser = Row::named)]
    row: Vec<&'static Row>,
    /// Seconds of each attack; the quiet phases before and after it take half as long each.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=600))]
    seconds: u64,
    /// The braidmq binary; without it, one is built with the profile of this program.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Write the report into this directory, as hostile.md and hostile.json.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// On a busy machine, as root: run broker and well-behaved clients at nice -10, the session too.
    #[arg(long)]
    go_first: bool,
    /// List the rows.
    #[arg(long)]
    list: bool,
    /// Attack this target, as JSON, in the place of running rows.
    #[arg(long, hide = true)]
    attack: Option<String>,
}

impl Args {
    fn rows(&self) -> Vec<&'static Row> {
        if self.row.is_empty() { ROWS.iter().collect() } else { self.row.clone() }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match &args.attack {
        Some(target) => attack(&args, target).map(|()| true),
        None if args.list => {
            print!("{}", report::list(ROWS));
            Ok(true)
        }
        None => run(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("hostile: {reason}");
            ExitCode::from(2)
        }
    }
}

/// Runs the rows one after the other; true if none fails.
fn run(args: &Args) -> Result<bool, String> {
    raise_open_files();
    let _priority = if args.go_first { Some(RaisedPriority::take()?) } else { None };
    let binary = braid_torture::broker_binary(args.binary.as_deref())?;
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let seconds = Duration::from_secs(args.seconds);
    let patience = if args.go_first { Duration::ZERO } else { QUIET_MACHINE };
    let mut record = Record::begin(&binary, args.seconds);
    for row in args.rows() {
        let finding = RowRun { binary: &binary, program: &program, row, seconds, patience }.execute();
        // The findings of the other rows are wanted all the same.
        let finding = finding.unwrap_or_else(|reason| Finding::failed(row, reason));
        println!("{finding}");
        record.findings.push(finding);
    }
    println!("\n{}", record.table());
    if let Some(directory) = &args.out {
        record.write(directory)?;
    }
    Ok(record.is_good())
}

/// Attacks as the child process of a row; prints the counters of the attack.
fn attack(args: &Args, target: &str) -> Result<(), String> {
    raise_open_files();
    let target: Target = serde_json::from_str(target).map_err(|error| format!("no target: {error}"))?;
    let [row] = args.row[..] else { return Err("an attack is one row".to_owned()) };
    let counters = attacker::run(row.attack, target, Duration::from_secs(args.seconds))?;
    println!("{}", serde_json::to_string(&counters).map_err(|error| error.to_string())?);
    Ok(())
}

/// Raises the limit of open files as far as this user may: attacks hold many sockets, and the broker inherits it.
fn raise_open_files() {
    // With a lower limit attacks have fewer sockets; their counters say how many.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
}
