//! Topology: ends and the links between them.

use std::net::Ipv4Addr;
use std::sync::Arc;

use super::device::{self, LinkDevices, LinkNamespaces, Wires};
use super::error::TestbedError;
use super::namespace::Namespace;
use super::plan::{self, LinkPlan, WireChoice};
use super::tool::{self, RuleCounters};
use crate::wire::{self, Running, Stopped};
use braid_emulator::PathCounters;

/// Namespaces, one for each end, and the links between them. Dropping it stops the links; the kernel removes devices
/// and namespaces after their last use.
///
/// Link `i` is the network 192.168.(200 + i).0/24; its left end is .2 with the device `lq<i>l`, its right end .1 with
/// `lq<i>r`. Where several links join the same two ends, each carries packets to the addresses of the others as well,
/// for sockets that are bound to its device. There are no other routes.
#[derive(Debug)]
pub struct Topology {
    links: Vec<Link>,
    ends: Vec<Arc<Namespace>>,
    kind: &'static str,
}

#[derive(Debug)]
struct Link {
    name: String,
    number: u8,
    devices: LinkDevices,
    has_rule: bool,
    /// Kind of the wire; `None` for a plain link.
    kind: Option<&'static str>,
    running: Option<Running>,
}

/// Results of an emulated link.
#[derive(Debug)]
pub struct LinkEnd {
    /// Name of the link.
    pub name: String,
    /// Counters and accuracy.
    pub stopped: Stopped,
}

impl Topology {
    /// Creates a namespace for each of `ends` and the links, and starts the emulator. The clock of every link starts
    /// when all exist.
    ///
    /// # Errors
    /// One line; nothing remains then.
    pub fn build(ends: &[String], links: Vec<LinkPlan>, wire: WireChoice) -> Result<Self, TestbedError> {
        let places = plan::check(ends, &links)?;
        let create = |name: &String| Namespace::create(name).map(Arc::new);
        let ends = ends.iter().map(create).collect::<Result<Vec<_>, _>>()?;
        let middle = Namespace::create("the emulator").map(Arc::new)?;
        let mut choice = wire;
        let mut link_devices = Vec::new();
        for (plan, &(number, left, right)) in links.iter().zip(&places) {
            let namespaces =
                LinkNamespaces { number, left: &ends[left], right: &ends[right], middle: &middle };
            link_devices.push(device::lay(plan, &namespaces, &mut choice)?);
        }
        add_detours(&link_devices, &places)?;
        let mut topology = Self { links: Vec::new(), ends, kind: "none" };
        for ((plan, (devices, wires)), (number, ..)) in links.into_iter().zip(link_devices).zip(places) {
            topology.links.push(Link::start(plan, devices, wires, number)?);
        }
        topology.kind = topology.links.iter().find_map(|link| link.kind).unwrap_or("none");
        Ok(topology)
    }

    /// Namespace of an end.
    pub fn end(&self, name: &str) -> Option<&Namespace> {
        self.ends.iter().find(|end| end.name() == name).map(AsRef::as_ref)
    }

    /// Address of the end `of` on its link with the end `seen_from`; on its first link if both are equal.
    pub fn address(&self, of: &str, seen_from: &str) -> Option<Ipv4Addr> {
        self.links.iter().find_map(|link| {
            let (left, right) = (link.devices.left.namespace.name(), link.devices.right.namespace.name());
            let meets = |other: &str| seen_from == of || seen_from == other;
            let (left_address, right_address) = plan::addresses(link.number);
            if of == left && meets(right) {
                Some(left_address)
            } else {
                (of == right && meets(left)).then_some(right_address)
            }
        })
    }

    /// Current counters of an emulated link, up and down.
    pub fn counters(&self, link: &str) -> Option<[PathCounters; 2]> {
        Some(self.running(link)?.counters())
    }

    /// Running emulator of a link.
    pub fn running(&self, link: &str) -> Option<&Running> {
        self.link(link)?.running.as_ref()
    }

    /// Counters of the rule of a link; `None` if it has none.
    ///
    /// # Errors
    /// iptables failed.
    pub fn rule_counters(&self, link: &str) -> Result<Option<RuleCounters>, TestbedError> {
        let Some(link) = self.link(link).filter(|link| link.has_rule) else { return Ok(None) };
        let right = &link.devices.right;
        tool::counters(&right.namespace, &right.name).map(Some)
    }

    /// Offloads that are enabled on any device, as `lq0l tx-generic-segmentation`. Must be empty, or packet counts are
    /// wrong.
    pub fn offloads(&self) -> Vec<String> {
        let mut on = Vec::new();
        for device in self.links.iter().flat_map(|link| link.devices.devices()) {
            let name = &device.name;
            match device::offloads_on(device) {
                Ok(features) => on.extend(features.iter().map(|feature| format!("{name} {feature}"))),
                // An unreadable offload may be on.
                Err(error) => on.push(format!("{name} ({error})")),
            }
        }
        on
    }

    /// Kind of the emulated links' devices: `tun` or `packet`; `none` without one.
    pub fn wire_kind(&self) -> &str {
        self.kind
    }

    /// Stops every link and returns the results of the emulated ones.
    pub fn stop(self) -> Vec<LinkEnd> {
        let links = self.links.into_iter();
        links.filter_map(|link| Some(LinkEnd { name: link.name, stopped: link.running?.stop() })).collect()
    }

    fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }
}

/// Adds the routes of links that join the same two ends.
fn add_detours(links: &[(LinkDevices, Wires)], places: &[(u8, usize, usize)]) -> Result<(), TestbedError> {
    for ((devices, _), &(number, left, right)) in links.iter().zip(places) {
        for &(other, other_left, other_right) in places.iter().filter(|(other, ..)| *other != number) {
            let (at_left, at_right) = plan::addresses(other);
            // Addresses that the other link has at the left and the right end of this one.
            let (own, peer) = match (other_left, other_right) {
                same if same == (left, right) => (at_left, at_right),
                turned if turned == (right, left) => (at_right, at_left),
                _ => continue,
            };
            device::detour(&devices.left, number, plan::addresses(number).0, (peer, &devices.right))?;
            device::detour(&devices.right, number, plan::addresses(number).1, (own, &devices.left))?;
        }
    }
    Ok(())
}

impl Link {
    fn start(plan: LinkPlan, devices: LinkDevices, wires: Wires, number: u8) -> Result<Self, TestbedError> {
        let has_rule = plan.rule.is_some();
        let mut link = Self { name: plan.name, number, devices, has_rule, kind: None, running: None };
        if let (Some(shape), Some([left, right])) = (&plan.shape, wires) {
            link.kind = Some(left.kind());
            let options = wire::Options { mtu: plan.mtu, ..plan.options };
            let running = wire::start(shape, plan.seed, left, right, &options);
            link.running = Some(running.map_err(device::emulated(&link.name))?);
        }
        Ok(link)
    }
}
