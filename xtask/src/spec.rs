//! Coverage of normative statements: the lines of code that enforce each, and the tests that show it.
//!
//! The statements are those of `docs/spec/`. Tags in comments refer to them: `[MQTT-3.3.2-2]` for 5.0 and for equal
//! statements of 3.1.1, `[MQTT3-3.1.2-22]` for statements of 3.1.1 alone, `[BQ-31]` for MQTT over QUIC.

use std::path::{Path, PathBuf};

use crate::tree::{self, Tree};

mod contract;
mod coverage;
mod statement;
mod tag;

use coverage::{Coverage, Row, State};
use statement::Tested;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name the statements in this state, one for each line.
    #[arg(long, value_enum)]
    list: Option<List>,
    /// Fail when a statement is missing, a tag is unknown, an exception is stale, less than 95 % of MQTT's statements
    /// is tested, or one of ours is not.
    #[arg(long)]
    check: bool,
    /// The repository to read, instead of this one.
    #[arg(long, hide = true)]
    root: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum List {
    /// Binding for a server or a client, and enforced by no line.
    Missing,
    /// Enforced, and no test shows it.
    Untested,
    /// Statements not enforced, or not tested, for a written reason.
    Exceptions,
}

/// Prints the coverage of each standard. False with `--check` when the coverage does not suffice.
///
/// # Errors
/// Something could not be read.
pub(crate) fn run(args: &Args) -> Result<bool, String> {
    let coverages = read(&args.root.clone().unwrap_or_else(tree::root))?;
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
    Ok(!args.check || complaints.is_empty())
}

fn read(root: &Path) -> Result<Vec<Coverage>, String> {
    let tree = Tree::read(root)?;
    let [five, three] = statement::read(&tree)?;
    let ours = contract::read(&tree)?;
    Ok(coverage::join(&[five, three, ours], &tag::read(&tree)))
}

fn summary(coverage: &Coverage) -> String {
    let (bind, exceptions) = (coverage.binding(), coverage.count(&State::Exception));
    let mut out = format!(
        "{}: {} statements, {bind} of them bind; {exceptions} exceptions\n",
        coverage.edition.name,
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
        out.push_str(&format!("  [{}] {}{}", row.tag, row.binds.prefix(), row.summary));
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

/// Reasons for which `--check` fails.
fn complaints(coverage: &Coverage) -> Vec<String> {
    let mut lines = Vec::new();
    let edition = &coverage.edition;
    for tag in &coverage.unknown {
        let hint = match &tag.meant {
            Some(meant) => format!("3.1.1 has that number: write [{meant}]"),
            None => format!("the numbers are in {}", edition.file),
        };
        let found = &tag.found;
        lines.push(format!("{}:{}: no statement has the tag [{}]; {hint}", found.path, found.line, found.id));
    }
    let stale = |row: &&Row| row.exception.is_some() && row.state != State::Exception;
    for row in coverage.rows.iter().filter(stale) {
        if let Some(place) = &row.enforced_at {
            let shown = if edition.tested == Tested::Each { " and tested" } else { "" };
            lines.push(format!(
                "{place}: [{}] is enforced{shown}; remove its exception from {}",
                row.tag, edition.exceptions
            ));
        }
    }
    lines.extend(match edition.tested {
        Tested::Share(percent) => shortfalls(coverage, percent),
        Tested::Each => gaps(coverage),
    });
    lines
}

/// Shortfalls of a standard that is long and nearly covered, as numbers.
fn shortfalls(coverage: &Coverage, percent: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let name = coverage.edition.name;
    let missing = coverage.count(&State::Missing);
    if missing > 0 {
        lines.push(format!(
            "{name}: {missing} statements are neither enforced nor an exception; see `cargo xtask spec --list missing`",
        ));
    }
    let (covered, untested) = (coverage.count(&State::Covered), coverage.count(&State::Untested));
    if covered * 100 < (covered + untested + missing) * percent {
        lines.push(format!(
            "{name}: less than {percent} % of the statements are tested; see `cargo xtask spec --list untested`",
        ));
    }
    lines
}

/// Uncovered statements of a standard that has to be covered entirely, by name.
fn gaps(coverage: &Coverage) -> Vec<String> {
    let edition = &coverage.edition;
    let kinds = [
        (List::Missing, State::Missing, "not enforced; tag the line of code that keeps each"),
        (List::Untested, State::Untested, "enforced and not tested; tag the test that shows each"),
    ];
    let mut lines = Vec::new();
    for (list, state, remedy) in kinds {
        let count = coverage.count(&state);
        if count > 0 {
            let all = listing(coverage, list);
            let (name, exceptions) = (edition.name, edition.exceptions);
            lines.push(format!(
                "{name}: {count} statements are {remedy}, or write the reason into {exceptions}:\n{}",
                all.trim_end()
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests;
