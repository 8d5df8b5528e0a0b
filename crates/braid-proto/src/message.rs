//! Application Messages, their deliveries to sessions, and the accounting of their memory.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use once_cell::race::OnceBox;
use triomphe::UniqueArc;

use crate::packet::{
    BorrowedPublish, MessageProperties, OFFSET_PROPERTY, Publish, PublishHead, Will, put_publish_head,
};
use crate::types::{
    Lane, Mountpoint, PacketId, Payload, Priority, ProtocolVersion, QoS, StreamKey, TopicFilter, TopicName,
};
use crate::wire::PACKET_SIZE_MAX;

/// Maximum bytes of a payload that is copied into the outbox. Longer ones are shared by reference: a buffer of its own
/// costs the kernel and this process about as much as copying this many bytes.
const COPIED_PAYLOAD: usize = 1024;

/// [`Message`] that all of its deliveries share.
pub type SharedMessage = triomphe::Arc<Message>;

/// Application Message.
#[derive(Debug)]
pub struct Message {
    /// Topic Name.
    pub topic: TopicName,
    /// Parts of the payload behind `payload`, of a message made by [`with_rest`](Self::with_rest).
    rest: Option<Box<Box<[Bytes]>>>,
    /// Whether the payload is in a spool, and not in the heap.
    spooled: bool,
    /// QoS of the PUBLISH; a delivery may have a lower one.
    pub qos: QoS,
    /// RETAIN flag of the PUBLISH.
    pub retain: bool,
    /// Properties of the message; `None` when it has none.
    pub properties: Option<Box<MessageProperties>>,
    /// End of the Message Expiry Interval.
    pub expires_at: Option<Instant>,
    /// Log sequence number of the message in a store; 0 while it is in none.
    lsn: AtomicU64,
    /// Charge on a memory account; `None` where memory is not accounted.
    charge: Option<MemoryCharge>,
    templates: OnceBox<Templates>,
    /// Payload; only its first part if there is a `rest`. Behind the fields that every delivery reads.
    pub payload: Payload,
}

// With the count of its references three cache lines, aligned by the allocator: neighbours belong to other threads.
const _: () = assert!(size_of::<Message>() <= 184);

/// Encoded forms of a message: {MQTT 3, MQTT 5} x {without, with Packet Identifier}.
type Templates = [OnceLock<Template>; 4];

/// Encoded PUBLISH for all receivers with the same version; DUP, RETAIN, QoS and the Packet Identifier are patched into
/// each transmission.
#[derive(Debug)]
struct Template {
    /// Includes a payload of up to [`COPIED_PAYLOAD`] bytes.
    bytes: Box<[u8]>,
    packet_id_at: Option<usize>,
    packet_len: usize,
}

impl Message {
    /// Message without properties.
    pub fn new(topic: TopicName, payload: impl Into<Payload>, qos: QoS, retain: bool) -> Self {
        Self {
            topic,
            payload: payload.into(),
            rest: None,
            spooled: false,
            qos,
            retain,
            properties: None,
            expires_at: None,
            lsn: AtomicU64::new(0),
            charge: None,
            templates: OnceBox::new(),
        }
    }

    /// Message of a PUBLISH that arrived at `now`, with its topic's alias resolved to `topic`.
    pub(crate) fn from_publish(
        publish: BorrowedPublish<'_>,
        topic: TopicName,
        now: Instant,
    ) -> SharedMessage {
        let Publish { payload, qos, retain, properties, spooled, .. } = publish;
        let expires_at = expiry(properties.as_deref(), now);
        let message =
            Self { spooled, properties, expires_at, ..Self::new(topic, Payload::EMPTY, qos, retain) };
        let mut message = UniqueArc::new(message);
        // Copied to where it stays: of a message that is moved with its payload, each move waits for these bytes.
        message.payload.set(payload);
        message.shareable()
    }

    /// Message of a Will that is published at `now`.
    pub fn from_will(will: Will, now: Instant) -> Self {
        Self::new(will.topic, will.payload, will.qos, will.retain).with_properties(will.properties, now)
    }

