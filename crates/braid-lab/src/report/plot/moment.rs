//! Events on the x axis, with words where there is room for them.

use super::figure::{Figure, Panel};
use super::layout::text_width;
use crate::report::text;

/// The size of the words in pixels.
pub(super) const SIZE: u32 = 12;
/// Between an event's line and its words.
const GAP: f64 = 5.0;
/// How long the words may be: the first that fits.
const LENGTHS: [usize; 3] = [64, 40, 24];
/// The part of a panel's height that its lines may fill where words stand above them.
const FREE_ABOVE: f64 = 0.74;

/// Something that happened in a run.
pub(super) struct Moment {
    /// Where on the x axis.
    pub(super) at: f64,
    pub(super) what: String,
}

/// Words at the top of a panel.
pub(super) struct Label {
    /// Where they begin, or end if they stand to the left of the line; pixels from the left of the plotting area.
    pub(super) anchor: u32,
    pub(super) to_the_left: bool,
    pub(super) words: String,
}

/// The words of those moments beside which, on either side, neither a line nor another moment is in the way.
pub(super) fn labels(figure: &Figure, panel: &Panel, width: u32) -> Vec<Label> {
    let (x, y) = (&figure.x, panel.y.as_ref().unwrap_or(&figure.y));
    let per_unit = f64::from(width) / (x.high - x.low);
    let pixel = |at: f64| (x.place(at) - x.low) * per_unit;
    let highest = y.low + (y.high - y.low) * FREE_ABOVE;
    let in_the_way = |left: f64, right: f64| {
        let stairs = panel.lines.iter().flat_map(|line| line.points.windows(2));
        stairs.into_iter().any(|step| {
            let [(from, a), (to, b)] = [step[0], step[1]];
            pixel(to) >= left && pixel(from) <= right && y.place(a.max(b)) > highest
        })
    };
    let mut labels: Vec<Label> = Vec::new();
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for (number, moment) in panel.moments.iter().enumerate() {
        let at = pixel(moment.at);
        let fits = |left: f64, right: f64| {
            let other = |(other, moment): (usize, &Moment)| {
                other != number && (left - GAP..=right + GAP).contains(&pixel(moment.at))
            };
            left >= GAP
                && right <= f64::from(width)
                && !panel.moments.iter().enumerate().any(other)
                && !taken.iter().any(|(from, to)| *from <= right + GAP && left - GAP <= *to)
                && !in_the_way(left, right)
        };
        let found = LENGTHS.into_iter().find_map(|length| {
            let words = text::shortened(&moment.what, length);
            let wide = f64::from(text_width(&words, SIZE));
            let sides = [(at + GAP, at + GAP + wide), (at - GAP - wide, at - GAP)];
            sides.into_iter().find(|(left, right)| fits(*left, *right)).map(|side| (side, words))
        });
        if let Some((side, words)) = found {
            taken.push(side);
            let to_the_left = side.0 < at;
            let anchor = whole(if to_the_left { side.1 } else { side.0 }, width);
            labels.push(Label { anchor, to_the_left, words });
        }
    }
    labels
}

/// A number of pixels between 0 and `width`.
fn whole(pixels: f64, width: u32) -> u32 {
    (0..=width).find(|whole| f64::from(*whole) >= pixels).unwrap_or(width)
}
