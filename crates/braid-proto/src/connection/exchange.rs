//! Message exchanges of client and server: QoS 0, 1 and 2 in both directions (MQTT 4.3), the order of acknowledgements
//! (4.6), flow control (4.9), Topic Aliases and packet size limits.

mod continuation;
mod resend;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Instant;

use super::mounting::Mounting;
use super::stream::{OutboundAliases, Outbox};
use super::streams::Streams;
use super::{Agreement, Progress, Sent, Token};
use crate::message::{Delivery, Message, SharedMessage, Transmission, put_delivery};
use crate::packet::{Ack, AckKind, BorrowedPublish, Packet, Suback, Unsuback};
use crate::session::{InflightAmount, Phase, Session};
use crate::types::{Lane, PacketId, ProtocolVersion, QoS, ReasonCode, StreamKey, Violation};
use crate::wire::PACKET_SIZE_MAX;

use continuation::Continuations;
pub use continuation::Continued;
use resend::ResendQueue;

/// Maximum number of QoS 2 messages without PUBREL on all streams, from a peer without Receive Maximum.
const MOST_UNRELEASED: usize = u16::MAX as usize;

/// Payload bytes from which on a client names the topic of a message instead of its alias.
const NAMED_FROM: usize = 64 * 1024;

/// Received message, and the token of its acknowledgement.
pub(crate) type Received = (SharedMessage, Option<Token>);

/// Effect of an acknowledgement of the peer.
#[derive(Debug)]
pub(crate) enum Acknowledged {
    /// The exchange of this identifier is over.
    Complete(PacketId, ReasonCode),
    /// The offset of this message is refused: it is to be sent whole.
    OffsetRefused(PacketId),
    /// PUBREL of a received message: its identifier is free again.
    Released(Token),
    /// No effect.
    Nothing,
}

/// Exchanges of an established connection.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Session of this connection. [MQTT-4.1.0-1]
    pub(crate) session: Session,
    pub(crate) streams: Streams,
    pub(crate) acks: AckQueue,
    /// Name space of the peer's topics. Boxed: most clients have none.
    mounting: Option<Box<Mounting>>,
    resends: ResendQueue,
    /// Whether the driver chooses the stream and the time of each repeated PUBLISH.
    driver_places_resends: bool,
    /// Repeated PUBLISH packets that the driver has not taken yet.
    unplaced: Vec<PacketId>,
    /// Progress of deliveries with a `queue_lsn`.
    pub(crate) progress: VecDeque<Progress>,
    /// Aliases of the control stream; data streams have none [BQ-18]. Boxed: most peers permit none.
    outbound_aliases: Option<Box<OutboundAliases>>,
    /// Messages that the server has in part. Boxed: hardly any connection has one.
    continuations: Option<Box<Continuations>>,
}

impl Exchange {
    pub(crate) fn new(mut session: Session, mut agreement: Agreement) -> Self {
        agreement.peer_maximum_packet_size = agreement.peer_maximum_packet_size.min(PACKET_SIZE_MAX);
        let resend: Vec<_> = session.outbound.resume(); // [MQTT-4.4.0-1]
        session.inbound.resume();
        let mut exchange = Self {
            session,
            streams: Streams::new(agreement),
            acks: AckQueue::default(),
            mounting: None,
            resends: ResendQueue::default(),
            driver_places_resends: false,
            unplaced: Vec::new(),
            progress: VecDeque::new(),
            outbound_aliases: OutboundAliases::new(agreement.outbound_aliases).map(Box::new),
            continuations: None,
        };
        exchange.add_resend(resend);
        exchange
    }

    /// Sets the name space of the peer's topics.
    pub(crate) fn set_mounting(&mut self, mounting: Option<Mounting>) {
        self.mounting = mounting.map(Box::new);
    }

    pub(crate) fn mounting(&self) -> Option<&Mounting> {
        self.mounting.as_deref()
    }

    pub(crate) fn version(&self) -> ProtocolVersion {
        self.streams.agreement().version
    }

