//! What links did second by second.

use std::time::Duration;

use crate::emulator::PathCounters;
use crate::report::{Series, SeriesKind};

/// Reads counters that only grow, once a second.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// By second: those of each link, up and down.
    rows: Vec<Vec<[PathCounters; 2]>>,
}

impl Samples {
    /// Whether another row is due, `since` the start of the run.
    pub(super) fn is_due(&self, since: Duration) -> bool {
        since.as_secs() >= self.rows.len() as u64
    }

    pub(super) fn push(&mut self, row: Vec<[PathCounters; 2]>) {
        self.rows.push(row);
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
