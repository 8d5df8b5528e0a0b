use std::num::NonZeroU64;
use std::time::Instant;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::quota::{Limits, Quota};
use crate::message::Delivery;
use crate::packet::{PacketId, QoS};
use crate::stream::{Lane, StreamKey};

/// The sender's half of QoS 1 and 2 (MQTT 4.3.2, 4.3.3) with the packet identifiers of the session.
#[derive(Clone, Debug)]
pub struct Outbound {
    inflight: HashMap<PacketId, Inflight, FxBuildHasher>,
    next_id: PacketId,
    next_order: u64,
    /// How many of `inflight` count against the peer's Receive Maximum.
    unacknowledged: usize,
    /// Bytes of the payloads that are kept for a resend.
    payload_bytes: usize,
    /// How many of them are in a spool.
    spooled_bytes: usize,
    /// Which lanes have them.
    quota: Quota,
}

/// A message on its way.
#[derive(Clone, Debug)]
pub struct Inflight {
    /// How far it is.
    pub phase: Phase,
    /// Ascends with the first PUBLISH of each message, and again with its first PUBREL.
    order: u64,
    /// A PUBLISH or PUBREL of it went out on the present connection, and not on a stream that has ended.
    sent_here: bool,
    /// It counts against the peer's Receive Maximum: the present connection has brought it to the peer, be it on a
    /// stream that has ended since.
    counts: bool,
    /// Its PUBLISH was sent again.
    is_repeated: bool,
    /// Whose share of the quota it is.
    lane: Lane,
    /// Where its last packet was sent.
    stream: StreamKey,
    /// Where on a data stream its PUBLISH ends, bytes.
    end: u64,
}

/// How far a message is on its way.
#[derive(Clone, Debug)]
pub enum Phase {
    /// PUBLISH was sent: PUBACK or PUBREC is to come.
    Sent(Delivery),
    /// PUBREC came, PUBREL was sent: PUBCOMP is to come. With [`Delivery::queue_lsn`] of the message.
    Released(Option<NonZeroU64>),
    /// The identifier belongs to a SUBSCRIBE or UNSUBSCRIBE.
    Control,
}

impl Outbound {
    /// Takes an identifier that no exchange uses; `None` when all 65,535 are in use. [MQTT-2.2.1-3],
    /// [MQTT-2.2.1-4], [MQTT-4.3.2-1], [MQTT-4.3.3-1]
    fn allocate(&mut self) -> Option<PacketId> {
        if !self.has_free_id() {
            return None;
        }
        let mut id = self.next_id;
        while self.inflight.contains_key(&id) {
            id = id.next();
        }
        self.next_id = id.next();
        Some(id)
    }

    fn insert(&mut self, id: PacketId, phase: Phase, lane: Lane, sent_here: bool) {
        let (messages, payload_bytes) = (usize::from(sent_here), phase.payload_len());
        self.unacknowledged += messages;
        self.payload_bytes += payload_bytes;
        self.spooled_bytes += phase.spooled_len();
        self.quota.add(lane, messages, payload_bytes);
        let inflight = Inflight {
            phase,
            order: self.next_order,
            sent_here,
            counts: sent_here,
            is_repeated: false,
            lane,
            stream: lane.stream,
            end: 0,
        };
        self.inflight.insert(id, inflight);
        self.next_order += 1;
    }

    /// Notes a QoS 1 or 2 delivery as sent.
    ///
    /// # Errors
    /// The delivery again when no identifier is free.
    pub fn send(&mut self, delivery: Delivery) -> Result<PacketId, Box<Delivery>> {
        debug_assert!(delivery.qos > QoS::AtMostOnce);
        let Some(id) = self.allocate() else { return Err(Box::new(delivery)) };
        let lane = delivery.lane();
        self.insert(id, Phase::Sent(delivery), lane, true);
        Ok(id)
    }

    /// Takes an identifier for a SUBSCRIBE or UNSUBSCRIBE on a stream. `None` when no identifier is free.
    pub fn send_control(&mut self, stream: StreamKey) -> Option<PacketId> {
        let id = self.allocate()?;
        self.insert_control(id, stream);
        Some(id)
    }

