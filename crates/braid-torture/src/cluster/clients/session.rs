//! Session State of a client, which outlives connections.
//!
//! The state is this crate's own, on nothing but the packets of braid-proto: an oracle that shared the protocol machine
//! of the broker would share its mistakes.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use braid_proto::packet::{Ack, AckKind, MessageProperties, Packet, PacketId, Publish, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::topic::TopicName;
use bytes::Bytes;

/// Message of this client without its last acknowledgement.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) id: Rc<str>,
    pub(crate) publish: Publish,
    /// True once PUBREC has come.
    is_received: bool,
}

/// Result of a packet for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// PUBREC has come.
    Received(Rc<str>),
    /// The last acknowledgement of a message to this topic has come.
    Acknowledged {
        id: Rc<str>,
        topic: String,
        reason: u8,
        /// True if the message is the server's: no error, or PUBREC without an error before. A server that had
        /// completed the exchange answers a repeated PUBREL with Packet Identifier not found.
        is_taken: bool,
    },
    /// The application gets this message.
    Deliver(Box<Publish>),
    /// The exchange of a delivered message is complete, for the client.
    Done { packet_id: PacketId },
}

/// Session State.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Messages in the order of their PUBLISH.
    outgoing: BTreeMap<u64, Outgoing>,
    /// Positions in `outgoing`.
    positions: HashMap<PacketId, u64>,
    next: u64,
    last_id: PacketId,
    /// Packet Identifiers of QoS 2 that await PUBREL.
    unreleased: HashMap<PacketId, ()>,
}

impl Session {
    /// Number of messages without their last acknowledgement.
    pub(crate) fn inflight(&self) -> usize {
        self.outgoing.len()
    }

    /// Takes a message of QoS 1 or 2, and returns its first PUBLISH.
    pub(crate) fn publish(
        &mut self,
        id: Rc<str>,
        topic: TopicName,
        payload: Bytes,
        qos: QoS,
        retain: bool,
    ) -> &Outgoing {
        self.last_id = self.last_id.next();
        while self.positions.contains_key(&self.last_id) {
            self.last_id = self.last_id.next();
        }
        let publish = Publish {
            dup: false,
            qos,
            retain,
            topic: Some(topic),
            packet_id: Some(self.last_id),
            topic_alias: None,
            subscription_ids: Vec::new(),
            // Every second message expires, after the run.
            properties: self.next.is_multiple_of(2).then(|| {
                Box::new(MessageProperties { message_expiry: Some(3600), ..MessageProperties::default() })
            }),
            payload: payload.into(),
            spooled: false,
        };
        self.next += 1;
        self.positions.insert(self.last_id, self.next);
        self.outgoing.entry(self.next).or_insert(Outgoing { id, publish, is_received: false })
    }

    /// Packets to send again on a new connection, in their order. Without the server's session, messages whose PUBREC
    /// has not come are sent as new, and the others are given up: they are with the server already.
    pub(crate) fn resume(&mut self, is_present: bool) -> Vec<(Rc<str>, Packet)> {
        if !is_present {
            self.unreleased.clear();
            self.outgoing.retain(|_, message| !message.is_received);
            let outgoing = &self.outgoing;
            self.positions.retain(|_, position| outgoing.contains_key(position));
        }
        let again = |message: &Outgoing| {
            let packet = match (message.publish.packet_id, message.is_received) {
                (Some(packet_id), true) => {
                    Packet::Ack(Ack::new(AckKind::Pubrel, packet_id, ReasonCode::Success))
                }
                _ => Packet::Publish(Publish { dup: is_present, ..message.publish.clone() }),
            };
            (Rc::clone(&message.id), packet)
        };
        self.outgoing.values().map(again).collect()
    }

    /// Handles a packet of the server; returns the answer and the effects.
    pub(crate) fn handle(&mut self, packet: Packet) -> (Option<Packet>, Vec<Effect>) {
        match packet {
            Packet::Publish(publish) => self.handle_publish(publish),
            Packet::Ack(ack) => self.handle_ack(&ack),
            _ => (None, Vec::new()),
        }
    }

