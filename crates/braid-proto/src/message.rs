//! The Application Message on its way through the broker or client, and one Delivery of it.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};

pub use crate::charge::{MemoryAccount, MemoryCharge, OfflineCharge};
use crate::decoder::wire::PACKET_SIZE_MAX;
use crate::packet::{
    MessageProperties, PacketId, ProtocolVersion, Publish, PublishHead, QoS, Will, put_publish_head,
};
use crate::stream::{Lane, Priority, StreamKey};
use crate::topic::{TopicFilter, TopicName};

/// Payloads up to this many bytes are copied into the send buffer, longer ones are shared by reference: a
/// segment of its own costs the kernel and us about as much as copying this much.
const INLINE_PAYLOAD: usize = 1024;

/// An Application Message. Shared behind an [`Arc`] by everybody it is delivered to.
#[derive(Debug)]
pub struct Message {
    /// Where to.
    pub topic: TopicName,
    /// What; its first part if there is a `rest`.
    pub payload: Bytes,
    /// What follows `payload`, part by part; only messages that were made with [`with_rest`](Self::with_rest) have it.
    rest: Option<Box<[Bytes]>>,
    /// The payload is in a spool, and not in the heap.
    spooled: bool,
    /// As published; a delivery may have less.
    pub qos: QoS,
    /// As published.
    pub retain: bool,
    /// `None` when it has none.
    pub properties: Option<Box<MessageProperties>>,
    /// When the Message Expiry Interval has passed.
    pub expires_at: Option<Instant>,
    /// Under which number a store has it; 0 while none has.
    lsn: AtomicU64,
    /// What it counts for; `None` where nobody counts.
    charge: Option<MemoryCharge>,
    templates: OnceLock<Box<Templates>>,
}

/// The encoded forms of a message: {MQTT 3, MQTT 5} x {without, with Packet Identifier}.
type Templates = [OnceLock<Template>; 4];

/// A PUBLISH as it goes to everybody with the same version and QoS; DUP, RETAIN, QoS and the Packet Identifier
/// are patched into the copy.
#[derive(Debug)]
struct Template {
    /// The payload is part of it up to [`INLINE_PAYLOAD`].
    bytes: Box<[u8]>,
    packet_id_at: Option<usize>,
    packet_len: usize,
}

impl Message {
    /// A message without properties.
    pub fn new(topic: TopicName, payload: Bytes, qos: QoS, retain: bool) -> Self {
        Self {
            topic,
            payload,
            rest: None,
            spooled: false,
            qos,
            retain,
            properties: None,
            expires_at: None,
            lsn: AtomicU64::new(0),
            charge: None,
            templates: OnceLock::new(),
        }
    }

    /// The message of a PUBLISH that arrived at `now`, with its topic's alias resolved to `topic`.
    pub fn from_publish(publish: Publish, topic: TopicName, now: Instant) -> Self {
        Self::new(topic, publish.payload, publish.qos, publish.retain)
            .with_spooled(publish.spooled)
            .with_properties(publish.properties, now)
    }

    /// The message of a Will that is published at `now`.
    pub fn from_will(will: Will, now: Instant) -> Self {
        Self::new(will.topic, will.payload, will.qos, will.retain).with_properties(will.properties, now)
    }

    /// Sets the properties; a Message Expiry Interval begins to run at `now`.
    #[must_use]
    pub fn with_properties(mut self, properties: Option<Box<MessageProperties>>, now: Instant) -> Self {
        self.expires_at = properties
            .as_ref()
            .and_then(|properties| properties.message_expiry)
            .and_then(|seconds| now.checked_add(Duration::from_secs(seconds.into())));
        self.properties = properties;
        self
    }

    /// Adds parts of the payload after the first one. They are sent by reference, so that messages that differ in a
    /// few bytes of a large payload share the others. For publishers: who receives a message has it in one piece.
    #[must_use]
    pub fn with_rest(mut self, rest: impl Into<Box<[Bytes]>>) -> Self {
        self.rest = Some(rest.into()).filter(|rest| !rest.is_empty());
        self
    }

    /// Says whether the payload is in a spool; it is not in the heap then.
    #[must_use]
    pub fn with_spooled(mut self, spooled: bool) -> Self {
        self.spooled = spooled;
        self
    }

    /// Whether the payload is in a spool: then it takes none of the memory that messages share.
    pub fn is_spooled(&self) -> bool {
        self.spooled
    }

    /// The length of the whole payload in bytes.
    pub fn payload_len(&self) -> usize {
        self.payload.len() + self.rest.as_deref().map_or(0, |rest| rest.iter().map(Bytes::len).sum())
    }

