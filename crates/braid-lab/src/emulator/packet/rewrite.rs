//! Changing the address and port of one end of a packet, checksums included.

use super::checksum::updated;
use super::view::{PacketView, UDP};

/// Which end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Destination,
}

/// Gives the `end` of `packet` the port `port`, and flips the bits `mask` in the last byte of its address. `view` must
/// be that of `packet`; without ports nothing changes.
pub(crate) fn rewrite(packet: &mut [u8], view: PacketView, end: End, port: u16, mask: u8) {
    let Some((source, destination)) = view.ports else { return };
    let (addresses, old_port, port_at) = match end {
        End::Source => (view.addresses().0, source, view.transport),
        End::Destination => (view.addresses().1, destination, view.transport + 2),
    };
    // The last word of the address, so that it stands at an even place for both checksums.
    let word = addresses.end - 2;
    let old_word = [packet[word], packet[word + 1]];
    let new_word = [old_word[0], old_word[1] ^ mask];
    let old = [old_word, old_port.to_be_bytes()].concat_words();
    let new = [new_word, port.to_be_bytes()].concat_words();

    packet[word..word + 2].copy_from_slice(&new_word);
    packet[port_at..port_at + 2].copy_from_slice(&port.to_be_bytes());
    if view.version == 4 {
        update(packet, 10, &old_word, &new_word);
    }
    if view.protocol == UDP {
        let at = view.transport + 6;
        // Over IPv4 a checksum of 0 says that there is none (RFC 768), and a computed 0 is sent as all ones.
        if packet[at..at + 2] != [0, 0] {
            update(packet, at, &old, &new);
            if packet[at..at + 2] == [0, 0] {
                packet[at..at + 2].copy_from_slice(&[0xff, 0xff]);
            }
        }
    } else {
        update(packet, view.transport + 16, &old, &new);
    }
}

fn update(packet: &mut [u8], at: usize, old: &[u8], new: &[u8]) {
    let checksum = updated(u16::from_be_bytes([packet[at], packet[at + 1]]), old, new);
    packet[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

trait Words {
    fn concat_words(self) -> [u8; 4];
}

impl Words for [[u8; 2]; 2] {
    fn concat_words(self) -> [u8; 4] {
        [self[0][0], self[0][1], self[1][0], self[1][1]]
    }
}
