//! Sizes of queued messages, in all and per stream, and the limits they are compared with.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use braid_proto::message::{Delivery, Message, SubscriptionIds};
use braid_proto::packet::{MessageProperties, QoS};
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::TopicName;

/// Estimated bytes of a queued delivery beside its texts and payload.
const DELIVERY_OVERHEAD: usize = 256;

/// Messages above this many bytes are large. Our client gives them a stream of their own.
const LARGE_MESSAGE: usize = 256 << 10;

/// A stream may hold this many times the free room of the queue. However many streams are not read, the next one
/// finds room. [BQ-55]
const FAIR_SHARE: usize = 8;

/// Number and bytes of a set of deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    messages: usize,
    bytes: usize,
    /// Bytes of large messages.
    large_bytes: usize,
    /// Bytes outside of the heap: in a spool file, or in the store alone.
    outside_bytes: usize,
}

impl Amount {
    fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.large_bytes = self.large_bytes.saturating_add(more.large_bytes);
        self.outside_bytes = self.outside_bytes.saturating_add(more.outside_bytes);
    }

    fn subtract(&mut self, less: Self) {
        self.messages = self.messages.saturating_sub(less.messages);
        self.bytes = self.bytes.saturating_sub(less.bytes);
        self.large_bytes = self.large_bytes.saturating_sub(less.large_bytes);
        self.outside_bytes = self.outside_bytes.saturating_sub(less.outside_bytes);
    }
}

/// Size of a queue or of a part of it. QoS 0 is counted apart as well, because it gives way first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueUsage {
    total: Amount,
    qos0: Amount,
}

impl QueueUsage {
    /// Size of one delivery.
    pub(crate) fn of(delivery: &Delivery) -> Self {
        Self::of_message(&delivery.message, &delivery.subscription_ids, delivery.qos)
    }

    /// Size of one delivery of a message with these Subscription Identifiers and this QoS.
    pub(crate) fn of_message(message: &Message, ids: &SubscriptionIds, qos: QoS) -> Self {
        Self::of_one(message_cost(message).saturating_add(ids_cost(ids)), spooled_len(message), qos)
    }

    /// Size of one delivery of a message that is in the store alone, and would take `bytes` in memory.
    pub(crate) fn of_stored(bytes: usize, qos: QoS) -> Self {
        Self::of_one(bytes, bytes, qos)
    }

    fn of_one(bytes: usize, outside_bytes: usize, qos: QoS) -> Self {
        let large_bytes = if bytes > LARGE_MESSAGE { bytes } else { 0 };
        let total = Amount { messages: 1, bytes, large_bytes, outside_bytes };
        Self { total, qos0: if qos == QoS::AtMostOnce { total } else { Amount::default() } }
    }

    #[cfg(test)]
    pub(crate) fn of_small(messages: usize, bytes: usize) -> Self {
        let total = Amount { messages, bytes, ..Amount::default() };
        Self { total, qos0: Amount::default() }
    }

    pub(crate) fn messages(&self) -> usize {
        self.total.messages
    }

    pub(crate) fn bytes(&self) -> usize {
        self.total.bytes
    }