    /// The parts of the payload that go into an outbox by reference; none if it is copied.
    pub(crate) fn shared_parts(&self) -> impl Iterator<Item = &Bytes> {
        let first = (!self.is_inline()).then_some(&self.payload);
        first.into_iter().chain(self.rest.as_deref().unwrap_or_default())
    }

    fn is_inline(&self) -> bool {
        self.payload.len() <= INLINE_PAYLOAD
    }

    /// The number under which a store has it, if one has.
    pub fn lsn(&self) -> Option<NonZeroU64> {
        // Relaxed: the number says nothing about any other memory.
        NonZeroU64::new(self.lsn.load(Ordering::Relaxed))
    }

    /// Notes the number under which a store is to have it. Returns the one that holds: whoever comes first
    /// names the message for everybody it is delivered to.
    pub fn set_lsn(&self, lsn: NonZeroU64) -> NonZeroU64 {
        match self.lsn.compare_exchange(0, lsn.get(), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => lsn,
            Err(before) => NonZeroU64::new(before).unwrap_or(lsn),
        }
    }

    /// It counts for something from now on, for as long as anybody holds it.
    pub fn set_charge(&mut self, charge: MemoryCharge) {
        self.charge = Some(charge);
    }

    pub(crate) fn charge(&self) -> Option<&MemoryCharge> {
        self.charge.as_ref()
    }

    /// Whether it counts for something.
    pub fn is_charged(&self) -> bool {
        self.charge.is_some()
    }

    /// Somebody holds it at rest from now on, who says when that ends: [`Message::end_offline`].
    pub fn begin_offline(&self) {
        if let Some(charge) = &self.charge {
            charge.begin_offline();
        }
    }

    /// One of those who held it at rest does no more.
    pub fn end_offline(&self) {
        if let Some(charge) = &self.charge {
            charge.end_offline();
        }
    }

    /// Whether its Message Expiry Interval has passed: then nobody gets it any more. [MQTT-3.3.2-5]
    pub fn is_expired(&self, now: Instant) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// What is left of the Message Expiry Interval in seconds, rounded up so that it is never 0 while it lives.
    fn remaining_expiry(&self, now: Instant) -> Option<u32> {
        // The value received minus the time spent waiting here. [MQTT-3.3.2-6]
        let left = self.expires_at?.saturating_duration_since(now);
        Some(u32::try_from(left.as_millis().div_ceil(1000)).unwrap_or(u32::MAX))
    }

    fn template(&self, version: ProtocolVersion, with_id: bool) -> &Template {
        let templates = self.templates.get_or_init(Box::default);
        templates[usize::from(version.is_v5()) * 2 + usize::from(with_id)].get_or_init(|| {
            let mut bytes = BytesMut::new();
            let head = PublishHead {
                packet_id: with_id.then_some(PacketId::FIRST),
                message_expiry: None,
                ..self.head(QoS::AtMostOnce)
            };
            let Some(packet_len) =
                put_publish_head(&mut bytes, version, &head, self.payload_len(), PACKET_SIZE_MAX)
            else {
                return Template { bytes: Box::default(), packet_id_at: None, packet_len: usize::MAX };
            };
            let fixed_header = 2 + bytes[1..].iter().take_while(|byte| **byte & 0x80 != 0).count();
            let packet_id_at = with_id.then_some(fixed_header + 2 + self.topic.as_str().len());
            if self.is_inline() {
                bytes.put_slice(&self.payload);
            }
            Template { bytes: bytes[..].into(), packet_id_at, packet_len }
        })
    }

    fn head(&self, qos: QoS) -> PublishHead<'_> {
        PublishHead {
            dup: false,
            qos,
            retain: false,
            topic: self.topic.as_str(),
            packet_id: None,
            topic_alias: None,
            subscription_ids: &[],
            properties: self.properties.as_deref(),
            message_expiry: None,
        }
    }
}

/// The Subscription Identifiers of one delivery; mostly none or one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SubscriptionIds {
    /// No matching subscription has one.
    #[default]
    None,
    /// One has.
    One(NonZeroU32),
    /// Several have. [MQTT-3.3.4-4]
    Many(Box<[NonZeroU32]>),
}

impl SubscriptionIds {
    /// The identifiers in the order of the subscriptions.
    pub fn as_slice(&self) -> &[NonZeroU32] {
        match self {
            Self::None => &[],
            Self::One(number) => std::slice::from_ref(number),
            Self::Many(numbers) => numbers,
        }
    }