    /// Whether a stream may be read. MQTT 3 has no Receive Maximum: a client that sends faster than it is acknowledged
    /// is not read, instead of being disconnected.
    ///
    /// With several streams, each may have eight times as many pending acknowledgements as it leaves free, and a stream
    /// without any is always read: acknowledgements of one stream must not stop the others. [BQ-23], [BQ-55]
    pub(crate) fn is_reading(&self, on: StreamKey) -> bool {
        let all = self.acks.len();
        let maximum = usize::from(self.streams.agreement().receive_maximum);
        let own = self.streams.pending_acks(on).unwrap_or(all);
        let free = maximum.saturating_sub(all);
        own == 0 || free > 0 && (own == all || own < free.saturating_mul(8))
    }

    // -- Receiving ---------------------------------------------------------------------------------

    /// Handles a PUBLISH: `None` for a duplicate of QoS 2. [MQTT-3.3.4-1], [MQTT-4.5.0-2]
    pub(crate) fn handle_publish(
        &mut self,
        on: StreamKey,
        mut publish: BorrowedPublish<'_>,
        now: Instant,
    ) -> Result<Option<Received>, Violation> {
        let mut topic = self.streams.resolve_topic(on, publish.topic.take(), publish.topic_alias)?;
        if let Some(mounting) = &mut self.mounting {
            topic = mounting.mount_publish(&topic, &mut publish)?;
        }
        let (qos, packet_id) = (publish.qos, publish.packet_id);
        let (Some(packet_id), true) = (packet_id, qos > QoS::AtMostOnce) else {
            let message = Message::from_publish(publish, topic, now);
            return Ok(Some((message, None)));
        };
        if on.is_uni() {
            return Err(Violation::QosOnUnidirectional); // [BQ-12]
        }
        let id_scope = self.id_scope(on);
        let Agreement { version, receive_maximum, .. } = *self.streams.agreement();
        let Some(stream) = self.streams.get_mut(on) else { return Ok(None) };
        let inbound = &mut self.session.inbound;
        let counts = qos == QoS::AtLeastOnce || !inbound.is_unacknowledged(id_scope, packet_id);
        // Receive Maximum bounds each stream; the sum over the streams may exceed it. [BQ-23]
        let unacknowledged = usize::from(stream.unacknowledged) + inbound.unacknowledged(id_scope);
        // Checked before the session learns the identifier: a refused message was not received.
        let has_receive_maximum = version.is_v5();
        if has_receive_maximum && counts && unacknowledged >= usize::from(receive_maximum) {
            return Err(Violation::ReceiveMaximumExceeded); // [MQTT-3.3.4-7]
        }
        // Without Receive Maximum, all streams together are bounded like a connection with one stream. [BQ-23]
        if !has_receive_maximum
            && counts
            && qos == QoS::ExactlyOnce
            && inbound.open_exchanges() >= MOST_UNRELEASED
        {
            return Err(Violation::TooManyUnreleased);
        }
        if qos == QoS::ExactlyOnce && !inbound.receive(id_scope, packet_id, publish.dup) {
            // A duplicate is answered with PUBREC too. [MQTT-4.3.3-8], [MQTT-4.3.3-10]
            let ack = Ack::new(AckKind::Pubrec, packet_id, ReasonCode::Success);
            self.enqueue_ack_without_effect(on, PendingAck::Ack(ack));
            return Ok(None);
        }
        let kind = if qos == QoS::AtLeastOnce {
            AckKind::Puback // [MQTT-4.3.2-4]
        } else {
            AckKind::Pubrec // [MQTT-4.3.3-8]
        };
        let message = Message::from_publish(publish, topic, now);
        let token = self.enqueue_ack(on, PendingAck::Ack(Ack::new(kind, packet_id, ReasonCode::Success)));
        Ok(Some((message, Some(token))))
    }

    /// Stream that scopes the peer's Packet Identifiers: a client has a set for each stream [BQ-20], a server one for
    /// all [BQ-22].
    fn id_scope(&self, stream: StreamKey) -> StreamKey {
        if self.streams.agreement().is_client { StreamKey::CONTROL } else { stream }
    }

    /// Enqueues the acknowledgement of a request, to be sent on the stream of the request. [BQ-14]
    pub(crate) fn enqueue_ack(&mut self, on: StreamKey, ack: PendingAck) -> Token {
        self.count_ack(on, &ack);
        self.acks.push(on, ack)
    }

