//! Report of `bench broker`: tables for readers, JSON for programs.

use std::fmt::Write;

use braid_measure::{Alignment, Machine, Spread, Table};
use serde::Serialize;

use super::brokers::Broker;
use super::case::{Aim, Case, Work};
use super::idle::IdleResult;
use super::load::FlowResult;

/// Measurements of one call.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) load_average_at_end: String,
    /// Brokers and generator ran at nice -10, both alike.
    pub(crate) first: bool,
    pub(crate) rounds: u32,
    pub(crate) seconds: f64,
    pub(crate) warm_up_seconds: f64,
    /// In the order of their turns; the last is the reference of all ratios.
    pub(crate) brokers: Vec<Broker>,
    pub(crate) cases: Vec<CaseReport>,
}

/// Runs of one case and their summaries.
#[derive(Serialize)]
pub(crate) struct CaseReport {
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
pub(crate) struct Run {
    pub(crate) broker: String,
    pub(crate) round: u32,
    pub(crate) outcome: Outcome,
}

/// Result of a turn.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Flow(FlowResult),
    Idle(IdleResult),
    /// Reason of a failure.
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

/// Quantity of the table.
struct Column {
    quantity: &'static str,
    digits: usize,
    shown: Shown,
    of: fn(&Outcome) -> Option<f64>,
}

/// Presentation of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Median and range, and its ratio to the reference.
    Compared,
    /// Median.
    Median,
    /// Maximum.
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

/// Cores in use by other programs from which the table says so.
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
    fn flow(&self) -> Option<&FlowResult> {
        if let Self::Flow(flow) = self { Some(flow) } else { None }
    }

    fn idle(&self) -> Option<&IdleResult> {
        if let Self::Idle(idle) = self { Some(idle) } else { None }
    }

    /// One line of progress.
    pub(crate) fn line(&self) -> String {
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

/// Lines above the tables: the machine, the `run` and the brokers.
pub(crate) fn head(machine: &Machine, run: &str, brokers: &[Broker]) -> String {
    let Machine { cores, processor, kernel, load_average, .. } = machine;
    let mut text = format!(
        "machine: {cores} cores, {processor}, Linux {kernel}, load average {load_average}{run}; median (minimum..maximum)\n"
    );
    for broker in brokers {
        let _ = writeln!(text, "{}: {}; {}", broker.label, broker.version, broker.settings);
    }
    text
}

impl Report {
    /// Lines above the tables.
    pub(crate) fn head(&self) -> String {
        let run = format!(
            "nice {}\n{} rounds of {} s after {} s of warm-up",
            if self.first { -10 } else { 0 },
            self.rounds,
            self.seconds,
            self.warm_up_seconds
        );
        head(&self.machine, &format!(", {run}"), &self.brokers)
    }

    /// True if every run gave a reading.
    pub(crate) fn whole(&self) -> bool {
        let mut runs = self.cases.iter().flat_map(|case| &case.runs);
        runs.all(|run| !matches!(run.outcome, Outcome::Failed(_)))
    }
}

impl CaseReport {
    /// Summarises the runs; `labels` in the order of the turns.
    pub(crate) fn new<'a>(
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
                    spread: Spread::of(ours.into_iter().flatten()),
                    ratio: ratio.flatten(),
                });
            }
        }
        Self { name: case.name, description, runs, summaries, columns, aim: case.aim }
    }

    /// Table of the case with ratios and aims.
    pub(crate) fn table(&self, brokers: &[Broker]) -> String {
        let titles = self.columns.iter().map(|column| column.quantity);
        let mut table = Table::new(Alignment::Left, [""].into_iter().chain(titles));
        for broker in brokers {
            let cells = self.columns.iter().map(|column| {
                let spread = self.summary(&broker.label, column.quantity).and_then(|summary| summary.spread);
                spread.map_or("-".to_owned(), |spread| column.show(&spread))
            });
            table.row([broker.label.clone()].into_iter().chain(cells));
        }
        let Some((reference, others)) = brokers.split_last() else { return String::new() };
        for broker in others {
            let cells = self.columns.iter().map(|column| {
                let ratio = self.summary(&broker.label, column.quantity).and_then(|summary| summary.ratio);
                ratio.map_or(String::new(), |ratio| ratio.show(3))
            });
            let name = format!("{} / {}", broker.label, reference.label);
            table.row([name].into_iter().chain(cells));
        }
        let mut text = format!("\n== {}: {}\n{table}", self.name, self.description);
        for broker in others.iter().filter(|broker| broker.is_braidmq()) {
            text.push_str(&self.verdicts(&broker.label, reference.is_mosquitto()));
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

    /// Aims of the project, and whether they are met. Ratios count against mosquitto only.
    fn verdicts(&self, broker: &str, to_mosquitto: bool) -> String {
        let ratio = |quantity| self.summary(broker, quantity).filter(|_| to_mosquitto)?.ratio;
        let bytes = self.summary(broker, RSS).and_then(|summary| summary.spread);
        let aims = [
            ("CPU ratio", self.aim.cpu_ratio, ratio(CPU)),
            ("p50 ratio", self.aim.p50_ratio, ratio(P50)),
            ("RSS per connection", self.aim.idle_bytes, bytes),
        ];
        let mut text = String::new();
        for (what, aim, reached) in aims {
            if let (Some(aim), Some(reached)) = (aim, reached) {
                let word = if reached.median <= aim { "met" } else { "MISSED" };
                let _ = writeln!(text, "aim for {broker}: {what} <= {aim}: {word} ({:.3})", reached.median);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::case;
    use super::{Broker, CaseReport, IdleResult, Outcome, Run};
    use braid_measure::process::Memory;

    fn idle(broker: &str, round: u32, bytes: f64) -> Run {
        let memory = Memory { rss: 0, pss: 0 };
        let outcome = Outcome::Idle(IdleResult {
            connections: 10,
            before: memory,
            after: memory,
            rss_per_connection: bytes,
            pss_per_connection: bytes / 2.0,
            connect_rate: 1.0,
        });
        Run { broker: broker.to_owned(), round, outcome }
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
        let table = report.table(&labels.map(Broker::named));
        assert!(table.contains("braidmq              6000 (4000..8000)"), "{table}");
        assert!(table.contains("braidmq / mosquitto  5.000 (2.000..8.000)"), "{table}");
        assert!(table.contains("RSS per connection <= 6144: met (6000.000)"), "{table}");
        assert!(table.contains("FAILED: braidmq in round 3: gone"), "{table}");
    }
}
