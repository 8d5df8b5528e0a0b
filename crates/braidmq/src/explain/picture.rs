//! Chart of a log: columns of packets coloured by stream, a lane for each stream, losses, and bytes in flight.

mod columns;

use std::iter;
use std::path::Path;

use askama::Template;
use braid_measure::text::Escaped;

use super::qlog::{float, rounded};
use super::summary::Summary;
use super::trace::Flight;
use super::view::{View, list};
use columns::{Column, Columns, Palette, Series};

/// Left end and width of the plotting area, pixels.
const LEFT: f64 = 110.0;
const WIDTH: f64 = 1060.0;
const LANE: f64 = 13.0;
/// Least height of urgent bytes, in pixels, so that they are visible beside bulk.
const LEAST_URGENT: f64 = 2.0;

/// Contents of the template.
#[derive(Template)]
#[template(path = "explain.svg")]
struct Picture<'a> {
    height: f64,
    heading: String,
    file: Escaped<'a>,
    legend: Vec<(f64, f64, &'a Series)>,
    columns: &'a Columns,
    bytes: Plot,
    bars: Vec<Bar>,
    lanes: Vec<Lane<'a>>,
    flight: Option<FlightPlot>,
    /// Position of the time axis from the top.
    axis: f64,
    axis_name: &'static str,
    /// Distance from the left end, and the time.
    ticks: Vec<(f64, f64)>,
}

/// Draws an SVG document for light and dark backgrounds.
pub(super) fn draw(view: &View<'_>, summary: &Summary) -> String {
    let palette = Palette::of(summary);
    let columns = Columns::of(view, &palette, WIDTH);
    let name = Path::new(&summary.file).file_name().unwrap_or_default().to_string_lossy();
    let (legend, bottom) = legend(&palette);
    let bytes_name = match columns.stretch {
        None => "bytes of each packet, in the order of the log (pale: lost)".to_owned(),
        Some(stretch) => format!("bytes in each {}; in the lanes below, stronger is more", duration(stretch)),
    };
    let bytes = Plot::new(bytes_name, bottom + 34.0, 230.0, columns.highest());
    let lanes = lanes(bytes.bottom() + 14.0, &columns, &palette);
    let bottom = lanes.last().map_or(bytes.bottom(), |lane| lane.top + LANE);
    let flight = FlightPlot::of(bottom + 34.0, view, &columns);
    let axis = flight.as_ref().map_or(bottom, |flight| flight.plot.bottom()) + 4.0;
    let picture = Picture {
        height: axis + 54.0,
        heading: heading(view, summary),
        file: Escaped(&name),
        legend,
        columns: &columns,
        bars: bars(&bytes, &columns, &palette),
        bytes,
        lanes,
        flight,
        axis,
        axis_name: match columns.stretch {
            Some(_) => "time in ms of the log",
            None => {
                "packets in the order of the log; below some of them their time in ms: the steps are not equal"
            }
        },
        ticks: ticks(&columns),
    };
    // Writing to a string does not fail.
    picture.render().unwrap_or_default()
}

fn heading(view: &View<'_>, summary: &Summary) -> String {
    let mut said = match summary.urgent_first.shown() {
        Some(share) => format!("urgent first: {share} ({})", list(view.urgent.iter())),
        None => "no urgent stream beside bulk".to_owned(),
    };
    if let Some(share) = summary.after_a_loss.shown() {
        said += &format!(" · after a loss: {share}");
    }
    said += &format!(" · {} packets {}", summary.connection.packets, summary.side);
    if let Some(lost) = summary.connection.lost {
        said += &format!(", {lost} lost");
    }
    said
}

/// Positions of a swatch and a name for each colour, and the lower end.
fn legend(palette: &Palette) -> (Vec<(f64, f64, &Series)>, f64) {
    let (mut x, mut y) = (LEFT, 92.0);
    let mut legend = Vec::new();
    for series in &palette.series {
        // Letters of this size are about 7 pixels wide.
        let width = 30.0 + 7.0 * float(series.name.chars().count() as u64);
        if x + width > LEFT + WIDTH {
            (x, y) = (LEFT, y + 18.0);
        }
        legend.push((x, y, series));
        x += width;
    }
    (legend, y)
}

/// Frame with a linear scale of bytes, from 0 at its bottom.
struct Plot {
    name: String,
    top: f64,
    height: f64,
    most: f64,
}

/// Grid line, with its distance from the top of the picture.
struct Mark {
    y: f64,
    label: String,
    opacity: f64,
}

impl Plot {
    fn new(name: String, top: f64, height: f64, most: u64) -> Self {
        Self { name, top, height, most: float(most.max(1)) }
    }

    fn bottom(&self) -> f64 {
        self.top + self.height
    }

    /// Pixels above the bottom, clamped at the top.
    fn pixels(&self, bytes: f64) -> f64 {
        self.height * (bytes / self.most).clamp(0.0, 1.0)
    }