    fn enqueue_ack_without_effect(&mut self, on: StreamKey, ack: PendingAck) {
        self.count_ack(on, &ack);
        self.acks.push_without_effect(on, ack);
    }

    /// Counts an acknowledgement until it is sent; a PUBACK against the Receive Maximum too.
    fn count_ack(&mut self, on: StreamKey, ack: &PendingAck) {
        self.streams.add_pending_ack(on);
        if matches!(ack, PendingAck::Ack(ack) if ack.kind == AckKind::Puback)
            && let Some(stream) = self.streams.get_mut(on)
        {
            stream.unacknowledged = stream.unacknowledged.saturating_add(1);
        }
    }

    /// Sets the Reason Code of the pending acknowledgement of `token`.
    pub(crate) fn set_reason(&mut self, token: Token, reason: ReasonCode) {
        let Some(PendingAck::Ack(ack)) = self.acks.get_mut(token) else { return };
        if !matches!(ack.kind, AckKind::Puback | AckKind::Pubrec) {
            return; // PUBCOMP has no other reason.
        }
        let reason = reason.allowed_in(ack.kind.packet_type()); // [MQTT-3.4.2-1], [MQTT-3.5.2-1]
        ack.reason = reason;
        if ack.kind == AckKind::Pubrec && reason.is_error() {
            // A refused identifier may be used for a new message. It is released before the PUBREC is sent: a PUBREC
            // that is lost with the connection must not make the repetition a duplicate. [MQTT-4.3.3-9]
            let (packet_id, id_scope) = (ack.packet_id, self.id_scope(token.stream()));
            self.session.inbound.release(id_scope, packet_id);
        }
    }

    /// Sends each acknowledgement whose effect is durable.
    pub(crate) fn handle_persisted(&mut self, token: Option<Token>) {
        if let Some(token) = token {
            self.acks.set_durable(token);
        }
        while let Some((on, pending)) = self.acks.pop_durable() {
            self.streams.remove_pending_ack(on);
            let packet = match pending {
                PendingAck::Ack(ack) => {
                    if let (AckKind::Puback, Some(stream)) = (ack.kind, self.streams.get_mut(on)) {
                        stream.unacknowledged = stream.unacknowledged.saturating_sub(1); // [MQTT-4.3.2-5]
                    }
                    Packet::Ack(ack)
                }
                PendingAck::Suback(suback) => Packet::Suback(suback),
                PendingAck::Unsuback(unsuback) => Packet::Unsuback(unsuback),
                PendingAck::Unanswered(_) => continue, // Unreachable: `pop_durable` does not return it.
            };
            self.send_packet_on(on, &packet);
        }
    }

    /// Forgets the messages of QoS 2 whose PUBREC was not sent: the peer repeats them, and is the owner until then.
    /// [MQTT-4.3.3-8]
    pub(crate) fn forget_unacknowledged(&mut self) {
        for (stream, packet_id) in self.acks.unsent_pubrecs() {
            let id_scope = self.id_scope(stream);
            self.session.inbound.release(id_scope, packet_id);
        }
    }

    /// Handles PUBACK, PUBREC, PUBREL and PUBCOMP on any stream. [BQ-22]
    pub(crate) fn handle_ack(&mut self, on: StreamKey, ack: &Ack) -> Acknowledged {
        let (id, reason) = (ack.packet_id, ack.reason);
        if self.is_offset_refused(ack) {
            return Acknowledged::OffsetRefused(id);
        }
        let outbound = &mut self.session.outbound;
        let complete = match ack.kind {
            // [MQTT-4.3.2-3], [MQTT-4.4.0-2]
            AckKind::Puback => outbound.handle_puback(id).map(|delivery| delivery.queue_lsn),
            // [MQTT-4.4.0-2]
            AckKind::Pubrec if reason.is_error() => {
                outbound.handle_pubrec_error(id).map(|phase| phase.queue_lsn())
            }
            AckKind::Pubrec => {
                let known = outbound.handle_pubrec(id);
                // The PUBREL of a repeated PUBLISH follows it on the same stream: on another one it could arrive first,
                // and the repetition would be a new message. A stream that this side ends cannot carry the rest.
                let on = self.streams.resolve(self.session.outbound.repeated_on(id).unwrap_or(on));
                self.session.outbound.set_stream(id, on);
                self.note_released(id, known.flatten(), on);
                self.send_pubrel(on, id, known.is_some());
                None
            }
            AckKind::Pubcomp => outbound.handle_pubcomp(id).map(|phase| phase.queue_lsn()), // [MQTT-4.3.3-5]
            AckKind::Pubrel => return self.handle_pubrel(on, id),
        };
        let Some(queue_lsn) = complete else { return Acknowledged::Nothing };
        self.note_completed(queue_lsn);
        Acknowledged::Complete(id, reason)
    }

