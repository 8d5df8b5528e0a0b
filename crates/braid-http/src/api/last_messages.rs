//! Last messages of topics, recorded while clients ask for them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use braid_broker::Handle;
use braid_broker::view::{MessageTap, PublishedMessage, TappedMessages};
use braid_proto::packet::QoS;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};

/// Time without a question after which everything is forgotten.
const LINGER: Duration = Duration::from_secs(30);

/// Time between two visits of the tap, which bounds how long it shares payloads.
const VISIT: Duration = Duration::from_millis(50);

/// Topics that are recorded; later ones are not.
const MAX_TOPICS: usize = 5000;

/// Longest topic that is recorded, in bytes.
const MAX_TOPIC: usize = 1024;

/// Bytes of a payload that are kept.
const MAX_PAYLOAD: usize = 4096;

/// Last message of a topic.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LastMessage {
    /// First bytes of the payload.
    pub(super) payload: Box<[u8]>,
    /// Length of the whole payload.
    pub(super) payload_len: usize,
    pub(super) qos: QoS,
    pub(super) at: Instant,
    /// Messages of the topic since the record began.
    pub(super) count: u64,
}

impl LastMessage {
    fn new(message: &PublishedMessage, count: u64) -> Self {
        Self {
            payload: message.payload[..message.payload.len().min(MAX_PAYLOAD)].into(),
            payload_len: message.payload_len,
            qos: message.qos,
            at: message.at,
            count,
        }
    }
}

/// Messages since a client began to look.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) began: Instant,
    asked: Instant,
    topics: BTreeMap<Box<str>, LastMessage>,
    /// Messages that the tap lost, or whose topics had no room.
    pub(super) missed: u64,
}

impl Record {
    fn new(now: Instant) -> Self {
        Self { began: now, asked: now, topics: BTreeMap::new(), missed: 0 }
    }

    /// True if there was no question for so long that the record ends.
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.asked) >= LINGER
    }

    fn add_all(&mut self, tapped: &TappedMessages) {
        tapped.messages.iter().for_each(|message| self.add(message));
        self.missed += tapped.lost;
    }

    fn add(&mut self, message: &PublishedMessage) {
        let topic = message.topic.as_str();
        let has_room = self.topics.len() < MAX_TOPICS && topic.len() <= MAX_TOPIC;
        match self.topics.get_mut(topic) {
            Some(known) => *known = LastMessage::new(message, known.count + 1),
            None if has_room => drop(self.topics.insert(topic.into(), LastMessage::new(message, 1))),
            None => self.missed += 1,
        }
    }

    /// Topics that begin with `prefix`, in their order.
    pub(super) fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a LastMessage)> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let topics = self.topics.range::<str, _>(from).map(|(topic, last)| (&**topic, last));
        topics.take_while(move |(topic, _)| topic.starts_with(prefix))
    }
}

/// Record with its source and the task that ends it.
struct Look {
    record: Record,
    tap: MessageTap,
    task: AbortHandle,
}

impl Look {
    fn visit(&mut self) {
        self.record.add_all(&self.tap.take());
    }
}

/// Last messages of a broker's topics. Without a question for 30 s there is neither record nor tap nor task.
#[derive(Clone, Default)]
pub(super) struct LastMessages(Arc<Mutex<Option<Look>>>);

impl LastMessages {
    /// Begins a record, or prolongs the one that there is. Needs a tokio runtime.
    pub(super) fn look(&self, broker: &Handle) {
        let now = now();
        let mut look = self.lock();
        match &mut *look {
            // A task ends without its record when its runtime does.
            Some(look) if !look.task.is_finished() && !look.record.is_over(now) => look.record.asked = now,
            _ => {
                if let Some(before) = look.take() {
                    before.task.abort();
                }
                let task = tokio::spawn(self.clone().run()).abort_handle();
                *look = Some(Look { record: Record::new(now), tap: broker.tap_messages(), task });
            }
        }
    }

