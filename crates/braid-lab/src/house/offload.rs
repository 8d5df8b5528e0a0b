//! Offloads make one large packet of many, and a link that counts packets would count wrong: they are switched off.

use std::io;

use super::device::Device;
use super::error::HouseError;
use super::sys;

/// Switches off every feature of `device` that joins packets or leaves their checksums open, and gives those that are
/// still on.
pub(super) fn switch_off(device: &Device) -> Result<Vec<String>, HouseError> {
    let switch = || -> io::Result<Vec<String>> {
        let names = sys::feature_names(&device.name)?;
        let unwanted: Vec<bool> = names.iter().map(|name| is_offload(name)).collect();
        sys::switch_off(&device.name, &unwanted)?;
        still_on(device, &names)
    };
    device
        .namespace
        .run(switch)?
        .map_err(HouseError::kernel(format!("switch off the offloads of {}", device.name)))
}

/// Those that are on now.
pub(super) fn read(device: &Device) -> Result<Vec<String>, HouseError> {
    let look = || still_on(device, &sys::feature_names(&device.name)?);
    device.namespace.run(look)?.map_err(HouseError::kernel(format!("read the offloads of {}", device.name)))
}

fn still_on(device: &Device, names: &[String]) -> io::Result<Vec<String>> {
    let on = sys::features_on(&device.name, names.len())?;
    let still_on = names.iter().zip(on).filter(|(name, on)| *on && is_offload(name));
    Ok(still_on.map(|(name, _)| name.clone()).collect())
}

/// By the kernel's names (`ethtool -k`): segmentation of TCP and UDP in all its kinds, scatter-gather and transmit
/// checksums which it needs, and what joins received packets.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_joins_packets_is_an_offload() {
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
