//! The pictures of a report, as SVG.

mod axis;
mod draw;
mod figure;
mod gate;
mod latency;
mod layout;
mod marked;
mod moment;
mod palette;
mod time;

pub(super) use figure::Figure;
pub(super) use layout::Format;

use super::{Profile, Report, Run, SeriesKind, text};

/// The file of the picture of all variants.
const OVERVIEW: &str = "overview.svg";

/// A picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    /// The name of its file: `rate-lan.svg`.
    pub file: String,
    /// What it shows, one line.
    pub title: String,
    /// The picture: a whole SVG document on a white ground, text as text.
    pub svg: String,
}

/// The pictures of every profile: messages per second, latencies, what the links did, bytes per stream, what gates
/// knew, and whatever else was recorded over time. Those without anything to show are left out.
///
/// Each variant is shown by its first usable run, which the picture names by its seed.
pub fn plots(report: &Report) -> Vec<Plot> {
    figures(report).into_iter().flat_map(|(_, figures)| figures).map(|figure| figure.plot()).collect()
}

/// One picture of all variants: messages per second on the first profile that has them, with the key numbers.
pub fn overview(report: &Report) -> Option<Plot> {
    let found = report.profiles.iter().find_map(|profile| {
        time::figure(report, profile, SeriesKind::Rate, None).map(|figure| (profile, figure))
    });
    let (profile, mut figure) = found?;
    figure.title.clone_from(&report.title);
    figure.file = OVERVIEW.into();
    figure.footer =
        format!("{}. {} Made by: {}", text::line(&profile.title), figure.footer, text::line(&report.command));
    Some(figure.plot())
}

/// What is to be drawn for each profile.
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
    fn plot(&self) -> Plot {
        Plot { file: self.file.clone(), title: self.title.clone(), svg: self.svg(Format::File) }
    }
}

/// What the file names of the pictures of a profile begin with.
const KINDS: [&str; 6] = ["rate", "latency", "link", "streams", "gate", "other"];

/// Whether a picture of some report could have this file name.
pub(super) fn is_picture(file: &str) -> bool {
    let Some(stem) = file.strip_suffix(".svg") else { return false };
    let of_profile = stem.split_once('-').is_some_and(|(kind, _)| KINDS.contains(&kind));
    file == OVERVIEW || (of_profile && stem.chars().map(plain).eq(stem.chars()))
}

/// `name.svg`, `name-2.svg`, ...: the first that `take` takes.
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

/// A character as file names have it.
fn plain(c: char) -> char {
    if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c.to_ascii_lowercase() } else { '-' }
}

/// The run that stands for a variant in the pictures. A median of curves would be a run that never was.
pub(super) fn shown_run<'a>(report: &'a Report, variant: &'a str, profile: &'a str) -> Option<&'a Run> {
    report.usable(variant, profile).next()
}

/// Which runs a picture of a profile shows.
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
