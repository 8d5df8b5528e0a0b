//! Messages and deliveries as they are stored, and messages whose payload is read on demand.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use braid_proto::decoder::{Spool, SpoolError};
use braid_proto::message::{Delivery, Message, SharedMessage, SubscriptionIds};
use braid_proto::packet::{MessageProperties, PacketId, Payload, QoS, Will};
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::{TopicFilter, TopicName};
use bytes::Bytes;

use crate::error::StoreError;
use crate::ids::Lsn;

/// One instant on the monotonic clock and on the wall clock: converts the times of live messages to times that outlive
/// the process, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic clock.
    pub instant: Instant,
    /// Wall clock.
    pub system: SystemTime,
}

/// An Application Message with an expiry time that outlives the process. Cloning shares everything.
#[derive(Clone)]
pub struct StoredMessage {
    /// Its own expiry time is not used: it may be of another process's clock.
    message: SharedMessage,
    expires_at: Option<SystemTime>,
    publisher: Option<Arc<str>>,
}

impl StoredMessage {
    /// Stores a live message at `now`: shared, not copied.
    pub fn of(message: SharedMessage, now: Now) -> Self {
        // A time beyond the range of `SystemTime` never comes.
        let expires_at = message
            .expires_at
            .and_then(|at| now.system.checked_add(at.saturating_duration_since(now.instant)));
        Self { message, expires_at, publisher: None }
    }

    /// A message from its fields, as a store reads them, with a payload that is not spooled.
    pub fn from_parts(
        topic: TopicName,
        payload: impl Into<Payload>,
        qos: QoS,
        retain: bool,
        properties: Option<Box<MessageProperties>>,
        expires_at: Option<SystemTime>,
    ) -> Self {
        let mut message = Message::new(topic, payload, qos, retain);
        message.properties = properties;
        Self { message: SharedMessage::new(message), expires_at, publisher: None }
    }

    /// Adds the publisher, for a message that is retained.
    #[must_use]
    pub fn with_publisher(self, publisher: Option<Arc<str>>) -> Self {
        Self { publisher, ..self }
    }

    /// The message of a Will, without its delay.
    pub(crate) fn of_will(will: &Will) -> Self {
        let Will { topic, payload, qos, retain, properties, .. } = will;
        Self::from_parts(topic.clone(), payload.clone(), *qos, *retain, properties.clone(), None)
    }

    /// The Will with this message and delay in seconds.
    pub(crate) fn to_will(&self, delay: u32) -> Will {
        let Message { topic, payload, qos, retain, properties, .. } = &*self.message;
        let (topic, payload, properties) = (topic.clone(), payload.to_bytes(), properties.clone());
        Will { topic, payload, qos: *qos, retain: *retain, delay, properties }
    }

    /// Replaces the payload by one that is spooled or in the heap.
    pub(crate) fn with_payload(self, payload: impl Into<Payload>, is_spooled: bool) -> Self {
        Self { message: SharedMessage::new(self.like(payload).with_spooled(is_spooled)), ..self }
    }

    /// Replaces the payload by a copy of this one: in the spool if it is above the spool's threshold. If the spool is
    /// full the copy is in the heap, since the message has been acknowledged.
    pub(crate) fn with_copy(self, payload: &[u8], spool: Option<&dyn Spool>) -> Self {
        let spool = spool.filter(|spool| payload.len() > spool.threshold());
        match spool.and_then(|spool| spool_payload(spool, payload).ok()) {
            Some(spooled) => self.with_payload(spooled, true),
            None => self.with_payload(Payload::copy_of(payload), false),
        }
    }

    /// A message with this payload, the other fields of this one, and no expiry time.
    fn like(&self, payload: impl Into<Payload>) -> Message {
        let mut message = Message::new(self.topic().clone(), payload, self.qos(), self.retain());
        message.properties.clone_from(&self.message.properties);
        message
    }

