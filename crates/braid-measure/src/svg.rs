//! Drawing of charts as SVG with plotters.

use std::fmt::Write;
use std::io;
use std::ops::Range;

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, LabelAreaPosition};
use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Rectangle, Text};
use plotters::series::{AreaSeries, LineSeries};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoFont, RGBColor, ShapeStyle, TextStyle};

use crate::chart::{Axis, Chart, Format, Panel, Scale, Swatch};
use crate::text::{Escaped, shortened, wrapped};

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure = DrawingAreaErrorKind<io::Error>;

const PAPER: RGBColor = RGBColor(255, 255, 255);
const INK: RGBColor = RGBColor(28, 32, 38);
const QUIET_INK: RGBColor = RGBColor(92, 99, 110);
const MESH: RGBColor = RGBColor(228, 231, 235);
const AXIS: RGBColor = RGBColor(150, 156, 165);
/// Colours that colour-blind readers tell apart: Okabe and Ito, "Color Universal Design" (2008), the darkest first
/// and without the yellow, which is faint on white.
const LINES: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];

/// Units of plotters in a pixel: it knows whole units only.
const UNITS: u32 = 4;
/// Opacity of bands.
const GROUND: f64 = 0.22;
/// Sizes of letters, pixels.
const TEXT: u32 = 13;
const HEADING: u32 = 14;
const TITLE: u32 = 18;
const EVENT: u32 = 12;
const LINE_HEIGHT: u32 = 20;
/// Room left of the plotting area for title and labels of the y axis, pixels.
const Y_LABELS: u32 = 58;
/// Room below the last panel for the labels of the x axis, pixels.
const X_LABELS: u32 = 26;
/// Room below the other panels, pixels.
const PANEL_GAP: u32 = 12;
/// Room between the line of an event and its words, pixels.
const EVENT_GAP: f64 = 5.0;
/// Lengths of an event's words, in characters: the first that fits is taken.
const EVENT_LENGTHS: [usize; 3] = [64, 40, 24];
/// Part of a panel's height that lines may fill below the words of an event.
const FREE_ABOVE: f64 = 0.74;

impl Format {
    fn width(self) -> u32 {
        if self == Self::Phone { 380 } else { 900 }
    }

    fn margin(self) -> u32 {
        if self == Self::Phone { 8 } else { 18 }
    }

    /// Room right of the plotting area: half of the last label, where the margin is smaller than that.
    fn x_room(self) -> u32 {
        if self == Self::Phone { 14 } else { 10 }
    }

    /// Most labels of the x axis.
    fn x_labels(self) -> usize {
        if self == Self::Phone { 5 } else { 10 }
    }
}

impl Chart {
    /// The chart as an SVG document on a white background, its texts as text.
    #[must_use]
    pub fn svg(&self, format: Format) -> String {
        let layout = Layout::of(self, format);
        let mut svg = String::new();
        let size = (units(layout.width), units(layout.height));
        let drawn = layout.draw(self, &SVGBackend::with_string(&mut svg, size).into_drawing_area());
        let Layout { width, height, .. } = layout;
        let mut document = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {} {}\" \
             stroke-linejoin=\"round\" role=\"img\" aria-label=\"{}\">\n",
            size.0,
            size.1,
            Escaped(&self.description())
        );
        match (drawn, svg.split_once(">\n")) {
            (Ok(()), Some((_, content))) => document.push_str(content),
            // Writing to a string does not fail.
            _ => document
                .push_str("<text y=\"1em\" font-size=\"64\">This chart could not be drawn.</text></svg>\n"),
        }
        document
    }

    /// Alternative text.
    fn description(&self) -> String {
        let mut text = format!("{}. {} over {}.", self.title, self.y.title, self.x.title);
        for panel in &self.panels {
            let said = panel.absent.as_ref().unwrap_or(&panel.note);
            let separator = if said.is_empty() { "" } else { ": " };
            let _ = write!(text, " {}{separator}{said}.", panel.heading);
        }
        text
    }
}

/// Positions in pixels from the top left corner.
struct Layout {
    format: Format,
    width: u32,
    height: u32,
    /// Rows of the title.
    title: Vec<String>,
    /// Left top corner of each entry of the legend.
    legend: Vec<(u32, u32)>,
    /// Top of each panel, with its heading.
    panels: Vec<u32>,
    /// Rows of each panel's note below its heading; empty where the note stands beside it.
    notes: Vec<Vec<String>>,
    /// Height of heading and note of each panel.
    heading_height: u32,
    x_title: u32,
    /// Rows of the footer.
    footer: Vec<String>,
    footer_top: u32,
}

