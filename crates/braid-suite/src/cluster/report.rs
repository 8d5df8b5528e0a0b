//! Report of `bench cluster`.

use std::fmt::Write as _;
use std::path::Path;

use braid_measure::{Machine, Spread};
use serde::Serialize;

use crate::system::write_json;

/// Bar of a row.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bar {
    /// Beside, for explanation.
    None,
    /// Least median of the ratios to the peer.
    RatioAtLeast(f64),
    /// Greatest median of the ratios to the peer.
    RatioAtMost(f64),
    /// Greatest median of the differences from the peer.
    ExcessAtMost(f64),
    /// Limit of every reading.
    AtMost(f64),
}

/// Reading of one round.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Reading {
    pub(super) peer: Option<f64>,
    pub(super) own: f64,
}

/// Readings of one quantity.
#[derive(Serialize)]
pub(super) struct Row {
    part: &'static str,
    measured: String,
    unit: &'static str,
    /// Name of the peer; empty without one.
    beside: &'static str,
    readings: Vec<Reading>,
    bar: Bar,
}

/// Part that broke off.
#[derive(Serialize)]
pub(super) struct BrokenPart {
    pub(super) part: &'static str,
    pub(super) reason: String,
}

/// Measurements of one call.
#[derive(Serialize)]
pub(super) struct ClusterReport {
    pub(super) machine: Machine,
    pub(super) load_average_at_end: String,
    pub(super) command: String,
    pub(super) versions: Vec<String>,
    /// Description of the setup, in sentences.
    pub(super) setup: String,
    pub(super) rows: Vec<Row>,
    pub(super) broken: Vec<BrokenPart>,
}

