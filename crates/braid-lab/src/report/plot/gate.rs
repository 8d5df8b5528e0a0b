//! Charts of gates over time: for each a panel with the estimated rate beside what the link passed, and one with the
//! level of the modelled bottleneck. The ground shows the class of the path.

use braid_measure::number::{fixed, short};
use braid_measure::{Axis, Band, Chart, LegendEntry, Line, Panel, Swatch, text};

use super::{Figure, shown_run, shown_seeds};
use crate::report::{GateRun, PathClass, Profile, Report, Run, Spread, Variant};

const PANEL_HEIGHT: u32 = 96;
/// Gates of one run that are drawn.
const MOST_GATES: usize = 2;

/// Colours of the palette.
const RATE: usize = 0;
const PASSED: usize = 6;
const LEVEL: usize = 1;
const RESERVE: usize = 2;

const CLASSES: [(PathClass, usize, &str); 5] = [
    // A paler grey than that of lines.
    (PathClass::Start, 13, "not known yet"),
    (PathClass::Open, 2, "open"),
    (PathClass::Window, 4, "window by delivery rate"),
    (PathClass::Policed, 5, "policed"),
    (PathClass::Queued, 3, "queued"),
];

/// A quantity of a gate over time.
type Values = Vec<Option<f64>>;

/// Chart of the gates of the shown runs; `None` without any.
pub(super) fn figure(report: &Report, profile: &Profile) -> Option<Figure> {
    let mut panels = Vec::new();
    let mut end = 0.0_f64;
    let mut classes: Vec<PathClass> = Vec::new();
    for variant in report.variants_on(&profile.name) {
        let Some(run) = shown_run(report, &variant.name, &profile.name) else { continue };
        for gate in shown_gates(run) {
            end = end.max(run.seconds);
            classes.extend(&gate.class);
            panels.extend(of_gate(variant, run, gate));
        }
    }
    if panels.is_empty() {
        return None;
    }
    for panel in &mut panels {
        panel.bands.iter_mut().for_each(|band| band.to = band.to.min(end));
    }
    let line = |colour, name: &str| LegendEntry { colour, name: name.into(), swatch: Swatch::Line };
    let names = [
        (RATE, "rate, as estimated"),
        (PASSED, "passed by the link"),
        (LEVEL, "level"),
        (RESERVE, "reserve"),
    ];
    let is_drawn = |colour| panels.iter().flat_map(|panel| &panel.lines).any(|line| line.colour == colour);
    let drawn = names.into_iter().filter(|(colour, _)| is_drawn(*colour));
    let mut legend: Vec<LegendEntry> = drawn.map(|(colour, name)| line(colour, name)).collect();
    let seen = CLASSES.iter().filter(|(class, ..)| classes.contains(class));
    legend.extend(seen.map(|(_, colour, name)| LegendEntry {
        colour: *colour,
        name: (*name).into(),
        swatch: Swatch::Band,
    }));
    let reading = "Rate that the gate estimates for the path, beside what the link passed in each second (acknowledgements \
                   included). Below: the modelled token level of a policer in packets (negative if overdrawn), and the \
                   reserve that bulk leaves for urgent packets; or the queueing delay, and its target for bulk. The \
                   ground shows the class of the path. There are five samples a second, so a level is a momentary value.";
    let chart = Chart {
        title: format!("Path model of the gate, {}", text::line(&profile.title)),
        footer: shown_seeds(report, profile),
        legend,
        x: Axis::until("seconds since the start", end),
        y: Axis::linear("packets/s", []),
        panels,
        panel_height: PANEL_HEIGHT,
    };
    Some(Figure { file: format!("gate-{}", profile.name), reading: reading.into(), chart })
}

/// Gates that limited a rate; without any, the one with the longest log.
fn shown_gates(run: &Run) -> Vec<&GateRun> {
    let drawable = || run.gates.iter().filter(|gate| gate.at.len() > 1);
    let limits = |gate: &&GateRun| gate.packets_per_second.iter().any(Option::is_some);
    let limiting: Vec<&GateRun> = drawable().filter(limits).take(MOST_GATES).collect();
    if limiting.is_empty() { drawable().take(1).collect() } else { limiting }
}

