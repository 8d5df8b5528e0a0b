//! Age of queued messages (`limits.queued_secs`) across restarts, by the wall clock: the store has the enqueue time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use braid_broker::{Anonymous, BrokerConfig, Counter, LimitsConfig};
use braid_proto::packet::QoS;
use braid_store::{Change, QueueEntry, RecoveredState, Store, StoredDelivery};

use crate::disk::{Disk, over_a_file};
use crate::support::{Client, TestBroker, connect_v5, lasting, pass, quiet, texts};

const DAY: Duration = Duration::from_secs(86_400);

/// A broker with a limit of the queueing time, and its store.
struct Scene {
    disk: Disk,
    store: Arc<dyn Store>,
    broker: TestBroker,
}

impl Scene {
    fn start(queued_secs: u64) -> Self {
        Self::over(Disk::new(), queued_secs)
    }

    fn over(disk: Disk, queued_secs: u64) -> Self {
        let store = disk.open();
        let limits = LimitsConfig { queued_secs, ..LimitsConfig::default() };
        let config = BrokerConfig { limits, ..quiet() };
        let broker = TestBroker::start_with_all(config, Anonymous::default(), store.clone());
        Self { disk, store, broker }
    }

    /// A broker with offline clients subscribed to `filter`, and messages for them.
    async fn filled(queued_secs: u64, clients: &[&str], filter: &str, texts: &[&str]) -> Self {
        let scene = Self::start(queued_secs);
        for client in clients {
            scene.absent(client, filter).await;
        }
        let mut publisher = scene.broker.v5("publisher").await;
        for text in texts {
            publisher.publish("t", text, QoS::ExactlyOnce).await;
        }
        publisher.disconnect().await;
        scene
    }

    async fn absent(&self, client: &str, filter: &str) {
        let mut client = self.broker.resume(client).await;
        client.subscribe(filter, QoS::ExactlyOnce).await;
        client.disconnect().await;
    }

    /// Ends the process, and starts another after a number of seconds.
    fn crash_for(self, seconds: u64) -> Self {
        self.crash_and_move(60, |at| at - Duration::from_secs(seconds))
    }

    /// Crashes the broker, and starts another with another limit and another clock.
    fn crash_and_move(self, queued_secs: u64, change: impl Fn(SystemTime) -> SystemTime) -> Self {
        let disk = self.disk.after_crash();
        let store = disk.open();
        move_waits(&*store, change);
        drop(store);
        Self::over(disk, queued_secs)
    }

    fn entries(&self) -> Vec<QueueEntry> {
        let sessions = image(&*self.store).sessions.into_values();
        sessions.flat_map(|session| session.queue).map(|(_, entry)| entry).collect()
    }

    /// Enqueue times of the queued messages.
    fn waits(&self) -> Vec<Option<SystemTime>> {
        let waiting = |entry| if let QueueEntry::Waiting(delivery) = entry { Some(delivery) } else { None };
        self.entries().into_iter().filter_map(waiting).map(|delivery| delivery.enqueued_at).collect()
    }

    fn outdated(&self) -> u64 {
        assert_eq!(
            self.broker.statistics().get(Counter::MessagesDropped),
            self.broker.statistics().get(Counter::MessagesOutdated)
        );
        self.broker.statistics().get(Counter::MessagesOutdated)
    }

    async fn take_all(&self, client: &str) -> Vec<String> {
        texts(&self.broker.resume(client).await.take_all().await)
    }
}

fn image(store: &dyn Store) -> RecoveredState {
    let mut image = RecoveredState::default();
    store.recover(&mut image).expect("it can be read");
    image
}

