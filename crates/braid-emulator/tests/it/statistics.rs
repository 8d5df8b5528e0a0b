//! Goodness of fit (Pearson's chi-square), at the 0.1 % level. Seeds are fixed, so a test that passes keeps passing.

/// Fails unless `observed` counts fit the `expected` ones, which have the same sum; cells should expect >= 5.
pub(crate) fn assert_fits(what: &str, observed: &[u64], expected: &[f64]) {
    assert_eq!(observed.len(), expected.len(), "{what}: cells");
    let cells = observed.iter().zip(expected);
    let chi: f64 = cells.map(|(&seen, &wanted)| (seen as f64 - wanted).powi(2) / wanted).sum();
    let limit = critical(observed.len() - 1);
    assert!(chi < limit, "{what}: chi-square {chi:.2} exceeds {limit:.2}: {observed:?} for {expected:.1?}");
}

/// Fails unless `hits` of `total` fit a probability.
pub(crate) fn assert_share(what: &str, hits: u64, total: u64, share: f64) {
    let expected = total as f64 * share;
    assert_fits(what, &[hits, total - hits], &[expected, total as f64 - expected]);
}

/// Counts of runs of length 1, 2, ... in `flags`, the last cell for all that are longer, and the expected ones if a
/// run ends after each packet with probability `end`.
pub(crate) fn run_lengths(flags: &[bool], end: f64, cells: usize) -> (Vec<u64>, Vec<f64>) {
    let mut observed = vec![0; cells];
    for run in flags.chunk_by(|a, b| a == b).filter(|run| run[0]) {
        observed[run.len().min(cells) - 1] += 1;
    }
    let runs = observed.iter().sum::<u64>() as f64;
    let tail = |length: usize| (1.0 - end).powf(length as f64);
    let expected = (0..cells)
        .map(|cell| runs * (tail(cell) - if cell + 1 < cells { tail(cell + 1) } else { 0.0 }))
        .collect();
    (observed, expected)
}

/// The 99.9 % quantile of chi-square: by table, then after Wilson and Hilferty (1931).
fn critical(degrees: usize) -> f64 {
    const SMALL: [f64; 5] = [10.828, 13.816, 16.266, 18.467, 20.515];
    const NORMAL: f64 = 3.0902;
    if let Some(&quantile) = SMALL.get(degrees - 1) {
        return quantile;
    }
    let degrees = degrees as f64;
    let ninth = 2.0 / (9.0 * degrees);
    degrees * (1.0 - ninth + NORMAL * ninth.sqrt()).powi(3)
}

#[test]
fn the_critical_values_are_those_of_the_tables() {
    for (degrees, table) in [(6, 22.458), (10, 29.588), (100, 149.449)] {
        assert!((critical(degrees) - table).abs() < table * 0.01, "{degrees}: {}", critical(degrees));
    }
}

#[test]
fn poor_fits_are_refused() {
    let caught = std::panic::catch_unwind(|| assert_share("1.2 % for 1 %", 1200, 100_000, 0.01));
    assert!(caught.is_err());
}
