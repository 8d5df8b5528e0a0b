//! Tables of `bench store`.

use std::fmt::Write;

use braid_measure::{Alignment, Spread, Table};

use crate::report::head as head_of;

use super::drain::DrainRound;
use super::durable::{self, Acknowledged, Round};
use super::recovery::Recovery;
use super::sessions::SessionsRound;
use super::yardstick::Reached;
use super::{Amount, Report, Row, SYNC};

/// Aim: rate of synchronous braidmq, relative to the log of the same bytes.
const RATE_TO_LOG: f64 = 0.5;
/// Aim: 99th percentile of PUBACK, in medians of one fdatasync.
const P99_IN_SYNCS: f64 = 3.0;
/// Aim: drained messages per second, relative to the reference.
const DRAIN_RATIO: f64 = 1.0;

const RATE: fn(&Acknowledged) -> f64 = |acknowledged| acknowledged.reached.rate;
const P99: fn(&Acknowledged) -> f64 = |acknowledged| acknowledged.reached.p99_milliseconds;

/// Lines above the tables.
pub(crate) fn head(report: &Report) -> String {
    let mut text = head_of(&report.machine, &format!("\n{} rounds", report.rounds), &report.brokers);
    text.push_str(
        "mosquitto does not fsync before PUBACK: it writes its file every 30 minutes and when it stops; a crash costs what came since\n",
    );
    text
}

/// Table of one payload and window.
pub(crate) fn durable(row: &durable::Row, labels: &[&str]) -> String {
    let titles = ["", "msg/s", "p50 ms", "p99 ms", "bytes/msg", "CPU ns/msg", "cores", "others"];
    let mut table = Table::new(Alignment::Left, titles);
    let yardsticks: [(&str, OfRound); 3] = [
        ("write 4 KiB, fdatasync", |round| round.raw.reached),
        ("log, one fdatasync per group", |round| round.log.reached),
        ("the same log behind TCP", |round| round.served_log),
    ];
    for (name, reached) in yardsticks {
        let cell = |of: fn(Reached) -> f64| Spread::of(row.rounds.iter().map(|round| of(reached(round))));
        table.row([
            name.to_owned(),
            show(cell(|reached| reached.rate), 0),
            show(cell(|reached| reached.p50_milliseconds), 2),
            show(cell(|reached| reached.p99_milliseconds), 2),
        ]);
    }
    for label in labels {
        let cell = |of: fn(&Acknowledged) -> f64, digits| show(row.spread(label, of), digits);
        let median = |of: fn(&Acknowledged) -> f64, digits: usize| {
            row.spread(label, of).map_or(String::new(), |spread| format!("{:.digits$}", spread.median))
        };
        table.row([
            (*label).to_owned(),
            cell(RATE, 0),
            cell(|acknowledged| acknowledged.reached.p50_milliseconds, 2),
            cell(P99, 2),
            cell(|acknowledged| acknowledged.written, 0),
            median(|acknowledged| acknowledged.cpu_nanoseconds, 0),
            median(|acknowledged| acknowledged.shares.broker, 2),
            median(|acknowledged| acknowledged.shares.others, 2),
        ]);
    }
    let mut text = format!(
        "\n== durable: QoS 1, {} B, to a client that is away, {} unacknowledged in all\n{}",
        row.payload, row.window, table
    );
    let to_log = row.ratio(SYNC, RATE, |round| round.log.reached.rate);
    verdict(&mut text, "msg/s of the log's", to_log, RATE_TO_LOG, |reached, aim| reached >= aim);
    if let Some(to_served) = row.ratio(SYNC, RATE, |round| round.served_log.rate) {
        let _ = writeln!(text, "{SYNC}: msg/s of the same log's behind TCP: {}", to_served.show(2));
    }
    let in_syncs = row.ratio(SYNC, P99, |round| round.raw.reached.p50_milliseconds);
    verdict(&mut text, "p99 in p50s of one fdatasync", in_syncs, P99_IN_SYNCS, |reached, aim| reached <= aim);
    text
}

/// Table of drained queues; the last broker is the reference.
pub(crate) fn drain(rows: &[Row<DrainRound>]) -> String {
    let Some(reference) = rows.last() else { return String::new() };
    let table = table::<DrainRound>(
        rows,
        &[
            ("msg/s", 0, |drained| drained.rate),
            ("first after ms", 1, |drained| drained.first_milliseconds),
            ("CPU ns/msg", 0, |drained| drained.cpu_nanoseconds),
            ("filling", 0, |drained| drained.fill_nanoseconds),
            ("bytes/msg", 0, |drained| drained.written),
        ],
    );
    let mut text = format!(
        "\n== drain: {} messages of QoS 1, 256 B, to a client that is back\n{}",
        reference.amount, table
    );
    let rates =
        |row: &Row<DrainRound>| row.rounds.iter().map(|drained| Some(drained.rate)).collect::<Vec<_>>();
    for row in rows.iter().filter(|row| row.broker == SYNC) {
        let ratio = Spread::of_ratios(&rates(row), &rates(reference));
        verdict(&mut text, "msg/s of mosquitto's", ratio, DRAIN_RATIO, |reached, aim| reached >= aim);
    }
    text
}

