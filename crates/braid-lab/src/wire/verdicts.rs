//! Lines of a verdict log, described at [`VerdictLog`](super::VerdictLog), and flows of packets as text.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use braid_emulator::{Direction, Fate, LinkSpec, PacketView, PathSpec, Timeline};

/// The first line of a log.
pub(super) const TITLE: &str = "# braidmq verdicts 1";

/// The largest size that is believed: that of the largest frame.
const LARGEST: usize = 65_536 + 64;

/// Line of one packet: its arrival and its fate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) direction: Direction,
    pub(super) index: u64,
    pub(super) copy: bool,
    pub(super) at: Duration,
    pub(super) size: usize,
    pub(super) flow: Option<Flow>,
    /// The two bits of ECN with which it arrived.
    pub(super) ecn: u8,
    pub(super) outcome: Outcome,
    pub(super) corrupted: Option<u64>,
    pub(super) is_marked: bool,
}

/// Outcome of a packet at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Settled(Fate),
    Inside,
}

impl Record {
    /// Fate, due time and flipped bit.
    pub(super) fn verdict_text(&self) -> String {
        verdict_text(self.outcome, self.corrupted, self.is_marked)
    }
}

pub(super) fn verdict_text(outcome: Outcome, corrupted: Option<u64>, is_marked: bool) -> String {
    let due = match outcome {
        Outcome::Settled(Fate::Sent { due } | Fate::Overtook { due }) => format!(" due={}", Seconds(due)),
        _ => String::new(),
    };
    let bit = corrupted.map(|bit| format!(" bit={bit}")).unwrap_or_default();
    let mark = if is_marked { " ce" } else { "" };
    format!("{}{due}{bit}{mark}", word(outcome))
}

/// Words of the outcomes without a due time.
const WORDS: [(&str, Outcome); 8] = [
    ("unmatched", Outcome::Settled(Fate::Unmatched)),
    ("policed", Outcome::Settled(Fate::Policed)),
    ("lost", Outcome::Settled(Fate::Lost)),
    ("queue-full", Outcome::Settled(Fate::QueueFull)),
    ("managed", Outcome::Settled(Fate::Managed)),
    ("forgotten", Outcome::Settled(Fate::Forgotten)),
    ("too-big", Outcome::Settled(Fate::TooBig)),
    ("inside", Outcome::Inside),
];

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Settled(Fate::Sent { .. }) => "sent",
        Outcome::Settled(Fate::Overtook { .. }) => "overtook",
        other => WORDS.iter().find(|(_, known)| *known == other).map_or("", |(word, _)| word),
    }
}

fn outcome(word: &str, due: Option<Duration>) -> Option<Outcome> {
    match word {
        "sent" => Some(Outcome::Settled(Fate::Sent { due: due? })),
        "overtook" => Some(Outcome::Settled(Fate::Overtook { due: due? })),
        word => WORDS.iter().find(|(known, _)| *known == word).map(|(_, outcome)| *outcome),
    }
}

/// Sign of a packet, or of its duplicate.
pub(super) fn mark(copy: bool) -> char {
    if copy { '+' } else { '=' }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, index, copy, at, size, flow, .. } = self;
        write!(f, "{direction} {index} {} {} {size} ", mark(*copy), Seconds(*at))?;
        match flow {
            Some(flow) => write!(f, "{flow}")?,
            None => f.write_str("- - -")?,
        }
        write!(f, " {}", self.verdict_text())?;
        if self.ecn > 0 { write!(f, " ecn={}", self.ecn) } else { Ok(()) }
    }
}

impl FromStr for Record {
    type Err = &'static str;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = line.split(' ').collect();
        let [direction, index, mark, at, size, protocol, source, destination, fate, rest @ ..] = &words[..]
        else {
            return Err("too few columns");
        };
        let flow = match *protocol {
            "-" => None,
            _ => Some([*protocol, source, destination].join(" ").parse()?),
        };
        let (mut due, mut corrupted, mut is_marked, mut ecn) = (None, None, false, 0);
        for word in rest {
            match word.split_once('=') {
                Some(("due", value)) => due = Some(seconds(value).ok_or("bad due time")?),
                Some(("ecn", value)) => ecn = value.parse().ok().filter(|&ecn| ecn < 4).ok_or("bad ecn")?,
                Some(("bit", value)) => corrupted = Some(value.parse().map_err(|_| "bad bit")?),
                None if *word == "ce" => is_marked = true,
                _ => return Err("neither due=, bit=, ecn= nor ce"),
            }
        }
        Ok(Self {
            direction: parse_direction(direction).ok_or("neither up nor down")?,
            index: index.parse().map_err(|_| "bad packet number")?,
            copy: match *mark {
                "=" => false,
                "+" => true,
                _ => return Err("neither = nor + after the number"),
            },
            at: seconds(at).ok_or("bad time")?,
            size: size.parse().ok().filter(|&size| size <= LARGEST).ok_or("bad size")?,
            flow,
            outcome: outcome(fate, due).ok_or("unknown fate, or one without due time")?,
            corrupted,
            is_marked,
            ecn,
        })
    }
}

pub(super) fn parse_direction(word: &str) -> Option<Direction> {
    Direction::BOTH.into_iter().find(|direction| direction.to_string() == word)
}

/// A time as seconds with all nanoseconds.
pub(super) struct Seconds(pub(super) Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.as_secs(), self.0.subsec_nanos())
    }
}

/// Reads what [`Seconds`] writes.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    let (whole, nanos) = text.split_once('.').filter(|(_, nanos)| nanos.len() == 9)?;
    let nanos = nanos.parse().ok().filter(|&nanos: &u32| nanos < 1_000_000_000)?;
    Some(Duration::new(whole.parse().ok()?, nanos))
}

