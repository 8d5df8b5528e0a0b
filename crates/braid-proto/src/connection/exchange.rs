//! What both ends do alike once they are connected: QoS 0, 1 and 2 in both directions (MQTT 4.3), flow
//! control (4.9), topic aliases and packet size limits.

mod encode;
mod resends;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use super::acks::{Token, Waiting, WaitingAcks};
use super::alias::OutboundAliases;
use super::outbox::Outbox;
use super::streams::{StreamLimits, Streams};
use crate::decoder::wire::PACKET_SIZE_MAX;
use crate::error::Violation;
use crate::message::{Delivery, Message};
use crate::packet::{Ack, AckKind, Packet, PacketId, ProtocolVersion, Publish, QoS};
use crate::reason::ReasonCode;
use crate::session::{Limits, Session};
use crate::stream::{Lane, StreamKey};

use resends::Resends;

/// Messages of QoS 2 without PUBREL that a peer without Receive Maximum may have, on all streams.
const MOST_UNRELEASED: usize = u16::MAX as usize;

/// What became of a message that was to be sent.
#[derive(Debug)]
pub enum Sent {
    /// It is in the outbox; with QoS 1 and 2 under this identifier.
    Out(Option<PacketId>),
    /// Its Message Expiry Interval had passed. [MQTT-3.3.2-5]
    Expired,
    /// Larger than the peer's Maximum Packet Size. [MQTT-3.1.2-24]
    TooLarge,
    /// The peer's Receive Maximum is reached or no packet identifier is free: try again after an
    /// acknowledgement.
    Blocked(Box<Delivery>),
}

/// What became of a message that was to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resent {
    /// It is in the outbox of this stream.
    Out(StreamKey),
    /// There is nothing to send again: it was acknowledged.
    Over,
    /// Larger than the peer's Maximum Packet Size: its exchange is over as if it had been completed.
    /// [MQTT-3.1.2-24], [MQTT-3.1.2-25]
    TooLarge,
    /// The peer's Receive Maximum is reached: try again after an acknowledgement.
    Blocked,
}

/// How far a delivery with a place in a store has come, for the store to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// PUBREC came: the message at this place is let go, the identifier stays in use. Its PUBREL is in the outbox of a
    /// stream, behind so many bytes that are not written yet. A PUBREC that comes again has another one.
    Released {
        /// [`Delivery::queue_lsn`] of the message.
        queue_lsn: NonZeroU64,
        /// Its identifier.
        packet_id: PacketId,
        /// The stream, and the bytes before PUBREL.
        behind: (StreamKey, usize),
    },
    /// The exchange of the message at this place is over.
    Completed(NonZeroU64),
}

/// What was agreed in CONNECT and CONNACK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreement {
    pub(crate) version: ProtocolVersion,
    /// The most QoS 1 and 2 messages that we take unacknowledged.
    pub(crate) receive_maximum: u16,
    /// The most QoS 1 and 2 messages that the peer takes unacknowledged.
    pub(crate) peer_receive_maximum: u16,
    /// Bytes.
    pub(crate) peer_maximum_packet_size: usize,
    /// The most payload bytes that are kept until the peer acknowledges them; a single message may have more.
    pub(crate) maximum_inflight_bytes: usize,
    pub(crate) inbound_aliases: u16,
    pub(crate) outbound_aliases: u16,
    /// Our own Maximum Packet Size, bytes.
    pub(crate) maximum_packet_size: usize,
    /// Bytes of incomplete packets on the data streams.
    pub(crate) maximum_partial_bytes: usize,
    /// This side is the client.
    pub(crate) is_client: bool,
}

/// A message that arrived.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) message: Arc<Message>,
    pub(crate) token: Option<Token>,
}

