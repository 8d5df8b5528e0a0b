//! What a picture shows, before it is drawn.

use super::axis::Axis;
use super::moment::Moment;

/// Panels under each other with a common x axis, mostly a common y axis, and a common legend.
pub(crate) struct Figure {
    /// The name of its file, without the ending until all are known.
    pub(crate) file: String,
    /// What it shows.
    pub(crate) title: String,
    /// How to read it, a sentence or two.
    pub(crate) reading: String,
    /// Which runs are shown.
    pub(crate) footer: String,
    /// The names of the lines.
    pub(super) legend: Vec<Entry>,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) panels: Vec<Panel>,
    /// The height of a panel's plotting area in pixels.
    pub(super) panel_height: u32,
}

/// One coordinate system.
pub(super) struct Panel {
    /// What it is about.
    pub(super) heading: String,
    /// Key numbers, quiet, beside the heading.
    pub(super) note: String,
    /// What stands there instead of lines.
    pub(super) absent: Option<String>,
    /// Its own y axis, where the figure's is not that of this panel.
    pub(super) y: Option<Axis>,
    /// The colours of its ground.
    pub(super) bands: Vec<Band>,
    pub(super) lines: Vec<Line>,
    /// What happened meanwhile, in the order of time.
    pub(super) moments: Vec<Moment>,
}

/// A part of a panel whose ground is tinted.
pub(super) struct Band {
    pub(super) from: f64,
    pub(super) to: f64,
    /// Its number in the palette.
    pub(super) colour: usize,
}

pub(super) struct Line {
    /// Its number in the palette.
    pub(super) colour: usize,
    /// In the units of the axes' values.
    pub(super) points: Vec<(f64, f64)>,
    /// Whether the area below it is tinted.
    pub(super) filled: bool,
    /// Whether a dot marks where it ends.
    pub(super) ends: bool,
}

/// A line of the legend.
pub(super) struct Entry {
    /// Its number in the palette.
    pub(super) colour: usize,
    pub(super) name: String,
    pub(super) swatch: Swatch,
}

/// What stands before a name of the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Swatch {
    Line,
    /// Of a tinted ground.
    Ground,
}
