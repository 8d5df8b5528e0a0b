//! Record of a session, as the stream of sessions has it: JSON with short names.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use braid_proto::message::SubscriptionIds;
use braid_proto::packet::{PacketId, QoS, Will};
use braid_proto::session::{RetainHandling, SessionExpiry};
use braid_proto::stream::Priority;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_store::{Lsn, QueueEntry, StoredDelivery, StoredSubscription};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::message::Properties;
use crate::progress::Checkpoint;

/// Record of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Node that has the session; `None`: no node.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    /// Process of that node; of a session that no node has had yet, the mark of its import.
    #[serde(rename = "r", default, skip_serializing_if = "String::is_empty")]
    pub(crate) run: String,
    /// Identity of the client in the broker's encoding.
    #[serde(rename = "u", default, skip_serializing_if = "Option::is_none")]
    pub(crate) identity: Option<String>,
    /// Session Expiry Interval in seconds.
    #[serde(rename = "e", default, skip_serializing_if = "is_zero")]
    pub(crate) expiry: u32,
    /// Milliseconds since 1970 at which its connection ended; `None` while it has one.
    #[serde(rename = "a", default, skip_serializing_if = "Option::is_none")]
    pub(crate) parked_at: Option<u64>,
    /// Subscriptions.
    #[serde(rename = "f", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) subscriptions: Vec<RecordedSubscription>,
    /// Will.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub(crate) will: Option<RecordedWill>,
    /// Progress in each shard, by its place.
    #[serde(rename = "p", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) progress: Vec<Checkpoint>,
    /// Deliveries that are in flight, in the order in which they are sent again, then those that are no part of the
    /// log.
    #[serde(rename = "q", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) queue: Vec<RecordedDelivery>,
    /// Open exchanges of QoS 2 of the client: packet identifier, number, place of the shard.
    #[serde(rename = "x", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) received: Vec<(u16, u16, usize)>,
    /// The node that released it has no write under way.
    #[serde(rename = "c", default, skip_serializing_if = "is_false")]
    pub(crate) is_clean: bool,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// Subscription of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedSubscription {
    #[serde(rename = "f")]
    filter: String,
    /// QoS, and above it No Local 4, Retain As Published 8, Retain Handling from 16 on: the bits of SUBSCRIBE.
    #[serde(rename = "o")]
    options: u8,
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    id: Option<NonZeroU32>,
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    priority: Option<u16>,
    /// Position at which it began, in each shard.
    #[serde(rename = "s", default, skip_serializing_if = "Vec::is_empty")]
    since: Vec<u64>,
}

impl RecordedSubscription {
    pub(crate) fn of(filter: &TopicFilter, subscription: &StoredSubscription, since: &[u64]) -> Self {
        let StoredSubscription { qos, no_local, retain_as_published, retain_handling, id, priority } =
            *subscription;
        let options = qos as u8
            | u8::from(no_local) << 2
            | u8::from(retain_as_published) << 3
            | (retain_handling as u8) << 4;
        let priority = priority.map(Priority::value);
        Self { filter: filter.as_str().to_owned(), options, id, priority, since: since.to_vec() }
    }

    /// `None`: it is of no subscription.
    pub(crate) fn read(&self) -> Option<(TopicFilter, StoredSubscription, Arc<[u64]>)> {
        let subscription = StoredSubscription {
            qos: QoS::from_bits(self.options & 3)?,
            no_local: self.options & 4 != 0,
            retain_as_published: self.options & 8 != 0,
            retain_handling: match self.options >> 4 {
                0 => RetainHandling::SendAlways,
                1 => RetainHandling::SendIfNew,
                2 => RetainHandling::DoNotSend,
                _ => return None,
            },
            id: self.id,
            priority: self.priority.map(Priority::new),
        };
        Some((TopicFilter::parse(&self.filter).ok()?, subscription, self.since.as_slice().into()))
    }
}

/// Will of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedWill {
    #[serde(rename = "t")]
    topic: String,
    /// Base64.
    #[serde(rename = "b")]
    payload: String,
    #[serde(rename = "q")]
    qos: u8,
    #[serde(rename = "r", default, skip_serializing_if = "is_false")]
    retain: bool,
    /// Will Delay Interval in seconds.
    #[serde(rename = "d", default, skip_serializing_if = "is_zero")]
    pub(crate) delay: u32,
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    properties: Option<Properties>,
}

impl RecordedWill {
    pub(crate) fn of(will: &Will) -> Self {
        Self {
            topic: will.topic.as_str().to_owned(),
            payload: STANDARD_NO_PAD.encode(&will.payload),
            qos: will.qos as u8,
            retain: will.retain,
            delay: will.delay,
            properties: will.properties.as_deref().map(Properties::of),
        }
    }

