//! The devices of a link: how they are made, addressed and told whom they reach.

use std::net::Ipv4Addr;
use std::sync::Arc;

use super::error::HouseError;
use super::namespace::Namespace;
use super::tool::{IP, Input, STANDARD_INPUT};

/// A network device.
#[derive(Debug, Clone)]
pub(super) struct Device {
    pub(super) namespace: Arc<Namespace>,
    pub(super) name: String,
    /// Its Ethernet address. A TUN device has none.
    pub(super) ethernet: Option<String>,
}

/// The Ethernet address of port `port` of link `link`: locally administered, the same in every run.
pub(super) fn ethernet(link: u8, port: u8) -> String {
    format!("02:62:71:00:{link:02x}:{port:02x}")
}

/// Makes two devices, what goes into one comes out of the other. Both are down.
pub(super) fn join(near: &Device, far: &Device, mtu: u16) -> Result<(), HouseError> {
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

/// Brings a device up that carries what others send, and has no address itself.
pub(super) fn raise(device: &Device) -> Result<(), HouseError> {
    batch(device, &format!("link set dev {} arp off up\n", device.name))
}

/// Gives an end its device: `own` address in a network of 24 bits, where it knows the `peer`.
///
/// What resolves addresses would be packets of no program, and lost ones would look like the link's doing: who is
/// where is written down.
pub(super) fn settle(
    device: &Device,
    own: Ipv4Addr,
    peer: (Ipv4Addr, &Device),
    mtu: u16,
) -> Result<(), HouseError> {
    let name = &device.name;
    let mut commands = format!("link set dev {name} mtu {mtu}\n");
    if device.ethernet.is_some() {
        commands += &format!("link set dev {name} arp off\n");
    }
    commands += &format!("link set dev {name} up\naddr add {own}/24 dev {name}\n");
    if let (address, Device { ethernet: Some(ethernet), .. }) = peer {
        commands += &format!("neigh replace {address} lladdr {ethernet} dev {name} nud permanent\n");
    }
    batch(device, &commands)
}

/// A second guard beside the switched off offloads: no sender makes packets of several segments. Old versions of the
/// tool cannot, and the features are what counts.
pub(super) fn forbid_segments(device: &Device) -> Result<(), HouseError> {
    let command = ["link", "set", "dev", &device.name, "gso_max_segs", "1"];
    match IP.run(&device.namespace, &command, Input::Nothing) {
        Ok(_) | Err(HouseError::Tool { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn batch(device: &Device, commands: &str) -> Result<(), HouseError> {
    IP.run(&device.namespace, &["-batch", "-"], Input::Text(commands)).map(drop)
}
