//! Large messages that were received in part when their connection ended, to be continued on the next one.

use std::fmt;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::SpooledPacket;
use crate::packet::{BorrowedPublish, MessageProperties, OFFSET_PROPERTY, Publish};
use crate::types::{PacketId, Violation};

/// Maximum number of parts of one session. [BQ-96]
const PARTS_MAX: usize = 4;

/// Reason why a PUBLISH with an offset is not joined with a part. [BQ-99]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OffsetProblem {
    /// No part has this identifier.
    #[error("no part of this message is kept: send it from its beginning")]
    NoPart,
    /// The value of the property.
    #[error("braid-offset is not a number: send the bytes that CONNACK named")]
    NotANumber,
    /// Offset, and bytes of the part.
    #[error("braid-offset is {0}, but {1} bytes are kept: send the message from its beginning")]
    Offset(u64, usize),
    /// Bytes of offset and rest, and of the whole payload.
    #[error("offset and rest are {0} bytes of {1}: send the message from its beginning")]
    Length(usize, usize),
    /// Topic Name, QoS, RETAIN or properties.
    #[error(
        "topic, QoS, RETAIN or properties are not those of the part: send the message from its beginning"
    )]
    Head,
}

/// Incomplete large messages of a session, while its client continues such messages. [BQ-96]
///
/// A part has one owner, and so the clone of a table is empty.
#[derive(Default)]
pub struct PartialMessages(Option<Box<Table>>);

#[derive(Default)]
struct Table {
    /// In the order in which they were kept.
    parts: Vec<PartialMessage>,
    /// Identifiers that the CONNACK of this connection listed, until a PUBLISH with one arrives: it may have an offset.
    listed: Vec<PacketId>,
    /// Reason for which the offset of the last PUBLISH was refused, and its identifier.
    problem: Option<(PacketId, OffsetProblem)>,
    /// On the side of the client: identifiers of parts at the server that are of other messages.
    foreign: Vec<PacketId>,
}

/// Incomplete PUBLISH in a spool.
#[derive(Debug)]
pub(crate) struct PartialMessage {
    pub(super) head: PartialHead,
    /// Bytes of the payload that have arrived.
    pub(super) received: usize,
    pub(super) packet: Box<dyn SpooledPacket>,
}

/// PUBLISH without its payload, and the extent of that.
#[derive(Debug)]
pub(super) struct PartialHead {
    pub(super) packet_id: PacketId,
    pub(super) publish: Publish<()>,
    /// Offset of the payload in the spooled packet.
    pub(super) payload_at: usize,
    /// Bytes of the whole payload.
    pub(super) length: usize,
    /// Whether an earlier connection began the message, so that the spooled packet has the head of that.
    pub(super) is_continued: bool,
    /// Arrival of the last byte on the connection that ended; `None` before the end of the first.
    pub(super) kept_at: Option<Instant>,
}

impl PartialMessages {
    /// Time for which parts are kept. [BQ-96]
    pub const KEPT_FOR: Duration = Duration::from_secs(3600);

    /// Begins a connection. Parts that are too old are dropped; all are, if the client does not continue messages.
    pub(crate) fn begin(&mut self, is_enabled: bool, now: Instant) {
        if !is_enabled {
            self.0 = None;
            return;
        }
        let listed = |part: &PartialMessage| part.head.packet_id;
        self.0.get_or_insert_default();
        self.expire(now);
        if let Some(table) = &mut self.0 {
            table.listed = table.parts.iter().map(listed).collect();
        }
    }

    /// Whether the client of this connection continues messages.
    pub(crate) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    fn parts(&self) -> &[PartialMessage] {
        self.0.as_ref().map_or(&[], |table| &table.parts)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.parts().is_empty()
    }

    /// Identifiers, and bytes of the payload that have arrived.
    pub fn iter(&self) -> impl Iterator<Item = (PacketId, usize)> {
        self.parts().iter().map(|part| (part.head.packet_id, part.received))
    }

    /// Whether the server listed a part with this identifier that is not of a message of this session. [BQ-97]
    pub(crate) fn is_foreign(&self, id: PacketId) -> bool {
        self.0.as_ref().is_some_and(|table| table.foreign.contains(&id))
    }

    /// Notes the identifiers of all such parts that the server has.
    pub(crate) fn set_foreign(&mut self, foreign: Vec<PacketId>) {
        if self.0.is_some() || !foreign.is_empty() {
            self.0.get_or_insert_default().foreign = foreign;
        }
    }

    /// Drops the parts that are too old. [BQ-96]
    pub fn expire(&mut self, now: Instant) {
        let Some(table) = &mut self.0 else { return };
        let is_young = |at: Instant| now.saturating_duration_since(at) < Self::KEPT_FOR;
        table.parts.retain(|part| part.head.kept_at.is_none_or(is_young));
    }

    /// Keeps a message of a connection that has ended, instead of another part with its identifier, and of the oldest
    /// one if there are too many. [BQ-96]
    pub(crate) fn keep(&mut self, part: PartialMessage, at: Instant) {
        let Some(table) = &mut self.0 else { return };
        let mut part = part;
        // One that was not continued is of another message.
        table.parts.retain(|other| other.head.packet_id != part.head.packet_id);
        if part.received == 0 || !part.packet.keep() {
            return;
        }
        part.head.kept_at = Some(at);
        if table.parts.len() >= PARTS_MAX {
            table.parts.remove(0);
        }
        table.parts.push(part);
    }

