//! Memory of the process.

/// Anonymous resident memory in bytes (heap and stacks); `None` without Linux's `/proc`.
pub(super) fn anonymous() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Parses the line `RssAnon:     1234 kB`.
fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_line_and_nothing_else() {
        assert_eq!(parse("VmRSS:\t  9 kB\nRssAnon:\t    1234 kB\nRssFile:\t 5 kB\n"), Some(1234 * 1024));
        assert_eq!(parse("RssAnon:\t 12\n"), None);
        assert_eq!(parse(""), None);
    }
}