impl Row {
    /// Row beside a peer, from pairs of its reading and ours.
    pub(super) fn beside(
        part: &'static str,
        peer: &'static str,
        (measured, unit): (String, &'static str),
        readings: impl IntoIterator<Item = [f64; 2]>,
        bar: Bar,
    ) -> Self {
        let readings = readings.into_iter().map(|[peer, own]| Reading { peer: Some(peer), own }).collect();
        Self { part, measured, unit, beside: peer, readings, bar }
    }

    /// Row without a peer.
    pub(super) fn alone(
        part: &'static str,
        (measured, unit): (String, &'static str),
        readings: impl IntoIterator<Item = f64>,
        bar: Bar,
    ) -> Self {
        let readings = readings.into_iter().map(|own| Reading { peer: None, own }).collect();
        Self { part, measured, unit, beside: "", readings, bar }
    }

    fn ratio(&self) -> Option<Spread> {
        Spread::of(self.readings.iter().filter_map(|reading| Some(reading.own / reading.peer?)))
    }

    fn excess(&self) -> Option<Spread> {
        Spread::of(self.readings.iter().filter_map(|reading| Some(reading.own - reading.peer?)))
    }

    fn own(&self) -> Option<Spread> {
        Spread::of(self.readings.iter().map(|reading| reading.own))
    }

    /// True if the bar is met; `None` without a bar.
    fn is_met(&self) -> Option<bool> {
        // A reading that is no number is one that was not taken.
        let is_whole = self.readings.iter().all(|reading| reading.own.is_finite());
        let met = |spread: Option<Spread>, test: &dyn Fn(Spread) -> bool| {
            Some(is_whole && spread.is_some_and(test))
        };
        match self.bar {
            Bar::None => None,
            Bar::RatioAtLeast(bar) => met(self.ratio(), &|ratio| ratio.median >= bar),
            Bar::RatioAtMost(bar) => met(self.ratio(), &|ratio| ratio.median <= bar),
            Bar::ExcessAtMost(bar) => met(self.excess(), &|excess| excess.median <= bar),
            Bar::AtMost(bar) => met(self.own(), &|own| own.maximum <= bar),
        }
    }

    fn cells(&self) -> [String; 8] {
        let show = |spread: Option<Spread>, digits| {
            spread.map_or_else(|| "-".to_owned(), |spread| spread.show(digits))
        };
        let peer = Spread::of(self.readings.iter().filter_map(|reading| reading.peer));
        let digits = |spread: Option<Spread>| match spread.map_or(0.0, |spread| spread.median) {
            median if median >= 1000.0 => 0,
            median if median >= 10.0 => 1,
            _ => 2,
        };
        let (compared, bar) = match self.bar {
            Bar::ExcessAtMost(bar) => (show(self.excess(), 2), format!("+ {bar}")),
            Bar::RatioAtLeast(bar) => (show(self.ratio(), 2), format!(">= {bar}")),
            Bar::RatioAtMost(bar) => (show(self.ratio(), 2), format!("<= {bar}")),
            Bar::AtMost(bar) => ("-".to_owned(), format!("<= {bar} {}", self.unit)),
            Bar::None => (show(self.ratio(), 2), "-".to_owned()),
        };
        let verdict = self.is_met().map_or("", |is_met| if is_met { "met" } else { "MISSED" });
        let beside = if self.beside.is_empty() { "-" } else { self.beside };
        [
            self.measured.clone(),
            self.unit.to_owned(),
            beside.to_owned(),
            show(peer, digits(peer)),
            show(self.own(), digits(self.own())),
            compared,
            bar,
            verdict.to_owned(),
        ]
    }

    /// Row in one line, for progress.
    pub(super) fn line(&self) -> String {
        let [measured, unit, beside, peer, own, compared, bar, verdict] = self.cells();
        match &*beside {
            "-" => format!("{measured}: {own} {unit}; bar {bar} {verdict}"),
            _ => format!("{measured}: {own} {unit}, {beside} {peer}: {compared}; bar {bar} {verdict}"),
        }
    }
}

impl ClusterReport {
    pub(super) fn is_good(&self) -> bool {
        self.broken.is_empty() && self.rows.iter().all(|row| row.is_met() != Some(false))
    }

    pub(super) fn markdown(&self) -> String {
        let Machine { cores, processor, kernel, load_average, .. } = &self.machine;
        let mut text = format!(
            "# Cost of a cluster\n\n\
             `cargo xtask bench {}`: {}; {}; {cores} cores ({processor}), Linux {kernel}, load average {load_average} at the start and {} at the \
             end.\n\n{}\n\n",
            self.command,
            if self.is_good() { "all bars met" } else { "MISSED" },
            self.versions.join(", "),
            self.load_average_at_end,
            self.setup,
        );
        for BrokenPart { part, reason } in &self.broken {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "**{part} broke off**: {reason}\n");
        }
        let titles =
            ["measured", "unit", "beside", "its", "cluster", "ratio or difference", "bar", "verdict"];
        let head = [titles.map(str::to_owned), titles.map(|_| "---".to_owned())];
        for cells in head.into_iter().chain(self.rows.iter().map(Row::cells)) {
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text
    }

    pub(super) fn write(&self, directory: &Path) -> Result<(), String> {
        let file = directory.join("cluster.md");
        let failed = |error| format!("cannot write {}: {error}", file.display());
        std::fs::create_dir_all(directory).map_err(failed)?;
        std::fs::write(&file, self.markdown()).map_err(failed)?;
        write_json(self, Some(&directory.join("cluster.json")))
    }
}

#[cfg(test)]
mod tests {
    use super::{Bar, Row};

    fn verdicts(bar: Bar, readings: &[[f64; 2]]) -> Option<bool> {
        Row::beside("durable", "JetStream", ("x".to_owned(), "ms"), readings.iter().copied(), bar).is_met()
    }

    #[test]
    fn medians_of_ratios_and_differences_are_compared_with_the_bar() {
        // Ratios 0.5, 0.7 and 2; differences -5, -3 and 10.
        let readings = [[10.0, 5.0], [10.0, 7.0], [10.0, 20.0]];
        for (bar, expected) in [
            (Bar::RatioAtLeast(0.7), true),
            (Bar::RatioAtLeast(0.71), false),
            (Bar::RatioAtMost(0.7), true),
            (Bar::RatioAtMost(0.69), false),
            (Bar::ExcessAtMost(-3.0), true),
            (Bar::ExcessAtMost(-3.1), false),
            (Bar::AtMost(20.0), true),
            (Bar::AtMost(19.9), false),
        ] {
            assert_eq!(verdicts(bar, &readings), Some(expected));
            assert_eq!(verdicts(bar, &[]), Some(false), "nothing was measured");
        }
        assert_eq!(verdicts(Bar::AtMost(20.0), &[[1.0, 2.0], [1.0, f64::NAN]]), Some(false));
        assert_eq!(verdicts(Bar::None, &readings), None);
    }

    #[test]
    fn a_row_shows_medians_and_their_range() {
        let readings = [[10.0, 5.0], [2000.0, 1400.0], [10.0, 20.0]];
        let row =
            Row::beside("durable", "JetStream", ("rate".to_owned(), "/s"), readings, Bar::RatioAtLeast(0.7));
        assert_eq!(
            row.cells().join(" | "),
            "rate | /s | JetStream | 10.0 (10.0..2000.0) | 20.0 (5.0..1400.0) | 0.70 (0.50..2.00) | >= 0.7 | met"
        );
        let row = Row::alone("fail-over", ("time".to_owned(), "s"), [1.0, 6.0], Bar::AtMost(5.0));
        assert_eq!(row.cells().join(" | "), "time | s | - | - | 3.50 (1.00..6.00) | - | <= 5 s | MISSED");
    }
}
