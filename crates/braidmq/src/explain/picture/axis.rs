//! Scales.

use super::super::number::float;
use super::column::nice_above;
use super::svg::Svg;
use super::{LEFT, RIGHT};

/// Where a chart stands.
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

/// From 0 at the bottom of a frame to a round number at or below its top.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    frame: Frame,
    most: f64,
    step: f64,
}

impl Scale {
    /// For bytes up to `most`.
    pub(super) fn bytes(frame: Frame, most: u64) -> Self {
        let most = float(most.max(1));
        Self { frame, most, step: nice_above(most / 5.0).max(1.0) }
    }

    /// Pixels above the bottom; what is too much ends at the top.
    pub(super) fn height(self, bytes: f64) -> f64 {
        self.frame.height * (bytes / self.most).clamp(0.0, 1.0)
    }

    /// Lines with numbers at the left, and the name above them.
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

/// Bytes as one says them.
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