/// What an acknowledgement of the peer means for the application.
#[derive(Debug)]
pub(crate) enum Acknowledged {
    /// The exchange of this identifier is over.
    Complete(PacketId, ReasonCode),
    /// PUBREL of a message that we received: its identifier is free again.
    Released(Token),
    /// Nothing to tell.
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Exchange {
    /// As long as the connection. [MQTT-4.1.0-1]
    pub(crate) session: Session,
    pub(crate) streams: Streams,
    pub(crate) waiting: WaitingAcks,
    agreement: Agreement,
    resends: Resends,
    /// The shell says where and when a PUBLISH is sent again.
    places_resends: bool,
    /// What it has not heard of yet.
    to_place: Vec<PacketId>,
    /// Empty unless deliveries have a place in a store.
    pub(crate) progress: VecDeque<Progress>,
    /// Of the control stream alone. [BQ-18]
    outbound_aliases: OutboundAliases,
}

impl Exchange {
    pub(crate) fn new(mut session: Session, mut agreement: Agreement) -> Self {
        agreement.peer_maximum_packet_size = agreement.peer_maximum_packet_size.min(PACKET_SIZE_MAX);
        let resend: Vec<_> = session.outbound.resume(); // [MQTT-4.4.0-1]
        session.inbound.resume();
        let mut exchange = Self {
            session,
            streams: Streams::new(StreamLimits {
                version: agreement.version,
                maximum_packet_size: agreement.maximum_packet_size,
                topic_aliases: agreement.inbound_aliases,
                partial_bytes: agreement.maximum_partial_bytes,
                is_client: agreement.is_client,
            }),
            waiting: WaitingAcks::default(),
            resends: Resends::default(),
            places_resends: false,
            to_place: Vec::new(),
            progress: VecDeque::new(),
            outbound_aliases: OutboundAliases::new(agreement.outbound_aliases),
            agreement,
        };
        exchange.add_resend(resend);
        exchange
    }

    pub(crate) fn version(&self) -> ProtocolVersion {
        self.agreement.version
    }

    /// Whether more may be received on a stream. Clients before MQTT 5 know no Receive Maximum: they are not
    /// disconnected for running ahead of our acknowledgements, they are not read.
    ///
    /// Of several streams each may have eight times as many acknowledgements waiting as it leaves free, and one that
    /// has none is always read: what waits on one stream must not silence the others. [BQ-23], [BQ-55]
    pub(crate) fn is_reading(&self, on: StreamKey) -> bool {
        let all = self.waiting.len();
        let maximum = usize::from(self.agreement.receive_maximum);
        let own = self.streams.owed(on).unwrap_or(all);
        let free = maximum.saturating_sub(all);
        own == 0 || free > 0 && (own == all || own < free.saturating_mul(8))
    }

    // -- Receiving ---------------------------------------------------------------------------------

    /// Handles a PUBLISH: `None` for a duplicate of QoS 2. [MQTT-3.3.4-1], [MQTT-4.5.0-2]
    pub(crate) fn handle_publish(
        &mut self,
        on: StreamKey,
        mut publish: Publish,
        now: Instant,
    ) -> Result<Option<Received>, Violation> {
        let topic = self.streams.resolve_topic(on, publish.topic.take(), publish.topic_alias)?;
        let (qos, packet_id) = (publish.qos, publish.packet_id);
        let (Some(packet_id), true) = (packet_id, qos > QoS::AtMostOnce) else {
            let message = Arc::new(Message::from_publish(publish, topic, now));
            return Ok(Some(Received { message, token: None }));
        };
        if on.is_uni() {
            return Err(Violation::QosOnUnidirectional); // [BQ-12]
        }
        let chosen_on = self.chosen_on(on);
        let Some(stream) = self.streams.get_mut(on) else { return Ok(None) };
        let inbound = &mut self.session.inbound;
        let counts = qos == QoS::AtLeastOnce || !inbound.is_unacknowledged(chosen_on, packet_id);
        // Of this stream: the sum over the streams may exceed it. [BQ-23]
        let unacknowledged = usize::from(stream.unacknowledged) + inbound.unacknowledged(chosen_on);
        // Before the session learns the identifier: what is refused here was not taken over.
        let has_receive_maximum = self.agreement.version.is_v5();
        if has_receive_maximum && counts && unacknowledged >= usize::from(self.agreement.receive_maximum) {
            return Err(Violation::ReceiveMaximumExceeded); // [MQTT-3.3.4-7]
        }
        // Without one: as many in sum as a connection could have before it had streams. [BQ-23]
        if !has_receive_maximum && counts && qos == QoS::ExactlyOnce && inbound.present() >= MOST_UNRELEASED {
            return Err(Violation::TooManyUnreleased);
        }
        if qos == QoS::ExactlyOnce && !inbound.receive(chosen_on, packet_id, publish.dup) {
            // A PUBREC is owed all the same. [MQTT-4.3.3-8], [MQTT-4.3.3-10]
            let ack = Ack::new(AckKind::Pubrec, packet_id, ReasonCode::Success);
            self.owe_without_effect(on, Waiting::Ack(ack));
            return Ok(None);
        }
        let kind = if qos == QoS::AtLeastOnce {
            stream.unacknowledged = stream.unacknowledged.saturating_add(1);
            AckKind::Puback // [MQTT-4.3.2-4]
        } else {
            AckKind::Pubrec // [MQTT-4.3.3-8]
        };
        let message = Arc::new(Message::from_publish(publish, topic, now));
        let token = self.owe(on, Waiting::Ack(Ack::new(kind, packet_id, ReasonCode::Success)));
        Ok(Some(Received { message, token: Some(token) }))
    }

