//! Median, range and quantiles of readings that are kept one by one.

use serde::Serialize;

/// Median and range of several readings of one quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Middle reading, or the mean of the two in the middle.
    pub median: f64,
    /// Smallest reading.
    pub minimum: f64,
    /// Largest reading.
    pub maximum: f64,
    /// Number of readings.
    #[serde(skip)]
    pub count: u64,
}

impl Spread {
    /// Spread of the finite `readings`; `None` without any.
    pub fn of(readings: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = readings.into_iter().filter(|reading| reading.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&minimum, &maximum) = (sorted.first()?, sorted.last()?);
        Some(Self { median: middle(&sorted)?, minimum, maximum, count: sorted.len() as u64 })
    }

    /// Spread of `ours[i] / theirs[i]` over the rounds in which both have a reading. Neighbours in time are divided by
    /// each other, so that slow changes of the machine cancel.
    pub fn of_ratios(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Option<Self> {
        Self::of(ours.iter().zip(theirs).filter_map(|(ours, theirs)| Some((*ours)? / (*theirs)?)))
    }

    /// Median of the readings when a missing one is longer than every other; `None` if the median is then a missing
    /// one.
    ///
    /// For durations that a time limit cut off.
    pub fn median_of_all(readings: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
        let mut sorted: Vec<f64> =
            readings.into_iter().map(|reading| reading.unwrap_or(f64::INFINITY)).collect();
        sorted.sort_by(f64::total_cmp);
        middle(&sorted).filter(|median| median.is_finite())
    }

    /// `median (minimum..maximum)` with this many digits after the point.
    #[must_use]
    pub fn show(&self, digits: usize) -> String {
        let Self { median, minimum, maximum, .. } = self;
        format!("{median:.digits$} ({minimum:.digits$}..{maximum:.digits$})")
    }
}

/// Middle value, or the mean of the two in the middle.
fn middle(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// Nearest-rank quantile of sorted values: the smallest value that the share `fraction` (0 to 1) of all values does not
/// exceed, always one of them; `None` without any.
#[must_use]
pub fn quantile(sorted: &[f64], fraction: f64) -> Option<f64> {
    value_at_rank(sorted, nearest_rank(fraction, sorted.len() as f64))
}

/// Nearest-rank quantile of `count` values of which only the smallest are known: `sorted`. `None` if the value is one
/// of the others, such as the latency of a message that never arrived.
#[must_use]
pub fn quantile_of_all(sorted: &[f64], count: f64, fraction: f64) -> Option<f64> {
    value_at_rank(sorted, nearest_rank(fraction, count))
}

fn value_at_rank(sorted: &[f64], rank: u64) -> Option<f64> {
    sorted.get(usize::try_from(rank).ok()? - 1).copied()
}

/// Rank of a quantile among `count` values, counted from 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at least 1, and far below 2^53")]
pub(crate) fn nearest_rank(fraction: f64, count: f64) -> u64 {
    // A product such as 0.07 * 100 may be a little above the whole number that it stands for.
    (fraction * count - 1e-9).ceil().max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        let odd = Spread { median: 2.0, minimum: 1.0, maximum: 9.0, count: 3 };
        assert_eq!(Spread::of([9.0, 1.0, f64::NAN, 2.0]), Some(odd));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).map(|spread| spread.median), Some(2.5));
        assert_eq!(Spread::of([]), None);
        let largest = Spread::of([f64::MAX, f64::MAX]).map(|spread| spread.median);
        assert_eq!(largest, Some(f64::MAX), "the mean of two does not overflow");
    }

    #[test]
    fn missing_readings_are_the_longest() {
        let median = |readings: &[Option<f64>]| Spread::median_of_all(readings.iter().copied());
        assert_eq!(median(&[None, Some(3.0), Some(1.0)]), Some(3.0));
        assert_eq!(median(&[Some(4.0), Some(1.0), Some(2.0), Some(3.0)]), Some(2.5));
        assert_eq!(median(&[None, Some(1.0)]), None, "half are not more than half");
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn quantiles_are_values() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        let found = [0.0, 0.07, 0.5, 0.99, 1.0].map(|fraction| quantile(&values, fraction));
        assert_eq!(found, [1.0, 7.0, 50.0, 99.0, 100.0].map(Some));
        assert_eq!((quantile(&[], 0.5), quantile(&[7.0], 0.99)), (None, Some(7.0)));
        assert_eq!(quantile_of_all(&values, 200.0, 0.5), Some(100.0));
        assert_eq!(quantile_of_all(&values, 201.0, 0.5), None, "the 101st never arrived");
    }

    #[test]
    fn ratios_pair_the_rounds_and_skip_failed_ones() {
        let ours = [Some(1.0), None, Some(30.0), Some(1.0)];
        let theirs = [Some(2.0), Some(1.0), Some(10.0), Some(0.0)];
        let expected = Spread { median: 1.75, minimum: 0.5, maximum: 3.0, count: 2 };
        assert_eq!(Spread::of_ratios(&ours, &theirs), Some(expected));
    }

    #[test]
    fn shown_with_its_range() {
        assert_eq!(
            Spread::of([1.0, 1.256, 2.0]).map(|spread| spread.show(2)),
            Some("1.26 (1.00..2.00)".into())
        );
    }
}
