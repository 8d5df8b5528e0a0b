//! Comparison of two reports of a scenario.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use braid_measure::number::{NONE, short};
use braid_measure::{Alignment, Table, text};
use serde::{Deserialize, Serialize};

use super::table::LONGEST_NAME;
use super::{Column, Report, ReportError, Spread};

/// Differences between two reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// First report.
    pub a: Side,
    /// Second report.
    pub b: Side,
    /// Differing circumstances, possible causes: `kernel: Linux 6.12 and Linux 6.18`.
    pub differences: Vec<String>,
    /// One row for each variant, profile and metric of both.
    pub rows: Vec<ComparedMetric>,
}

/// Side of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Name of the scenario.
    pub scenario: String,
    /// Start time, RFC 3339.
    pub started: String,
    /// Version of braidmq.
    pub version: String,
}

/// Metric of a variant on a profile in both reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedMetric {
    /// Name of the variant.
    pub variant: String,
    /// Name of the profile.
    pub profile: String,
    /// Column of the first report, otherwise of the second.
    pub column: Column,
    /// Usable runs of the first report; `None` without the metric.
    pub a: Option<Spread>,
    /// Usable runs of the second report; `None` without the metric.
    pub b: Option<Spread>,
    /// Second median divided by the first; `None` if one is missing or infinite, or the first is 0.
    pub ratio: Option<f64>,
    /// Whether the ranges overlap; `None` if a side has fewer than two runs.
    pub overlap: Option<bool>,
}

/// Compares the medians of all variants on profiles that are in both reports, by the columns of either.
///
/// # Errors
///
/// The schemas differ, or there is nothing in common.
pub fn compare(a: &Report, b: &Report) -> Result<Comparison, ReportError> {
    if a.schema != b.schema {
        return Err(ReportError(format!(
            "the first report has the schema {:?}, the second {:?}: compare reports of one version of the schema",
            a.schema, b.schema
        )));
    }
    let new_columns = b.columns.iter().filter(|new| a.columns.iter().all(|old| old.metric != new.metric));
    let columns: Vec<&Column> = a.columns.iter().chain(new_columns).collect();
    let mut rows = Vec::new();
    for profile in &a.profiles {
        for variant in &a.variants {
            let ran = |report: &Report| report.runs_of(&variant.name, &profile.name).next().is_some();
            if ran(a) && ran(b) {
                let metrics = columns
                    .iter()
                    .map(|column| ComparedMetric::of(a, b, &variant.name, &profile.name, column));
                rows.extend(metrics.filter(|row| row.a.is_some() || row.b.is_some()));
            }
        }
    }
    if rows.is_empty() {
        return Err(ReportError(format!(
            "the reports of {:?} and {:?} have no variant, profile and column in common: compare two reports of one \
             scenario",
            a.scenario, b.scenario
        )));
    }
    Ok(Comparison { a: Side::of(a), b: Side::of(b), differences: differences(a, b), rows })
}

impl Side {
    fn of(report: &Report) -> Self {
        Self {
            scenario: report.scenario.clone(),
            started: report.started.clone(),
            version: report.version.clone(),
        }
    }
}

impl ComparedMetric {
    fn of(a: &Report, b: &Report, variant: &str, profile: &str, column: &Column) -> Self {
        let [a, b] = [a, b].map(|report| report.spread(variant, profile, &column.metric));
        let both = a.zip(b);
        Self {
            variant: variant.to_owned(),
            profile: profile.to_owned(),
            column: column.clone(),
            a,
            b,
            ratio: both
                .filter(|(a, b)| a.median.is_finite() && b.median.is_finite())
                .map(|(a, b)| b.median / a.median)
                .filter(|ratio| ratio.is_finite()),
            overlap: both.filter(|(a, b)| a.count > 1 && b.count > 1).map(|(a, b)| a.overlaps(&b)),
        }
    }
}

/// Differing circumstances, as text.
fn differences(a: &Report, b: &Report) -> Vec<String> {
    let pairs = CIRCUMSTANCES.iter().map(|(what, words)| (what, words(a), words(b)));
    let differing = pairs.filter(|(_, a, b)| a != b);
    differing.map(|(what, a, b)| format!("{what}: {} and {}", text::line(&a), text::line(&b))).collect()
}