    /// Of an identifier that [`Outbound::send_control`] of another session gave: it is for the same request here.
    /// False, with nothing changed: it is in use.
    pub(crate) fn restore_control(&mut self, packet_id: PacketId, stream: StreamKey) -> bool {
        if self.inflight.contains_key(&packet_id) {
            return false;
        }
        self.insert_control(packet_id, stream);
        self.next_id = packet_id.next();
        true
    }

    /// A request has no lane: it counts against no quota.
    fn insert_control(&mut self, id: PacketId, stream: StreamKey) {
        let inflight = Inflight {
            phase: Phase::Control,
            order: self.next_order,
            sent_here: false,
            counts: false,
            is_repeated: false,
            lane: Lane::default(),
            stream,
            end: 0,
        };
        self.inflight.insert(id, inflight);
        self.next_order += 1;
    }

    /// Notes that an exchange of a resumed session goes on. False: it already does on this connection.
    pub(crate) fn resend(&mut self, packet_id: PacketId) -> bool {
        let Some(inflight) = self.inflight.get_mut(&packet_id) else { return false };
        let first = !inflight.sent_here;
        inflight.sent_here = true;
        inflight.is_repeated |= matches!(inflight.phase, Phase::Sent(_));
        let is_new = !std::mem::replace(&mut inflight.counts, true);
        self.unacknowledged += usize::from(is_new);
        self.quota.add(inflight.lane, usize::from(is_new), 0);
        first
    }

    /// What is to be sent again goes on this stream.
    pub(crate) fn place(&mut self, packet_id: PacketId, stream: StreamKey) {
        let Some(inflight) = self.inflight.get_mut(&packet_id) else { return };
        let (messages, payload_bytes) = (usize::from(inflight.counts), inflight.phase.payload_len());
        self.quota.remove(inflight.lane, messages, payload_bytes);
        inflight.stream = stream;
        inflight.lane.stream = stream;
        if let Phase::Sent(delivery) = &mut inflight.phase {
            delivery.stream = stream;
        }
        self.quota.add(inflight.lane, messages, payload_bytes);
    }

    /// The exchange goes on on this stream.
    pub(crate) fn continue_on(&mut self, packet_id: PacketId, stream: StreamKey) {
        if let Some(inflight) = self.inflight.get_mut(&packet_id) {
            inflight.stream = stream;
        }
    }

    /// The PUBLISH is in an outbox, up to this place of its stream.
    pub(crate) fn set_end(&mut self, packet_id: PacketId, end: u64) {
        if let Some(inflight) = self.inflight.get_mut(&packet_id) {
            inflight.end = end;
        }
    }

    /// Puts back an exchange as it was before this process began, behind those put back before. It goes on with
    /// [`Outbound::resume`]. False, with nothing changed: the identifier is in use.
    pub fn restore(&mut self, packet_id: PacketId, phase: Phase) -> bool {
        if self.inflight.contains_key(&packet_id) {
            return false;
        }
        let lane = phase.lane();
        self.insert(packet_id, phase, lane, false);
        // Behind the last one that was used, as if the process had not ended. [MQTT-2.2.1-3]
        self.next_id = packet_id.next();
        true
    }

    /// Ends an exchange that cannot go on.
    pub(crate) fn discard(&mut self, packet_id: PacketId) -> Option<Phase> {
        self.take_if(packet_id, |_| true)
    }

    /// Handles PUBACK: the delivery that is done, if it was one of QoS 1.
    pub fn handle_puback(&mut self, packet_id: PacketId) -> Option<Delivery> {
        self.take_if(
            packet_id,
            |phase| matches!(phase, Phase::Sent(delivery) if delivery.qos == QoS::AtLeastOnce),
        )
        .and_then(Phase::into_delivery)
    }

    /// Handles PUBREC with a success: false when no QoS 2 message has this identifier. The payload is let go:
    /// it must not be sent again. [MQTT-4.3.3-6]
    pub fn handle_pubrec(&mut self, packet_id: PacketId) -> bool {
        self.release(packet_id).is_some()
    }

