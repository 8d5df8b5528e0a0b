//! Replay of the first packets of each UDP flow: an attacker on the path that has recorded them.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use crate::packet::{PacketView, UDP};
use crate::spec::quantity::{Fault, duration_text, nanos, parse_duration, quoted};

/// Flows whose first packets are replayed; packets of further flows pass once.
const MAX_FLOWS: usize = 1 << 16;

/// Replay of the first packets of each UDP flow of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Replay {
    /// Packets of a flow that are sent once more, from its first on.
    pub packets: u32,
    /// Time from the arrival of each of them to its replay, to which the delay of the path is added.
    pub after: Duration,
}

impl Replay {
    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let remedy = "write for example 4p/3s: the first 4 packets of each UDP flow, 3 s later";
        let (count, after) = value.split_once('/').ok_or_else(|| Fault::new("no time", remedy))?;
        let packets = count.strip_suffix('p').and_then(|count| count.parse().ok());
        let packets = packets
            .filter(|&packets| packets > 0)
            .ok_or_else(|| Fault::new(format!("bad number of packets \"{}\"", quoted(count)), remedy))?;
        Ok(Self { packets, after: parse_duration(after)? })
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}p/{}", self.packets, duration_text(self.after))
    }
}

/// Addresses and ports of a flow, as they stand in its packets.
type Flow = (Vec<u8>, u16, u16);

/// Flows of a direction, with their numbers of packets.
#[derive(Debug)]
pub(crate) struct Recorder {
    replay: Replay,
    flows: HashMap<Flow, u32>,
}

impl Recorder {
    pub(crate) fn new(replay: Replay) -> Self {
        Self { replay, flows: HashMap::new() }
    }

    pub(crate) fn replay(&self) -> Replay {
        self.replay
    }

    /// Time (ns) of the replay of an IP packet that has come at `now`, if it is one of the first of its flow.
    pub(crate) fn record(&mut self, packet: &[u8], now: u64) -> Option<u64> {
        let view = PacketView::parse(packet).filter(|view| view.protocol == UDP)?;
        let (source, destination) = view.ports?;
        let (from, to) = view.addresses();
        let addresses = packet.get(from.start..to.end)?.to_vec();
        let flow = (addresses, source, destination);
        if self.flows.len() >= MAX_FLOWS && !self.flows.contains_key(&flow) {
            return None;
        }
        let seen = self.flows.entry(flow).or_default();
        if *seen >= self.replay.packets {
            return None;
        }
        *seen += 1;
        Some(now.saturating_add(nanos(self.replay.after)))
    }
}