    /// `None`: it is of no Will.
    pub(crate) fn read(&self) -> Option<Will> {
        Some(Will {
            topic: TopicName::parse(&self.topic).ok()?,
            payload: Bytes::from(STANDARD_NO_PAD.decode(&self.payload).ok()?),
            qos: QoS::from_bits(self.qos)?,
            retain: self.retain,
            delay: self.delay,
            properties: match self.properties.clone() {
                Some(properties) => Some(Box::new(properties.read().ok()?)),
                None => None,
            },
        })
    }
}

/// Delivery of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedDelivery {
    /// Number of the delivery: that of its message in the log, or one of the node.
    #[serde(rename = "l")]
    lsn: u64,
    /// Number of the message, if it is another one; 0 for an exchange whose PUBREC has come.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    message: Option<u64>,
    /// Packet Identifier of one that is in flight.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    packet_id: Option<u16>,
    #[serde(rename = "q", default, skip_serializing_if = "is_zero_u8")]
    qos: u8,
    #[serde(rename = "r", default, skip_serializing_if = "is_false")]
    retain: bool,
    #[serde(rename = "s", default, skip_serializing_if = "Vec::is_empty")]
    subscription_ids: Vec<NonZeroU32>,
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    priority: Option<u16>,
}

fn is_zero_u8(value: &u8) -> bool {
    *value == 0
}

impl RecordedDelivery {
    pub(crate) fn of(lsn: Lsn, entry: &QueueEntry) -> Self {
        let bare = |packet_id: Option<PacketId>| Self {
            lsn: lsn.value(),
            message: Some(0),
            packet_id: packet_id.map(PacketId::value),
            qos: 0,
            retain: false,
            subscription_ids: Vec::new(),
            priority: None,
        };
        let of = |packet_id, delivery: &StoredDelivery| Self {
            message: (delivery.message != lsn).then(|| delivery.message.value()),
            qos: delivery.qos as u8,
            retain: delivery.retain,
            subscription_ids: delivery.subscription_ids.as_slice().to_vec(),
            priority: Some(delivery.priority).filter(|one| *one != Priority::DEFAULT).map(Priority::value),
            ..bare(packet_id)
        };
        match entry {
            QueueEntry::Waiting(delivery) => of(None, delivery),
            QueueEntry::Sent(packet_id, delivery) => of(Some(*packet_id), delivery),
            QueueEntry::Released(packet_id) => bare(Some(*packet_id)),
        }
    }

    /// `None`: it is of no delivery.
    pub(crate) fn read(&self) -> Option<(Lsn, QueueEntry)> {
        let lsn = Lsn::new(self.lsn);
        let message = match self.message {
            Some(0) => return Some((lsn, QueueEntry::Released(PacketId::new(self.packet_id?)?))),
            Some(message) => Lsn::new(message),
            None => lsn,
        };
        let mut subscription_ids = SubscriptionIds::None;
        self.subscription_ids.iter().for_each(|id| subscription_ids.push(*id));
        let delivery = StoredDelivery {
            retain: self.retain,
            subscription_ids,
            priority: self.priority.map_or(Priority::DEFAULT, Priority::new),
            ..StoredDelivery::new(message, QoS::from_bits(self.qos)?)
        };
        Some((
            lsn,
            match self.packet_id.and_then(PacketId::new) {
                Some(packet_id) => QueueEntry::Sent(packet_id, delivery),
                None => QueueEntry::Waiting(delivery),
            },
        ))
    }
}

impl Record {
    /// Reads a record. `None`: the session has ended, or this is none.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok().filter(|record| *record != Self::default())
    }

    /// The JSON. Strings and numbers always have one.
    pub(crate) fn write(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// Position up to which the session has got, or may have got, messages, in each shard.
    pub(crate) fn positions(&self, layout: &Layout) -> Vec<u64> {
        let of =
            |shard: &Checkpoint| shard.beyond.last().map_or(shard.done, |(_, last)| shard.done.max(*last));
        let mut positions: Vec<_> = self.progress.iter().map(of).collect();
        positions.resize(layout.parts(), 0);
        // Those whose message is not needed any more count too.
        let queue = self.queue.iter().filter_map(RecordedDelivery::read).map(|(lsn, _)| lsn);
        for (index, sequence) in self.messages().chain(queue).filter_map(|lsn| layout.position(lsn)) {
            positions[index] = positions[index].max(sequence);
        }
        positions
    }

    /// Whether this process of a node has the session.
    pub(crate) fn is_of(&self, node: &str, run: &str) -> bool {
        self.owner.as_deref() == Some(node) && self.run == run
    }

    /// Numbers of the messages that its queue refers to.
    pub(crate) fn messages(&self) -> impl Iterator<Item = Lsn> {
        let queue = self.queue.iter().filter_map(RecordedDelivery::read);
        queue.filter_map(|(_, entry)| entry.message())
    }

    /// Session Expiry Interval.
    pub(crate) fn expiry(&self) -> SessionExpiry {
        SessionExpiry::from_secs(self.expiry)
    }

    /// End of its connection.
    pub(crate) fn parked_at(&self) -> Option<SystemTime> {
        self.parked_at.map(|millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis))
    }
}

/// Milliseconds since 1970.
pub(crate) fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
