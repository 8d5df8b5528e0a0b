//! Joins the normative statements of MQTT with the lines that enforce them and the tests that show it.
//!
//! The statements are `docs/spec/*.toml`; the joints are tags in comments, `[MQTT-3.3.2-2]` for 5.0 and for what
//! 3.1.1 means likewise, `[MQTT3-3.1.2-22]` for what only 3.1.1 says.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::tree::{self, Tree};

mod coverage;
mod statement;
mod tag;

use coverage::{Coverage, State};

/// The least share of the enforced statements that tests must show, in percent.
const TESTED_SHARE: usize = 95;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name the statements in this state, one for each line.
    #[arg(long, value_enum)]
    list: Option<List>,
    /// Fail when a statement is missing, a tag is unknown, an exception is stale, or less than 95 % is tested.
    #[arg(long)]
    check: bool,
    /// The repository to read, instead of this one.
    #[arg(long, hide = true)]
    root: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum List {
    /// Bind a server or a client, and no line enforces them.
    Missing,
    /// Enforced, and no test shows it.
    Untested,
    /// Not enforced, for a written reason.
    Exceptions,
}

/// Prints the coverage of each version of the standard.
///
/// Exit code 0; with `--check` 1 when the coverage does not suffice; 2 when something could not be read.
pub(crate) fn run(args: &Args) -> ExitCode {
    let root = args.root.clone().unwrap_or_else(tree::root);
    match read(&root) {
        Ok(coverages) => {
            for coverage in &coverages {
                print!("{}", summary(coverage));
                if let Some(list) = args.list {
                    print!("{}", listing(coverage, list));
                }
            }
            let complaints: Vec<_> = coverages.iter().flat_map(complaints).collect();
            for complaint in &complaints {
                println!("{complaint}");
            }
            if args.check && !complaints.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            eprintln!("spec: {error}");
            ExitCode::from(2)
        }
    }
}

fn read(root: &Path) -> Result<Vec<Coverage>, String> {
    let tree = Tree::read(root)?;
    let standards = statement::read(&tree)?;
    Ok(coverage::join(&standards, &tag::read(&tree)))
}

fn summary(coverage: &Coverage) -> String {
    let (bind, exceptions) = (coverage.binding(), coverage.count(&State::Exception));
    let mut out = format!(
        "MQTT {}: {} statements, {bind} of them bind; {exceptions} exceptions\n",
        coverage.version,
        coverage.rows.len(),
    );
    let states = [("covered", State::Covered), ("untested", State::Untested), ("missing", State::Missing)];
    for (name, state) in states {
        let count = coverage.count(&state);
        let tenths = (count * 1000).checked_div(bind - exceptions).unwrap_or(0);
        out.push_str(&format!("  {name:<9} {count:>4}  {:>3}.{} %\n", tenths / 10, tenths % 10));
    }
    out
}

fn listing(coverage: &Coverage, list: List) -> String {
    let wanted = match list {
        List::Missing => State::Missing,
        List::Untested => State::Untested,
        List::Exceptions => State::Exception,
    };
    let mut out = String::new();
    for row in coverage.rows.iter().filter(|row| row.state == wanted) {
        out.push_str(&format!("  [{}] {}: {}", row.tag, row.binds.name(), row.summary));
        if !row.same_as.is_empty() {
            out.push_str(&format!("  (same as [{}])", row.same_as.join("] [")));
        }
        if let Some(place) = &row.enforced_at {
            out.push_str(&format!("  <- {place}"));
        } else if let Some(place) = &row.tested_at {
            out.push_str(&format!("  (only tested: {place})"));
        }
        if let Some(reason) = row.exception.as_ref().filter(|_| wanted == State::Exception) {
            out.push_str(&format!("  because: {reason}"));
        }
        out.push('\n');
    }
    out
}

/// What `--check` fails for, one line each.
fn complaints(coverage: &Coverage) -> Vec<String> {
    let mut lines = Vec::new();
    for tag in &coverage.unknown {
        let hint = match &tag.meant {
            Some(meant) => format!("3.1.1 has that number: write [{meant}]"),
            None => format!("the numbers are in {}", coverage.file),
        };
        let found = &tag.found;
        lines.push(format!("{}:{}: no statement has the tag [{}]; {hint}", found.path, found.line, found.id));
    }
    for row in coverage.rows.iter().filter(|row| row.exception.is_some()) {
        if let Some(place) = &row.enforced_at {
            lines.push(format!(
                "{place}: [{}] is enforced; remove its exception from {}",
                row.tag, coverage.file
            ));
        }
    }
    let missing = coverage.count(&State::Missing);
    if missing > 0 {
        lines.push(format!(
            "MQTT {}: {missing} statements are neither enforced nor an exception; see `cargo xtask spec --list missing`",
            coverage.version,
        ));
    }
    let (covered, untested) = (coverage.count(&State::Covered), coverage.count(&State::Untested));
    if covered * 100 < (covered + untested + missing) * TESTED_SHARE {
        lines.push(format!(
            "MQTT {}: less than {TESTED_SHARE} % of the statements are tested; see `cargo xtask spec --list untested`",
            coverage.version,
        ));
    }
    lines
}

#[cfg(test)]
mod tests;
