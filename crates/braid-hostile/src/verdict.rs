//! Bounds of a row, and the findings that exceed them.

use braid_measure::Latencies;
use braid_measure::Spread;
use serde::Serialize;

use crate::attacker::Counters;
use crate::row::Row;
use crate::usage::Sample;

/// Most that the p99 of a well-behaved pair may grow, as a factor of its quiet figure.
const FACTOR: f64 = 2.0;
/// Latency in milliseconds below which the factor does not matter. A message wakes four threads (publisher, broker,
/// subscriber, and the broker again for its acknowledgement), and each may have to wait for the rest of a slice of the
/// scheduler, 3 ms, on a machine whose cores are all busy.
pub(crate) const FLOOR_MS: f64 = 5.0;

/// Latencies of a pair in milliseconds; `None` if the message in question has not arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) max: Option<f64>,
}

impl Latency {
    pub(crate) fn of(latencies: &Latencies) -> Self {
        let percentiles = latencies.percentiles();
        Self { p50: percentiles.p50, p99: percentiles.p99, max: percentiles.max }
    }

    /// Median of each figure over the periods of a quiet phase.
    pub(crate) fn median(periods: &[Self]) -> Self {
        let median = |of: fn(&Self) -> Option<f64>| Spread::median_of_all(periods.iter().map(of));
        Self { p50: median(|one| one.p50), p99: median(|one| one.p99), max: median(|one| one.max) }
    }
}

/// Findings about a well-behaved pair.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct PairFinding {
    pub(crate) name: &'static str,
    /// In the quiet phase before the attack, which no attack has touched: the bounds come from it alone.
    pub(crate) quiet: Latency,
    pub(crate) attack: Latency,
    /// In the quiet phase after the attack.
    pub(crate) after: Latency,
    /// Messages of the whole run that never arrived.
    pub(crate) missing: u64,
    /// Lost connections.
    pub(crate) faults: Vec<String>,
}

impl PairFinding {
    /// Description of what is wrong.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = self.faults.clone();
        let name = self.name;
        if self.missing > 0 {
            wrong.push(format!("{name}: {} messages never arrived", self.missing));
        }
        let Some(quiet) = self.quiet.p99 else {
            wrong.push(format!("{name}: no p99 before the attack"));
            return wrong;
        };
        let bound = (FACTOR * quiet).max(FLOOR_MS);
        for (phase, latency) in [("in the attack", self.attack), ("after the attack", self.after)] {
            match latency.p99 {
                None => wrong.push(format!("{name}: no p99 {phase}")),
                Some(p99) if p99 > bound => {
                    wrong.push(format!("{name}: p99 {phase} {p99:.1} ms, where {bound:.1} ms are allowed"));
                }
                Some(_) => {}
            }
        }
        wrong
    }
}

/// Resources of the broker.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct UsageFinding {
    pub(crate) before: Sample,
    /// Largest values during the attack and after it.
    pub(crate) peak: Sample,
    /// At the end of the quiet phase after the attack.
    pub(crate) after: Sample,
    /// Cores that the broker used before the attack.
    pub(crate) quiet_cores: f64,
    /// Cores that the broker used during the attack.
    pub(crate) cores: f64,
    /// Cores that other processes than the broker and the well-behaved clients used during the attack.
    pub(crate) other_cores: f64,
}

/// Findings of a row.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Finding {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) attack: Counters,
    pub(crate) pairs: Vec<PairFinding>,
    pub(crate) usage: UsageFinding,
    /// Most growth of memory that the row allows, MiB.
    pub(crate) growth_bound: f64,
    /// Slowest fresh client after the attack, milliseconds.
    pub(crate) fresh_client_ms: f64,
    /// Descriptions of everything that is wrong; the row fails with any.
    pub(crate) wrong: Vec<String>,
}

impl Finding {
    pub(crate) fn new(row: &Row) -> Self {
        Self { name: row.name, unit: row.unit, growth_bound: row.growth_mib, ..Self::default() }
    }

    /// Finding of a row that could not be run.
    pub(crate) fn failed(row: &Row, reason: String) -> Self {
        Self { wrong: vec![reason], ..Self::new(row) }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.wrong.is_empty()
    }

    /// Largest growth of memory, MiB.
    pub(crate) fn growth(&self) -> f64 {
        (self.usage.peak.memory - self.usage.before.memory).max(0.0)
    }

