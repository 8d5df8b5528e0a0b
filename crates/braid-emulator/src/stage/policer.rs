//! Rates of a line, for which packets wait, and of a policer: a token bucket without a queue, which drops at once.

use std::fmt;

use crate::spec::quantity::{
    Fault, bad_number, bytes_text, in_largest_unit, parse_bytes, quoted, scaled, with_unit,
};

/// Rate of a link. Sizes are those of IP packets, without link headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rate {
    /// Bits per second, above 0.
    Bits(u64),
    /// Packets per second, above 0, whatever their size.
    Packets(u64),
}

/// Decimal places of a unit, and the rate of so many of the smallest.
type Unit = (usize, fn(u64) -> Rate);

const UNITS: &[(&str, Unit)] = &[
    ("pps", (0, Rate::Packets)),
    ("bit", (0, Rate::Bits)),
    ("kbit", (3, Rate::Bits)),
    ("mbit", (6, Rate::Bits)),
    ("gbit", (9, Rate::Bits)),
];

impl Rate {
    /// Nanoseconds that a packet of `size` bytes occupies the line.
    pub(crate) fn occupancy(self, size: usize) -> u64 {
        const SECOND: u128 = 1_000_000_000;
        let nanos = match self {
            Self::Bits(rate) => size as u128 * 8 * SECOND / u128::from(rate.max(1)),
            Self::Packets(rate) => SECOND / u128::from(rate.max(1)),
        };
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let remedy = "write for example 10mbit, 64kbit or 29pps";
        let (number, (places, rate)) = with_unit(value, UNITS, remedy)?;
        match scaled(number, places) {
            None => Err(bad_number(number, remedy)),
            Some(0) => Err(Fault::new("a rate of 0", "write loss=100% for a link that passes nothing")),
            Some(number) => Ok(rate(number)),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Packets(rate) => write!(f, "{rate}pps"),
            Self::Bits(rate) => {
                let units = [(1_000_000_000, "gbit"), (1_000_000, "mbit"), (1000, "kbit"), (1, "bit")];
                f.write_str(&in_largest_unit(rate.into(), &units))
            }
        }
    }
}

/// Parameters of a policer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policer {
    /// `packets` per second, after a burst of at most `burst`: exact, as the `limit` statement of nftables.
    Packets {
        /// Packets per second.
        rate: u64,
        /// Packets that a full bucket holds.
        burst: u64,
    },
    /// As `Packets` with the credit arithmetic of `iptables -m limit` on a kernel of 250 Hz: credit comes every 4 ms,
    /// and rounding makes 29/s to 29.09/s.
    XtLimit {
        /// Packets per second.
        rate: u32,
        /// Packets that a full bucket holds.
        burst: u32,
    },
    /// `rate` bits per second, after a burst of at most `burst` bytes.
    Bits {
        /// Bits per second.
        rate: u64,
        /// Bytes that a full bucket holds.
        burst: u64,
    },
}

impl Policer {
    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let (xt, body) = value.strip_prefix("xt:").map_or((false, value), |body| (true, body));
        let (rate, burst) = body.split_once('/').map_or((body, None), |(rate, burst)| (rate, Some(burst)));
        let packets = |burst: &str| {
            burst.parse::<u64>().ok().filter(|&burst| burst > 0).ok_or_else(|| {
                let problem = format!("bad burst \"{}\"", quoted(burst));
                Fault::new(problem, "write a number of packets, for example 29pps/5")
            })
        };
        match (Rate::parse(rate)?, xt) {
            (Rate::Packets(rate), false) => Ok(Self::Packets { rate, burst: packets(burst.unwrap_or("5"))? }),
            (Rate::Packets(rate), true) => {
                let burst = packets(burst.unwrap_or("5"))?;
                let fits = u32::try_from(rate).ok().filter(|&rate| rate <= xt_limit::SCALE);
                match (fits, u32::try_from(burst)) {
                    (Some(rate), Ok(burst))
                        if u64::from(burst) * u64::from(xt_limit::SCALE / rate) <= 1 << 32 =>
                    {
                        Ok(Self::XtLimit { rate, burst })
                    }
                    _ => Err(Fault::new("more than iptables -m limit can express", "leave xt: away")),
                }
            }
            (Rate::Bits(rate), false) => {
                let Some(burst) = burst else {
                    let remedy = format!("write the bytes of its bucket, for example {}/32kb", quoted(body));
                    return Err(Fault::new("no burst", remedy));
                };
                Ok(Self::Bits { rate, burst: parse_bytes(burst)? })
            }
            (Rate::Bits(_), true) => Err(Fault::new(
                "a rate in bits",
                "iptables -m limit counts packets: write for example xt:29pps/5",
            )),
        }
    }
}