    /// Takes the part that a PUBLISH with `rest` bytes of payload continues, and removes the offset of the PUBLISH.
    /// `None`, with nothing changed: there is no such part, or the PUBLISH has no offset.
    pub(super) fn take_continued(
        &mut self,
        publish: &mut Publish<()>,
        rest: usize,
    ) -> Option<PartialMessage> {
        let table = self.0.as_mut()?;
        let offset = table.offset_of(publish)?;
        let at = table.find(publish, offset, rest).ok()?;
        table.listed.retain(|id| publish.packet_id != Some(*id));
        remove_offset(publish);
        Some(table.parts.remove(at))
    }

    /// Whether a PUBLISH has an offset.
    pub(super) fn is_rest(&self, publish: &Publish<()>) -> bool {
        self.0.as_ref().is_some_and(|table| table.offset_of(publish).is_some())
    }

    /// Completes a PUBLISH that has arrived: joins it with its part, if it has an offset, and drops the part otherwise.
    /// [BQ-96], [BQ-99]
    ///
    /// # Errors
    /// The spool is full, or failed. The part is lost.
    pub(super) fn complete(&mut self, publish: &mut BorrowedPublish<'_>) -> Result<(), Violation> {
        let Some(table) = &mut self.0 else { return Ok(()) };
        table.problem = None;
        let Some(id) = publish.packet_id else { return Ok(()) };
        let offset = table.offset_of(publish);
        table.listed.retain(|listed| *listed != id);
        let Some(offset) = offset else {
            table.parts.retain(|part| part.head.packet_id != id);
            return Ok(());
        };
        match table.find(publish, offset, publish.payload.len()) {
            Ok(at) => {
                let PartialMessage { head, mut packet, .. } = table.parts.remove(at);
                packet.append(&publish.payload)?;
                publish.payload = packet.finish()?.slice(head.payload_at..).into();
                publish.spooled = true;
                remove_offset(publish);
            }
            Err(problem) => {
                table.problem = Some((id, problem));
                table.parts.retain(|part| part.head.packet_id != id);
            }
        }
        Ok(())
    }

    /// Reason for which the offset of a PUBLISH, the last one with an identifier, was refused.
    pub(crate) fn problem_of<P>(&self, publish: &Publish<P>) -> Option<OffsetProblem> {
        let (id, problem) = self.0.as_ref()?.problem?;
        (publish.packet_id == Some(id)).then_some(problem)
    }
}

impl Table {
    /// Offset of a PUBLISH that has one; within, `None` for a value that is not a number. Any other property of that
    /// name is the application's. [BQ-98]
    fn offset_of<P>(&self, publish: &Publish<P>) -> Option<Option<u64>> {
        let id = publish.packet_id.filter(|id| publish.dup && self.listed.contains(id))?;
        let part = self.parts.iter().find(|part| part.head.packet_id == id);
        let own = part.map_or(0, |part| offset_values(&part.head.publish).count());
        let value = offset_values(publish).skip(own).last()?;
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        Some(value.parse().ok().filter(|_| is_number))
    }

    /// Index of the part that a PUBLISH with this offset and `rest` bytes of payload continues. [BQ-99]
    fn find<P>(
        &self,
        publish: &Publish<P>,
        offset: Option<u64>,
        rest: usize,
    ) -> Result<usize, OffsetProblem> {
        let id = publish.packet_id.ok_or(OffsetProblem::NoPart)?;
        let at = self.parts.iter().position(|part| part.head.packet_id == id).ok_or(OffsetProblem::NoPart)?;
        let part = &self.parts[at];
        let offset = offset.ok_or(OffsetProblem::NotANumber)?;
        if offset != part.received as u64 {
            return Err(OffsetProblem::Offset(offset, part.received));
        }
        if part.received + rest != part.head.length {
            return Err(OffsetProblem::Length(part.received + rest, part.head.length));
        }
        if !is_same_message(&part.head.publish, publish) {
            return Err(OffsetProblem::Head);
        }
        Ok(at)
    }
}

/// Values of the properties that may be an offset.
fn offset_values<P>(publish: &Publish<P>) -> impl Iterator<Item = &str> {
    let user = publish.properties.iter().flat_map(|properties| properties.user.iter());
    user.filter(|(name, _)| *name == OFFSET_PROPERTY).map(|(_, value)| value)
}

fn remove_offset<P>(publish: &mut Publish<P>) {
    publish.properties = publish.properties.take().and_then(|properties| without_offset(*properties).boxed());
}

/// Properties without the last one that may be an offset: those before it are the application's.
fn without_offset(mut properties: MessageProperties) -> MessageProperties {
    let user = || properties.user.iter().enumerate();
    let last = user().filter(|(_, (name, _))| *name == OFFSET_PROPERTY).last().map(|(at, _)| at);
    properties.user = user().filter(|(at, _)| Some(*at) != last).map(|(_, property)| property).collect();
    properties
}

/// Whether a part and a rest are of one message: all but DUP, the rest of the Message Expiry Interval, and the offset.
fn is_same_message<P>(part: &Publish<()>, rest: &Publish<P>) -> bool {
    let own =
        |properties: &Option<Box<MessageProperties>>| properties.as_deref().cloned().unwrap_or_default();
    let without_expiry = |properties| MessageProperties { message_expiry: None, ..properties };
    part.topic.is_some()
        && part.topic == rest.topic
        && (part.qos, part.retain) == (rest.qos, rest.retain)
        && without_expiry(own(&part.properties)) == without_expiry(without_offset(own(&rest.properties)))
}

impl Clone for PartialMessages {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for PartialMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
