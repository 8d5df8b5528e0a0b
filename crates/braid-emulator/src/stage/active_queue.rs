//! Queues that are managed: CoDel (RFC 8289), FQ-CoDel (RFC 8290), and marks of ECN (RFC 3168).

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::line::check_period;
use super::queueing::Limit;
use crate::packet::{PacketView, ecn_of, set_ecn};
use crate::prf::mix;
use crate::queue::Queued;
use crate::spec::quantity::{Fault, duration_text, nanos, parse_duration, quoted};
use crate::verdict::PacketCount;

/// Management of the queue before a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Management {
    /// None: first in, first out.
    #[default]
    Fifo,
    /// CoDel.
    Codel(Codel),
    /// CoDel in each of 1024 queues of flows, which take turns.
    FqCodel(Codel),
}

/// Parameters of CoDel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Codel {
    /// Wait that is acceptable.
    pub target: Duration,
    /// Time for which waits above it are tolerated.
    pub interval: Duration,
}

impl Codel {
    /// Parameters of RFC 8289.
    pub const DEFAULT: Self = Self { target: Duration::from_millis(5), interval: Duration::from_millis(100) };
}

impl Management {
    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let remedy = "write fifo, codel, fq_codel, or with its target and interval codel:5ms/100ms";
        let (name, codel) = match value.split_once(':') {
            None => (value, Codel::DEFAULT),
            Some((name, times)) => {
                let (target, interval) =
                    times.split_once('/').ok_or_else(|| Fault::new("no interval", remedy))?;
                let (target, interval) = (parse_duration(target)?, parse_duration(interval)?);
                if target.is_zero() || target >= interval {
                    return Err(Fault::new("a target that is not between 0 and the interval", remedy));
                }
                check_period(interval)?;
                (name, Codel { target, interval })
            }
        };
        match name {
            "fifo" if codel == Codel::DEFAULT => Ok(Self::Fifo),
            "codel" => Ok(Self::Codel(codel)),
            "fq_codel" => Ok(Self::FqCodel(codel)),
            _ => Err(Fault::new(format!("unknown queue \"{}\"", quoted(value)), remedy)),
        }
    }

    fn codel(self) -> Option<Codel> {
        match self {
            Self::Fifo => None,
            Self::Codel(codel) | Self::FqCodel(codel) => Some(codel),
        }
    }
}

impl fmt::Display for Management {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fifo => "fifo",
            Self::Codel(_) => "codel",
            Self::FqCodel(_) => "fq_codel",
        })?;
        match self.codel().filter(|codel| *codel != Codel::DEFAULT) {
            Some(Codel { target, interval }) => {
                write!(f, ":{}/{}", duration_text(target), duration_text(interval))
            }
            None => Ok(()),
        }
    }
}

/// Marks of ECN on packets whose sender understands them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// In place of the drops of CoDel.
    Managed,
    /// On each packet that has waited longer.
    Above(Duration),
}

impl Ecn {
    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        match value {
            "on" => Ok(Self::Managed),
            time => parse_duration(time).map(Self::Above).map_err(|_| {
                let remedy = "write on for marks in place of drops of CoDel, or the wait above which packets are marked, as 5ms";
                Fault::new(format!("neither on nor a wait \"{}\"", quoted(time)), remedy)
            }),
        }
    }
}

impl fmt::Display for Ecn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Managed => f.write_str("on"),
            Self::Above(wait) => f.write_str(&duration_text(*wait)),
        }
    }
}

/// Queues of FQ-CoDel, and the bytes that one may send in its turn (RFC 8290, 5.2).
const FLOWS: usize = 1024;
const QUANTUM: i64 = 1514;

/// Bytes in the queue up to which CoDel drops nothing: those of one packet.
const MTU: u64 = 1514;

/// Queue before a line that is managed. Times are ns.
#[derive(Debug)]
pub(crate) struct ActiveQueue {
    management: Management,
    ecn: Option<Ecn>,
    flows: Vec<Flow>,
    /// Flows with packets: those that are new, and the others, in the order of their turns.
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    load: PacketCount,
    /// Time since which there is a packet.
    since: u64,
}

