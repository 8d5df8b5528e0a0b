//! Recorded links, in the format of mahimahi: a line for each opportunity to deliver 1500 bytes.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::spec::quantity::{Fault, quoted};

/// Bytes of an opportunity.
const OPPORTUNITY: usize = 1500;

const MILLISECOND: u64 = 1_000_000;

/// Traces that are part of the program.
const BUILT_IN: [(&str, &str); 2] = [
    ("lte-driving", include_str!("../../traces/lte-driving.trace")),
    ("lte-walking", include_str!("../../traces/lte-walking.trace")),
];

/// Times at which a link could deliver 1500 bytes each. Behind its end it begins again.
#[derive(Clone, PartialEq, Eq)]
pub struct Trace {
    /// Name of one that is part of the program, or path of a file.
    name: String,
    /// Milliseconds, never falling; the last is above 0, and the length of the trace.
    opportunities: Arc<[u32]>,
}

impl Trace {
    /// Reads one that is part of the program, or else a file.
    pub(crate) fn parse(name: &str) -> Result<Self, Fault> {
        let names: Vec<_> = BUILT_IN.iter().map(|(known, _)| *known).collect();
        let remedy = format!(
            "write one of {}, or the path of a file with a line for each 1500 bytes: the millisecond at which they can leave",
            names.join(", ")
        );
        let text = match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => (*text).to_owned(),
            None => std::fs::read_to_string(Path::new(name))
                .map_err(|error| Fault::new(format!("cannot read {}: {error}", quoted(name)), &remedy))?,
        };
        let fault = |line: usize, problem: &str| {
            Fault::new(format!("{} line {line}: {problem}", quoted(name)), &remedy)
        };
        let mut opportunities = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let at: u32 = line.trim().parse().map_err(|_| fault(number + 1, "no whole number"))?;
            if opportunities.last().is_some_and(|last| *last > at) {
                return Err(fault(number + 1, "an earlier time than the line before"));
            }
            opportunities.push(at);
        }
        match opportunities.last() {
            None | Some(0) => Err(fault(opportunities.len(), "no time above 0")),
            Some(_) => Ok(Self { name: name.to_owned(), opportunities: opportunities.into() }),
        }
    }

    /// Bits per second on average.
    #[must_use]
    pub fn mean_rate(&self) -> f64 {
        (self.opportunities.len() * OPPORTUNITY * 8) as f64 / self.length() as f64 * 1e9
    }

    /// Length, ns.
    fn length(&self) -> u64 {
        self.opportunities.last().map_or(MILLISECOND, |last| u64::from(*last) * MILLISECOND)
    }

    /// Time (ns) of opportunity `n`.
    fn at(&self, n: u64) -> u64 {
        let all = self.opportunities.len() as u64;
        let in_trace = usize::try_from(n % all).unwrap_or(0);
        let time = u64::from(self.opportunities[in_trace]) * MILLISECOND;
        (n / all).saturating_mul(self.length()).saturating_add(time)
    }

    /// The first opportunity at `at` (ns) or later.
    fn first_at(&self, at: u64) -> u64 {
        let all = self.opportunities.len() as u64;
        let (round, rest) = (at / self.length(), at % self.length());
        let before = self.opportunities.partition_point(|time| u64::from(*time) * MILLISECOND < rest);
        // The end of a round may have opportunities of its own, at a time that is the start of the next.
        let at_end = match rest == 0 && round > 0 {
            true => self
                .opportunities
                .iter()
                .rev()
                .take_while(|time| u64::from(**time) * MILLISECOND == self.length())
                .count(),
            false => 0,
        };
        round * all + before as u64 - at_end as u64
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("name", &self.name)
            .field("opportunities", &self.opportunities.len())
            .finish()
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Opportunities of a trace that were used.
#[derive(Debug, Default)]
pub(crate) struct Opportunities {
    /// The present one.
    n: u64,
    /// Bytes of it that are used.
    used: usize,
}

impl Opportunities {
    /// Takes opportunities for `size` bytes that are there at `now` (ns). Returns the time of the last one. What of an
    /// opportunity finds no packet is lost.
    pub(crate) fn take(&mut self, trace: &Trace, now: u64, size: usize) -> u64 {
        let first = trace.first_at(now);
        if first > self.n {
            (self.n, self.used) = (first, 0);
        }
        self.used += size;
        while self.used > OPPORTUNITY {
            self.used -= OPPORTUNITY;
            self.n += 1;
        }
        trace.at(self.n)
    }
}
