//! Order of queue, rate and delay.

use std::fmt;

use crate::emulator::spec::error::{Fault, quoted};

/// Where packets wait, and what the limit counts.
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
