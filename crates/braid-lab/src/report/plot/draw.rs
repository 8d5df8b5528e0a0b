//! Draws figures with plotters.

use std::fmt::Write;
use std::io;

use plotters::backend::SVGBackend;
use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Rectangle, Text};
use plotters::series::{AreaSeries, LineSeries};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoFont, RGBColor, ShapeStyle, TextStyle};

use super::figure::{Figure, Panel, Swatch};
use super::layout::{
    Format, HEADING, LINE_HEIGHT, Layout, TEXT, TITLE, X_LABELS, Y_LABELS, legend_name, letters, text_width,
};
use super::marked::Marked;
use super::moment;
use super::palette::{self, AXIS, INK, MESH, PAPER, QUIET_INK};
use crate::report::text::{self, Escaped};

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure = DrawingAreaErrorKind<io::Error>;

/// plotters knows whole units only: with several to a pixel, lines are where they belong.
const UNITS: u32 = 4;

/// How much of its colour a tinted ground has.
const GROUND: f64 = 0.22;

impl Figure {
    /// The picture. Text in it is what `title`, `legend` and so on say, escaped.
    pub(crate) fn svg(&self, format: Format) -> String {
        let layout = Layout::of(self, format);
        let mut svg = String::new();
        let size = (units(layout.width), units(layout.height));
        let drawn = draw(self, &layout, &SVGBackend::with_string(&mut svg, size).into_drawing_area());
        let Layout { width, height, .. } = layout;
        let mut whole = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {} {}\" \
             stroke-linejoin=\"round\" role=\"img\" aria-label=\"{}\">\n",
            size.0,
            size.1,
            Escaped(&self.words())
        );
        match (drawn, svg.split_once(">\n")) {
            (Ok(()), Some((_, content))) => whole.push_str(content),
            // A string takes whatever is written; should that change, the page says so instead of ending.
            _ => {
                let _ = writeln!(
                    whole,
                    "<text y=\"1em\" font-size=\"64\">This picture could not be drawn.</text></svg>"
                );
            }
        }
        whole
    }

    /// The picture in words, for those who cannot see it.
    fn words(&self) -> String {
        let mut words = format!("{}. {} over {}.", self.title, self.y.title, self.x.title);
        for panel in &self.panels {
            let said = panel.absent.as_ref().unwrap_or(&panel.note);
            let separator = if said.is_empty() { "" } else { ": " };
            let _ = write!(words, " {}{separator}{said}.", panel.heading);
        }
        words
    }
}

fn draw(figure: &Figure, layout: &Layout, canvas: &Canvas<'_>) -> Result<(), Failure> {
    canvas.fill(&PAPER)?;
    let margin = layout.format.margin();
    for (at, line) in layout.title.iter().enumerate() {
        let y = margin + u32::try_from(at).unwrap_or(0) * (TITLE + 8);
        write(canvas, line, (margin, y + TITLE / 2), &letter(TITLE, INK).bold())?;
    }
    for (entry, (x, y)) in figure.legend.iter().zip(&layout.legend) {
        let middle = y + LINE_HEIGHT / 2;
        let colour = palette::line(entry.colour);
        match entry.swatch {
            Swatch::Line => {
                let stroke = vec![point((*x, middle)), point((x + 20, middle))];
                canvas.draw(&PathElement::new(stroke, stroke_of(colour, 4)))?;
            }
            Swatch::Ground => {
                let corners = [point((*x, middle - 6)), point((x + 20, middle + 6))];
                canvas.draw(&Rectangle::new(corners, colour.mix(GROUND).filled()))?;
            }
        }
        write(canvas, &legend_name(&entry.name), (x + 26, middle), &letter(TEXT, INK))?;
    }
    let last = figure.panels.len().saturating_sub(1);
    let panels = figure.panels.iter().zip(&layout.notes).zip(&layout.panels);
    for (at, ((panel, note), top)) in panels.enumerate() {
        draw_heading(canvas, panel, note, layout, *top)?;
        draw_panel(canvas, figure, panel, layout, *top, at == last)?;
    }
    let middle = (Y_LABELS + margin + layout.width - margin) / 2;
    write(canvas, &figure.x.title, (middle, layout.x_title + 8), &letter(TEXT, QUIET_INK).centred())?;
    for (at, line) in layout.footer.iter().enumerate() {
        let y = layout.footer_at + u32::try_from(at).unwrap_or(0) * LINE_HEIGHT;
        write(canvas, line, (margin, y + 10), &letter(TEXT, QUIET_INK))?;
    }
    canvas.present()
}

