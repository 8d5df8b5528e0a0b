//! What was measured, as a table for people and as JSON for programs.

use std::fmt::Write;

use serde::Serialize;

use super::case::{Aim, Case, Work};
use super::idle::Idled;
use super::load::Flowed;
use super::machine::Machine;
use super::spread::Spread;

/// Everything of one call.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) load_average_at_end: String,
    /// Brokers and generator ran at nice -10, both alike.
    pub(super) first: bool,
    pub(super) rounds: u32,
    pub(super) seconds: f64,
    pub(super) warm_up_seconds: f64,
    /// In the order of their turns; the last is the reference of every ratio.
    pub(super) brokers: Vec<BrokerEntry>,
    pub(super) cases: Vec<CaseReport>,
}

/// A broker as the report names it.
#[derive(Serialize)]
pub(super) struct BrokerEntry {
    pub(super) label: String,
    pub(super) version: String,
    pub(super) settings: String,
    #[serde(skip)]
    pub(super) is_braidmq: bool,
    #[serde(skip)]
    pub(super) is_mosquitto: bool,
}

/// One case: its runs and what they come to.
#[derive(Serialize)]
pub(super) struct CaseReport {
    name: &'static str,
    description: String,
    runs: Vec<Run>,
    summaries: Vec<Summary>,
    #[serde(skip)]
    columns: &'static [Column],
    #[serde(skip)]
    aim: Aim,
}

/// One broker's turn in one round.
#[derive(Serialize)]
pub(super) struct Run {
    pub(super) broker: String,
    pub(super) round: u32,
    pub(super) outcome: Outcome,
}

/// What a turn gave.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Flow(Flowed),
    Idle(Idled),
    /// Why there is no reading.
    Failed(String),
}

/// One quantity of one broker over all rounds.
#[derive(Serialize)]
struct Summary {
    broker: String,
    quantity: &'static str,
    spread: Option<Spread>,
    /// To the reference broker, round by round; `None` for the reference itself.
    ratio: Option<Spread>,
}

/// A quantity of the table.
struct Column {
    quantity: &'static str,
    digits: usize,
    shown: Shown,
    of: fn(&Outcome) -> Option<f64>,
}

/// How a column's readings are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Median and range, and its ratio to the reference.
    Compared,
    /// The median alone.
    Median,
    /// The worst alone.
    Worst,
}

const fn column(
    quantity: &'static str,
    digits: usize,
    shown: Shown,
    of: fn(&Outcome) -> Option<f64>,
) -> Column {
    Column { quantity, digits, shown, of }
}

impl Column {
    fn show(&self, spread: &Spread) -> String {
        let digits = self.digits;
        match self.shown {
            Shown::Compared => spread.show(digits),
            Shown::Median => format!("{:.digits$}", spread.median),
            Shown::Worst => format!("{:.digits$}", spread.maximum),
        }
    }
}

/// Cores that other programs may use before the table says so.
const DISTURBED: f64 = 0.1;

const CPU: &str = "CPU ns/msg";
const P50: &str = "p50 us";
const RSS: &str = "RSS B/conn";

static FLOW: [Column; 9] = [
    column(CPU, 0, Shown::Compared, |outcome| outcome.flow().map(|flow| flow.cpu_nanoseconds)),
    column("msg/s", 0, Shown::Compared, |outcome| outcome.flow().map(|flow| flow.throughput)),
    column(P50, 0, Shown::Compared, |outcome| outcome.flow().map(|flow| flow.p50_microseconds)),
    column("p99 us", 0, Shown::Compared, |outcome| outcome.flow().map(|flow| flow.p99_microseconds)),
    column("broker cores", 2, Shown::Median, |outcome| outcome.flow().map(|flow| flow.shares.broker)),
    column("generator", 2, Shown::Median, |outcome| outcome.flow().map(|flow| flow.shares.generator)),
    column("others", 2, Shown::Median, |outcome| outcome.flow().map(|flow| flow.shares.others)),
    column("lost", 0, Shown::Worst, |outcome| outcome.flow().map(|flow| flow.lost as f64)),
    column("late", 0, Shown::Worst, |outcome| outcome.flow().map(|flow| flow.late as f64)),
];

