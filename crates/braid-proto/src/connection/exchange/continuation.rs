//! Continuation of large messages that the server received in part on an earlier connection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::{Exchange, PendingAck};
use crate::connection::Resent;
use crate::packet::{Ack, AckKind, AckProperties, BorrowedPublish, RESUME_PROPERTY, UserProperties};
use crate::session::{Phase, Session};
use crate::types::{PacketId, QoS, ReasonCode, StreamKey, TopicName, Violation};

/// Messages of a client that the server has in part.
#[derive(Debug, Default)]
pub(super) struct Continuations {
    /// Offsets of messages that were not sent again yet.
    offsets: BTreeMap<PacketId, usize>,
    /// Messages that were sent from an offset and are not acknowledged.
    sent: BTreeSet<PacketId>,
}

impl Continuations {
    /// Takes the offset from which a message is sent, once; 0 for all others: a later repetition is whole. [BQ-98] A
    /// message that is sent for the first time (`dup` is false) has the identifier of one that is over.
    pub(super) fn take(&mut self, id: PacketId, dup: bool) -> usize {
        let Some(offset) = self.offsets.remove(&id).filter(|_| dup) else { return 0 };
        self.sent.insert(id);
        offset
    }
}

/// Message that the server has in part, and that is sent from there. [BQ-98]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continued {
    /// Its topic.
    pub topic: TopicName,
    /// Bytes of the payload that the server has, and that are not sent again. 0: it lacks the part that it had listed,
    /// and the message is sent from its beginning. [BQ-99]
    pub offset: usize,
    /// Bytes of the payload.
    pub size: usize,
}

/// Identifier and bytes of a part in a property of CONNACK.
fn listed_part((name, value): (&str, &str)) -> Option<(PacketId, usize)> {
    let (id, received) = value.split_once(':').filter(|_| name == RESUME_PROPERTY)?;
    Some((PacketId::new(id.parse().ok()?)?, received.parse().ok()?))
}

impl Exchange {
    /// Reads the parts that a CONNACK lists, of messages that are still to be sent, and returns these messages. Others
    /// are ignored, and remembered while the server has them: a later message with such an identifier is another one,
    /// however much alike, such as that of a process which has forgotten the session. Identifiers behind them are used
    /// first, so that the next message can be continued. [BQ-97]
    pub(crate) fn note_partials(&mut self, properties: &UserProperties) -> Vec<Continued> {
        let Session { outbound, partials, .. } = &mut self.session;
        let (mut offsets, mut foreign) = (BTreeMap::new(), Vec::new());
        for (id, received) in properties.iter().filter_map(listed_part) {
            match outbound.get(id) {
                Some(Phase::Sent(delivery)) if !partials.is_foreign(id) => {
                    if (1..delivery.message.payload_len()).contains(&received) {
                        offsets.insert(id, received);
                    }
                }
                _ => foreign.push(id),
            }
        }
        if let Some(last) = foreign.iter().max() {
            outbound.begin_behind(*last);
        }
        partials.set_foreign(foreign);
        let continued = offsets.iter().filter_map(|(id, offset)| self.continued(*id, *offset)).collect();
        if !offsets.is_empty() {
            self.continuations = Some(Box::new(Continuations { offsets, sent: BTreeSet::new() }));
        }
        continued
    }

    /// Message of this identifier, if it is still to be sent.
    pub(crate) fn continued(&self, id: PacketId, offset: usize) -> Option<Continued> {
        let Some(Phase::Sent(delivery)) = self.session.outbound.get(id) else { return None };
        let message = &delivery.message;
        Some(Continued { topic: message.topic.clone(), offset, size: message.payload_len() })
    }

    /// Whether the server refuses the offset of a message, and not the message.
    pub(super) fn is_offset_refused(&mut self, ack: &Ack) -> bool {
        let Some(continuations) = &mut self.continuations else { return false };
        let answered = match ack.kind {
            AckKind::Puback => QoS::AtLeastOnce,
            AckKind::Pubrec => QoS::ExactlyOnce,
            AckKind::Pubrel | AckKind::Pubcomp => return false,
        };
        let phase = self.session.outbound.get(ack.packet_id);
        let is_of_message = matches!(phase, Some(Phase::Sent(delivery)) if delivery.qos == answered);
        let was_continued = continuations.sent.remove(&ack.packet_id);
        was_continued && is_of_message && ack.reason == ReasonCode::ImplementationSpecificError
    }

    /// Sends a message whole whose offset the server refused, on the same stream. [BQ-99]
    pub(crate) fn resend_whole(&mut self, id: PacketId, now: Instant) -> Resent {
        let Some(Phase::Sent(delivery)) = self.session.outbound.get(id) else { return Resent::Over };
        let on = self.streams.resolve(delivery.stream);
        self.session.outbound.move_to_stream(id, on);
        if self.put_inflight(id, true, now) {
            return Resent::Out(on);
        }
        self.discard(id);
        Resent::TooLarge
    }

    /// Refuses a PUBLISH with an offset that is not that of a part. Its identifier is not noted: the client sends the
    /// message again. Its Topic Alias is. [BQ-99]
    ///
    /// # Errors
    /// The alias is not valid.
    pub(crate) fn refuse_offset(
        &mut self,
        on: StreamKey,
        publish: BorrowedPublish<'_>,
        explanation: Option<String>,
    ) -> Result<(), Violation> {
        self.streams.resolve_topic(on, publish.topic, publish.topic_alias)?;
        let Some(packet_id) = publish.packet_id else { return Ok(()) };
        let kind = if publish.qos == QoS::AtLeastOnce { AckKind::Puback } else { AckKind::Pubrec };
        let properties = explanation.map(|text| {
            Box::new(AckProperties { reason_string: Some(text.into()), ..AckProperties::default() })
        });
        let ack = Ack { properties, ..Ack::new(kind, packet_id, ReasonCode::ImplementationSpecificError) };
        self.enqueue_ack_without_effect(on, PendingAck::Ack(ack));
        Ok(())
    }
}
