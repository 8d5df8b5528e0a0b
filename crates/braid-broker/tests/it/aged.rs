//! What waits grows older while no broker runs (`limits.queued_secs`), by the clock of the world: the store has the time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use braid_broker::{Anonymous, BrokerConfig, LimitsConfig};
use braid_proto::packet::QoS;
use braid_store::{Change, Image, QueueEntry, Store, StoredDelivery};

use crate::disk::{Disk, over_a_file};
use crate::support::{Client, TestBroker, connect_v5, lasting, pass, quiet, texts};

const DAY: Duration = Duration::from_secs(86_400);

/// A broker in which nothing waits for longer than so many seconds, and its store.
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

    /// The same with these clients, who are away, and have subscribed to this, and messages for them.
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

    /// The process ends, and another begins after so many seconds.
    fn crash_for(self, seconds: u64) -> Self {
        self.crash_and_move(60, |at| at - Duration::from_secs(seconds))
    }

    /// The same, with another cap and another clock.
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

    /// Since when what waits does so.
    fn waits(&self) -> Vec<Option<SystemTime>> {
        let waiting = |entry| if let QueueEntry::Waiting(delivery) = entry { Some(delivery) } else { None };
        self.entries().into_iter().filter_map(waiting).map(|delivery| delivery.waits_since).collect()
    }

    fn outdated(&self) -> u64 {
        assert_eq!(self.broker.statistics().messages_dropped(), self.broker.statistics().messages_outdated());
        self.broker.statistics().messages_outdated()
    }

    async fn take_all(&self, client: &str) -> Vec<String> {
        texts(&self.broker.resume(client).await.take_all().await)
    }
}

fn image(store: &dyn Store) -> Image {
    let mut image = Image::default();
    store.recover(&mut image).expect("it can be read");
    image
}

/// Changes since when everything waits.
fn move_waits(store: &dyn Store, change: impl Fn(SystemTime) -> SystemTime) {
    for (session, image) in image(store).sessions {
        for (lsn, entry) in image.queue {
            let (QueueEntry::Waiting(delivery) | QueueEntry::Sent(_, delivery)) = &entry else { continue };
            let waits_since = delivery.waits_since.map(&change);
            let (number, delivery) = (delivery.message, StoredDelivery { waits_since, ..delivery.clone() });
            let message = store.message(number).wait().expect("it can be read").expect("it is there");
            let stored = Change::Stored { lsn: number, message };
            let mut changes = vec![stored, Change::Queued { session, lsn, delivery }];
            if let QueueEntry::Sent(packet_id, _) = entry {
                changes.push(Change::Sent { session, lsn, packet_id });
            }
            store.commit(changes.into_iter().collect()).wait().expect("it takes everything");
        }
    }
}

/// One that takes one message at a time.
async fn slow(scene: &Scene, client: &str) -> Client {
    let mut connect = lasting(client);
    connect.properties.receive_maximum = Some(1);
    scene.broker.connect(connect).await
}

