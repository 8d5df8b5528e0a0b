//! What both ends do alike once they are connected: QoS 0, 1 and 2 in both directions (MQTT 4.3), flow
//! control (4.9), topic aliases and packet size limits.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use super::acks::{Token, Waiting, WaitingAcks};
use super::alias::OutboundAliases;
use super::outbox::Outbox;
use super::streams::{StreamLimits, Streams};
use crate::codec::wire::PACKET_SIZE_MAX;
use crate::error::Violation;
use crate::message::{Copy, Delivery, INLINE_PAYLOAD, Message, put_delivery};
use crate::packet::{Ack, AckKind, Packet, PacketId, ProtocolVersion, Publish, QoS};
use crate::reason::ReasonCode;
use crate::session::{Limits, Phase, Session};
use crate::stream::{Lane, Priority, StreamKey};

/// Bytes on the control stream above which nothing more is sent again.
const RESEND_TARGET: usize = 16 * 1024;

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
    /// PUBREC came: the message at this place is let go, the identifier stays in use.
    Released(NonZeroU64, PacketId),
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
    /// What a resumed session, or one of whose streams one has ended, must send again.
    resend: VecDeque<PacketId>,
    /// The highest priority in it: nothing new goes before its equals, everything more urgent does.
    resend_top: Option<Priority>,
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
            resend: VecDeque::new(),
            resend_top: None,
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

    /// A data stream has ended, or answers nothing new any more: what it had not finished goes on elsewhere.
    /// [BQ-42], [BQ-21]
    pub(crate) fn end_stream(&mut self, stream: StreamKey, now: Instant) -> Vec<PacketId> {
        self.session.inbound.end_stream(stream);
        let ids = self.session.outbound.end_stream(stream);
        self.add_resend(ids);
        self.flush_resend(now)
    }

    /// This side has ended a data stream after `taken` bytes. Returns what is over: messages of which the peer has
    /// only a part and that have expired, and what exceeds its Maximum Packet Size.
    pub(crate) fn abort_stream(
        &mut self,
        stream: StreamKey,
        taken: u64,
        now: Instant,
    ) -> (Vec<PacketId>, Vec<PacketId>) {
        self.session.inbound.end_stream(stream);
        let outbound = &mut self.session.outbound;
        let expired = outbound.expired_in_part(stream, taken, now);
        expired.iter().for_each(|id| drop(outbound.discard(*id)));
        let ids = outbound.abort_stream(stream, taken);
        self.add_resend(ids);
        (expired, self.flush_resend(now))
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
            AckKind::Puback => outbound.handle_puback(id).map(|delivery| delivery.stored),
            // [MQTT-4.4.0-2]
            AckKind::Pubrec if reason.is_error() => outbound.take_refused(id).map(|phase| phase.stored()),
            AckKind::Pubrec => {
                let known = outbound.release(id);
                if let Some(Some(place)) = known {
                    self.progress.push_back(Progress::Released(place, id));
                }
                // Behind a PUBLISH that was sent again comes its PUBREL: on another stream it could be there before,
                // and the repetition would be a new message. And a stream that we end cannot carry the rest.
                let on = self.streams.resolve(self.session.outbound.repeated_on(id).unwrap_or(on));
                self.session.outbound.continue_on(id, on);
                self.send_pubrel(on, id, known.is_some());
                None
            }
            AckKind::Pubcomp => outbound.take_completed(id).map(|phase| phase.stored()), // [MQTT-4.3.3-5]
            AckKind::Pubrel => return self.handle_pubrel(on, id),
        };
        let Some(stored) = complete else { return Acknowledged::Nothing };
        self.note_completed(stored);
        Acknowledged::Complete(id, reason)
    }

    fn note_completed(&mut self, stored: Option<NonZeroU64>) {
        if let Some(place) = stored {
            self.progress.push_back(Progress::Completed(place));
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
        self.resend.is_empty() && self.is_peer_ready() && self.session.outbound.has_free_id()
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
        self.resend_top.is_none_or(|top| delivery.priority > top)
            && outbound.has_free_id()
            && outbound.has_room(
                lane,
                self.streams.has_others(lane.stream),
                delivery.message.payload.len(),
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

    /// Adds what must be sent again. A server does so lane by lane, the most urgent first; a client keeps the order
    /// in which it first sent [MQTT-4.6.0-1].
    fn add_resend(&mut self, ids: Vec<PacketId>) {
        if self.places_resends {
            let is_publish = |id: &PacketId| matches!(self.session.outbound.get(*id), Some(Phase::Sent(_)));
            let (publishes, pubrels): (Vec<_>, Vec<_>) = ids.into_iter().partition(is_publish);
            self.to_place.extend(publishes);
            self.resend.extend(pubrels);
            return self.note_resend_top();
        }
        self.resend.extend(ids);
        if !self.agreement.is_client {
            let urgency = |id: &PacketId| match self.session.outbound.get(*id) {
                Some(Phase::Sent(delivery)) => Some(Reverse(delivery.priority)),
                _ => None, // PUBREL goes before all.
            };
            self.resend.make_contiguous().sort_by_key(urgency);
        }
        self.note_resend_top();
    }

    /// From now on the shell places what is sent again, but for each PUBREL.
    pub(crate) fn place_resends(&mut self) {
        self.places_resends = true;
        let ids = std::mem::take(&mut self.resend);
        self.add_resend(ids.into());
    }

    /// What the shell is to place, in the order of [`Self::add_resend`].
    pub(crate) fn take_resends(&mut self) -> Vec<(PacketId, Delivery)> {
        let ids = std::mem::take(&mut self.to_place);
        let delivery = |id: &PacketId| match self.session.outbound.unsent(*id) {
            Some(Phase::Sent(delivery)) => Some(delivery.clone()),
            _ => None,
        };
        ids.into_iter().filter_map(|id| Some((id, delivery(&id)?))).collect()
    }

    /// Whether a message may be sent again on a stream now; true as well when there is nothing to send any more.
    pub(crate) fn takes_resend(&self, id: PacketId, on: StreamKey) -> bool {
        let outbound = &self.session.outbound;
        let Some(Phase::Sent(delivery)) = outbound.unsent(id) else { return true };
        let lane = Lane { stream: self.streams.resolve(on), ..delivery.lane() };
        // However many bytes they are: they are kept in any case, and nothing else makes room.
        let limits =
            Limits { messages: self.agreement.peer_receive_maximum.into(), payload_bytes: usize::MAX };
        let has_others = self.streams.has_others(lane.stream);
        outbound.counts(id) || outbound.has_room(lane, has_others, 0, limits) // [MQTT-4.9.0-2], [BQ-24]
    }

    /// Sends a message again on a stream, or on the control stream if that has ended. [BQ-21], [MQTT-3.3.1-1],
    /// [MQTT-4.3.3-7]
    pub(crate) fn resend(&mut self, id: PacketId, on: StreamKey, now: Instant) -> Resent {
        let Some(Phase::Sent(_)) = self.session.outbound.unsent(id) else { return Resent::Over };
        if !self.takes_resend(id, on) {
            return Resent::Blocked;
        }
        let on = self.streams.resolve(on);
        self.session.outbound.place(id, on);
        if self.put_inflight(id, true, now) {
            self.session.outbound.resend(id);
            return Resent::Out(on);
        }
        let over = self.session.outbound.discard(id);
        self.note_completed(over.and_then(|phase| phase.stored()));
        Resent::TooLarge
    }

    /// The peer has ended a stream because of what is on it: the messages there that it has not taken over are.
    pub(crate) fn refuse_stream(&mut self, stream: StreamKey) -> Vec<PacketId> {
        let ids = self.session.outbound.unreceived_on(stream);
        for id in &ids {
            let over = self.session.outbound.discard(*id);
            self.note_completed(over.and_then(|phase| phase.stored()));
        }
        ids
    }

    pub(crate) fn is_resending(&self) -> bool {
        !self.resend.is_empty()
    }

    fn note_resend_top(&mut self) {
        let priority = |id: &PacketId| match self.session.outbound.get(*id) {
            Some(Phase::Sent(delivery)) => Some(delivery.priority),
            _ => None,
        };
        self.resend_top = self.resend.iter().filter_map(priority).max();
    }

    /// Sends what a resumed session owes, as far as the quota goes, and a little at a time: it goes on the control
    /// stream, and what is encoded there cannot be overtaken [BQ-53]. Call it again when some is written. Returns what exceeds the Maximum Packet Size of
    /// this connection: those exchanges are over as if they had been completed. [MQTT-3.1.2-25], [MQTT-4.4.0-1]
    pub(crate) fn flush_resend(&mut self, now: Instant) -> Vec<PacketId> {
        let mut too_large = Vec::new();
        if self.resend.is_empty() {
            return too_large;
        }
        while let Some(&id) = self.resend.front()
            && self.streams.control.outbox.len() < RESEND_TARGET
        {
            match self.session.outbound.unsent(id) {
                Some(Phase::Sent(_)) => {
                    // However many bytes they are: they are kept in any case, and nothing else makes room.
                    if !self.session.outbound.counts(id) && !self.has_peer_room() {
                        break; // [MQTT-4.9.0-2]
                    }
                    // Once sent it no longer expires. [MQTT-3.3.1-1], [MQTT-4.3.3-7]
                    if self.put_inflight(id, true, now) {
                        self.session.outbound.resend(id);
                    } else {
                        let over = self.session.outbound.discard(id);
                        self.note_completed(over.and_then(|phase| phase.stored()));
                        too_large.push(id);
                    }
                }
                Some(Phase::Released(_)) => {
                    if self.session.outbound.resend(id) {
                        self.send_pubrel(StreamKey::CONTROL, id, true); // [MQTT-4.3.3-6]
                    }
                }
                Some(Phase::Control) | None => {}
            }
            self.resend.pop_front();
        }
        self.note_resend_top();
        too_large
    }

    /// Writes the message under `id`; false when it exceeds the peer's Maximum Packet Size.
    fn put_inflight(&mut self, id: PacketId, dup: bool, now: Instant) -> bool {
        let Some(Phase::Sent(delivery)) = self.session.outbound.get(id) else { return true };
        let on = delivery.stream;
        let fits =
            put(&mut self.streams, &mut self.outbound_aliases, &self.agreement, delivery, Some(id), dup, now);
        if !on.is_control()
            && let Some(stream) = self.streams.writer(on)
        {
            self.session.outbound.set_end(id, stream.outbox.end());
        }
        fits
    }

    fn put(&mut self, delivery: &Delivery, id: Option<PacketId>, dup: bool, now: Instant) -> bool {
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
        let Some(stream) = self.streams.writer(on) else { return true };
        let out = stream.outbox.open();
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
    let Some(stream) = streams.writer(delivery.stream) else { return true };
    let outbox: &mut Outbox = &mut stream.outbox;
    let mut copy = Copy { version: agreement.version, dup, packet_id, alias, now };
    while put_delivery(outbox.open(), delivery, &copy, agreement.peer_maximum_packet_size).is_none() {
        // The definition of an alias needs three bytes: without it the packet may fit.
        let Some((_, named)) = copy.alias.take() else { return false };
        if named {
            aliases.revoke(topic);
        }
    }
    if delivery.message.payload.len() > INLINE_PAYLOAD {
        outbox.push_shared(delivery.message.payload.clone());
    }
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
    use crate::packet::{Auth, Connack, ConnackProperties, Disconnect, Suback, Unsuback};

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
                assert_eq!(exchange.streams.control.outbox.open(), &expected, "{packet:?}");
                assert!(expected.len() <= limit);
            }
        }
    }
}