    /// Notes that the peer has the message, before its PUBREL is added to the outbox of stream `on`.
    fn note_released(&mut self, packet_id: PacketId, queue_lsn: Option<NonZeroU64>, on: StreamKey) {
        if let Some(queue_lsn) = queue_lsn {
            let behind = (on, self.streams.outbox(on).map_or(0, Outbox::len));
            self.progress.push_back(Progress::Released { queue_lsn, packet_id, behind });
        }
    }

    fn note_completed(&mut self, queue_lsn: Option<NonZeroU64>) {
        if let Some(queue_lsn) = queue_lsn {
            self.progress.push_back(Progress::Completed(queue_lsn));
        }
    }

    fn send_pubrel(&mut self, on: StreamKey, id: PacketId, known: bool) {
        let reason = if known { ReasonCode::Success } else { ReasonCode::PacketIdentifierNotFound };
        // PUBREL is not subject to the send quota. [MQTT-4.3.3-4], [MQTT-3.3.4-8], [MQTT-3.3.4-10], [MQTT-4.9.0-3]
        self.send_packet_on(on, &Packet::Ack(Ack::new(AckKind::Pubrel, id, reason)));
    }

    fn handle_pubrel(&mut self, on: StreamKey, id: PacketId) -> Acknowledged {
        // Also for an expired message. [MQTT-4.3.3-11], [MQTT-4.3.3-12], [MQTT-4.3.3-13]
        let ack = |reason| PendingAck::Ack(Ack::new(AckKind::Pubcomp, id, reason));
        if self.session.inbound.release(self.id_scope(on), id) {
            return Acknowledged::Released(self.enqueue_ack(on, ack(ReasonCode::Success)));
        }
        self.enqueue_ack_without_effect(on, ack(ReasonCode::PacketIdentifierNotFound));
        Acknowledged::Nothing
    }

    // -- Sending -----------------------------------------------------------------------------------

    /// Whether QoS 1 and 2 messages may be sent now.
    pub(crate) fn has_send_quota(&self) -> bool {
        self.resends.is_empty() && self.is_peer_ready() && self.session.outbound.has_free_id()
    }

    /// Whether this message may be sent now.
    pub(crate) fn takes(&self, delivery: &Delivery) -> bool {
        if delivery.qos == QoS::AtMostOnce {
            return true;
        }
        let lane = Lane { stream: self.streams.resolve(delivery.stream), ..delivery.lane() };
        let limits = InflightAmount {
            messages: self.streams.agreement().peer_receive_maximum.into(),
            payload_bytes: self.streams.agreement().maximum_inflight_bytes,
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

    /// Whether the peer accepts another QoS 1 or 2 message [MQTT-4.9.0-1], [MQTT-4.9.0-2], and this side can keep it.
    fn is_peer_ready(&self) -> bool {
        self.has_peer_room()
            && self.session.outbound.payload_bytes() <= self.streams.agreement().maximum_inflight_bytes
    }

    fn has_peer_room(&self) -> bool {
        self.session.outbound.unacknowledged() < usize::from(self.streams.agreement().peer_receive_maximum)
    }

    /// Sends a message on its stream, or on the control stream if that stream has ended. [BQ-15], [BQ-42]
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
        // Completed as if it had been sent. [MQTT-3.1.2-25]
        self.session.outbound.discard(id);
        Sent::TooLarge
    }
}

impl Exchange {
    // -- Encoding ----------------------------------------------------------------------------------

