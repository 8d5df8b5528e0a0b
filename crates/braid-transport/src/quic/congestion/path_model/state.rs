//! What a gate knows, for those who look at it.

use std::time::{Duration, Instant};

use super::{Class, Gate, State};

/// What the gate of a connection knows at a moment, and what it has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateState {
    /// What the path is taken for.
    pub class: Class,
    /// Packets that the path lets through in a second, as estimated. `None`: nothing is known to limit them.
    pub packets_per_second: Option<f64>,
    /// The same in bytes of UDP payload per second, all packets being as large as the path takes.
    pub bytes_per_second: Option<f64>,
    /// What the bottleneck holds, where there is one.
    pub level: Option<Level>,
    /// Packets of which neither is known that they came nor that they are lost.
    pub on_the_way: u64,
    /// Packets that left on this path while the congestion controller did not decide alone, those of the start included.
    pub packets: u64,
}

/// What a bottleneck holds, by the mirror that the gate keeps of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Level {
    /// A policer.
    Tokens {
        /// Packets that it would let through at once.
        left: f64,
        /// Of them: those that bulk leaves to what is urgent.
        reserve: f64,
    },
    /// A queue.
    Queue {
        /// How long a packet would wait in it.
        wait: Duration,
        /// How long bulk may wait in it: where it would take longer, bulk is kept back.
        aim: Duration,
    },
}

impl Class {
    /// Its name in logs: `start`, `open`, `search`, `policed` or `queued`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Open => "open",
            Self::Search => "search",
            Self::Policed => "policed",
            Self::Queued => "queued",
        }
    }
}

impl Gate {
    /// What it knows now.
    pub(in crate::quic) fn state(&self, now: Instant) -> GateState {
        let now = self.seconds(now);
        let level = match &self.state {
            State::Start(_) | State::Open(_) | State::Search(_) => None,
            State::Policed(bucket) => {
                Some(Level::Tokens { left: bucket.level(now), reserve: bucket.reserve() })
            }
            State::Queued(queue) => {
                Some(Level::Queue { wait: duration(queue.wait(now)), aim: duration(queue.aim()) })
            }
        };
        GateState {
            class: self.class(),
            packets_per_second: self.rate(),
            bytes_per_second: self.rate().map(|rate| rate * self.mtu as f64),
            level,
            on_the_way: self.ledger.on_the_way(),
            packets: self.datagrams,
        }
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}
