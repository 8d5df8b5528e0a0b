//! Where the parts of a picture stand.

use super::figure::Figure;
use crate::report::text;

/// Where a picture is shown, and so how wide it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A file of its own, with its title.
    File,
    /// A page on a desk or on paper, which says the title itself.
    Page,
    /// A page on a telephone.
    Phone,
}

impl Format {
    pub(super) fn width(self) -> u32 {
        if self == Self::Phone { 380 } else { 900 }
    }

    pub(super) fn margin(self) -> u32 {
        if self == Self::Phone { 8 } else { 18 }
    }

    /// Right of the plotting area: half of the last mark's label, where the margin has no room for it.
    pub(super) fn x_room(self) -> u32 {
        if self == Self::Phone { 14 } else { 10 }
    }

    /// Marks on the x axis.
    pub(super) fn marks(self) -> u32 {
        if self == Self::Phone { 5 } else { 10 }
    }
}

pub(super) const TEXT: u32 = 13;
pub(super) const HEADING: u32 = 14;
pub(super) const TITLE: u32 = 18;
pub(super) const LINE_HEIGHT: u32 = 20;
/// Left of the plotting area: the y axis's title and labels.
pub(super) const Y_LABELS: u32 = 58;
/// Below the last panel: the x axis's labels.
pub(super) const X_LABELS: u32 = 26;
/// Below other panels.
pub(super) const PANEL_GAP: u32 = 12;

/// Where things are, in pixels from the top.
pub(super) struct Layout {
    pub(super) format: Format,
    pub(super) width: u32,
    pub(super) height: u32,
    /// Rows of the title.
    pub(super) title: Vec<String>,
    /// Where each name of the legend begins.
    pub(super) legend: Vec<(u32, u32)>,
    /// Where each panel begins, with its heading.
    pub(super) panels: Vec<u32>,
    /// The rows of each panel's note below its heading; none where the note stands beside it.
    pub(super) notes: Vec<Vec<String>>,
    /// From the beginning of a panel to its plotting area.
    pub(super) heading_height: u32,
    pub(super) x_title: u32,
    /// Rows of the footer and where they begin.
    pub(super) footer: Vec<String>,
    pub(super) footer_at: u32,
}

impl Layout {
    pub(super) fn of(figure: &Figure, format: Format) -> Self {
        let (width, margin) = (format.width(), format.margin());
        let mut y = margin;
        let title = match format {
            Format::File => text::wrapped(&figure.title, letters(width - 2 * margin, TITLE)),
            Format::Page | Format::Phone => Vec::new(),
        };
        y += rows(&title) * (TITLE + 8);
        let (legend, legend_height) = place_legend(figure, width, margin, y);
        y += legend_height;
        let notes = match format {
            Format::File | Format::Page => vec![Vec::new(); figure.panels.len()],
            Format::Phone => {
                let letters = letters(width - 2 * margin, TEXT);
                figure.panels.iter().map(|panel| text::wrapped(&panel.note, letters)).collect()
            }
        };
        let heading_height =
            LINE_HEIGHT * (1 + notes.iter().map(|rows_of| rows(rows_of)).max().unwrap_or(0)) + 6;
        let mut panels = Vec::new();
        for _ in &figure.panels {
            panels.push(y);
            y += heading_height + figure.panel_height + PANEL_GAP;
        }
        y = y + X_LABELS - PANEL_GAP;
        let x_title = y;
        y += LINE_HEIGHT;
        let footer = match format {
            Format::File => text::wrapped(&figure.footer, letters(width - 2 * margin, TEXT)),
            Format::Page | Format::Phone => Vec::new(),
        };
        let footer_at = y + 6;
        if !footer.is_empty() {
            y = footer_at + rows(&footer) * LINE_HEIGHT;
        }
        Self {
            format,
            width,
            height: y + margin / 2,
            title,
            legend,
            panels,
            notes,
            heading_height,
            x_title,
            footer,
            footer_at,
        }
    }
}

pub(super) fn rows(lines: &[String]) -> u32 {
    u32::try_from(lines.len()).unwrap_or(u32::MAX / 100)
}

/// How many letters of a size are about as wide as `width`.
pub(super) fn letters(width: u32, size: u32) -> usize {
    (width * 100 / (size * 54)) as usize
}

/// About how wide a text is: what shows it has other fonts than what draws it.
pub(super) fn text_width(text: &str, size: u32) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(1000).min(1000) * size * 54 / 100
}

/// Where the names of the legend stand, row by row, and how high they are together.
fn place_legend(figure: &Figure, width: u32, margin: u32, top: u32) -> (Vec<(u32, u32)>, u32) {
    let (mut x, mut y) = (margin, top);
    let mut places = Vec::new();
    for entry in &figure.legend {
        let wide = 26 + text_width(&legend_name(&entry.name), TEXT) + 18;
        if x > margin && x + wide > width - margin {
            (x, y) = (margin, y + LINE_HEIGHT);
        }
        places.push((x, y));
        x += wide;
    }
    let height = if places.is_empty() { 0 } else { y - top + LINE_HEIGHT + 4 };
    (places, height)
}

pub(super) fn legend_name(name: &str) -> String {
    text::shortened(name, 40)
}