impl Layout {
    fn of(chart: &Chart, format: Format) -> Self {
        let (width, margin) = (format.width(), format.margin());
        let inner = width - 2 * margin;
        let is_file = format == Format::File;
        let title = if is_file { wrapped(&chart.title, letters(inner, TITLE)) } else { Vec::new() };
        let (legend, mut y) = place_legend(chart, width, margin, margin + rows(&title) * (TITLE + 8));
        let note = |panel: &Panel| match format {
            Format::File | Format::Page => Vec::new(),
            Format::Phone => wrapped(&panel.note, letters(inner, TEXT)),
        };
        let notes: Vec<Vec<String>> = chart.panels.iter().map(note).collect();
        let note_rows = notes.iter().map(|note| rows(note)).max().unwrap_or(0);
        let heading_height = LINE_HEIGHT * (1 + note_rows) + 6;
        let mut panels = Vec::new();
        for _ in &chart.panels {
            panels.push(y);
            y += heading_height + chart.panel_height + PANEL_GAP;
        }
        let x_title = y + X_LABELS - PANEL_GAP;
        y = x_title + LINE_HEIGHT;
        let footer = if is_file { wrapped(&chart.footer, letters(inner, TEXT)) } else { Vec::new() };
        let footer_top = y + 6;
        if !footer.is_empty() {
            y = footer_top + rows(&footer) * LINE_HEIGHT;
        }
        let height = y + margin / 2;
        Self {
            format,
            width,
            height,
            title,
            legend,
            panels,
            notes,
            heading_height,
            x_title,
            footer,
            footer_top,
        }
    }

    fn draw(&self, chart: &Chart, canvas: &Canvas<'_>) -> Result<(), Failure> {
        let margin = self.format.margin();
        canvas.fill(&PAPER)?;
        for (row, y) in self.title.iter().zip((margin..).step_by(TITLE as usize + 8)) {
            write(canvas, row, (margin, y + TITLE / 2), &letter(TITLE, INK).bold())?;
        }
        for (entry, (x, y)) in chart.legend.iter().zip(&self.legend) {
            let (middle, colour) = (y + LINE_HEIGHT / 2, line_colour(entry.colour));
            match entry.swatch {
                Swatch::Line => {
                    let stroke = vec![point((*x, middle)), point((x + 20, middle))];
                    canvas.draw(&PathElement::new(stroke, stroke_of(colour, 4)))?;
                }
                Swatch::Band => {
                    let corners = [point((*x, middle - 6)), point((x + 20, middle + 6))];
                    canvas.draw(&Rectangle::new(corners, colour.mix(GROUND).filled()))?;
                }
            }
            write(canvas, &legend_name(&entry.name), (x + 26, middle), &letter(TEXT, INK))?;
        }
        for (at, panel) in chart.panels.iter().enumerate() {
            self.draw_heading(canvas, panel, at)?;
            self.draw_panel(canvas, chart, panel, at)?;
        }
        let middle = (Y_LABELS + self.width) / 2;
        write(canvas, &chart.x.title, (middle, self.x_title + 8), &letter(TEXT, QUIET_INK).centred())?;
        for (row, y) in self.footer.iter().zip((self.footer_top..).step_by(LINE_HEIGHT as usize)) {
            write(canvas, row, (margin, y + 10), &letter(TEXT, QUIET_INK))?;
        }
        canvas.present()
    }

    /// Draws a panel's heading, and its note beside it or in rows below.
    fn draw_heading(&self, canvas: &Canvas<'_>, panel: &Panel, at: usize) -> Result<(), Failure> {
        let margin = self.format.margin();
        let is_phone = self.format == Format::Phone;
        let left = if is_phone { margin } else { margin + Y_LABELS };
        let (right, middle) = (self.width - margin, self.panels[at] + LINE_HEIGHT / 2);
        let room = right - left;
        let heading =
            shortened(&panel.heading, letters(if is_phone { room } else { room * 6 / 10 }, HEADING));
        write(canvas, &heading, (left, middle), &letter(HEADING, INK).bold())?;
        if is_phone {
            let rows = self.notes[at].iter().zip((middle + LINE_HEIGHT..).step_by(LINE_HEIGHT as usize));
            return rows
                .into_iter()
                .try_for_each(|(row, y)| write(canvas, row, (left, y), &letter(TEXT, QUIET_INK)));
        }
        let rest = room.saturating_sub(text_width(&heading, HEADING) + 24);
        write(
            canvas,
            &shortened(&panel.note, letters(rest, TEXT)),
            (right, middle),
            &letter(TEXT, QUIET_INK).right(),
        )
    }

