use std::collections::HashSet;

use braid_proto::packet::{Ack, AckKind, Packet, PacketId, Publish, QoS};
use braid_proto::reason::ReasonCode;

/// The receiving half of a client's session, which outlives its connections (MQTT 4.3).
#[derive(Default)]
pub(crate) struct Receiver {
    /// Identifiers of QoS 2 messages that were received and whose PUBREL has not come.
    unreleased: HashSet<PacketId>,
    /// Messages passed to the application, in order.
    pub(crate) messages: Vec<Publish>,
}

impl Receiver {
    /// True when no QoS 2 exchange is incomplete.
    pub(crate) fn is_settled(&self) -> bool {
        self.unreleased.is_empty()
    }

    /// Handles a packet as the standard requires; returns the answer to send.
    pub(crate) fn handle(&mut self, packet: &Packet) -> Option<Packet> {
        let answer = |kind, packet_id| Some(Packet::Ack(Ack::new(kind, packet_id, ReasonCode::Success)));
        match packet {
            Packet::Publish(publish) => match (publish.qos, publish.packet_id) {
                (QoS::ExactlyOnce, Some(packet_id)) => {
                    if self.unreleased.insert(packet_id) {
                        self.messages.push(publish.clone());
                    } else {
                        assert!(publish.dup, "identifier {packet_id} was not released"); // [MQTT-2.2.1-4]
                    }
                    answer(AckKind::Pubrec, packet_id)
                }
                (_, packet_id) => {
                    self.messages.push(publish.clone());
                    answer(AckKind::Puback, packet_id?)
                }
            },
            Packet::Ack(ack) if ack.kind == AckKind::Pubrel => {
                self.unreleased.remove(&ack.packet_id);
                answer(AckKind::Pubcomp, ack.packet_id)
            }
            _ => None,
        }
    }
}