    /// Sets the properties; a Message Expiry Interval begins at `now`.
    #[must_use]
    pub fn with_properties(mut self, properties: Option<Box<MessageProperties>>, now: Instant) -> Self {
        self.expires_at = expiry(properties.as_deref(), now);
        self.properties = properties;
        self
    }

    /// Adds parts of the payload behind the first one, which are sent by reference: messages that differ in a few bytes
    /// of a large payload share the others. For publishers only; a received message has one part.
    #[must_use]
    pub fn with_rest(mut self, rest: impl Into<Box<[Bytes]>>) -> Self {
        self.rest = Some(rest.into()).filter(|rest| !rest.is_empty()).map(Box::new);
        self
    }

    /// Sets whether the payload is in a spool.
    #[must_use]
    pub fn with_spooled(mut self, spooled: bool) -> Self {
        self.spooled = spooled;
        self
    }

    /// Whether the payload is in a spool, and takes no heap.
    pub fn is_spooled(&self) -> bool {
        self.spooled
    }

    /// Length of the whole payload in bytes.
    pub fn payload_len(&self) -> usize {
        self.payload.len() + self.rest().iter().map(Bytes::len).sum::<usize>()
    }

    /// Parts of the payload that go into an outbox by reference; none if it is copied.
    pub(crate) fn shared_parts(&self) -> impl Iterator<Item = &Bytes> {
        let first = self.payload.as_shared().filter(|_| !self.is_copied());
        first.into_iter().chain(self.rest())
    }

    /// Parts of the payload from this offset on.
    pub(crate) fn parts_from(&self, mut offset: usize) -> impl Iterator<Item = Bytes> {
        std::iter::once(self.payload.to_bytes()).chain(self.rest().iter().cloned()).filter_map(move |part| {
            let skipped = offset.min(part.len());
            offset -= skipped;
            (skipped < part.len()).then(|| part.slice(skipped..))
        })
    }

    fn rest(&self) -> &[Bytes] {
        self.rest.as_deref().map_or(&[], |rest| rest)
    }

    fn is_copied(&self) -> bool {
        self.payload.len() <= COPIED_PAYLOAD
    }

    /// Log sequence number of the message in a store, if it is in one.
    pub fn lsn(&self) -> Option<NonZeroU64> {
        // Relaxed: the number orders no other memory.
        NonZeroU64::new(self.lsn.load(Ordering::Relaxed))
    }

    /// Sets the log sequence number of the message, once. Returns the number that holds: the first one, for all
    /// deliveries of the message.
    pub fn set_lsn(&self, lsn: NonZeroU64) -> NonZeroU64 {
        match self.lsn.compare_exchange(0, lsn.get(), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => lsn,
            Err(before) => NonZeroU64::new(before).unwrap_or(lsn),
        }
    }

    /// Charges the message to a memory account until it is dropped.
    pub fn set_charge(&mut self, charge: MemoryCharge) {
        self.charge = Some(charge);
    }

    pub(crate) fn charge(&self) -> Option<&MemoryCharge> {
        self.charge.as_ref()
    }

    /// Whether the message is charged to a memory account.
    pub fn is_charged(&self) -> bool {
        self.charge.is_some()
    }

    /// Counts an offline holder of the message, until [`Message::end_offline`].
    pub fn begin_offline(&self) {
        if let Some(charge) = &self.charge {
            charge.begin_offline();
        }
    }

    /// Ends one [`Message::begin_offline`].
    pub fn end_offline(&self) {
        if let Some(charge) = &self.charge {
            charge.end_offline();
        }
    }

