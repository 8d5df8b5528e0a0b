//! Output, end and memory of a program.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::time::Duration;

use braid_measure::process::Resident;

/// End of a program, and its resource usage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct End {
    /// Exit code or signal.
    pub termination: Termination,
    /// Processor time, user and system, of the program and of children that it waited for.
    pub cpu: Duration,
    /// Peak resident memory in bytes, sampled every 250 ms and at each output; `None` if the program ended before the
    /// first sample, or if /proc belongs to other namespaces.
    pub peak_memory: Option<u64>,
    /// Run time in seconds.
    pub seconds: f64,
}

/// Exit code or signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Termination {
    /// Exit with this code.
    Exit(i32),
    /// Ended by this signal.
    Signal(i32),
}

impl End {
    /// Exit code in the shell's convention: 128 plus the number of the signal.
    pub fn code(&self) -> i32 {
        match self.termination {
            Termination::Exit(code) => code,
            Termination::Signal(number) => 128 + number,
        }
    }
}

impl fmt::Display for End {
    /// `exit code 1` or `signal 9`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.termination {
            Termination::Exit(code) => write!(f, "exit code {code}"),
            Termination::Signal(number) => write!(f, "signal {number}"),
        }
    }
}

// === Lines ===

/// Limits of the kept lines; the oldest are dropped first.
const KEPT_LINES: usize = 4096;
const KEPT_BYTES: usize = 4 << 20;
/// Longest line in bytes; a longer one is split.
const LONGEST: usize = 16 << 10;

/// Output stream of a program.
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

/// Line of a program's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Number among the lines of both streams, from 0.
    pub number: u64,
    /// Time of arrival, since the program's start.
    pub at: Duration,
    /// Stream on which it was written.
    pub stream: Stream,
    /// Text without the line end; invalid UTF-8 is replaced.
    pub text: String,
}

/// Ring of the last lines of a program.
#[derive(Debug, Default)]
pub(super) struct Lines {
    kept: VecDeque<Line>,
    bytes: usize,
    next: u64,
}

impl Lines {
    /// Appends a line.
    pub(super) fn push(&mut self, at: Duration, stream: Stream, text: String) {
        while self.kept.len() >= KEPT_LINES || self.bytes + text.len() > KEPT_BYTES {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.bytes -= oldest.text.len();
        }
        self.bytes += text.len();
        let number = self.next;
        self.next += 1;
        self.kept.push_back(Line { number, at, stream, text });
    }

    /// Kept lines from number `first` on.
    pub(super) fn since(&self, first: u64) -> impl Iterator<Item = &Line> {
        let oldest = self.next - self.kept.len() as u64;
        let skip = usize::try_from(first.saturating_sub(oldest)).unwrap_or(usize::MAX);
        self.kept.iter().skip(skip)
    }

    /// Number of the next line.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Last line that is not blank.
    pub(super) fn last(&self) -> Option<&Line> {
        self.kept.iter().rev().find(|line| !line.text.trim().is_empty())
    }
}

/// Splits a stream of bytes into lines.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    begun: Vec<u8>,
}

impl LineSplitter {
    /// Consumes bytes and calls `line` for each complete line.
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

    /// Emits an unterminated last line.
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

// === Memory ===

/// Samples the peak memory of a process, which the kernel forgets when it ends.
#[derive(Debug)]
pub(super) struct Memory {
    /// `None` if /proc belongs to another PID namespace, where the number is another process.
    process: Option<u32>,
    /// Bytes.
    pub(super) peak: Option<u64>,
}

impl Memory {
    pub(super) fn of(process: u32) -> Self {
        let own = fs::read_link("/proc/self").ok();
        let is_ours = own.is_some_and(|own| own.to_str() == Some(&std::process::id().to_string()));
        Self { process: is_ours.then_some(process), peak: None }
    }

    pub(super) fn sample(&mut self) {
        let resident = self.process.and_then(|process| Resident::of(process).ok());
        self.peak = resident.map(|resident| resident.peak).max(self.peak);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(parts: &[&[u8]]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut splitter = LineSplitter::default();
        for part in parts {
            splitter.feed(part, |line| lines.push(line));
        }
        splitter.close(|line| lines.push(line));
        lines
    }

    #[test]
    fn chunks_of_bytes_become_whole_lines() {
        assert_eq!(split(&[b"one\ntw", b"o\r\n", b"\nthree"]), ["one", "two", "", "three"]);
        assert_eq!(split(&[b"\xff\n"]), ["\u{fffd}"]);
        assert!(split(&[]).is_empty());
    }

    #[test]
    fn an_endless_line_is_split() {
        let endless = vec![b'x'; LONGEST * 2 + 1];
        let lengths: Vec<usize> = split(&[&endless]).iter().map(String::len).collect();
        assert_eq!(lengths, [LONGEST, LONGEST, 1]);
    }

    #[test]
    fn old_lines_are_dropped_and_numbers_stay() {
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