/// A panel's heading, and its note beside it or in rows below.
fn draw_heading(
    canvas: &Canvas<'_>,
    panel: &Panel,
    note: &[String],
    layout: &Layout,
    top: u32,
) -> Result<(), Failure> {
    let margin = layout.format.margin();
    let left = if layout.format == Format::Phone { margin } else { margin + Y_LABELS };
    let right = layout.width - margin;
    let room = right - left;
    let middle = top + LINE_HEIGHT / 2;
    if layout.format == Format::Phone {
        let heading = text::shortened(&panel.heading, letters(room, HEADING));
        write(canvas, &heading, (left, middle), &letter(HEADING, INK).bold())?;
        for (row, words) in (1..).zip(note) {
            write(canvas, words, (left, middle + row * LINE_HEIGHT), &letter(TEXT, QUIET_INK))?;
        }
        return Ok(());
    }
    let heading = text::shortened(&panel.heading, letters(room * 6 / 10, HEADING));
    write(canvas, &heading, (left, middle), &letter(HEADING, INK).bold())?;
    let rest = room.saturating_sub(text_width(&heading, HEADING) + 24);
    let note = text::shortened(&panel.note, letters(rest, TEXT));
    write(canvas, &note, (right, middle), &letter(TEXT, QUIET_INK).right())
}

fn draw_panel(
    canvas: &Canvas<'_>,
    figure: &Figure,
    panel: &Panel,
    layout: &Layout,
    top: u32,
    last: bool,
) -> Result<(), Failure> {
    let margin = layout.format.margin();
    let top = top + layout.heading_height;
    let below = if last { X_LABELS } else { 2 };
    let area = canvas.clone().shrink(
        (units(margin), units(top)),
        (units(layout.width - 2 * margin - layout.format.x_room()), units(figure.panel_height + below)),
    );
    let (x, y) = (&figure.x, panel.y.as_ref().unwrap_or(&figure.y));
    let mut chart = ChartBuilder::on(&area)
        .set_label_area_size(plotters::chart::LabelAreaPosition::Left, units(Y_LABELS))
        .set_label_area_size(plotters::chart::LabelAreaPosition::Bottom, units(below))
        .build_cartesian_2d(
            Marked::new(x, layout.format.marks(), last),
            Marked::new(y, figure.panel_height / 30, true),
        )?;
    chart
        .configure_mesh()
        .light_line_style(PAPER.mix(0.0))
        .bold_line_style(stroke_of(MESH, 1))
        .axis_style(stroke_of(AXIS, 1))
        .set_all_tick_mark_size(units(4))
        .label_style(letter(TEXT, QUIET_INK).style)
        .axis_desc_style(letter(TEXT, QUIET_INK).style)
        .y_desc(text::shortened(&y.title, letters(figure.panel_height, TEXT) + 2))
        .draw()?;
    if let Some(words) = &panel.absent {
        let centre = ((Y_LABELS + layout.width) / 2, top + figure.panel_height / 2);
        let words = text::shortened(words, letters(layout.width - 2 * margin - Y_LABELS, TEXT));
        return write(canvas, &words, centre, &letter(TEXT, QUIET_INK).centred());
    }
    for band in &panel.bands {
        let corners = [(x.place(band.from), y.low), (x.place(band.to), y.high)];
        let colour = palette::line(band.colour).mix(GROUND);
        chart.draw_series([Rectangle::new(corners, colour.filled())])?;
    }
    for moment in panel.moments.iter().map(|moment| x.place(moment.at)) {
        chart.draw_series(LineSeries::new([(moment, y.low), (moment, y.high)], stroke_of(AXIS, 1)))?;
    }
    // The first of the legend is what the picture is about: it lies on top.
    for line in panel.lines.iter().rev() {
        let colour = palette::line(line.colour);
        let points: Vec<(f64, f64)> =
            line.points.iter().map(|(at, value)| (x.place(*at), y.place(*value))).collect();
        if line.filled {
            let ground = y.low.max(0.0);
            chart.draw_series(AreaSeries::new(points.iter().copied(), ground, colour.mix(0.14)))?;
        }
        let end = points.last().copied().filter(|_| line.ends);
        chart.draw_series(LineSeries::new(points, stroke_of(colour, 3)))?;
        if let Some(end) = end {
            chart.draw_series([Circle::new(end, units(4), colour.filled())])?;
        }
    }
    let left = margin + Y_LABELS;
    for label in moment::labels(figure, panel, layout.width - margin - layout.format.x_room() - left) {
        let letter = letter(moment::SIZE, QUIET_INK);
        let letter = if label.to_the_left { letter.right() } else { letter };
        write(canvas, &label.words, (left + label.anchor, top + 9), &letter)?;
    }
    Ok(())
}

/// A text's size, colour and anchor.
#[derive(Clone)]
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

/// Writes one line, its middle at a height.
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
