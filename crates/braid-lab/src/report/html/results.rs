//! The table and the bounds.

use super::{heads, number_table};
use crate::report::number::NONE;
use crate::report::text::Escaped;
use crate::report::{Column, Profile, Reference, Report, Variant};

/// The numbers: a table for each profile, a row for each variant.
pub(super) fn section(report: &Report) -> String {
    let tables: String = report.profiles_run().map(|profile| profile_table(report, profile)).collect();
    if tables.is_empty() {
        return "<section>\n<h2>Results</h2>\n<p>Nothing was compared.</p>\n</section>\n".into();
    }
    let mut reading = "The number is the median over the usable runs".to_owned();
    reading.push_str(", with the smallest and the largest below it where runs differ.");
    if !report.published.is_empty() {
        reading.push_str(" What others published for the same stands below in grey.");
    }
    if !report.references.is_empty() {
        reading.push_str(" Rows in grey were not measured here: they say where they are from.");
    }
    format!("<section>\n<h2>Results</h2>\n<p class=\"quiet\">{reading}</p>\n{tables}</section>\n")
}

fn profile_table(report: &Report, profile: &Profile) -> String {
    let columns: String = report
        .columns
        .iter()
        .map(|column| {
            let unit = match column.unit.as_str() {
                "" => String::new(),
                unit => format!(" <span class=\"unit\">{}</span>", Escaped(unit)),
            };
            format!("<th scope=\"col\">{}{unit}</th>", Escaped(&column.title))
        })
        .collect();
    let head = format!("{}{columns}{}", heads(["Variant"]), heads(["Runs used"]));
    let body: String =
        report.variants_on(&profile.name).map(|variant| variant_row(report, profile, variant)).collect();
    let references: String =
        report.references_on(&profile.name).map(|row| reference_row(report, row)).collect();
    let body = body + &references;
    let links: String = profile
        .links
        .iter()
        .map(|(link, shape)| {
            let shape = if shape.is_empty() { "unchanged" } else { shape };
            format!("<span class=\"link\">{} <code>{}</code></span> ", Escaped(link), Escaped(shape))
        })
        .collect();
    let links = if links.is_empty() { links } else { format!("<p class=\"quiet\">Links: {links}</p>\n") };
    format!(
        "<h3>{}</h3>\n{links}{}",
        Escaped(&profile.title),
        number_table(&format!("Results, {}", profile.title), &head, &body)
    )
}

/// Figures that were not measured here.
fn reference_row(report: &Report, reference: &Reference) -> String {
    let shown = |column: &Column| {
        let value = reference.values.get(&column.metric).map_or(NONE.into(), |value| column.shown(*value));
        format!("<td><span class=\"published\">{value}</span></td>")
    };
    let cells: String = report.columns.iter().map(shown).collect();
    format!(
        "<tr class=\"reference\"><th scope=\"row\">{}</th>{cells}<td class=\"runs\">{NONE}</td></tr>\n",
        Escaped(&reference.title)
    )
}

fn variant_row(report: &Report, profile: &Profile, variant: &Variant) -> String {
    let all = report.runs_of(&variant.name, &profile.name).count();
    let usable = report.usable(&variant.name, &profile.name).count();
    let cells: String = report.columns.iter().map(|column| cell(report, profile, variant, column)).collect();
    format!(
        "<tr><th scope=\"row\">{}</th>{cells}<td class=\"runs\">{usable} of {all}</td></tr>\n",
        Escaped(&variant.title)
    )
}

fn cell(report: &Report, profile: &Profile, variant: &Variant, column: &Column) -> String {
    let spread = report.spread(&variant.name, &profile.name, &column.metric);
    let mut cell = match spread {
        None => format!("<span class=\"value\" title=\"not measured\">{NONE}</span>"),
        Some(spread) => format!("<span class=\"value\">{}</span>", column.shown(spread.median)),
    };
    if let Some(range) = spread.and_then(|spread| column.range(spread)) {
        cell.push_str(&format!("<span class=\"range\">{range}</span>"));
    }
    if let Some(published) = report.published(&profile.name, &variant.name, &column.metric) {
        cell.push_str(&format!("<span class=\"published\">published {}</span>", column.shown(published)));
    }
    format!("<td>{cell}</td>")
}

/// Which bounds hold, those that do not first.
pub(super) fn checks(report: &Report) -> String {
    if report.checks.is_empty() {
        return String::new();
    }
    let mut checks: Vec<_> = report.checks.iter().collect();
    checks.sort_by_key(|check| check.holds);
    let items: String = checks
        .into_iter()
        .map(|check| {
            let (class, sign, word) =
                if check.holds { ("good", '✓', "held") } else { ("bad", '✗', "failed") };
            format!(
                "<li class=\"{class}\"><strong><span aria-hidden=\"true\">{sign}</span> {word}</strong> {}</li>\n",
                Escaped(&check.bound)
            )
        })
        .collect();
    format!(
        "<section>\n<h2>Bounds</h2>\n<p class=\"quiet\">What the scenario demands of its medians.</p>\n\
         <ul class=\"checks\">\n{items}</ul>\n</section>\n"
    )
}
