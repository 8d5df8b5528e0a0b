//! Packets into outboxes, none larger than the peer takes.

use std::time::Instant;

use super::{Agreement, Exchange};
use crate::connection::alias::OutboundAliases;
use crate::connection::streams::Streams;
use crate::message::{Copy, Delivery, put_delivery};
use crate::packet::{Packet, PacketId};
use crate::session::Phase;
use crate::stream::StreamKey;

impl Exchange {
    /// Writes the message under `id`; false when it exceeds the peer's Maximum Packet Size.
    pub(super) fn put_inflight(&mut self, id: PacketId, dup: bool, now: Instant) -> bool {
        let Some(Phase::Sent(delivery)) = self.session.outbound.get(id) else { return true };
        let on = delivery.stream;
        let fits =
            put(&mut self.streams, &mut self.outbound_aliases, &self.agreement, delivery, Some(id), dup, now);
        if !on.is_control()
            && let Some(outbox) = self.streams.outbox(on)
        {
            self.session.outbound.set_end(id, outbox.end());
        }
        fits
    }

    pub(super) fn put(&mut self, delivery: &Delivery, id: Option<PacketId>, dup: bool, now: Instant) -> bool {
        put(&mut self.streams, &mut self.outbound_aliases, &self.agreement, delivery, id, dup, now)
    }

    /// Sends any other packet on the control stream, as [`Self::send_packet_on`].
    pub(crate) fn send_packet(&mut self, packet: &Packet) -> bool {
        self.send_packet_on(StreamKey::CONTROL, packet)
    }

    /// Sends any other packet. What exceeds the peer's Maximum Packet Size loses what is only for people, and
    /// is not sent if that is not enough: then the answer is false. [MQTT-3.1.2-24], [MQTT-3.2.2-15]
    pub(crate) fn send_packet_on(&mut self, on: StreamKey, packet: &Packet) -> bool {
        // What an ended stream still owed is not said elsewhere. [BQ-35]
        let Some(outbox) = self.streams.outbox_mut(on) else { return true };
        let out = outbox.open();
        let start = out.len();
        packet.encode(self.agreement.version, out);
        if out.len() - start <= self.agreement.peer_maximum_packet_size {
            return true;
        }
        out.truncate(start);
        let Some(bare) = without_properties(packet) else { return false };
        bare.encode(self.agreement.version, out);
        if out.len() - start <= self.agreement.peer_maximum_packet_size {
            return true;
        }
        out.truncate(start);
        false
    }
}

fn put(
    streams: &mut Streams,
    aliases: &mut OutboundAliases,
    agreement: &Agreement,
    delivery: &Delivery,
    packet_id: Option<PacketId>,
    dup: bool,
    now: Instant,
) -> bool {
    let topic = &delivery.message.topic;
    // Streams overtake each other: the definition of an alias could come after its use. [BQ-18]
    let alias = if delivery.stream.is_control() { aliases.assign(topic) } else { None };
    let Some(outbox) = streams.outbox_mut(delivery.stream) else { return true };
    let mut copy = Copy { version: agreement.version, dup, packet_id, alias, now };
    while put_delivery(outbox.open(), delivery, &copy, agreement.peer_maximum_packet_size).is_none() {
        // The definition of an alias needs three bytes: without it the packet may fit.
        let Some((_, named)) = copy.alias.take() else { return false };
        if named {
            aliases.revoke(topic);
        }
    }
    delivery.message.shared_parts().for_each(|part| outbox.push_shared(part.clone()));
    true
}