    /// For which stream the peer's identifiers are its own: a client's for each [BQ-20], a server's for all of them
    /// [BQ-22].
    fn chosen_on(&self, stream: StreamKey) -> StreamKey {
        if self.agreement.is_client { StreamKey::CONTROL } else { stream }
    }

    /// Notes the acknowledgement of a request that came on a stream. [BQ-14]
    pub(crate) fn owe(&mut self, on: StreamKey, waiting: Waiting) -> Token {
        self.streams.owe(on, true);
        self.waiting.push(on, waiting)
    }

    fn owe_without_effect(&mut self, on: StreamKey, waiting: Waiting) {
        self.streams.owe(on, true);
        self.waiting.push_without_effect(on, waiting);
    }

    /// Sets the Reason Code of the acknowledgement that waits under `token`.
    pub(crate) fn set_reason(&mut self, token: Token, reason: ReasonCode) {
        let Some(Waiting::Ack(ack)) = self.waiting.get_mut(token) else { return };
        if !matches!(ack.kind, AckKind::Puback | AckKind::Pubrec) {
            return; // PUBCOMP has nothing to say.
        }
        let reason = reason.allowed_in(ack.kind.packet_type()); // [MQTT-3.4.2-1], [MQTT-3.5.2-1]
        ack.reason = reason;
        if ack.kind == AckKind::Pubrec && reason.is_error() {
            // Refused: the identifier may be used for a new message. Said now, because a PUBREC that is lost with
            // the connection must not make the repetition a duplicate. [MQTT-4.3.3-9]
            let (packet_id, chosen_on) = (ack.packet_id, self.chosen_on(token.stream()));
            self.session.inbound.release(chosen_on, packet_id);
        }
    }

    /// Sends every acknowledgement whose effect is durable.
    pub(crate) fn handle_persisted(&mut self, token: Option<Token>) {
        if let Some(token) = token {
            self.waiting.set_durable(token);
        }
        while let Some((on, waiting)) = self.waiting.pop_durable() {
            self.streams.owe(on, false);
            let packet = match waiting {
                Waiting::Ack(ack) => {
                    if let (AckKind::Puback, Some(stream)) = (ack.kind, self.streams.get_mut(on)) {
                        stream.unacknowledged = stream.unacknowledged.saturating_sub(1); // [MQTT-4.3.2-5]
                    }
                    Packet::Ack(ack)
                }
                Waiting::Suback(suback) => Packet::Suback(suback),
                Waiting::Unsuback(unsuback) => Packet::Unsuback(unsuback),
                Waiting::Unanswered(_) => continue, // Never popped.
            };
            self.send_packet_on(on, &packet);
        }
    }

    /// Handles PUBACK, PUBREC, PUBREL and PUBCOMP, on whatever stream. [BQ-22]
    pub(crate) fn handle_ack(&mut self, on: StreamKey, ack: &Ack) -> Acknowledged {
        let (id, reason) = (ack.packet_id, ack.reason);
        let outbound = &mut self.session.outbound;
        let complete = match ack.kind {
            // [MQTT-4.3.2-3], [MQTT-4.4.0-2]
            AckKind::Puback => outbound.handle_puback(id).map(|delivery| delivery.queue_lsn),
            // [MQTT-4.4.0-2]
            AckKind::Pubrec if reason.is_error() => outbound.take_refused(id).map(|phase| phase.queue_lsn()),
            AckKind::Pubrec => {
                let known = outbound.release(id);
                // Behind a PUBLISH that was sent again comes its PUBREL: on another stream it could be there before,
                // and the repetition would be a new message. And a stream that we end cannot carry the rest.
                let on = self.streams.resolve(self.session.outbound.repeated_on(id).unwrap_or(on));
                self.session.outbound.continue_on(id, on);
                if let Some(Some(queue_lsn)) = known {
                    let behind = (on, self.streams.outbox(on).map_or(0, Outbox::len));
                    self.progress.push_back(Progress::Released { queue_lsn, packet_id: id, behind });
                }
                self.send_pubrel(on, id, known.is_some());
                None
            }
            AckKind::Pubcomp => outbound.take_completed(id).map(|phase| phase.queue_lsn()), // [MQTT-4.3.3-5]
            AckKind::Pubrel => return self.handle_pubrel(on, id),
        };
        let Some(queue_lsn) = complete else { return Acknowledged::Nothing };
        self.note_completed(queue_lsn);
        Acknowledged::Complete(id, reason)
    }