/// A path as words; a NAT is no part of a change.
pub(super) fn path_text(path: &PathSpec) -> String {
    let path = Timeline::from(PathSpec { nat: None, ..path.clone() });
    LinkSpec { seed: None, up: path.clone(), down: path }.to_string()
}

// === Flows ===

const TCP: u8 = 6;
const UDP: u8 = 17;
/// The flags of a TCP segment, the lowest bit first.
const FLAGS: &[u8; 8] = b"FSRPAUEC";

/// Protocol, source and destination: `udp 10.0.0.1:5000 10.0.0.2:14567`, `tcp:SA` with the flags that are set, `1` for
/// other protocols by number, without ports where there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    protocol: u8,
    tcp_flags: u8,
    addresses: (IpAddr, IpAddr),
    ports: Option<(u16, u16)>,
}

impl Flow {
    /// Flow of an IP packet; `None` for other bytes.
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        let view = PacketView::parse(packet)?;
        let (source, destination) = view.addresses();
        let addresses = (address(packet.get(source)?)?, address(packet.get(destination)?)?);
        let tcp_flags = view.tcp_flags(packet);
        Some(Self { protocol: view.protocol, tcp_flags, addresses, ports: view.ports })
    }

    /// A packet of `size` bytes that the emulator takes for one of this flow: without checksums and payload.
    pub(super) fn packet(&self, size: usize) -> Vec<u8> {
        let mut packet = match self.addresses {
            (IpAddr::V4(source), IpAddr::V4(destination)) => self.ipv4(source, destination),
            (IpAddr::V6(source), IpAddr::V6(destination)) => self.ipv6(source, destination),
            _ => Vec::new(),
        };
        if let Some((source, destination)) = self.ports {
            packet.extend(source.to_be_bytes());
            packet.extend(destination.to_be_bytes());
            if self.protocol == TCP {
                packet.extend([0; 8]);
                packet.extend([5 << 4, self.tcp_flags]);
            }
        }
        packet.resize(size, 0);
        packet
    }

    /// TCP and UDP show no ports in later fragments only.
    fn is_fragment(&self) -> bool {
        matches!(self.protocol, TCP | UDP) && self.ports.is_none()
    }

    fn ipv4(&self, source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
        let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, u8::from(self.is_fragment()), 64, self.protocol, 0, 0];
        header.extend(source.octets());
        header.extend(destination.octets());
        header
    }

    fn ipv6(&self, source: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
        const FRAGMENT: u8 = 44;
        let next = if self.is_fragment() { FRAGMENT } else { self.protocol };
        let mut header = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        header.extend(source.octets());
        header.extend(destination.octets());
        if self.is_fragment() {
            header.extend([self.protocol, 0, 0, 8, 0, 0, 0, 0]);
        }
        header
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(octets)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from))
        .ok()
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            TCP => {
                f.write_str("tcp:")?;
                for (bit, &flag) in FLAGS.iter().enumerate() {
                    if self.tcp_flags >> bit & 1 == 1 {
                        write!(f, "{}", char::from(flag))?;
                    }
                }
            }
            UDP => f.write_str("udp")?,
            other => write!(f, "{other}")?,
        }
        let (source, destination) = self.addresses;
        match self.ports {
            Some((from, to)) => {
                write!(f, " {} {}", SocketAddr::new(source, from), SocketAddr::new(destination, to))
            }
            None => write!(f, " {source} {destination}"),
        }
    }
}

impl FromStr for Flow {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const BAD: &str = "no flow: protocol, source and destination";
        let mut words = text.split(' ');
        let (Some(kind), Some(source), Some(destination), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(BAD);
        };
        let mut tcp_flags = 0;
        let protocol = match kind.strip_prefix("tcp:") {
            Some(flags) => {
                for letter in flags.bytes() {
                    tcp_flags |= 1 << FLAGS.iter().position(|&flag| flag == letter).ok_or("no TCP flag")?;
                }
                TCP
            }
            None if kind == "udp" => UDP,
            None => kind.parse().map_err(|_| "no protocol")?,
        };
        let ends: Result<(SocketAddr, SocketAddr), _> =
            source.parse().and_then(|source| Ok((source, destination.parse()?)));
        if let Ok((source, destination)) = ends {
            let ports = Some((source.port(), destination.port()));
            return Ok(Self { protocol, tcp_flags, addresses: (source.ip(), destination.ip()), ports });
        }
        let addresses =
            source.parse().and_then(|source| Ok((source, destination.parse()?))).map_err(|_| BAD)?;
        Ok(Self { protocol, tcp_flags, addresses, ports: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_read_as_it_is_written_and_its_packets_are_of_the_same_flow() {
        for text in [
            "udp 10.0.0.1:5000 10.0.0.2:14567",
            "tcp:SA 10.0.0.1:5000 10.0.0.2:14567",
            "tcp: [fd00::1]:5000 [fd00::2]:80",
            "1 10.0.0.1 10.0.0.2",
            "58 fd00::1 fd00::2",
            "udp 10.0.0.1 10.0.0.2",
            "udp fd00::1 fd00::2",
        ] {
            let flow: Flow = text.parse().unwrap();
            assert_eq!(flow.to_string(), text);
            assert_eq!(Flow::of(&flow.packet(100)), Some(flow), "{text}");
        }
    }

    #[test]
    fn invalid_flows_are_refused() {
        for text in ["", "udp", "udp 10.0.0.1:5 x", "tcp:X 10.0.0.1:5 10.0.0.2:5", "icmp 10.0.0.1 10.0.0.2"] {
            assert!(text.parse::<Flow>().is_err(), "{text}");
        }
    }
}
