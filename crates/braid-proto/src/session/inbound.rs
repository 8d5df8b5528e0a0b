//! Receiver's half of QoS 2.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::types::{PacketId, StreamKey};
use crate::work;

/// Receiver's half of QoS 2 (MQTT 4.3.3): identifiers of received messages whose PUBREL has not arrived.
///
/// The peer has a set of identifiers for each stream [BQ-20]. Exchanges of ended streams and earlier connections are
/// kept by identifier only, because the peer may continue them on any stream [BQ-21].
///
/// Allocated with the first exchange: most clients send no QoS 2.
#[derive(Clone, Debug, Default)]
pub struct Inbound(Option<Box<Exchanges>>);

#[derive(Clone, Debug, Default)]
struct Exchanges {
    /// Exchanges on the open streams of this connection, by identifier.
    current: BTreeSet<(PacketId, StreamKey)>,
    /// Identifiers of `current` by stream, without empty sets: the end of a stream must not search all exchanges.
    per_stream: BTreeMap<StreamKey, BTreeSet<PacketId>>,
    /// Exchanges of ended streams of this connection, counted by identifier.
    detached: HashMap<PacketId, usize, FxBuildHasher>,
    /// Exchanges of earlier connections, counted by identifier.
    resumed: HashMap<PacketId, usize, FxBuildHasher>,
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

static NONE: Exchanges = Exchanges {
    current: BTreeSet::new(),
    per_stream: BTreeMap::new(),
    detached: HashMap::with_hasher(FxBuildHasher),
    resumed: HashMap::with_hasher(FxBuildHasher),
};

impl Inbound {
    fn all(&self) -> &Exchanges {
        self.0.as_deref().unwrap_or(&NONE)
    }

    /// Notes a QoS 2 message. False: a duplicate, which must not be delivered again. [MQTT-4.3.3-10]
    ///
    /// `dup` is the flag of the PUBLISH. Only a marked repetition can continue an exchange of another stream:
    /// identifiers may begin anew on each stream, and a new message must not be lost [BQ-20]. An exchange of an earlier
    /// connection is recognised on the control stream without the flag too, as in MQTT.
    pub fn receive(&mut self, stream: StreamKey, packet_id: PacketId, dup: bool) -> bool {
        work::step();
        let all = self.0.get_or_insert_default();
        if !all.current.insert((packet_id, stream)) {
            return false;
        }
        all.per_stream.entry(stream).or_default().insert(packet_id);
        let is_continued = dup && take(&mut all.detached, packet_id)
            || (dup || stream.is_control()) && take(&mut all.resumed, packet_id);
        !is_continued // [BQ-21]
    }

    /// Handles PUBREL. False: the identifier is not known. [MQTT-4.3.3-12]
    pub fn release(&mut self, stream: StreamKey, packet_id: PacketId) -> bool {
        self.0.as_mut().is_some_and(|all| all.release(stream, packet_id))
    }

    /// Detaches the exchanges of a stream that has ended: they may continue elsewhere. [BQ-21]
    pub(crate) fn end_stream(&mut self, stream: StreamKey) {
        let Some(all) = &mut self.0 else { return };
        for packet_id in all.per_stream.remove(&stream).into_iter().flatten() {
            work::step();
            all.current.remove(&(packet_id, stream));
            add(&mut all.detached, packet_id, 1);
        }
    }

    /// Begins a new connection, with a new send quota of the peer (MQTT 5, 4.9).
    pub fn resume(&mut self) {
        let Some(all) = &mut self.0 else { return };
        for (packet_id, _) in std::mem::take(&mut all.current) {
            add(&mut all.resumed, packet_id, 1);
        }
        for (packet_id, count) in all.detached.drain() {
            add(&mut all.resumed, packet_id, count);
        }
        all.per_stream.clear();
        self.0.take_if(|all| all.resumed.is_empty());
    }