    fn draw_panel(
        &self,
        canvas: &Canvas<'_>,
        chart: &Chart,
        panel: &Panel,
        at: usize,
    ) -> Result<(), Failure> {
        let (low, high) = (chart.x.low, chart.x.high);
        match chart.x.scale {
            // Rounding would lose the ticks at the ends.
            Scale::Decades => {
                let range = low * (1.0 - 1e-9)..high * (1.0 + 1e-9);
                self.draw_lines(canvas, chart, panel, at, range.log_scale())
            }
            _ => self.draw_lines(canvas, chart, panel, at, low..high),
        }
    }

    fn draw_lines<X>(
        &self,
        canvas: &Canvas<'_>,
        chart: &Chart,
        panel: &Panel,
        at: usize,
        x_range: X,
    ) -> Result<(), Failure>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let (margin, x_room) = (self.format.margin(), self.format.x_room());
        let top = self.panels[at] + self.heading_height;
        let is_last = at + 1 == chart.panels.len();
        let below = if is_last { X_LABELS } else { 2 };
        let area = canvas.clone().shrink(
            (units(margin), units(top)),
            (units(self.width - 2 * margin - x_room), units(chart.panel_height + below)),
        );
        let (x, y) = (&chart.x, panel.y.as_ref().unwrap_or(&chart.y));
        let y_range: Range<f64> = y.low..y.high;
        let mut plot = ChartBuilder::on(&area)
            .set_label_area_size(LabelAreaPosition::Left, units(Y_LABELS))
            .set_label_area_size(LabelAreaPosition::Bottom, units(below))
            .build_cartesian_2d(x_range, y_range)?;
        plot.configure_mesh()
            .light_line_style(PAPER.mix(0.0))
            .bold_line_style(stroke_of(MESH, 1))
            .axis_style(stroke_of(AXIS, 1))
            .set_all_tick_mark_size(units(4))
            .x_labels(self.format.x_labels())
            .y_labels((chart.panel_height / 24) as usize)
            .x_label_formatter(&|tick| if is_last { x.label(*tick) } else { String::new() })
            .y_label_formatter(&|tick| y.label(*tick))
            .label_style(letter(TEXT, QUIET_INK).style)
            .axis_desc_style(letter(TEXT, QUIET_INK).style)
            .y_desc(shortened(&y.title, letters(chart.panel_height, TEXT) + 2))
            .draw()?;
        if let Some(words) = &panel.absent {
            let centre = ((Y_LABELS + self.width) / 2, top + chart.panel_height / 2);
            let words = shortened(words, letters(self.width - 2 * margin - Y_LABELS, TEXT));
            return write(canvas, &words, centre, &letter(TEXT, QUIET_INK).centred());
        }
        for band in &panel.bands {
            let corners = [(x.place(band.from), y.low), (x.place(band.to), y.high)];
            plot.draw_series([Rectangle::new(corners, line_colour(band.colour).mix(GROUND).filled())])?;
        }
        for at in panel.events.iter().map(|event| x.place(event.at)) {
            plot.draw_series(LineSeries::new([(at, y.low), (at, y.high)], stroke_of(AXIS, 1)))?;
        }
        for line in panel.lines.iter().rev() {
            let colour = line_colour(line.colour);
            let points: Vec<(f64, f64)> =
                line.points.iter().map(|(at, value)| (x.place(*at), y.place(*value))).collect();
            if line.filled {
                let base = y.low.max(0.0);
                plot.draw_series(AreaSeries::new(points.iter().copied(), base, colour.mix(0.14)))?;
            }
            let end = points.last().copied().filter(|_| line.ends);
            plot.draw_series(LineSeries::new(points, stroke_of(colour, 3)))?;
            plot.draw_series(end.map(|end| Circle::new(end, units(4), colour.filled())))?;
        }
        let left = margin + Y_LABELS;
        for label in event_labels(panel, x, y, self.width - margin - x_room - left) {
            let letter = letter(EVENT, QUIET_INK);
            let letter = if label.is_left { letter.right() } else { letter };
            write(canvas, &label.words, (left + label.anchor, top + 9), &letter)?;
        }
        Ok(())
    }
}

