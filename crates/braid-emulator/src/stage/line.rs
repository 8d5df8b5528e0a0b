//! The line of a link: how fast it sends, and when it stands still.

use std::fmt;
use std::time::Duration;

use super::policer::Rate;
use super::trace::{Opportunities, Trace};
use crate::prf::{CounterPrf, Stage, share_of};
use crate::spec::quantity::{Fault, duration_text, nanos, parse_duration, quoted};

/// Rate of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LineRate {
    /// Constant.
    Fixed(Rate),
    /// `2mbit-30mbit/100ms`: another one in each interval, at random between two.
    Varying {
        /// Least bits per second.
        from: u64,
        /// Most bits per second.
        to: u64,
        /// Length of an interval.
        every: Duration,
    },
}

impl LineRate {
    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let remedy = "write for example 10mbit, 29pps, or 2mbit-30mbit/100ms for one that varies";
        let Some((range, every)) = value.split_once('/') else {
            return Rate::parse(value).map(Self::Fixed);
        };
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        match (Rate::parse(from)?, Rate::parse(to)?) {
            (Rate::Bits(from), Rate::Bits(to)) if from <= to => {
                Ok(Self::Varying { from, to, every: parse_period(every)? })
            }
            _ => Err(Fault::new(format!("no range of rates \"{}\"", quoted(range)), remedy)),
        }
    }
}

impl fmt::Display for LineRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Fixed(rate) => rate.fmt(f),
            Self::Varying { from, to, every } => {
                write!(f, "{}-{}/{}", Rate::Bits(from), Rate::Bits(to), duration_text(every))
            }
        }
    }
}

/// Times at which the line stands still, once in each period, at a random place and of a random length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stall {
    /// Least length.
    pub from: Duration,
    /// Greatest length.
    pub to: Duration,
    /// Period, longer than `to`.
    pub every: Duration,
}

impl Stall {
    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let remedy = "write for example 30ms-300ms/2s";
        let Some((range, every)) = value.split_once('/') else {
            return Err(Fault::new("no period", remedy));
        };
        let ((from, to), every) = (parse_range(range, remedy)?, parse_period(every)?);
        if to >= every {
            return Err(Fault::new("stalls that are not shorter than their period", remedy));
        }
        Ok(Self { from, to, every })
    }

    /// Begin and end (ns) of the stall in period `n`.
    fn times(&self, n: u64, prf: &CounterPrf) -> (u64, u64) {
        let (from, to, every) = (nanos(self.from), nanos(self.to), nanos(self.every));
        let length = from + share_of(prf.roll(Stage::StallLength, n, false), to - from + 1);
        let begin = n.saturating_mul(every) + share_of(prf.roll(Stage::Stall, n, false), every - length);
        (begin, begin.saturating_add(length))
    }

    /// Time (ns) at which something ends that takes from `start` to `end` on a line that does not stand still.
    fn lengthen(&self, start: u64, mut end: u64, prf: &CounterPrf) -> u64 {
        let every = nanos(self.every);
        let mut n = start / every;
        while n <= end / every {
            let (begin, until) = self.times(n, prf);
            if begin <= end && until > start {
                end = end.saturating_add(until - begin.max(start));
            }
            n += 1;
        }
        end
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", range_text(self.from, self.to), duration_text(self.every))
    }
}

/// Packets that leave together, at ends of intervals of random length, as the frames that Wi-Fi aggregates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Aggregate {
    /// Shortest interval, above 0.
    pub from: Duration,
    /// Longest interval.
    pub to: Duration,
}

impl Aggregate {
    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let remedy = "write for example 2ms-10ms";
        let (from, to) = parse_range(value, remedy)?;
        check_period(from)?;
        check_period(to)?;
        Ok(Self { from, to })
    }
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&range_text(self.from, self.to))
    }
}

fn parse_range(value: &str, remedy: &str) -> Result<(Duration, Duration), Fault> {
    let (from, to) = value.split_once('-').unwrap_or((value, value));
    let (from, to) = (parse_duration(from)?, parse_duration(to)?);
    if from > to {
        return Err(Fault::new(format!("a range that falls \"{}\"", quoted(value)), remedy));
    }
    Ok((from, to))
}

fn range_text(from: Duration, to: Duration) -> String {
    match from == to {
        true => duration_text(from),
        false => format!("{}-{}", duration_text(from), duration_text(to)),
    }
}

