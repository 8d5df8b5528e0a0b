//! Colours that people tell apart however they see colours: Okabe and Ito, "Color Universal Design" (2008), the darkest
//! first and without the yellow, which is faint on white.

use plotters::style::RGBColor;

pub(super) const PAPER: RGBColor = RGBColor(255, 255, 255);
pub(super) const INK: RGBColor = RGBColor(28, 32, 38);
pub(super) const QUIET_INK: RGBColor = RGBColor(92, 99, 110);
pub(super) const MESH: RGBColor = RGBColor(228, 231, 235);
pub(super) const AXIS: RGBColor = RGBColor(150, 156, 165);

const LINES: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];

/// The colour of a number; from the eighth on they come again, paler.
pub(super) fn line(number: usize) -> RGBColor {
    let RGBColor(red, green, blue) = LINES[number % LINES.len()];
    let pale = |part: u8| if number < LINES.len() { part } else { 255 - (255 - part) / 2 };
    RGBColor(pale(red), pale(green), pale(blue))
}
