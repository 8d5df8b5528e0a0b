//! How much deliveries weigh, and how much may be held.

use braid_proto::message::{Delivery, Message};
use braid_proto::packet::{MessageProperties, QoS};
use braid_proto::stream::Priority;
use braid_proto::topic::TopicName;

/// What a delivery costs beside its texts and payload, about.
const DELIVERY_OVERHEAD: usize = 256;

/// What a User Property costs beside its texts, about.
const PROPERTY_OVERHEAD: usize = 64;

/// Bytes of a message from which on it is a large one: above, our client too gives it a stream of its own.
const LARGE: usize = 256 << 10;

/// How much is held somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    /// How many of the messages are of QoS 0.
    pub(crate) qos0: usize,
    /// And how many of the bytes.
    pub(crate) qos0_bytes: usize,
    /// How many of the bytes are in large messages.
    pub(crate) large_bytes: usize,
    /// And of those of QoS 0.
    pub(crate) qos0_large_bytes: usize,
    /// How many of the bytes are not in the heap: in a spool, or in the store alone.
    pub(crate) elsewhere_bytes: usize,
    /// And of those of QoS 0.
    pub(crate) qos0_elsewhere_bytes: usize,
}

impl Load {
    pub(crate) fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.qos0 += more.qos0;
        self.qos0_bytes = self.qos0_bytes.saturating_add(more.qos0_bytes);
        self.large_bytes = self.large_bytes.saturating_add(more.large_bytes);
        self.qos0_large_bytes = self.qos0_large_bytes.saturating_add(more.qos0_large_bytes);
        self.elsewhere_bytes = self.elsewhere_bytes.saturating_add(more.elsewhere_bytes);
        self.qos0_elsewhere_bytes = self.qos0_elsewhere_bytes.saturating_add(more.qos0_elsewhere_bytes);
    }

    pub(crate) fn subtract(&mut self, less: Self) {
        self.messages = self.messages.saturating_sub(less.messages);
        self.bytes = self.bytes.saturating_sub(less.bytes);
        self.qos0 = self.qos0.saturating_sub(less.qos0);
        self.qos0_bytes = self.qos0_bytes.saturating_sub(less.qos0_bytes);
        self.large_bytes = self.large_bytes.saturating_sub(less.large_bytes);
        self.qos0_large_bytes = self.qos0_large_bytes.saturating_sub(less.qos0_large_bytes);
        self.elsewhere_bytes = self.elsewhere_bytes.saturating_sub(less.elsewhere_bytes);
        self.qos0_elsewhere_bytes = self.qos0_elsewhere_bytes.saturating_sub(less.qos0_elsewhere_bytes);
    }

    /// What is to be acknowledged.
    pub(crate) fn beside_qos0(self) -> Self {
        Self {
            messages: self.messages.saturating_sub(self.qos0),
            bytes: self.bytes.saturating_sub(self.qos0_bytes),
            large_bytes: self.large_bytes.saturating_sub(self.qos0_large_bytes),
            elsewhere_bytes: self.elsewhere_bytes.saturating_sub(self.qos0_elsewhere_bytes),
            ..Self::default()
        }
    }

    fn of_qos(self, qos: QoS) -> Self {
        match qos {
            QoS::AtMostOnce => Self {
                qos0: self.messages,
                qos0_bytes: self.bytes,
                qos0_large_bytes: self.large_bytes,
                qos0_elsewhere_bytes: self.elsewhere_bytes,
                ..self
            },
            _ => self,
        }
    }

    /// Bytes in the heap.
    pub(crate) fn heap_bytes(self) -> usize {
        self.bytes.saturating_sub(self.elsewhere_bytes)
    }

    /// Whether `more`, one message, may be held beside this.
    pub(crate) fn admits(self, more: Self, capacity: Capacity) -> bool {
        let fits = match more.large_bytes {
            _ if self.messages == 0 => true,
            0 => self.weight(capacity).saturating_add(more.bytes) <= capacity.bytes,
            // However large it is: nobody could ever get it otherwise.
            _ if self.large_bytes == 0 => self.bytes <= capacity.bytes,
            large => {
                self.large_bytes.saturating_add(large) <= capacity.of_large()
                    && self.bytes.saturating_add(large) <= capacity.bytes
            }
        };
        fits && self.messages < capacity.messages
    }

    /// Whether it is more than may be held; one message may be of any size.
    pub(crate) fn exceeds(self, capacity: Capacity) -> bool {
        self.messages > 1 && (self.messages > capacity.messages || self.weight(capacity) > capacity.bytes)
    }

    /// What it takes of the bytes of a capacity: one large message may be larger than all of it, and leaves room for
    /// small ones nevertheless.
    pub(crate) fn weight(self, capacity: Capacity) -> usize {
        let small = self.bytes.saturating_sub(self.large_bytes);
        small.saturating_add(self.large_bytes.min(capacity.of_large()))
    }
}