impl fmt::Display for Policer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Packets { rate, burst } => write!(f, "{rate}pps/{burst}"),
            Self::XtLimit { rate, burst } => write!(f, "xt:{rate}pps/{burst}"),
            Self::Bits { rate, burst } => write!(f, "{}/{}", Rate::Bits(rate), bytes_text(burst)),
        }
    }
}

/// The bucket of a policer. It starts full.
#[derive(Debug)]
pub(crate) struct Bucket {
    policer: Policer,
    credit: u128,
    filled: u64,
}

impl Bucket {
    pub(crate) fn new(policer: Policer, now: u64) -> Self {
        let clock = if matches!(policer, Policer::XtLimit { .. }) { xt_limit::jiffies(now) } else { now };
        Self { policer, credit: capacity(policer), filled: clock }
    }

    pub(crate) fn policer(&self) -> Policer {
        self.policer
    }

    /// Takes the tokens of a packet of `size` bytes at `now` (ns), or none if there are too few.
    pub(crate) fn admit(&mut self, now: u64, size: usize) -> bool {
        // Credit is in (tokens per second) x ns, so that no rate is rounded.
        let (clock, gain, cost) = match self.policer {
            Policer::Packets { rate, .. } => (now, u128::from(rate), SECOND),
            Policer::Bits { rate, .. } => (now, u128::from(rate), size as u128 * 8 * SECOND),
            Policer::XtLimit { rate, .. } => {
                (xt_limit::jiffies(now), xt_limit::CREDITS_PER_JIFFY, xt_limit::credits(rate, 1))
            }
        };
        let elapsed = u128::from(clock.saturating_sub(self.filled));
        self.filled = self.filled.max(clock);
        self.credit = self.credit.saturating_add(elapsed * gain).min(capacity(self.policer));
        let admitted = self.credit >= cost;
        if admitted {
            self.credit -= cost;
        }
        admitted
    }
}

const SECOND: u128 = 1_000_000_000;

fn capacity(policer: Policer) -> u128 {
    match policer {
        Policer::Packets { burst, .. } => u128::from(burst) * SECOND,
        Policer::Bits { burst, .. } => u128::from(burst) * 8 * SECOND,
        Policer::XtLimit { rate, burst } => xt_limit::credits(rate, burst),
    }
}

/// The arithmetic of the kernel's xt_limit at HZ = 250.
mod xt_limit {
    /// Units of a second in which iptables hands over the time between packets (XT_LIMIT_SCALE).
    pub(super) const SCALE: u32 = 10_000;
    const HZ: u128 = 250;
    /// The largest power of two that lets a day of credit fit into 32 bits.
    pub(super) const CREDITS_PER_JIFFY: u128 = 128;

    pub(super) fn jiffies(now: u64) -> u64 {
        now / 4_000_000
    }

    /// Cost of `packets` in credits.
    pub(super) fn credits(rate: u32, packets: u32) -> u128 {
        let spacing = u128::from(SCALE / rate.max(1));
        spacing * u128::from(packets) * HZ * CREDITS_PER_JIFFY / u128::from(SCALE)
    }
}