    /// Whether the Message Expiry Interval has passed, and the message must not be sent any more. [MQTT-3.3.2-5]
    pub fn is_expired(&self, now: Instant) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Rest of the Message Expiry Interval in seconds, rounded up so that it is not 0 before its end.
    fn remaining_expiry(&self, now: Instant) -> Option<u32> {
        // The interval received minus the time spent in this process. [MQTT-3.3.2-6]
        let left = self.expires_at?.saturating_duration_since(now);
        let left = u32::try_from(left.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
        // The sender's time may be an earlier one than that of the arrival, which another thread took.
        let received = self.properties.as_ref().and_then(|properties| properties.message_expiry);
        Some(received.map_or(left, |received| left.min(received)))
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
            if self.is_copied() {
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
            mountpoint: None,
        }
    }
}

/// End of a Message Expiry Interval that begins at `now`.
fn expiry(properties: Option<&MessageProperties>, now: Instant) -> Option<Instant> {
    now.checked_add(Duration::from_secs(properties?.message_expiry?.into()))
}

/// Subscription Identifiers of one delivery; mostly none or one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SubscriptionIds {
    /// No matching subscription has one.
    #[default]
    None,
    /// One subscription has one.
    One(NonZeroU32),
    /// Several have. [MQTT-3.3.4-4]
    Many(Box<[NonZeroU32]>),
}

impl SubscriptionIds {
    /// Identifiers in the order of the subscriptions.
    pub fn as_slice(&self) -> &[NonZeroU32] {
        match self {
            Self::None => &[],
            Self::One(number) => std::slice::from_ref(number),
            Self::Many(numbers) => numbers,
        }
    }

    /// Adds an identifier.
    pub fn push(&mut self, number: NonZeroU32) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(number),
            Self::One(first) => Self::Many(Box::new([first, number])),
            Self::Many(numbers) => Self::Many(numbers.iter().copied().chain([number]).collect()),
        };
    }
}

/// Delivery of a message to a session, with the result of its matching subscriptions.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Message, shared.
    pub message: SharedMessage,
    /// Effective QoS: the lesser of published and subscribed. [MQTT-3.8.4-8]
    pub qos: QoS,
    /// RETAIN flag for the receiver.
    pub retain: bool,
    /// Identifiers of the matching subscriptions. [MQTT-3.3.4-3]
    pub subscription_ids: SubscriptionIds,
    /// Stream of the PUBLISH.
    pub stream: StreamKey,
    /// Priority of sending.
    pub priority: Priority,
    /// Filter of the shared subscription that selected this session. A delivery that is unacknowledged at the end of
    /// the session goes to another member of the group.
    pub shared: Option<Arc<TopicFilter>>,
    /// Log sequence number of the delivery in the stored queue of its session; `None` when it is in no store.
    pub queue_lsn: Option<NonZeroU64>,
    /// Time of enqueueing, in seconds of the queue's clock; `None` until it is queued.
    pub enqueued_at: Option<NonZeroU32>,
    /// Charge of the message as offline, since the delivery was queued for an offline client.
    pub offline_charge: Option<OfflineCharge>,
}

impl Delivery {
    /// Delivery on the control stream, as a client sends its own messages.
    pub fn of(message: SharedMessage) -> Self {
        Self {
            qos: message.qos,
            retain: message.retain,
            message,
            subscription_ids: SubscriptionIds::None,
            stream: StreamKey::CONTROL,
            priority: Priority::DEFAULT,
            shared: None,
            queue_lsn: None,
            enqueued_at: None,
            offline_charge: None,
        }
    }

    /// Charges the message as offline, until this delivery is dropped.
    pub fn charge_offline(&mut self) {
        if self.offline_charge.is_none() {
            self.offline_charge = OfflineCharge::new(&self.message);
        }
    }

    /// Lane of the delivery: its stream and priority.
    pub fn lane(&self) -> Lane {
        Lane { stream: self.stream, priority: self.priority }
    }
}

/// Fields of one transmission of a delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transmission<'a> {
    pub(crate) version: ProtocolVersion,
    /// DUP flag: whether this side repeats it, independent of the publisher's flag. [MQTT-3.3.1-3]
    pub(crate) dup: bool,
    pub(crate) packet_id: Option<PacketId>,
    /// Topic Alias, and whether the Topic Name is sent with it.
    pub(crate) alias: Option<(u16, bool)>,
    pub(crate) now: Instant,
    /// Mountpoint of the receiver, whose topic names are sent.
    pub(crate) mountpoint: Option<&'a Mountpoint>,
    /// Bytes of the payload that the peer has, and that are left out. [BQ-98]
    pub(crate) offset: usize,
}

