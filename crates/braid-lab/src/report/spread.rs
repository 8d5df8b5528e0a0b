//! Spreads over several runs, and the parts of a report by variant and profile.

use braid_measure::number::fixed;
use serde::{Deserialize, Serialize};

use super::{Column, Profile, Reference, Report, Run, Variant};

/// [`braid_measure::Spread`] of a metric over runs, with the field names of `report.json`.
///
/// Latencies of runs in which the messages never arrived are infinite; JSON has `null` for them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Middle value, or the mean of the two in the middle.
    #[serde(with = "infinite")]
    pub median: f64,
    /// Smallest value.
    pub low: f64,
    /// Largest value.
    #[serde(with = "infinite")]
    pub high: f64,
    /// Number of runs with the metric.
    pub count: u64,
    /// Number of usable runs.
    #[serde(default)]
    pub runs: u64,
}

/// Infinite numbers as `null`.
mod infinite {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        value.is_finite().then_some(*value).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
    }
}

impl Spread {
    /// Spread of the finite `values`; `None` without any.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let braid_measure::Spread { median, minimum, maximum, count } = braid_measure::Spread::of(values)?;
        Some(Self { median, low: minimum, high: maximum, count, runs: count })
    }

    /// Spread of a latency that is infinite where it is missing; `None` if it is missing everywhere.
    fn of_latencies(values: &[Option<f64>]) -> Option<Self> {
        let found = Self::of(values.iter().flatten().copied())?;
        let high = if values.iter().all(Option::is_some) { found.high } else { f64::INFINITY };
        let median = braid_measure::Spread::median_of_all(values.iter().copied()).unwrap_or(f64::INFINITY);
        Some(Self { median, high, ..found })
    }

    /// `4 of 5`: runs that have the metric; `None` if all usable ones have it.
    pub(super) fn part(&self) -> Option<String> {
        (self.count < self.runs).then(|| format!("{} of {}", self.count, self.runs))
    }

    /// Whether the ranges have a value in common.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

impl Column {
    /// `value` with the digits of the column, without the unit.
    pub(super) fn shown(&self, value: f64) -> String {
        fixed(value, self.digits)
    }

    /// `smallest..largest`; `None` if both read alike.
    pub(super) fn range(&self, spread: Spread) -> Option<String> {
        let [low, high] = [spread.low, spread.high].map(|value| self.shown(value));
        (low != high).then(|| format!("{low}..{high}"))
    }

    /// `value` with the digits and the unit of the column: `12,345.6 ms`; a dash if it is not finite.
    pub fn shown_with_unit(&self, value: f64) -> String {
        let number = self.shown(value);
        if self.unit.is_empty() { number } else { format!("{number} {}", self.unit) }
    }
}

impl Report {
    /// Published figure.
    pub fn published(&self, profile: &str, variant: &str, metric: &str) -> Option<f64> {
        self.published.get(profile)?.get(variant)?.get(metric).copied()
    }

    /// Reference figures of a profile.
    pub(super) fn references_on<'a>(&'a self, profile: &'a str) -> impl Iterator<Item = &'a Reference> {
        self.references.iter().filter(move |reference| reference.profiles.iter().any(|name| name == profile))
    }

    /// Profiles with runs.
    pub(super) fn profiles_run(&self) -> impl Iterator<Item = &Profile> {
        self.profiles.iter().filter(|profile| self.variants_on(&profile.name).next().is_some())
    }

    /// Variants that ran on a profile.
    pub fn variants_on<'a>(&'a self, profile: &'a str) -> impl Iterator<Item = &'a Variant> {
        self.variants.iter().filter(move |variant| self.runs_of(&variant.name, profile).next().is_some())
    }

    /// Runs of a variant on a profile.
    pub fn runs_of<'a>(&'a self, variant: &'a str, profile: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |run| run.variant == variant && run.profile == profile)
    }

    /// Valid runs of a variant on a profile.
    pub fn usable<'a>(&'a self, variant: &'a str, profile: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs_of(variant, profile).filter(|run| run.refused.is_empty())
    }

    /// Spread of a metric over the valid runs of a variant on a profile; `None` if none has it. A run without it counts
    /// as the slowest if the metric is one of [`Report::latencies`].
    pub fn spread(&self, variant: &str, profile: &str, metric: &str) -> Option<Spread> {
        let values = self.usable(variant, profile).map(|run| run.metrics.get(metric).copied());
        let values: Vec<Option<f64>> = values.map(|value| value.filter(|value| value.is_finite())).collect();
        let spread = if self.latencies.iter().any(|name| name == metric) {
            Spread::of_latencies(&values)
        } else {
            Spread::of(values.iter().flatten().copied())
        };
        spread.map(|spread| Spread { runs: values.len() as u64, ..spread })
    }

    /// Median over all valid runs; `None` if it is infinite, or if a run lacks a metric that is no latency.
    pub(super) fn median(&self, variant: &str, profile: &str, metric: &str) -> Option<f64> {
        let spread = self.spread(variant, profile, metric)?;
        let is_known = spread.count == spread.runs || self.latencies.iter().any(|name| name == metric);
        Some(spread.median).filter(|median| is_known && median.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn median(values: &[f64]) -> Option<f64> {
        Spread::of(values.iter().copied()).map(|spread| spread.median)
    }

    #[test]
    fn numbers_with_their_unit() {
        let mut column = Column { metric: "p50".into(), title: String::new(), unit: "ms".into(), digits: 1 };
        let shown = [12_345.67, f64::NAN].map(|value| column.shown_with_unit(value));
        assert_eq!(shown, ["12,345.7 ms", "– ms"]);
        column.unit.clear();
        assert_eq!(column.shown_with_unit(3.0), "3.0");
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, f64::NAN, 1.0, f64::INFINITY, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[f64::MAX, f64::MAX]), Some(f64::MAX), "the mean of two does not overflow");
    }

    #[test]
    fn missing_latencies_are_infinite() {
        let infinite = f64::INFINITY;
        let of =
            |values: &[Option<f64>]| Spread::of_latencies(values).map(|spread| (spread.median, spread.high));
        assert_eq!(of(&[Some(1.0), None, Some(3.0)]), Some((3.0, infinite)));
        assert_eq!(of(&[Some(1.0), None]), Some((infinite, infinite)));
        assert_eq!(of(&[Some(1.0), Some(2.0)]), Some((1.5, 2.0)));
        assert_eq!(of(&[None, None]), None);
        let spread = Spread::of_latencies(&[Some(1.0), None]).expect("one has it");
        let json = serde_json::to_string(&spread).expect("JSON");
        assert!(json.contains(r#""median":null"#), "{json}");
        assert_eq!(serde_json::from_str::<Spread>(&json).expect("a spread"), spread);
    }

    #[test]
    fn ranges() {
        let spread = |low, high| Spread::of([low, high]).unwrap();
        assert!(spread(1.0, 3.0).overlaps(&spread(3.0, 4.0)));
        assert!(spread(1.0, 3.0).overlaps(&spread(2.0, 2.5)));
        assert!(!spread(1.0, 3.0).overlaps(&spread(3.1, 4.0)));
    }
}
