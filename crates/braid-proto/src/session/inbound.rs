use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::packet::PacketId;
use crate::stream::StreamKey;
use crate::work;

/// The receiver's half of QoS 2 (MQTT 4.3.3): identifiers of messages that were taken over and whose PUBREL
/// has not come yet.
///
/// Identifiers are the peer's per stream [BQ-20]. What an ended stream or an earlier connection left is known by its
/// identifier alone, because the peer may go on with it on any stream [BQ-21].
#[derive(Clone, Debug, Default)]
pub struct Inbound {
    /// Received on a stream of the present connection.
    here: BTreeSet<(PacketId, StreamKey)>,
    /// How many of `here` each stream has; streams without any are left out.
    counts: BTreeMap<StreamKey, usize>,
    /// Left by streams of the present connection that have ended, with how many left the same identifier.
    forsaken: HashMap<PacketId, usize, FxBuildHasher>,
    /// The same of earlier connections.
    left: HashMap<PacketId, usize, FxBuildHasher>,
}

fn add(map: &mut HashMap<PacketId, usize, FxBuildHasher>, packet_id: PacketId, count: usize) {
    *map.entry(packet_id).or_default() += count;
}

fn take(map: &mut HashMap<PacketId, usize, FxBuildHasher>, packet_id: PacketId) -> bool {
    let Some(count) = map.get_mut(&packet_id) else { return false };
    *count -= 1;
    if *count == 0 {
        map.remove(&packet_id);
    }
    true
}

impl Inbound {
    /// Notes a QoS 2 message. False: it is a duplicate and must not be taken over again. [MQTT-4.3.3-10]
    ///
    /// `dup`: it is marked as a repetition. Only such a one can be what another stream left: identifiers may begin anew
    /// on each, and a new message must not be lost [BQ-20]. What an earlier connection left is found on the control
    /// stream without the mark too, as MQTT has it.
    pub fn receive(&mut self, stream: StreamKey, packet_id: PacketId, dup: bool) -> bool {
        work::step();
        if !self.here.insert((packet_id, stream)) {
            return false;
        }
        *self.counts.entry(stream).or_default() += 1;
        let is_left = dup && take(&mut self.forsaken, packet_id)
            || (dup || stream.is_control()) && take(&mut self.left, packet_id);
        !is_left // [BQ-21]
    }

    /// Handles PUBREL. False: the identifier is not known. [MQTT-4.3.3-12]
    pub fn release(&mut self, stream: StreamKey, packet_id: PacketId) -> bool {
        self.take_here(stream, packet_id)
            || self.take_left(packet_id)
            // Some clients go on with an exchange on another stream than they began it.
            || self.first_with(packet_id).is_some_and(|other| self.take_here(other, packet_id))
    }

    /// A stream of the present connection on which an exchange with this identifier began.
    fn first_with(&self, packet_id: PacketId) -> Option<StreamKey> {
        let all = (packet_id, StreamKey::CONTROL)..=(packet_id, StreamKey::LAST);
        self.here.range(all).next().map(|(_, stream)| *stream)
    }

