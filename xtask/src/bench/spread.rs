//! Several readings of one quantity, and ratios of readings made side by side.

use serde::Serialize;

/// Median and range of some readings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) minimum: f64,
    pub(super) maximum: f64,
}

impl Spread {
    /// The spread of `readings`; `None` when there are none.
    pub(super) fn of(readings: &[f64]) -> Option<Self> {
        let mut sorted = readings.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&minimum, &maximum) = (sorted.first()?, sorted.last()?);
        let (lower, upper) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median: f64::midpoint(lower, upper), minimum, maximum })
    }

    /// The spread of `ours[i] / theirs[i]` over the rounds where both have a reading. Neighbours in time are divided
    /// by each other, so that what changes slowly on the machine cancels.
    pub(super) fn of_ratios(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Option<Self> {
        let pairs = ours.iter().zip(theirs);
        let ratios: Vec<f64> = pairs.filter_map(|(ours, theirs)| Some((*ours)? / (*theirs)?)).collect();
        Self::of(&ratios.into_iter().filter(|ratio| ratio.is_finite()).collect::<Vec<_>>())
    }

    /// `median (minimum..maximum)` with so many digits behind the point.
    pub(super) fn show(&self, digits: usize) -> String {
        let Self { median, minimum, maximum } = self;
        format!("{median:.digits$} ({minimum:.digits$}..{maximum:.digits$})")
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn median_of_odd_and_even_counts() {
        let odd = Spread { median: 2.0, minimum: 1.0, maximum: 9.0 };
        assert_eq!(Spread::of(&[9.0, 1.0, 2.0]), Some(odd));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).map(|spread| spread.median), Some(2.5));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn ratios_pair_the_rounds_and_skip_failed_ones() {
        let ours = [Some(1.0), None, Some(30.0), Some(1.0)];
        let theirs = [Some(2.0), Some(1.0), Some(10.0), Some(0.0)];
        let expected = Spread { median: 1.75, minimum: 0.5, maximum: 3.0 };
        assert_eq!(Spread::of_ratios(&ours, &theirs), Some(expected));
    }

    #[test]
    fn shown_with_its_range() {
        assert_eq!(Spread { median: 1.256, minimum: 1.0, maximum: 2.0 }.show(2), "1.26 (1.00..2.00)");
    }
}
