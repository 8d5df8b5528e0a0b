//! One line for each scenario: medians over its rounds, and the worst share on time.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use crate::scenario::{Reading, Scenario};

pub(crate) const HEAD: &str = "\
way  network    bulk setting   first 3 s on time  worst     p50     p90     p99   bulk KB/s packets dropped  set-up s";

/// All rounds of a scenario.
#[derive(Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) scenario: Scenario,
    pub(crate) rounds: Vec<Reading>,
}

/// An array with one line for each row.
pub(crate) fn json(rows: &[Row]) -> serde_json::Result<String> {
    let lines: Vec<String> = rows.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}

impl Row {
    fn median(&self, of: impl Fn(&Reading) -> f64) -> f64 {
        let mut values: Vec<f64> = self.rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    }

    fn millis(&self, of: impl Fn(&Reading) -> Option<f64>) -> String {
        let median = self.median(|round| of(round).unwrap_or(f64::INFINITY));
        if median.is_finite() { format!("{median:.0}") } else { "never".to_owned() }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { way, network, bulk, setting } = &self.scenario;
        let worst = self.rounds.iter().map(|round| round.on_time).fold(1.0, f64::min);
        write!(
            f,
            "{:4} {:10} {:4} {:9} {:7.0} % {:5.1} % {:4.0} % {:>7} {:>7} {:>7} {:11.1} {:7.0} {:5.1} % ",
            name(way),
            name(network),
            name(bulk),
            name(setting),
            self.median(|round| round.early_on_time) * 100.0,
            self.median(|round| round.on_time) * 100.0,
            worst * 100.0,
            self.millis(|round| round.latency_ms.p50),
            self.millis(|round| round.latency_ms.p90),
            self.millis(|round| round.latency_ms.p99),
            self.median(|round| round.bulk_bytes_per_second) / 1000.0,
            self.median(|round| round.packets as f64),
            self.median(|round| round.dropped) * 100.0,
        )?;
        let set_up = self.median(|round| round.set_up_seconds.unwrap_or(f64::INFINITY));
        if set_up.is_finite() { write!(f, "{set_up:9.2}") } else { f.write_str("    never") }
    }
}

fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