/// Changes the enqueue time of every queued message.
fn move_waits(store: &dyn Store, change: impl Fn(SystemTime) -> SystemTime) {
    for (session, image) in image(store).sessions {
        for (lsn, entry) in image.queue {
            let (QueueEntry::Waiting(delivery) | QueueEntry::Sent(_, delivery)) = &entry else { continue };
            let enqueued_at = delivery.enqueued_at.map(&change);
            let (number, delivery) = (delivery.message, StoredDelivery { enqueued_at, ..delivery.clone() });
            let message =
                store.messages_of(&[number]).wait().expect("it can be read").remove(0).expect("it is there");
            let stored = Change::Stored { lsn: number, message };
            let mut changes = vec![stored, Change::Queued { session, lsn, delivery }];
            if let QueueEntry::Sent(packet_id, _) = entry {
                changes.push(Change::Sent { session, lsn, packet_id });
            }
            store.commit(changes.into_iter().collect()).wait().expect("it takes everything");
        }
    }
}

/// A client that takes one message at a time.
async fn slow(scene: &Scene, client: &str) -> Client {
    let mut connect = lasting(client);
    connect.properties.receive_maximum = Some(1);
    scene.broker.connect(connect).await
}

/// Applies to stored entries and to messages in memory, without a connection of their client.
#[tokio::test(start_paused = true)]
async fn messages_too_old_at_the_start_are_dropped() {
    for (clients, filter) in [(&["a"][..], "t"), (&["a", "b"], "t"), (&["a"], "$share/g/t")] {
        let scene = Scene::filled(60, clients, filter, &["1", "2"]).await.crash_for(62);
        // Before any client can find a queue full of them.
        assert_eq!(scene.outdated(), 2 * clients.len() as u64, "{clients:?} {filter}");
        pass(1).await;
        assert_eq!(scene.entries().len(), 0, "{clients:?} {filter}");
        assert_eq!(scene.take_all("a").await, Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn time_left_at_the_start_is_kept() {
    for clients in [&["a"][..], &["a", "b"]] {
        let scene = Scene::filled(60, clients, "t", &["1"]).await.crash_for(20);
        pass(39).await;
        assert_eq!(scene.outdated(), 0);
        pass(13).await;
        assert_eq!((scene.outdated(), scene.entries().len()), (clients.len() as u64, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn messages_with_time_left_at_the_start_are_delivered() {
    for clients in [&["a"][..], &["a", "b"]] {
        let scene = Scene::filled(60, clients, "t", &["1", "2"]).await.crash_for(20);
        pass(39).await;
        assert_eq!((scene.take_all("a").await, scene.outdated()), (vec!["1".to_owned(), "2".to_owned()], 0));
    }
}

/// A message that is read from the store keeps its age.
#[tokio::test(start_paused = true)]
async fn age_counts_from_before_the_start_for_a_slow_client() {
    let scene = Scene::filled(60, &["a"], "t", &["1", "2"]).await.crash_for(20);
    let mut client = slow(&scene, "a").await;
    let publish = client.expect_publish().await;
    pass(42).await;
    client.acknowledge(&publish).await;
    assert_eq!(texts(&client.take_all().await), Vec::<String>::new());
    assert_eq!(scene.outdated(), 1);
}

/// An age that overflows the counter of seconds counts as too old.
#[tokio::test(start_paused = true)]
async fn age_beyond_the_counter_is_too_old() {
    for years in [1, 150] {
        let scene = Scene::filled(60, &["a"], "t", &["1"]).await.crash_for(years * 31_557_600);
        pass(11).await;
        assert_eq!((scene.outdated(), scene.entries().len()), (1, 0), "{years} years");
    }
}

/// Its age begins at the start; by the correct clock it is the true one.
#[tokio::test(start_paused = true)]
async fn clock_set_back_restarts_the_age() {
    let scene = Scene::filled(60, &["a"], "t", &["1"]).await;
    let scene = scene.crash_and_move(60, |at| at + DAY);
    pass(59).await;
    assert_eq!((scene.outdated(), scene.entries().len()), (0, 1));
    let scene = scene.crash_and_move(60, |at| at - DAY - Duration::from_secs(62));
    pass(11).await;
    assert_eq!((scene.outdated(), scene.entries().len()), (1, 0));
}

/// Without a limit no enqueue time is stored.
#[tokio::test(start_paused = true)]
async fn messages_without_an_enqueue_time_age_from_the_start() {
    let scene = Scene::filled(0, &["a"], "t", &["1"]).await;
    assert_eq!(scene.waits(), [None]);
    let scene = scene.crash_for(100);
    scene.broker.v5("publisher").await.publish("t", "2", QoS::AtLeastOnce).await;
    assert_eq!(scene.waits().iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
    pass(59).await;
    assert_eq!(scene.outdated(), 0);
    pass(13).await;
    assert_eq!((scene.outdated(), scene.entries().len()), (2, 0));
}

/// The recorded time stays for a limit that is set again.
#[tokio::test(start_paused = true)]
async fn no_age_limit_drops_nothing() {
    let scene = Scene::filled(60, &["a"], "t", &["1"]).await.crash_and_move(0, |at| at - DAY);
    pass(100).await;
    assert_eq!((scene.outdated(), scene.entries().len()), (0, 1));
    let scene = scene.crash_for(0);
    pass(11).await;
    assert_eq!((scene.outdated(), scene.entries().len()), (1, 0));
}

/// Inflight messages are not queued, and the client may have them already. [MQTT-4.4.0-1]
#[tokio::test(start_paused = true)]
async fn inflight_messages_are_never_too_old() {
    let scene = Scene::start(60);
    let mut client = slow(&scene, "a").await;
    client.subscribe("t", QoS::ExactlyOnce).await;
    let mut publisher = scene.broker.v5("publisher").await;
    for text in ["sent", "waits"] {
        publisher.publish("t", text, QoS::ExactlyOnce).await;
    }
    let first = client.expect_publish().await;
    let scene = scene.crash_for(100);
    pass(70).await;
    assert_eq!(scene.outdated(), 1);
    let mut client = slow(&scene, "a").await;
    let again = client.expect_publish().await;
    assert_eq!((&*again.payload, again.packet_id, again.dup), (&b"sent"[..], first.packet_id, true));
    client.acknowledge(&again).await;
    client.expect_silence().await;
    assert_eq!(scene.entries(), []);
}

/// A message queued for one member keeps its age with another, before a start and after it. [MQTT-4.8.2-4]
#[tokio::test(start_paused = true)]
async fn redistributed_queued_messages_keep_their_age() {
    let scene = Scene::filled(2000, &["a"], "$share/g/t", &["1"]).await;
    let before = SystemTime::now();
    scene.absent("b", "$share/g/t").await;
    pass(1000).await;
    // By the end of its session.
    scene.broker.connect(connect_v5("a")).await;
    let waits = scene.waits();
    let since = waits[0].expect("there is a cap");
    assert!(waits.len() == 1 && since < before, "{since:?} {before:?}");
    let scene = scene.crash_and_move(2000, |at| at - Duration::from_secs(500));
    scene.absent("c", "$share/g/t").await;
    scene.broker.connect(connect_v5("b")).await;
    pass(498).await;
    assert_eq!((scene.outdated(), scene.waits().len()), (0, 1));
    pass(15).await;
    assert_eq!((scene.outdated(), scene.entries().len()), (1, 0));
}

/// An unacknowledged message was sent in time, and is not lost. [MQTT-4.8.2-5]
#[tokio::test(start_paused = true)]
async fn redistributed_inflight_messages_begin_a_new_age() {
    let scene = Scene::start(60);
    let mut client = slow(&scene, "a").await;
    client.subscribe("$share/g/t", QoS::AtLeastOnce).await;
    scene.broker.v5("publisher").await.publish("t", "1", QoS::AtLeastOnce).await;
    client.expect_publish().await;
    client.vanish().await;
    scene.absent("b", "$share/g/t").await;
    pass(100).await;
    scene.broker.connect(connect_v5("a")).await;
    pass(50).await;
    assert_eq!((scene.take_all("b").await, scene.outdated()), (vec!["1".to_owned()], 0));
}

over_a_file!(
    messages_too_old_at_the_start_are_dropped,
    time_left_at_the_start_is_kept,
    clock_set_back_restarts_the_age,
    messages_without_an_enqueue_time_age_from_the_start,
    inflight_messages_are_never_too_old,
    redistributed_queued_messages_keep_their_age
);