/// Whether it is in the store alone, or in memory since the start: nobody comes for it, and nobody has to.
#[tokio::test(start_paused = true)]
async fn what_was_too_old_at_the_start_goes_by_itself() {
    for (clients, filter) in [(&["a"][..], "t"), (&["a", "b"], "t"), (&["a"], "$share/g/t")] {
        let scene = Scene::filled(60, clients, filter, &["1", "2"]).await.crash_for(62);
        // Before anybody can find a queue full of it.
        assert_eq!(scene.outdated(), 2 * clients.len() as u64, "{clients:?} {filter}");
        pass(1).await;
        assert_eq!(scene.entries().len(), 0, "{clients:?} {filter}");
        assert_eq!(scene.take_all("a").await, Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_time_left_at_the_start_has_no_more_than_that() {
    for clients in [&["a"][..], &["a", "b"]] {
        let scene = Scene::filled(60, clients, "t", &["1"]).await.crash_for(20);
        pass(39).await;
        assert_eq!(scene.outdated(), 0);
        pass(13).await;
        assert_eq!((scene.outdated(), scene.entries().len()), (clients.len() as u64, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_time_left_at_the_start_is_delivered() {
    for clients in [&["a"][..], &["a", "b"]] {
        let scene = Scene::filled(60, clients, "t", &["1", "2"]).await.crash_for(20);
        pass(39).await;
        assert_eq!((scene.take_all("a").await, scene.outdated()), (vec!["1".to_owned(), "2".to_owned()], 0));
    }
}

/// What is read from the store for a client that has come is no younger for that.
#[tokio::test(start_paused = true)]
async fn what_a_slow_client_has_not_got_grows_old_from_before_the_start_on() {
    let scene = Scene::filled(60, &["a"], "t", &["1", "2"]).await.crash_for(20);
    let mut client = slow(&scene, "a").await;
    let publish = client.expect_publish().await;
    pass(42).await;
    client.acknowledge(&publish).await;
    assert_eq!(texts(&client.take_all().await), Vec::<String>::new());
    assert_eq!(scene.outdated(), 1);
}

/// What waits for longer than there are seconds to count is too old, and not young again.
#[tokio::test(start_paused = true)]
async fn what_waits_for_very_long_is_too_old() {
    for years in [1, 150] {
        let scene = Scene::filled(60, &["a"], "t", &["1"]).await.crash_for(years * 31_557_600);
        pass(11).await;
        assert_eq!((scene.outdated(), scene.entries().len()), (1, 0), "{years} years");
    }
}

/// As if it had come at the start; by the right clock it is as old as it is.
#[tokio::test(start_paused = true)]
async fn with_a_clock_that_was_set_back_it_begins_to_wait_anew() {
    let scene = Scene::filled(60, &["a"], "t", &["1"]).await;
    let scene = scene.crash_and_move(60, |at| at + DAY);
    pass(59).await;
    assert_eq!((scene.outdated(), scene.entries().len()), (0, 1));
    let scene = scene.crash_and_move(60, |at| at - DAY - Duration::from_secs(62));
    pass(11).await;
    assert_eq!((scene.outdated(), scene.entries().len()), (1, 0));
}

/// Nobody asked: it is not written.
#[tokio::test(start_paused = true)]
async fn what_came_while_there_was_no_cap_begins_to_wait_at_the_start() {
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

/// The time stays where it is for a cap that comes back.
#[tokio::test(start_paused = true)]
async fn without_a_cap_nothing_is_too_old() {
    let scene = Scene::filled(60, &["a"], "t", &["1"]).await.crash_and_move(0, |at| at - DAY);
    pass(100).await;
    assert_eq!((scene.outdated(), scene.entries().len()), (0, 1));
    let scene = scene.crash_for(0);
    pass(11).await;
    assert_eq!((scene.outdated(), scene.entries().len()), (1, 0));
}

/// It does not wait, and its receiver may have it already. [MQTT-4.4.0-1]
#[tokio::test(start_paused = true)]
async fn what_is_on_its_way_is_never_too_old() {
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

/// What waited for one member waits on for another, before a start and after it. [MQTT-4.8.2-4]
#[tokio::test(start_paused = true)]
async fn what_another_member_gets_has_waited_before() {
    let scene = Scene::filled(2000, &["a"], "$share/g/t", &["1"]).await;
    let before = SystemTime::now();
    scene.absent("b", "$share/g/t").await;
    pass(1000).await;
    // The end of its session.
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

/// It came in time, and was not acknowledged: it is not lost for that. [MQTT-4.8.2-5]
#[tokio::test(start_paused = true)]
async fn what_a_member_had_got_begins_to_wait_for_another() {
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
    what_was_too_old_at_the_start_goes_by_itself,
    what_has_time_left_at_the_start_has_no_more_than_that,
    with_a_clock_that_was_set_back_it_begins_to_wait_anew,
    what_came_while_there_was_no_cap_begins_to_wait_at_the_start,
    what_is_on_its_way_is_never_too_old,
    what_another_member_gets_has_waited_before
);