    /// Writes the message of `id`. False: it exceeds the peer's Maximum Packet Size.
    fn put_inflight(&mut self, id: PacketId, dup: bool, now: Instant) -> bool {
        let Some(Phase::Sent(delivery)) = self.session.outbound.get(id) else { return true };
        let on = delivery.stream;
        let version = self.version();
        let offset = self.continuations.as_mut().map_or(0, |all| all.take(id, dup));
        let transmission = transmission(version, self.mounting.as_deref(), Some(id), dup, now);
        let transmission = Transmission { offset, ..transmission };
        let fits = put(&mut self.streams, self.outbound_aliases.as_deref_mut(), delivery, transmission);
        if !on.is_control()
            && let Some(outbox) = self.streams.outbox(on)
        {
            self.session.outbound.set_end(id, outbox.end());
        }
        fits
    }

    /// Fields of the transmission of a QoS 0 message outside of the streams.
    pub(crate) fn transmission(&self, now: Instant) -> Transmission<'_> {
        transmission(self.version(), self.mounting.as_deref(), None, false, now)
    }

    fn put(&mut self, delivery: &Delivery, id: Option<PacketId>, dup: bool, now: Instant) -> bool {
        let transmission = transmission(self.version(), self.mounting.as_deref(), id, dup, now);
        put(&mut self.streams, self.outbound_aliases.as_deref_mut(), delivery, transmission)
    }

    /// Sends a packet other than PUBLISH on the control stream, as [`Self::send_packet_on`].
    pub(crate) fn send_packet(&mut self, packet: &Packet) -> bool {
        self.send_packet_on(StreamKey::CONTROL, packet)
    }

    /// Sends a packet other than PUBLISH. One that exceeds the peer's Maximum Packet Size is sent without Reason String
    /// and User Properties. False: it exceeds it even so, and is not sent. [MQTT-3.1.2-24], [MQTT-3.2.2-15]
    pub(crate) fn send_packet_on(&mut self, on: StreamKey, packet: &Packet) -> bool {
        let Agreement { version, peer_maximum_packet_size, .. } = *self.streams.agreement();
        // Acknowledgements of an ended stream are not sent on another one. [BQ-35]
        let Some(outbox) = self.streams.outbox_mut(on) else { return true };
        let out = outbox.open();
        let start = out.len();
        packet.encode(version, out);
        if out.len() - start <= peer_maximum_packet_size {
            return true;
        }
        out.truncate(start);
        let Some(bare) = without_properties(packet) else { return false };
        bare.encode(version, out);
        if out.len() - start <= peer_maximum_packet_size {
            return true;
        }
        out.truncate(start);
        false
    }
}

fn transmission<'a>(
    version: ProtocolVersion,
    mounting: Option<&'a Mounting>,
    packet_id: Option<PacketId>,
    dup: bool,
    now: Instant,
) -> Transmission<'a> {
    let mountpoint = mounting.map(Mounting::mountpoint);
    Transmission { version, dup, packet_id, alias: None, now, mountpoint, offset: 0 }
}

fn put(
    streams: &mut Streams,
    aliases: Option<&mut OutboundAliases>,
    delivery: &Delivery,
    mut transmission: Transmission<'_>,
) -> bool {
    let topic = &delivery.message.topic;
    let name = transmission.mountpoint.map_or(Some(topic.as_str()), |mountpoint| mountpoint.own_name(topic));
    let Some(name) = name else { return false };
    // Packets of different streams overtake each other: an alias could be used before its definition. [BQ-18]
    // The server of a client keeps a part by its Topic Name. [BQ-98]
    let is_named = streams.agreement().is_client && delivery.message.payload_len() >= NAMED_FROM;
    let mut aliases = aliases.filter(|_| delivery.stream.is_control() && !is_named);
    transmission.alias = aliases.as_mut().and_then(|aliases| aliases.assign(topic, name.len()));
    let maximum_packet_size = streams.agreement().peer_maximum_packet_size;
    let Some((outbox, traffic)) = streams.sending_half(delivery.stream) else { return true };
    while put_delivery(outbox.open(), delivery, &transmission, maximum_packet_size).is_none() {
        // An alias takes three bytes: without it the packet may fit.
        let Some((_, named)) = transmission.alias.take() else { return false };
        if let Some(aliases) = aliases.as_mut().filter(|_| named) {
            aliases.revoke(topic);
        }
    }
    match transmission.offset {
        0 => delivery.message.shared_parts().for_each(|part| outbox.push_shared(part.clone())),
        offset => delivery.message.parts_from(offset).for_each(|part| outbox.push_shared(part)),
    }
    traffic.note_publish_sent(outbox, transmission.now);
    true
}

