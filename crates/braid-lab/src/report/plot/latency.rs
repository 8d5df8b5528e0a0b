//! How latencies are distributed: a panel for each topic, a line for each variant.

use super::axis::Axis;
use super::figure::{Entry, Figure, Line, Panel, Swatch};
use super::{shown_run, shown_seeds};
use crate::report::number::fixed;
use crate::report::{Profile, Report, Run, Variant, text};

const PANEL_HEIGHT: u32 = 230;
/// More points than a picture has columns show nothing more.
const MOST_POINTS: usize = 400;
/// What is shown as 100.0 %.
const COMPLETE: f64 = 0.9995;

/// The distributions of the runs shown; `None` when none was recorded.
pub(super) fn figure(report: &Report, profile: &Profile) -> Option<Figure> {
    // A variant keeps its colour on every network, whether or not all have usable runs there.
    let shown = report.variants.iter().enumerate().filter_map(|(colour, variant)| {
        let run = shown_run(report, &variant.name, &profile.name)?;
        (!run.cdfs.is_empty()).then_some((colour, variant, run))
    });
    let runs: Vec<(usize, &Variant, &Run)> = shown.collect();
    let mut names: Vec<&str> = Vec::new();
    for cdf in runs.iter().flat_map(|(_, _, run)| &run.cdfs).filter(|cdf| !cdf.points.is_empty()) {
        if !names.contains(&cdf.name.as_str()) {
            names.push(&cdf.name);
        }
    }
    if names.is_empty() {
        return None;
    }
    let panels = names.into_iter().map(|name| panel(&runs, name)).collect();
    let entry = |(colour, variant, _): &(usize, &Variant, &Run)| Entry {
        colour: *colour,
        name: text::line(&variant.title),
        swatch: Swatch::Line,
    };
    let legend = runs.iter().map(entry).collect();
    let latencies =
        runs.iter().flat_map(|(_, _, run)| &run.cdfs).flat_map(|cdf| &cdf.points).map(|(ms, _)| *ms);
    Some(Figure {
        file: format!("latency-{}", profile.name),
        title: format!("Latency, {}", text::line(&profile.title)),
        reading:
            "How many of all messages that were due arrived within a time: further left is sooner; the time \
                  axis is logarithmic. A line that ends below 100 % shows that the others \
                  never arrived."
                .into(),
        footer: shown_seeds(report, profile),
        legend,
        x: Axis::decades("latency in ms", latencies),
        y: Axis::share("of all messages due"),
        panels,
        panel_height: PANEL_HEIGHT,
    })
}

/// The distributions of one name, and what share of the messages arrived.
fn panel(runs: &[(usize, &Variant, &Run)], name: &str) -> Panel {
    let mut lines = Vec::new();
    let mut incomplete = Vec::new();
    for (colour, variant, run) in runs {
        let Some(cdf) = run.cdfs.iter().find(|cdf| cdf.name == name) else { continue };
        let share = cdf.points.last().map_or(0.0, |(_, share)| *share);
        if share < COMPLETE {
            let title = text::shortened(&variant.title, 24);
            incomplete.push(format!("{title} {} %", fixed(share * 100.0, 1)));
        }
        if !cdf.points.is_empty() {
            lines.push(Line { colour: *colour, points: steps(&cdf.points), filled: false, ends: true });
        }
    }
    let note = match incomplete.is_empty() {
        true => "all arrived".to_owned(),
        false => format!("arrived: {}", incomplete.join(", ")),
    };
    Panel {
        heading: text::line(name),
        note,
        absent: None,
        y: None,
        bands: Vec::new(),
        lines,
        moments: Vec::new(),
    }
}

/// A distribution as a staircase from 0.
fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let every = points.len().div_ceil(MOST_POINTS).max(1);
    let last = points.len().saturating_sub(1);
    let mut before = 0.0;
    let mut stairs = Vec::new();
    for (_, (ms, share)) in points.iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last) {
        stairs.extend([(*ms, before), (*ms, *share)]);
        before = *share;
    }
    stairs
}
