//! Queued messages from before a start stay in the store until their client connects.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use braid_broker::{Anonymous, BrokerConfig, Counter, LimitsConfig};
use braid_proto::packet::{ClientId, Connect, MessageProperties, ProtocolVersion, Publish, QoS, Will};
use braid_proto::reason::ReasonCode;
use braid_store::{
    Batch, Claim, Commit, Completion, LazyMessage, Lsn, MemoryStore, NextIds, Recover, RecoveredState, Store,
    StoreError, StoredMessage,
};

use crate::support::{TestBroker, allocated, connect_v5, lasting, message, pass, quiet, texts, will};

/// Store that counts the messages read by number, or fails to read them.
#[derive(Default)]
struct Watched {
    inner: MemoryStore,
    reads: AtomicUsize,
    readers: Mutex<HashSet<ThreadId>>,
    is_unreadable: AtomicBool,
}

impl Watched {
    fn over(inner: &MemoryStore) -> Arc<Self> {
        Arc::new(Self { inner: inner.reopen(), ..Self::default() })
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    fn queued(&self) -> usize {
        let mut image = RecoveredState::default();
        self.inner.recover(&mut image).expect("memory can be read");
        image.sessions.values().map(|session| session.queue.len()).sum()
    }
}

impl Store for Watched {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        self.inner.recover(into)
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        self.inner.claim(client_id)
    }

    fn commit(&self, batch: Batch) -> Commit {
        self.inner.commit(batch)
    }

