//! SVG text.

use std::fmt::Write as _;

/// Equally far from black and from white, so that it can be read on both: 4.5 to 1.
const INK: &str = "#767676";

/// A document that grows.
#[derive(Default)]
pub(super) struct Svg(String);

impl Svg {
    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str, opacity: f64) {
        let _ = write!(self.0, r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}""#);
        self.fill(colour, opacity);
    }

    fn fill(&mut self, colour: &str, opacity: f64) {
        let _ = write!(self.0, r#" fill="{colour}""#);
        if opacity < 1.0 {
            let _ = write!(self.0, r#" fill-opacity="{opacity:.2}""#);
        }
        self.0.push_str("/>\n");
    }

    pub(super) fn ink(&mut self, x: f64, y: f64, width: f64, height: f64, opacity: f64) {
        self.rect(x, y, width, height, INK, opacity);
    }

    /// `anchor`: start, middle or end.
    pub(super) fn text(&mut self, x: f64, y: f64, anchor: &str, size: u32, text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.0,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" text-anchor="{anchor}">{text}</text>"#
        );
    }

    pub(super) fn line(&mut self, points: &[(f64, f64)], colour: &str, dashes: bool) {
        let dashes = if dashes { r#" stroke-dasharray="4 3""# } else { "" };
        let _ =
            write!(self.0, r#"<polyline fill="none" stroke="{colour}" stroke-width="1.5"{dashes} points=""#);
        for (x, y) in points {
            let _ = write!(self.0, "{x:.1},{y:.1} ");
        }
        self.0.push_str("\"/>\n");
    }

    /// A group with a class, and with a text that is shown when the pointer rests on it.
    pub(super) fn group(&mut self, class: &str, title: &str, draw: impl FnOnce(&mut Self)) {
        let title = escaped(title);
        let _ = write!(self.0, r#"<g class="{class}">"#);
        if !title.is_empty() {
            let _ = write!(self.0, "<title>{title}</title>");
        }
        draw(self);
        self.0.push_str("</g>\n");
    }

    pub(super) fn document(self, width: f64, height: f64) -> String {
        let content = self.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" \
             fill=\"{INK}\" shape-rendering=\"crispEdges\">\n{content}</svg>\n"
        )
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // XML has no place for them.
            _ if character.is_control() && character != '\n' => out.push('\u{FFFD}'),
            '\u{FFFE}' | '\u{FFFF}' => out.push('\u{FFFD}'),
            _ => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("a<b>&\u{1b}\nc"), "a&lt;b&gt;&amp;\u{FFFD}\nc");
    }
}
