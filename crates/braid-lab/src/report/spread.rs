//! What several runs of one thing say together.

use serde::{Deserialize, Serialize};

use super::{Profile, Reference, Report, Run, Variant};

/// The median of a metric over runs, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The value in the middle, or the mean of the two there.
    pub median: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
    /// Over how many runs.
    pub count: u64,
}

impl Spread {
    /// Of all `values` that are numbers; `None` when none is.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let median =
            if values.len().is_multiple_of(2) { values[middle - 1] / 2.0 + upper / 2.0 } else { upper };
        Some(Self { median, low: *values.first()?, high: *values.last()?, count: values.len() as u64 })
    }

    /// Whether the ranges have a value in common.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

impl Report {
    /// What somebody else published.
    pub fn published(&self, profile: &str, variant: &str, metric: &str) -> Option<f64> {
        self.published.get(profile)?.get(variant)?.get(metric).copied()
    }

    /// What else is known of a profile.
    pub(super) fn references_on<'a>(&'a self, profile: &'a str) -> impl Iterator<Item = &'a Reference> {
        self.references.iter().filter(move |reference| reference.profiles.iter().any(|name| name == profile))
    }

    /// The profiles on which anything ran.
    pub(super) fn profiles_run(&self) -> impl Iterator<Item = &Profile> {
        self.profiles.iter().filter(|profile| self.variants_on(&profile.name).next().is_some())
    }

    /// The variants that ran on a profile.
    pub fn variants_on<'a>(&'a self, profile: &'a str) -> impl Iterator<Item = &'a Variant> {
        self.variants.iter().filter(move |variant| self.runs_of(&variant.name, profile).next().is_some())
    }

    /// The runs of a variant on a profile.
    pub fn runs_of<'a>(&'a self, variant: &'a str, profile: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |run| run.variant == variant && run.profile == profile)
    }

    /// Those whose numbers may be used.
    pub fn usable<'a>(&'a self, variant: &'a str, profile: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs_of(variant, profile).filter(|run| run.refused.is_empty())
    }

    /// A metric over the usable runs of a variant on a profile; `None` when none of them has it.
    pub fn spread(&self, variant: &str, profile: &str, metric: &str) -> Option<Spread> {
        Spread::of(self.usable(variant, profile).filter_map(|run| run.metrics.get(metric).copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn median(values: &[f64]) -> Option<f64> {
        Spread::of(values.iter().copied()).map(|spread| spread.median)
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, f64::NAN, 1.0, f64::INFINITY, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[f64::MAX, f64::MAX]), Some(f64::MAX), "the mean of two does not overflow");
    }

    #[test]
    fn ranges() {
        let spread = |low, high| Spread::of([low, high]).unwrap();
        assert!(spread(1.0, 3.0).overlaps(&spread(3.0, 4.0)));
        assert!(spread(1.0, 3.0).overlaps(&spread(2.0, 2.5)));
        assert!(!spread(1.0, 3.0).overlaps(&spread(3.1, 4.0)));
    }
}
