//! How much deliveries weigh, and how much may be held.

use std::time::Instant;

use braid_proto::message::{Delivery, Message};
use braid_proto::packet::{MessageProperties, QoS};
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::TopicName;

/// What a delivery costs beside its texts and payload, about.
const DELIVERY_OVERHEAD: usize = 256;

/// What a User Property costs beside its texts, about.
const PROPERTY_OVERHEAD: usize = 64;

/// Bytes of a message from which on it is a large one: above, our client too gives it a stream of its own.
const LARGE: usize = 256 << 10;

/// How much is held somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueUsage {
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

impl QueueUsage {
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
    pub(crate) fn admits(self, more: Self, capacity: QueueLimits) -> bool {
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
    pub(crate) fn exceeds(self, capacity: QueueLimits) -> bool {
        self.messages > 1 && (self.messages > capacity.messages || self.weight(capacity) > capacity.bytes)
    }

    /// What it takes of the bytes of a capacity: one large message may be larger than all of it, and leaves room for
    /// small ones nevertheless.
    pub(crate) fn weight(self, capacity: QueueLimits) -> usize {
        let small = self.bytes.saturating_sub(self.large_bytes);
        small.saturating_add(self.large_bytes.min(capacity.of_large()))
    }
}

/// How much a mailbox holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl QueueLimits {
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
pub(crate) fn is_fair_share(own: QueueUsage, all: QueueUsage, capacity: QueueLimits) -> bool {
    let free = capacity.bytes.saturating_sub(all.weight(capacity));
    own.messages <= 1
        || own.weight(capacity) <= free.saturating_mul(SHARE)
            && own.messages <= (capacity.messages + 1).saturating_sub(all.messages).saturating_mul(SHARE)
}

/// One delivery, as a load.
pub(crate) fn usage_of(delivery: &Delivery) -> QueueUsage {
    usage_of_qos(&delivery.message, delivery.qos)
}

/// The same of a message that is delivered with this QoS.
pub(crate) fn usage_of_qos(message: &Message, qos: QoS) -> QueueUsage {
    usage_of_message(message).of_qos(qos)
}

/// One delivery of a message that is in the store alone and would cost so many bytes in memory.
pub(crate) fn usage_of_stored(bytes: usize, qos: QoS) -> QueueUsage {
    of_bytes(bytes, bytes).of_qos(qos)
}

pub(crate) fn usage_of_message(message: &Message) -> QueueUsage {
    of_bytes(message_cost(message), spooled_len(message))
}

fn of_bytes(bytes: usize, elsewhere_bytes: usize) -> QueueUsage {
    let large_bytes = if bytes > LARGE { bytes } else { 0 };
    QueueUsage { messages: 1, bytes, large_bytes, elsewhere_bytes, ..QueueUsage::default() }
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

/// What waits for each stream. Empty where everything is for the control stream, as it always is without data
/// streams: that is the hot path, and needs no account. [BQ-55]
#[derive(Debug, Default)]
pub(crate) struct PerStreamUsage {
    /// In the order of the streams.
    rows: Vec<StreamUsage>,
    /// Since it was last copied.
    has_changed: bool,
}

#[derive(Clone, Copy, Debug)]
struct StreamUsage {
    stream: StreamKey,
    load: QueueUsage,
    /// When something of it was last sent, or it began to wait; `None` until somebody looked at the clock.
    progress_at: Option<Instant>,
}

impl PerStreamUsage {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self { rows: Vec::new(), has_changed: true };
    }

    /// Makes `copy`, which nobody else changes, say the same.
    pub(crate) fn copy_to(&mut self, copy: &mut Self) {
        if std::mem::take(&mut self.has_changed) {
            copy.rows.clone_from(&self.rows);
        }
    }

    fn find(&self, stream: StreamKey) -> Result<usize, usize> {
        self.rows.binary_search_by_key(&stream, |share| share.stream)
    }

    pub(crate) fn usage_of(&self, stream: StreamKey) -> QueueUsage {
        self.find(stream).map_or_else(|_| QueueUsage::default(), |at| self.rows[at].load)
    }

    /// When something was last sent on a stream that more waits for, or that began to wait; `None` if nothing waits
    /// for it.
    pub(crate) fn progress_of(&self, stream: StreamKey) -> Option<Option<Instant>> {
        self.find(stream).ok().map(|at| self.rows[at].progress_at)
    }

    pub(crate) fn add(&mut self, stream: StreamKey, load: QueueUsage) {
        if !stream.is_control() || !self.is_empty() {
            self.insert(stream, load);
        }
    }

    /// The same, for the control stream too.
    pub(crate) fn insert(&mut self, stream: StreamKey, load: QueueUsage) {
        self.has_changed = true;
        match self.find(stream) {
            Ok(at) => self.rows[at].load.add(load),
            Err(at) => self.rows.insert(at, StreamUsage { stream, load, progress_at: None }),
        }
    }

    pub(crate) fn remove(&mut self, stream: StreamKey, load: QueueUsage) {
        if let Ok(at) = self.find(stream) {
            self.has_changed = true;
            self.rows[at].load.subtract(load);
            if self.rows[at].load.messages == 0 {
                self.rows.remove(at);
            }
        }
    }

    /// The loads, the control stream last.
    pub(crate) fn loads(&self) -> impl Iterator<Item = (StreamKey, QueueUsage)> {
        self.rows.iter().rev().map(|share| (share.stream, share.load))
    }

    /// What is new begins to wait now: it is not stuck yet.
    pub(crate) fn note_begin(&mut self, now: Instant) {
        for share in self.rows.iter_mut().filter(|share| share.progress_at.is_none()) {
            share.progress_at = Some(now);
            self.has_changed = true;
        }
    }

    pub(crate) fn note_progress(&mut self, stream: StreamKey, now: Instant) {
        if let Ok(at) = self.find(stream) {
            self.rows[at].progress_at = Some(now);
            self.has_changed = true;
        }
    }

    /// What waited for a stream that has ended waits for the control stream.
    pub(crate) fn redirect(&mut self, ended: StreamKey) {
        if let Ok(at) = self.find(ended) {
            self.has_changed = true;
            let share = self.rows.remove(at);
            self.add(StreamKey::CONTROL, share.load);
        }
    }

    /// QoS 0 was dropped everywhere.
    pub(crate) fn drop_qos0(&mut self) {
        self.has_changed = true;
        for share in &mut self.rows {
            share.load = share.load.beside_qos0();
        }
        self.rows.retain(|share| share.load.messages > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(messages: usize, qos0: usize) -> QueueUsage {
        QueueUsage { messages, bytes: messages * 10, qos0, qos0_bytes: qos0 * 10, ..QueueUsage::default() }
    }

    #[test]
    fn the_control_stream_alone_needs_no_account() {
        let mut shares = PerStreamUsage::default();
        shares.add(StreamKey::CONTROL, load(3, 0));
        assert!(shares.is_empty());
        shares.add(StreamKey::bidi(1), load(1, 0));
        shares.add(StreamKey::CONTROL, load(1, 0));
        // What came before the first data stream is not known, and does no harm.
        shares.remove(StreamKey::CONTROL, load(3, 0));
        assert_eq!(shares.usage_of(StreamKey::CONTROL), QueueUsage::default());
        shares.remove(StreamKey::bidi(1), load(1, 0));
        assert!(shares.is_empty());
    }

    #[test]
    fn progress_counts_while_something_waits() {
        let (mut shares, now, stream) = (PerStreamUsage::default(), Instant::now(), StreamKey::bidi(1));
        shares.note_progress(stream, now);
        assert_eq!(shares.progress_of(stream), None);
        shares.add(stream, load(2, 0));
        assert_eq!(shares.progress_of(stream), Some(None));
        shares.note_begin(now);
        assert_eq!(shares.progress_of(stream), Some(Some(now)));
        let later = now + std::time::Duration::from_secs(1);
        shares.note_begin(later);
        assert_eq!(shares.progress_of(stream), Some(Some(now)));
        shares.note_progress(stream, later);
        shares.remove(stream, load(1, 0));
        assert_eq!(shares.progress_of(stream), Some(Some(later)));
        shares.remove(stream, load(1, 0));
        shares.add(stream, load(1, 0));
        assert_eq!(shares.progress_of(stream), Some(None));
    }

    #[test]
    fn what_waits_moves_with_its_stream_and_qos_0_can_go() {
        let mut shares = PerStreamUsage::default();
        shares.add(StreamKey::bidi(1), load(3, 1));
        shares.add(StreamKey::bidi(2), load(2, 2));
        shares.drop_qos0();
        assert_eq!(shares.usage_of(StreamKey::bidi(1)), load(2, 0));
        assert_eq!(shares.progress_of(StreamKey::bidi(2)), None);
        shares.add(StreamKey::bidi(2), load(1, 0));
        shares.redirect(StreamKey::bidi(1));
        assert_eq!(shares.usage_of(StreamKey::CONTROL), load(2, 0));
        assert_eq!(shares.usage_of(StreamKey::bidi(1)), QueueUsage::default());
    }

    /// Whoever copies at every turn copies nothing while nothing changes.
    #[test]
    fn a_copy_is_made_of_what_has_changed() {
        let (mut shares, mut copy) = (PerStreamUsage::default(), PerStreamUsage::default());
        shares.insert(StreamKey::CONTROL, load(1, 0));
        shares.add(StreamKey::bidi(1), load(3, 1));
        shares.copy_to(&mut copy);
        assert_eq!(copy.usage_of(StreamKey::bidi(1)), load(3, 1));
        assert_eq!(copy.loads().last(), Some((StreamKey::CONTROL, load(1, 0))));
        copy.clear();
        shares.copy_to(&mut copy);
        assert!(copy.is_empty(), "it is the same as before");
        for change in [
            |shares: &mut PerStreamUsage| shares.add(StreamKey::bidi(1), load(1, 0)),
            |shares: &mut PerStreamUsage| shares.remove(StreamKey::bidi(1), load(1, 0)),
            |shares: &mut PerStreamUsage| shares.note_begin(Instant::now()),
            |shares: &mut PerStreamUsage| shares.note_progress(StreamKey::bidi(1), Instant::now()),
            |shares: &mut PerStreamUsage| shares.drop_qos0(),
            |shares: &mut PerStreamUsage| shares.redirect(StreamKey::bidi(1)),
            |shares: &mut PerStreamUsage| shares.clear(),
        ] {
            change(&mut shares);
            assert!(shares.has_changed);
            shares.copy_to(&mut copy);
            assert_eq!(copy.usage_of(StreamKey::CONTROL), shares.usage_of(StreamKey::CONTROL));
        }
    }
}
