//! Verdict logs as they are read, and whether the same comes out again.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use super::verdicts::{Outcome, Record, TITLE, mark, parse_direction, seconds, verdict_text};
use braid_emulator::{Direction, LinkSpec, PathSpec, Pipeline, Verdict, set_ecn};

/// A verdict log that was read: the link, the seed, and every packet with its time and its fate.
///
/// ```text
/// # braidmq verdicts 1
/// link delay=20ms / up: policer=29pps/5
/// seed 7
/// up 1 = 0.003000123 128 udp 10.0.0.1:5000 10.0.0.2:14567 sent due=0.023000123
/// up 2 = 0.003105000 128 udp 10.0.0.1:5000 10.0.0.2:14567 policed
/// up 2 ! 1.500000000 delay=10ms
/// ```
///
/// A line is the fate of one packet: direction; number; `=`, or `+` for a duplicate; when it arrived, seconds since the
/// start; its bytes without link header; protocol, source and destination, or `- - -`; its fate; when it was due; and
/// `bit=77` if that bit was flipped, `ce` if the packet was marked, and `ecn=2` if it came with these bits. `inside`
/// are those that were still there at the end. Lines stand in the order in which fates were settled. With `!` the line
/// says that the link was changed after that packet, and to what. Lines with `#` are remarks, and `unlogged up 12`
/// counts those for which the disk was too slow.
#[derive(Debug, Clone, PartialEq)]
pub struct VerdictLog {
    link: LinkSpec,
    seed: u64,
    records: Vec<Record>,
    changes: Vec<Change>,
    unlogged: u64,
}

#[derive(Debug, Clone, PartialEq)]
struct Change {
    direction: Direction,
    after: u64,
    at: Duration,
    path: PathSpec,
}

/// A line that is none of a verdict log.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("line {line}: {problem}")]
pub struct VerdictLogError {
    /// Its number, counted from 1.
    pub line: usize,
    /// The error.
    pub problem: String,
}

/// A packet whose fate is another one when the log is replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Its direction.
    pub direction: Direction,
    /// Its number.
    pub index: u64,
    /// Whether it is a duplicate.
    pub copy: bool,
    /// The fate in the log, in its words; `None` if the log has no such packet.
    pub logged: Option<String>,
    /// The fate now.
    pub replayed: Option<String>,
}

impl VerdictLog {
    /// Number of packet lines, and of lines that are missing because the disk was too slow.
    pub fn lines(&self) -> (usize, u64) {
        (self.records.len(), self.unlogged)
    }

    /// Feeds the packets of the log with their times into pipelines with the same link and seed, and says what comes
    /// out differently: nothing, unless the log lacks lines. Packets are made from addresses, ports and TCP flags. A
    /// NAT sees the due times of both directions in order, which two threads may have missed by their lateness.
    pub fn replay(&self) -> Vec<Difference> {
        let (up, down) = Pipeline::pair(&self.link, self.seed);
        let (up, down) = (
            DirectionReplay::new(self, Direction::Up, up),
            DirectionReplay::new(self, Direction::Down, down),
        );
        let replayed = replay([up, down]);
        let mut differences = Vec::new();
        let mut logged = BTreeMap::new();
        for record in &self.records {
            let key = (record.direction as usize, record.index, record.copy);
            let now = replayed.get(&key).map(settled_text);
            logged.insert(key, ());
            // Packets inside when the link stopped get their fate only in the replay.
            let same = record.outcome == Outcome::Inside || now.as_ref() == Some(&record.verdict_text());
            if !same {
                let &Record { direction, index, copy, .. } = record;
                let logged = Some(record.verdict_text());
                differences.push(Difference { direction, index, copy, logged, replayed: now });
            }
        }
        for ((direction, index, copy), verdict) in replayed {
            if !logged.contains_key(&(direction, index, copy)) {
                let replayed = Some(settled_text(&verdict));
                let direction = Direction::BOTH[direction];
                differences.push(Difference { direction, index, copy, logged: None, replayed });
            }
        }
        differences
    }
}

fn settled_text(verdict: &Verdict) -> String {
    verdict_text(Outcome::Settled(verdict.fate), verdict.corrupted, verdict.is_marked)
}

type Verdicts = BTreeMap<(usize, u64, bool), Verdict>;

/// Replay of one direction.
struct DirectionReplay<'a> {
    pipeline: Pipeline,
    arrivals: std::iter::Peekable<std::vec::IntoIter<&'a Record>>,
    changes: std::iter::Peekable<std::vec::IntoIter<&'a Change>>,
    arrived: u64,
}