    /// Bytes in the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.total.bytes.saturating_sub(self.total.outside_bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.total.messages == 0
    }

    /// Whether any of the messages is of QoS 0.
    pub(crate) fn has_qos0(&self) -> bool {
        self.qos0.messages > 0
    }

    /// Whether the messages are large. Only meaningful for one message.
    pub(crate) fn is_large(&self) -> bool {
        self.total.large_bytes > 0
    }

    pub(crate) fn add(&mut self, more: &Self) {
        self.total.add(more.total);
        if more.has_qos0() {
            self.qos0.add(more.qos0);
        }
    }

    pub(crate) fn subtract(&mut self, less: &Self) {
        self.total.subtract(less.total);
        if less.has_qos0() {
            self.qos0.subtract(less.qos0);
        }
    }

    /// Sum of two usages.
    pub(crate) fn plus(&self, more: &Self) -> Self {
        let mut sum = *self;
        sum.add(more);
        sum
    }

    /// Size of the messages of QoS 1 and 2.
    pub(crate) fn without_qos0(&self) -> Self {
        let mut total = self.total;
        total.subtract(self.qos0);
        Self { total, qos0: Amount::default() }
    }

    /// Tests whether one more message fits within `limits`.
    pub(crate) fn admits(&self, more: &Self, limits: QueueLimits) -> bool {
        let (all, large) = (&self.total, more.total.large_bytes);
        let fits = if all.messages == 0 {
            true
        } else if large == 0 {
            self.weight(limits).saturating_add(more.total.bytes) <= limits.bytes
        } else if all.large_bytes == 0 {
            // The first large message may be of any size: the subscriber could never receive it otherwise.
            all.bytes <= limits.bytes
        } else {
            all.large_bytes.saturating_add(large) <= limits.large_bytes()
                && all.bytes.saturating_add(large) <= limits.bytes
        };
        fits && all.messages < limits.messages
    }

    /// Tests whether the messages are more than `limits` allow. A single message may be of any size.
    pub(crate) fn exceeds(&self, limits: QueueLimits) -> bool {
        let messages = self.total.messages;
        messages > 1 && (messages > limits.messages || self.weight(limits) > limits.bytes)
    }

    /// Bytes that count against `limits`. One large message may exceed all of them and leaves room for small ones.
    pub(crate) fn weight(&self, limits: QueueLimits) -> usize {
        let Amount { bytes, large_bytes, .. } = self.total;
        bytes.saturating_sub(large_bytes).saturating_add(large_bytes.min(limits.large_bytes()))
    }
}

/// Copy of the usage of a queue for readers without its lock. Its parts may be of two moments.
#[derive(Debug, Default)]
pub(crate) struct UsageHint {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    large_bytes: AtomicUsize,
}

impl UsageHint {
    /// Updates the copy.
    pub(crate) fn set(&self, usage: &QueueUsage) {
        let Amount { messages, bytes, large_bytes, .. } = usage.total;
        // Relaxed: the copy guards nothing.
        self.messages.store(messages, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.large_bytes.store(large_bytes, Ordering::Relaxed);
    }

    /// Usage as far as [`QueueUsage::admits`] needs it.
    pub(crate) fn read(&self) -> QueueUsage {
        let total = Amount {
            messages: self.messages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            large_bytes: self.large_bytes.load(Ordering::Relaxed),
            outside_bytes: 0,
        };
        QueueUsage { total, qos0: Amount::default() }
    }
}

/// Tests whether a stream that holds `own` of `all` leaves enough room for the other streams. [BQ-55]
pub(crate) fn is_fair_share(own: &QueueUsage, all: &QueueUsage, limits: QueueLimits) -> bool {
    let free_bytes = limits.bytes.saturating_sub(all.weight(limits));
    let free_messages = (limits.messages + 1).saturating_sub(all.messages());
    own.messages() <= 1
        || own.weight(limits) <= free_bytes.saturating_mul(FAIR_SHARE)
            && own.messages() <= free_messages.saturating_mul(FAIR_SHARE)
}

/// Upper bounds of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl QueueLimits {
    /// The limits for a message of this priority. Above the default there is a reserve of a quarter: bulk that fills a
    /// queue must not keep an alarm out.
    pub(crate) fn with_reserve(self, priority: Priority) -> Self {
        if priority <= Priority::DEFAULT {
            return self;
        }
        Self {
            messages: self.messages.saturating_add(self.messages / 4),
            bytes: self.bytes.saturating_add(self.bytes / 4),
        }
    }

    /// Upper bound of the bytes of large messages. The rest is for small ones, which one waiting recording must not
    /// keep out.
    fn large_bytes(self) -> usize {
        self.bytes / 4 * 3
    }

