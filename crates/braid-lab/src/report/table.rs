//! Table of a report for terminals, and the plain text grid that it shares with comparisons.

use std::fmt::{self, Display, Formatter, Write};

use braid_measure::number::NONE;
use braid_measure::text;

use super::{Column, Profile, Report, Variant};

/// Width of a line, characters.
const WIDTH: usize = 100;

/// Table of a report as plain text, if possible at most 100 characters wide: medians over the usable runs, ranges, published
/// figures, and the bounds that do not hold.
pub fn table(report: &Report) -> String {
    let mut page = format!("{}\n", text::line(&report.title));
    for profile in report.profiles_run() {
        let grid = profile_grid(report, profile);
        for (at, part) in grid.split(WIDTH).into_iter().enumerate() {
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

fn profile_grid(report: &Report, profile: &Profile) -> Grid {
    let titles = report.columns.iter().map(|column| column.title.as_str());
    let mut grid = Grid::new([""].into_iter().chain(titles).chain(["Runs"]));
    let units = report.columns.iter().map(|column| column.unit.clone());
    grid.row([String::new()].into_iter().chain(units).chain([String::new()]));
    for variant in report.variants_on(&profile.name) {
        let all = report.runs_of(&variant.name, &profile.name).count();
        let usable = report.usable(&variant.name, &profile.name).count();
        let runs = if all == usable { all.to_string() } else { format!("{usable} of {all}") };
        let cells = report.columns.iter().map(|column| cell(report, variant, profile, column));
        grid.row([variant.title.clone()].into_iter().chain(cells).chain([runs]));
    }
    for reference in report.references_on(&profile.name) {
        let shown = |column: &Column| {
            reference.values.get(&column.metric).map_or(NONE.into(), |value| column.shown(*value))
        };
        let cells = report.columns.iter().map(shown);
        grid.row([reference.title.clone()].into_iter().chain(cells).chain([NONE.to_owned()]));
    }
    grid
}

fn cell(report: &Report, variant: &Variant, profile: &Profile, column: &Column) -> String {
    let spread = report.spread(&variant.name, &profile.name, &column.metric);
    let mut cell = spread.map_or(NONE.into(), |spread| column.shown(spread.median));
    if let Some(range) = spread.and_then(|spread| column.range(spread)) {
        let _ = write!(cell, " {range}");
    }
    if let Some(published) = report.published(&profile.name, &variant.name, &column.metric) {
        let _ = write!(cell, " [{}]", column.shown(published));
    }
    cell
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

// === Grid ===

/// Longest text of a first column, characters.
const LONGEST_NAME: usize = 36;
const GAP: usize = 2;

/// Rows of cells in aligned columns, the first to the left, the others to the right.
pub(super) struct Grid {
    titles: Vec<String>,
    rows: Vec<Row>,
}

enum Row {
    Heading(String),
    Cells(Vec<String>),
}

impl Grid {
    pub(super) fn new<T: Into<String>>(titles: impl IntoIterator<Item = T>) -> Self {
        Self { titles: titles.into_iter().map(|title| text::line(&title.into())).collect(), rows: Vec::new() }
    }

    /// Adds a line above the rows that follow.
    pub(super) fn heading(&mut self, words: impl AsRef<str>) {
        self.rows.push(Row::Heading(text::line(words.as_ref())));
    }

    /// Adds a row with a cell for each title.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().enumerate().map(|(at, cell)| match at {
            0 => text::shortened(&cell, LONGEST_NAME),
            _ => text::line(&cell),
        });
        self.rows.push(Row::Cells(cells.collect()));
    }

    /// Splits the grid into several, each with the first column and if possible at most `width` characters wide.
    pub(super) fn split(self, width: usize) -> Vec<Self> {
        let widths = self.widths();
        let first = widths.first().copied().unwrap_or(0);
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let mut used = usize::MAX;
        for (at, column) in widths.iter().enumerate().skip(1) {
            if used.saturating_add(GAP + column) > width {
                parts.push(vec![0]);
                used = first;
            }
            used += GAP + column;
            if let Some(part) = parts.last_mut() {
                part.push(at);
            }
        }
        if parts.len() < 2 {
            return vec![self];
        }
        let choose = |cells: &[String], part: &[usize]| -> Vec<String> {
            part.iter().filter_map(|at| cells.get(*at).cloned()).collect()
        };
        let part_of = |part: &Vec<usize>| Self {
            titles: choose(&self.titles, part),
            rows: self
                .rows
                .iter()
                .map(|row| match row {
                    Row::Heading(words) => Row::Heading(words.clone()),
                    Row::Cells(cells) => Row::Cells(choose(cells, part)),
                })
                .collect(),
        };
        parts.iter().map(part_of).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.titles.iter().map(|title| title.chars().count()).collect();
        for row in &self.rows {
            if let Row::Cells(cells) = row {
                for (width, cell) in widths.iter_mut().zip(cells) {
                    *width = (*width).max(cell.chars().count());
                }
            }
        }
        widths
    }
}

impl Display for Grid {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        write_cells(f, &self.titles, &widths)?;
        for row in &self.rows {
            match row {
                Row::Heading(words) => writeln!(f, "{words}")?,
                Row::Cells(cells) => write_cells(f, cells, &widths)?,
            }
        }
        Ok(())
    }
}

fn write_cells(f: &mut Formatter<'_>, cells: &[String], widths: &[usize]) -> fmt::Result {
    let mut line = String::new();
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        match at {
            0 => line.push_str(&format!("{cell:<width$}")),
            _ => line.push_str(&format!("{:GAP$}{cell:>width$}", "")),
        }
    }
    writeln!(f, "{}", line.trim_end())
}
