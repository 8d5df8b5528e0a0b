//! The pictures, each with how to read it.

use crate::report::Report;
use crate::report::plot::{Figure, Format, figures};
use crate::report::text::Escaped;

/// All pictures, profile by profile.
pub(super) fn section(report: &Report) -> String {
    let pictures: String = figures(report).iter().flat_map(|(_, figures)| figures).map(picture).collect();
    if pictures.is_empty() {
        return String::new();
    }
    format!("<section>\n<h2>Pictures</h2>\n{pictures}</section>\n")
}

/// The same picture twice, for wide and for narrow pages: one that is only scaled cannot be read on a telephone.
fn picture(figure: &Figure) -> String {
    format!(
        "<figure>\n<h3>{}</h3>\n<p>{}</p>\n<div class=\"plot wide\">\n{}</div>\n<div class=\"plot narrow\">\n{}</div>\n\
         <figcaption>{}</figcaption>\n</figure>\n",
        Escaped(&figure.title),
        Escaped(&figure.reading),
        figure.svg(Format::Page),
        figure.svg(Format::Phone),
        Escaped(&figure.footer)
    )
}
