//! Charts of a report, as SVG.

mod gate;
mod latency;
mod time;

use braid_measure::{Chart, Format, text};

use super::{Profile, Report, Run, SeriesKind};

/// Chart with its file and its explanation.
pub(super) struct Figure {
    /// Name of the file, without the extension until all are known.
    file: String,
    /// Explanation for readers, a sentence or two.
    pub(super) reading: String,
    pub(super) chart: Chart,
}

/// File of the chart of all variants.
const OVERVIEW: &str = "overview.svg";

/// Chart of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    /// Name of its file: `rate-lan.svg`.
    pub file: String,
    /// Title, one line.
    pub title: String,
    /// SVG document on white ground, its texts as text.
    pub svg: String,
}

/// Charts of every profile: messages per second, latencies, packets of links, bytes per stream, gates, and other
/// series. Empty ones are omitted. Each variant is shown by its first usable run, whose seed the chart names.
pub fn plots(report: &Report) -> Vec<Plot> {
    figures(report).into_iter().flat_map(|(_, figures)| figures).map(|figure| figure.plot()).collect()
}

/// Chart of all variants: messages per second on the first profile that has them, with key figures.
pub fn overview(report: &Report) -> Option<Plot> {
    let found = report.profiles.iter().find_map(|profile| {
        time::figure(report, profile, SeriesKind::Rate, None).map(|figure| (profile, figure))
    });
    let (profile, mut figure) = found?;
    figure.chart.title.clone_from(&report.title);
    figure.file = OVERVIEW.into();
    figure.chart.footer = format!(
        "{}. {} Made by: {}",
        text::line(&profile.title),
        figure.chart.footer,
        text::line(&report.command)
    );
    Some(figure.plot())
}

/// Figures of each profile.
pub(super) fn figures(report: &Report) -> Vec<(&Profile, Vec<Figure>)> {
    let of = |profile| {
        let mut figures = Vec::new();
        figures.extend(time::figure(report, profile, SeriesKind::Rate, None));
        figures.extend(latency::figure(report, profile));
        figures.extend(time::figure(report, profile, SeriesKind::Link, None));
        figures.extend(time::figure(report, profile, SeriesKind::Stream, None));
        figures.extend(gate::figure(report, profile));
        for unit in time::other_units(report, profile) {
            figures.extend(time::figure(report, profile, SeriesKind::Other, Some(unit)));
        }
        figures
    };
    let mut all: Vec<(&Profile, Vec<Figure>)> =
        report.profiles.iter().map(|profile| (profile, of(profile))).collect();
    let mut taken = std::collections::BTreeSet::new();
    for figure in all.iter_mut().flat_map(|(_, figures)| figures) {
        figure.file = free_name(&figure.file, |name| taken.insert(name.to_owned()));
    }
    all
}

impl Figure {
    /// SVG for pages on a wide screen or on paper.
    pub(super) fn wide(&self) -> String {
        self.chart.svg(Format::Page)
    }

    /// SVG for pages on a telephone.
    pub(super) fn narrow(&self) -> String {
        self.chart.svg(Format::Phone)
    }

    fn plot(&self) -> Plot {
        Plot { file: self.file.clone(), title: self.chart.title.clone(), svg: self.chart.svg(Format::File) }
    }
}

/// Prefixes of the file names of charts.
const KINDS: [&str; 6] = ["rate", "latency", "link", "streams", "gate", "other"];

/// Whether this is a file name of a chart.
pub(super) fn is_chart(file: &str) -> bool {
    let Some(stem) = file.strip_suffix(".svg") else { return false };
    let of_profile = stem.split_once('-').is_some_and(|(kind, _)| KINDS.contains(&kind));
    file == OVERVIEW || (of_profile && stem.chars().map(plain).eq(stem.chars()))
}

/// First of `name.svg`, `name-2.svg`, ... that `take` accepts.
fn free_name(name: &str, mut take: impl FnMut(&str) -> bool) -> String {
    let stem: String = name.chars().map(plain).take(80).collect();
    let mut file = format!("{stem}.svg");
    let mut number = 2;
    while !take(&file) {
        file = format!("{stem}-{number}.svg");
        number += 1;
    }
    file
}

/// Character replaced for file names.
fn plain(c: char) -> char {
    if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c.to_ascii_lowercase() } else { '-' }
}

/// Run that represents a variant in charts; a median of curves would be a run that never was.
pub(super) fn shown_run<'a>(report: &'a Report, variant: &'a str, profile: &'a str) -> Option<&'a Run> {
    report.usable(variant, profile).next()
}

/// Text that names the runs of a chart.
fn shown_seeds(report: &Report, profile: &Profile) -> String {
    let runs = report.variants.iter().filter_map(|variant| {
        let run = shown_run(report, &variant.name, &profile.name)?;
        let repetition = match run.repetition {
            0 | 1 => String::new(),
            later => format!(", repetition {later}"),
        };
        Some((variant.title.as_str(), format!("seed {}{repetition}", run.seed)))
    });
    let runs: Vec<(&str, String)> = runs.collect();
    let seeds = match runs.split_first() {
        None => return String::new(),
        Some(((_, first), rest)) if rest.iter().all(|(_, seed)| seed == first) => first.clone(),
        Some(_) => runs.iter().map(|(title, seed)| format!("{title}: {seed}")).collect::<Vec<_>>().join("; "),
    };
    text::line(&format!("First usable run of each variant ({seeds})."))
}
