//! Plan of a topology, and its validation.

use std::net::Ipv4Addr;

use super::error::TestbedError;
use crate::wire;
use braid_emulator::LinkSpec;

/// Link between two ends.
#[derive(Debug, Clone)]
pub struct LinkPlan {
    /// Name of the link.
    pub name: String,
    /// End whose packets travel up.
    pub left: String,
    /// End whose packets travel down.
    pub right: String,
    /// Parameters of the emulator; `None` for a plain veth pair without emulator.
    pub shape: Option<LinkSpec>,
    /// Seed of the emulator, unless the shape names its own.
    pub seed: u64,
    /// Logs and thread options of the emulator.
    pub options: wire::Options,
    /// Packet filter of the kernel for arrivals at the right end.
    pub rule: Option<PacketRule>,
    /// Congestion control of TCP at both ends; `None`: the kernel's default.
    pub tcp: Option<String>,
    /// Largest IP packet of the devices, bytes.
    pub mtu: u16,
    /// Leaves the offloads of the devices enabled, so that packet counts are wrong: a control that shows the detector
    /// at work.
    pub keep_offloads: bool,
}

/// `iptables -m limit --limit RATE/sec --limit-burst BURST -j ACCEPT`, everything else dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketRule {
    /// Packets per second, 1 to 10,000.
    pub rate: u32,
    /// Burst in packets, 1 to 10,000.
    pub burst: u32,
}

/// Devices that carry the packets of emulated links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WireChoice {
    /// TUN where it can be opened, otherwise packet sockets.
    #[default]
    Auto,
    /// TUN devices.
    Tun,
    /// Packet sockets (AF_PACKET) on veth pairs.
    Packet,
}

/// Number of link networks: 192.168.200.0/24 to 192.168.254.0/24.
const LINKS: u8 = 55;
/// Size that every host accepts, RFC 791.
const SMALLEST_MTU: u16 = 576;
/// Limit of iptables.
const RULE_LIMIT: u32 = 10_000;

/// Addresses of the left and the right end of link `number`.
pub(super) fn addresses(number: u8) -> (Ipv4Addr, Ipv4Addr) {
    let network = 200_u8.saturating_add(number);
    (Ipv4Addr::new(192, 168, network, 2), Ipv4Addr::new(192, 168, network, 1))
}

/// Number of each link, and the indices of its left and right end in `ends`.
///
/// # Errors
/// One line for the first invalid value.
pub(super) fn check(ends: &[String], links: &[LinkPlan]) -> Result<Vec<(u8, usize, usize)>, TestbedError> {
    let fail = |line: String| Err(TestbedError::Other(line));
    if let Some(twice) = repeated(ends.iter()) {
        return fail(format!("two ends have the name {twice}: give each its own"));
    }
    if let Some(twice) = repeated(links.iter().map(|link| &link.name)) {
        return fail(format!("two links have the name {twice}: give each its own"));
    }
    if links.len() > usize::from(LINKS) {
        return fail(format!("{} links: there are addresses for {LINKS}", links.len()));
    }
    let mut places = Vec::new();
    for (number, link) in (0..LINKS).zip(links) {
        let place = |name: &String| {
            ends.iter().position(|end| end == name).ok_or_else(|| {
                TestbedError::Other(format!(
                    "link {}: there is no end {name}; there are {}",
                    link.name,
                    ends.join(", ")
                ))
            })
        };
        let (left, right) = (place(&link.left)?, place(&link.right)?);
        if left == right {
            return fail(format!("link {}: both ends are {}: it needs two", link.name, link.left));
        }
        if link.mtu < SMALLEST_MTU {
            return fail(format!("link {}: an MTU of {}: at least {SMALLEST_MTU}", link.name, link.mtu));
        }
        if link.keep_offloads && link.shape.is_some() {
            return fail(format!(
                "link {}: it is emulated and keeps its offloads: the emulator would carry packets without \
                 checksums",
                link.name
            ));
        }
        let sensible = 1..=RULE_LIMIT;
        if link.rule.is_some_and(|rule| !sensible.contains(&rule.rate) || !sensible.contains(&rule.burst)) {
            return fail(format!(
                "link {}: rate and burst of a rule are from 1 to {RULE_LIMIT} packets",
                link.name
            ));
        }
        places.push((number, left, right));
    }
    Ok(places)
}

fn repeated<'a>(names: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let mut seen = Vec::new();
    names.into_iter().find(|name| {
        let again = seen.contains(name);
        seen.push(*name);
        again
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, left: &str, right: &str) -> LinkPlan {
        LinkPlan {
            name: name.into(),
            left: left.into(),
            right: right.into(),
            shape: None,
            seed: 1,
            options: wire::Options::default(),
            rule: None,
            tcp: None,
            mtu: 1500,
            keep_offloads: false,
        }
    }

    fn said(ends: &[&str], links: &[LinkPlan]) -> String {
        let ends: Vec<String> = ends.iter().map(ToString::to_string).collect();
        check(&ends, links).map_or_else(|error| error.to_string(), |places| format!("{places:?}"))
    }

    #[test]
    fn links_are_numbered_and_their_ends_found() {
        let links = [link("in", "client", "broker"), link("out", "reader", "broker")];
        assert_eq!(said(&["broker", "client", "reader"], &links), "[(0, 1, 0), (1, 2, 0)]");
        assert_eq!(addresses(1), ([192, 168, 201, 2].into(), [192, 168, 201, 1].into()));
    }

    #[test]
    fn an_invalid_plan_is_refused_in_one_line() {
        let ends = ["a", "b"];
        assert_eq!(said(&["a", "a"], &[]), "two ends have the name a: give each its own");
        assert_eq!(said(&ends, &[link("x", "a", "c")]), "link x: there is no end c; there are a, b");
        assert_eq!(said(&ends, &[link("x", "a", "a")]), "link x: both ends are a: it needs two");
        assert!(
            said(&ends, &[link("x", "a", "b"), link("x", "a", "b")]).starts_with("two links have the name x")
        );
        assert!(said(&ends, &[LinkPlan { mtu: 100, ..link("x", "a", "b") }]).contains("at least 576"));
        let shape = Some(LinkSpec::default());
        let emulated = LinkPlan { shape, keep_offloads: true, ..link("x", "a", "b") };
        assert!(said(&ends, &[emulated]).starts_with("link x: it is emulated and keeps its offloads"));
        let rule = Some(PacketRule { rate: 0, burst: 5 });
        assert!(said(&ends, &[LinkPlan { rule, ..link("x", "a", "b") }]).contains("1 to 10000"));
        let many: Vec<LinkPlan> = (0..56).map(|number| link(&number.to_string(), "a", "b")).collect();
        assert!(said(&ends, &many).contains("addresses for 55"));
    }
}