/// Result of a turn of the line.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The packet that begins.
    pub(crate) packet: Option<Queued>,
    /// Packets that were dropped before it.
    pub(crate) dropped: Vec<Queued>,
}

impl ActiveQueue {
    pub(crate) fn new(management: Management, ecn: Option<Ecn>) -> Self {
        let flows = if matches!(management, Management::FqCodel(_)) { FLOWS } else { 1 };
        Self {
            management,
            ecn,
            flows: std::iter::repeat_with(Flow::default).take(flows).collect(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            load: PacketCount::default(),
            since: 0,
        }
    }

    /// Time since which there is a packet; `None` if there is none.
    pub(crate) fn since(&self) -> Option<u64> {
        (self.load.packets > 0).then_some(self.since)
    }

    /// Takes a packet in. Returns those that have to go, if `limit` is exceeded: this one, or with flows the first of
    /// the longest. `head`: bytes before the IP header.
    pub(crate) fn push(&mut self, queued: Queued, limit: Limit, head: usize) -> Vec<Queued> {
        if self.flows.len() == 1 && !limit.admits(self.load.packets, self.load.bytes, queued.size) {
            return vec![queued];
        }
        let n = self.flow_of(&queued, head);
        if self.load.packets == 0 {
            self.since = queued.at;
        }
        self.load.add(queued.size);
        let flow = &mut self.flows[n];
        flow.push(queued);
        if !std::mem::replace(&mut flow.is_listed, true) {
            flow.deficit = QUANTUM;
            self.new.push_back(n);
        }
        let mut dropped = Vec::new();
        while !limit.holds(self.load.packets, self.load.bytes) {
            let Some(longest) = self.flows.iter_mut().max_by_key(|flow| flow.bytes) else { break };
            let Some(first) = longest.pop(&mut self.load) else { break };
            dropped.push(first);
        }
        dropped
    }

    /// Takes the next packet out for the line, at `now`. `head`: bytes before the IP header.
    pub(crate) fn pop(&mut self, now: u64, head: usize) -> Turn {
        let mut turn = Turn::default();
        loop {
            let (list_is_new, n) = match (self.new.front(), self.old.front()) {
                (Some(n), _) => (true, *n),
                (None, Some(n)) => (false, *n),
                (None, None) => return turn,
            };
            let list = if list_is_new { &mut self.new } else { &mut self.old };
            let flow = &mut self.flows[n];
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                list.pop_front();
                self.old.push_back(n);
                continue;
            }
            let codel = self.management.codel();
            let is_marking = self.ecn == Some(Ecn::Managed);
            let packet = match codel {
                Some(codel) => {
                    let mark = |queued: &mut Queued| is_marking && mark(queued, head);
                    flow.take(codel, now, mark, &mut self.load, &mut turn.dropped)
                }
                None => flow.pop(&mut self.load),
            };
            let Some(mut packet) = packet else {
                list.pop_front();
                // A new flow that is empty waits for a turn of the old ones, so as not to be new again at once.
                if list_is_new && !self.old.is_empty() {
                    self.old.push_back(n);
                } else {
                    flow.is_listed = false;
                }
                continue;
            };
            flow.deficit -= i64::try_from(packet.size).unwrap_or(i64::MAX);
            if let Some(Ecn::Above(wait)) = self.ecn
                && now.saturating_sub(packet.at) > nanos(wait)
            {
                mark(&mut packet, head);
            }
            turn.packet = Some(packet);
            return turn;
        }
    }