    fn marks(&self) -> Vec<Mark> {
        let step = nice_above(self.most / 5.0).max(1.0);
        let values =
            iter::successors(Some(0.0), |value| Some(value + step)).take_while(|value| *value <= self.most);
        let mark = |value| Mark {
            y: self.bottom() - self.pixels(value),
            label: size(value),
            opacity: if value > 0.0 { 0.18 } else { 0.6 },
        };
        values.map(mark).collect()
    }
}

/// Bytes of a column by stream, stacked.
struct Bar {
    place: usize,
    title: String,
    is_lost: bool,
    parts: Vec<Part>,
}

struct Part {
    /// Distance from the top of the plot.
    top: f64,
    height: f64,
    colour: &'static str,
}

/// Bars with urgent bytes at the bottom.
fn bars(plot: &Plot, columns: &Columns, palette: &Palette) -> Vec<Bar> {
    let bar = |(place, column): (usize, &Column)| {
        let mut filled = 0.0;
        let parts = column.parts(palette).map(|(series, bytes)| {
            let least = if series.is_urgent { LEAST_URGENT } else { 0.0 };
            let from = f64::round(filled);
            filled += plot.pixels(float(bytes)).max(least);
            // Whole pixels, so that nothing shines through between two colours.
            Part { top: plot.height - filled.round(), height: filled.round() - from, colour: series.colour }
        });
        let parts = parts.collect();
        // A packet is lost or not; for an interval of time the lane shows the number.
        let is_lost = columns.stretch.is_none() && column.lost > 0;
        Bar { place, title: tooltip(column, columns, palette), is_lost, parts }
    };
    columns.all.iter().enumerate().filter(|(_, column)| column.packets > 0).map(bar).collect()
}

fn tooltip(column: &Column, columns: &Columns, palette: &Palette) -> String {
    let mut text = match (columns.stretch, column.number) {
        (Some(stretch), _) => {
            format!("{:.3} ms and {}: {} packets", column.time, duration(stretch), column.packets)
        }
        (None, Some(number)) => format!("{:.3} ms: packet {number}", column.time),
        (None, None) => format!("{:.3} ms", column.time),
    };
    for (series, bytes) in column.parts(palette) {
        text += &format!("\n{}: {bytes} bytes", series.name);
    }
    match (columns.stretch, column.lost) {
        (_, 0) => {}
        (None, _) => text += "\nlost",
        (Some(_), lost) => text += &format!("\nlost: {lost} packets"),
    }
    if column.ahead > 0 {
        text += "\nbulk left while urgent bytes waited";
    }
    text
}

/// Lane with marks where values are above 0.
struct Lane<'a> {
    name: &'a str,
    colour: &'static str,
    top: f64,
    marks: Vec<LaneMark>,
}

struct LaneMark {
    place: usize,
    width: f64,
    strength: f64,
}

/// A lane for each series, then one for bulk ahead and one for losses, if there are any.
fn lanes<'a>(top: f64, columns: &Columns, palette: &'a Palette) -> Vec<Lane<'a>> {
    let streams = &palette.series[..palette.no_stream()];
    let amounts = |of: &dyn Fn(&Column) -> u64| columns.all.iter().map(of).collect::<Vec<u64>>();
    let of_stream = |(place, series): (usize, &'a Series)| {
        let name = series.name.split(" (").next().unwrap_or_default();
        (name, series.colour, amounts(&|column| column.bytes[place]), 0.0)
    };
    let others = [
        ("bulk ahead", "#d08700", amounts(&|column| column.ahead), 3.0),
        ("lost", "#767676", amounts(&|column| column.lost), 3.0),
    ];
    let others = others.into_iter().filter(|(_, _, amounts, _)| amounts.iter().any(|amount| *amount > 0));
    let lane = |(place, (name, colour, amounts, gap)): (usize, (&'a str, &'static str, Vec<u64>, f64))| {
        let top = top + gap + float(place as u64) * LANE;
        Lane { name, colour, top, marks: marks(&amounts, columns) }
    };
    streams.iter().enumerate().map(of_stream).chain(others).enumerate().map(lane).collect()
}

/// Marks of a lane; for intervals of time their opacity shows the value.
fn marks(amounts: &[u64], columns: &Columns) -> Vec<LaneMark> {
    let most = float(amounts.iter().copied().max().unwrap_or(0).max(1));
    let strength = |amount: &u64| match (*amount, columns.stretch) {
        (0, _) => 0.0,
        (_, None) => 1.0,
        (some, Some(_)) => 0.25 + 0.15 * (5.0 * float(some) / most).ceil(),
    };
    let strengths: Vec<f64> = amounts.iter().map(strength).collect();
    let mut place = 0;
    let mut marks = Vec::new();
    // Equal neighbours are one mark, unless they stand apart.
    for equal in strengths.chunk_by(|one, next| one == next && !columns.stand_apart()) {
        if equal[0] > 0.0 {
            let width = float(equal.len() as u64 - 1) + columns.bar_width();
            marks.push(LaneMark { place, width, strength: equal[0] });
        }
        place += equal.len();
    }
    marks
}