/// Copy of the packet without Reason String and User Properties, which may be left out. [MQTT-3.2.2-19],
/// [MQTT-3.2.2-20], [MQTT-3.4.2-2], [MQTT-3.4.2-3], [MQTT-3.5.2-2], [MQTT-3.5.2-3], [MQTT-3.6.2-2],
/// [MQTT-3.6.2-3], [MQTT-3.7.2-2], [MQTT-3.7.2-3], [MQTT-3.9.2-1], [MQTT-3.9.2-2], [MQTT-3.11.2-1],
/// [MQTT-3.11.2-2], [MQTT-3.14.2-3], [MQTT-3.14.2-4], [MQTT-3.15.2-2], [MQTT-3.15.2-3]
fn without_properties(packet: &Packet) -> Option<Packet> {
    let mut packet = packet.clone();
    let (reason_string, user) = match &mut packet {
        Packet::Ack(ack) => {
            ack.properties = None;
            return Some(packet);
        }
        Packet::Connack(connack) => (&mut connack.properties.reason_string, &mut connack.properties.user),
        Packet::Suback(suback) => (&mut suback.reason_string, &mut suback.user),
        Packet::Unsuback(unsuback) => (&mut unsuback.reason_string, &mut unsuback.user),
        Packet::Disconnect(disconnect) => (&mut disconnect.reason_string, &mut disconnect.user),
        Packet::Auth(auth) => (&mut auth.reason_string, &mut auth.user),
        _ => return None,
    };
    *reason_string = None;
    user.clear();
    Some(packet)
}

/// Acknowledgement that is not sent yet.
#[derive(Debug)]
pub(crate) enum PendingAck {
    Ack(Ack),
    /// SUBACK or UNSUBACK without its codes. Holds the position: tokens ascend in the order of the requests, not of
    /// their answers.
    Unanswered(PacketId),
    Suback(Box<Suback>),
    Unsuback(Box<Unsuback>),
}

impl PendingAck {
    const fn packet_id(&self) -> PacketId {
        match self {
            Self::Ack(ack) => ack.packet_id,
            Self::Unanswered(packet_id) => *packet_id,
            Self::Suback(suback) => suback.packet_id,
            Self::Unsuback(unsuback) => unsuback.packet_id,
        }
    }
}

/// Element of [`AckQueue`].
#[derive(Debug)]
struct Entry {
    /// Its token must become durable first.
    has_effect: bool,
    /// Stream of the request and of the acknowledgement. [BQ-14]
    stream: StreamKey,
    ack: PendingAck,
}

/// FIFO queue of acknowledgements that leave only after their token was declared durable: durable before visible.
///
/// No order of await points in a driver can send an acknowledgement early, and they leave in the order of the requests.
/// [MQTT-4.6.0-2], [MQTT-4.6.0-3], [MQTT-4.6.0-4]
#[derive(Debug, Default)]
pub(crate) struct AckQueue {
    /// Sequence number of the front entry.
    front: u64,
    entries: VecDeque<Entry>,
    /// Lower sequence numbers are durable.
    durable: u64,
    /// Lower sequence numbers are answered.
    first_unanswered: u64,
}

impl AckQueue {
    /// Adds the acknowledgement of a request with an effect that must become durable.
    pub(crate) fn push(&mut self, stream: StreamKey, ack: PendingAck) -> Token {
        let packet_id = ack.packet_id();
        let is_exactly_once = matches!(&ack, PendingAck::Ack(ack) if ack.kind == AckKind::Pubrec);
        self.entries.push_back(Entry { has_effect: true, stream, ack });
        let sequence = self.front + self.entries.len() as u64 - 1;
        Token { sequence, stream, packet_id, is_exactly_once }
    }

