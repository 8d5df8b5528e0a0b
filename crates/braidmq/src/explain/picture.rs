//! Chart of a log: columns of packets coloured by stream, a lane for each stream, losses, and bytes in flight.

mod chart;
mod svg;

use super::summary::{Summary, shown};
use super::view::{View, list};
use chart::Columns;
use svg::{Frame, LEFT, Palette, RIGHT, Svg};

const WIDTH: f64 = 1200.0;

/// Draws an SVG document for light and dark backgrounds.
pub(super) fn draw(view: &View<'_>, summary: &Summary) -> String {
    let palette = Palette::of(summary);
    let columns = Columns::of(view, &palette, RIGHT - LEFT);
    let mut svg = Svg::default();
    heading(&mut svg, view, summary);
    let mut top = legend(&mut svg, &palette) + 34.0;
    top = chart::bars(&mut svg, Frame { top, height: 230.0 }, &columns, &palette);
    top = chart::lanes(&mut svg, top + 14.0, &columns, &palette);
    if view.trace.flights.iter().any(|flight| view.window.contains(flight.time)) {
        top = chart::flight(&mut svg, Frame { top: top + 34.0, height: 110.0 }, view, &columns);
    }
    let bottom = chart::time_axis(&mut svg, top + 4.0, &columns);
    svg.document(WIDTH, bottom + 16.0)
}

fn heading(svg: &mut Svg, view: &View<'_>, summary: &Summary) {
    svg.text(LEFT, 30.0, "start", 19, "Stream bytes of each packet");
    let mut said = match shown(summary.urgent_first) {
        Some(share) => format!("urgent first: {share} ({})", list(view.urgent.iter())),
        None => "no urgent stream beside bulk".to_owned(),
    };
    if let Some(share) = shown(summary.after_a_loss) {
        said += &format!(" · after a loss: {share}");
    }
    said += &format!(" · {} packets {}", summary.connection.packets, summary.side);
    if let Some(lost) = summary.connection.lost {
        said += &format!(", {lost} lost");
    }
    svg.text(LEFT, 51.0, "start", 13, &said);
    let name = std::path::Path::new(&summary.file).file_name().map(|name| name.to_string_lossy());
    svg.text(LEFT, 69.0, "start", 11, name.as_deref().unwrap_or_default());
}

/// Draws a swatch and a name for each colour; returns the lower end.
fn legend(svg: &mut Svg, palette: &Palette) -> f64 {
    let (mut x, mut y) = (LEFT, 92.0);
    for series in palette.all() {
        // Letters of this size are about 7 pixels wide.
        let width = 30.0 + 7.0 * super::qlog::float(series.name.chars().count() as u64);
        if x + width > RIGHT {
            (x, y) = (LEFT, y + 18.0);
        }
        svg.rect(x, y - 9.0, 11.0, 11.0, series.colour, 1.0);
        svg.text(x + 16.0, y, "start", 12, &series.name);
        x += width;
    }
    y
}