    /// Passes the record to a function; `None` if there is none. It has all messages that are published by now.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Record) -> T) -> Option<T> {
        let mut look = self.lock();
        let look = look.as_mut()?;
        look.visit();
        Some(read(&look.record))
    }

    /// Forgets the record.
    pub(super) fn forget(&self) {
        if let Some(look) = self.lock().take() {
            look.task.abort();
        }
    }

    /// Empties the tap until the record is over, which is forgotten then.
    async fn run(self) {
        let mut visits = interval(VISIT);
        visits.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            visits.tick().await;
            let mut look = self.lock();
            match &mut *look {
                Some(some) if !some.record.is_over(now()) => some.visit(),
                _ => {
                    *look = None;
                    return;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Present time, which tests may pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use braid_broker::{Anonymous, Broker, BrokerConfig};
    use braid_proto::message::Message;
    use braid_proto::topic::TopicName;
    use braid_store::MemoryStore;
    use tokio::time::advance;

    use super::*;

    fn message(topic: &str, payload: impl Into<Vec<u8>>) -> PublishedMessage {
        let payload = bytes::Bytes::from(payload.into());
        PublishedMessage {
            topic: TopicName::parse(topic).unwrap(),
            payload_len: payload.len(),
            payload: payload.into(),
            qos: QoS::AtLeastOnce,
            retain: false,
            at: Instant::now(),
        }
    }

    #[test]
    fn a_record_is_bounded() {
        let mut record = Record::new(Instant::now());
        for number in 0..MAX_TOPICS {
            record.add(&message(&format!("t/{number}"), "first"));
        }
        record.add(&message("t/another", "x"));
        record.add(&message("t/7", vec![0xff; MAX_PAYLOAD + 1]));
        record.add_all(&TappedMessages { messages: vec![message("t/8", "last")], lost: 3 });
        assert_eq!((record.topics.len(), record.missed), (MAX_TOPICS, 1 + 3));
        assert!(!record.topics.contains_key("t/another"));
        let last = &record.topics["t/7"];
        assert_eq!((last.payload.len(), last.payload_len, last.count), (MAX_PAYLOAD, MAX_PAYLOAD + 1, 2));
        assert_eq!((&*record.topics["t/8"].payload, record.topics["t/8"].count), (&b"last"[..], 2));
        let mut record = Record::new(Instant::now());
        for (len, recorded, missed) in [(MAX_TOPIC, 1, 0), (MAX_TOPIC + 1, 1, 1)] {
            record.add(&message(&"t".repeat(len), "x"));
            assert_eq!((record.topics.len(), record.missed), (recorded, missed));
        }
    }

    #[test]
    fn topics_below_a_prefix_are_found() {
        let mut record = Record::new(Instant::now());
        for topic in ["a", "a-/x", "a/", "a/b/c", "a0", "b/a/b", "t1/a/b", "t2/a/b"] {
            record.add(&message(topic, topic));
        }
        for (prefix, expected) in
            [("a/", vec!["a/", "a/b/c"]), ("t1/", vec!["t1/a/b"]), ("a/b/", vec!["a/b/c"]), ("zzz/", vec![])]
        {
            let found: Vec<_> = record.below(prefix).map(|(topic, _)| topic).collect();
            assert_eq!(found, expected, "{prefix}");
        }
        assert_eq!(record.below("").count(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_ends_without_a_question_for_30_s() {
        let store = Arc::new(MemoryStore::new());
        let config = BrokerConfig::default();
        let broker = Broker::build(config, Box::new(Anonymous::default()), store, Vec::new()).unwrap();
        let handle = broker.handle();
        let last = LastMessages::default();
        let pass = async |secs| {
            advance(Duration::from_secs(secs)).await;
            // The task takes its turn at the next visit.
            tokio::time::sleep(VISIT * 2).await;
        };
        let publish = async || {
            let message = Message::new(TopicName::parse("t").unwrap(), "x", QoS::AtMostOnce, false);
            handle.publish_durably(message).await.unwrap();
        };
        let count = || last.read(|record| record.topics.get("t").map_or(0, |last| last.count));
        publish().await;
        assert!(!handle.is_tapped() && count().is_none());
        last.look(&handle);
        assert!(handle.is_tapped());
        publish().await;
        assert_eq!(count(), Some(1));
        pass(20).await;
        last.look(&handle);
        pass(29).await;
        assert!(handle.is_tapped(), "the second look was 29 s ago");
        publish().await;
        assert_eq!(count(), Some(2), "reading prolongs nothing, and the record is the first one's");
        pass(1).await;
        assert!(!handle.is_tapped() && count().is_none());
        last.look(&handle);
        assert_eq!(count(), Some(0), "everything was forgotten");
        last.forget();
        assert!(!handle.is_tapped());
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_goes_on_when_the_runtime_of_its_task_has_ended() {
        let store = Arc::new(MemoryStore::new());
        let config = BrokerConfig::default();
        let broker = Broker::build(config, Box::new(Anonymous::default()), store, Vec::new()).unwrap();
        let last = LastMessages::default();
        last.look(&broker.handle());
        last.lock().as_ref().unwrap().task.abort();
        tokio::task::yield_now().await;
        last.look(&broker.handle());
        advance(LINGER).await;
        tokio::time::sleep(VISIT * 2).await;
        assert!(!broker.handle().is_tapped(), "another task has ended it");
    }
}