/// Bytes in flight below the congestion window.
struct FlightPlot {
    plot: Plot,
    title: String,
    /// Points of the lines.
    congestion_window: String,
    bytes_in_flight: String,
}

impl FlightPlot {
    fn of(top: f64, view: &View<'_>, columns: &Columns) -> Option<Self> {
        let flights = view.trace.flights.iter().filter(|flight| view.window.contains(flight.time));
        let flights: Vec<&Flight> = flights.collect();
        let most = |of: fn(&Flight) -> u64| flights.iter().map(|flight| of(flight)).max();
        let in_flight = most(|flight| flight.bytes_in_flight)?;
        // A congestion window far above the bytes in flight would flatten their line.
        let window = most(|flight| flight.congestion_window)?.min(in_flight.saturating_mul(4));
        let name = "bytes in flight (line), congestion window (dashes)".to_owned();
        let plot = Plot::new(name, top, 110.0, window.max(in_flight));
        Some(Self {
            title: format!("at most {} in flight", size(float(in_flight))),
            congestion_window: steps(&flights, |flight| flight.congestion_window, columns, &plot),
            bytes_in_flight: steps(&flights, |flight| flight.bytes_in_flight, columns, &plot),
            plot,
        })
    }
}

/// Points of a step line with the highest value of each pixel.
fn steps(flights: &[&Flight], of: fn(&Flight) -> u64, columns: &Columns, plot: &Plot) -> String {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for flight in flights {
        let x = (LEFT + columns.along(flight.time).clamp(0.0, columns.end())).round();
        let y = plot.bottom() - plot.pixels(float(of(flight)));
        match points.last().copied() {
            Some((last, before)) if last >= x => {
                points.pop();
                points.push((last, before.min(y)));
            }
            Some((_, before)) => points.extend([(x, before), (x, y)]),
            None => points.push((x, y)),
        }
    }
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect()
}

/// Ticks of the time axis, not too close to each other.
fn ticks(columns: &Columns) -> Vec<(f64, f64)> {
    const APART: f64 = 90.0;
    if let (Some(stretch), Some(first)) = (columns.stretch, columns.all.first()) {
        let step = nice_above(APART / columns.width * stretch);
        let start = (first.time / step).ceil() * step;
        // Counted, since so late a time may not change when a step is added to it.
        let times = (0..20).map(|count| start + float(count) * step);
        let ticks = times.map(|time| (columns.along(time), rounded(time)));
        return ticks.take_while(|(along, _)| *along <= columns.end()).collect();
    }
    let mut next = 0.0;
    let tick = |(place, column): (usize, &Column)| {
        let along = float(place as u64) * columns.width;
        (along >= next).then(|| {
            next = along + APART;
            (along + columns.width / 2.0, rounded(column.time))
        })
    };
    columns.all.iter().enumerate().filter_map(tick).collect()
}

/// Duration with a suitable unit.
fn duration(milliseconds: f64) -> String {
    let microseconds = (milliseconds * 1000.0).round();
    if microseconds >= 1e6 {
        format!("{} s", microseconds / 1e6)
    } else if microseconds >= 1000.0 {
        format!("{} ms", microseconds / 1000.0)
    } else {
        format!("{microseconds} µs")
    }
}

/// Number of bytes with a suitable unit.
fn size(bytes: f64) -> String {
    let (value, unit) = match bytes {
        _ if bytes >= 1e9 => (bytes / 1e9, "GB"),
        _ if bytes >= 1e6 => (bytes / 1e6, "MB"),
        _ if bytes >= 10_000.0 => (bytes / 1e3, "kB"),
        _ => (bytes, "B"),
    };
    let value = (value * 100.0).round() / 100.0;
    format!("{value} {unit}")
}

/// Next 1, 2 or 5 times a power of ten.
fn nice_above(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    // The tolerance covers the rounding of the power.
    let nice = [1.0, 2.0, 5.0].into_iter().find(|step| step * power >= value * (1.0 - 1e-9));
    nice.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(0.0), "0 B");
        assert_eq!(size(1200.0), "1200 B");
        assert_eq!(size(50_000.0), "50 kB");
        assert_eq!(size(2_500_000.0), "2.5 MB");
    }

    #[test]
    fn steps_are_round_numbers() {
        for (value, nice) in
            [(0.7, 1.0), (1.0, 1.0), (1.1, 2.0), (30.0, 50.0), (51.0, 100.0), (0.0021, 0.005)]
        {
            assert!((nice_above(value) - nice).abs() < 1e-12, "{value}");
        }
        assert!(nice_above(0.0) == 0.0);
    }
}
