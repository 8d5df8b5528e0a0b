//! Devices of the links: creation, addresses, offloads.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::error::TestbedError;
use super::namespace::Namespace;
use super::plan::{self, LinkPlan, WireChoice};
use super::sys;
use super::tool::{self, IP, Input, STANDARD_INPUT};
use crate::wire::{PacketSocket, Tun, Wire, WireError};

/// Network device in a namespace.
#[derive(Debug, Clone)]
pub(super) struct Device {
    pub(super) namespace: Arc<Namespace>,
    pub(super) name: String,
    /// Ethernet address; a TUN device has none.
    pub(super) ethernet: Option<String>,
}

/// Metric of routes over link 0 to the network of another, one more for each later one; that of its own network has 0.
const DETOUR: u32 = 100;

/// Ethernet address of port `port` of link `link`: locally administered, equal in all runs.
fn ethernet(link: u8, port: u8) -> String {
    format!("02:62:71:00:{link:02x}:{port:02x}")
}

/// Creates a veth pair; both devices are down.
fn join(near: &Device, far: &Device, mtu: u16) -> Result<(), TestbedError> {
    let mtu = mtu.to_string();
    let mut arguments = vec!["link", "add"];
    for device in [near, far] {
        arguments.extend(["name", &device.name, "mtu", &mtu]);
        arguments.extend(device.ethernet.iter().flat_map(|address| ["address", address]));
        if std::ptr::eq(device, near) {
            arguments.extend(["type", "veth", "peer"]);
        }
    }
    arguments.extend(["netns", STANDARD_INPUT]);
    IP.run(&near.namespace, &arguments, Input::Namespace(&far.namespace)).map(drop)
}

/// Brings up a device without an address, for the emulator's side of a pair.
fn raise(device: &Device) -> Result<(), TestbedError> {
    batch(device, &format!("link set dev {} arp off up\n", device.name))
}

/// Configures the device of an end: the address `own` in a network of 24 bits, and a static neighbour entry for `peer`.
///
/// Neighbour entries are static because ARP would add packets of no program, and the link could lose them.
///
/// The congestion control is that of the route: sockets of all programs have it, and those that are accepted. In a
/// namespace the kernel's default cannot be set.
fn settle(
    device: &Device,
    own: Ipv4Addr,
    peer: (Ipv4Addr, &Device),
    LinkPlan { mtu, tcp, .. }: &LinkPlan,
) -> Result<(), TestbedError> {
    let name = &device.name;
    let mut commands = format!("link set dev {name} mtu {mtu}\n");
    if device.ethernet.is_some() {
        commands += &format!("link set dev {name} arp off\n");
    }
    commands += &format!("link set dev {name} up\naddr add {own}/24 dev {name}\n");
    if let (address, Device { ethernet: Some(ethernet), .. }) = peer {
        commands += &format!("neigh replace {address} lladdr {ethernet} dev {name} nud permanent\n");
    }
    if let Some(congestion) = tcp {
        let [a, b, c, _] = own.octets();
        commands += &format!(
            "route change {a}.{b}.{c}.0/24 dev {name} proto kernel scope link src {own} congctl {congestion}\n"
        );
    }
    batch(device, &commands)
}

/// Has `device` of link `link`, with the address `own`, carry packets to an address that the peer has on another link.
/// Sockets that are not bound to a device prefer the other link.
pub(super) fn detour(
    device: &Device,
    link: u8,
    own: Ipv4Addr,
    (address, peer): (Ipv4Addr, &Device),
) -> Result<(), TestbedError> {
    let ([a, b, c, _], name, metric) = (address.octets(), &device.name, DETOUR + u32::from(link));
    // As long as the preferred route: a longer one would always win, a shorter one never.
    let mut commands = format!("route add {a}.{b}.{c}.0/24 dev {name} src {own} metric {metric}\n");
    if let Some(ethernet) = &peer.ethernet {
        commands += &format!("neigh replace {address} lladdr {ethernet} dev {name} nud permanent\n");
    }
    batch(device, &commands)
}