static IDLE: [Column; 3] = [
    column(RSS, 0, Shown::Compared, |outcome| outcome.idle().map(|idle| idle.rss_per_connection)),
    column("PSS B/conn", 0, Shown::Compared, |outcome| outcome.idle().map(|idle| idle.pss_per_connection)),
    column("connects/s", 0, Shown::Compared, |outcome| outcome.idle().map(|idle| idle.connect_rate)),
];

impl Outcome {
    fn flow(&self) -> Option<&Flowed> {
        if let Self::Flow(flow) = self { Some(flow) } else { None }
    }

    fn idle(&self) -> Option<&Idled> {
        if let Self::Idle(idle) = self { Some(idle) } else { None }
    }

    /// One line while the run goes on.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Flow(flow) => format!(
                "{:.0} ns/msg, {:.0} msg/s, p50 {:.0} us, p99 {:.0} us, lost {} of {}",
                flow.cpu_nanoseconds,
                flow.throughput,
                flow.p50_microseconds,
                flow.p99_microseconds,
                flow.lost,
                flow.expected
            ),
            Self::Idle(idle) => format!("{:.0} B/connection", idle.rss_per_connection),
            Self::Failed(reason) => format!("FAILED: {reason}"),
        }
    }
}

impl Report {
    /// The lines above the tables.
    pub(super) fn head(&self) -> String {
        let machine = &self.machine;
        let mut text = format!(
            "machine: {} cores, {}, Linux {}, load average {}, nice {}\n{} rounds of {} s after {} s of warm-up; median (minimum..maximum)\n",
            machine.cores,
            machine.processor,
            machine.kernel,
            machine.load_average,
            if self.first { -10 } else { 0 },
            self.rounds,
            self.seconds,
            self.warm_up_seconds
        );
        for broker in &self.brokers {
            let _ = writeln!(text, "{}: {}; {}", broker.label, broker.version, broker.settings);
        }
        text
    }

    /// Everything as JSON.
    ///
    /// # Errors
    /// None that a report can have.
    pub(super) fn json(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n").map_err(|error| error.to_string())
    }

    /// Did every run give a reading?
    pub(super) fn whole(&self) -> bool {
        let mut runs = self.cases.iter().flat_map(|case| &case.runs);
        runs.all(|run| !matches!(run.outcome, Outcome::Failed(_)))
    }
}

