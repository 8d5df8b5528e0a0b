//! `braidmq store check`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use braid_store::{Check, Damage, OfflineStore};

use super::progress::options_with;
use super::{DAMAGED, Failure, Location, print, thousands};
use crate::printable::printable;
use crate::progress::ProgressLine;

/// Verify the store: every page's checksum and every row's references
///
/// Prints the consequence and the remedy of each damage. The exit code is 0 when a broker can start with the store, 1
/// when it is damaged.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    location: Location,
}

/// Limit of the listed problems of each kind.
const LISTED: usize = 20;

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let progress = Arc::new(ProgressLine::new(false));
    let directory = &args.location.data_dir;
    let checked = OfflineStore::open(directory, options_with(&progress)).and_then(|store| store.check());
    progress.finish();
    let check = checked?;
    print(&text(&check, directory))?;
    Ok(if check.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

fn text(check: &Check, directory: &Path) -> String {
    let mut out = String::new();
    // Writing into a string cannot fail.
    let _ = if check.problems.is_empty() {
        let rows = thousands(check.rows);
        writeln!(out, "The store in {} is sound: {rows} rows, and all fit together.", directory.display())
    } else {
        report(&mut out, check, directory)
    };
    out
}

fn report(out: &mut String, check: &Check, directory: &Path) -> fmt::Result {
    let count = check.problems.len() as u64 + check.unlisted;
    let (problems, rows) = (thousands(count), thousands(check.rows));
    let noun = if count == 1 { "problem" } else { "problems" };
    writeln!(out, "The store in {} is damaged: {problems} {noun} in {rows} rows.", directory.display())?;
    let mut kinds: BTreeMap<Damage, Vec<&str>> = BTreeMap::new();
    for problem in &check.problems {
        kinds.entry(problem.damage).or_default().push(&problem.description);
    }
    for (damage, problems) in kinds {
        writeln!(out)?;
        for problem in problems.iter().take(LISTED) {
            writeln!(out, "  {}", printable(problem))?;
        }
        if let Some(more) = problems.len().checked_sub(LISTED).filter(|more| *more > 0) {
            writeln!(out, "  and {} more of this kind", thousands(more as u64))?;
        }
        writeln!(out, "    That means: {}.", damage.meaning())?;
    }
    let directory = directory.display();
    writeln!(
        out,
        "\nWhat to do: no broker starts with this store. Keep a copy of store.redb and store.journal in {directory} \
         to find the cause.\nThen restore the last backup,\n  \
         braidmq store import --data-dir {directory} --replace BACKUP.jsonl\n\
         or move both away: the broker begins with an empty store, and clients subscribe anew."
    )
}