    fn handle_publish(&mut self, publish: Publish) -> (Option<Packet>, Vec<Effect>) {
        let Some(packet_id) = publish.packet_id else {
            return (None, vec![Effect::Deliver(Box::new(publish))]);
        };
        let answer = |kind| Some(Packet::Ack(Ack::new(kind, packet_id, ReasonCode::Success)));
        if publish.qos == QoS::ExactlyOnce {
            let is_new = self.unreleased.insert(packet_id, ()).is_none();
            let effects = is_new.then(|| Effect::Deliver(Box::new(publish)));
            return (answer(AckKind::Pubrec), effects.into_iter().collect());
        }
        let effects = vec![Effect::Deliver(Box::new(publish)), Effect::Done { packet_id }];
        (answer(AckKind::Puback), effects)
    }

    fn handle_ack(&mut self, ack: &Ack) -> (Option<Packet>, Vec<Effect>) {
        let packet_id = ack.packet_id;
        let answer = |kind| Some(Packet::Ack(Ack::new(kind, packet_id, ReasonCode::Success)));
        match ack.kind {
            AckKind::Pubrel => {
                let done = self.unreleased.remove(&packet_id).map(|()| Effect::Done { packet_id });
                (answer(AckKind::Pubcomp), done.into_iter().collect())
            }
            AckKind::Pubrec if !ack.reason.is_error() => {
                let position = self.positions.get(&packet_id);
                let message = position.and_then(|position| self.outgoing.get_mut(position));
                let effect = message.filter(|message| !message.is_received).map(|message| {
                    message.is_received = true;
                    Effect::Received(Rc::clone(&message.id))
                });
                (answer(AckKind::Pubrel), effect.into_iter().collect())
            }
            AckKind::Puback | AckKind::Pubrec | AckKind::Pubcomp => {
                let position = self.positions.remove(&packet_id);
                let message = position.and_then(|position| self.outgoing.remove(&position));
                let acknowledged = message.map(|message| Effect::Acknowledged {
                    id: message.id,
                    topic: message.publish.topic.map(|topic| topic.as_str().to_owned()).unwrap_or_default(),
                    reason: ack.reason.value(),
                    is_taken: message.is_received || !ack.reason.is_error(),
                });
                (None, acknowledged.into_iter().collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(kind: AckKind, packet_id: u16, reason: ReasonCode) -> Packet {
        Packet::Ack(Ack::new(kind, PacketId::new(packet_id).unwrap(), reason))
    }

    fn success(kind: AckKind, packet_id: u16) -> Packet {
        ack(kind, packet_id, ReasonCode::Success)
    }

    fn send(session: &mut Session, id: &str, qos: QoS) -> u16 {
        let topic = TopicName::parse("m/x").unwrap();
        session.publish(id.into(), topic, Bytes::new(), qos, false).publish.packet_id.unwrap().value()
    }

    fn acknowledged(id: &str, reason: u8, is_taken: bool) -> Vec<Effect> {
        vec![Effect::Acknowledged { id: id.into(), topic: "m/x".to_owned(), reason, is_taken }]
    }

    /// A received PUBLISH.
    fn publish(packet_id: u16, qos: QoS, dup: bool) -> Publish {
        let mut session = Session::default();
        send(&mut session, "y:1", qos);
        let mut publish = session.outgoing.remove(&1).unwrap().publish;
        (publish.packet_id, publish.dup) = (PacketId::new(packet_id), dup);
        publish
    }

    /// Packets that are sent again: identifier, kind, DUP.
    fn again(session: &mut Session, is_present: bool) -> Vec<(String, &'static str, bool)> {
        let packets = session.resume(is_present);
        let text = |(id, packet): &(Rc<str>, Packet)| match packet {
            Packet::Publish(publish) => (id.to_string(), "PUBLISH", publish.dup),
            Packet::Ack(ack) if ack.kind == AckKind::Pubrel => (id.to_string(), "PUBREL", false),
            _ => (id.to_string(), "?", false),
        };
        packets.iter().map(text).collect()
    }

    #[test]
    fn messages_out_are_acknowledged_once() {
        let mut session = Session::default();
        let (one, two) =
            (send(&mut session, "x:1", QoS::AtLeastOnce), send(&mut session, "x:2", QoS::ExactlyOnce));
        assert_eq!(session.handle(success(AckKind::Puback, one)), (None, acknowledged("x:1", 0, true)));
        assert_eq!(session.handle(success(AckKind::Puback, one)), (None, vec![]));
        let pubrel = Some(success(AckKind::Pubrel, two));
        let received = vec![Effect::Received("x:2".into())];
        assert_eq!(session.handle(success(AckKind::Pubrec, two)), (pubrel.clone(), received));
        assert_eq!(session.handle(success(AckKind::Pubrec, two)), (pubrel, vec![]));
        assert_eq!(session.handle(success(AckKind::Pubcomp, two)), (None, acknowledged("x:2", 0, true)));
        assert_eq!(session.inflight(), 0);
        let three = send(&mut session, "x:3", QoS::ExactlyOnce);
        let refused = ack(AckKind::Pubrec, three, ReasonCode::QuotaExceeded);
        assert_eq!(session.handle(refused), (None, acknowledged("x:3", 0x97, false)));
        let four = send(&mut session, "x:4", QoS::ExactlyOnce);
        session.handle(success(AckKind::Pubrec, four));
        let unknown = ack(AckKind::Pubcomp, four, ReasonCode::PacketIdentifierNotFound);
        assert_eq!(session.handle(unknown), (None, acknowledged("x:4", 0x92, true)));
    }

    #[test]
    fn a_delivery_of_qos_2_is_new_until_its_identifier_is_released() {
        let mut session = Session::default();
        let packet_id = PacketId::new(9).unwrap();
        for (dup, is_new) in [(false, true), (true, false), (false, false)] {
            let (answer, effects) = session.handle(Packet::Publish(publish(9, QoS::ExactlyOnce, dup)));
            assert_eq!(answer, Some(success(AckKind::Pubrec, 9)));
            assert_eq!(effects.len(), usize::from(is_new));
        }
        let pubcomp = Some(success(AckKind::Pubcomp, 9));
        assert_eq!(
            session.handle(success(AckKind::Pubrel, 9)),
            (pubcomp.clone(), vec![Effect::Done { packet_id }])
        );
        assert_eq!(session.handle(success(AckKind::Pubrel, 9)), (pubcomp, vec![]));
        assert_eq!(session.handle(Packet::Publish(publish(9, QoS::ExactlyOnce, false))).1.len(), 1);
        // QoS 1 has no state.
        for _ in 0..2 {
            let (answer, effects) = session.handle(Packet::Publish(publish(8, QoS::AtLeastOnce, true)));
            assert_eq!(answer, Some(success(AckKind::Puback, 8)));
            assert!(matches!(effects[..], [Effect::Deliver(_), Effect::Done { .. }]));
        }
    }

    #[test]
    fn a_new_connection_repeats_in_order_and_with_dup_only_what_the_server_may_have() {
        let start = || {
            let mut session = Session::default();
            let ids: Vec<_> =
                [("x:1", QoS::AtLeastOnce), ("x:2", QoS::ExactlyOnce), ("x:3", QoS::AtLeastOnce)]
                    .map(|(id, qos)| send(&mut session, id, qos))
                    .into();
            session.handle(success(AckKind::Pubrec, ids[1]));
            session
        };
        let line = |id: &str, kind, dup| (id.to_owned(), kind, dup);
        let mut session = start();
        let present =
            [line("x:1", "PUBLISH", true), line("x:2", "PUBREL", false), line("x:3", "PUBLISH", true)];
        assert_eq!(again(&mut session, true), present);
        assert_eq!(again(&mut session, true), present);
        assert_eq!(
            again(&mut session, false),
            [line("x:1", "PUBLISH", false), line("x:3", "PUBLISH", false)]
        );
        assert_eq!(session.inflight(), 2);
        assert_eq!(session.positions.len(), 2);
    }

    #[test]
    fn an_identifier_in_use_is_not_used_again() {
        let mut session = Session::default();
        let first = send(&mut session, "x:0", QoS::AtLeastOnce);
        for number in 1..=u16::MAX {
            let packet_id = send(&mut session, "x:n", QoS::AtLeastOnce);
            assert_ne!(packet_id, first, "{number}");
            session.handle(success(AckKind::Puback, packet_id));
        }
    }
}