    /// Adds an acknowledgement without such an effect, as that of a duplicate.
    pub(crate) fn push_without_effect(&mut self, stream: StreamKey, ack: PendingAck) {
        self.entries.push_back(Entry { has_effect: false, stream, ack });
    }

    fn entry(&mut self, token: Token) -> Option<&mut Entry> {
        let index = token.sequence.checked_sub(self.front)?;
        self.entries.get_mut(usize::try_from(index).ok()?)
    }

    /// Pending acknowledgement of a token, if it is not sent.
    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut PendingAck> {
        self.entry(token).map(|entry| &mut entry.ack)
    }

    /// Declares that the effect of `token` need not become durable.
    pub(crate) fn waive(&mut self, token: Token) {
        if let Some(entry) = self.entry(token) {
            entry.has_effect = false;
        }
    }

    /// Replaces the oldest unanswered entry of this stream and identifier by its answer.
    pub(crate) fn answer(
        &mut self,
        stream: StreamKey,
        packet_id: PacketId,
        answer: PendingAck,
    ) -> Option<Token> {
        // Requests are mostly answered in order: the search begins at the first unanswered one.
        let start = self.first_unanswered.saturating_sub(self.front);
        let mut passed_over = None;
        for (index, entry) in (0_u64..).zip(&mut self.entries).skip(usize::try_from(start).ok()?) {
            let sequence = self.front + index;
            match &mut entry.ack {
                pending @ PendingAck::Unanswered(_)
                    if entry.stream == stream && pending.packet_id() == packet_id =>
                {
                    *pending = answer;
                    self.first_unanswered = passed_over.unwrap_or(sequence + 1);
                    return Some(Token { sequence, stream, packet_id, is_exactly_once: false });
                }
                PendingAck::Unanswered(_) => {
                    passed_over.get_or_insert(sequence);
                }
                _ => {}
            }
        }
        None
    }

    /// Declares everything up to and including `token` durable.
    pub(crate) fn set_durable(&mut self, token: Token) {
        debug_assert!(
            token.sequence < self.front + self.entries.len() as u64,
            "a token that was never given"
        );
        self.durable = self.durable.max(token.sequence + 1);
    }

    /// Takes the next acknowledgement that may be sent, with its stream.
    pub(crate) fn pop_durable(&mut self) -> Option<(StreamKey, PendingAck)> {
        let Entry { has_effect, ack, .. } = self.entries.front()?;
        if *has_effect && self.front >= self.durable || matches!(ack, PendingAck::Unanswered(_)) {
            return None;
        }
        let Entry { stream, ack, .. } = self.entries.pop_front()?;
        self.front += 1;
        if self.entries.is_empty() && self.entries.capacity() > 64 {
            self.entries = VecDeque::new(); // An idle connection keeps no capacity of a burst.
        }
        Some((stream, ack))
    }

    /// Streams and identifiers of the messages of QoS 2 whose effect is not durable.
    fn unsent_pubrecs(&self) -> Vec<(StreamKey, PacketId)> {
        let pubrec = |entry: &Entry| match &entry.ack {
            PendingAck::Ack(ack) if ack.kind == AckKind::Pubrec && entry.has_effect => {
                Some((entry.stream, ack.packet_id))
            }
            _ => None,
        };
        self.entries.iter().filter_map(pubrec).collect()
    }

    /// Number of pending acknowledgements.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::UserProperties;
    use crate::packet::{AckProperties, Auth, Connack, ConnackProperties, Disconnect};

