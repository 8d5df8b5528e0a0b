//! Contents of a chart: axes, panels, lines. [`Chart::svg`] draws it.

use crate::number::{Prefix, exponent, fixed, short};

/// Numbers beyond it are drawn at the edge.
const LARGEST: f64 = 1e18;
/// Least length of a linear axis and least end of a logarithmic one. plotters does not find the ticks of ranges that
/// are near the limits of `f64`.
const SMALLEST: f64 = 1e-9;

/// Panels below each other with a common x axis and a common legend.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Title; only files show it.
    pub title: String,
    /// Source of the values; only files show it.
    pub footer: String,
    /// Names of the lines and of the bands.
    pub legend: Vec<LegendEntry>,
    /// Common x axis.
    pub x: Axis,
    /// y axis of the panels that have none of their own.
    pub y: Axis,
    /// From top to bottom.
    pub panels: Vec<Panel>,
    /// Height of the plotting area of each panel, pixels.
    pub panel_height: u32,
}

/// One coordinate system.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// Subject.
    pub heading: String,
    /// Key figures beside the heading.
    pub note: String,
    /// Text in place of lines.
    pub absent: Option<String>,
    /// Own y axis.
    pub y: Option<Axis>,
    /// Tinted bands behind the lines.
    pub bands: Vec<Band>,
    /// The first lies on top.
    pub lines: Vec<Line>,
    /// Events, in the order of time.
    pub events: Vec<Event>,
}

/// Tinted band over the height of a panel.
#[derive(Clone, Debug)]
pub struct Band {
    /// Left end on the x axis.
    pub from: f64,
    /// Right end on the x axis.
    pub to: f64,
    /// Number in the palette.
    pub colour: usize,
}

/// Polyline.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Number in the palette.
    pub colour: usize,
    /// Points in the units of the axes.
    pub points: Vec<(f64, f64)>,
    /// True if the area below it is tinted.
    pub filled: bool,
    /// True if a dot marks its last point.
    pub ends: bool,
}

/// Event on the x axis.
#[derive(Clone, Debug)]
pub struct Event {
    /// Position on the x axis.
    pub at: f64,
    /// Description.
    pub what: String,
}

/// Entry of the legend.
#[derive(Clone, Debug)]
pub struct LegendEntry {
    /// Number in the palette.
    pub colour: usize,
    /// Description.
    pub name: String,
    /// Sample before the name.
    pub swatch: Swatch,
}

/// Sample before a name of the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swatch {
    /// Piece of a line.
    Line,
    /// Piece of a band.
    Band,
}

/// Medium of a drawing, which decides its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// File of its own, with title and footer.
    File,
    /// Page on a wide screen or on paper, which has the title itself.
    Page,
    /// Page on a telephone.
    Phone,
}

/// One axis of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Title with the unit.
    pub(crate) title: String,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// Labels are divided by the prefix.
    Linear(Prefix),
    /// From 0 to 1, labels in per cent.
    Share,
    /// Logarithmic, over whole decades.
    Decades,
}

impl Axis {
    /// From 0, or the smallest of `values`, to a little above the largest; in `unit`, with a prefix where that is
    /// shorter.
    pub fn linear(unit: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let (mut low, mut high) = (0.0_f64, 0.0_f64);
        for value in values.into_iter().map(drawable) {
            (low, high) = (low.min(value), high.max(value));
        }
        if high - low < SMALLEST {
            (low, high) = (0.0, 1.0);
        }
        let room = (high - low) * 0.06;
        let (low, high) = (if low < 0.0 { low - room } else { low }, high + room);
        let prefix = Prefix::of(low.abs().max(high) / 1.06);
        Self { title: prefixed(prefix, unit), low, high, scale: Scale::Linear(prefix) }
    }

    /// From 0 to exactly `end`.
    #[must_use]
    pub fn until(title: &str, end: f64) -> Self {
        let high = if drawable(end) > SMALLEST { drawable(end) } else { 1.0 };
        Self { title: title.into(), low: 0.0, high, scale: Scale::Linear(Prefix::ONE) }
    }

