//! SVG text with its scales and colours.

use std::collections::HashMap;
use std::fmt::Write as _;

use braid_measure::text::Escaped;

use super::super::qlog::float;
use super::super::summary::{StreamNumbers, Summary};

/// Left and right end of the time axis.
pub(super) const LEFT: f64 = 110.0;
pub(super) const RIGHT: f64 = 1170.0;

/// Ink with a contrast of 4.5 to both black and white backgrounds.
const INK: &str = "#767676";

/// SVG document under construction.
#[derive(Default)]
pub(super) struct Svg(String);

impl Svg {
    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str, opacity: f64) {
        let _ = write!(self.0, r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}""#);
        self.fill(colour, opacity);
    }

    fn fill(&mut self, colour: &str, opacity: f64) {
        let _ = write!(self.0, r#" fill="{colour}""#);
        if opacity < 1.0 {
            let _ = write!(self.0, r#" fill-opacity="{opacity:.2}""#);
        }
        self.0.push_str("/>\n");
    }

    pub(super) fn ink(&mut self, x: f64, y: f64, width: f64, height: f64, opacity: f64) {
        self.rect(x, y, width, height, INK, opacity);
    }

    /// Writes text; `anchor`: start, middle or end.
    pub(super) fn text(&mut self, x: f64, y: f64, anchor: &str, size: u32, text: &str) {
        let text = Escaped(text);
        let _ = writeln!(
            self.0,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" text-anchor="{anchor}">{text}</text>"#
        );
    }

    pub(super) fn line(&mut self, points: &[(f64, f64)], colour: &str, dashes: bool) {
        let dashes = if dashes { r#" stroke-dasharray="4 3""# } else { "" };
        let _ =
            write!(self.0, r#"<polyline fill="none" stroke="{colour}" stroke-width="1.5"{dashes} points=""#);
        for (x, y) in points {
            let _ = write!(self.0, "{x:.1},{y:.1} ");
        }
        self.0.push_str("\"/>\n");
    }

    /// Draws a group with a class and a tooltip.
    pub(super) fn group(&mut self, class: &str, title: &str, draw: impl FnOnce(&mut Self)) {
        let _ = write!(self.0, r#"<g class="{class}">"#);
        if !title.is_empty() {
            let _ = write!(self.0, "<title>{}</title>", Escaped(title));
        }
        draw(self);
        self.0.push_str("</g>\n");
    }

    pub(super) fn document(self, width: f64, height: f64) -> String {
        let content = self.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" \
             fill=\"{INK}\" shape-rendering=\"crispEdges\">\n{content}</svg>\n"
        )
    }
}

// === Scales ===

/// Vertical position of a chart.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) top: f64,
    pub(super) height: f64,
}

impl Frame {
    pub(super) fn bottom(self) -> f64 {
        self.top + self.height
    }
}

/// Linear scale from 0 at the bottom of a frame to a round number at or below its top.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    frame: Frame,
    most: f64,
    step: f64,
}

impl Scale {
    /// Scale for bytes up to `most`.
    pub(super) fn bytes(frame: Frame, most: u64) -> Self {
        let most = float(most.max(1));
        Self { frame, most, step: nice_above(most / 5.0).max(1.0) }
    }

    /// Pixels above the bottom, clamped at the top.
    pub(super) fn height(self, bytes: f64) -> f64 {
        self.frame.height * (bytes / self.most).clamp(0.0, 1.0)
    }

    /// Draws grid lines with labels at the left, and the name above them.
    pub(super) fn draw(self, svg: &mut Svg, name: &str) {
        svg.text(LEFT, self.frame.top - 7.0, "start", 12, name);
        let mut value = 0.0;
        while value <= self.most {
            let y = self.frame.bottom() - self.height(value);
            svg.ink(LEFT, y - 0.5, RIGHT - LEFT, 1.0, if value > 0.0 { 0.18 } else { 0.6 });
            svg.text(LEFT - 8.0, y + 4.0, "end", 11, &size(value));
            value += self.step;
        }
    }
}

/// Number of bytes with a suitable unit.
pub(super) fn size(bytes: f64) -> String {
    let (value, unit) = match bytes {
        _ if bytes >= 1e9 => (bytes / 1e9, "GB"),
        _ if bytes >= 1e6 => (bytes / 1e6, "MB"),
        _ if bytes >= 10_000.0 => (bytes / 1e3, "kB"),
        _ => (bytes, "B"),
    };
    let value = (value * 100.0).round() / 100.0;
    format!("{value} {unit}")
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

    /// Index in `all` of bytes without a stream: the last.
    pub(super) fn no_stream(&self) -> usize {
        self.series.len() - 1
    }

    pub(super) fn place(&self, stream: u64) -> usize {
        self.by_stream.get(&stream).copied().unwrap_or(self.no_stream())
    }
}

/// Next 1, 2 or 5 times a power of ten.
pub(super) fn nice_above(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    // A hair's breadth above is what rounding makes of the number itself.
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
}