    fn messages_of(&self, lsns: &[Lsn]) -> Completion<Vec<Option<StoredMessage>>> {
        if self.is_unreadable.load(Ordering::SeqCst) {
            return Completion::Done(Err(StoreError::Damaged { reason: "as this test wants".into() }));
        }
        self.reads.fetch_add(lsns.len(), Ordering::SeqCst);
        self.readers.lock().expect("not poisoned").insert(std::thread::current().id());
        self.inner.messages_of(lsns)
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError> {
        self.inner.messages(show)
    }
}

/// A store with a queue for each client; the clients have subscribed to these filters and are offline.
async fn filled(clients: &[(&str, &str)], publishes: impl IntoIterator<Item = Publish>) -> MemoryStore {
    let store = Arc::new(MemoryStore::new());
    let mut broker = TestBroker::start_over(store.clone());
    for (client_id, filter) in clients {
        let mut client = broker.resume(client_id).await;
        client.subscribe(filter, QoS::AtLeastOnce).await;
        client.vanish().await;
    }
    let mut publisher = broker.v5("publisher").await;
    for publish in publishes {
        let publish = Publish { qos: QoS::AtLeastOnce, ..publish };
        assert_eq!(publisher.publish_as(publish).await, ReasonCode::Success);
    }
    drop(publisher);
    broker.handle.stop();
    broker.ended().await;
    store.reopen()
}

#[tokio::test(start_paused = true)]
async fn messages_for_one_client_alone_are_read_when_it_connects() {
    let clients = [("one", "one"), ("a", "all"), ("b", "all"), ("member", "$share/g/shared")];
    let topics = ["one", "all", "shared", "one", "all"];
    let store = filled(&clients, topics.map(|topic| message(topic, topic))).await;
    let store = Watched::over(&store);
    let broker = TestBroker::start_over(store.clone());
    for (client, expected, reads) in [
        ("a", &["all", "all"][..], 0),
        ("one", &["one", "one"], 2),
        ("b", &["all", "all"], 2),
        ("member", &["shared"], 2),
    ] {
        assert_eq!(texts(&broker.resume(client).await.take_all().await), expected, "{client}");
        assert_eq!(store.reads(), reads, "after {client}");
    }
    assert_eq!(store.queued(), 0);
    // A read may block: this thread, the runtime's own, makes none.
    assert!(!store.readers.lock().expect("not poisoned").contains(&std::thread::current().id()));
}

/// A million of them take a tenth of a gigabyte, for payloads of any size.
#[tokio::test(start_paused = true)]
async fn stored_entries_take_little_memory() {
    const MESSAGES: i64 = 2000;
    let clients = [("client", "t")];
    let held = |store: MemoryStore| {
        let before = allocated();
        let broker = TestBroker::start_over(Arc::new(store));
        (allocated() - before, broker)
    };
    let (empty, _broker) = held(filled(&clients, []).await);
    let full = filled(&clients, (0..MESSAGES).map(|number| message("t", number.to_string()))).await;
    let (full, broker) = held(full);
    let each = (full - empty) / MESSAGES;
    assert!(each <= 64, "{each} bytes for each of them");
    let got = texts(&broker.resume("client").await.take_all().await);
    assert_eq!(got, (0..MESSAGES).map(|number| number.to_string()).collect::<Vec<_>>());
}

/// The client gets an error, and nothing is lost.
#[tokio::test(start_paused = true)]
async fn queue_that_cannot_be_read_stays_in_the_store() {
    let store = filled(&[("client", "t")], ["1", "2"].map(|text| message("t", text))).await;
    let store = Watched::over(&store);
    let broker = TestBroker::start_over(store.clone());
    store.is_unreadable.store(true, Ordering::SeqCst);
    let mut client = broker.link(ProtocolVersion::V5).await;
    client.send_connect(lasting("client")).await;
    assert_eq!(client.expect_connack().await.reason, ReasonCode::ServerUnavailable);
    client.expect_end().await;
    store.is_unreadable.store(false, Ordering::SeqCst);
    broker.v5("publisher").await.publish("t", "3", QoS::AtLeastOnce).await;
    assert_eq!(texts(&broker.resume("client").await.take_all().await), ["1", "2", "3"]);
    assert_eq!(store.queued(), 0);
}

/// [MQTT-3.1.3-9]: only an accepted connection cancels the Will.
#[tokio::test(start_paused = true)]
async fn delayed_will_outlives_a_refused_connection() {
    let store = Arc::new(MemoryStore::new());
    let mut broker = TestBroker::start_over(store.clone());
    let with_will =
        || Connect { will: Some(Will { delay: 60, ..will("will", "gone") }), ..lasting("client") };
    let mut client = broker.connect(with_will()).await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    client.vanish().await;
    broker.v5("publisher").await.publish("t", "1", QoS::AtLeastOnce).await;
    broker.handle.stop();
    broker.ended().await;
    let store = Watched::over(&store);
    let broker = TestBroker::start_over(store.clone());
    let mut watcher = broker.v5("watcher").await;
    watcher.subscribe("will", QoS::AtMostOnce).await;
    store.is_unreadable.store(true, Ordering::SeqCst);
    pass(50).await;
    let mut client = broker.link(ProtocolVersion::V5).await;
    client.send_connect(with_will()).await;
    assert_eq!(client.expect_connack().await.reason, ReasonCode::ServerUnavailable);
    watcher.expect_silence().await;
    pass(61).await;
    assert_eq!(watcher.take().await, "gone");
}

/// A message with a Message Expiry Interval in seconds.
fn brief(text: &str, seconds: u32) -> Publish {
    let properties = MessageProperties { message_expiry: Some(seconds), ..MessageProperties::default() };
    Publish { properties: Some(Box::new(properties)), ..message("t", text) }
}

/// The expiry of a message goes on in the store. [MQTT-3.3.2-5]
#[tokio::test(start_paused = true)]
async fn messages_that_expire_in_the_store_are_not_delivered() {
    for (seconds, expected) in [(29, &["expires", "stays"][..]), (31, &["stays"])] {
        let publishes = [brief("expires", 30), message("t", "stays")];
        let store = Watched::over(&filled(&[("client", "t")], publishes).await);
        let broker = TestBroker::start_over(store.clone());
        pass(seconds).await;
        let got = broker.resume("client").await.take_all().await;
        assert_eq!(texts(&got), expected, "after {seconds} s");
        assert_eq!(store.queued(), 0);
    }
}

/// A message for several clients is in memory, one for a single client is not; both are removed, and no other.
#[tokio::test(start_paused = true)]
async fn expired_entries_are_removed_unread() {
    for clients in [&[("client", "t")][..], &[("client", "t"), ("other", "t")]] {
        let publishes = [brief("30", 30), brief("60", 60), message("t", "stays")];
        let store = Watched::over(&filled(clients, publishes).await);
        let broker = TestBroker::start_over(store.clone());
        for (seconds, left) in [(29, 3), (12, 2), (31, 1), (1000, 1)] {
            pass(seconds).await;
            assert_eq!(store.queued(), left * clients.len(), "{seconds} s later");
        }
        assert_eq!(
            (store.reads(), broker.statistics().get(Counter::MessagesDropped)),
            (0, 2 * clients.len() as u64)
        );
        assert_eq!(texts(&broker.resume("client").await.take_all().await), ["stays"]);
    }
}

/// Before the periodic search.
#[tokio::test(start_paused = true)]
async fn expired_entries_make_room_in_a_full_queue() {
    let publishes = [brief("brief", 3), message("t", "1"), brief("brief too", 3)];
    let store = Watched::over(&filled(&[("client", "t")], publishes).await);
    let limits = LimitsConfig { queued_messages: 3, ..LimitsConfig::default() };
    let config = BrokerConfig { limits, ..quiet() };
    let broker = TestBroker::start_with_all(config, Anonymous::default(), store.clone());
    let mut publisher = broker.v5("publisher").await;
    publisher.publish("t", "too much", QoS::AtLeastOnce).await;
    pass(5).await;
    for text in ["2", "3"] {
        publisher.publish("t", text, QoS::AtLeastOnce).await;
    }
    assert_eq!((store.queued(), store.reads()), (3, 0));
    assert_eq!(texts(&broker.resume("client").await.take_all().await), ["1", "2", "3"]);
    let statistics = broker.statistics();
    assert_eq!(
        (statistics.get(Counter::MessagesDropped), statistics.get(Counter::MessagesOverflowed)),
        (3, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn aged_entries_are_removed_unread() {
    let store = filled(&[("client", "t")], ["1", "2"].map(|text| message("t", text))).await;
    let store = Watched::over(&store);
    let limits = LimitsConfig { queued_secs: 60, ..LimitsConfig::default() };
    let config = BrokerConfig { limits, ..quiet() };
    let broker = TestBroker::start_with_all(config, Anonymous::default(), store.clone());
    pass(59).await;
    assert_eq!((broker.statistics().get(Counter::MessagesOutdated), store.queued()), (0, 2));
    pass(15).await;
    assert_eq!((broker.statistics().get(Counter::MessagesOutdated), store.queued()), (2, 0));
    broker.v5("publisher").await.publish("t", "3", QoS::AtLeastOnce).await;
    assert_eq!(texts(&broker.resume("client").await.take_all().await), ["3"]);
    assert_eq!(store.reads(), 0);
}

/// A stored entry is older than every message that arrived since the start.
#[tokio::test(start_paused = true)]
async fn entries_keep_their_age_when_they_are_read() {
    let store = filled(&[("client", "t")], ["1", "2"].map(|text| message("t", text))).await;
    let limits = LimitsConfig { queued_secs: 60, ..LimitsConfig::default() };
    let config = BrokerConfig { limits, ..quiet() };
    let broker = TestBroker::start_with_all(config, Anonymous::default(), Arc::new(store));
    pass(40).await;
    let mut connect = lasting("client");
    connect.properties.receive_maximum = Some(1);
    let mut client = broker.connect(connect).await;
    pass(25).await;
    assert_eq!(texts(&client.take_all().await), ["1"]);
    assert_eq!(broker.statistics().get(Counter::MessagesOutdated), 1);
}

#[tokio::test(start_paused = true)]
async fn stored_entries_count_against_the_limits() {
    let large = "x".repeat(10_000);
    let store = filled(&[("client", "t")], [message("t", &large), message("t", &large)]).await;
    let limits = LimitsConfig { queued_bytes: 25_000, ..LimitsConfig::default() };
    let config = BrokerConfig { limits, ..quiet() };
    let broker = TestBroker::start_with_all(config, Anonymous::default(), Arc::new(store));
    let mut publisher = broker.v5("publisher").await;
    publisher.publish("t", &large, QoS::AtLeastOnce).await;
    assert_eq!(broker.statistics().get(Counter::MessagesOverflowed), 1);
    publisher.publish("t", "small", QoS::AtLeastOnce).await;
    assert_eq!(texts(&broker.resume("client").await.take_all().await), [&large, &large, "small"]);
}

// [MQTT-4.8.2-4]
#[tokio::test(start_paused = true)]
async fn shared_messages_are_redistributed_when_a_session_ends() {
    let store = filled(&[("first", "$share/g/t")], ["1", "2"].map(|text| message("t", text))).await;
    let broker = TestBroker::start_over(Arc::new(store));
    let mut second = broker.resume("second").await;
    second.subscribe("$share/g/t", QoS::AtLeastOnce).await;
    broker.connect(connect_v5("first")).await;
    assert_eq!(texts(&second.take_all().await), ["1", "2"]);
}