fn of_gate(variant: &Variant, run: &Run, gate: &GateRun) -> Vec<Panel> {
    let passed = gate.path.as_ref().and_then(|path| {
        let name = format!("{path} passed");
        run.series.iter().find(|series| series.name == name)
    });
    let passed =
        passed.map(|series| Line { colour: PASSED, points: super::time::stairs(series), ..Line::default() });
    let mut rate = lines(gate, &gate.packets_per_second, RATE);
    rate.extend(passed);
    let who = match &gate.path {
        Some(path) => format!("{}: {} on {path}", variant.title, gate.program),
        None => format!("{}: {} to {}", variant.title, gate.program, gate.peer),
    };
    let mut panels = vec![panel(gate, &who, note(gate), "packets/s", rate)];
    for (level, reserve, unit) in
        [(&gate.tokens, &gate.reserve_tokens, "packets"), (&gate.wait_ms, &gate.aim_ms, "ms")]
    {
        let mut lines_of = lines(gate, level, LEVEL);
        if lines_of.is_empty() {
            continue;
        }
        lines_of.extend(lines(gate, reserve, RESERVE));
        let what = if unit == "ms" { "wait in the queue" } else { "packets in the bucket" };
        let median = Spread::of(level.iter().flatten().copied()).map_or(0.0, |spread| spread.median);
        let note = format!("median {} {unit}", short(median));
        panels.push(panel(gate, what, note, unit, lines_of));
    }
    panels
}

fn panel(gate: &GateRun, heading: &str, note: String, unit: &str, lines: Vec<Line>) -> Panel {
    let heights = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let y = Some(Axis::linear(unit, heights));
    Panel { heading: text::line(heading), note, y, bands: bands(gate), lines, ..Panel::default() }
}

/// Most frequent class of the path, and the rate.
fn note(gate: &GateRun) -> String {
    let share = |class: PathClass| gate.class.iter().filter(|one| **one == class).count();
    let Some((class, _, name)) = CLASSES.iter().max_by_key(|(class, ..)| share(*class)) else {
        return String::new();
    };
    let percent = share(*class) as f64 * 100.0 / gate.class.len().max(1) as f64;
    let rate = Spread::of(gate.packets_per_second.iter().flatten().copied())
        .map_or(String::new(), |rate| format!(", median {} packets/s", short(rate.median)));
    format!("{name} {} % of the time{rate}", fixed(percent, 0))
}

/// Line of a quantity, in pieces where it is known.
fn lines(gate: &GateRun, values: &Values, colour: usize) -> Vec<Line> {
    let mut pieces: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
    for (at, value) in gate.at.iter().zip(values) {
        match (value, pieces.last_mut()) {
            (Some(value), Some(piece)) if *at >= 0.0 => piece.push((*at, *value)),
            (None, Some(piece)) if !piece.is_empty() => pieces.push(Vec::new()),
            _ => {}
        }
    }
    let pieces = pieces.into_iter().filter(|piece| piece.len() > 1);
    pieces.map(|points| Line { colour, points, ..Line::default() }).collect()
}

/// Bands of the classes of the path.
fn bands(gate: &GateRun) -> Vec<Band> {
    let mut bands: Vec<Band> = Vec::new();
    for (at, class) in gate.at.iter().zip(&gate.class) {
        let colour = CLASSES.iter().find(|(one, ..)| one == class).map_or(0, |(_, colour, _)| *colour);
        match bands.last_mut() {
            Some(last) if last.colour == colour => last.to = *at,
            last => {
                if let Some(last) = last {
                    last.to = *at;
                }
                bands.push(Band { from: at.max(0.0), to: *at, colour });
            }
        }
    }
    bands.retain(|band| band.to > band.from);
    bands
}
