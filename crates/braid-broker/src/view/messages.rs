//! Published messages, for those who watch topics live.

use std::collections::BTreeMap;
use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use braid_proto::message::{Message, SharedMessage};
use braid_proto::packet::{Payload, QoS};
use braid_proto::topic::TopicName;

use crate::clock;
use crate::lock_order::{Ordered, Rank};

/// Messages that wait for one tap.
const MAX_MESSAGES: usize = 4096;

/// Bytes of topics and payloads that wait for one tap; beyond them at most one message, of any size.
const MAX_BYTES: usize = 8 << 20;

/// Message that was published. Cloning shares topic and payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedMessage {
    /// Topic, with the mountpoint of its publisher in front.
    pub topic: TopicName,
    /// Payload; the first part of one that this process made of several.
    pub payload: Payload,
    /// Length of the payload in bytes.
    pub payload_len: usize,
    /// QoS.
    pub qos: QoS,
    /// RETAIN flag of the PUBLISH.
    pub retain: bool,
    /// Monotonic time at which it was published.
    pub at: Instant,
}

/// Messages that were published between two looks.
#[derive(Debug, Default)]
pub struct TappedMessages {
    /// Messages; those of one publisher are in its order.
    pub messages: Vec<PublishedMessage>,
    /// Messages that were published after them and had no room.
    pub lost: u64,
}

/// Tap of published messages, which ends when it is dropped.
pub struct MessageTap {
    taps: Arc<MessageTaps>,
    id: u64,
}

impl MessageTap {
    /// Messages since the last call, or since the tap was opened.
    pub fn take(&mut self) -> TappedMessages {
        let mut queues = self.taps.queues();
        queues.get_mut(&self.id).map(|queue| std::mem::take(queue).tapped).unwrap_or_default()
    }
}

impl Drop for MessageTap {
    fn drop(&mut self) {
        let mut queues = self.taps.queues();
        let removed = queues.remove(&self.id);
        self.taps.is_watched.store(!queues.is_empty(), Ordering::Relaxed);
        drop(queues);
        // Frees payloads: not under the lock.
        drop(removed);
    }
}

impl std::fmt::Debug for MessageTap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageTap").finish_non_exhaustive()
    }
}

/// Taps of the messages of a broker. Without one nothing is recorded.
#[derive(Default)]
pub(crate) struct MessageTaps {
    /// Set while there is a queue. Relaxed: the flag guards no memory, and a message that is about as old as its tap
    /// may be missed.
    is_watched: AtomicBool,
    /// Queue of each tap. A std lock, never held across an await.
    queues: Mutex<BTreeMap<u64, TapQueue>>,
}

impl MessageTaps {
    pub(crate) fn open(self: &Arc<Self>) -> MessageTap {
        let mut queues = self.queues();
        let id = queues.last_key_value().map_or(0, |(id, _)| id + 1);
        queues.insert(id, TapQueue::default());
        self.is_watched.store(true, Ordering::Relaxed);
        drop(queues);
        MessageTap { taps: self.clone(), id }
    }

    /// True while there is a tap.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// Queues messages for each tap that has room. Costs one load of an atomic while there is no tap.
    pub(crate) fn record(&self, messages: &[SharedMessage]) {
        if !self.is_watched() {
            return;
        }
        let at = clock::now();
        for queue in self.queues().values_mut() {
            for message in messages {
                queue.push(message, at);
            }
        }
    }

    fn queues(&self) -> Ordered<impl DerefMut<Target = BTreeMap<u64, TapQueue>>> {
        Ordered::acquire(Rank::Leaf, || self.queues.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Messages that wait for a tap.
#[derive(Default)]
struct TapQueue {
    tapped: TappedMessages,
    /// Bytes of their topics and payloads.
    bytes: usize,
}

impl TapQueue {
    /// Adds a message, or counts it as lost. The payload is shared without the message, whose memory is accounted to
    /// its publisher: a tap that lags slows no client.
    fn push(&mut self, message: &Message, at: Instant) {
        if self.tapped.messages.len() == MAX_MESSAGES || self.bytes >= MAX_BYTES {
            self.tapped.lost += 1;
            return;
        }
        self.bytes += message.topic.as_str().len() + message.payload.len();
        self.tapped.messages.push(PublishedMessage {
            topic: message.topic.clone(),
            payload: message.payload.clone(),
            payload_len: message.payload_len(),
            qos: message.qos,
            retain: message.retain,
            at,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(payload_len: usize, count: usize) -> Vec<SharedMessage> {
        let payload = Payload::from(vec![b'x'; payload_len]);
        let topic = TopicName::parse("t").unwrap();
        let message = || Message::new(topic.clone(), payload.clone(), QoS::AtLeastOnce, true);
        (0..count).map(|_| SharedMessage::new(message())).collect()
    }

    #[test]
    fn nothing_is_recorded_without_a_tap() {
        let taps = Arc::<MessageTaps>::default();
        let held = taps.queues();
        taps.record(&messages(1, 1)); // Without the lock, which would fail: this thread holds it.
        drop(held);
        assert!(!taps.is_watched());
        let mut first = taps.open();
        assert!(taps.is_watched() && first.take().messages.is_empty(), "only what is published from now on");
        taps.record(&messages(1, 2));
        let mut second = taps.open();
        taps.record(&messages(1, 3));
        assert_eq!([&mut first, &mut second].map(|tap| tap.take().messages.len()), [5, 3]);
        assert_eq!([&mut first, &mut second].map(|tap| tap.take().messages.len()), [0, 0]);
        drop(first);
        assert!(taps.is_watched(), "there is another tap");
        taps.record(&messages(1, 1));
        assert_eq!(second.take().messages.len(), 1);
        drop(second);
        assert!(!taps.is_watched() && taps.queues().is_empty());
    }

    #[test]
    fn a_tap_has_the_fields_of_a_message_and_shares_its_payload() {
        let taps = Arc::<MessageTaps>::default();
        let mut tap = taps.open();
        let [message] = &messages(100, 1)[..] else { unreachable!() };
        taps.record(std::slice::from_ref(message));
        assert_eq!(
            SharedMessage::count(message),
            1,
            "the message itself, with its memory account, is not held"
        );
        let [tapped] = &tap.take().messages[..] else { panic!("one message") };
        assert_eq!(tapped.payload.as_ptr(), message.payload.as_ptr());
        assert_eq!((tapped.topic.as_str(), tapped.payload_len), ("t", 100));
        assert_eq!((tapped.qos, tapped.retain), (QoS::AtLeastOnce, true));
    }

    #[test]
    fn a_tap_that_lags_loses_what_has_no_room() {
        let taps = Arc::<MessageTaps>::default();
        let mut tap = taps.open();
        for (payload_len, count, kept) in
            [(1, MAX_MESSAGES + 7, MAX_MESSAGES), (MAX_BYTES / 4, 9, 4), (MAX_BYTES * 2, 3, 1)]
        {
            taps.record(&messages(payload_len, count));
            let tapped = tap.take();
            assert_eq!((tapped.messages.len(), tapped.lost), (kept, (count - kept) as u64), "{payload_len}");
            taps.record(&messages(1, 1));
            let tapped = tap.take();
            assert_eq!((tapped.messages.len(), tapped.lost), (1, 0), "there is room again");
        }
    }
}