impl CaseReport {
    /// Sums the runs up; `labels` in the order of the turns.
    pub(super) fn new<'a>(
        case: &Case,
        description: String,
        runs: Vec<Run>,
        labels: impl Iterator<Item = &'a str>,
    ) -> Self {
        let columns: &'static [Column] = match case.work {
            Work::Flow(_) => &FLOW,
            Work::Idle(_) => &IDLE,
        };
        let labels: Vec<_> = labels.collect();
        let readings = |label: &str, column: &Column| -> Vec<Option<f64>> {
            runs.iter().filter(|run| run.broker == label).map(|run| (column.of)(&run.outcome)).collect()
        };
        let reference = labels.last().copied().unwrap_or_default();
        let mut summaries = Vec::new();
        for label in &labels {
            for column in columns {
                let ours = readings(label, column);
                let ratio = (column.shown == Shown::Compared && *label != reference)
                    .then(|| Spread::of_ratios(&ours, &readings(reference, column)));
                summaries.push(Summary {
                    broker: (*label).to_owned(),
                    quantity: column.quantity,
                    spread: Spread::of(&ours.into_iter().flatten().collect::<Vec<_>>()),
                    ratio: ratio.flatten(),
                });
            }
        }
        Self { name: case.name, description, runs, summaries, columns, aim: case.aim }
    }

    /// The table of this case, its ratios and its aims.
    pub(super) fn table(&self, brokers: &[BrokerEntry]) -> String {
        let mut rows = vec![vec![String::new()]];
        rows[0].extend(self.columns.iter().map(|column| column.quantity.to_owned()));
        for broker in brokers {
            let cells = self.columns.iter().map(|column| {
                let spread = self.summary(&broker.label, column.quantity).and_then(|summary| summary.spread);
                spread.map_or("-".to_owned(), |spread| column.show(&spread))
            });
            rows.push([broker.label.clone()].into_iter().chain(cells).collect());
        }
        let Some((reference, others)) = brokers.split_last() else { return String::new() };
        for broker in others {
            let cells = self.columns.iter().map(|column| {
                let ratio = self.summary(&broker.label, column.quantity).and_then(|summary| summary.ratio);
                ratio.map_or(String::new(), |ratio| ratio.show(3))
            });
            let name = format!("{} / {}", broker.label, reference.label);
            rows.push([name].into_iter().chain(cells).collect());
        }
        let mut text = format!("\n== {}: {}\n{}", self.name, self.description, aligned(&rows));
        for broker in others.iter().filter(|broker| broker.is_braidmq) {
            text.push_str(&self.verdicts(&broker.label, reference.is_mosquitto));
        }
        let others = self.runs.iter().filter_map(|run| Some(run.outcome.flow()?.shares.others));
        let disturbance = others.fold(0.0, f64::max);
        if disturbance > DISTURBED {
            let _ = writeln!(text, "disturbed: other programs used up to {disturbance:.2} cores meanwhile");
        }
        for run in &self.runs {
            if let Outcome::Failed(reason) = &run.outcome {
                let _ = writeln!(text, "FAILED: {} in round {}: {reason}", run.broker, run.round);
            }
        }
        text
    }

    fn summary(&self, broker: &str, quantity: &str) -> Option<&Summary> {
        self.summaries.iter().find(|summary| summary.broker == broker && summary.quantity == quantity)
    }

    /// What the project aims at, and whether it is there. Ratios are judged against mosquitto only.
    fn verdicts(&self, broker: &str, to_mosquitto: bool) -> String {
        let ratio = |quantity| self.summary(broker, quantity).filter(|_| to_mosquitto)?.ratio;
        let bytes = self.summary(broker, RSS).and_then(|summary| summary.spread);
        let judged = [
            ("CPU ratio", self.aim.cpu_ratio, ratio(CPU)),
            ("p50 ratio", self.aim.p50_ratio, ratio(P50)),
            ("RSS per connection", self.aim.idle_bytes, bytes),
        ];
        let mut text = String::new();
        for (what, aim, reached) in judged {
            if let (Some(aim), Some(reached)) = (aim, reached) {
                let word = if reached.median <= aim { "met" } else { "MISSED" };
                let _ = writeln!(text, "aim for {broker}: {what} <= {aim}: {word} ({:.3})", reached.median);
            }
        }
        text
    }
}

/// Rows of cells as lines of columns.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::case;
    use super::{BrokerEntry, CaseReport, Idled, Outcome, Run, aligned};
    use crate::bench::usage::Memory;

    fn idle(broker: &str, round: u32, bytes: f64) -> Run {
        let memory = Memory { rss: 0, pss: 0 };
        let outcome = Outcome::Idle(Idled {
            connections: 10,
            before: memory,
            after: memory,
            rss_per_connection: bytes,
            pss_per_connection: bytes / 2.0,
            connect_rate: 1.0,
        });
        Run { broker: broker.to_owned(), round, outcome }
    }

    fn entry(label: &str) -> BrokerEntry {
        BrokerEntry {
            label: label.to_owned(),
            version: String::new(),
            settings: String::new(),
            is_braidmq: label == "braidmq",
            is_mosquitto: label == "mosquitto",
        }
    }

    #[test]
    fn table_shows_readings_ratios_aims_and_failures() {
        let cases = case::select(&["idle".to_owned()], 10, None).expect("known");
        let mut runs = vec![
            idle("braidmq", 1, 8000.0),
            idle("mosquitto", 1, 1000.0),
            idle("braidmq", 2, 4000.0),
            idle("mosquitto", 2, 2000.0),
        ];
        runs.push(Run { broker: "braidmq".into(), round: 3, outcome: Outcome::Failed("gone".into()) });
        let labels = ["braidmq", "mosquitto"];
        let report = CaseReport::new(&cases[0], "ten".to_owned(), runs, labels.into_iter());
        let table = report.table(&labels.map(entry));
        assert!(table.contains("braidmq              6000 (4000..8000)"), "{table}");
        assert!(table.contains("braidmq / mosquitto  5.000 (2.000..8.000)"), "{table}");
        assert!(table.contains("RSS per connection <= 6144: met (6000.000)"), "{table}");
        assert!(table.contains("FAILED: braidmq in round 3: gone"), "{table}");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["".into(), "long".into(), "x".into()], vec!["abc".into(), "b".into(), "y".into()]];
        assert_eq!(aligned(&rows), "     long  x\nabc  b     y\n");
    }
}