    /// Adds one more.
    pub fn push(&mut self, number: NonZeroU32) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(number),
            Self::One(first) => Self::Many(Box::new([first, number])),
            Self::Many(numbers) => Self::Many(numbers.iter().copied().chain([number]).collect()),
        };
    }
}

/// One Message for one Session, with what the matching subscriptions made of it.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The message, shared.
    pub message: Arc<Message>,
    /// The effective QoS: the lesser of published and subscribed. [MQTT-3.8.4-8]
    pub qos: QoS,
    /// The RETAIN flag that the receiver sees.
    pub retain: bool,
    /// The identifiers of the subscriptions that matched. [MQTT-3.3.4-3]
    pub subscription_ids: SubscriptionIds,
    /// Where it goes.
    pub stream: StreamKey,
    /// Its place in the send order.
    pub priority: Priority,
    /// The shared subscription it came from: what is not acknowledged when the session ends goes to another
    /// member of its group.
    pub shared: Option<Arc<TopicFilter>>,
    /// Its place in the session's queue in a store; `None` when no store was told of it.
    pub queue_lsn: Option<NonZeroU64>,
    /// When it began to wait, in seconds on a clock of whoever queues it; `None` where nobody asks.
    pub waits_since: Option<NonZeroU32>,
    /// It waits for somebody who is away, or did: its message rests.
    pub offline_charge: Option<OfflineCharge>,
}

impl Delivery {
    /// A delivery on the control stream, as a client sends its own messages.
    pub fn of(message: Arc<Message>) -> Self {
        Self {
            qos: message.qos,
            retain: message.retain,
            message,
            subscription_ids: SubscriptionIds::None,
            stream: StreamKey::CONTROL,
            priority: Priority::DEFAULT,
            shared: None,
            queue_lsn: None,
            waits_since: None,
            offline_charge: None,
        }
    }

    /// Whoever is to get it is away: until it is gone its message counts as resting.
    pub fn charge_offline(&mut self) {
        if self.offline_charge.is_none() {
            self.offline_charge = OfflineCharge::new(&self.message);
        }
    }

    /// Its place in the order of sending.
    pub fn lane(&self) -> Lane {
        Lane { stream: self.stream, priority: self.priority }
    }
}

/// What one copy of a PUBLISH has of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) version: ProtocolVersion,
    /// Whether this sending is a repetition, whatever the publisher's was. [MQTT-3.3.1-3]
    pub(crate) dup: bool,
    pub(crate) packet_id: Option<PacketId>,
    /// The alias and whether the name goes with it.
    pub(crate) alias: Option<(u16, bool)>,
    pub(crate) now: Instant,
}

/// Writes the PUBLISH of a delivery up to a payload above [`INLINE_PAYLOAD`], which the caller adds by
/// reference. `None`, with nothing written: the packet would exceed `maximum_packet_size`.
pub(crate) fn put_delivery(
    out: &mut BytesMut,
    delivery: &Delivery,
    copy: &Copy,
    maximum_packet_size: usize,
) -> Option<usize> {
    let message = &*delivery.message;
    let own_properties = copy.version.is_v5()
        && (copy.alias.is_some()
            || message.expires_at.is_some()
            || delivery.subscription_ids != SubscriptionIds::None);
    // Whoever holds the last reference gains nothing from a form that others could share.
    if own_properties || Arc::strong_count(&delivery.message) == 1 {
        let topic = if copy.alias.is_some_and(|(_, named)| !named) { "" } else { message.topic.as_str() };
        let head = PublishHead {
            dup: copy.dup,
            retain: delivery.retain,
            topic,
            packet_id: copy.packet_id,
            topic_alias: copy.alias.map(|(alias, _)| alias),
            subscription_ids: delivery.subscription_ids.as_slice(),
            message_expiry: message.remaining_expiry(copy.now),
            ..message.head(delivery.qos)
        };
        let payload_len = message.payload_len();
        let packet_len = put_publish_head(out, copy.version, &head, payload_len, maximum_packet_size)?;
        if message.is_inline() {
            out.put_slice(&message.payload);
        }
        return Some(packet_len);
    }
    let template = message.template(copy.version, copy.packet_id.is_some());
    if template.packet_len > maximum_packet_size {
        return None;
    }
    let start = out.len();
    out.put_slice(&template.bytes);
    out[start] |= u8::from(copy.dup) << 3 | delivery.qos.bits() << 1 | u8::from(delivery.retain);
    if let (Some(at), Some(packet_id)) = (template.packet_id_at, copy.packet_id) {
        out[start + at..start + at + 2].copy_from_slice(&packet_id.value().to_be_bytes());
    }
    Some(template.packet_len)
}