type WordsOf = fn(&Report) -> String;

/// Circumstances that may cause different numbers.
const CIRCUMSTANCES: &[(&str, WordsOf)] = &[
    ("scenario", |report| report.scenario.clone()),
    ("form", |report| if report.quick { "short" } else { "full" }.into()),
    ("duration", duration),
    ("seeds", seeds),
    ("replaced programs", replaced),
    ("links", links),
    ("braidmq", |report| report.version.clone()),
    ("kernel", |report| report.machine.kernel.clone()),
    ("processor", |report| report.machine.processor.clone()),
    ("cores", |report| report.machine.cores.to_string()),
    ("load per core", load_per_core),
    ("congestion control of TCP", |report| report.machine.tcp_congestion_control.clone()),
    ("wire", |report| report.machine.wire.clone()),
    ("offloads", |report| listed(report.machine.offloads.iter().cloned(), "all off")),
    ("privileges", |report| report.machine.privileges.clone()),
    ("selftest", selftest),
];

fn duration(report: &Report) -> String {
    if report.duration > 0.0 { format!("{} s", short(report.duration)) } else { "not known".into() }
}

fn seeds(report: &Report) -> String {
    let seeds: BTreeSet<u64> = report.runs.iter().map(|run| run.seed).collect();
    seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

fn replaced(report: &Report) -> String {
    listed(report.replaced.iter().map(|(program, command)| format!("{program} by {command}")), "none")
}

fn links(report: &Report) -> String {
    let shapes = report.profiles.iter().flat_map(|profile| profile.links.iter());
    listed(shapes.map(|(link, shape)| format!("{link} {shape}")), "")
}

/// Load per core. Up to 1, no program waits for a core, so that smaller loads count as equal.
fn load_per_core(report: &Report) -> String {
    let [last_minute, ..] = report.machine.load;
    let load = last_minute / report.machine.cores.max(1) as f64;
    if load > 1.0 { short(load) } else { "at most 1".into() }
}

fn selftest(report: &Report) -> String {
    match &report.selftest {
        None => "none".into(),
        Some(selftest) if selftest.refused.is_empty() => "passed".into(),
        Some(selftest) => format!("refused ({})", selftest.refused.join("; ")),
    }
}

fn listed(words: impl Iterator<Item = String>, nothing: &str) -> String {
    let words: Vec<String> = words.collect();
    if words.is_empty() { nothing.to_owned() } else { words.join(", ") }
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (letter, side) in [("A", &self.a), ("B", &self.b)] {
            let line = format!("{letter}: {}, {}, braidmq {}", side.scenario, side.started, side.version);
            writeln!(f, "{}", text::line(&line))?;
        }
        for difference in &self.differences {
            writeln!(f, "different: {difference}")?;
        }
        let mut table = Table::new(Alignment::Right, ["", "A", "B", "B / A", "ranges"]);
        for row in &self.rows {
            let shown = |spread: &Option<Spread>| {
                spread.map_or(NONE.into(), |spread| {
                    let median = row.column.shown_with_unit(spread.median);
                    spread.part().map_or(median.clone(), |part| format!("{median} ({part})"))
                })
            };
            let overlap = match row.overlap {
                None => NONE,
                Some(true) => "overlap",
                Some(false) => "apart",
            };
            let ratio = row.ratio.map_or(NONE.into(), |ratio| format!("{} x", short(ratio)));
            let title = text::shortened(&row.column.title, LONGEST_NAME);
            table.row([title, shown(&row.a), shown(&row.b), ratio, overlap.into()]);
        }
        let mut lines = table.lines();
        writeln!(f, "\n{}", lines.next().unwrap_or_default())?;
        let mut group = None;
        for (row, line) in self.rows.iter().zip(lines) {
            let this = (&row.variant, &row.profile);
            if group.replace(this) != Some(this) {
                writeln!(f, "{}", text::line(&format!("{} on {}", row.variant, row.profile)))?;
            }
            writeln!(f, "{line}")?;
        }
        if self.rows.iter().any(|row| row.overlap.is_none()) {
            writeln!(f, "\nRanges need two usable runs on each side.")?;
        }
        Ok(())
    }
}