    fn note_completed(&mut self, queue_lsn: Option<NonZeroU64>) {
        if let Some(queue_lsn) = queue_lsn {
            self.progress.push_back(Progress::Completed(queue_lsn));
        }
    }

    fn send_pubrel(&mut self, on: StreamKey, id: PacketId, known: bool) {
        let reason = if known { ReasonCode::Success } else { ReasonCode::PacketIdentifierNotFound };
        // Whatever the send quota is. [MQTT-4.3.3-4], [MQTT-3.3.4-8], [MQTT-3.3.4-10], [MQTT-4.9.0-3]
        self.send_packet_on(on, &Packet::Ack(Ack::new(AckKind::Pubrel, id, reason)));
    }

    fn handle_pubrel(&mut self, on: StreamKey, id: PacketId) -> Acknowledged {
        // However old the message is. [MQTT-4.3.3-11], [MQTT-4.3.3-12], [MQTT-4.3.3-13]
        let ack = |reason| Waiting::Ack(Ack::new(AckKind::Pubcomp, id, reason));
        if self.session.inbound.release(self.chosen_on(on), id) {
            return Acknowledged::Released(self.owe(on, ack(ReasonCode::Success)));
        }
        self.owe_without_effect(on, ack(ReasonCode::PacketIdentifierNotFound));
        Acknowledged::Nothing
    }

    // -- Sending -----------------------------------------------------------------------------------

    /// Whether a QoS 1 or 2 message may be sent now.
    pub(crate) fn has_send_quota(&self) -> bool {
        self.resends.is_empty() && self.is_peer_ready() && self.session.outbound.has_free_id()
    }

    /// Whether this message may be sent now.
    pub(crate) fn takes(&self, delivery: &Delivery) -> bool {
        if delivery.qos == QoS::AtMostOnce {
            return true;
        }
        let lane = Lane { stream: self.streams.resolve(delivery.stream), ..delivery.lane() };
        let limits = Limits {
            messages: self.agreement.peer_receive_maximum.into(),
            payload_bytes: self.agreement.maximum_inflight_bytes,
        };
        let outbound = &self.session.outbound;
        self.resends.top().is_none_or(|top| delivery.priority > top)
            && outbound.has_free_id()
            && outbound.has_room(
                lane,
                self.streams.has_others(lane.stream),
                delivery.message.payload_len(),
                limits,
            )
    }

    /// Whether the peer takes another QoS 1 or 2 message [MQTT-4.9.0-1], [MQTT-4.9.0-2], and we can keep it.
    fn is_peer_ready(&self) -> bool {
        self.has_peer_room() && self.session.outbound.payload_bytes() <= self.agreement.maximum_inflight_bytes
    }

    fn has_peer_room(&self) -> bool {
        self.session.outbound.unacknowledged() < usize::from(self.agreement.peer_receive_maximum)
    }

    /// Sends a message on its stream, or on the control stream if that has ended. [BQ-15], [BQ-42]
    pub(crate) fn send(&mut self, mut delivery: Delivery, now: Instant) -> Sent {
        if delivery.message.is_expired(now) {
            return Sent::Expired; // [MQTT-3.3.2-5]
        }
        if delivery.qos == QoS::AtMostOnce {
            delivery.stream = self.streams.resolve_unanswered(delivery.stream);
            // [MQTT-4.3.1-1]
            return if self.put(&delivery, None, false, now) { Sent::Out(None) } else { Sent::TooLarge };
        }
        delivery.stream = self.streams.resolve(delivery.stream);
        if !self.takes(&delivery) {
            return Sent::Blocked(Box::new(delivery)); // [MQTT-3.3.4-7], [MQTT-3.3.4-9]
        }
        let id = match self.session.outbound.send(delivery) {
            Ok(id) => id,
            Err(delivery) => return Sent::Blocked(delivery),
        };
        // [MQTT-4.3.2-2], [MQTT-4.3.3-2]
        if self.put_inflight(id, false, now) {
            return Sent::Out(Some(id));
        }
        // As if it had been sent: there is nobody to tell. [MQTT-3.1.2-25]
        self.session.outbound.discard(id);
        Sent::TooLarge
    }
}