/// Writes the PUBLISH of a delivery, without a payload above [`COPIED_PAYLOAD`], which the caller adds by
/// reference. `None`, with nothing written: the packet would exceed `maximum_packet_size`, or the receiver has no name
/// for the topic.
pub(crate) fn put_delivery(
    out: &mut BytesMut,
    delivery: &Delivery,
    transmission: &Transmission<'_>,
    maximum_packet_size: usize,
) -> Option<usize> {
    let message = &*delivery.message;
    let own_properties = transmission.version.is_v5()
        && (transmission.alias.is_some()
            || message.expires_at.is_some()
            || transmission.offset > 0
            || delivery.subscription_ids != SubscriptionIds::None);
    // The last reference gains nothing from an encoded form that others could share.
    if own_properties || transmission.mountpoint.is_some() || SharedMessage::count(&delivery.message) == 1 {
        let topic = match transmission.mountpoint {
            Some(mountpoint) => mountpoint.own_name(&message.topic)?,
            None => message.topic.as_str(),
        };
        let topic = if transmission.alias.is_some_and(|(_, named)| !named) { "" } else { topic };
        let continued = (transmission.offset > 0).then(|| {
            let mut properties = message.properties.as_deref().cloned().unwrap_or_default();
            properties.user.push(OFFSET_PROPERTY, &transmission.offset.to_string());
            properties
        });
        let head = PublishHead {
            dup: transmission.dup,
            retain: delivery.retain,
            topic,
            packet_id: transmission.packet_id,
            topic_alias: transmission.alias.map(|(alias, _)| alias),
            subscription_ids: delivery.subscription_ids.as_slice(),
            message_expiry: message.remaining_expiry(transmission.now),
            mountpoint: transmission.mountpoint,
            properties: continued.as_ref().or(message.properties.as_deref()),
            ..message.head(delivery.qos)
        };
        let payload_len = message.payload_len() - transmission.offset;
        let packet_len =
            put_publish_head(out, transmission.version, &head, payload_len, maximum_packet_size)?;
        if message.is_copied() && transmission.offset == 0 {
            out.put_slice(&message.payload);
        }
        return Some(packet_len);
    }
    let template = message.template(transmission.version, transmission.packet_id.is_some());
    if template.packet_len > maximum_packet_size {
        return None;
    }
    let start = out.len();
    out.put_slice(&template.bytes);
    out[start] |= u8::from(transmission.dup) << 3 | delivery.qos.bits() << 1 | u8::from(delivery.retain);
    if let (Some(at), Some(packet_id)) = (template.packet_id_at, transmission.packet_id) {
        out[start + at..start + at + 2].copy_from_slice(&packet_id.value().to_be_bytes());
    }
    Some(template.packet_len)
}

/// Account of the memory that messages take, in bytes. A charge moves between three states: online (in use), offline,
/// and released.
pub trait MemoryAccount: fmt::Debug + Send + Sync {
    /// Moves bytes from online to offline: only offline clients, or none yet, are to receive the message.
    fn move_offline(&self, bytes: usize);
    /// Moves bytes from offline to online.
    fn move_online(&self, bytes: usize);
    /// Releases online bytes: the message was dropped.
    fn release(&self, bytes: usize);
    /// Counts a delivery that is queued for an offline client.
    fn begin_delivery(&self);
    /// Ends one [`begin_delivery`](Self::begin_delivery).
    fn end_delivery(&self);
}

/// Charge of one message on an account, independent of the number of its holders. Released on drop.
#[derive(Debug)]
pub struct MemoryCharge {
    account: Arc<dyn MemoryAccount>,
    bytes: usize,
    /// Number of holders that are offline.
    offline: AtomicUsize,
}

impl MemoryCharge {
    /// Charge of bytes that `account` has already counted as online, perhaps in one sum for many messages.
    pub fn new(account: Arc<dyn MemoryAccount>, bytes: usize) -> Self {
        Self { account, bytes, offline: AtomicUsize::new(0) }
    }

    // Relaxed: the count guards no other memory, and the account's sums are the same in any order.

    pub(crate) fn begin_offline(&self) {
        if self.offline.fetch_add(1, Ordering::Relaxed) == 0 {
            self.account.move_offline(self.bytes);
        }
    }