/// Table of offline sessions.
pub(crate) fn sessions(rows: &[Row<SessionsRound>]) -> String {
    let table = table::<SessionsRound>(
        rows,
        &[
            ("RssAnon B/session", 0, |left| left.anonymous_per_session),
            ("sessions/s, one by one", 0, |left| left.rate),
        ],
    );
    let amount = rows.first().map_or(Amount::Sessions(0), |row| row.amount);
    format!("\n== sessions: {amount} durable ones with a subscription each, clients away\n{table}")
}

/// Table of starts over a large store.
pub(crate) fn recovery(recovery: &Recovery) -> String {
    let titles = ["", "serves after s", "RssAnon MiB", "RssFile MiB", "at most MiB"];
    let mut table = Table::new(Alignment::Left, titles);
    let mebibytes = |bytes: u64| (bytes >> 20).to_string();
    for start in &recovery.starts {
        table.row([
            start.from.to_owned(),
            format!("{:.2}", start.seconds),
            mebibytes(start.memory.anonymous),
            mebibytes(start.memory.file),
            mebibytes(start.memory.peak),
        ]);
    }
    format!(
        "\n== recovery: {} messages of 200 B for {} sessions, a file of {} MiB\n{}",
        recovery.amount.messages,
        recovery.amount.sessions,
        recovery.file_bytes >> 20,
        table
    )
}

/// Yardstick of a round.
type OfRound = fn(&Round) -> Reached;
/// Title, digits behind the point, and quantity of a round.
type Column<R> = (&'static str, usize, fn(&R) -> f64);

/// Table with a row for each broker.
fn table<R>(rows: &[Row<R>], columns: &[Column<R>]) -> Table {
    let mut table =
        Table::new(Alignment::Left, [""].into_iter().chain(columns.iter().map(|column| column.0)));
    for row in rows {
        let spread = |of: fn(&R) -> f64| Spread::of(row.rounds.iter().map(of));
        let cells = columns.iter().map(|&(_, digits, of)| show(spread(of), digits));
        table.row([row.broker.clone()].into_iter().chain(cells));
    }
    table
}

fn show(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or("-".to_owned(), |spread| spread.show(digits))
}

/// Line that tells whether the median has reached an aim.
fn verdict(text: &mut String, what: &str, reached: Option<Spread>, aim: f64, is_met: fn(f64, f64) -> bool) {
    let Some(reached) = reached else { return };
    let word = if is_met(reached.median, aim) { "met" } else { "MISSED" };
    let _ = writeln!(text, "aim for {SYNC}: {what}, {aim}: {word}, {}", reached.show(2));
}

#[cfg(test)]
mod tests {
    use super::super::durable::{Acknowledged, Round, Row};
    use super::super::yardstick::{Figures, Reached};
    use super::{SYNC, durable};
    use braid_measure::process::CpuShares;

    fn figures(rate: f64) -> Figures {
        let reached = Reached { rate, p50_milliseconds: 1.0, p99_milliseconds: 2.0 };
        Figures { reached, sync_p50_milliseconds: 1.0, sync_p99_milliseconds: 2.0 }
    }

    fn row(rate: f64, p99: f64) -> Row {
        let reached = Reached { rate, p50_milliseconds: 1.0, p99_milliseconds: p99 };
        let acknowledged =
            Acknowledged { reached, cpu_nanoseconds: 1.0, written: 300.0, shares: CpuShares::default() };
        let brokers = vec![(SYNC.to_owned(), acknowledged)];
        Row {
            payload: 256,
            window: 16,
            rounds: vec![Round { raw: figures(1000.0), log: figures(8000.0), served_log: reached, brokers }],
        }
    }

    #[test]
    fn aims_refer_to_the_log_and_the_disk() {
        let good = durable(&row(4000.0, 3.0), &[SYNC]);
        assert_eq!(good.matches(": met").count(), 2, "{good}");
        let bad = durable(&row(3999.0, 3.1), &[SYNC]);
        assert_eq!(bad.matches(": MISSED").count(), 2, "{bad}");
    }
}