impl<'a> DirectionReplay<'a> {
    fn new(log: &'a VerdictLog, direction: Direction, pipeline: Pipeline) -> Self {
        let ours = log.records.iter().filter(|record| record.direction == direction);
        // A packet and its duplicate are two lines and one arrival.
        let by_index: BTreeMap<u64, &Record> = ours.map(|record| (record.index, record)).collect();
        let arrivals: Vec<&Record> = by_index.into_values().collect();
        let changes: Vec<&Change> =
            log.changes.iter().filter(|change| change.direction == direction).collect();
        let (arrivals, changes) = (arrivals.into_iter().peekable(), changes.into_iter().peekable());
        Self { pipeline, arrivals, changes, arrived: 0 }
    }

    /// Time of the next event: a packet comes or leaves, or the link changes.
    fn next_at(&mut self) -> Option<Duration> {
        let change = self.next_change().map(|change| change.at);
        let arrival = self.arrivals.peek().map(|record| record.at);
        [change.or(arrival), self.pipeline.next_due()].into_iter().flatten().min()
    }

    fn next_change(&mut self) -> Option<&'a Change> {
        self.changes.peek().copied().filter(|change| change.after <= self.arrived)
    }

    fn step(&mut self, now: Duration, verdicts: &mut Verdicts, place: usize) {
        if let Some(change) = self.next_change().filter(|change| change.at <= now) {
            self.changes.next();
            self.pipeline.change(change.at, change.path.clone());
        } else if let Some(record) = self.arrivals.next_if(|record| record.at <= now) {
            let mut packet =
                record.flow.map_or_else(|| vec![0; record.size], |flow| flow.packet(record.size));
            set_ecn(&mut packet, record.ecn);
            self.pipeline.handle(record.at, &packet);
            self.arrived = record.index;
        }
        while let Some(departure) = self.pipeline.take_due(now) {
            self.pipeline.recycle(departure.bytes);
        }
        while self.pipeline.take_reply().is_some() {}
        while let Some(verdict) = self.pipeline.take_verdict() {
            verdicts.insert((place, verdict.index, verdict.copy), verdict);
        }
    }
}

fn replay(mut directions: [DirectionReplay<'_>; 2]) -> Verdicts {
    let mut verdicts = Verdicts::new();
    loop {
        let times = directions.each_mut().map(DirectionReplay::next_at);
        let Some(now) = times.iter().flatten().min().copied() else { return verdicts };
        let place = usize::from(times[0] != Some(now));
        directions[place].step(now, &mut verdicts, place);
    }
}

impl FromStr for VerdictLog {
    type Err = VerdictLogError;

    fn from_str(text: &str) -> Result<Self, VerdictLogError> {
        let mut lines = text.lines().enumerate().map(|(place, line)| (place + 1, line));
        let mut header = |name: &str| match lines.next() {
            Some((line, text)) => match text.strip_prefix(name) {
                Some(rest) => Ok((line, rest)),
                None => Err(fail(line, format!("no \"{name}\" at its start"))),
            },
            None => Err(fail(1, format!("no line \"{name}\""))),
        };
        header(TITLE)?;
        let (line, link) = header("link ")?;
        let link = link.parse().map_err(|error| fail(line, format!("{error}")))?;
        let (line, seed) = header("seed ")?;
        let seed = seed.parse().map_err(|_| fail(line, "no whole number"))?;
        let mut log = Self { link, seed, records: Vec::new(), changes: Vec::new(), unlogged: 0 };
        for (line, text) in lines.filter(|(_, text)| !text.starts_with('#')) {
            if let Some(rest) = text.strip_prefix("unlogged ") {
                let count: Option<u64> = rest.split_once(' ').and_then(|(_, count)| count.parse().ok());
                log.unlogged += count.ok_or_else(|| fail(line, "no count"))?;
            } else if text.split(' ').nth(2) == Some("!") {
                log.changes.push(text.parse().map_err(|problem: &str| fail(line, problem))?);
            } else {
                log.records.push(text.parse().map_err(|problem: &str| fail(line, problem))?);
            }
        }
        Ok(log)
    }
}

fn fail(line: usize, problem: impl Into<String>) -> VerdictLogError {
    VerdictLogError { line, problem: problem.into() }
}

impl FromStr for Change {
    type Err = &'static str;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        let [direction, after, _, at, path] = words[..] else { return Err("too few columns") };
        let link: LinkSpec = path.parse().map_err(|_| "no path after the time")?;
        Ok(Self {
            direction: parse_direction(direction).ok_or("neither up nor down")?,
            after: after.parse().map_err(|_| "bad packet number")?,
            at: seconds(at).ok_or("bad time")?,
            path: link.up.start,
        })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, index, copy, logged, replayed } = self;
        let mark = mark(*copy);
        let text = |fate: &Option<String>| fate.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(f, "{direction} {index} {mark}: logged {}, now {}", text(logged), text(replayed))
    }
}