    fn take_here(&mut self, stream: StreamKey, packet_id: PacketId) -> bool {
        work::step();
        if !self.here.remove(&(packet_id, stream)) {
            return false;
        }
        if let Some(count) = self.counts.get_mut(&stream) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&stream);
            }
        }
        true
    }

    fn take_left(&mut self, packet_id: PacketId) -> bool {
        take(&mut self.forsaken, packet_id) || take(&mut self.left, packet_id)
    }

    /// A stream has ended: what it received and did not release may go on elsewhere. [BQ-21]
    pub(crate) fn end_stream(&mut self, stream: StreamKey) {
        if self.counts.remove(&stream).is_none() {
            return;
        }
        let forsaken = &mut self.forsaken;
        self.here.retain(|(packet_id, key)| {
            if *key == stream {
                add(forsaken, *packet_id, 1);
            }
            *key != stream
        });
    }

    /// Begins a new connection, on which the peer's send quota starts anew (MQTT 5, 4.9).
    pub fn resume(&mut self) {
        for (packet_id, _) in std::mem::take(&mut self.here) {
            add(&mut self.left, packet_id, 1);
        }
        for (packet_id, count) in self.forsaken.drain() {
            add(&mut self.left, packet_id, count);
        }
        self.counts.clear();
    }

    /// Puts back exchanges as they were before this process began.
    pub fn restore(&mut self, packet_id: PacketId, exchanges: NonZeroU16) {
        add(&mut self.left, packet_id, exchanges.get().into());
    }

    /// The identifiers, and how many exchanges have each, in no order; one may come more than once.
    pub fn exchanges(&self) -> impl Iterator<Item = (PacketId, usize)> {
        let left = self.left.iter().chain(&self.forsaken).map(|(packet_id, count)| (*packet_id, *count));
        self.here.iter().map(|(packet_id, _)| (*packet_id, 1)).chain(left)
    }

    /// How many came on this stream and wait for their PUBREL: what our Receive Maximum limits.
    pub fn unacknowledged(&self, stream: StreamKey) -> usize {
        self.counts.get(&stream).copied().unwrap_or(0)
    }

    /// How many came on any stream of the present connection that is there still, and wait for their PUBREL.
    pub fn present(&self) -> usize {
        self.here.len()
    }

    /// Whether a PUBLISH with this identifier came on this stream and waits for its PUBREL.
    pub fn is_unacknowledged(&self, stream: StreamKey, packet_id: PacketId) -> bool {
        self.here.contains(&(packet_id, stream))
    }

    /// Whether any message with this identifier waits for its PUBREL.
    pub fn contains(&self, packet_id: PacketId) -> bool {
        self.left.contains_key(&packet_id)
            || self.forsaken.contains_key(&packet_id)
            || self.first_with(packet_id).is_some()
    }

    /// How many wait for their PUBREL.
    pub fn len(&self) -> usize {
        self.here.len() + self.left.values().chain(self.forsaken.values()).sum::<usize>()
    }

    /// Whether none waits for its PUBREL.
    pub fn is_empty(&self) -> bool {
        self.here.is_empty() && self.left.is_empty() && self.forsaken.is_empty()
    }

    /// The identifiers in ascending order; one that several streams use is there once.
    pub fn packet_ids(&self) -> Vec<PacketId> {
        let mut ids: Vec<_> = self.here.iter().map(|(id, _)| *id).collect();
        ids.extend(self.left.keys().chain(self.forsaken.keys()).copied());
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: PacketId = PacketId::FIRST;

    /// [BQ-20]
    #[test]
    fn streams_have_identifiers_of_their_own() {
        let (a, b) = (StreamKey::bidi(1), StreamKey::bidi(2));
        let mut inbound = Inbound::default();
        assert!(inbound.receive(a, ID, true) && inbound.receive(b, ID, true));
        assert!(!inbound.receive(a, ID, true) && !inbound.receive(b, ID, true));
        assert_eq!((inbound.unacknowledged(a), inbound.len()), (1, 2));
        assert!(inbound.release(a, ID) && inbound.contains(ID));
        assert!(inbound.receive(a, ID, true), "released and used again");
        assert!(inbound.release(a, ID) && inbound.release(b, ID) && !inbound.release(b, ID));
        assert!(inbound.is_empty() && !inbound.contains(ID));
    }

    /// [BQ-21]
    #[test]
    fn what_a_stream_left_is_found_by_its_identifier() {
        let (a, b) = (StreamKey::bidi(1), StreamKey::bidi(2));
        let mut inbound = Inbound::default();
        assert!(inbound.receive(a, ID, true) && inbound.receive(b, ID, true));
        inbound.end_stream(a);
        assert_eq!((inbound.unacknowledged(a), inbound.unacknowledged(b)), (0, 1));
        assert!(!inbound.receive(StreamKey::CONTROL, ID, true), "the same message, on another stream");
        inbound.resume();
        assert_eq!((inbound.len(), inbound.packet_ids()), (2, vec![ID]));
        assert!(!inbound.receive(a, ID, true) && !inbound.receive(b, ID, true), "both, repeated");
        assert!(inbound.receive(StreamKey::CONTROL, ID, true), "a third exchange is a new one");
        assert_eq!(inbound.len(), 3);
    }

    /// [BQ-20], [BQ-21]
    #[test]
    fn a_new_message_is_not_taken_for_what_another_stream_left() {
        let (a, b) = (StreamKey::bidi(1), StreamKey::bidi(2));
        let mut inbound = Inbound::default();
        assert!(inbound.receive(a, ID, false));
        inbound.end_stream(a);
        assert!(inbound.receive(b, ID, false), "not marked as a repetition");
        assert!(inbound.receive(StreamKey::CONTROL, ID, false), "neither is this");
        assert!(inbound.release(b, ID) && inbound.release(StreamKey::CONTROL, ID) && inbound.contains(ID));
        inbound.resume();
        assert!(inbound.receive(b, ID, false));
        assert!(!inbound.receive(StreamKey::CONTROL, ID, false), "there MQTT's own rule holds");
    }

    /// [BQ-20], [BQ-21]
    #[test]
    fn exchanges_are_put_back_as_they_were() {
        let (a, b) = (StreamKey::bidi(1), StreamKey::bidi(2));
        let other = PacketId::new(7).unwrap();
        let mut inbound = Inbound::default();
        assert!(
            inbound.receive(a, ID, false)
                && inbound.receive(b, ID, false)
                && inbound.receive(b, other, false)
        );
        inbound.end_stream(a);
        let mut exchanges: Vec<_> = inbound.exchanges().collect();
        exchanges.sort_unstable();
        assert_eq!(exchanges, [(ID, 1), (ID, 1), (other, 1)]);
        let mut restored = Inbound::default();
        restored.restore(ID, NonZeroU16::new(2).unwrap());
        assert_eq!((restored.len(), restored.unacknowledged(StreamKey::CONTROL)), (2, 0));
        assert!(!restored.receive(a, ID, true) && !restored.receive(b, ID, true));
        assert!(restored.receive(StreamKey::CONTROL, ID, true), "a third one is new");
    }

    #[test]
    fn a_pubrel_is_understood_on_any_stream() {
        let mut inbound = Inbound::default();
        assert!(inbound.receive(StreamKey::bidi(1), ID, true));
        assert!(inbound.release(StreamKey::CONTROL, ID) && inbound.is_empty());
        assert_eq!(inbound.unacknowledged(StreamKey::bidi(1)), 0);
    }
}
