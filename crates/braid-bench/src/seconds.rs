//! Counts by whole seconds since the start of a run, in lists that begin with second 0.

/// Seconds of a year, the longest measurement.
const MOST: usize = 366 * 24 * 3600;

/// Adds to the count of a second.
pub(crate) fn add_at(seconds: &mut Vec<u64>, second: usize, by: u64) {
    let second = second.min(MOST);
    if seconds.len() <= second {
        seconds.resize(second + 1, 0);
    }
    seconds[second] += by;
}

/// Adds another list second by second.
pub(crate) fn add_all(seconds: &mut Vec<u64>, others: &[u64]) {
    if seconds.len() < others.len() {
        seconds.resize(others.len(), 0);
    }
    seconds.iter_mut().zip(others).for_each(|(second, other)| *second += other);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_grow_to_the_last_second_and_no_further_than_a_year() {
        let mut seconds = Vec::new();
        add_at(&mut seconds, 2, 5);
        add_at(&mut seconds, 0, 1);
        assert_eq!(seconds, [1, 0, 5]);
        add_all(&mut seconds, &[1, 2]);
        add_all(&mut seconds, &[0, 0, 0, 7]);
        assert_eq!(seconds, [2, 2, 5, 7]);
        add_at(&mut seconds, usize::MAX, 1);
        assert_eq!(seconds.len(), MOST + 1);
    }
}