    /// Shares of a whole, 0 to 1.
    #[must_use]
    pub fn share(title: &str) -> Self {
        Self { title: title.into(), low: 0.0, high: 1.03, scale: Scale::Share }
    }

    /// Logarithmic, over all decades of the positive `values`.
    pub fn decades(title: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let positive = values.into_iter().filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) =
            positive.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if high == 0.0 { (0.1, 1000.0) } else { (low, high) };
        let (low, high) = (low.clamp(SMALLEST, LARGEST), high.clamp(SMALLEST, LARGEST));
        let low = 10_f64.powi(exponent(low));
        let next = 10_f64.powi(exponent(high));
        let high = if next >= high * 0.999_999 { next } else { next * 10.0 };
        let high = if high > low { high } else { low * 10.0 };
        Self { title: title.into(), low, high, scale: Scale::Decades }
    }

    /// Position of `value` on the axis, at its edge when it is outside.
    #[must_use]
    pub fn place(&self, value: f64) -> f64 {
        drawable(value).clamp(self.low, self.high)
    }

    /// Distance of `value` from the lower end, 0 to 1 of the length.
    pub(crate) fn fraction(&self, value: f64) -> f64 {
        let value = self.place(value);
        match self.scale {
            Scale::Decades => (value / self.low).log10() / (self.high / self.low).log10(),
            _ => (value - self.low) / (self.high - self.low),
        }
    }

    /// Label of a tick.
    pub(crate) fn label(&self, tick: f64) -> String {
        match self.scale {
            Scale::Linear(prefix) => short(tick / prefix.divisor),
            Scale::Share => format!("{} %", fixed(tick * 100.0, 0)),
            // Longer numbers do not fit.
            Scale::Decades if (1e-4..=1e6).contains(&tick) => short(tick),
            Scale::Decades => format!("{tick:.0e}"),
        }
    }
}

/// A finite number of bounded size.
fn drawable(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(-LARGEST, LARGEST) }
}

/// A unit with its prefix: `kB/s`. Words that take none get the number: `1000 packets/s`.
fn prefixed(prefix: Prefix, unit: &str) -> String {
    let unit = match unit {
        "bytes/s" => "B/s",
        "bits/s" => "bit/s",
        unit => unit,
    };
    match unit {
        unit if prefix == Prefix::ONE => unit.to_owned(),
        "B/s" | "bit/s" | "B" | "bit" => format!("{}{unit}", prefix.symbol),
        "" => format!("x {}", short(prefix.divisor)),
        unit => format!("{} {unit}", short(prefix.divisor)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_have_a_range_whatever_the_values_are() {
        let axis = Axis::linear("bytes/s", [41_000.0]);
        assert_eq!((axis.title.as_str(), axis.label(20_000.0)), ("kB/s", "20".to_owned()));
        for values in [vec![], vec![0.0], vec![f64::NAN], vec![f64::MAX], vec![-5.0, 5.0], vec![1e-9]] {
            let axis = Axis::linear("", values.clone());
            assert!(axis.low < axis.high && axis.high.is_finite(), "{values:?}");
        }
    }

    #[test]
    fn decades_hold_all_values() {
        let axis = Axis::decades("ms", [0.3, 100.0, 0.0, f64::INFINITY]);
        assert_eq!((axis.low, axis.high), (0.1, 100.0));
        assert_eq!([0.0, 1.0, 1e9].map(|ms| axis.place(ms)), [0.1, 1.0, 100.0]);
        assert!((axis.fraction(1.0) - 1.0 / 3.0).abs() < 1e-9);
        let ends = |values: &[f64]| {
            let axis = Axis::decades("ms", values.iter().copied());
            (axis.low, axis.high)
        };
        assert_eq!(ends(&[1.0]), (1.0, 10.0));
        assert_eq!(ends(&[]), (0.1, 1000.0));
        let (low, high) = ends(&[1e-300, 1e300]);
        assert!(low > 0.0 && high.is_finite());
    }
}
