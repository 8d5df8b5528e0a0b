use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::packet::PacketId;

/// The receiver's half of QoS 2 (MQTT 4.3.3): identifiers of messages that were taken over and whose PUBREL
/// has not come yet.
#[derive(Clone, Debug, Default)]
pub struct Inbound {
    /// Each with whether its PUBLISH came on the present connection.
    unreleased: HashMap<PacketId, bool, FxBuildHasher>,
    /// How many of them did.
    received_here: usize,
}

impl Inbound {
    /// Notes a QoS 2 message. False: it is a duplicate and must not be taken over again. [MQTT-4.3.3-10]
    pub fn receive(&mut self, packet_id: PacketId) -> bool {
        let before = self.unreleased.insert(packet_id, true);
        self.received_here += usize::from(before != Some(true));
        before.is_none()
    }

    /// Handles PUBREL. False: the identifier is not known. [MQTT-4.3.3-12]
    pub fn release(&mut self, packet_id: PacketId) -> bool {
        let known = self.unreleased.remove(&packet_id);
        self.received_here -= usize::from(known == Some(true));
        // An idle session keeps no large table.
        if self.unreleased.is_empty() && self.unreleased.capacity() > 64 {
            self.unreleased = HashMap::default();
        }
        known.is_some()
    }

    /// Begins a new connection, on which the peer's send quota starts anew (MQTT 5, 4.9).
    pub fn resume(&mut self) {
        self.received_here = 0;
        self.unreleased.values_mut().for_each(|here| *here = false);
    }

    /// How many came on the present connection and wait for their PUBREL: what our Receive Maximum limits.
    pub fn unacknowledged(&self) -> usize {
        self.received_here
    }

    /// Whether a PUBLISH with this identifier came on the present connection and waits for its PUBREL.
    pub fn is_unacknowledged(&self, packet_id: PacketId) -> bool {
        self.unreleased.get(&packet_id) == Some(&true)
    }

    /// How many wait for their PUBREL.
    pub fn len(&self) -> usize {
        self.unreleased.len()
    }

    /// Whether none waits for its PUBREL.
    pub fn is_empty(&self) -> bool {
        self.unreleased.is_empty()
    }

    /// The identifiers in ascending order.
    pub fn packet_ids(&self) -> Vec<PacketId> {
        let mut ids: Vec<_> = self.unreleased.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}
