//! Which packets a path treats; all others pass it untouched and at once.

use std::fmt;

use crate::packet::{ICMP, ICMPV6, PacketView, TCP, UDP};
use crate::spec::quantity::{Fault, quoted};

/// Rules of which one must fit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Selector {
    /// The rules; none fits nothing.
    pub rules: Vec<Rule>,
}

/// A kind of packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// TCP, with this port at either end if there is one.
    Tcp(Option<u16>),
    /// UDP, with this port at either end if there is one.
    Udp(Option<u16>),
    /// ICMP and ICMPv6.
    Icmp,
}

impl Selector {
    /// Whether one of the rules fits `packet`, an IP packet. What cannot be read fits none.
    pub fn selects(&self, packet: &[u8]) -> bool {
        let Some(view) = PacketView::parse(packet) else { return false };
        self.rules.iter().any(|rule| match *rule {
            Rule::Tcp(port) => view.protocol == TCP && view.has_port(port),
            Rule::Udp(port) => view.protocol == UDP && view.has_port(port),
            Rule::Icmp => matches!(view.protocol, ICMP | ICMPV6),
        })
    }

    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let rules = value.split(',').map(rule).collect::<Result<_, _>>()?;
        Ok(Self { rules })
    }
}

fn rule(text: &str) -> Result<Rule, Fault> {
    let remedy = "write udp, tcp, icmp, or with a port udp:14567, more of them with commas";
    let (protocol, port) =
        text.split_once(':').map_or((text, None), |(protocol, port)| (protocol, Some(port)));
    let port = match port.map(str::parse::<u16>) {
        None => None,
        Some(Ok(port)) => Some(port),
        Some(Err(_)) => return Err(Fault::new(format!("bad port in \"{}\"", quoted(text)), remedy)),
    };
    match (protocol, port) {
        ("tcp", port) => Ok(Rule::Tcp(port)),
        ("udp", port) => Ok(Rule::Udp(port)),
        ("icmp", None) => Ok(Rule::Icmp),
        _ => Err(Fault::new(format!("unknown kind of packet \"{}\"", quoted(text)), remedy)),
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, rule) in self.rules.iter().enumerate() {
            f.write_str(if place > 0 { "," } else { "" })?;
            match rule {
                Rule::Tcp(None) => f.write_str("tcp"),
                Rule::Udp(None) => f.write_str("udp"),
                Rule::Tcp(Some(port)) => write!(f, "tcp:{port}"),
                Rule::Udp(Some(port)) => write!(f, "udp:{port}"),
                Rule::Icmp => f.write_str("icmp"),
            }?;
        }
        Ok(())
    }
}