    /// Restores exchanges of an earlier process.
    pub fn restore(&mut self, packet_id: PacketId, exchanges: NonZeroU16) {
        add(&mut self.0.get_or_insert_default().resumed, packet_id, exchanges.get().into());
    }

    /// Identifiers with their numbers of exchanges, in no order; one identifier may be listed more than once.
    pub fn exchanges(&self) -> impl Iterator<Item = (PacketId, usize)> {
        let all = self.all();
        let resumed = all.resumed.iter().chain(&all.detached).map(|(packet_id, count)| (*packet_id, *count));
        all.current.iter().map(|(packet_id, _)| (*packet_id, 1)).chain(resumed)
    }

    /// Number of exchanges on this stream, which the Receive Maximum limits.
    pub fn unacknowledged(&self, stream: StreamKey) -> usize {
        self.all().per_stream.get(&stream).map_or(0, BTreeSet::len)
    }

    /// Number of exchanges on the open streams of this connection.
    pub fn open_exchanges(&self) -> usize {
        self.all().current.len()
    }

    /// Whether this stream has an exchange with this identifier.
    pub fn is_unacknowledged(&self, stream: StreamKey, packet_id: PacketId) -> bool {
        self.all().current.contains(&(packet_id, stream))
    }

    /// Whether any exchange has this identifier.
    pub fn contains(&self, packet_id: PacketId) -> bool {
        let all = self.all();
        all.resumed.contains_key(&packet_id)
            || all.detached.contains_key(&packet_id)
            || all.first_with(packet_id).is_some()
    }

    /// Number of exchanges.
    pub fn len(&self) -> usize {
        let all = self.all();
        all.current.len() + all.resumed.values().chain(all.detached.values()).sum::<usize>()
    }

    /// Whether there is no exchange.
    pub fn is_empty(&self) -> bool {
        let all = self.all();
        all.current.is_empty() && all.resumed.is_empty() && all.detached.is_empty()
    }
}

impl Exchanges {
    fn release(&mut self, stream: StreamKey, packet_id: PacketId) -> bool {
        self.take_current(stream, packet_id)
            || self.take_detached(packet_id)
            // Some clients continue an exchange on another stream than they began it on.
            || self.first_with(packet_id).is_some_and(|other| self.take_current(other, packet_id))
    }

    /// First open stream with an exchange of this identifier.
    fn first_with(&self, packet_id: PacketId) -> Option<StreamKey> {
        let all = (packet_id, StreamKey::CONTROL)..=(packet_id, StreamKey::LAST);
        self.current.range(all).next().map(|(_, stream)| *stream)
    }

    fn take_current(&mut self, stream: StreamKey, packet_id: PacketId) -> bool {
        work::step();
        if !self.current.remove(&(packet_id, stream)) {
            return false;
        }
        if let Some(ids) = self.per_stream.get_mut(&stream) {
            ids.remove(&packet_id);
            if ids.is_empty() {
                self.per_stream.remove(&stream);
            }
        }
        true
    }

