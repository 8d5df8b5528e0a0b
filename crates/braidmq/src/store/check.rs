//! `braidmq store check`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use braid_store::{Check, Damage, OfflineStore};

use super::watch::Watch;
use super::{DAMAGED, Failure, Place, print, thousands};
use crate::printable::printable;

/// Is the store sound? Compares every page with its checksum and every row with those that it belongs to
///
/// Says of each damage what it means and what to do. The exit code is 0 when a broker can start with the store, 1
/// when something is damaged.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
}

/// So many of each kind are listed.
const LISTED: usize = 20;

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let watch = Watch::new(false);
    let directory = &args.place.data_dir;
    let checked = OfflineStore::open(directory, watch.options()).and_then(|store| store.check());
    watch.finish();
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
    for (damage, places) in kinds {
        writeln!(out)?;
        for place in places.iter().take(LISTED) {
            writeln!(out, "  {}", printable(place))?;
        }
        if let Some(more) = places.len().checked_sub(LISTED).filter(|more| *more > 0) {
            writeln!(out, "  and {} more of this kind", thousands(more as u64))?;
        }
        writeln!(out, "    That means: {}.", damage.meaning())?;
    }
    let directory = directory.display();
    writeln!(
        out,
        "\nWhat to do: no broker starts with this store. Keep a copy of store.redb and store.journal in {directory}, \
         for whoever looks for the cause.\nThen restore the last backup,\n  \
         braidmq store import --data-dir {directory} --replace BACKUP.jsonl\n\
         or move both away: the broker begins with an empty store, and clients subscribe anew."
    )
}
