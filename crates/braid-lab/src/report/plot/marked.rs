//! An axis as plotters wants it, with our own marks: its own are as many as fit, not as many as help.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;

use super::axis::Axis;

pub(super) struct Marked<'a> {
    axis: &'a Axis,
    coordinate: RangedCoordf64,
    marks: Vec<f64>,
    labelled: bool,
}

impl<'a> Marked<'a> {
    /// At most about `wanted` marks, with words or without.
    pub(super) fn new(axis: &'a Axis, wanted: u32, labelled: bool) -> Self {
        Self { axis, coordinate: (axis.low..axis.high).into(), marks: axis.marks(wanted), labelled }
    }
}

impl Ranged for Marked<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, pixels: (i32, i32)) -> i32 {
        self.coordinate.map(value, pixels)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Lighter lines between the marks are asked for in the same way.
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.axis.low..self.axis.high
    }
}

impl ValueFormatter<f64> for Marked<'_> {
    fn format_ext(&self, mark: &f64) -> String {
        if self.labelled { self.axis.label(*mark) } else { String::new() }
    }
}
