//! Text in columns.

use braid_measure::Quantiles;

/// Least length of a shortened name.
const SHORTEST: usize = 8;

/// Lines of a table: the first column to the left, the others to the right. Where they are wider than `most` the first
/// column is cut.
pub(super) fn columns(header: &[&str], rows: &[Vec<String>], most: usize) -> Vec<String> {
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        cells.chain(header.get(at).map(|name| name.chars().count())).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..header.len()).map(width).collect();
    if let Some((first, others)) = widths.split_first_mut() {
        let taken: usize = others.iter().map(|width| width + 2).sum();
        *first = (*first).min(most.saturating_sub(taken).max(SHORTEST));
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).enumerate().map(|(at, (cell, &width))| match at {
            0 => format!("{cell:<width$.width$}"),
            _ => format!("  {cell:>width$}"),
        });
        padded.collect::<String>()
    };
    let head = line(&mut header.iter().copied());
    std::iter::once(head).chain(rows.iter().map(|row| line(&mut row.iter().map(String::as_str)))).collect()
}

/// Microseconds as milliseconds with three digits at least, such as `0.123`, `4.56` and `789`.
pub(super) fn millis(micros: f64) -> String {
    let millis = micros / 1000.0;
    match millis {
        ..1.0 => format!("{millis:.3}"),
        ..10.0 => format!("{millis:.2}"),
        ..100.0 => format!("{millis:.1}"),
        _ => format!("{millis:.0}"),
    }
}

/// A quantile in microseconds as milliseconds; `-` without quantiles.
pub(super) fn quantile(quantiles: Option<&Quantiles>, of: impl Fn(&Quantiles) -> f64) -> String {
    quantiles.map_or_else(|| "-".to_owned(), |quantiles| millis(of(quantiles)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["ä".to_owned(), "1000".to_owned()], vec!["long".to_owned(), "1".to_owned()]];
        assert_eq!(columns(&["t", "n"], &rows, 80), ["t        n", "ä     1000", "long     1"]);
    }

    #[test]
    fn names_are_cut_before_numbers() {
        let rows = [vec!["a/very/long/name".to_owned(), "1000".to_owned()]];
        assert_eq!(columns(&["topic", "n"], &rows, 16), ["topic          n", "a/very/lon  1000"]);
        assert_eq!(columns(&["topic", "n"], &rows, 0), ["topic        n", "a/very/l  1000"]);
    }

    #[test]
    fn milliseconds_have_three_digits() {
        for (micros, text) in [(123.0, "0.123"), (4560.0, "4.56"), (45_600.0, "45.6"), (789_000.0, "789")] {
            assert_eq!(millis(micros), text);
        }
        assert_eq!(quantile(None, |quantiles| quantiles.p50), "-");
    }
}
