//! Bytes that one end has written on the streams of a connection and the other has not read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use braid_proto::stream::StreamKey;
use fastrand::Rng;

/// One direction of a connection: each stream keeps its order, and streams have no order among each other.
#[derive(Default)]
pub(super) struct Wires {
    wires: BTreeMap<StreamKey, Wire>,
    /// Streams whose reader has stopped them.
    stopped: BTreeSet<StreamKey>,
}

#[derive(Default)]
struct Wire {
    bytes: VecDeque<u8>,
    end: Option<Arrival>,
}

/// Input of a reader.
#[derive(Clone, Debug)]
pub(super) enum Arrival {
    Bytes(Vec<u8>),
    Finished,
    Reset,
}

impl Wires {
    pub(super) fn write(&mut self, stream: StreamKey, bytes: &[u8]) {
        if !self.stopped.contains(&stream) {
            self.wires.entry(stream).or_default().bytes.extend(bytes);
        }
    }

    pub(super) fn finish(&mut self, stream: StreamKey) {
        if !self.stopped.contains(&stream) {
            self.wires.entry(stream).or_default().end = Some(Arrival::Finished);
        }
    }

    /// Loses all unread bytes.
    pub(super) fn reset(&mut self, stream: StreamKey) {
        if !self.stopped.contains(&stream) {
            self.wires.insert(stream, Wire { bytes: VecDeque::new(), end: Some(Arrival::Reset) });
        }
    }

    /// Stops a stream as its reader.
    pub(super) fn forget(&mut self, stream: StreamKey) {
        self.wires.remove(&stream);
        self.stopped.insert(stream);
    }

    /// Streams with input for the reader.
    pub(super) fn waiting(&self) -> Vec<StreamKey> {
        let has_some = |wire: &Wire| !wire.bytes.is_empty() || wire.end.is_some();
        self.wires.iter().filter(|(_, wire)| has_some(wire)).map(|(stream, _)| *stream).collect()
    }

    /// Next input of a stream: some of its bytes while there are any, then its end.
    pub(super) fn read(&mut self, stream: StreamKey, takes_bytes: bool, random: &mut Rng) -> Option<Arrival> {
        let wire = self.wires.get_mut(&stream)?;
        if wire.bytes.is_empty() {
            return wire.end.take();
        }
        let len = random.usize(1..=wire.bytes.len());
        takes_bytes.then(|| Arrival::Bytes(wire.bytes.drain(..len).collect()))
    }
}
