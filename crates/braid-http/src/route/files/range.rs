//! `Range` of a request. RFC 9110, 14.2

/// Part of a file that a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// All of it.
    All,
    /// Its bytes `from..to`.
    Part { from: u64, to: u64 },
    /// Nothing of it.
    Unsatisfiable,
}

/// Part of a file of `size` bytes. Several ranges, and what is no range of bytes, are all of it.
pub(super) fn select(range: Option<&str>, size: u64) -> Selection {
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let Some((first, last)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return Selection::All;
    };
    let (from, to) = match (number(first), number(last)) {
        // The last bytes.
        (None, Some(length)) if first.is_empty() => (size.saturating_sub(length), size),
        (Some(first), None) if last.is_empty() => (first, size),
        (Some(first), Some(last)) if first <= last => (first, last.saturating_add(1).min(size)),
        _ => return Selection::All,
    };
    if from < to { Selection::Part { from, to } } else { Selection::Unsatisfiable }
}

#[cfg(test)]
mod tests {
    use super::Selection::{All, Part, Unsatisfiable};
    use super::*;

    #[test]
    fn ranges_are_parts_of_the_file() {
        for (range, expected) in [
            ("bytes=0-0", Part { from: 0, to: 1 }),
            ("bytes=5-", Part { from: 5, to: 10 }),
            ("bytes=5-100", Part { from: 5, to: 10 }),
            ("bytes=0-99999999999999999999", Part { from: 0, to: 10 }),
            ("bytes=-3", Part { from: 7, to: 10 }),
            ("bytes=-30", Part { from: 0, to: 10 }),
            ("bytes=10-", Unsatisfiable),
            ("bytes=99999999999999999999-", Unsatisfiable),
            ("bytes=-0", Unsatisfiable),
            ("bytes=5-4", All),
            ("bytes=0-1,3-4", All),
            ("bytes=-", All),
            ("bytes=+1-2", All),
            ("lines=1-2", All),
            ("bytes", All),
        ] {
            assert_eq!(select(Some(range), 10), expected, "{range}");
        }
        assert_eq!(select(None, 10), All);
        assert_eq!(select(Some("bytes=0-"), 0), Unsatisfiable);
    }
}
