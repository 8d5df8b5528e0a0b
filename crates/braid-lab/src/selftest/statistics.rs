//! The little statistics that is needed.

/// The value that chi-square with one degree of freedom exceeds once in a thousand times.
const CHI_SQUARE_LIMIT: f64 = 10.828;
/// What lies outside the interval of 99.9 % at one side.
const TAIL: f64 = 0.0005;
/// From this variance on a binomial distribution is taken as normal.
const NORMAL_FROM: f64 = 25.0;

/// Chi-square of `hits` in `trials` where each has the chance `share`; 0 where nothing can differ.
pub(super) fn chi_square(hits: u64, trials: u64, share: f64) -> f64 {
    let (expected, variance) = moments(trials, share);
    let distance = hits as f64 - expected;
    match (distance == 0.0, variance == 0.0) {
        (true, _) => 0.0,
        (false, true) => f64::INFINITY,
        (false, false) => distance * distance / variance,
    }
}

/// Whether `hits` in `trials`, each with the chance `share`, is in the middle 99.9 %.
pub(super) fn is_plausible(hits: u64, trials: u64, share: f64) -> bool {
    if hits > trials {
        return false;
    }
    let (_, variance) = moments(trials, share);
    if variance >= NORMAL_FROM {
        return chi_square(hits, trials, share) <= CHI_SQUARE_LIMIT;
    }
    // The rarer outcome is so rare that its probabilities can be summed from 0 on.
    let (rare, share) = if share <= 0.5 { (hits, share) } else { (trials - hits, 1.0 - share) };
    let mut probability = (trials as f64 * (-share).ln_1p()).exp();
    let mut below = 0.0;
    for outcome in 0..rare {
        below += probability;
        probability *= (trials - outcome) as f64 / (outcome + 1) as f64 * share / (1.0 - share);
    }
    // At most `rare`, and at least `rare`.
    below + probability >= TAIL && 1.0 - below >= TAIL
}

fn moments(trials: u64, share: f64) -> (f64, f64) {
    let expected = trials as f64 * share;
    (expected, expected * (1.0 - share))
}

/// The value below or at which `share` of the sorted `values` lie; 0 if there are none.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil().max(1.0);
    // Never negative, and far below 2^52.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank in a slice")]
    let place = rank as usize - 1;
    sorted.get(place).or(sorted.last()).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exact interval, from tables of the binomial distribution.
    #[test]
    fn the_interval_is_that_of_the_binomial_distribution() {
        // By the definition: 0.9^100 = 2.66e-5 is below 0.0005, P(X <= 1) = 3.2e-4 too, P(X <= 2) = 0.0019 is not.
        assert!(!is_plausible(0, 100, 0.1) && !is_plausible(1, 100, 0.1) && is_plausible(2, 100, 0.1));
        // P(X >= 21) = 8.1e-4, P(X >= 22) = 2.9e-4.
        assert!(is_plausible(21, 100, 0.1) && !is_plausible(22, 100, 0.1));
        // The mirror image.
        assert!(!is_plausible(99, 100, 0.9) && is_plausible(98, 100, 0.9));
        assert!(is_plausible(79, 100, 0.9) && !is_plausible(78, 100, 0.9));
    }

    #[test]
    fn nothing_may_be_lost_without_loss_and_nothing_kept_without_mercy() {
        assert!(is_plausible(0, 1_000_000, 0.0) && !is_plausible(1, 1_000_000, 0.0));
        assert!(is_plausible(1000, 1000, 1.0) && !is_plausible(999, 1000, 1.0));
        assert!(is_plausible(0, 0, 0.1) && is_plausible(0, 1, 0.1));
        assert!(!is_plausible(2, 1, 0.1));
    }

    #[test]
    fn many_trials_are_judged_by_the_normal_distribution() {
        // 10,000 trials: 1000 +- 30; 3.29 deviations are 98.7.
        assert!(is_plausible(1098, 10_000, 0.1) && !is_plausible(1099, 10_000, 0.1));
        assert!(is_plausible(902, 10_000, 0.1) && !is_plausible(901, 10_000, 0.1));
        assert!((chi_square(1030, 10_000, 0.1) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn quantiles_are_values() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|share| quantile(&values, share)), [1.0, 50.0, 99.0, 100.0]);
        assert_eq!((quantile(&[], 0.5), quantile(&[7.0], 0.99)), (0.0, 7.0));
    }
}
