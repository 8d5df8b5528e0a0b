use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use braid_proto::decoder::{Spool, SpoolError};
use braid_proto::message::{Delivery, Message, SubscriptionIds};
use braid_proto::packet::{MessageProperties, PacketId, QoS};
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::{TopicFilter, TopicName};
use bytes::Bytes;

use crate::identity::Lsn;

/// One moment on the clock of the process and on that of the world: what leads from times that live messages
/// have to times that outlive the process, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// On the clock that never goes back.
    pub instant: Instant,
    /// On the clock that people set.
    pub system: SystemTime,
}

/// An Application Message with a time of expiry that outlives the process. Cloning shares everything.
#[derive(Clone)]
pub struct StoredMessage {
    /// Its own time of expiry says nothing here: it may be of another process.
    message: Arc<Message>,
    expires_at: Option<SystemTime>,
}

impl StoredMessage {
    /// The live message at `now`, shared, not copied.
    pub fn of(message: Arc<Message>, now: Now) -> Self {
        // A time beyond the calendar never comes.
        let expires_at = message
            .expires_at
            .and_then(|at| now.system.checked_add(at.saturating_duration_since(now.instant)));
        Self { message, expires_at }
    }

    /// A message from its parts, as a store reads them: nothing of it is in a spool.
    pub fn from_parts(
        topic: TopicName,
        payload: Bytes,
        qos: QoS,
        retain: bool,
        properties: Option<Box<MessageProperties>>,
        expires_at: Option<SystemTime>,
    ) -> Self {
        let mut message = Message::new(topic, payload, qos, retain);
        message.properties = properties;
        Self { message: Arc::new(message), expires_at }
    }

    /// The same with this payload, which is in a spool or not.
    pub(crate) fn with_payload(self, payload: Bytes, is_spooled: bool) -> Self {
        Self { message: Arc::new(self.like(payload).with_spooled(is_spooled)), expires_at: self.expires_at }
    }

    /// The same with a copy of this payload; in the spool, if it is large enough for that. Without room there it is in the
    /// heap, and says so: it has been acknowledged.
    pub(crate) fn with_copy(self, payload: &[u8], spool: Option<&dyn Spool>) -> Self {
        let spool = spool.filter(|spool| payload.len() > spool.threshold());
        match spool.and_then(|spool| spooled(spool, payload).ok()) {
            Some(spooled) => self.with_payload(spooled, true),
            None => self.with_payload(Bytes::copy_from_slice(payload), false),
        }
    }

    /// The same message with this payload and no time of expiry.
    fn like(&self, payload: Bytes) -> Message {
        let mut message = Message::new(self.topic().clone(), payload, self.qos(), self.retain());
        message.properties.clone_from(&self.message.properties);
        message
    }

    /// The live message at `now`; shared when it never expires. One whose time has passed is expired at
    /// `now`, and none has longer to live than its Message Expiry Interval: a clock that was set back does
    /// not prolong it further.
    pub fn live(&self, now: Now) -> Arc<Message> {
        let Some(left) = self.time_left(now) else { return Arc::clone(&self.message) };
        let mut message = self.like(self.payload().clone()).with_spooled(self.message.is_spooled());
        message.expires_at = Some(now.instant.checked_add(left).unwrap_or(now.instant));
        Arc::new(message)
    }

    /// How long it has to live at `now`, as [`live`](Self::live) says it; `None` when it never expires.
    pub fn time_left(&self, now: Now) -> Option<Duration> {
        let left = self.expires_at?.duration_since(now.system).unwrap_or(Duration::ZERO);
        let interval = self.properties().and_then(|properties| properties.message_expiry);
        Some(interval.map_or(left, |seconds| left.min(Duration::from_secs(seconds.into()))))
    }

    /// Where to.
    pub fn topic(&self) -> &TopicName {
        &self.message.topic
    }

    /// What.
    pub fn payload(&self) -> &Bytes {
        &self.message.payload
    }

    /// As published.
    pub fn qos(&self) -> QoS {
        self.message.qos
    }

    /// As published.
    pub fn retain(&self) -> bool {
        self.message.retain
    }

