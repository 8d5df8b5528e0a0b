//! NAT that rebinds: flows then come from other ports, and packets to the old ports are lost.
//!
//! The inside half of its table belongs to the direction that leaves the NAT, which alone writes; the other direction
//! reads the atomic outside half, so that neither waits. Bindings are by port: all hosts inside share the numbers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::packet::{ACK, End, PacketView, SYN, TCP, UDP, reset, rewrite};
use super::prf::{CounterPrf, Stage};
use super::spec::quantity::{Fault, duration_text, parse_duration, quoted};

/// A NAT between the sender of a direction and its link.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Nat {
    /// Change at a rebind.
    pub kind: NatKind,
    /// Times of the rebinds.
    pub times: NatTimes,
}

/// Handling of flows whose binding the NAT has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NatKind {
    /// UDP gets a new port. TCP segments are dropped silently, but for a SYN.
    Rebind,
    /// As `Rebind`, with another address too: the last byte of the inside address XOR 64 to 127, so the hosts inside
    /// must be numbered below 64, and the other end must have a route to the whole network.
    Move,
    /// As `Rebind`, but TCP segments are answered with RST, from both sides.
    Reset,
    /// Flows of earlier bindings end silently, those of UDP too: what comes from a port that had a binding is dropped,
    /// but for a SYN. Whatever connects anew passes.
    Cut,
}

/// The times of the rebinds, since the start of the link.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NatTimes {
    /// Again and again.
    Every(Duration),
    /// At these times, rising.
    At(Vec<Duration>),
}

impl Nat {
    /// Number of rebinds until `at`. Ports are unchanged before the first.
    pub fn epoch(&self, at: Duration) -> u64 {
        match &self.times {
            NatTimes::Every(period) => {
                u64::try_from(at.as_nanos() / period.as_nanos().max(1)).unwrap_or(u64::MAX)
            }
            NatTimes::At(times) => times.partition_point(|&time| time <= at) as u64,
        }
    }

    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let remedy =
            "write rebind:30s for every 30 s, rebind@30s,75s for these times; also rst, move and cut";
        let (name, rest, every) = match (value.split_once(':'), value.split_once('@')) {
            (Some((name, rest)), None) => (name, rest, true),
            (None, Some((name, rest))) => (name, rest, false),
            _ => return Err(Fault::new("no times", remedy)),
        };
        let kind = match name {
            "rebind" => NatKind::Rebind,
            "move" => NatKind::Move,
            "rst" => NatKind::Reset,
            "cut" => NatKind::Cut,
            other => return Err(Fault::new(format!("unknown kind of NAT \"{}\"", quoted(other)), remedy)),
        };
        let times = rest.split(',').map(parse_duration).collect::<Result<Vec<_>, _>>()?;
        let rising = times.windows(2).all(|pair| pair[0] < pair[1]) && times[0] > Duration::ZERO;
        match (every, times.as_slice()) {
            (_, _) if !rising => Err(Fault::new("times that do not rise from above 0", remedy)),
            (true, &[period]) => Ok(Self { kind, times: NatTimes::Every(period) }),
            (true, _) => Err(Fault::new("more than one period", remedy)),
            (false, _) => Ok(Self { kind, times: NatTimes::At(times) }),
        }
    }
}

impl fmt::Display for Nat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            NatKind::Rebind => "rebind",
            NatKind::Move => "move",
            NatKind::Reset => "rst",
            NatKind::Cut => "cut",
        })?;
        match &self.times {
            NatTimes::Every(period) => write!(f, ":{}", duration_text(*period)),
            NatTimes::At(times) => {
                for (place, time) in times.iter().enumerate() {
                    write!(f, "{}{}", if place == 0 { "@" } else { "," }, duration_text(*time))?;
                }
                Ok(())
            }
        }
    }
}

const PORTS: usize = 1 << 16;
/// Ports below are not given to flows.
const FIRST_PORT: u64 = 1024;

/// Decision of the NAT about a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Crossing {
    /// The packet passes, rewritten if needed.
    Through,
    /// Its flow is not known; the reply, if there is one, goes back where it came from.
    Forgotten { reply: Option<Vec<u8>> },
}

/// A port and the epoch in which it was bound; 0 is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Binding(u64);

impl Binding {
    fn new(epoch: u64, port: u16) -> Self {
        Self((epoch.wrapping_add(1) << 16) | u64::from(port))
    }

    fn is_of(self, epoch: u64) -> bool {
        self.0 >> 16 == epoch.wrapping_add(1) & (u64::MAX >> 16)
    }