    fn flow_of(&self, queued: &Queued, head: usize) -> usize {
        if self.flows.len() == 1 {
            return 0;
        }
        let packet = queued.bytes.get(head..).unwrap_or_default();
        let Some(view) = PacketView::parse(packet) else { return 0 };
        let (source, destination) = view.addresses();
        let mut hash = mix(u64::from(view.protocol));
        for byte in packet[source].iter().chain(&packet[destination]) {
            hash = mix(hash ^ u64::from(*byte));
        }
        if let Some((from, to)) = view.ports {
            hash = mix(hash ^ (u64::from(from) << 16 | u64::from(to)));
        }
        usize::try_from(hash % FLOWS as u64).unwrap_or(0)
    }
}

/// Marks a packet that may be marked. Returns whether it is.
fn mark(queued: &mut Queued, head: usize) -> bool {
    let Some(packet) = queued.bytes.get_mut(head..).filter(|packet| ecn_of(packet) != 0) else {
        return false;
    };
    set_ecn(packet, 0b11);
    queued.is_marked = true;
    true
}

/// Queue of one flow, with its state of CoDel; the names are those of RFC 8289, 5.
#[derive(Debug, Default)]
struct Flow {
    packets: VecDeque<Queued>,
    bytes: u64,
    /// Bytes that it may still send in its turn.
    deficit: i64,
    /// Whether it is among the new or the old ones.
    is_listed: bool,
    first_above: Option<u64>,
    drop_next: u64,
    count: u32,
    last_count: u32,
    is_dropping: bool,
}

impl Flow {
    fn push(&mut self, queued: Queued) {
        self.bytes += queued.size as u64;
        self.packets.push_back(queued);
    }

    fn pop(&mut self, load: &mut PacketCount) -> Option<Queued> {
        let queued = self.packets.pop_front()?;
        self.bytes -= queued.size as u64;
        load.remove(queued.size);
        Some(queued)
    }

    /// Takes the next packet out, and whether CoDel may drop it.
    fn candidate(&mut self, codel: Codel, now: u64, load: &mut PacketCount) -> (Option<Queued>, bool) {
        let Some(queued) = self.pop(load) else {
            self.first_above = None;
            return (None, false);
        };
        if now.saturating_sub(queued.at) < nanos(codel.target) || self.bytes <= MTU {
            self.first_above = None;
            return (Some(queued), false);
        }
        let first_above = *self.first_above.get_or_insert(now.saturating_add(nanos(codel.interval)));
        (Some(queued), now >= first_above)
    }

    /// Takes the next packet out that CoDel leaves. `mark`: marks a packet in place of its drop, if it can be.
    fn take(
        &mut self,
        codel: Codel,
        now: u64,
        mark: impl Fn(&mut Queued) -> bool,
        load: &mut PacketCount,
        dropped: &mut Vec<Queued>,
    ) -> Option<Queued> {
        let (mut queued, mut may_drop) = self.candidate(codel, now, load);
        if self.is_dropping {
            self.is_dropping &= may_drop;
            while self.is_dropping && now >= self.drop_next {
                let mut last = queued?;
                self.count += 1;
                if mark(&mut last) {
                    self.drop_next = self.next_drop(codel, self.drop_next);
                    return Some(last);
                }
                dropped.push(last);
                (queued, may_drop) = self.candidate(codel, now, load);
                if may_drop {
                    self.drop_next = self.next_drop(codel, self.drop_next);
                } else {
                    self.is_dropping = false;
                }
            }
            return queued;
        }
        if !may_drop {
            return queued;
        }
        let mut last = queued?;
        let delta = self.count - self.last_count;
        let is_recent = now.saturating_sub(self.drop_next) < nanos(codel.interval).saturating_mul(16);
        self.count = if delta > 1 && is_recent { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = self.next_drop(codel, now);
        self.is_dropping = true;
        if mark(&mut last) {
            return Some(last);
        }
        dropped.push(last);
        self.candidate(codel, now, load).0
    }

    /// Time of the next drop: the more there were, the sooner.
    fn next_drop(&self, codel: Codel, from: u64) -> u64 {
        let interval = Duration::from_secs_f64(codel.interval.as_secs_f64() / f64::from(self.count).sqrt());
        from.saturating_add(nanos(interval))
    }
}
