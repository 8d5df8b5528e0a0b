//! How the devices of one link are laid between two ends.

use std::sync::Arc;

use super::device::{self, Device};
use super::error::HouseError;
use super::namespace::Namespace;
use super::offload;
use super::plan::{self, LinkPlan, WireChoice};
use super::rule;
use crate::wire::{PacketSocket, Tun, Wire, WireError};

/// Where a link is laid.
pub(super) struct Ground<'a> {
    /// The number of the link.
    pub(super) number: u8,
    pub(super) left: &'a Arc<Namespace>,
    pub(super) right: &'a Arc<Namespace>,
    /// Where the emulator's sides of packet wires are.
    pub(super) middle: &'a Arc<Namespace>,
}

/// The devices of a link.
pub(super) struct Cable {
    pub(super) left: Device,
    pub(super) right: Device,
    /// Those between the emulator and the ends.
    pub(super) between: Vec<Device>,
    /// The emulator's sides, left and right, if there is an emulator.
    pub(super) wires: Option<[Box<dyn Wire>; 2]>,
}

/// Lays a link; packets may go then. `choice` says what carries it if it is emulated, and becomes what does.
pub(super) fn lay(
    plan: &LinkPlan,
    ground: &Ground<'_>,
    choice: &mut WireChoice,
) -> Result<Cable, HouseError> {
    let cable = match (&plan.shape, *choice) {
        (None, _) => lay_pair(plan, ground)?,
        (Some(_), WireChoice::Tun) => lay_tuns(plan, ground)?,
        (Some(_), WireChoice::Packet) => lay_packets(plan, ground)?,
        (Some(_), WireChoice::Auto) => match lay_tuns(plan, ground) {
            Ok(cable) => {
                *choice = WireChoice::Tun;
                cable
            }
            Err(_) => {
                *choice = WireChoice::Packet;
                lay_packets(plan, ground)?
            }
        },
    };
    let (left, right) = plan::addresses(ground.number);
    device::settle(&cable.left, left, (right, &cable.right), plan.mtu)?;
    device::settle(&cable.right, right, (left, &cable.left), plan.mtu)?;
    if !plan.keep_offloads {
        for device in cable.devices() {
            device::forbid_segments(device)?;
            offload::switch_off(device)?;
        }
    }
    if let Some(rule) = plan.rule {
        rule::hold(rule, ground.right, &cable.right.name)?;
    }
    Ok(cable)
}

/// One pair, an end at each.
fn lay_pair(plan: &LinkPlan, ground: &Ground<'_>) -> Result<Cable, HouseError> {
    let (left, right) = (ground.veth(ground.left, "l", 1), ground.veth(ground.right, "r", 2));
    device::join(&left, &right, plan.mtu)?;
    Ok(Cable { left, right, between: Vec::new(), wires: None })
}

/// A TUN device at each end, both read and written by the emulator.
fn lay_tuns(plan: &LinkPlan, ground: &Ground<'_>) -> Result<Cable, HouseError> {
    let open = |namespace: &Arc<Namespace>, side| {
        let name = ground.device_name(side);
        let tun = namespace.run(|| Tun::open(&name))?.map_err(emulator(plan))?;
        let device = Device { namespace: Arc::clone(namespace), name, ethernet: None };
        Ok::<(Device, Box<dyn Wire>), HouseError>((device, Box::new(tun)))
    };
    let (left, left_wire) = open(ground.left, "l")?;
    let (right, right_wire) = open(ground.right, "r")?;
    Ok(Cable { left, right, between: Vec::new(), wires: Some([left_wire, right_wire]) })
}

/// A pair from each end to the emulator, which reads and writes at its side of it.
fn lay_packets(plan: &LinkPlan, ground: &Ground<'_>) -> Result<Cable, HouseError> {
    let lay = |namespace: &Arc<Namespace>, [side, inner]: [&str; 2], port| {
        let outer = ground.veth(namespace, side, port);
        let inner = ground.veth(ground.middle, inner, port | 0x80);
        device::join(&outer, &inner, plan.mtu)?;
        let socket = ground.middle.run(|| PacketSocket::open(&inner.name))?.map_err(emulator(plan))?;
        device::raise(&inner)?;
        Ok::<(Device, Device, Box<dyn Wire>), HouseError>((outer, inner, Box::new(socket)))
    };
    let (left, left_inner, left_wire) = lay(ground.left, ["l", "lw"], 1)?;
    let (right, right_inner, right_wire) = lay(ground.right, ["r", "rw"], 2)?;
    Ok(Cable { left, right, between: vec![left_inner, right_inner], wires: Some([left_wire, right_wire]) })
}

fn emulator(plan: &LinkPlan) -> impl FnOnce(WireError) -> HouseError {
    |source| HouseError::Wire { link: plan.name.clone(), source }
}

impl Ground<'_> {
    fn device_name(&self, side: &str) -> String {
        format!("lq{}{side}", self.number)
    }

    fn veth(&self, namespace: &Arc<Namespace>, side: &str, port: u8) -> Device {
        Device {
            namespace: Arc::clone(namespace),
            name: self.device_name(side),
            ethernet: Some(device::ethernet(self.number, port)),
        }
    }
}

impl Cable {
    pub(super) fn devices(&self) -> impl Iterator<Item = &Device> {
        [&self.left, &self.right].into_iter().chain(&self.between)
    }
}
