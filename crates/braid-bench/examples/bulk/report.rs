//! One line for each scenario: medians over its rounds, the worst, and the ratio to what the link takes.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use crate::scenario::{Reading, Scenario};

pub(crate) const HEAD: &str = "\
path        MiB way  setting   limit s  median s  ratio   worst  dropped";

/// All rounds of a scenario.
#[derive(Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) scenario: Scenario,
    /// What the link would take without any protocol.
    pub(crate) limit_seconds: f64,
    pub(crate) rounds: Vec<Reading>,
}

/// An array with one line for each row.
pub(crate) fn json(rows: &[Row]) -> serde_json::Result<String> {
    let lines: Vec<String> = rows.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}

impl Row {
    fn sorted(&self, of: impl Fn(&Reading) -> f64) -> Vec<f64> {
        let mut values: Vec<f64> = self.rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { way, path, megabytes, setting } = &self.scenario;
        let seconds = self.sorted(|round| round.seconds.unwrap_or(f64::INFINITY));
        let dropped = self.sorted(|round| round.dropped);
        let middle = |values: &[f64]| values.get(values.len() / 2).copied().unwrap_or_default();
        let worst = seconds.last().copied().unwrap_or_default();
        write!(
            f,
            "{:11} {megabytes:3} {:4} {:8} {:8.3} {:9.3} {:6.2} {:7.2} {:6.1} %",
            name(path),
            name(way),
            name(setting),
            self.limit_seconds,
            middle(&seconds),
            middle(&seconds) / self.limit_seconds,
            worst / self.limit_seconds,
            middle(&dropped) * 100.0,
        )
    }
}

fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