/// How much a mailbox holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Capacity {
    /// What is urgent may use a reserve: bulk that fills a mailbox must not keep an alarm out.
    pub(crate) fn reserve(self, priority: Priority) -> Self {
        if priority <= Priority::DEFAULT {
            return self;
        }
        Self {
            messages: self.messages.saturating_add(self.messages / 4),
            bytes: self.bytes.saturating_add(self.bytes / 4),
        }
    }

    /// What large messages may fill. The rest is for small ones, which one recording that waits must not keep out.
    fn of_large(self) -> usize {
        self.bytes / 4 * 3
    }

    /// From here on publishers are slowed down.
    pub(crate) fn congestion(self) -> Self {
        Self { messages: self.messages / 4, bytes: self.bytes / 4 }
    }
}

/// Of several streams each may hold so many times what it leaves free: however many are not read, the next one finds
/// room.
const SHARE: usize = 8;

/// Whether a stream that holds `own` of `all` leaves enough for the others. [BQ-55]
pub(crate) fn is_fair_share(own: Load, all: Load, capacity: Capacity) -> bool {
    let free = capacity.bytes.saturating_sub(all.weight(capacity));
    own.messages <= 1
        || own.weight(capacity) <= free.saturating_mul(SHARE)
            && own.messages <= (capacity.messages + 1).saturating_sub(all.messages).saturating_mul(SHARE)
}

/// One delivery, as a load.
pub(crate) fn load_of(delivery: &Delivery) -> Load {
    load_of_qos(&delivery.message, delivery.qos)
}

/// The same of a message that is delivered with this QoS.
pub(crate) fn load_of_qos(message: &Message, qos: QoS) -> Load {
    load_of_message(message).of_qos(qos)
}

/// One delivery of a message that is in the store alone and would cost so many bytes in memory.
pub(crate) fn load_of_stored(bytes: usize, qos: QoS) -> Load {
    of_bytes(bytes, bytes).of_qos(qos)
}

pub(crate) fn load_of_message(message: &Message) -> Load {
    of_bytes(message_cost(message), spooled_len(message))
}

fn of_bytes(bytes: usize, elsewhere_bytes: usize) -> Load {
    let large_bytes = if bytes > LARGE { bytes } else { 0 };
    Load { messages: 1, bytes, large_bytes, elsewhere_bytes, ..Load::default() }
}

/// What a message counts for in a queue, whether in memory or in a spool, about.
pub(crate) fn message_cost(message: &Message) -> usize {
    cost(&message.topic, message.properties.as_deref(), message.payload.len())
}

/// The same of a message that may not be in memory.
pub(crate) fn cost(topic: &TopicName, properties: Option<&MessageProperties>, payload: usize) -> usize {
    // What a damaged store says of a payload that nobody has read may be anything.
    (DELIVERY_OVERHEAD + topic.as_str().len() + properties.map_or(0, properties_cost)).saturating_add(payload)
}

/// The memory that a message keeps, about: what is in a spool is in no heap.
pub(crate) fn heap_cost(message: &Message) -> usize {
    message_cost(message) - spooled_len(message)
}

fn spooled_len(message: &Message) -> usize {
    if message.is_spooled() { message.payload.len() } else { 0 }
}

fn properties_cost(properties: &MessageProperties) -> usize {
    let user = properties.user.iter().map(|(name, value)| PROPERTY_OVERHEAD + name.len() + value.len());
    let content_type = properties.content_type.as_ref().map_or(0, |text| text.len());
    let response_topic = properties.response_topic.as_ref().map_or(0, |topic| topic.as_str().len());
    let correlation_data = properties.correlation_data.as_ref().map_or(0, bytes::Bytes::len);
    size_of::<MessageProperties>() + content_type + response_topic + correlation_data + user.sum::<usize>()
}
