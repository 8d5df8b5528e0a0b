//! Which stream has which colour.

use std::collections::HashMap;

use super::super::summary::{StreamNumbers, Summary};

/// Strong colours, for urgent streams alone.
const URGENT: &[&str] = &["#e8320c", "#d6249f", "#f08c00"];
/// Pale colours for bulk, told apart on light and on dark ground.
const BULK: &[&str] = &["#6f9bd1", "#63ab8f", "#a08bc9", "#9aa35c", "#5fa8b8", "#b58a6b", "#8796a8"];
const REST_OF_URGENT: &str = "#c2410c";
const REST_OF_BULK: &str = "#74808c";
const NO_STREAM: &str = "#9c9c9c";

/// What is drawn in one colour.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) colour: &'static str,
    pub(super) is_urgent: bool,
}

/// Urgent streams first, then bulk by size, what is too much for colours of its own, and bytes of no stream.
pub(super) struct Palette {
    series: Vec<Series>,
    by_stream: HashMap<u64, usize>,
}

impl Palette {
    pub(super) fn of(summary: &Summary) -> Self {
        let mut palette = Self { series: Vec::new(), by_stream: HashMap::new() };
        for is_urgent in [true, false] {
            let mut streams: Vec<&StreamNumbers> =
                summary.streams.iter().filter(|stream| stream.urgent == is_urgent).collect();
            // The stable sort keeps the order of stream ids among equals.
            if !is_urgent {
                streams.sort_by_key(|stream| std::cmp::Reverse(stream.bytes));
            }
            palette.add(&streams, is_urgent);
        }
        let name = "no stream: header, acknowledgements, handshake, padding".to_owned();
        palette.series.push(Series { name, colour: NO_STREAM, is_urgent: false });
        palette
    }

    fn add(&mut self, streams: &[&StreamNumbers], is_urgent: bool) {
        let (colours, rest, class) =
            if is_urgent { (URGENT, REST_OF_URGENT, "urgent") } else { (BULK, REST_OF_BULK, "bulk") };
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

    pub(super) fn all(&self) -> &[Series] {
        &self.series
    }

    /// The place in `all` of the bytes that are of no stream: the last.
    pub(super) fn no_stream(&self) -> usize {
        self.series.len() - 1
    }

    pub(super) fn place(&self, stream: u64) -> usize {
        self.by_stream.get(&stream).copied().unwrap_or(self.no_stream())
    }
}