fn rows(lines: &[String]) -> u32 {
    u32::try_from(lines.len()).unwrap_or(u32::MAX / 100)
}

/// Letters of a size that are about as wide as `width` pixels.
fn letters(width: u32, size: u32) -> usize {
    (width * 100 / (size * 54)) as usize
}

/// Approximate width of a text in pixels: viewers have other fonts.
fn text_width(text: &str, size: u32) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(1000).min(1000) * size * 54 / 100
}

/// Left top corners of the entries of the legend, row by row, and the bottom of the last row.
fn place_legend(chart: &Chart, width: u32, margin: u32, top: u32) -> (Vec<(u32, u32)>, u32) {
    let (mut x, mut y) = (margin, top);
    let mut places = Vec::new();
    for entry in &chart.legend {
        let wide = 26 + text_width(&legend_name(&entry.name), TEXT) + 18;
        if x > margin && x + wide > width - margin {
            (x, y) = (margin, y + LINE_HEIGHT);
        }
        places.push((x, y));
        x += wide;
    }
    let bottom = if places.is_empty() { top } else { y + LINE_HEIGHT + 4 };
    (places, bottom)
}

fn legend_name(name: &str) -> String {
    shortened(name, 40)
}

/// Words of an event at the top of a panel.
struct EventLabel {
    /// Beginning of the words, or their end where they stand left of the line; pixels from the plotting area's left.
    anchor: u32,
    is_left: bool,
    words: String,
}

/// Words of the events that have room for them on either side, without a line or another event there.
fn event_labels(panel: &Panel, x: &Axis, y: &Axis, width: u32) -> Vec<EventLabel> {
    let pixel = |at: f64| x.fraction(at) * f64::from(width);
    let is_crossed = |left: f64, right: f64| {
        panel.lines.iter().flat_map(|line| line.points.windows(2)).any(|step| {
            let [(from, a), (to, b)] = [step[0], step[1]];
            pixel(to) >= left && pixel(from) <= right && y.fraction(a.max(b)) > FREE_ABOVE
        })
    };
    let mut labels: Vec<EventLabel> = Vec::new();
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for (number, event) in panel.events.iter().enumerate() {
        let at = pixel(event.at);
        let fits = |left: f64, right: f64| {
            let other = |(other, event): (usize, &crate::Event)| {
                other != number && (left - EVENT_GAP..=right + EVENT_GAP).contains(&pixel(event.at))
            };
            left >= EVENT_GAP
                && right <= f64::from(width)
                && !panel.events.iter().enumerate().any(other)
                && !taken.iter().any(|(from, to)| *from <= right + EVENT_GAP && left - EVENT_GAP <= *to)
                && !is_crossed(left, right)
        };
        let found = EVENT_LENGTHS.into_iter().find_map(|length| {
            let words = shortened(&event.what, length);
            let wide = f64::from(text_width(&words, EVENT));
            let sides = [(at + EVENT_GAP, at + EVENT_GAP + wide), (at - EVENT_GAP - wide, at - EVENT_GAP)];
            sides.into_iter().find(|(left, right)| fits(*left, *right)).map(|side| (side, words))
        });
        if let Some((side, words)) = found {
            taken.push(side);
            let is_left = side.0 < at;
            let end = if is_left { side.1 } else { side.0 };
            let anchor = (0..=width).find(|pixels| f64::from(*pixels) >= end).unwrap_or(width);
            labels.push(EventLabel { anchor, is_left, words });
        }
    }
    labels
}

/// Colour of a number; from the eighth on the colours repeat, paler.
fn line_colour(number: usize) -> RGBColor {
    let RGBColor(red, green, blue) = LINES[number % LINES.len()];
    let pale = |part: u8| if number < LINES.len() { part } else { 255 - (255 - part) / 2 };
    RGBColor(pale(red), pale(green), pale(blue))
}

/// Size, colour and anchor of a text.
struct Letter {
    style: TextStyle<'static>,
    horizontal: HPos,
}