    /// The same; returns [`Delivery::queue_lsn`] of the message, also if it was let go before: whoever keeps it may not have
    /// heard of that yet.
    pub(crate) fn release(&mut self, packet_id: PacketId) -> Option<Option<NonZeroU64>> {
        let inflight = self.inflight.get_mut(&packet_id)?;
        match &inflight.phase {
            Phase::Sent(delivery) if delivery.qos == QoS::ExactlyOnce => {
                let queue_lsn = delivery.queue_lsn;
                let payload_bytes = delivery.message.payload_len();
                self.payload_bytes -= payload_bytes;
                self.spooled_bytes -= inflight.phase.spooled_len();
                self.quota.remove(inflight.lane, 0, payload_bytes);
                inflight.phase = Phase::Released(queue_lsn); // [MQTT-4.3.3-3]
                inflight.order = self.next_order; // [MQTT-4.6.0-4]
                self.next_order += 1;
                self.resend(packet_id);
                Some(queue_lsn)
            }
            Phase::Released(queue_lsn) => Some(*queue_lsn),
            Phase::Sent(_) | Phase::Control => None,
        }
    }

    /// Handles PUBREC with a failure: the exchange is over. False when no QoS 2 message has this identifier.
    pub fn handle_pubrec_error(&mut self, packet_id: PacketId) -> bool {
        self.take_refused(packet_id).is_some()
    }

    /// The same; returns what is over.
    pub(crate) fn take_refused(&mut self, packet_id: PacketId) -> Option<Phase> {
        self.take_if(packet_id, |phase| {
            matches!(phase, Phase::Released(_))
                || matches!(phase, Phase::Sent(delivery) if delivery.qos == QoS::ExactlyOnce)
        })
    }

    /// Handles PUBCOMP: false when nothing was waiting for it.
    pub fn handle_pubcomp(&mut self, packet_id: PacketId) -> bool {
        self.take_completed(packet_id).is_some()
    }

    /// The same; returns what is over.
    pub(crate) fn take_completed(&mut self, packet_id: PacketId) -> Option<Phase> {
        self.take_if(packet_id, |phase| matches!(phase, Phase::Released(_)))
    }

    /// Handles SUBACK and UNSUBACK: false when nothing was waiting for it.
    pub fn handle_control(&mut self, packet_id: PacketId) -> bool {
        self.take_if(packet_id, |phase| matches!(phase, Phase::Control)).is_some()
    }

    fn take_if(&mut self, packet_id: PacketId, wanted: impl Fn(&Phase) -> bool) -> Option<Phase> {
        if !self.inflight.get(&packet_id).is_some_and(|inflight| wanted(&inflight.phase)) {
            return None;
        }
        let Inflight { phase, counts, lane, .. } = self.inflight.remove(&packet_id)?;
        self.unacknowledged -= usize::from(counts);
        self.payload_bytes -= phase.payload_len();
        self.spooled_bytes -= phase.spooled_len();
        self.quota.remove(lane, usize::from(counts), phase.payload_len());
        // An idle session keeps no large table.
        if self.inflight.is_empty() && self.inflight.capacity() > 64 {
            self.inflight = HashMap::default();
        }
        Some(phase)
    }

    /// The message with this identifier.
    pub fn get(&self, packet_id: PacketId) -> Option<&Phase> {
        self.inflight.get(&packet_id).map(|inflight| &inflight.phase)
    }

    /// The message with this identifier, unless it went out on the present connection.
    pub(crate) fn unsent(&self, packet_id: PacketId) -> Option<&Phase> {
        self.inflight.get(&packet_id).filter(|inflight| !inflight.sent_here).map(|inflight| &inflight.phase)
    }

    /// Whether it counts against the peer's Receive Maximum already.
    pub fn counts(&self, packet_id: PacketId) -> bool {
        self.inflight.get(&packet_id).is_some_and(|inflight| inflight.counts)
    }

