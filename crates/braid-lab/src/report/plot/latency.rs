//! Charts of latency distributions: a panel for each topic, a line for each variant.

use braid_measure::number::fixed;
use braid_measure::{Axis, Chart, LegendEntry, Line, Panel, Swatch, text};

use super::{Figure, shown_run, shown_seeds};
use crate::report::{Profile, Report, Run, Variant};

const PANEL_HEIGHT: u32 = 230;
/// Limit of points, about one per column of pixels.
const MOST_POINTS: usize = 400;
/// Share that is displayed as 100.0 %.
const COMPLETE: f64 = 0.9995;

/// Chart of the distributions of the shown runs; `None` without any.
pub(super) fn figure(report: &Report, profile: &Profile) -> Option<Figure> {
    // A variant has the same colour on every profile.
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
    let entry = |(colour, variant, _): &(usize, &Variant, &Run)| LegendEntry {
        colour: *colour,
        name: text::line(&variant.title),
        swatch: Swatch::Line,
    };
    let legend = runs.iter().map(entry).collect();
    let latencies =
        runs.iter().flat_map(|(_, _, run)| &run.cdfs).flat_map(|cdf| &cdf.points).map(|(ms, _)| *ms);
    let chart = Chart {
        title: format!("Latency, {}", text::line(&profile.title)),
        footer: shown_seeds(report, profile),
        legend,
        x: Axis::decades("latency in ms", latencies),
        y: Axis::share("of all messages due"),
        panels,
        panel_height: PANEL_HEIGHT,
    };
    let reading = "Share of all due messages that arrived within a time: further left is sooner; the time axis is \
                   logarithmic. A line that ends below 100 % shows that the rest never arrived.";
    Some(Figure { file: format!("latency-{}", profile.name), reading: reading.into(), chart })
}

/// Panel of the distributions of one name, with the shares of arrived messages.
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
    Panel { heading: text::line(name), note, lines, ..Panel::default() }
}

/// Points of a distribution as a step line from 0.
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