    /// Adds descriptions of every bound that is exceeded.
    pub(crate) fn decide(&mut self) {
        let mut wrong: Vec<_> = self.pairs.iter().flat_map(PairFinding::wrong).collect();
        wrong.extend(self.attack.fault.clone());
        if self.attack.done == 0 {
            wrong.push("the attack did nothing".to_owned());
        }
        let (growth, bound) = (self.growth(), self.growth_bound);
        if growth > bound {
            wrong.push(format!("memory grew by {growth:.0} MiB, where {bound:.0} MiB are allowed"));
        }
        self.wrong.extend(wrong);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Finding);

    fn latency(p50: f64, p99: f64, max: f64) -> Latency {
        Latency { p50: Some(p50), p99: Some(p99), max: Some(max) }
    }

    fn good() -> Finding {
        let pair = PairFinding {
            name: "tcp",
            quiet: latency(0.5, 4.0, 9.0),
            attack: latency(1.0, 8.0, 90.0),
            after: latency(0.5, 8.0, 9.0),
            missing: 0,
            faults: Vec::new(),
        };
        Finding {
            attack: Counters { done: 1, ..Counters::default() },
            pairs: vec![pair],
            usage: UsageFinding {
                before: Sample { memory: 10.0, descriptors: 20 },
                peak: Sample { memory: 42.0, descriptors: 90 },
                ..UsageFinding::default()
            },
            growth_bound: 32.0,
            ..Finding::default()
        }
    }

    #[test]
    fn each_bound_is_one_line() {
        let changes: [(Change, &str); 12] = [
            (|_| {}, ""),
            (
                |row| row.pairs[0].attack.p99 = Some(8.1),
                "tcp: p99 in the attack 8.1 ms, where 8.0 ms are allowed",
            ),
            (
                |row| row.pairs[0].after.p99 = Some(8.1),
                "tcp: p99 after the attack 8.1 ms, where 8.0 ms are allowed",
            ),
            (
                |row| row.pairs[0].quiet.p99 = Some(2.0),
                "tcp: p99 in the attack 8.0 ms, where 5.0 ms are allowed; \
                 tcp: p99 after the attack 8.0 ms, where 5.0 ms are allowed",
            ),
            (|row| row.pairs[0].attack = latency(1.0, 5.0, 9.0), ""),
            (|row| row.pairs[0].missing = 1, "tcp: 1 messages never arrived"),
            (|row| row.pairs[0].attack.p99 = None, "tcp: no p99 in the attack"),
            (|row| row.pairs[0].after.p99 = None, "tcp: no p99 after the attack"),
            (|row| row.pairs[0].quiet.p99 = None, "tcp: no p99 before the attack"),
            (|row| row.usage.peak.memory = 42.6, "memory grew by 33 MiB, where 32 MiB are allowed"),
            (|row| row.attack.done = 0, "the attack did nothing"),
            (|row| row.attack.fault = Some("taken over".to_owned()), "taken over"),
        ];
        for (change, expected) in changes {
            let mut row = good();
            change(&mut row);
            row.decide();
            assert_eq!(row.wrong.join("; "), expected);
            assert_eq!(row.is_good(), expected.is_empty());
        }
    }

    #[test]
    fn a_row_that_could_not_be_run_is_a_finding() {
        let finding = Finding::failed(&crate::row::ROWS[0], "no broker".to_owned());
        assert!(!finding.is_good() && finding.name == crate::row::ROWS[0].name, "{finding:?}");
    }

    #[test]
    fn below_the_floor_the_factor_does_not_matter() {
        let mut row = good();
        row.pairs[0].quiet = latency(0.1, 0.3, 1.0);
        row.pairs[0].attack = latency(0.2, FLOOR_MS, 9.0);
        row.pairs[0].after = latency(0.2, FLOOR_MS, 9.0);
        row.decide();
        assert!(row.is_good(), "{:?}", row.wrong);
    }

    #[test]
    fn the_quiet_figure_is_the_median_of_its_periods() {
        let periods = [latency(1.0, 3.0, 9.0), latency(2.0, 80.0, 90.0), latency(1.5, 5.0, 7.0)];
        assert_eq!(Latency::median(&periods), latency(1.5, 5.0, 9.0));
        let lost = Latency { p99: None, ..latency(1.0, 1.0, 1.0) };
        assert_eq!(Latency::median(&[lost, lost, periods[0]]).p99, None);
    }
}
