use std::num::NonZeroU64;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::message::Delivery;
use crate::packet::{PacketId, QoS};

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
}

/// A message on its way.
#[derive(Clone, Debug)]
pub struct Inflight {
    /// How far it is.
    pub phase: Phase,
    /// Ascends with the first PUBLISH of each message, and again with its first PUBREL.
    order: u64,
    /// A PUBLISH or PUBREL of it went out on the present connection.
    sent_here: bool,
}

/// How far a message is on its way.
#[derive(Clone, Debug)]
pub enum Phase {
    /// PUBLISH was sent: PUBACK or PUBREC is to come.
    Sent(Delivery),
    /// PUBREC came, PUBREL was sent: PUBCOMP is to come. With [`Delivery::stored`] of the message.
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

    fn insert(&mut self, id: PacketId, phase: Phase) {
        let sent_here = matches!(phase, Phase::Sent(_));
        self.unacknowledged += usize::from(sent_here);
        self.payload_bytes += phase.payload_len();
        self.inflight.insert(id, Inflight { phase, order: self.next_order, sent_here });
        self.next_order += 1;
    }

    /// Notes a QoS 1 or 2 delivery as sent.
    ///
    /// # Errors
    /// The delivery again when no identifier is free.
    pub fn send(&mut self, delivery: Delivery) -> Result<PacketId, Box<Delivery>> {
        debug_assert!(delivery.qos > QoS::AtMostOnce);
        let Some(id) = self.allocate() else { return Err(Box::new(delivery)) };
        self.insert(id, Phase::Sent(delivery));
        Ok(id)
    }

    /// Takes an identifier for a SUBSCRIBE or UNSUBSCRIBE. `None` when no identifier is free.
    pub fn send_control(&mut self) -> Option<PacketId> {
        let id = self.allocate()?;
        self.insert(id, Phase::Control);
        Some(id)
    }

    /// Notes that an exchange of a resumed session goes on. False: it already does on this connection.
    pub(crate) fn resend(&mut self, packet_id: PacketId) -> bool {
        let Some(inflight) = self.inflight.get_mut(&packet_id) else { return false };
        let first = !inflight.sent_here;
        inflight.sent_here = true;
        self.unacknowledged += usize::from(first);
        first
    }

    /// Puts back an exchange as it was before this process began, behind those put back before. It goes on with
    /// [`Outbound::resume`]. False, with nothing changed: the identifier is in use.
    pub fn restore(&mut self, packet_id: PacketId, phase: Phase) -> bool {
        if self.inflight.contains_key(&packet_id) {
            return false;
        }
        self.payload_bytes += phase.payload_len();
        self.inflight.insert(packet_id, Inflight { phase, order: self.next_order, sent_here: false });
        self.next_order += 1;
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

    /// The same; returns [`Delivery::stored`] of the message if this let it go.
    pub(crate) fn release(&mut self, packet_id: PacketId) -> Option<Option<NonZeroU64>> {
        let inflight = self.inflight.get_mut(&packet_id)?;
        match &inflight.phase {
            Phase::Sent(delivery) if delivery.qos == QoS::ExactlyOnce => {
                let stored = delivery.stored;
                self.payload_bytes -= delivery.message.payload.len();
                inflight.phase = Phase::Released(stored); // [MQTT-4.3.3-3]
                inflight.order = self.next_order; // [MQTT-4.6.0-4]
                self.next_order += 1;
                self.resend(packet_id);
                Some(stored)
            }
            Phase::Released(_) => Some(None),
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
        let Inflight { phase, sent_here, .. } = self.inflight.remove(&packet_id)?;
        self.unacknowledged -= usize::from(sent_here);
        self.payload_bytes -= phase.payload_len();
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

    /// Messages on their way.
    pub fn len(&self) -> usize {
        self.inflight.len()
    }

    /// Bytes of the payloads that are kept until they are acknowledged.
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
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

    /// Begins a new connection: what must be sent again on it. First each PUBREL in the order of their PUBRECs,
    /// which no quota holds back, then each PUBLISH in the order in which it was first sent. Exchanges of
    /// SUBSCRIBE and UNSUBSCRIBE end with their connection: their identifiers are free again.
    pub fn resume(&mut self) -> Vec<PacketId> {
        self.inflight.retain(|_, inflight| !matches!(inflight.phase, Phase::Control));
        self.unacknowledged = 0;
        let mut order: Vec<_> = self
            .inflight
            .iter_mut()
            .map(|(id, inflight)| {
                inflight.sent_here = false;
                (matches!(inflight.phase, Phase::Sent(_)), inflight.order, *id)
            })
            .collect();
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
        if let Self::Sent(delivery) = self { delivery.message.payload.len() } else { 0 }
    }

    /// [`Delivery::stored`] of the message, also when it was let go.
    pub(crate) fn stored(&self) -> Option<NonZeroU64> {
        match self {
            Self::Sent(delivery) => delivery.stored,
            Self::Released(stored) => *stored,
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
        }
    }
}