    /// Where its PUBLISH was sent again, so that the peer may come to see it behind what it answers to the first.
    pub(crate) fn repeated_on(&self, packet_id: PacketId) -> Option<StreamKey> {
        let inflight = self.inflight.get(&packet_id).filter(|inflight| inflight.is_repeated)?;
        Some(inflight.stream)
    }

    /// Messages on their way.
    pub fn len(&self) -> usize {
        self.inflight.len()
    }

    /// Bytes of the payloads that are kept until they are acknowledged.
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// How many of them are in the heap, and not in a spool.
    pub fn heap_bytes(&self) -> usize {
        self.payload_bytes - self.spooled_bytes
    }

    /// The client is away: what is on its way rests until it is acknowledged.
    pub fn charge_offline(&mut self) {
        for inflight in self.inflight.values_mut() {
            if let Phase::Sent(delivery) = &mut inflight.phase {
                delivery.charge_offline();
            }
        }
    }

    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.inflight.is_empty()
    }

    /// Whether an identifier is free.
    pub fn has_free_id(&self) -> bool {
        self.inflight.len() < usize::from(u16::MAX)
    }

    /// Messages that went out on the present connection and whose exchange is not over: what the peer's
    /// Receive Maximum limits. [MQTT-4.9.0-1]
    pub fn unacknowledged(&self) -> usize {
        self.unacknowledged
    }

    /// Whether a lane may have one more message of this size on its way. [MQTT-4.9.0-2], [BQ-24]
    pub(crate) fn has_room(&self, lane: Lane, has_others: bool, payload_len: usize, limits: Limits) -> bool {
        let used = Limits { messages: self.unacknowledged, payload_bytes: self.payload_bytes };
        self.quota.allows(lane, has_others, payload_len, used, limits)
    }

    /// Begins a new connection: what must be sent again on it. First each PUBREL in the order of their PUBRECs,
    /// which no quota holds back, then each PUBLISH in the order in which it was first sent. Exchanges of
    /// SUBSCRIBE and UNSUBSCRIBE end with their connection: their identifiers are free again.
    pub fn resume(&mut self) -> Vec<PacketId> {
        self.inflight.retain(|_, inflight| !matches!(inflight.phase, Phase::Control));
        self.unacknowledged = 0;
        self.quota.clear();
        self.inflight.values_mut().for_each(|inflight| inflight.counts = false);
        let ids = self.inflight.keys().copied().collect();
        self.begin_again(ids)
    }

    /// A stream has ended: what must be sent again on the control stream, in the order of [`Outbound::resume`].
    /// [BQ-42]
    pub(crate) fn end_stream(&mut self, stream: StreamKey) -> Vec<PacketId> {
        self.end_stream_if(stream, |_| true)
    }

    /// This side has ended a stream, of which `taken` bytes were sent. A QoS 2 message that the peer may have stays
    /// where it is until the next connection: sent again on another stream it could be there before the end of this
    /// one, and would be a new message [BQ-20].
    pub(crate) fn abort_stream(&mut self, stream: StreamKey, taken: u64) -> Vec<PacketId> {
        self.end_stream_if(stream, |inflight| match &inflight.phase {
            Phase::Sent(delivery) => delivery.qos < QoS::ExactlyOnce || inflight.end > taken,
            Phase::Released(_) | Phase::Control => true,
        })
    }

    /// The messages on a stream of which the peer cannot have more than a part, and which nobody wants any more.
    pub(crate) fn expired_in_part(&self, stream: StreamKey, taken: u64, now: Instant) -> Vec<PacketId> {
        let is_over = |inflight: &Inflight| match &inflight.phase {
            Phase::Sent(delivery) => delivery.message.is_expired(now),
            Phase::Released(_) | Phase::Control => false,
        };
        self.select_on(stream, |inflight| inflight.end > taken && is_over(inflight))
    }

    /// The messages on a stream that the peer has not answered.
    pub(crate) fn unreceived_on(&self, stream: StreamKey) -> Vec<PacketId> {
        self.select_on(stream, |inflight| matches!(inflight.phase, Phase::Sent(_)))
    }

    /// Some of what is on a stream, in ascending order.
    ///
    /// Looks at all exchanges: streams end rarely, and an index would cost every message.
    fn select_on(&self, stream: StreamKey, wanted: impl Fn(&Inflight) -> bool) -> Vec<PacketId> {
        let is_wanted = |inflight: &Inflight| inflight.stream == stream && wanted(inflight);
        let mut ids: Vec<_> =
            self.inflight.iter().filter(|(_, inflight)| is_wanted(inflight)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    fn end_stream_if(&mut self, stream: StreamKey, wanted: impl Fn(&Inflight) -> bool) -> Vec<PacketId> {
        let ended =
            self.select_on(stream, |inflight| !matches!(inflight.phase, Phase::Control) && wanted(inflight));
        for inflight in ended.iter().filter_map(|id| self.inflight.get(id)) {
            let messages = usize::from(inflight.counts);
            self.quota.remove(inflight.lane, messages, inflight.phase.payload_len());
        }
        self.quota.end_stream(stream);
        self.begin_again(ended)
    }

    /// The requests of a stream that has ended: nobody will answer them. Their identifiers are free again.
    pub(crate) fn take_requests(&mut self, stream: StreamKey) -> Vec<PacketId> {
        let ids = self.select_on(stream, |inflight| matches!(inflight.phase, Phase::Control));
        ids.iter().for_each(|id| drop(self.discard(*id)));
        ids
    }

    /// Makes some exchanges begin again on the control stream. Those of a stream that has ended count as before: the
    /// peer has not acknowledged them, and nothing else may take their place. [MQTT-4.9.0-1]
    fn begin_again(&mut self, ids: Vec<PacketId>) -> Vec<PacketId> {
        let mut order = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(inflight) = self.inflight.get_mut(&id) else { continue };
            inflight.sent_here = false;
            inflight.stream = StreamKey::CONTROL;
            inflight.lane.stream = StreamKey::CONTROL;
            if let Phase::Sent(delivery) = &mut inflight.phase {
                delivery.stream = StreamKey::CONTROL;
            }
            self.quota.add(inflight.lane, usize::from(inflight.counts), inflight.phase.payload_len());
            order.push((matches!(inflight.phase, Phase::Sent(_)), inflight.order, id));
        }
        order.sort_unstable(); // [MQTT-4.6.0-1], [MQTT-4.6.0-4]
        order.into_iter().map(|(_, _, id)| id).collect()
    }

    /// Ends the session: the QoS 1 and 2 messages that were not acknowledged, in the order of sending.
    pub fn into_unacknowledged(mut self) -> Vec<Delivery> {
        let order = self.resume();
        order
            .into_iter()
            .filter_map(|id| self.inflight.remove(&id).and_then(|inflight| inflight.phase.into_delivery()))
            .collect()
    }
}

impl Phase {
    fn payload_len(&self) -> usize {
        if let Self::Sent(delivery) = self { delivery.message.payload_len() } else { 0 }
    }

    fn spooled_len(&self) -> usize {
        match self {
            Self::Sent(delivery) if delivery.message.is_spooled() => delivery.message.payload_len(),
            _ => 0,
        }
    }

    fn lane(&self) -> Lane {
        if let Self::Sent(delivery) = self { delivery.lane() } else { Lane::default() }
    }

    /// [`Delivery::queue_lsn`] of the message, also when it was let go.
    pub(crate) fn queue_lsn(&self) -> Option<NonZeroU64> {
        match self {
            Self::Sent(delivery) => delivery.queue_lsn,
            Self::Released(queue_lsn) => *queue_lsn,
            Self::Control => None,
        }
    }

    fn into_delivery(self) -> Option<Delivery> {
        if let Self::Sent(delivery) = self { Some(delivery) } else { None }
    }
}

impl Default for Outbound {
    fn default() -> Self {
        Self {
            inflight: HashMap::default(),
            next_id: PacketId::FIRST,
            next_order: 0,
            unacknowledged: 0,
            payload_bytes: 0,
            spooled_bytes: 0,
            quota: Quota::default(),
        }
    }
}
