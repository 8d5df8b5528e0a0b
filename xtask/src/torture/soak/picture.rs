//! Memory and file over time, one above the other.

use plotters::prelude::{ChartBuilder, IntoDrawingArea, IntoFont, LineSeries, RGBColor, SVGBackend, WHITE};

use super::samples::Sample;

const SIZE: (u32, u32) = (900, 560);
const INK: RGBColor = RGBColor(28, 32, 38);
const MESH: RGBColor = RGBColor(228, 231, 235);
/// One for each panel, as in the pictures of the laboratory.
const LINES: [RGBColor; 2] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0)];

/// A panel's title, and what it shows of a sample.
type What = (&'static str, fn(&Sample) -> f64);

/// The picture as SVG.
pub(super) fn draw(samples: &[Sample]) -> Result<String, String> {
    let mut svg = String::new();
    {
        let whole = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        whole.fill(&WHITE).map_err(|error| error.to_string())?;
        let panels = whole.split_evenly((2, 1));
        let whats: [What; 2] = [
            ("Memory of the broker (anonymous, resident), MiB", |sample| sample.memory),
            ("File of its store, MiB", |sample| sample.file),
        ];
        let end = samples.last().map_or(1.0, |sample| sample.seconds / 60.0);
        for ((panel, (title, of)), colour) in panels.iter().zip(whats).zip(LINES) {
            let most = samples.iter().map(of).fold(1.0, f64::max) * 1.1;
            let mut chart = ChartBuilder::on(panel)
                .caption(title, ("sans-serif", 16).into_font().color(&INK))
                .margin(10)
                .x_label_area_size(34)
                .y_label_area_size(48)
                .build_cartesian_2d(0.0..end, 0.0..most)
                .map_err(|error| error.to_string())?;
            let mut mesh = chart.configure_mesh();
            mesh.x_desc("minutes").light_line_style(WHITE).bold_line_style(MESH).axis_style(INK);
            mesh.draw().map_err(|error| error.to_string())?;
            let points = samples.iter().map(|sample| (sample.seconds / 60.0, of(sample)));
            chart.draw_series(LineSeries::new(points, colour)).map_err(|error| error.to_string())?;
        }
        whole.present().map_err(|error| error.to_string())?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_line_for_each_of_both() {
        let samples = [0.0, 60.0, 120.0].map(|seconds| Sample { seconds, memory: 20.0 + seconds, file: 4.0 });
        let svg = draw(&samples).unwrap();
        assert_eq!(svg.matches("<polyline fill=\"none\" opacity=\"1\" stroke=\"#0072B2\"").count(), 1);
        assert_eq!(svg.matches("stroke=\"#D55E00\"").count(), 1);
        assert!(svg.contains("File of its store"), "{svg}");
    }
}