    /// `None` when it has none.
    pub fn properties(&self) -> Option<&MessageProperties> {
        self.message.properties.as_deref()
    }

    /// When the Message Expiry Interval has passed.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.expires_at
    }
}

fn spooled(spool: &dyn Spool, payload: &[u8]) -> Result<Bytes, SpoolError> {
    let mut kept = spool.keep(payload.len() as u64)?;
    kept.append(payload)?;
    kept.finish()
}

impl PartialEq for StoredMessage {
    fn eq(&self, other: &Self) -> bool {
        self.topic() == other.topic()
            && self.payload() == other.payload()
            && self.qos() == other.qos()
            && self.retain() == other.retain()
            && self.properties() == other.properties()
            && self.expires_at() == other.expires_at()
    }
}

impl Eq for StoredMessage {}

impl fmt::Debug for StoredMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredMessage")
            .field("topic", self.topic())
            .field("payload", self.payload())
            .field("qos", &self.qos())
            .field("retain", &self.retain())
            .field("properties", &self.properties())
            .field("expires_at", &self.expires_at())
            .finish()
    }
}

/// One message for one session: a [`Delivery`] that names its message instead of holding it. It has no stream:
/// that ends with its connection, and what is delivered later goes on the control stream (`[BQ-42]`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDelivery {
    /// Which message.
    pub message: Lsn,
    /// The effective QoS.
    pub qos: QoS,
    /// The RETAIN flag that the receiver sees.
    pub retain: bool,
    /// The identifiers of the subscriptions that matched.
    pub subscription_ids: SubscriptionIds,
    /// Its place in the send order.
    pub priority: Priority,
    /// The shared subscription it came by: another member gets it when the session ends.
    pub shared: Option<Arc<TopicFilter>>,
    /// Since when it waits for the session; `None` where nobody asks.
    pub waits_since: Option<SystemTime>,
}

impl StoredDelivery {
    /// A delivery without RETAIN, identifiers, share and time, and with the default priority.
    pub const fn new(message: Lsn, qos: QoS) -> Self {
        Self {
            message,
            qos,
            retain: false,
            subscription_ids: SubscriptionIds::None,
            priority: Priority::DEFAULT,
            shared: None,
            waits_since: None,
        }
    }

    /// The delivery of the message that is stored under `message`. It does not say itself since when it waits on the
    /// clock of the world.
    pub fn of(delivery: &Delivery, message: Lsn, waits_since: Option<SystemTime>) -> Self {
        Self {
            message,
            qos: delivery.qos,
            retain: delivery.retain,
            subscription_ids: delivery.subscription_ids.clone(),
            priority: delivery.priority,
            shared: delivery.shared.clone(),
            waits_since,
        }
    }

    /// The live delivery of `message`, which must be the one that is named, on the control stream.
    pub fn live(&self, message: Arc<Message>) -> Delivery {
        Delivery {
            message,
            qos: self.qos,
            retain: self.retain,
            subscription_ids: self.subscription_ids.clone(),
            stream: StreamKey::CONTROL, // [BQ-42]
            priority: self.priority,
            shared: self.shared.clone(),
            queue_lsn: None,
            waits_since: None,
            offline_charge: None,
        }
    }

    /// For how long it has waited at `now`: not at all if that is not known, or if the clock was set back to before.
    pub fn waited(&self, now: SystemTime) -> Duration {
        let waited = self.waits_since.and_then(|since| now.duration_since(since).ok());
        waited.unwrap_or(Duration::ZERO)
    }
}

/// How far one message is on its way to one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEntry {
    /// Not sent.
    Waiting(StoredDelivery),
    /// PUBLISH was sent with this identifier: PUBACK or PUBREC is to come.
    Sent(PacketId, StoredDelivery),
    /// PUBREC came: PUBCOMP is to come. The message is gone.
    Released(PacketId),
}

impl QueueEntry {
    /// The message it refers to.
    pub const fn message(&self) -> Option<Lsn> {
        match self {
            Self::Waiting(delivery) | Self::Sent(_, delivery) => Some(delivery.message),
            Self::Released(_) => None,
        }
    }
}