    /// The live message at `now`; shared when it never expires. One whose time has passed expires at `now`, and none
    /// lives longer than its Message Expiry Interval, even if the wall clock was set back.
    pub fn live(&self, now: Now) -> SharedMessage {
        let Some(left) = self.time_left(now) else { return SharedMessage::clone(&self.message) };
        let mut message = self.like(self.payload().clone()).with_spooled(self.message.is_spooled());
        message.expires_at = Some(now.instant.checked_add(left).unwrap_or(now.instant));
        SharedMessage::new(message)
    }

    /// Time to live at `now`, limited as in [`live`](Self::live); `None` when it never expires.
    pub fn time_left(&self, now: Now) -> Option<Duration> {
        let left = self.expires_at?.duration_since(now.system).unwrap_or(Duration::ZERO);
        let interval = self.properties().and_then(|properties| properties.message_expiry);
        Some(interval.map_or(left, |seconds| left.min(Duration::from_secs(seconds.into()))))
    }

    /// Fields that a store keeps.
    fn fields(&self) -> Fields<'_> {
        let message = &self.message;
        let (properties, publisher) = (self.properties(), self.publisher());
        (
            (&message.topic, &message.payload, message.qos, message.retain),
            properties,
            self.expires_at,
            publisher.map(|publisher| &**publisher),
        )
    }

    /// Topic Name.
    pub fn topic(&self) -> &TopicName {
        &self.message.topic
    }

    /// Application payload.
    pub fn payload(&self) -> &Payload {
        &self.message.payload
    }

    /// QoS of the PUBLISH.
    pub fn qos(&self) -> QoS {
        self.message.qos
    }

    /// RETAIN flag of the PUBLISH.
    pub fn retain(&self) -> bool {
        self.message.retain
    }

    /// Properties of the PUBLISH; `None` without any.
    pub fn properties(&self) -> Option<&MessageProperties> {
        self.message.properties.as_deref()
    }

    /// Publisher of a retained message, in the caller's encoding; `None` if it is not known, as in rows that were
    /// written before publishers were.
    pub const fn publisher(&self) -> Option<&Arc<str>> {
        self.publisher.as_ref()
    }

    /// End of the Message Expiry Interval; `None` when it never expires.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.expires_at
    }
}

fn spool_payload(spool: &dyn Spool, payload: &[u8]) -> Result<Bytes, SpoolError> {
    let mut kept = spool.begin_reserved(payload.len() as u64)?;
    kept.append(payload)?;
    kept.finish()
}

type Fields<'a> = (
    (&'a TopicName, &'a Payload, QoS, bool),
    Option<&'a MessageProperties>,
    Option<SystemTime>,
    Option<&'a str>,
);

impl PartialEq for StoredMessage {
    fn eq(&self, other: &Self) -> bool {
        self.fields() == other.fields()
    }
}

impl Eq for StoredMessage {}

impl fmt::Debug for StoredMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoredMessage").field(&self.fields()).finish()
    }
}

/// One message for one session: a [`Delivery`] that references its message instead of holding it. It has no stream:
/// streams end with their connection, and later deliveries use the control stream (`[BQ-42]`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDelivery {
    /// The referenced message.
    pub message: Lsn,
    /// The effective QoS.
    pub qos: QoS,
    /// RETAIN flag of the delivery.
    pub retain: bool,
    /// Subscription Identifiers of the subscriptions that matched.
    pub subscription_ids: SubscriptionIds,
    /// Send priority.
    pub priority: Priority,
    /// The shared subscription that it came by: when the session ends, another member receives it.
    pub shared: Option<Arc<TopicFilter>>,
    /// Time at which it was queued; `None` where queues have no limit by age.
    pub enqueued_at: Option<SystemTime>,
}

impl StoredDelivery {
    /// A delivery without RETAIN, identifiers, share and queueing time, and with the default priority.
    pub const fn new(message: Lsn, qos: QoS) -> Self {
        Self {
            message,
            qos,
            retain: false,
            subscription_ids: SubscriptionIds::None,
            priority: Priority::DEFAULT,
            shared: None,
            enqueued_at: None,
        }
    }

