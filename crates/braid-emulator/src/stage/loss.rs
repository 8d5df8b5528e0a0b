//! Which packets are lost: independently, in bursts by a Markov chain, or by their numbers.

use std::fmt;
use std::ops::RangeInclusive;

use crate::prf::{CounterPrf, Stage};
use crate::spec::quantity::{Fault, Probability, quoted};

/// A model of loss. The chains and their parameters are those of `tc netem loss`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Each packet by itself.
    Independent(Probability),
    /// Gilbert-Elliott: a good and a bad state, each with its own loss.
    GilbertElliott {
        /// From good to bad, per packet.
        p: Probability,
        /// From bad to good, per packet; bursts of bad last `1/r` packets on average.
        r: Probability,
        /// Loss in the bad state (`1-h`).
        bad: Probability,
        /// Loss in the good state (`1-k`).
        good: Probability,
    },
    /// Four states: received and lost in a gap, received and lost in a burst.
    FourState {
        /// From received in a gap to lost in a burst.
        p13: Probability,
        /// From lost in a burst to received in a gap.
        p31: Probability,
        /// From lost in a burst to received in a burst.
        p32: Probability,
        /// From received in a burst to lost in a burst.
        p23: Probability,
        /// From received in a gap to lost in a gap, for one packet.
        p14: Probability,
    },
    /// The packets with these numbers, in rising order; the first packet of a direction has number 1.
    Pattern(Vec<RangeInclusive<u64>>),
}

const CHAINS: &str = "write for example gemodel:1%,10% or state:1%,10%";

impl Loss {
    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        match value.split_once(':') {
            None => Probability::parse(value).map(Self::Independent),
            Some(("gemodel", list)) => {
                let given = shares(list, 4)?;
                let p = given[0];
                Ok(Self::GilbertElliott {
                    p,
                    r: given.get(1).copied().unwrap_or(p.complement()),
                    bad: given.get(2).copied().unwrap_or(Probability::ALWAYS),
                    good: given.get(3).copied().unwrap_or(Probability::NEVER),
                })
            }
            Some(("state", list)) => four_state(&shares(list, 5)?),
            Some(("pattern", list)) => pattern(list).map(Self::Pattern),
            Some((other, _)) => Err(Fault::new(
                format!("unknown loss model \"{}\"", quoted(other)),
                "write 1%, gemodel:p,r, state:p13,p31 or pattern:3,7,9-12",
            )),
        }
    }
}

fn shares(list: &str, most: usize) -> Result<Vec<Probability>, Fault> {
    let shares = list.split(',').map(Probability::parse).collect::<Result<Vec<_>, _>>()?;
    if shares.len() > most {
        return Err(Fault::new(format!("more than {most} shares"), CHAINS));
    }
    Ok(shares)
}

fn four_state(given: &[Probability]) -> Result<Loss, Fault> {
    let p13 = given[0];
    let p31 = given.get(1).copied().unwrap_or(p13.complement());
    let p32 = given.get(2).copied().unwrap_or(Probability::NEVER);
    let p23 = given.get(3).copied().unwrap_or(Probability::ALWAYS);
    let p14 = given.get(4).copied().unwrap_or(Probability::NEVER);
    for (one, other, names) in [(p13, p14, "p13 and p14"), (p31, p32, "p31 and p32")] {
        if one.plus(other).is_none() {
            return Err(Fault::new(format!("{names} are together above 100%"), "lower one of them"));
        }
    }
    Ok(Loss::FourState { p13, p31, p32, p23, p14 })
}

fn pattern(list: &str) -> Result<Vec<RangeInclusive<u64>>, Fault> {
    let remedy = "write rising packet numbers from 1, for example pattern:3,7,9-12";
    let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<u64>(), last.parse::<u64>()) else {
            return Err(Fault::new(format!("bad packet number \"{}\"", quoted(part)), remedy));
        };
        let after = ranges.last().map_or(0, |range| *range.end());
        if first <= after || last < first {
            return Err(Fault::new(format!("\"{}\" out of order", quoted(part)), remedy));
        }
        ranges.push(first..=last);
    }
    Ok(ranges)
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Independent(share) => write!(f, "{share}"),
            Self::GilbertElliott { p, r, bad, good } => write!(f, "gemodel:{p},{r},{bad},{good}"),
            Self::FourState { p13, p31, p32, p23, p14 } => write!(f, "state:{p13},{p31},{p32},{p23},{p14}"),
            Self::Pattern(ranges) => {
                f.write_str("pattern:")?;
                for (place, range) in ranges.iter().enumerate() {
                    let comma = if place > 0 { "," } else { "" };
                    match (range.start(), range.end()) {
                        (first, last) if first == last => write!(f, "{comma}{first}")?,
                        (first, last) => write!(f, "{comma}{first}-{last}")?,
                    }
                }
                Ok(())
            }
        }
    }
}

/// A model and where its chain stands. The chain takes one step per packet that it is asked about.
#[derive(Debug)]
pub struct LossModel {
    loss: Loss,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Good; received in a gap.
    Good,
    /// Bad; lost in a burst.
    Bad,
    ReceivedInBurst,
    LostInGap,
}

impl LossModel {
    /// The model in its first state, in which nothing was lost.
    pub fn new(loss: Loss) -> Self {
        Self { loss, state: State::Good }
    }

    pub(crate) fn loss(&self) -> &Loss {
        &self.loss
    }

    /// Whether packet `n`, or its duplicate when `copy` is set, is lost.
    pub fn step(&mut self, prf: &CounterPrf, n: u64, copy: bool) -> bool {
        match &self.loss {
            Loss::Independent(share) => share.hits(prf.roll(Stage::Loss, n, copy)),
            Loss::Pattern(ranges) => {
                let place = ranges.partition_point(|range| *range.end() < n);
                ranges.get(place).is_some_and(|range| range.contains(&n))
            }
            &Loss::GilbertElliott { p, r, bad, good } => {
                // The state before the step decides, so that a burst has the length of the stay in it.
                let (leave, share, other) = match self.state {
                    State::Bad => (r, bad, State::Good),
                    _ => (p, good, State::Bad),
                };
                if leave.hits(prf.roll(Stage::LossState, n, copy)) {
                    self.state = other;
                }
                share.hits(prf.roll(Stage::Loss, n, copy))
            }
            &Loss::FourState { p13, p31, p32, p23, p14 } => {
                let roll = prf.roll(Stage::LossState, n, copy);
                let either =
                    |one: Probability, other: Probability| one.plus(other).unwrap_or(Probability::ALWAYS);
                self.state = match self.state {
                    State::Good if p14.hits(roll) => State::LostInGap,
                    State::Good if either(p14, p13).hits(roll) => State::Bad,
                    State::Bad if p32.hits(roll) => State::ReceivedInBurst,
                    State::Bad if either(p32, p31).hits(roll) => State::Good,
                    State::ReceivedInBurst if p23.hits(roll) => State::Bad,
                    State::LostInGap => State::Good,
                    stays => stays,
                };
                matches!(self.state, State::Bad | State::LostInGap)
            }
        }
    }
}
