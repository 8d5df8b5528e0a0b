//! Two executions of a scenario side by side.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::grid::Grid;
use super::number::{NONE, short};
use super::{Column, Report, Spread, text};

/// What changed from one report to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The first report.
    pub a: Side,
    /// The second one.
    pub b: Side,
    /// What else differs and may be the reason: `kernel: Linux 6.12 and Linux 6.18`.
    pub differences: Vec<String>,
    /// One for each variant, profile and metric that both have.
    pub rows: Vec<ComparedMetric>,
}

/// One of two reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// The scenario's name.
    pub scenario: String,
    /// When it was made, RFC 3339.
    pub started: String,
    /// The version of braidmq.
    pub version: String,
}

/// One metric of one variant on one profile in both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedMetric {
    /// The variant's name.
    pub variant: String,
    /// The profile's name.
    pub profile: String,
    /// The column of the first report, or of the second where the first has none.
    pub column: Column,
    /// The usable runs of the first; `None`: it has none with this metric.
    pub a: Option<Spread>,
    /// The usable runs of the second.
    pub b: Option<Spread>,
    /// The second median divided by the first; `None` where one is missing or the first is 0.
    pub ratio: Option<f64>,
    /// Whether the ranges over the runs have a value in common; `None` where a side has fewer than two runs.
    pub overlap: Option<bool>,
}

/// Two reports that cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// Their numbers may mean different things.
    #[error(
        "the first report has the schema {a:?}, the second {b:?}: compare reports of one version of the schema"
    )]
    Schema {
        /// Of the first.
        a: String,
        /// Of the second.
        b: String,
    },
    /// No variant on a profile is in both with a metric.
    #[error(
        "the reports of {a:?} and {b:?} have no variant, profile and column in common: compare two reports of one \
         scenario"
    )]
    NothingInCommon {
        /// The first scenario.
        a: String,
        /// The second one.
        b: String,
    },
}

/// Compares the medians of what both reports have: variants on profiles, by the columns of either.
///
/// # Errors
///
/// The schemas differ, or there is nothing in common.
pub fn compare(a: &Report, b: &Report) -> Result<Comparison, CompareError> {
    if a.schema != b.schema {
        return Err(CompareError::Schema { a: a.schema.clone(), b: b.schema.clone() });
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
        return Err(CompareError::NothingInCommon { a: a.scenario.clone(), b: b.scenario.clone() });
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
            ratio: both.map(|(a, b)| b.median / a.median).filter(|ratio| ratio.is_finite()),
            overlap: both.filter(|(a, b)| a.count > 1 && b.count > 1).map(|(a, b)| a.overlaps(&b)),
        }
    }
}

/// What beside the numbers is not the same.
fn differences(a: &Report, b: &Report) -> Vec<String> {
    let pairs = CIRCUMSTANCES.iter().map(|(what, words)| (what, words(a), words(b)));
    let differing = pairs.filter(|(_, a, b)| a != b);
    differing.map(|(what, a, b)| format!("{what}: {} and {}", text::line(&a), text::line(&b))).collect()
}

type WordsOf = fn(&Report) -> String;

/// What may be the reason of other numbers.
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

/// Up to one program per core that wants to run, nobody waits: how many fewer there were is no difference.
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
            writeln!(f, "not the same: {difference}")?;
        }
        let mut group = None;
        let mut grid = Grid::new(["", "A", "B", "B / A", "ranges"]);
        for row in &self.rows {
            let this = (&row.variant, &row.profile);
            if group.replace(this) != Some(this) {
                grid.heading(format!("{} on {}", row.variant, row.profile));
            }
            let shown = |spread: &Option<Spread>| {
                spread.map_or(NONE.into(), |spread| row.column.shown_with_unit(spread.median))
            };
            let overlap = match row.overlap {
                None => NONE,
                Some(true) => "overlap",
                Some(false) => "apart",
            };
            let ratio = row.ratio.map_or(NONE.into(), |ratio| format!("{} x", short(ratio)));
            grid.row([row.column.title.clone(), shown(&row.a), shown(&row.b), ratio, overlap.into()]);
        }
        writeln!(f)?;
        Display::fmt(&grid, f)?;
        if self.rows.iter().any(|row| row.overlap.is_none()) {
            writeln!(f, "\nRanges need two usable runs on each side.")?;
        }
        Ok(())
    }
}
