//! What a program has written: its lines as they come, the last ones kept.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Lines and bytes that are kept; the oldest go first.
const KEPT_LINES: usize = 4096;
const KEPT_BYTES: usize = 4 << 20;
/// A longer line is cut into several.
const LONGEST: usize = 16 << 10;

/// Where a program wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Out => "out",
            Self::Err => "err",
        })
    }
}

/// A line that a program wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its number among the lines of both streams; the first is 0.
    pub number: u64,
    /// When it came, since the program's start.
    pub at: Duration,
    /// Where.
    pub stream: Stream,
    /// Without the end of the line. Bytes that are no UTF-8 are replaced.
    pub text: String,
}

/// The last lines of a program.
#[derive(Debug, Default)]
pub(super) struct Lines {
    kept: VecDeque<Line>,
    bytes: usize,
    next: u64,
}

impl Lines {
    /// Adds a line and gives it back with its number.
    pub(super) fn push(&mut self, at: Duration, stream: Stream, text: String) -> &Line {
        while self.kept.len() >= KEPT_LINES || self.bytes + text.len() > KEPT_BYTES {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.bytes -= oldest.text.len();
        }
        self.bytes += text.len();
        let number = self.next;
        self.next += 1;
        self.kept.push_back(Line { number, at, stream, text });
        &self.kept[self.kept.len() - 1]
    }

    /// Those from number `first` on that are still kept.
    pub(super) fn since(&self, first: u64) -> impl Iterator<Item = &Line> {
        let oldest = self.next - self.kept.len() as u64;
        let skip = usize::try_from(first.saturating_sub(oldest)).unwrap_or(usize::MAX);
        self.kept.iter().skip(skip)
    }

    /// The number of the line that comes next.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The last line with something in it.
    pub(super) fn last(&self) -> Option<&Line> {
        self.kept.iter().rev().find(|line| !line.text.trim().is_empty())
    }
}

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    begun: Vec<u8>,
}

impl Splitter {
    /// Takes what was read and calls `line` for each whole line.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut line: impl FnMut(String)) {
        while !bytes.is_empty() {
            let room = LONGEST - self.begun.len();
            let ahead = &bytes[..bytes.len().min(room)];
            let end = ahead.iter().position(|&byte| byte == b'\n');
            self.begun.extend_from_slice(&ahead[..end.unwrap_or(ahead.len())]);
            bytes = &bytes[end.map_or(ahead.len(), |end| end + 1)..];
            if end.is_some() || self.begun.len() == LONGEST {
                self.finish(&mut line);
            }
        }
    }

    /// Takes a last line without an end for whole.
    pub(super) fn close(&mut self, mut line: impl FnMut(String)) {
        if !self.begun.is_empty() {
            self.finish(&mut line);
        }
    }

    fn finish(&mut self, line: &mut impl FnMut(String)) {
        let text = self.begun.strip_suffix(b"\r").unwrap_or(&self.begun);
        line(String::from_utf8_lossy(text).into_owned());
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(parts: &[&[u8]]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut splitter = Splitter::default();
        for part in parts {
            splitter.feed(part, |line| lines.push(line));
        }
        splitter.close(|line| lines.push(line));
        lines
    }

    #[test]
    fn lines_are_whole_however_they_come() {
        assert_eq!(split(&[b"one\ntw", b"o\r\n", b"\nthree"]), ["one", "two", "", "three"]);
        assert_eq!(split(&[b"\xff\n"]), ["\u{fffd}"]);
        assert!(split(&[]).is_empty());
    }

    #[test]
    fn a_line_without_an_end_does_not_grow_for_ever() {
        let endless = vec![b'x'; LONGEST * 2 + 1];
        let lengths: Vec<usize> = split(&[&endless]).iter().map(String::len).collect();
        assert_eq!(lengths, [LONGEST, LONGEST, 1]);
    }

    #[test]
    fn the_last_lines_are_kept_with_their_numbers() {
        let mut lines = Lines::default();
        for number in 0..KEPT_LINES + 10 {
            lines.push(Duration::ZERO, Stream::Out, number.to_string());
        }
        assert_eq!(lines.since(0).next().map(|line| line.number), Some(10));
        assert_eq!(lines.since(20).next().map(|line| line.text.clone()), Some("20".into()));
        assert_eq!(lines.since(lines.next()).count(), 0);
        lines.push(Duration::ZERO, Stream::Err, "x".repeat(KEPT_BYTES));
        assert_eq!(lines.since(0).count(), 1);
        assert_eq!(lines.last().map(|line| line.stream), Some(Stream::Err));
    }
}
