//! State of each message of one direction, and the rules for it.

use std::collections::HashMap;

use braid_proto::packet::{PacketId, QoS};
use braid_proto::stream::StreamKey;

#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    qos: QoS,
    taken: u32,
    refused: u32,
    completed: bool,
    /// Abandoned by its sender before all of it was sent.
    given_up: bool,
}

#[derive(Default)]
pub(super) struct Fates {
    all: Vec<Fate>,
    /// Identifiers in use, each with its message.
    inflight: HashMap<PacketId, usize>,
    /// Newest message received on each data stream.
    newest: HashMap<StreamKey, usize>,
}

impl Fates {
    /// Registers a message to send; its payload begins with its number.
    pub(super) fn begin(&mut self, qos: QoS, len: usize) -> Vec<u8> {
        let number = u32::try_from(self.all.len()).unwrap();
        self.all.push(Fate { qos, ..Fate::default() });
        let mut payload = number.to_be_bytes().to_vec();
        payload.resize(4 + len, b'.');
        payload
    }

    /// Notes that it was sent under this identifier. [MQTT-2.2.1-3]
    pub(super) fn sent(&mut self, id: Option<PacketId>) {
        if let Some(id) = id {
            let before = self.inflight.insert(id, self.all.len() - 1);
            assert_eq!(before, None, "{id} is in use");
        }
    }

    /// Notes that it was not sent.
    pub(super) fn take_back(&mut self) {
        self.all.pop();
    }

    /// Notes its reception, from this stream if it is to be acknowledged.
    pub(super) fn arrived(&mut self, payload: &[u8], on: Option<StreamKey>, is_refused: bool) {
        let number = u32::from_be_bytes(payload[..4].try_into().unwrap()) as usize;
        assert!(payload[4..].iter().all(|byte| *byte == b'.'), "message {number} is torn");
        let fate = &mut self.all[number];
        *(if is_refused { &mut fate.refused } else { &mut fate.taken }) += 1;
        if let Some(on) = on.filter(|on| !on.is_control()) {
            // Only new messages are sent on a data stream, in their order. [BQ-54]
            let before = self.newest.insert(on, number);
            assert!(before < Some(number), "{number} came behind {before:?} on {on}");
        }
    }

    pub(super) fn complete(&mut self, id: PacketId, given_up: bool) {
        let number = self.inflight.remove(&id).expect("an exchange that was never begun is over");
        self.all[number].completed = true;
        self.all[number].given_up = given_up;
    }

    pub(super) fn connect(&mut self) {
        self.newest.clear();
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// [MQTT-4.3.1-1], [MQTT-4.3.2-1], [MQTT-4.3.3-1]
    pub(super) fn check(&self, what: &str) {
        assert!(self.inflight.is_empty(), "{what} identifiers are never free again: {:?}", self.inflight);
        for (number, fate) in self.all.iter().enumerate() {
            let came = fate.taken + fate.refused;
            let fine = match fate.qos {
                QoS::AtMostOnce => fate.taken <= 1,
                _ if fate.given_up => came == 0,
                QoS::AtLeastOnce => fate.completed && came >= 1,
                QoS::ExactlyOnce => fate.completed && (fate.taken == 1 || fate.taken == 0 && came >= 1),
            };
            assert!(fine, "{what} message {number}: {fate:?}");
        }
    }
}