    pub(crate) fn end_offline(&self) {
        if self.offline.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.account.move_online(self.bytes);
        }
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        if *self.offline.get_mut() > 0 {
            self.account.move_online(self.bytes);
        }
        self.account.release(self.bytes);
    }
}

/// Guard of a message that is held offline. While one exists, the message counts as offline, also with online holders.
#[derive(Debug)]
pub struct OfflineCharge(SharedMessage);

impl OfflineCharge {
    /// Guard of a message with a charge; `None` where memory is not accounted.
    pub fn new(message: &SharedMessage) -> Option<Self> {
        message.charge()?;
        Some(Self::of(message.clone()))
    }

    /// Guard of any message, also of one without a charge.
    pub fn of(message: SharedMessage) -> Self {
        if let Some(charge) = message.charge() {
            charge.begin_offline();
            charge.account.begin_delivery();
        }
        Self(message)
    }

    /// Message of the guard.
    pub fn message(&self) -> &SharedMessage {
        &self.0
    }
}

impl Clone for OfflineCharge {
    fn clone(&self) -> Self {
        Self::of(self.0.clone())
    }
}

impl Drop for OfflineCharge {
    fn drop(&mut self) {
        if let Some(charge) = self.0.charge() {
            charge.end_offline();
            charge.account.end_delivery();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;

    use super::*;

    /// Bytes online, and offline.
    #[derive(Debug, Default)]
    struct StreamTotals(Mutex<(i64, i64)>, AtomicUsize);

    impl StreamTotals {
        fn move_bytes(&self, used: i64, resting: i64) {
            let mut totals = self.0.lock().expect("no panic");
            *totals = (totals.0 + used, totals.1 + resting);
        }
    }

    impl MemoryAccount for StreamTotals {
        fn move_offline(&self, bytes: usize) {
            self.move_bytes(-(bytes as i64), bytes as i64);
        }

        fn move_online(&self, bytes: usize) {
            self.move_bytes(bytes as i64, -(bytes as i64));
        }

        fn release(&self, bytes: usize) {
            self.move_bytes(-(bytes as i64), 0);
        }

        fn begin_delivery(&self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }

        fn end_delivery(&self) {
            self.1.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn charged(totals: &Arc<StreamTotals>) -> SharedMessage {
        let topic = TopicName::parse("t").expect("a topic name");
        let mut message = Message::new(topic, Bytes::new(), QoS::AtLeastOnce, false);
        totals.move_bytes(100, 0);
        message.set_charge(MemoryCharge::new(totals.clone(), 100));
        SharedMessage::new(message)
    }

    #[test]
    fn a_message_is_charged_once_until_its_last_holder_is_dropped() {
        let totals = Arc::new(StreamTotals::default());
        let message = charged(&totals);
        let mut deliveries = vec![Delivery::of(message.clone()), Delivery::of(message)];
        assert_eq!(*totals.0.lock().unwrap(), (100, 0));
        deliveries.pop();
        assert_eq!(*totals.0.lock().unwrap(), (100, 0));
        deliveries.pop();
        assert_eq!(*totals.0.lock().unwrap(), (0, 0));
    }

    #[test]
    fn a_message_is_offline_while_any_holder_is_offline() {
        let totals = Arc::new(StreamTotals::default());
        let message = charged(&totals);
        let (mut first, mut second) = (Delivery::of(message.clone()), Delivery::of(message.clone()));
        first.charge_offline();
        first.charge_offline();
        second.charge_offline();
        let copy = first.clone();
        message.begin_offline();
        assert_eq!(totals.1.load(Ordering::Relaxed), 3, "however many share a message, each waits");
        drop((first, second));
        message.end_offline();
        assert_eq!(*totals.0.lock().unwrap(), (0, 100));
        drop(copy);
        assert_eq!(totals.1.load(Ordering::Relaxed), 0);
        assert_eq!(*totals.0.lock().unwrap(), (100, 0));
        // The message is released in full, also by an offline holder.
        message.begin_offline();
        drop(message);
        assert_eq!(*totals.0.lock().unwrap(), (0, 0));
    }
}
