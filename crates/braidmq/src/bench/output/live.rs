//! Lines of a terminal that are redrawn in place.

/// Lines on a terminal that are drawn again in their place.
#[derive(Debug, Default)]
pub(in crate::bench) struct Live {
    /// The columns of each line that is shown.
    shown: Vec<usize>,
}

impl Live {
    /// Bytes that show `above` for good and `lines` below it on a terminal of this many columns, instead of the lines
    /// shown before. No line is wider than the window.
    pub(in crate::bench) fn redraw(&mut self, columns: usize, above: &[String], lines: &[String]) -> String {
        let columns = columns.max(1);
        let mut out = self.clear(columns);
        for line in above {
            out.push_str(line);
            out.push('\n');
        }
        // Without line wrap, so that characters of two columns cannot spoil the count of lines.
        out.push_str("\x1b[?7l");
        self.shown.clear();
        for line in lines {
            let line: String = line.chars().take(columns).collect();
            self.shown.push(line.chars().count());
            out.push_str(&line);
            out.push('\n');
        }
        out.push_str("\x1b[?7h");
        out
    }

    /// Clears the shown lines. A window that became narrower has wrapped them.
    fn clear(&self, columns: usize) -> String {
        let rows: usize = self.shown.iter().map(|width| width.div_ceil(columns).max(1)).sum();
        if rows == 0 { String::new() } else { format!("\r\x1b[{rows}A\x1b[J") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|&line| line.to_owned()).collect()
    }

    #[test]
    fn lines_are_drawn_over_and_cut_at_the_edge() {
        let mut live = Live::default();
        assert_eq!(live.redraw(4, &[], &lines(&["abcdef", ""])), "\x1b[?7labcd\n\n\x1b[?7h");
        let second = live.redraw(4, &lines(&["a long event"]), &lines(&["x"]));
        assert_eq!(second, "\r\x1b[2A\x1b[Ja long event\n\x1b[?7lx\n\x1b[?7h");
    }

    #[test]
    fn a_narrower_window_has_more_rows_to_clear() {
        let mut live = Live::default();
        live.redraw(10, &[], &lines(&["0123456789", "01234", ""]));
        assert!(live.redraw(4, &[], &[]).starts_with("\r\x1b[6A"));
        assert_eq!(live.redraw(0, &[], &[]), "\x1b[?7l\x1b[?7h");
    }
}