    /// The level above which a queue is congested.
    pub(crate) fn congestion_threshold(self) -> Self {
        Self { messages: self.messages / 4, bytes: self.bytes / 4 }
    }
}

/// Messages that were removed from a queue.
#[derive(Debug, Default)]
pub(crate) struct Evicted {
    pub(crate) usage: QueueUsage,
    /// Numbers in the store of those that are stored.
    pub(crate) lsns: Vec<NonZeroU64>,
}

impl Evicted {
    pub(crate) fn messages(&self) -> u64 {
        self.usage.messages() as u64
    }

    pub(crate) fn note(&mut self, usage: &QueueUsage, lsn: Option<NonZeroU64>) {
        self.usage.add(usage);
        self.lsns.extend(lsn);
    }
}

/// Bytes that a message counts for in a queue, whether its payload is in memory or in a spool. An estimate.
pub(crate) fn message_cost(message: &Message) -> usize {
    cost(&message.topic, message.properties.as_deref(), message.payload.len())
}

/// Heap bytes of the Subscription Identifiers of a delivery: a client may have thousands that match one message.
fn ids_cost(ids: &SubscriptionIds) -> usize {
    match ids {
        SubscriptionIds::None | SubscriptionIds::One(_) => 0,
        SubscriptionIds::Many(ids) => size_of_val(&**ids),
    }
}

/// Bytes that a message with these parts counts for in a queue.
pub(crate) fn cost(topic: &TopicName, properties: Option<&MessageProperties>, payload: usize) -> usize {
    // A damaged store may claim any length for a payload that was not read.
    (DELIVERY_OVERHEAD + topic.as_str().len() + properties.map_or(0, properties_cost)).saturating_add(payload)
}

/// Heap bytes of a message: a payload in a spool is not in the heap. An estimate.
pub(crate) fn heap_cost(message: &Message) -> usize {
    message_cost(message) - spooled_len(message)
}

fn spooled_len(message: &Message) -> usize {
    if message.is_spooled() { message.payload.len() } else { 0 }
}

fn properties_cost(properties: &MessageProperties) -> usize {
    let content_type = properties.content_type.as_ref().map_or(0, |text| text.len());
    let response_topic = properties.response_topic.as_ref().map_or(0, |topic| topic.as_str().len());
    let correlation_data = properties.correlation_data.as_ref().map_or(0, bytes::Bytes::len);
    size_of::<MessageProperties>()
        + content_type
        + response_topic
        + correlation_data
        + properties.user.encoded_len()
}

/// Usage of each stream of a queue. Empty while everything is for the control stream, as always without data streams:
/// the hot path needs no per-stream counts. [BQ-55]
#[derive(Debug, Default)]
pub(crate) struct PerStreamUsage {
    /// Sorted by stream.
    rows: Vec<StreamUsage>,
    /// Set by each change since the last [`PerStreamUsage::copy_to`].
    has_changed: bool,
}

#[derive(Clone, Copy, Debug)]
struct StreamUsage {
    stream: StreamKey,
    usage: QueueUsage,
    /// Time of the last send on the stream, or of the first round that saw the stream waiting; `None` before that.
    progress_at: Option<Instant>,
}

