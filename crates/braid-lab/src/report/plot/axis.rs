//! Axes: their ranges, and where their marks are.

use crate::report::number::{Prefix, exponent, fixed, short};

/// Beyond it numbers are drawn at the edge: nothing that is measured here is larger.
const LARGEST: f64 = 1e18;
/// The decades of an axis that is not told otherwise.
const FIRST_DECADES: (f64, f64) = (-1.0, 3.0);
/// What a round number begins with.
const DIGITS: [f64; 3] = [1.0, 2.0, 5.0];

/// One axis of a figure. Its values are those of the points, or their decimal logarithms.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    /// What it says, with the unit.
    pub(super) title: String,
    pub(super) low: f64,
    pub(super) high: f64,
    scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    /// Marks are divided by the prefix.
    Linear(Prefix),
    /// From 0 to 1, marks per hundred.
    Share,
    /// Values are logarithms.
    Decades,
}

impl Axis {
    /// From 0 or the smallest of `values` to a little over the largest; in `unit`, with a prefix where it helps.
    pub(super) fn linear(unit: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let (mut low, mut high) = (0.0_f64, 0.0_f64);
        for value in values.into_iter().map(drawable) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low == high {
            high = 1.0;
        }
        let room = (high - low) * 0.06;
        let (low, high) = (if low < 0.0 { low - room } else { low }, high + room);
        let prefix = Prefix::of(low.abs().max(high) / 1.06);
        Self { title: prefixed(prefix, unit), low, high, scale: Scale::Linear(prefix) }
    }

    /// From 0 to exactly `end` seconds.
    pub(super) fn seconds(end: f64) -> Self {
        let high = if drawable(end) > 0.0 { drawable(end) } else { 1.0 };
        Self { title: "seconds since the start".into(), low: 0.0, high, scale: Scale::Linear(Prefix::ONE) }
    }

    /// Shares of a whole.
    pub(super) fn share(title: &str) -> Self {
        Self { title: title.into(), low: 0.0, high: 1.03, scale: Scale::Share }
    }

    /// From a 1, 2 or 5 of some decade to another, around all positive `values`.
    pub(super) fn decades(title: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let positive = values.into_iter().filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) =
            positive.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) =
            if high == 0.0 { FIRST_DECADES } else { (round_down(low).log10(), round_up(high).log10()) };
        let high = if high > low { high } else { low + 1.0 };
        Self { title: title.into(), low, high, scale: Scale::Decades }
    }

    /// Where `value` is on the axis, at its edge when it is outside.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Decades if value > 0.0 => value.log10(),
            Scale::Decades => self.low,
            _ => value,
        };
        drawable(value).clamp(self.low, self.high)
    }

    /// At most about `wanted` marks.
    pub(super) fn marks(&self, wanted: u32) -> Vec<f64> {
        let range = self.high - self.low;
        match self.scale {
            Scale::Share => self.multiples(0.25),
            Scale::Linear(_) => self.multiples(round_up(range / f64::from(wanted))),
            Scale::Decades if range * 3.0 <= f64::from(wanted) => {
                let decades = (0..=wanted).map(|at| self.low.floor() + f64::from(at));
                let within = |mark: &f64| (self.low - 1e-9..=self.high + 1e-9).contains(mark);
                decades.flat_map(|decade| DIGITS.map(|digit| decade + digit.log10())).filter(within).collect()
            }
            Scale::Decades => self.multiples(round_up(range / f64::from(wanted)).max(1.0).round()),
        }
    }

    /// All multiples of `step` on the axis.
    fn multiples(&self, step: f64) -> Vec<f64> {
        const MOST: u32 = 100;
        let first = (self.low / step - 1e-9).ceil();
        let multiples = (0..MOST).map(|at| (first + f64::from(at)) * step);
        multiples.take_while(|mark| *mark <= self.high + step * 1e-9).collect()
    }

    /// What stands at a mark.
    pub(super) fn label(&self, mark: f64) -> String {
        match self.scale {
            Scale::Linear(prefix) => short(mark / prefix.divisor),
            Scale::Share => format!("{} %", fixed(mark * 100.0, 0)),
            // Beyond these a mark in full is longer than its place.
            Scale::Decades if (-4.0..=6.0).contains(&mark) => short(10_f64.powf(mark)),
            Scale::Decades => format!("1e{}", fixed(mark, 0)),
        }
    }
}

/// The first of ..., 1, 2, 5, 10, 20, ... that is not below a positive `value`.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powi(exponent(value));
    DIGITS
        .map(|digit| digit * power)
        .into_iter()
        .find(|round| *round >= value * 0.999_999)
        .unwrap_or(power * 10.0)
}

/// The last of them that is not above it.
fn round_down(value: f64) -> f64 {
    let power = 10_f64.powi(exponent(value));
    DIGITS.map(|digit| digit * power).into_iter().rfind(|round| *round <= value * 1.000_001).unwrap_or(power)
}

/// A number that can be drawn: no NaN, no infinity, nothing absurd.
fn drawable(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(-LARGEST, LARGEST) }
}

/// A unit with its prefix: `kB/s`; words that take none get the number: `1000 packets/s`.
fn prefixed(prefix: Prefix, unit: &str) -> String {
    let unit = match unit {
        "bytes/s" => "B/s",
        "bits/s" | "bit/s" => "bit/s",
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
    fn marks_are_round_and_few() {
        let axis = Axis::linear("messages/s", [0.0, 12.0]);
        assert_eq!(labels(&axis, 4), ["0", "5", "10"]);
        let axis = Axis::linear("bytes/s", [41_000.0]);
        assert_eq!(axis.title, "kB/s");
        assert_eq!(labels(&axis, 3), ["0", "20", "40"]);
        for values in [vec![], vec![0.0], vec![f64::NAN], vec![f64::MAX], vec![-5.0, 5.0], vec![1e-9]] {
            let axis = Axis::linear("", values.clone());
            assert!((2..=6).contains(&axis.marks(4).len()), "{values:?}: {:?}", axis.marks(4));
            assert!(axis.low < axis.high);
        }
    }

    fn labels(axis: &Axis, wanted: u32) -> Vec<String> {
        axis.marks(wanted).iter().map(|mark| axis.label(*mark)).collect()
    }

    #[test]
    fn decades_hold_all_values() {
        let axis = Axis::decades("ms", [0.3, 100.0, 0.0, f64::INFINITY]);
        assert_eq!(labels(&axis, 3), ["1", "10", "100"]);
        assert_eq!([0.0, 1.0, 1e9].map(|ms| axis.place(ms)), [axis.low, 0.0, 2.0]);
        let axis = Axis::decades("ms", [21.0, 300.0]);
        assert_eq!(labels(&axis, 10), ["20", "50", "100", "200", "500"]);
        assert_eq!(labels(&Axis::decades("ms", [1.0]), 10), ["1", "2", "5", "10"]);
        assert_eq!(labels(&Axis::decades("ms", []), 4), ["0.1", "1", "10", "100", "1000"]);
        assert!(Axis::decades("ms", [1e-300, 1e300]).marks(8).len() < 10);
    }
}
