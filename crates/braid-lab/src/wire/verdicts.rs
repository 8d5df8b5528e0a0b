//! The lines of a verdict log, which [`VerdictLog`](super::VerdictLog) explains.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;
use std::time::Duration;

use super::flow::Flow;
use crate::emulator::{Direction, Fate, LinkSpec, PathSpec, Timeline};

/// The first line of a log.
pub(super) const TITLE: &str = "# braidmq verdicts 1";

/// The largest size that is believed: that of the largest frame.
const LARGEST: usize = 65_536 + 64;

/// One packet's lot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) direction: Direction,
    pub(super) index: u64,
    pub(super) copy: bool,
    pub(super) at: Duration,
    pub(super) size: usize,
    pub(super) flow: Option<Flow>,
    pub(super) outcome: Outcome,
    pub(super) corrupted: Option<u64>,
}

/// Outcome of a packet at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Settled(Fate),
    Inside,
}

impl Record {
    /// Fate, due time and flipped bit.
    pub(super) fn verdict_text(&self) -> String {
        verdict_text(self.outcome, self.corrupted)
    }
}

pub(super) fn verdict_text(outcome: Outcome, corrupted: Option<u64>) -> String {
    let due = match outcome {
        Outcome::Settled(Fate::Sent { due } | Fate::Overtook { due }) => format!(" due={}", Seconds(due)),
        _ => String::new(),
    };
    let bit = corrupted.map(|bit| format!(" bit={bit}")).unwrap_or_default();
    format!("{}{due}{bit}", word(outcome))
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Settled(Fate::Sent { .. }) => "sent",
        Outcome::Settled(Fate::Overtook { .. }) => "overtook",
        Outcome::Settled(Fate::Unmatched) => "unmatched",
        Outcome::Settled(Fate::Policed) => "policed",
        Outcome::Settled(Fate::Lost) => "lost",
        Outcome::Settled(Fate::QueueFull) => "queue-full",
        Outcome::Settled(Fate::Forgotten) => "forgotten",
        Outcome::Settled(Fate::TooBig) => "too-big",
        Outcome::Inside => "inside",
    }
}

fn outcome(word: &str, due: Option<Duration>) -> Option<Outcome> {
    Some(Outcome::Settled(match word {
        "sent" => Fate::Sent { due: due? },
        "overtook" => Fate::Overtook { due: due? },
        "unmatched" => Fate::Unmatched,
        "policed" => Fate::Policed,
        "lost" => Fate::Lost,
        "queue-full" => Fate::QueueFull,
        "forgotten" => Fate::Forgotten,
        "too-big" => Fate::TooBig,
        "inside" => return Some(Outcome::Inside),
        _ => return None,
    }))
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, index, copy, at, size, flow, .. } = self;
        let mark = if *copy { '+' } else { '=' };
        write!(f, "{direction} {index} {mark} {} {size} ", Seconds(*at))?;
        match flow {
            Some(flow) => write!(f, "{flow}")?,
            None => f.write_str("- - -")?,
        }
        write!(f, " {}", self.verdict_text())
    }
}

impl FromStr for Record {
    type Err = &'static str;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = line.split(' ').collect();
        let [direction, index, mark, at, size, protocol, source, destination, fate, rest @ ..] = &words[..]
        else {
            return Err("too few columns");
        };
        let flow = match *protocol {
            "-" => None,
            _ => Some([*protocol, source, destination].join(" ").parse()?),
        };
        let (mut due, mut corrupted) = (None, None);
        for word in rest {
            match word.split_once('=') {
                Some(("due", value)) => due = Some(seconds(value).ok_or("bad due time")?),
                Some(("bit", value)) => corrupted = Some(value.parse().map_err(|_| "bad bit")?),
                _ => return Err("neither due= nor bit="),
            }
        }
        Ok(Self {
            direction: parse_direction(direction).ok_or("neither up nor down")?,
            index: index.parse().map_err(|_| "bad packet number")?,
            copy: match *mark {
                "=" => false,
                "+" => true,
                _ => return Err("neither = nor + after the number"),
            },
            at: seconds(at).ok_or("bad time")?,
            size: size.parse().ok().filter(|&size| size <= LARGEST).ok_or("bad size")?,
            flow,
            outcome: outcome(fate, due).ok_or("unknown fate, or one without due time")?,
            corrupted,
        })
    }
}

pub(super) fn parse_direction(word: &str) -> Option<Direction> {
    Direction::BOTH.into_iter().find(|direction| direction.to_string() == word)
}

/// A time as seconds with all nanoseconds.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.as_secs(), self.0.subsec_nanos())
    }
}

/// Reads what [`Seconds`] writes.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    let (whole, nanos) = text.split_once('.').filter(|(_, nanos)| nanos.len() == 9)?;
    let nanos = nanos.parse().ok().filter(|&nanos: &u32| nanos < 1_000_000_000)?;
    Some(Duration::new(whole.parse().ok()?, nanos))
}

/// A path as words; a NAT is no part of a change.
pub(super) fn path_text(path: &PathSpec) -> String {
    let path = Timeline::from(PathSpec { nat: None, ..path.clone() });
    LinkSpec { seed: None, up: path.clone(), down: path }.to_string()
}

/// A log being written.
#[derive(Debug)]
pub(super) struct Ledger<W>(W);

impl<W: Write> Ledger<W> {
    pub(super) fn new(mut to: W, link: &LinkSpec, seed: u64) -> io::Result<Self> {
        write!(to, "{TITLE}\nlink {link}\nseed {seed}\n")?;
        Ok(Self(to))
    }

    pub(super) fn record(&mut self, record: &Record) -> io::Result<()> {
        writeln!(self.0, "{record}")
    }

    pub(super) fn change(
        &mut self,
        direction: Direction,
        after: u64,
        at: Duration,
        path: &PathSpec,
    ) -> io::Result<()> {
        writeln!(self.0, "{direction} {after} ! {} {}", Seconds(at), path_text(path))
    }

    pub(super) fn unsent(
        &mut self,
        direction: Direction,
        index: u64,
        copy: bool,
        error: &str,
    ) -> io::Result<()> {
        let mark = if copy { '+' } else { '=' };
        writeln!(self.0, "# {direction} {index} {mark} was not sent: {error}")
    }

    pub(super) fn close(&mut self, direction: Direction, unlogged: u64) -> io::Result<()> {
        if unlogged == 0 { Ok(()) } else { writeln!(self.0, "unlogged {direction} {unlogged}") }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