impl PerStreamUsage {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether it is empty, and its copy as well.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.is_empty() && !self.has_changed
    }

    pub(crate) fn clear(&mut self) {
        *self = Self { rows: Vec::new(), has_changed: true };
    }

    /// Updates `copy`, which has no other writer. Does nothing while nothing has changed.
    pub(crate) fn copy_to(&mut self, copy: &mut Self) {
        if std::mem::take(&mut self.has_changed) {
            copy.rows.clone_from(&self.rows);
        }
    }

    fn find(&self, stream: StreamKey) -> Result<usize, usize> {
        self.rows.binary_search_by_key(&stream, |row| row.stream)
    }

    pub(crate) fn usage_of(&self, stream: StreamKey) -> QueueUsage {
        self.find(stream).map_or_else(|_| QueueUsage::default(), |at| self.rows[at].usage)
    }

    /// Time of the last progress of a stream; `None` if nothing waits for the stream, `Some(None)` if no round of
    /// sending has seen it yet.
    pub(crate) fn progress_of(&self, stream: StreamKey) -> Option<Option<Instant>> {
        self.find(stream).ok().map(|at| self.rows[at].progress_at)
    }

    /// Adds usage of a stream, unless everything is for the control stream.
    pub(crate) fn add(&mut self, stream: StreamKey, usage: &QueueUsage) {
        if !stream.is_control() || !self.is_empty() {
            self.insert(stream, usage);
        }
    }

    /// Adds usage of a stream, the control stream included.
    pub(crate) fn insert(&mut self, stream: StreamKey, usage: &QueueUsage) {
        self.has_changed = true;
        match self.find(stream) {
            Ok(at) => self.rows[at].usage.add(usage),
            Err(at) => self.rows.insert(at, StreamUsage { stream, usage: *usage, progress_at: None }),
        }
    }

    pub(crate) fn remove(&mut self, stream: StreamKey, usage: &QueueUsage) {
        if let Ok(at) = self.find(stream) {
            self.has_changed = true;
            self.rows[at].usage.subtract(usage);
            if self.rows[at].usage.is_empty() {
                self.rows.remove(at);
            }
        }
    }

    /// All streams with their usage, the control stream last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (StreamKey, &QueueUsage)> {
        self.rows.iter().rev().map(|row| (row.stream, &row.usage))
    }

    /// Starts the progress clock of streams that are new: they are not stuck yet.
    pub(crate) fn note_begin(&mut self, now: Instant) {
        for row in self.rows.iter_mut().filter(|row| row.progress_at.is_none()) {
            row.progress_at = Some(now);
            self.has_changed = true;
        }
    }

    pub(crate) fn note_progress(&mut self, stream: StreamKey, now: Instant) {
        if let Ok(at) = self.find(stream) {
            self.rows[at].progress_at = Some(now);
            self.has_changed = true;
        }
    }

    /// Moves the usage of a stream that has ended to the control stream.
    pub(crate) fn redirect(&mut self, ended: StreamKey) {
        if let Ok(at) = self.find(ended) {
            self.has_changed = true;
            let row = self.rows.remove(at);
            self.add(StreamKey::CONTROL, &row.usage);
        }
    }

    /// Removes the usage of QoS 0 from all streams.
    pub(crate) fn remove_qos0(&mut self) {
        self.has_changed = true;
        for row in &mut self.rows {
            row.usage = row.usage.without_qos0();
        }
        self.rows.retain(|row| !row.usage.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use braid_proto::message::SharedMessage;

    use super::*;

    fn usage(messages: usize, qos0: usize) -> QueueUsage {
        let amount = |messages| Amount { messages, bytes: messages * 10, ..Amount::default() };
        QueueUsage { total: amount(messages), qos0: amount(qos0) }
    }

    /// A message that matches ten thousand subscriptions takes 40 KB more in each queue.
    #[test]
    fn subscription_identifiers_count() {
        let topic = TopicName::parse("t").unwrap();
        let message = SharedMessage::new(Message::new(topic, "x", QoS::AtMostOnce, false));
        let mut delivery = Delivery::of(message);
        let before = QueueUsage::of(&delivery).heap_bytes();
        let ids = (1..=10_000).filter_map(NonZeroU32::new).collect();
        delivery.subscription_ids = SubscriptionIds::Many(ids);
        assert_eq!(QueueUsage::of(&delivery).heap_bytes(), before + 40_000);
    }

    #[test]
    fn control_stream_alone_needs_no_rows() {
        let mut streams = PerStreamUsage::default();
        streams.add(StreamKey::CONTROL, &usage(3, 0));
        assert!(streams.is_empty());
        streams.add(StreamKey::bidi(1), &usage(1, 0));
        streams.add(StreamKey::CONTROL, &usage(1, 0));
        // Usage from before the first data stream is not known, and its removal does no harm.
        streams.remove(StreamKey::CONTROL, &usage(3, 0));
        assert_eq!(streams.usage_of(StreamKey::CONTROL), QueueUsage::default());
        streams.remove(StreamKey::bidi(1), &usage(1, 0));
        assert!(streams.is_empty());
    }

    #[test]
    fn progress_is_kept_while_a_stream_has_messages() {
        let (mut streams, now, stream) = (PerStreamUsage::default(), Instant::now(), StreamKey::bidi(1));
        streams.note_progress(stream, now);
        assert_eq!(streams.progress_of(stream), None);
        streams.add(stream, &usage(2, 0));
        assert_eq!(streams.progress_of(stream), Some(None));
        streams.note_begin(now);
        assert_eq!(streams.progress_of(stream), Some(Some(now)));
        let later = now + std::time::Duration::from_secs(1);
        streams.note_begin(later);
        assert_eq!(streams.progress_of(stream), Some(Some(now)));
        streams.note_progress(stream, later);
        streams.remove(stream, &usage(1, 0));
        assert_eq!(streams.progress_of(stream), Some(Some(later)));
        streams.remove(stream, &usage(1, 0));
        streams.add(stream, &usage(1, 0));
        assert_eq!(streams.progress_of(stream), Some(None));
    }

    #[test]
    fn redirect_moves_usage_and_qos0_can_be_removed() {
        let mut streams = PerStreamUsage::default();
        streams.add(StreamKey::bidi(1), &usage(3, 1));
        streams.add(StreamKey::bidi(2), &usage(2, 2));
        streams.remove_qos0();
        assert_eq!(streams.usage_of(StreamKey::bidi(1)), usage(2, 0));
        assert_eq!(streams.progress_of(StreamKey::bidi(2)), None);
        streams.add(StreamKey::bidi(2), &usage(1, 0));
        streams.redirect(StreamKey::bidi(1));
        assert_eq!(streams.usage_of(StreamKey::CONTROL), usage(2, 0));
        assert_eq!(streams.usage_of(StreamKey::bidi(1)), QueueUsage::default());
    }

    /// A copy at every turn costs nothing while nothing changes.
    #[test]
    fn only_changes_are_copied() {
        let (mut streams, mut copy) = (PerStreamUsage::default(), PerStreamUsage::default());
        streams.insert(StreamKey::CONTROL, &usage(1, 0));
        streams.add(StreamKey::bidi(1), &usage(3, 1));
        streams.copy_to(&mut copy);
        assert_eq!(copy.usage_of(StreamKey::bidi(1)), usage(3, 1));
        assert_eq!(copy.iter().last(), Some((StreamKey::CONTROL, &usage(1, 0))));
        copy.clear();
        streams.copy_to(&mut copy);
        assert!(copy.is_empty(), "nothing has changed");
        for change in [
            |streams: &mut PerStreamUsage| streams.add(StreamKey::bidi(1), &usage(1, 0)),
            |streams: &mut PerStreamUsage| streams.remove(StreamKey::bidi(1), &usage(1, 0)),
            |streams: &mut PerStreamUsage| streams.note_begin(Instant::now()),
            |streams: &mut PerStreamUsage| streams.note_progress(StreamKey::bidi(1), Instant::now()),
            |streams: &mut PerStreamUsage| streams.remove_qos0(),
            |streams: &mut PerStreamUsage| streams.redirect(StreamKey::bidi(1)),
            |streams: &mut PerStreamUsage| streams.clear(),
        ] {
            change(&mut streams);
            assert!(streams.has_changed);
            streams.copy_to(&mut copy);
            assert_eq!(copy.usage_of(StreamKey::CONTROL), streams.usage_of(StreamKey::CONTROL));
        }
    }
}