    fn take_detached(&mut self, packet_id: PacketId) -> bool {
        take(&mut self.detached, packet_id) || take(&mut self.resumed, packet_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: PacketId = PacketId::FIRST;

    /// [BQ-20]
    #[test]
    fn each_stream_has_its_own_identifiers() {
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
    fn exchanges_of_an_ended_stream_are_found_by_identifier() {
        let (a, b) = (StreamKey::bidi(1), StreamKey::bidi(2));
        let mut inbound = Inbound::default();
        assert!(inbound.receive(a, ID, true) && inbound.receive(b, ID, true));
        inbound.end_stream(a);
        assert_eq!((inbound.unacknowledged(a), inbound.unacknowledged(b)), (0, 1));
        assert!(!inbound.receive(StreamKey::CONTROL, ID, true), "the same message, on another stream");
        inbound.resume();
        assert_eq!((inbound.len(), inbound.exchanges().collect::<Vec<_>>()), (2, vec![(ID, 2)]));
        assert!(!inbound.receive(a, ID, true) && !inbound.receive(b, ID, true), "both, repeated");
        assert!(inbound.receive(StreamKey::CONTROL, ID, true), "a third exchange is a new one");
        assert_eq!(inbound.len(), 3);
    }

    /// [BQ-20], [BQ-21]
    #[test]
    fn a_new_message_is_no_duplicate_of_an_ended_streams_exchange() {
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
    fn exchanges_are_restored_unchanged() {
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
    fn the_end_of_a_stream_costs_its_own_exchanges_only() {
        let steps = |streams: u32| {
            let mut inbound = Inbound::default();
            for stream in 1..=streams {
                (1..=100).for_each(|id| {
                    assert!(inbound.receive(StreamKey::bidi(stream), PacketId::new(id).unwrap(), false));
                });
            }
            let ended = StreamKey::bidi(streams + 1);
            assert!(inbound.receive(ended, ID, false) && inbound.receive(ended, ID.next(), false));
            let steps = work::steps(|| inbound.end_stream(ended));
            assert_eq!(inbound.open_exchanges(), 100 * usize::try_from(streams).unwrap());
            assert_eq!((inbound.unacknowledged(ended), inbound.len()), (0, inbound.open_exchanges() + 2));
            steps
        };
        assert_eq!((steps(1), steps(255)), (2, 2));
    }

    /// Naive model: lists of exchanges, each with its stream where it is on one.
    #[test]
    fn random_operations_agree_with_lists() {
        let mut rng = fastrand::Rng::with_seed(4);
        let (mut inbound, mut current, mut detached) = (Inbound::default(), Vec::new(), Vec::new());
        for _ in 0..20_000 {
            let (stream, id) = (StreamKey::bidi(rng.u32(0..5)), PacketId::new(rng.u16(1..20)).unwrap());
            let of_id = |list: &[(StreamKey, PacketId)], on: Option<StreamKey>| {
                let is_wanted = |one: &&(StreamKey, PacketId)| one.1 == id && on.is_none_or(|on| one.0 == on);
                list.iter().filter(is_wanted).min().copied()
            };
            match rng.u8(0..10) {
                0 => {
                    inbound.end_stream(stream);
                    detached
                        .extend(current.extract_if(.., |one: &mut (StreamKey, PacketId)| one.0 == stream));
                }
                1..6 => {
                    let is_new = of_id(&current, Some(stream)).is_none();
                    assert_eq!(inbound.receive(stream, id, false), is_new);
                    current.extend(is_new.then_some((stream, id)));
                }
                _ => {
                    let own = of_id(&current, Some(stream));
                    let ended = of_id(&detached, None).filter(|_| own.is_none());
                    let other = of_id(&current, None).filter(|_| ended.is_none());
                    assert_eq!(inbound.contains(id), of_id(&current, None).or(ended).is_some());
                    assert_eq!(inbound.release(stream, id), own.or(ended).or(other).is_some());
                    let (list, one) = match (own, ended) {
                        (None, Some(one)) => (&mut detached, Some(one)),
                        (own, _) => (&mut current, own.or(other)),
                    };
                    let at = list.iter().position(|other| Some(*other) == one);
                    at.map(|at| list.remove(at));
                }
            }
            assert_eq!(
                (inbound.open_exchanges(), inbound.len()),
                (current.len(), current.len() + detached.len())
            );
            let on_stream = current.iter().filter(|one| one.0 == stream).count();
            assert_eq!(inbound.unacknowledged(stream), on_stream);
        }
    }

    #[test]
    fn a_pubrel_is_accepted_on_any_stream() {
        let mut inbound = Inbound::default();
        assert!(inbound.receive(StreamKey::bidi(1), ID, true));
        assert!(inbound.release(StreamKey::CONTROL, ID) && inbound.is_empty());
        assert_eq!(inbound.unacknowledged(StreamKey::bidi(1)), 0);
    }
}
