//! Charts of series over time: a panel for each variant, below each other on a common time axis.

use braid_measure::number::short;
use braid_measure::{Axis, Chart, Event, LegendEntry, Line, Panel, Swatch, text};

use super::{Figure, shown_run, shown_seeds};
use crate::report::{Column, Profile, Report, Run, Series, SeriesKind, Variant};

const PANEL_HEIGHT: u32 = 96;
/// Limit of steps; more are drawn as means of several.
const MOST_STEPS: usize = 400;
/// Limit of filled areas, which would hide one another.
const MOST_FILLED: usize = 3;
/// Limit of events, which would hide the lines.
const MOST_EVENTS: usize = 24;

/// Chart of the series of a kind, for `Other` in a `unit`, in the shown runs; `None` without any.
pub(super) fn figure(
    report: &Report,
    profile: &Profile,
    kind: SeriesKind,
    unit: Option<&str>,
) -> Option<Figure> {
    let wanted = |series: &&Series| {
        series.kind == kind && unit.is_none_or(|unit| series.unit == unit) && drawable(series)
    };
    let runs: Vec<(&Variant, Option<&Run>)> = report
        .variants_on(&profile.name)
        .map(|variant| (variant, shown_run(report, &variant.name, &profile.name)))
        .collect();
    let all = || runs.iter().filter_map(|(_, run)| *run).flat_map(|run| run.series.iter().filter(wanted));
    let first = all().next()?;
    let mut legend: Vec<String> = Vec::new();
    for series in all() {
        let name = text::line(&series.name);
        // A fate of packets that never occurred has no line.
        let worth =
            kind != SeriesKind::Link || all().any(|other| other.name == series.name && !is_zero(other));
        if worth && !legend.contains(&name) {
            legend.push(name);
        }
    }
    let ends = runs.iter().filter_map(|(_, run)| *run).map(|run| run.seconds);
    let ends = ends.chain(all().map(|series| series.start + series.step * series.values.len() as f64));
    let end = ends.filter(|end| end.is_finite()).fold(0.0, f64::max);
    let mut panels = Vec::new();
    let mut every = 1;
    for (variant, run) in &runs {
        let series = run.iter().flat_map(|run| run.series.iter().filter(wanted));
        let mut lines = Vec::new();
        for series in series {
            let name = text::line(&series.name);
            if let Some(colour) = legend.iter().position(|known| *known == name) {
                every = every.max(steps_in_one(series));
                lines.push(Line {
                    colour,
                    points: stairs(series),
                    filled: kind == SeriesKind::Rate && legend.len() <= MOST_FILLED,
                    ends: false,
                });
            }
        }
        panels.push(Panel {
            heading: text::line(&variant.title),
            note: match kind {
                SeriesKind::Rate => key_numbers(report, variant, profile),
                _ => String::new(),
            },
            absent: absent(report, profile, variant, *run, &lines),
            lines,
            events: events(*run, end),
            ..Panel::default()
        });
    }
    let (file, title, reading) = words(kind, &first.unit);
    let mut footer = shown_seeds(report, profile);
    if cut(&mut panels, &text::line(&first.unit)) {
        footer.push_str(" Outliers are cut off; their panels give the height.");
    }
    let heights =
        panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points).map(|point| point.1);
    let y = Axis::linear(&text::line(&first.unit), heights);
    if every > 1 {
        footer.push_str(&format!(" Means of up to {every} steps each."));
    }
    let legend = (0..).zip(legend).map(|(colour, name)| LegendEntry { colour, name, swatch: Swatch::Line });
    let chart = Chart {
        title: format!("{title}, {}", text::line(&profile.title)),
        footer,
        legend: legend.collect(),
        x: Axis::until("seconds since the start", end),
        y,
        panels,
        panel_height: PANEL_HEIGHT,
    };
    Some(Figure { file: format!("{file}-{}", profile.name), reading, chart })
}

/// Cuts off outliers that would flatten all other lines, such as the second in which a transport delivers the messages
/// of a minute. Returns whether there were any.
fn cut(panels: &mut [Panel], unit: &str) -> bool {
    let lines = panels.iter().flat_map(|panel| &panel.lines);
    let mut heights: Vec<f64> = lines.flat_map(|line| &line.points).map(|point| point.1).collect();
    heights.sort_by(f64::total_cmp);
    let Some(common) = heights.get(heights.len() * 49 / 50).filter(|height| **height > 0.0) else {
        return false;
    };
    let top = common * 2.0;
    let mut has_any = false;
    for panel in panels.iter_mut() {
        let points = || panel.lines.iter().flat_map(|line| &line.points).map(|point| point.1);
        let highest = points().fold(0.0, f64::max);
        if highest <= top * 2.0 {
            continue;
        }
        has_any = true;
        let note = format!("up to {} {unit}", short(highest));
        panel.note = if panel.note.is_empty() { note } else { format!("{note}  ·  {}", panel.note) };
        for point in panel.lines.iter_mut().flat_map(|line| &mut line.points) {
            point.1 = point.1.min(top);
        }
    }
    has_any
}