/// The packet without Reason String and User Properties, which may be left out. [MQTT-3.2.2-19],
/// [MQTT-3.2.2-20], [MQTT-3.4.2-2], [MQTT-3.4.2-3], [MQTT-3.5.2-2], [MQTT-3.5.2-3], [MQTT-3.6.2-2],
/// [MQTT-3.6.2-3], [MQTT-3.7.2-2], [MQTT-3.7.2-3], [MQTT-3.9.2-1], [MQTT-3.9.2-2], [MQTT-3.11.2-1],
/// [MQTT-3.11.2-2], [MQTT-3.14.2-3], [MQTT-3.14.2-4], [MQTT-3.15.2-2], [MQTT-3.15.2-3]
fn without_properties(packet: &Packet) -> Option<Packet> {
    let mut packet = packet.clone();
    match &mut packet {
        Packet::Connack(connack) => {
            connack.properties.reason_string = None;
            connack.properties.user.clear();
        }
        Packet::Ack(ack) => ack.properties = None,
        Packet::Suback(suback) => {
            suback.reason_string = None;
            suback.user.clear();
        }
        Packet::Unsuback(unsuback) => {
            unsuback.reason_string = None;
            unsuback.user.clear();
        }
        Packet::Disconnect(disconnect) => {
            disconnect.reason_string = None;
            disconnect.user.clear();
        }
        Packet::Auth(auth) => {
            auth.reason_string = None;
            auth.user.clear();
        }
        _ => return None,
    }
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::wire::PACKET_SIZE_MAX;
    use crate::packet::{
        Ack, AckKind, Auth, Connack, ConnackProperties, Disconnect, ProtocolVersion, Suback, Unsuback,
    };
    use crate::reason::ReasonCode;
    use crate::session::Session;

    /// [MQTT-3.2.2-19], [MQTT-3.2.2-20], [MQTT-3.4.2-2], [MQTT-3.4.2-3], [MQTT-3.5.2-2], [MQTT-3.5.2-3],
    /// [MQTT-3.6.2-2], [MQTT-3.6.2-3], [MQTT-3.7.2-2], [MQTT-3.7.2-3], [MQTT-3.9.2-1], [MQTT-3.9.2-2],
    /// [MQTT-3.11.2-1], [MQTT-3.11.2-2], [MQTT-3.14.2-3], [MQTT-3.14.2-4], [MQTT-3.15.2-2], [MQTT-3.15.2-3]
    #[test]
    fn what_is_for_people_is_left_out_where_it_does_not_fit() {
        let id = PacketId::FIRST;
        let reason = ReasonCode::Success;
        let reason_string = Some("too long by far".into());
        let user = vec![("name".into(), "value".into())];
        let properties = ConnackProperties {
            reason_string: reason_string.clone(),
            user: user.clone(),
            ..ConnackProperties::default()
        };
        let disconnect = Disconnect {
            reason_string: reason_string.clone(),
            user: user.clone(),
            ..Disconnect::new(ReasonCode::QuotaExceeded)
        };
        let codes = vec![reason];
        let mut packets = vec![
            Packet::Connack(Box::new(Connack { session_present: false, reason, properties })),
            Packet::Disconnect(Box::new(disconnect)),
            Packet::Suback(Box::new(Suback {
                packet_id: id,
                codes: codes.clone(),
                reason_string: reason_string.clone(),
                user: user.clone(),
            })),
            Packet::Unsuback(Box::new(Unsuback {
                packet_id: id,
                codes,
                reason_string: reason_string.clone(),
                user: user.clone(),
            })),
            Packet::Auth(Box::new(Auth {
                reason,
                method: None,
                authentication_data: None,
                reason_string: reason_string.clone(),
                user: user.clone(),
            })),
        ];
        for kind in [AckKind::Puback, AckKind::Pubrec, AckKind::Pubrel, AckKind::Pubcomp] {
            let properties =
                crate::packet::AckProperties { reason_string: reason_string.clone(), user: user.clone() };
            packets.push(Packet::Ack(Ack {
                properties: Some(Box::new(properties)),
                ..Ack::new(kind, id, reason)
            }));
        }
        for packet in packets {
            for (limit, fits) in [(1000, true), (10, false)] {
                let agreement = Agreement {
                    version: ProtocolVersion::V5,
                    receive_maximum: 1,
                    peer_receive_maximum: 1,
                    peer_maximum_packet_size: limit,
                    maximum_inflight_bytes: usize::MAX,
                    inbound_aliases: 0,
                    outbound_aliases: 0,
                    maximum_packet_size: PACKET_SIZE_MAX,
                    maximum_partial_bytes: 0,
                    is_client: false,
                };
                let mut exchange = Exchange::new(Session::default(), agreement);
                assert!(exchange.send_packet(&packet));
                let mut expected = bytes::BytesMut::new();
                let bare = without_properties(&packet).expect("each of them has properties");
                if fits { &packet } else { &bare }.encode(ProtocolVersion::V5, &mut expected);
                let outbox = exchange.streams.outbox_mut(StreamKey::CONTROL).expect("it never ends");
                assert_eq!(outbox.open(), &expected, "{packet:?}");
                assert!(expected.len() <= limit);
            }
        }
    }
}