    fn port(self) -> u16 {
        (self.0 & 0xffff) as u16
    }
}

/// The outside half, read by what comes back.
#[derive(Debug)]
pub(crate) struct Bindings {
    nat: Nat,
    outside: [Box<[AtomicU64]>; 2],
}

impl Bindings {
    pub(crate) fn new(nat: Nat) -> Arc<Self> {
        let table = || (0..PORTS).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { nat, outside: [table(), table()] })
    }

    /// A packet from outside, at `at`.
    pub(crate) fn enter(&self, packet: &mut [u8], at: Duration) -> Crossing {
        let Some((view, protocol, (_, port))) = translated(packet) else { return Crossing::Through };
        let epoch = self.nat.epoch(at);
        let binding = Binding(self.outside[protocol][usize::from(port)].load(Ordering::Acquire));
        if !binding.is_of(epoch) {
            return self.forgotten(packet, view);
        }
        rewrite(packet, view, End::Destination, binding.port(), self.mask(epoch));
        Crossing::Through
    }

    fn forgotten(&self, packet: &[u8], view: PacketView) -> Crossing {
        let resets = self.nat.kind == NatKind::Reset;
        Crossing::Forgotten { reply: resets.then(|| reset(packet, view)).flatten() }
    }

    /// The bits in which the outside address differs from the inside one.
    fn mask(&self, epoch: u64) -> u8 {
        if self.nat.kind == NatKind::Move && epoch > 0 { 0x40 | (epoch & 0x3f) as u8 } else { 0 }
    }
}

/// The inside half, owned by what leaves.
#[derive(Debug)]
pub(crate) struct Inside {
    bindings: Arc<Bindings>,
    inside: [Box<[Binding]>; 2],
    prf: CounterPrf,
}

impl Inside {
    pub(crate) fn new(bindings: Arc<Bindings>, prf: CounterPrf) -> Self {
        let table = || vec![Binding(0); PORTS].into_boxed_slice();
        Self { bindings, inside: [table(), table()], prf }
    }

    /// A packet from inside, at `at`.
    pub(crate) fn leave(&mut self, packet: &mut [u8], at: Duration) -> Crossing {
        let Some((view, protocol, (port, _))) = translated(packet) else { return Crossing::Through };
        let epoch = self.bindings.nat.epoch(at);
        let mut binding = self.inside[protocol][usize::from(port)];
        if !binding.is_of(epoch) {
            // A segment in the middle of a connection does not make a binding, but for connections older than the link.
            let is_old = self.bindings.nat.kind == NatKind::Cut && binding != Binding(0);
            let opens = (view.protocol == UDP && !is_old)
                || view.tcp_flags(packet) & (SYN | ACK) == SYN
                || epoch == 0;
            let bound = if opens { self.bind(protocol, port, epoch) } else { None };
            let Some(bound) = bound else { return self.bindings.forgotten(packet, view) };
            binding = bound;
        }
        rewrite(packet, view, End::Source, binding.port(), self.bindings.mask(epoch));
        Crossing::Through
    }

    /// A free outside port for `port`; in epoch 0 the same. `None` if all are taken.
    fn bind(&mut self, protocol: usize, port: u16, epoch: u64) -> Option<Binding> {
        let outside = &self.bindings.outside[protocol];
        let mut chosen = u64::from(port);
        if epoch > 0 {
            let choices = PORTS as u64 - FIRST_PORT;
            let flow = (epoch << 17) | (u64::from(port) << 1) | protocol as u64;
            let start = self.prf.below(Stage::NatPort, flow, false, choices);
            let mut offers = (0..choices).map(|step| FIRST_PORT + (start + step) % choices);
            chosen = offers.find(|&offer| {
                let taken = Binding(outside[usize::try_from(offer).unwrap_or(0)].load(Ordering::Relaxed));
                !taken.is_of(epoch) && offer != u64::from(port)
            })?;
        }
        let chosen = u16::try_from(chosen).ok()?;
        outside[usize::from(chosen)].store(Binding::new(epoch, port).0, Ordering::Release);
        let binding = Binding::new(epoch, chosen);
        self.inside[protocol][usize::from(port)] = binding;
        Some(binding)
    }
}

/// The view, table and ports of what a NAT translates. Other protocols and later fragments pass as they are.
fn translated(packet: &[u8]) -> Option<(PacketView, usize, (u16, u16))> {
    let view = PacketView::parse(packet)?;
    let protocol = match view.protocol {
        TCP => 0,
        UDP => 1,
        _ => return None,
    };
    Some((view, protocol, view.ports?))
}