/// Units of the series of the kind `Other`.
pub(super) fn other_units<'a>(report: &'a Report, profile: &'a Profile) -> Vec<&'a str> {
    let mut units: Vec<&str> = Vec::new();
    let runs = report.variants.iter().filter_map(|variant| shown_run(report, &variant.name, &profile.name));
    for series in runs.flat_map(|run| &run.series).filter(|series| series.kind == SeriesKind::Other) {
        if !units.contains(&series.unit.as_str()) {
            units.push(&series.unit);
        }
    }
    units
}

/// File name, title and explanation of a kind.
fn words(kind: SeriesKind, unit: &str) -> (&'static str, String, String) {
    let common = "All panels have the same scales, so compare their heights and where they end. Thin \
                  upright lines are events; the list is below.";
    let (file, title, reading) = match kind {
        SeriesKind::Rate => (
            "rate",
            "Messages per second",
            "Messages of each topic that arrived in each second. A line at 0 means that nothing arrives any more.",
        ),
        SeriesKind::Link => (
            "link",
            "Packets of the link",
            "Packets that the emulated link passed and dropped, by cause and direction. A cause that never occurred has \
             no line.",
        ),
        SeriesKind::Stream => (
            "streams",
            "Bytes per stream",
            "Bytes of each stream that the transport carried. Urgent streams should keep their share while the bulk takes \
             the rest.",
        ),
        SeriesKind::Other => ("other", "Recorded", "Other quantities that the programs recorded over time."),
    };
    let title = match kind {
        SeriesKind::Other => format!("{title} in {}", text::line(unit)),
        _ => title.to_owned(),
    };
    (file, title, format!("{reading} {common}"))
}

/// Text in place of lines, if there are none.
fn absent(
    report: &Report,
    profile: &Profile,
    variant: &Variant,
    shown: Option<&Run>,
    lines: &[Line],
) -> Option<String> {
    if shown.is_some() {
        return lines.is_empty().then(|| "nothing was recorded".to_owned());
    }
    let reason = report.runs_of(&variant.name, &profile.name).find_map(|run| run.refused.first());
    Some(match reason {
        Some(reason) => format!("no run can be used: {}", text::line(reason)),
        None => "it did not run".into(),
    })
}

/// Key figures of a panel: medians, with the published ones: `Delivered 48 messages (published 49)  ·  p50 0.4 ms`.
fn key_numbers(report: &Report, variant: &Variant, profile: &Profile) -> String {
    let number = |column: &Column| {
        let spread = report.spread(&variant.name, &profile.name, &column.metric)?;
        let published = report.published(&profile.name, &variant.name, &column.metric);
        let published =
            published.map_or(String::new(), |value| format!(" (published {})", column.shown(value)));
        Some(text::line(&format!("{} {}{published}", column.title, column.shown_with_unit(spread.median))))
    };
    let delivered = report.columns.iter().filter(|column| column.metric.contains("delivered"));
    let median = report.columns.iter().find(|column| column.metric.contains("p50"));
    delivered.chain(median).filter_map(number).collect::<Vec<_>>().join("  ·  ")
}

/// First events of a run until `end`.
fn events(run: Option<&Run>, end: f64) -> Vec<Event> {
    let events = run.into_iter().flat_map(|run| &run.events).filter(|event| (0.0..=end).contains(&event.at));
    let mut events: Vec<Event> =
        events.map(|event| Event { at: event.at, what: text::line(&event.what) }).collect();
    events.sort_by(|a, b| a.at.total_cmp(&b.at));
    events.truncate(MOST_EVENTS);
    events
}

/// Whether a series has values after the start.
fn drawable(series: &Series) -> bool {
    let is_finite = series.step.is_finite() && series.start.is_finite();
    series.step > 0.0 && is_finite && steps_before(series) < series.values.len()
}

/// Number of steps before the start: a program may have begun before the workload.
fn steps_before(series: &Series) -> usize {
    let ends = (1..=series.values.len()).map(|steps| series.start + series.step * steps as f64);
    ends.take_while(|end| *end <= 0.0).count()
}

fn is_zero(series: &Series) -> bool {
    series.values.iter().all(|value| *value == 0.0)
}

fn steps_in_one(series: &Series) -> usize {
    series.values.len().div_ceil(MOST_STEPS).max(1)
}

/// Points of a series as a step line. A step that began before the start reaches over the edge of the axis, where it is
/// clipped.
pub(super) fn stairs(series: &Series) -> Vec<(f64, f64)> {
    let before = steps_before(series);
    let mut at = series.start + series.step * before as f64;
    let mut stairs = Vec::new();
    for steps in series.values[before..].chunks(steps_in_one(series)) {
        let mean = steps.iter().sum::<f64>() / steps.len() as f64;
        let end = at + series.step * steps.len() as f64;
        stairs.extend([(at, mean), (end, mean)]);
        at = end;
    }
    stairs
}
