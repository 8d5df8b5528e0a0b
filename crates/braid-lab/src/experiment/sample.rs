//! What links did second by second.

use std::time::Duration;

use crate::emulator::PathCounters;
use crate::report::{Series, SeriesKind};

/// Reads counters that only grow, once a second.
#[derive(Debug)]
pub(super) struct Samples {
    /// By second: those of each link, up and down.
    rows: Vec<Vec<[PathCounters; 2]>>,
}

impl Samples {
    pub(super) const fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// Whether another row is due, `since` the start of the run.
    pub(super) fn is_due(&self, since: Duration) -> bool {
        since.as_secs() >= self.rows.len() as u64
    }

    pub(super) fn push(&mut self, row: Vec<[PathCounters; 2]>) {
        self.rows.push(row);
    }

    /// Counters of a direction of a link at two times since the start of the run, in whole seconds.
    pub(super) fn between(
        &self,
        link: usize,
        up: bool,
        [from, until]: [Duration; 2],
    ) -> Option<[PathCounters; 2]> {
        let row = |at: Duration| {
            let row = self.rows.get(usize::try_from(at.as_secs()).ok()?).or(self.rows.last())?;
            row.get(link)?.get(usize::from(!up)).copied()
        };
        Some([row(from)?, row(until)?])
    }

    /// Packets per second by what became of them; what never happened has no line.
    pub(super) fn series(&self, links: &[&str]) -> Vec<Series> {
        let mut lines = Vec::new();
        for (place, link) in links.iter().enumerate() {
            for (way, name) in ["up", "down"].into_iter().enumerate() {
                for (what, count) in COUNTS {
                    let counts = self.rows.iter().filter_map(|row| row.get(place)?.get(way)).map(count);
                    let counts: Vec<u64> = counts.collect();
                    let steps = counts.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64);
                    let values: Vec<f64> = steps.collect();
                    if values.iter().any(|&value| value > 0.0) {
                        lines.push(Series {
                            kind: SeriesKind::Link,
                            name: format!("{link} {name} {what}"),
                            unit: "1/s".into(),
                            start: 0.0,
                            step: 1.0,
                            values,
                        });
                    }
                }
            }
        }
        lines
    }
}

type Count = fn(&PathCounters) -> u64;

const COUNTS: [(&str, Count); 6] = [
    ("passed", |counters| counters.sent.packets),
    ("policed", |counters| counters.policed.packets),
    ("lost", |counters| counters.lost.packets),
    ("queue full", |counters| counters.queue_full.packets),
    ("forgotten by the NAT", |counters| counters.forgotten.packets),
    ("too big", |counters| counters.too_big.packets),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of a direction that has passed and lost so many packets until now.
    fn counters(passed: u64, lost: u64) -> PathCounters {
        let mut counters = PathCounters::default();
        (counters.sent.packets, counters.lost.packets) = (passed, lost);
        counters
    }

    #[test]
    fn a_row_is_due_once_a_second_and_at_the_start() {
        let mut samples = Samples::new();
        assert!(samples.is_due(Duration::ZERO));
        samples.push(Vec::new());
        assert!(!samples.is_due(Duration::from_millis(999)));
        assert!(samples.is_due(Duration::from_secs(1)));
        samples.push(Vec::new());
        assert!(!samples.is_due(Duration::from_secs(1)));
    }

    #[test]
    fn what_counters_grew_by_is_a_line_and_what_never_happened_is_none() {
        let mut samples = Samples::new();
        for (passed, lost) in [(10, 0), (15, 0), (15, 2), (45, 2)] {
            samples
                .push(vec![[counters(passed, lost), counters(0, 0)], [counters(3, 0), counters(passed, 0)]]);
        }
        let lines = samples.series(&["bad", "good"]);
        let told: Vec<_> = lines.iter().map(|line| (line.name.as_str(), line.values.clone())).collect();
        let passed = vec![5.0, 0.0, 30.0];
        let expected = [
            ("bad up passed", passed.clone()),
            ("bad up lost", vec![0.0, 2.0, 0.0]),
            ("good down passed", passed),
        ];
        assert_eq!(told, expected);
        assert!(lines.iter().all(|line| (line.start, line.step, line.kind) == (0.0, 1.0, SeriesKind::Link)));
        assert!(Samples::new().series(&["bad"]).is_empty());
    }
}