fn letter(size: u32, colour: RGBColor) -> Letter {
    // The SVG backend divides the size by this.
    let size = f64::from(units(size)) * 1.24;
    Letter { style: ("sans-serif", size).into_font().color(&colour), horizontal: HPos::Left }
}

impl Letter {
    fn bold(mut self) -> Self {
        self.style.font = self.style.font.style(FontStyle::Bold);
        self
    }

    fn centred(self) -> Self {
        Self { horizontal: HPos::Center, ..self }
    }

    fn right(self) -> Self {
        Self { horizontal: HPos::Right, ..self }
    }
}

/// Writes one line, vertically centred at `at`.
fn write(canvas: &Canvas<'_>, words: &str, at: (u32, u32), letter: &Letter) -> Result<(), Failure> {
    if words.is_empty() {
        return Ok(());
    }
    let style = letter.style.pos(Pos::new(letter.horizontal, VPos::Center));
    canvas.draw(&Text::new(words.to_owned(), point(at), style))
}

fn stroke_of(colour: RGBColor, half_pixels: u32) -> ShapeStyle {
    colour.stroke_width(half_pixels * UNITS / 2)
}

fn units(pixels: u32) -> u32 {
    pixels.saturating_mul(UNITS)
}

fn point((x, y): (u32, u32)) -> (i32, i32) {
    (i32::try_from(units(x)).unwrap_or(i32::MAX), i32::try_from(units(y)).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use crate::{Axis, Chart, Event, Format, LegendEntry, Line, Panel, Swatch};

    fn chart(x: Axis, values: &[f64]) -> Chart {
        let points: Vec<(f64, f64)> = (0..).map(f64::from).zip(values.iter().copied()).collect();
        let y = Axis::linear("MiB", values.iter().copied());
        let line = Line { colour: 0, points, filled: true, ends: true };
        let events = vec![Event { at: 10.0, what: "<kill>".into() }];
        let panel = Panel { heading: "Memory".into(), lines: vec![line], events, ..Panel::default() };
        let other = Line { colour: 1, points: vec![(0.0, 1.0), (2.0, 1.0)], filled: false, ends: false };
        let absent = Panel { heading: "none".into(), absent: Some("no run".into()), ..Panel::default() };
        let panels = vec![panel, Panel { lines: vec![other], ..Panel::default() }, absent];
        let legend = vec![LegendEntry { colour: 0, name: "a & b".into(), swatch: Swatch::Line }];
        Chart { title: "T".into(), footer: "seed 1".into(), legend, x, y, panels, panel_height: 96 }
    }

    #[test]
    fn a_chart_has_its_lines_and_texts() {
        let chart = chart(Axis::until("minutes", 20.0), &[1.0, 3.0, 2.0]);
        let svg = chart.svg(Format::File);
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\""), "{svg}");
        let of_colour = svg.matches("<polyline fill=\"none\" opacity=\"1\" stroke=\"#0072B2\"").count();
        assert_eq!(of_colour, 2, "the legend's and the panel's: {svg}");
        assert_eq!(svg.matches("stroke=\"#D55E00\"").count(), 1);
        for text in ["Memory", "a &amp; b", "&lt;kill&gt;", "no run", "minutes", "MiB", "seed 1"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(chart.svg(Format::Phone).contains("width=\"380\""));
    }

    #[test]
    fn no_number_breaks_a_chart() {
        for values in [vec![], vec![f64::NAN, f64::INFINITY], vec![f64::MAX, f64::MIN], vec![1e-300, 0.0]] {
            for x in [Axis::until("s", f64::NAN), Axis::decades("ms", values.clone()), Axis::share("of all")]
            {
                let svg = chart(x, &values).svg(Format::Page);
                assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
                assert!(!svg.contains("NaN") && !svg.contains("could not be drawn"), "{svg}");
            }
        }
    }

    #[test]
    fn logarithmic_axes_label_their_decades() {
        let svg = chart(Axis::decades("ms", [0.5, 80.0]), &[0.0, 1.0]).svg(Format::File);
        let labels: Vec<&str> =
            svg.lines().map(str::trim).filter(|line| line.parse::<f64>().is_ok()).collect();
        for label in ["0.1", "1", "10", "100"] {
            assert!(labels.contains(&label), "{label}: {labels:?}");
        }
    }
}
