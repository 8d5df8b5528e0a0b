//! Results of a report by profile, and their table for terminals.

use std::fmt::{self, Display, Formatter, Write};
use std::iter;

use braid_measure::number::NONE;
use braid_measure::{Alignment, Table, text};

use super::{Column, Profile, Reference, Report, Variant};

/// Width of a line, characters.
const WIDTH: u16 = 100;
/// Longest title of a row, characters.
pub(super) const LONGEST_NAME: usize = 36;

/// Table of a report as plain text, if possible at most 100 characters wide: medians over the usable runs, ranges,
/// published figures, and the bounds that do not hold.
pub fn table(report: &Report) -> String {
    let mut page = format!("{}\n", text::line(&report.title));
    for profile in report.profiles_run() {
        let table = ProfileTable::of(report, profile).text(&report.columns);
        for (at, part) in table.parts(WIDTH).into_iter().enumerate() {
            let more = if at == 0 { "" } else { ", continued" };
            let _ = write!(page, "\n{}{more}\n{part}", text::line(&profile.title));
        }
    }
    let refused = report.runs.iter().filter(|run| !run.refused.is_empty()).count();
    let runs = report.runs.len();
    let _ = write!(page, "\n{runs} {}", if runs == 1 { "run" } else { "runs" });
    if refused > 0 {
        let _ = write!(
            page,
            ", {refused} refused: {} not in the table",
            if refused == 1 { "it is" } else { "they are" }
        );
    }
    page.push('\n');
    if report.columns.iter().any(|column| is_partial(report, &column.metric)) {
        page.push_str(
            "In parentheses: the runs that have the figure. A missing latency counts as infinite.\n",
        );
    }
    if several(report) {
        page.push_str("Medians over the usable runs, smallest..largest.\n");
    }
    if !report.published.is_empty() {
        page.push_str("In brackets: the published figure.\n");
    }
    if report.quick {
        page.push_str("Short form of the scenario.\n");
    }
    for (program, command) in &report.replaced {
        let _ = writeln!(page, "{}", text::line(&format!("{program} was replaced by: {command}")));
    }
    page.push_str(&checks(report));
    page
}

fn several(report: &Report) -> bool {
    let pairs = report
        .profiles
        .iter()
        .flat_map(|profile| report.variants.iter().map(move |variant| (variant, profile)));
    pairs.into_iter().any(|(variant, profile)| report.usable(&variant.name, &profile.name).nth(1).is_some())
}

/// Whether a metric is missing in some usable runs of a variant on a profile.
fn is_partial(report: &Report, metric: &str) -> bool {
    let mut spreads = report.profiles.iter().flat_map(|profile| {
        report.variants.iter().filter_map(|variant| report.spread(&variant.name, &profile.name, metric))
    });
    spreads.any(|spread| spread.part().is_some())
}

/// Results on a profile: a row for each variant and each reference.
pub(super) struct ProfileTable<'a> {
    pub(super) profile: &'a Profile,
    pub(super) variants: Vec<VariantRow<'a>>,
    /// Title, and a figure for each column.
    pub(super) references: Vec<(&'a str, Vec<String>)>,
}

pub(super) struct VariantRow<'a> {
    pub(super) title: &'a str,
    pub(super) cells: Vec<Cell>,
    pub(super) usable: usize,
    pub(super) runs: usize,
}

/// Metric of a variant on a profile.
pub(super) struct Cell {
    pub(super) value: String,
    pub(super) is_measured: bool,
    /// Smallest and largest value, where they differ.
    pub(super) range: Option<String>,
    /// `4 of 5`: runs that have the metric, where some lack it.
    pub(super) part: Option<String>,
    pub(super) published: Option<String>,
}

impl<'a> ProfileTable<'a> {
    pub(super) fn of(report: &'a Report, profile: &'a Profile) -> Self {
        let row = |variant: &'a Variant| VariantRow {
            title: &variant.title,
            cells: report.columns.iter().map(|column| Cell::of(report, profile, variant, column)).collect(),
            usable: report.usable(&variant.name, &profile.name).count(),
            runs: report.runs_of(&variant.name, &profile.name).count(),
        };
        let reference = |reference: &'a Reference| {
            let shown = |column: &Column| {
                reference.values.get(&column.metric).map_or(NONE.into(), |value| column.shown(*value))
            };
            (reference.title.as_str(), report.columns.iter().map(shown).collect())
        };
        Self {
            profile,
            variants: report.variants_on(&profile.name).map(row).collect(),
            references: report.references_on(&profile.name).map(reference).collect(),
        }
    }

    fn text(&self, columns: &[Column]) -> Table {
        let titles = columns.iter().map(|column| column.title.as_str());
        let mut table = Table::new(Alignment::Right, [""].into_iter().chain(titles).chain(["Runs"]));
        table.row([""].into_iter().chain(columns.iter().map(|column| column.unit.as_str())));
        for VariantRow { title, cells, usable, runs } in &self.variants {
            let runs = if usable == runs { runs.to_string() } else { format!("{usable} of {runs}") };
            table.row(iter::once(name(title)).chain(cells.iter().map(ToString::to_string)).chain([runs]));
        }
        for (title, figures) in &self.references {
            table.row(iter::once(name(title)).chain(figures.iter().cloned()).chain([NONE.to_owned()]));
        }
        table
    }
}

/// Title of a row.
fn name(title: &str) -> String {
    text::shortened(title, LONGEST_NAME)
}

impl Cell {
    fn of(report: &Report, profile: &Profile, variant: &Variant, column: &Column) -> Self {
        let spread = report.spread(&variant.name, &profile.name, &column.metric);
        let published = report.published(&profile.name, &variant.name, &column.metric);
        Self {
            value: spread.map_or(NONE.into(), |spread| column.shown(spread.median)),
            is_measured: spread.is_some(),
            range: spread.and_then(|spread| column.range(spread)),
            part: spread.and_then(|spread| spread.part()),
            published: published.map(|value| column.shown(value)),
        }
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.value)?;
        self.range.iter().try_for_each(|range| write!(f, " {range}"))?;
        self.part.iter().try_for_each(|part| write!(f, " ({part})"))?;
        self.published.iter().try_for_each(|published| write!(f, " [{published}]"))
    }
}

/// Number of bounds that hold, and those that do not.
fn checks(report: &Report) -> String {
    let all = report.checks.len();
    let held = report.checks.iter().filter(|check| check.holds).count();
    match (all, held) {
        (0, _) => return String::new(),
        (all, held) if all == held => return format!("\nAll {all} bounds hold.\n"),
        _ => {}
    }
    let mut lines = format!("\n{} of {all} bounds do not hold:\n", all - held);
    for check in report.checks.iter().filter(|check| !check.holds) {
        let _ = writeln!(lines, "  {}", text::line(&check.bound));
    }
    lines
}
