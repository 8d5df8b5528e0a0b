//! Charts: columns of packets by stream, a lane for each stream, and the bytes in flight.

use super::super::qlog::{Packet, float};
use super::super::trace::Flight;
use super::super::view::View;
use super::svg::{Frame, LEFT, Palette, Scale, Svg, nice_above, size};

const WINDOW_COLOUR: &str = "#8a7fd0";
const FLIGHT_COLOUR: &str = "#2f9e6e";
/// Least height of urgent bytes, in pixels, so that they are visible beside bulk.
const LEAST_URGENT: f64 = 2.0;
const LANE: f64 = 13.0;

/// Draws bytes by stream, stacked, urgent ones at the bottom; returns the lower end.
pub(super) fn bars(svg: &mut Svg, frame: Frame, columns: &Columns, palette: &Palette) -> f64 {
    let scale = Scale::bytes(frame, columns.highest());
    let name = match columns.stretch {
        None => "bytes of each packet, in the order of the log (pale: lost)".to_owned(),
        Some(stretch) => format!("bytes in each {}; in the lanes below, stronger is more", duration(stretch)),
    };
    scale.draw(svg, &name);
    for (place, column) in columns.all.iter().enumerate().filter(|(_, column)| column.packets > 0) {
        let (x, width) = (LEFT + float(place as u64) * columns.width, bar_width(columns));
        // A packet is lost or not; of a stretch of time the lane tells how many.
        let opacity = if columns.stretch.is_none() && column.lost > 0 { 0.4 } else { 1.0 };
        svg.group("column", &tooltip(column, columns, palette), |svg| {
            let mut filled = 0.0;
            for (series, bytes) in palette.all().iter().zip(&column.bytes).filter(|(_, bytes)| **bytes > 0) {
                let least = if series.is_urgent { LEAST_URGENT } else { 0.0 };
                let from = f64::round(filled);
                filled += scale.height(float(*bytes)).max(least);
                // Whole pixels, so that nothing shines through between two colours.
                let height = filled.round() - from;
                svg.rect(x, frame.bottom() - from - height, width, height, series.colour, opacity);
            }
        });
    }
    frame.bottom()
}

/// Width of a bar, with a gap between columns that are wide enough.
fn bar_width(columns: &Columns) -> f64 {
    if columns.width > 4.0 { columns.width - 1.0 } else { columns.width }
}