fn parse_period(value: &str) -> Result<Duration, Fault> {
    let period = parse_duration(value)?;
    check_period(period)?;
    Ok(period)
}

/// Periods that are sensible, and cheap to count.
const SHORTEST_PERIOD: Duration = Duration::from_micros(100);
const LONGEST_PERIOD: Duration = Duration::from_secs(86_400);

/// Refuses a period that is too short or too long.
pub(super) fn check_period(period: Duration) -> Result<(), Fault> {
    match (SHORTEST_PERIOD..=LONGEST_PERIOD).contains(&period) {
        true => Ok(()),
        false => Err(Fault::new("a time that is not between 100us and 86400s", "write for example 100ms")),
    }
}

/// Intervals of aggregation that are counted singly.
const PASSED_ONE_BY_ONE: u64 = 1000;

/// Parameters of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LineSpec {
    pub(crate) service: Service,
    pub(crate) stall: Option<Stall>,
    pub(crate) aggregate: Option<Aggregate>,
}

/// Capacity of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Service {
    Rate(LineRate),
    Trace(Trace),
}

/// A line, which sends one packet after the other. Times are ns since the start of the link.
#[derive(Debug)]
pub(crate) struct Line {
    spec: LineSpec,
    opportunities: Opportunities,
    /// Time at which the line has sent all that it was given.
    free: u64,
    /// Number and end of the interval of aggregation that was reached.
    interval: (u64, u64),
}

impl Line {
    /// `free`: time at which the line that was there before has sent all that it was given.
    pub(crate) fn new(spec: LineSpec, free: u64) -> Self {
        Self { spec, opportunities: Opportunities::default(), free, interval: (0, 0) }
    }

    pub(crate) fn spec(&self) -> &LineSpec {
        &self.spec
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Sends the next packet, which is there at `now`. Returns the time at which all of it has left the line.
    pub(crate) fn send(&mut self, now: u64, size: usize, prf: &CounterPrf) -> u64 {
        let start = self.free.max(now);
        let end = match &self.spec.service {
            Service::Rate(LineRate::Fixed(rate)) => start.saturating_add(rate.occupancy(size)),
            Service::Rate(LineRate::Varying { from, to, every }) => {
                varying(start, size, (*from, *to), nanos(*every), prf)
            }
            Service::Trace(trace) => self.opportunities.take(trace, start, size),
        };
        self.free = self.spec.stall.map_or(end, |stall| stall.lengthen(start, end, prf));
        match self.spec.aggregate {
            Some(aggregate) => self.end_of_interval(aggregate, prf),
            None => self.free,
        }
    }

    /// The first end of an interval at which all has been sent.
    fn end_of_interval(&mut self, Aggregate { from, to }: Aggregate, prf: &CounterPrf) -> u64 {
        let (from, to) = (nanos(from), nanos(to));
        // After a long silence many intervals are passed at once.
        let skipped = (self.free.saturating_sub(self.interval.1) / to).saturating_sub(PASSED_ONE_BY_ONE);
        self.interval = (self.interval.0 + skipped, self.interval.1 + skipped * to);
        while self.interval.1 < self.free {
            let (n, end) = self.interval;
            let length = from + share_of(prf.roll(Stage::Aggregate, n, false), to - from + 1);
            self.interval = (n + 1, end + length);
        }
        self.interval.1
    }
}

/// Time at which `size` bytes have left that begin at `start`, at a rate that varies with each interval of `every` ns.
fn varying(start: u64, size: usize, (from, to): (u64, u64), every: u64, prf: &CounterPrf) -> u64 {
    const SECOND: u128 = 1_000_000_000;
    let mut at = start;
    // Bits, times 10^9.
    let mut left = size as u128 * 8 * SECOND;
    loop {
        let n = at / every;
        let rate = u128::from(from + share_of(prf.roll(Stage::Rate, n, false), to - from + 1));
        let until = (n + 1).saturating_mul(every);
        if until <= at {
            return u64::MAX;
        }
        let possible = u128::from(until - at) * rate;
        if left <= possible {
            return at.saturating_add(u64::try_from(left.div_ceil(rate)).unwrap_or(u64::MAX));
        }
        (left, at) = (left - possible, until);
    }
}