    /// Stores a live delivery of the message that is stored under `message`. `enqueued_at` is the wall clock's time of
    /// its queueing, which the live delivery does not have.
    pub fn of(delivery: &Delivery, message: Lsn, enqueued_at: Option<SystemTime>) -> Self {
        Self {
            message,
            qos: delivery.qos,
            retain: delivery.retain,
            subscription_ids: delivery.subscription_ids.clone(),
            priority: delivery.priority,
            shared: delivery.shared.clone(),
            enqueued_at,
        }
    }

    /// The live delivery on the control stream. `message` must be the referenced one.
    pub fn live(&self, message: SharedMessage) -> Delivery {
        Delivery {
            message,
            qos: self.qos,
            retain: self.retain,
            subscription_ids: self.subscription_ids.clone(),
            stream: StreamKey::CONTROL, // [BQ-42]
            priority: self.priority,
            shared: self.shared.clone(),
            queue_lsn: None,
            enqueued_at: None,
            offline_charge: None,
        }
    }

    /// Time in the queue until `now`: zero if it is not known, or if the clock was set back.
    pub fn waited(&self, now: SystemTime) -> Duration {
        let waited = self.enqueued_at.and_then(|since| now.duration_since(since).ok());
        waited.unwrap_or(Duration::ZERO)
    }
}

/// State of one queued message of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEntry {
    /// Delivery that was not sent.
    Waiting(StoredDelivery),
    /// PUBLISH was sent with this identifier; PUBACK or PUBREC is outstanding.
    Sent(PacketId, StoredDelivery),
    /// PUBREC came; PUBCOMP is outstanding. The message is no longer referenced.
    Released(PacketId),
}

impl QueueEntry {
    /// The delivery, until it is released.
    pub const fn delivery(&self) -> Option<&StoredDelivery> {
        match self {
            Self::Waiting(delivery) | Self::Sent(_, delivery) => Some(delivery),
            Self::Released(_) => None,
        }
    }

    /// The message that it references.
    pub fn message(&self) -> Option<Lsn> {
        self.delivery().map(|delivery| delivery.message)
    }
}

/// A stored message whose payload is read only on demand.
pub struct LazyMessage<'a> {
    head: StoredMessage,
    /// Length of the payload in bytes, and its reader; `None` when the head has it.
    unread: Option<(usize, ReadPayload<'a>)>,
}

/// Adds the payload to a message without one.
pub(crate) type ReadPayload<'a> = &'a dyn Fn(StoredMessage) -> Result<StoredMessage, StoreError>;

impl<'a> LazyMessage<'a> {
    /// A message that is in memory.
    pub const fn of(message: StoredMessage) -> Self {
        Self { head: message, unread: None }
    }

    /// A message without its payload, the payload's length in bytes, and its reader.
    pub(crate) const fn unread(head: StoredMessage, length: usize, read: ReadPayload<'a>) -> Self {
        Self { head, unread: Some((length, read)) }
    }

    /// The message, whose payload may be missing here.
    pub const fn head(&self) -> &StoredMessage {
        &self.head
    }

    /// Length of the payload in bytes.
    pub fn payload_len(&self) -> usize {
        self.unread.map_or_else(|| self.head.payload().len(), |(length, _)| length)
    }

    /// Reads the message with its payload, as [`Store::messages_of`](crate::Store::messages_of) does, with the same
    /// errors.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Failed`].
    pub fn read(self) -> Result<StoredMessage, StoreError> {
        match self.unread {
            None => Ok(self.head),
            Some((_, read)) => read(self.head),
        }
    }
}

impl fmt::Debug for LazyMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyMessage")
            .field("topic", self.head.topic())
            .field("payload_len", &self.payload_len())
            .finish_non_exhaustive()
    }
}
