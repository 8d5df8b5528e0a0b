//! A client that allocates identifiers for each stream, in any order.

use std::collections::BTreeMap;

use braid_proto::connection::{Event, Token};
use braid_proto::packet::{AckKind, Packet, ProtocolVersion};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use fastrand::Rng;

use super::{established, forge};
use crate::rig::{Rig, packets};

const STREAMS: u32 = 4;
/// Maximum number of exchanges on one stream.
const IDS: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Free,
    /// PUBLISH is sent, of this QoS.
    Sent(u8),
    /// PUBREC came.
    Recorded,
    /// PUBREL is sent.
    Released,
}

struct World {
    random: Rng,
    rig: Rig,
    held: Vec<Token>,
    steps: BTreeMap<(StreamKey, u8), Step>,
    /// Number of receptions of each message, by payload.
    taken: BTreeMap<String, u32>,
    sent: usize,
}

impl World {
    fn step(&mut self) {
        if self.random.u8(0..4) == 0 {
            let count = self.random.usize(0..=self.held.len());
            if let Some(token) = self.held.drain(..count).next_back() {
                self.rig.server.handle_persisted(token);
            }
        } else if let Some((on, id)) = self.random.choice(self.steps.keys().copied()) {
            self.client_acts(on, id);
        }
        self.collect();
    }

    fn client_acts(&mut self, on: StreamKey, id: u8) {
        if !self.rig.server.is_reading(on) {
            return;
        }
        let step = self.steps.get_mut(&(on, id)).unwrap();
        match *step {
            Step::Free => {
                let qos = self.random.u8(1..=2);
                self.rig.read_on(on, &forge::publish(qos, id, &self.sent.to_string()));
                self.sent += 1;
                *step = Step::Sent(qos);
            }
            Step::Recorded => {
                self.rig.read_on(on, &forge::pubrel(id));
                *step = Step::Released;
            }
            Step::Sent(_) | Step::Released => {}
        }
    }

    fn collect(&mut self) {
        for event in self.rig.events() {
            match event {
                Event::Publish(message, token) => {
                    let payload = String::from_utf8(message.payload.to_vec()).unwrap();
                    *self.taken.entry(payload).or_default() += 1;
                    self.held.extend(token);
                }
                Event::Release(token) => self.held.push(token),
                other => panic!("{other:?}"),
            }
        }
        for on in (0..STREAMS).map(StreamKey::bidi) {
            for packet in packets(&self.rig.sent_on(on).unwrap(), ProtocolVersion::V5) {
                self.client_hears(on, &packet);
            }
        }
    }

    fn client_hears(&mut self, on: StreamKey, packet: &Packet) {
        let Packet::Ack(ack) = packet else { panic!("{packet:?}") };
        assert_eq!(ack.reason, ReasonCode::Success);
        let step = self.steps.get_mut(&(on, u8::try_from(ack.packet_id.value()).unwrap())).unwrap();
        *step = match (ack.kind, *step) {
            (AckKind::Puback, Step::Sent(1)) | (AckKind::Pubcomp, Step::Released) => Step::Free,
            (AckKind::Pubrec, Step::Sent(2)) => Step::Recorded,
            other => panic!("{other:?} on {on}"),
        };
    }
}

// [BQ-14], [BQ-20], [BQ-23]
#[test]
fn exchanges_belong_to_their_stream() {
    for seed in 0..100 {
        println!("seed {seed}");
        let mut rig = established();
        for n in 1..STREAMS {
            rig.open(n);
        }
        let all = (0..STREAMS).flat_map(|n| (1..=IDS).map(move |id| ((StreamKey::bidi(n), id), Step::Free)));
        let mut world = World {
            random: Rng::with_seed(seed),
            rig,
            held: Vec::new(),
            steps: all.collect(),
            taken: BTreeMap::new(),
            sent: 0,
        };
        (0..600).for_each(|_| world.step());
        assert!(world.sent > 50, "only {} messages", world.sent);
        assert_eq!(world.taken.len(), world.sent, "a message was taken for another");
        assert!(world.taken.values().all(|count| *count == 1), "{:?}", world.taken);
        assert!(world.rig.actions().is_empty() && !world.rig.server.is_closed());
    }
}