/// Limits senders to one segment per packet, in addition to the disabled offloads. Old versions of `ip` do not know the
/// option; their refusal is ignored, since the features alone suffice.
fn forbid_segments(device: &Device) -> Result<(), TestbedError> {
    let command = ["link", "set", "dev", &device.name, "gso_max_segs", "1"];
    match IP.run(&device.namespace, &command, Input::Nothing) {
        Ok(_) | Err(TestbedError::Tool(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

fn batch(device: &Device, commands: &str) -> Result<(), TestbedError> {
    IP.run(&device.namespace, &["-batch", "-"], Input::Text(commands)).map(drop)
}

// === Offloads ===

/// Disables every feature of `device` that joins packets or leaves checksums unfinished: a link that counts packets
/// would count wrong.
fn switch_off(device: &Device) -> Result<(), TestbedError> {
    let switch = || -> io::Result<()> {
        let names = sys::feature_names(&device.name)?;
        let unwanted: Vec<bool> = names.iter().map(|name| is_offload(name)).collect();
        sys::switch_off(&device.name, &unwanted)
    };
    device
        .namespace
        .run(switch)?
        .map_err(TestbedError::kernel(format!("switch off the offloads of {}", device.name)))
}

/// Offloads of `device` that are enabled now.
pub(super) fn offloads_on(device: &Device) -> Result<Vec<String>, TestbedError> {
    let look = || -> io::Result<Vec<String>> {
        let names = sys::feature_names(&device.name)?;
        let on = sys::features_on(&device.name, names.len())?;
        let still_on = names.into_iter().zip(on).filter(|(name, on)| *on && is_offload(name));
        Ok(still_on.map(|(name, _)| name).collect())
    };
    device.namespace.run(look)?.map_err(TestbedError::kernel(format!("read the offloads of {}", device.name)))
}

/// Whether a feature, by its kernel name (`ethtool -k`), is an offload: segmentation of TCP and UDP, the scatter-gather
/// and transmit checksums that segmentation needs, and receive coalescing.
fn is_offload(feature: &str) -> bool {
    let sending = feature.strip_prefix("tx-").is_some_and(|what| {
        what.ends_with("-segmentation")
            || ["checksum-", "scatter-gather", "gso-", "udp-fragmentation"]
                .iter()
                .any(|own| what.starts_with(own))
    });
    sending
        || feature == "rx-lro"
        || (feature.starts_with("rx-") && feature.split('-').any(|word| word == "gro"))
}

// === Links ===

/// Namespaces in which a link is created.
pub(super) struct LinkNamespaces<'a> {
    /// Number of the link.
    pub(super) number: u8,
    pub(super) left: &'a Arc<Namespace>,
    pub(super) right: &'a Arc<Namespace>,
    /// Namespace of the emulator's sides of packet wires.
    pub(super) middle: &'a Arc<Namespace>,
}

/// Wires of the emulator, left and right; `None` for a plain link.
pub(super) type Wires = Option<[Box<dyn Wire>; 2]>;

/// Devices of one link.
#[derive(Debug)]
pub(super) struct LinkDevices {
    pub(super) left: Device,
    pub(super) right: Device,
    /// Devices between the emulator and the ends.
    pub(super) between: Vec<Device>,
}

/// Creates the devices of a link and brings them up. `choice` selects the wire of an emulated link; `Auto` is replaced
/// by the wire that opened.
pub(super) fn lay(
    plan: &LinkPlan,
    namespaces: &LinkNamespaces<'_>,
    choice: &mut WireChoice,
) -> Result<(LinkDevices, Wires), TestbedError> {
    let (devices, wires) = match (&plan.shape, *choice) {
        (None, _) => lay_pair(plan, namespaces)?,
        (Some(_), WireChoice::Tun) => lay_tuns(plan, namespaces)?,
        (Some(_), WireChoice::Packet) => lay_packets(plan, namespaces)?,
        (Some(_), WireChoice::Auto) => match lay_tuns(plan, namespaces) {
            Ok(laid) => {
                *choice = WireChoice::Tun;
                laid
            }
            Err(_) => {
                *choice = WireChoice::Packet;
                lay_packets(plan, namespaces)?
            }
        },
    };
    let (left, right) = plan::addresses(namespaces.number);
    settle(&devices.left, left, (right, &devices.right), plan)?;
    settle(&devices.right, right, (left, &devices.left), plan)?;
    if !plan.keep_offloads {
        for device in devices.devices() {
            forbid_segments(device)?;
            switch_off(device)?;
        }
    }
    if let Some(rule) = plan.rule {
        tool::limit(rule, namespaces.right, &devices.right.name)?;
    }
    Ok((devices, wires))
}

/// One veth pair, a device at each end.
fn lay_pair(plan: &LinkPlan, namespaces: &LinkNamespaces<'_>) -> Result<(LinkDevices, Wires), TestbedError> {
    let (left, right) = (namespaces.veth(namespaces.left, "l", 1), namespaces.veth(namespaces.right, "r", 2));
    join(&left, &right, plan.mtu)?;
    Ok((LinkDevices { left, right, between: Vec::new() }, None))
}

/// A TUN device at each end, both attached to the emulator.
fn lay_tuns(plan: &LinkPlan, namespaces: &LinkNamespaces<'_>) -> Result<(LinkDevices, Wires), TestbedError> {
    let open = |namespace: &Arc<Namespace>, side| {
        let name = namespaces.device_name(side);
        let tun = namespace.run(|| Tun::open(&name))?.map_err(emulated(&plan.name))?;
        let device = Device { namespace: Arc::clone(namespace), name, ethernet: None };
        Ok::<(Device, Box<dyn Wire>), TestbedError>((device, Box::new(tun)))
    };
    let (left, left_wire) = open(namespaces.left, "l")?;
    let (right, right_wire) = open(namespaces.right, "r")?;
    Ok((LinkDevices { left, right, between: Vec::new() }, Some([left_wire, right_wire])))
}

/// A veth pair from each end to the emulator, which opens a packet socket on its side.
fn lay_packets(
    plan: &LinkPlan,
    namespaces: &LinkNamespaces<'_>,
) -> Result<(LinkDevices, Wires), TestbedError> {
    let lay = |namespace: &Arc<Namespace>, [side, inner]: [&str; 2], port| {
        let outer = namespaces.veth(namespace, side, port);
        let inner = namespaces.veth(namespaces.middle, inner, port | 0x80);
        join(&outer, &inner, plan.mtu)?;
        let socket =
            namespaces.middle.run(|| PacketSocket::open(&inner.name))?.map_err(emulated(&plan.name))?;
        raise(&inner)?;
        Ok::<(Device, Device, Box<dyn Wire>), TestbedError>((outer, inner, Box::new(socket)))
    };
    let (left, left_inner, left_wire) = lay(namespaces.left, ["l", "lw"], 1)?;
    let (right, right_inner, right_wire) = lay(namespaces.right, ["r", "rw"], 2)?;
    let between = vec![left_inner, right_inner];
    Ok((LinkDevices { left, right, between }, Some([left_wire, right_wire])))
}

/// Error of the emulated link `name`.
pub(super) fn emulated(name: &str) -> impl FnOnce(WireError) -> TestbedError {
    move |error| TestbedError::Other(format!("link {name}: {error}"))
}

impl LinkNamespaces<'_> {
    fn device_name(&self, side: &str) -> String {
        format!("lq{}{side}", self.number)
    }

    fn veth(&self, namespace: &Arc<Namespace>, side: &str, port: u8) -> Device {
        Device {
            namespace: Arc::clone(namespace),
            name: self.device_name(side),
            ethernet: Some(ethernet(self.number, port)),
        }
    }
}

impl LinkDevices {
    pub(super) fn devices(&self) -> impl Iterator<Item = &Device> {
        [&self.left, &self.right].into_iter().chain(&self.between)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_that_join_packets_are_offloads() {
        let unwanted = [
            "tx-scatter-gather",
            "tx-checksum-ip-generic",
            "tx-tcp-segmentation",
            "tx-tcp6-segmentation",
            "tx-udp-segmentation",
            "tx-generic-segmentation",
            "tx-gso-list",
            "tx-gso-partial",
            "rx-gro",
            "rx-gro-list",
            "rx-udp-gro-forwarding",
            "rx-gro-hw",
            "rx-lro",
        ];
        assert!(unwanted.iter().all(|feature| is_offload(feature)));
        let harmless =
            ["highdma", "tx-vlan-hw-insert", "rx-checksum", "rx-hashing", "tx-lockless", "loopback"];
        assert!(!harmless.iter().any(|feature| is_offload(feature)));
    }
}
