//! Columns of a chart, each a packet or an interval of time, and the colours of their streams.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::super::qlog::{Packet, float};
use super::super::summary::{StreamNumbers, Summary};
use super::super::view::View;
use super::nice_above;

/// Limit of packets with a column each.
const MOST_PACKETS: usize = 400;
/// Limit of columns of time.
const MOST_STRETCHES: f64 = 420.0;
/// Largest width of a column, pixels.
const WIDEST: f64 = 22.0;
/// Least width of columns with a gap of a pixel between them.
const APART: f64 = 4.0;

pub(super) struct Columns {
    pub(super) all: Vec<Column>,
    /// Pixels.
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
        let is_long = packets.len() > MOST_PACKETS;
        let stretch = is_long.then(|| nice_above((last - first) / MOST_STRETCHES).max(0.001));
        let place = |index: usize, time: f64| match stretch {
            None => index,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "at most MOST_STRETCHES"
            )]
            Some(stretch) => ((time - first) / stretch).clamp(0.0, MOST_STRETCHES + 1.0) as usize,
        };
        let empty =
            |time, number| Column { time, number, bytes: vec![0; palette.series.len()], ..Column::default() };
        let mut all: Vec<Column> = match stretch {
            None => packets.iter().map(|packet| empty(packet.time, packet.number)).collect(),
            Some(stretch) => {
                let time = |place| first + float(place as u64) * stretch;
                (0..=place(0, last)).map(|place| empty(time(place), None)).collect()
            }
        };
        for (index, packet) in packets.iter().enumerate() {
            if let Some(column) = all.get_mut(place(index, packet.time)) {
                column.add(packet, view.is_ahead(index), palette);
            }
        }
        let widest = if is_long { room } else { WIDEST };
        let width = (room / float(all.len().max(1) as u64)).min(widest);
        Self { all, width, stretch, first }
    }

    /// Position of a time, from 0, pixels.
    pub(super) fn along(&self, time: f64) -> f64 {
        match self.stretch {
            Some(stretch) => (time - self.first) / stretch * self.width,
            None => self.width * float(self.all.partition_point(|column| column.time <= time) as u64),
        }
    }

    /// Right end of the last column, pixels.
    pub(super) fn end(&self) -> f64 {
        self.width * float(self.all.len() as u64)
    }

    /// Whether columns are wide enough for gaps between them.
    pub(super) fn stand_apart(&self) -> bool {
        self.width > APART
    }

    /// Width of a bar, in columns.
    pub(super) fn bar_width(&self) -> f64 {
        if self.stand_apart() { 1.0 - 1.0 / self.width } else { 1.0 }
    }

    /// Most bytes in a column.
    pub(super) fn highest(&self) -> u64 {
        let total = |column: &Column| column.bytes.iter().copied().fold(0, u64::saturating_add);
        self.all.iter().map(total).max().unwrap_or(0)
    }
}

impl Column {
    fn add(&mut self, packet: &Packet, is_ahead: bool, palette: &Palette) {
        self.packets += 1;
        self.lost += u64::from(packet.lost.is_some());
        self.ahead += u64::from(is_ahead);
        let of_streams = packet.frames.iter().map(|frame| (palette.place(frame.stream), frame.length));
        let rest = (palette.no_stream(), packet.length() - packet.stream_bytes());
        for (place, bytes) in of_streams.chain([rest]) {
            self.bytes[place] = self.bytes[place].saturating_add(bytes);
        }
    }

    /// Series with bytes in the column.
    pub(super) fn parts<'a>(&'a self, palette: &'a Palette) -> impl Iterator<Item = (&'a Series, u64)> {
        palette.series.iter().zip(self.bytes.iter().copied()).filter(|(_, bytes)| *bytes > 0)
    }
}

// === Colours ===

/// Strong colours, for urgent streams alone.
const URGENT: &[&str] = &["#e8320c", "#d6249f", "#f08c00"];
/// Pale colours for bulk, told apart on light and on dark ground.
const BULK: &[&str] = &["#6f9bd1", "#63ab8f", "#a08bc9", "#9aa35c", "#5fa8b8", "#b58a6b", "#8796a8"];
const REST_OF_URGENT: &str = "#c2410c";
const REST_OF_BULK: &str = "#74808c";
const NO_STREAM: &str = "#9c9c9c";

/// Series of bytes in one colour.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) colour: &'static str,
    pub(super) is_urgent: bool,
}

/// Colours: urgent streams, then bulk by size, the rest of each class, and bytes without a stream.
pub(super) struct Palette {
    pub(super) series: Vec<Series>,
    by_stream: HashMap<u64, usize>,
}

impl Palette {
    pub(super) fn of(summary: &Summary) -> Self {
        let mut palette = Self { series: Vec::new(), by_stream: HashMap::new() };
        let (urgent, mut bulk): (Vec<_>, Vec<_>) = summary.streams.iter().partition(|stream| stream.urgent);
        // The stable sort keeps the order of stream ids among equals.
        bulk.sort_by_key(|stream| Reverse(stream.bytes));
        palette.add(&urgent, true, URGENT, REST_OF_URGENT);
        palette.add(&bulk, false, BULK, REST_OF_BULK);
        let name = "no stream: header, acknowledgements, handshake, padding".to_owned();
        palette.series.push(Series { name, colour: NO_STREAM, is_urgent: false });
        palette
    }

    fn add(
        &mut self,
        streams: &[&StreamNumbers],
        is_urgent: bool,
        colours: &[&'static str],
        rest: &'static str,
    ) {
        let class = if is_urgent { "urgent" } else { "bulk" };
        for (index, stream) in streams.iter().enumerate() {
            if let Some(colour) = colours.get(index) {
                let name = format!("stream {} ({class})", stream.stream);
                self.series.push(Series { name, colour, is_urgent });
            } else if index == colours.len() {
                let name = format!("{} more streams ({class})", streams.len() - index);
                self.series.push(Series { name, colour: rest, is_urgent });
            }
            self.by_stream.insert(stream.stream, self.series.len() - 1);
        }
    }

    /// Index in `series` of bytes without a stream: the last.
    pub(super) fn no_stream(&self) -> usize {
        self.series.len() - 1
    }

    fn place(&self, stream: u64) -> usize {
        self.by_stream.get(&stream).copied().unwrap_or(self.no_stream())
    }
}