    /// [MQTT-3.2.2-19], [MQTT-3.2.2-20], [MQTT-3.4.2-2], [MQTT-3.4.2-3], [MQTT-3.5.2-2], [MQTT-3.5.2-3],
    /// [MQTT-3.6.2-2], [MQTT-3.6.2-3], [MQTT-3.7.2-2], [MQTT-3.7.2-3], [MQTT-3.9.2-1], [MQTT-3.9.2-2],
    /// [MQTT-3.11.2-1], [MQTT-3.11.2-2], [MQTT-3.14.2-3], [MQTT-3.14.2-4], [MQTT-3.15.2-2], [MQTT-3.15.2-3]
    #[test]
    fn reason_string_and_user_properties_are_dropped_where_they_do_not_fit() {
        let id = PacketId::FIRST;
        let reason = ReasonCode::Success;
        let reason_string = Some("too long by far".into());
        let user = UserProperties::from([("name", "value")]);
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
            let properties = AckProperties { reason_string: reason_string.clone(), user: user.clone() };
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

    const CONTROL: StreamKey = StreamKey::CONTROL;

    fn puback(id: PacketId) -> PendingAck {
        PendingAck::Ack(Ack::new(AckKind::Puback, id, ReasonCode::Success))
    }

    /// [MQTT-4.6.0-2]
    #[test]
    fn an_unanswered_request_holds_back_durable_ones_behind_it() {
        let (first, second) = (PacketId::FIRST, PacketId::FIRST.next());
        let mut waiting = AckQueue::default();
        waiting.push(CONTROL, PendingAck::Unanswered(first));
        waiting.push_without_effect(CONTROL, puback(first));
        let last = waiting.push(CONTROL, puback(second));
        waiting.set_durable(last);
        assert!(waiting.pop_durable().is_none());
        assert_eq!(waiting.answer(CONTROL, second, puback(second)), None);
        assert!(waiting.answer(CONTROL, first, puback(first)).is_some());
        assert_eq!(std::iter::from_fn(|| waiting.pop_durable()).count(), 3);
    }

    #[test]
    fn requests_may_be_answered_in_any_order() {
        let ids: Vec<_> = (1..=6).filter_map(PacketId::new).collect();
        let mut waiting = AckQueue::default();
        let tokens: Vec<_> =
            ids.iter().map(|id| waiting.push(CONTROL, PendingAck::Unanswered(*id))).collect();
        for index in [2, 0, 1, 5, 3, 4] {
            assert_eq!(waiting.answer(CONTROL, ids[index], puback(ids[index])), Some(tokens[index]));
            assert_eq!(waiting.answer(CONTROL, ids[index], puback(ids[index])), None);
        }
        waiting.set_durable(tokens[5]);
        assert_eq!(std::iter::from_fn(|| waiting.pop_durable()).count(), 6);
    }

    /// [BQ-14], [BQ-20]
    #[test]
    fn equal_identifiers_on_two_streams_are_two_requests() {
        let mut waiting = AckQueue::default();
        let id = PacketId::FIRST;
        let streams = [StreamKey::bidi(1), StreamKey::bidi(2)];
        let tokens = streams.map(|stream| waiting.push(stream, PendingAck::Unanswered(id)));
        assert_eq!(waiting.answer(streams[1], id, puback(id)), Some(tokens[1]));
        assert_eq!(waiting.answer(streams[1], id, puback(id)), None);
        assert_eq!(waiting.answer(streams[0], id, puback(id)), Some(tokens[0]));
        waiting.set_durable(tokens[1]);
        let popped: Vec<_> = std::iter::from_fn(|| waiting.pop_durable()).map(|(stream, _)| stream).collect();
        assert_eq!(popped, streams);
    }

    #[test]
    fn tokens_continue_after_a_burst() {
        let mut waiting = AckQueue::default();
        for burst in 0..3 {
            let tokens: Vec<_> = (0..100).map(|_| waiting.push(CONTROL, puback(PacketId::FIRST))).collect();
            assert_eq!(tokens[0].sequence, burst * 100);
            waiting.set_durable(tokens[49]);
            assert_eq!(std::iter::from_fn(|| waiting.pop_durable()).count(), 50);
            assert!(waiting.get_mut(tokens[49]).is_none() && waiting.get_mut(tokens[50]).is_some());
            waiting.set_durable(tokens[99]);
            assert_eq!(std::iter::from_fn(|| waiting.pop_durable()).count(), 50);
        }
        assert_eq!(waiting.entries.capacity(), 0, "an idle connection keeps the memory of a burst");
    }
}
