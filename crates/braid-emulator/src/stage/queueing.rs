//! Limit of a queue, and the order of queue, rate and delay.

use std::fmt;

use crate::spec::quantity::{Fault, bytes_text, parse_bytes, quoted};

/// The bound of a queue: packets, bytes, or both. What finds it full is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Packets, if they are bounded.
    pub packets: Option<u64>,
    /// Bytes of IP packets, if they are bounded.
    pub bytes: Option<u64>,
}

impl Limit {
    /// Default limit: 100,000 packets and 256 MiB, so that memory is bounded and no experiment meets a limit that it
    /// does not specify. (Linux's netem has 1000 packets by default.)
    pub const DEFAULT: Self = Self { packets: Some(100_000), bytes: Some(256 << 20) };

    /// Whether a packet of `size` bytes still fits.
    pub(crate) fn admits(self, packets: u64, bytes: u64, size: usize) -> bool {
        self.holds(packets + 1, bytes + size as u64)
    }

    /// Whether so much is within it.
    pub(crate) fn holds(self, packets: u64, bytes: u64) -> bool {
        self.packets.is_none_or(|limit| packets <= limit) && self.bytes.is_none_or(|limit| bytes <= limit)
    }

    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let remedy = "write packets as 1000p, bytes as 64kb, both as 1000p/64kb";
        let mut limit = Self { packets: None, bytes: None };
        for part in value.split('/') {
            let before = if let Some(number) = part.strip_suffix('p') {
                let packets = number.parse().ok().filter(|&packets| packets > 0);
                let packets = packets
                    .ok_or_else(|| Fault::new(format!("bad number \"{}\"", quoted(number)), remedy))?;
                limit.packets.replace(packets)
            } else {
                let bytes = parse_bytes(part).map_err(|_| {
                    Fault::new(format!("no number of packets or bytes \"{}\"", quoted(part)), remedy)
                })?;
                limit.bytes.replace(bytes)
            };
            if before.is_some() {
                return Err(Fault::new("the same limit twice", remedy));
            }
        }
        Ok(limit)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.packets, self.bytes) {
            (Some(packets), Some(bytes)) => write!(f, "{packets}p/{}", bytes_text(bytes)),
            (Some(packets), None) => write!(f, "{packets}p"),
            (None, Some(bytes)) => f.write_str(&bytes_text(bytes)),
            (None, None) => Ok(()),
        }
    }
}

/// Order of delay and line, which decides where packets wait and what the limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// As Linux's netem: the limit counts the packets that are being delayed too, and a packet that waits for the rate
    /// spends its delay while it waits: it leaves at `max(now + delay, leaving of the last) + its time on the line`.
    #[default]
    Netem,
    /// A queue before a line, then a delay: the limit counts only the packets that wait for the line or are on it.
    Line,
}

impl Order {
    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        match value {
            "netem" => Ok(Self::Netem),
            "line" => Ok(Self::Line),
            other => Err(Fault::new(format!("unknown order \"{}\"", quoted(other)), "write netem or line")),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Netem => "netem",
            Self::Line => "line",
        })
    }
}
