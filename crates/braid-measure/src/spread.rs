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
        let (lower, upper) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median: f64::midpoint(lower, upper), minimum, maximum, count: sorted.len() as u64 })
    }

    /// Spread of `ours[i] / theirs[i]` over the rounds in which both have a reading. Neighbours in time are divided by
    /// each other, so that slow changes of the machine cancel.
    pub fn of_ratios(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Option<Self> {
        Self::of(ours.iter().zip(theirs).filter_map(|(ours, theirs)| Some((*ours)? / (*theirs)?)))
    }

    /// `median (minimum..maximum)` with this many digits after the point.
    #[must_use]
    pub fn show(&self, digits: usize) -> String {
        let Self { median, minimum, maximum, .. } = self;
        format!("{median:.digits$} ({minimum:.digits$}..{maximum:.digits$})")
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

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
