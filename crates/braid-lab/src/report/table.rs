//! The table of a report for a terminal.

use std::fmt::Write;

use super::grid::Grid;
use super::number::NONE;
use super::{Column, Profile, Report, Variant, text};

/// What a terminal shows in one line.
const WIDTH: usize = 100;

/// The table of a report as plain text, at most 100 characters wide where that can be: the medians over all usable
/// runs, their ranges, what others published, and the bounds that do not hold.
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
        page.push_str("It was the short form of the scenario.\n");
    }
    for (program, command) in &report.replaced {
        let _ = writeln!(page, "{}", text::line(&format!("Instead of its {program} ran: {command}")));
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

/// How many bounds hold, and those that do not.
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