fn tooltip(column: &Column, columns: &Columns, palette: &Palette) -> String {
    let mut text = match (columns.stretch, column.number) {
        (Some(stretch), _) => {
            format!("{:.3} ms and {}: {} packets", column.time, duration(stretch), column.packets)
        }
        (None, Some(number)) => format!("{:.3} ms: packet {number}", column.time),
        (None, None) => format!("{:.3} ms", column.time),
    };
    for (series, bytes) in palette.all().iter().zip(&column.bytes).filter(|(_, bytes)| **bytes > 0) {
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

/// Draws a lane for each series with a mark where its bytes were sent, then one for bulk ahead and one for losses;
/// and returns the lower end.
pub(super) fn lanes(svg: &mut Svg, top: f64, columns: &Columns, palette: &Palette) -> f64 {
    let mut top = top;
    for (place, series) in palette.all()[..palette.no_stream()].iter().enumerate() {
        let name = series.name.split(" (").next().unwrap_or_default();
        lane(svg, top, (name, series.colour), columns, |column| column.bytes[place]);
        top += LANE;
    }
    top += 3.0;
    if columns.all.iter().any(|column| column.ahead > 0) {
        lane(svg, top, ("bulk ahead", "#d08700"), columns, |column| column.ahead);
        top += LANE;
    }
    if columns.all.iter().any(|column| column.lost > 0) {
        lane(svg, top, ("lost", "#767676"), columns, |column| column.lost);
        top += LANE;
    }
    top
}

/// Draws marks where values are above 0; for intervals of time their opacity shows the value.
fn lane(
    svg: &mut Svg,
    top: f64,
    (name, colour): (&str, &str),
    columns: &Columns,
    amount: impl Fn(&Column) -> u64,
) {
    let most = columns.all.iter().map(&amount).max().unwrap_or(0).max(1);
    let strength = |column: &Column| match (amount(column), columns.stretch) {
        (0, _) => 0.0,
        (_, None) => 1.0,
        (some, Some(_)) => 0.25 + 0.15 * (5.0 * float(some) / float(most)).ceil(),
    };
    svg.text(LEFT - 8.0, top + LANE - 3.0, "end", 11, name);
    svg.group("lane", "", |svg| {
        svg.ink(LEFT, top + LANE - 1.0, columns.end(), 1.0, 0.18);
        let strengths = columns.all.iter().map(strength).enumerate();
        let mut marked = strengths.filter(|(_, strength)| *strength > 0.0).peekable();
        while let Some((first, strength)) = marked.next() {
            let mut next = first + 1;
            // Equal neighbours are one mark, unless they stand apart.
            let same = |place: usize, other: &(usize, f64)| *other == (place, strength);
            while columns.width <= 4.0 && marked.next_if(|other| same(next, other)).is_some() {
                next += 1;
            }
            let x = LEFT + float(first as u64) * columns.width;
            let width = float((next - first - 1) as u64) * columns.width + bar_width(columns);
            svg.rect(x, top + 1.0, width.max(1.0), LANE - 3.0, colour, strength);
        }
    });
}

/// Draws bytes in flight below the congestion window; returns the lower end.
pub(super) fn flight(svg: &mut Svg, frame: Frame, view: &View<'_>, columns: &Columns) -> f64 {
    let flights: Vec<&Flight> =
        view.trace.flights.iter().filter(|flight| view.window.contains(flight.time)).collect();
    let most = |of: fn(&Flight) -> u64| flights.iter().map(|flight| of(flight)).max().unwrap_or(0);
    let in_flight = most(|flight| flight.bytes_in_flight);
    // A window that was never filled must not press what was in flight to the bottom.
    let highest = most(|flight| flight.congestion_window).min(in_flight.saturating_mul(4)).max(in_flight);
    let scale = Scale::bytes(frame, highest);
    scale.draw(svg, "bytes in flight (line), congestion window (dashes)");
    let title = format!("at most {} in flight", size(float(in_flight)));
    svg.group("flight", &title, |svg| {
        for (of, colour, dashes) in [
            ((|flight| flight.congestion_window) as fn(&Flight) -> u64, WINDOW_COLOUR, true),
            (|flight| flight.bytes_in_flight, FLIGHT_COLOUR, false),
        ] {
            svg.line(&steps(&flights, of, columns, scale, frame), colour, dashes);
        }
    });
    frame.bottom()
}

/// Step line with the highest value of each pixel.
fn steps(
    flights: &[&Flight],
    of: fn(&Flight) -> u64,
    columns: &Columns,
    scale: Scale,
    frame: Frame,
) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for flight in flights {
        let x = (LEFT + columns.along(flight.time).clamp(0.0, columns.end())).round();
        let y = frame.bottom() - scale.height(float(of(flight)));
        match points.last_mut() {
            Some((last, highest)) if *last >= x => *highest = highest.min(y),
            Some((_, before)) => {
                let before = *before;
                points.extend([(x, before), (x, y)]);
            }
            None => points.push((x, y)),
        }
    }
    points
}

/// Draws the time axis; returns its lower end.
pub(super) fn time_axis(svg: &mut Svg, top: f64, columns: &Columns) -> f64 {
    const APART: f64 = 90.0;
    svg.ink(LEFT, top, columns.end(), 1.0, 0.6);
    let mut tick = |along: f64, time: f64| {
        svg.ink(LEFT + along, top, 1.0, 5.0, 0.6);
        svg.text(LEFT + along, top + 18.0, "middle", 11, &format!("{}", (time * 1000.0).round() / 1000.0));
    };
    if let (Some(stretch), Some(first)) = (columns.stretch, columns.all.first()) {
        let step = nice_above(APART / columns.width * stretch);
        let start = (first.time / step).ceil() * step;
        // Counted, since so late a time may not change when a step is added to it.
        let ticks = (0..20).map(|count| start + float(count) * step);
        for time in ticks.take_while(|time| columns.along(*time) <= columns.end()) {
            tick(columns.along(time), time);
        }
    } else {
        let mut next = 0.0;
        for (place, column) in columns.all.iter().enumerate() {
            let along = float(place as u64) * columns.width;
            if along >= next {
                tick(along + columns.width / 2.0, column.time);
                next = along + APART;
            }
        }
    }
    let name = match columns.stretch {
        Some(_) => "time in ms of the log",
        None => {
            "packets in the order of the log; below some of them their time in ms: the steps are not equal"
        }
    };
    svg.text(LEFT, top + 38.0, "start", 12, name);
    top + 38.0
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

// === Columns ===

/// Limit of packets with a column each.
const MOST_PACKETS: usize = 400;
/// Limit of columns of time.
const MOST_STRETCHES: f64 = 420.0;
/// Largest width of a column, pixels.
const WIDEST: f64 = 22.0;

pub(super) struct Columns {
    pub(super) all: Vec<Column>,
    pub(super) width: f64,
    /// Milliseconds per column; `None` if each column is a packet.
    pub(super) stretch: Option<f64>,
    first: f64,
}

/// Bytes of one packet, or of one interval of time.
#[derive(Default)]
pub(super) struct Column {
    /// Time of the packet or start of the interval, in milliseconds of the log.
    pub(super) time: f64,
    pub(super) packets: u64,
    /// Packet number.
    pub(super) number: Option<u64>,
    /// Bytes by series.
    pub(super) bytes: Vec<u64>,
    pub(super) lost: u64,
    /// Packets with bulk that was sent while urgent bytes waited.
    pub(super) ahead: u64,
}

impl Columns {
    /// Columns of at most `room` pixels together.
    pub(super) fn of(view: &View<'_>, palette: &Palette, room: f64) -> Self {
        let packets = view.packets();
        let (first, last) = view.span();
        if packets.len() <= MOST_PACKETS {
            let mut all: Vec<Column> =
                packets.iter().map(|packet| Column::at(packet.time, palette)).collect();
            for (index, (column, packet)) in all.iter_mut().zip(packets).enumerate() {
                column.add(packet, view.is_ahead(index), palette);
                column.number = packet.number;
            }
            let width = (room / float(all.len().max(1) as u64)).min(WIDEST);
            return Self { all, width, stretch: None, first };
        }
        let stretch = nice_above((last - first) / MOST_STRETCHES).max(0.001);
        let mut columns = Self { all: Vec::new(), width: 0.0, stretch: Some(stretch), first };
        let count = columns.place_at(last, stretch) + 1;
        columns.all =
            (0..count).map(|place| Column::at(first + float(place as u64) * stretch, palette)).collect();
        columns.width = room / float(count as u64);
        for (index, packet) in packets.iter().enumerate() {
            let place = columns.place_at(packet.time, stretch);
            if let Some(column) = columns.all.get_mut(place) {
                column.add(packet, view.is_ahead(index), palette);
            }
        }
        columns
    }

    /// Column of a time.
    fn place_at(&self, time: f64, stretch: f64) -> usize {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most MOST_STRETCHES")]
        let place = ((time - self.first) / stretch).clamp(0.0, MOST_STRETCHES + 1.0) as usize;
        place
    }

    /// Position of a time, from 0, in the unit of `width`.
    pub(super) fn along(&self, time: f64) -> f64 {
        match self.stretch {
            Some(stretch) => (time - self.first) / stretch * self.width,
            None => self.width * float(self.all.partition_point(|column| column.time <= time) as u64),
        }
    }

    /// Right end of the last column.
    pub(super) fn end(&self) -> f64 {
        self.width * float(self.all.len() as u64)
    }

    /// Most bytes in a column.
    pub(super) fn highest(&self) -> u64 {
        self.all.iter().map(Column::total).max().unwrap_or(0)
    }
}

impl Column {
    fn at(time: f64, palette: &Palette) -> Self {
        Self { time, bytes: vec![0; palette.all().len()], ..Self::default() }
    }

    fn add(&mut self, packet: &Packet, is_ahead: bool, palette: &Palette) {
        self.packets += 1;
        self.lost += u64::from(packet.lost.is_some());
        self.ahead += u64::from(is_ahead);
        for frame in &packet.frames {
            let sum = &mut self.bytes[palette.place(frame.stream)];
            *sum = sum.saturating_add(frame.length);
        }
        let rest = packet.length() - packet.stream_bytes();
        let sum = &mut self.bytes[palette.no_stream()];
        *sum = sum.saturating_add(rest);
    }

    pub(super) fn total(&self) -> u64 {
        self.bytes.iter().copied().fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
