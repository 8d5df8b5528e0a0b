//! Restarts and crashes: a broker that starts over the store of another continues its sessions.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use braid_broker::{Anonymous, BrokerConfig, Counter, LimitsConfig};
use braid_proto::packet::{
    Ack, AckKind, ClientId, Connect, Disconnect, MessageProperties, Packet, Publish, QoS, Subscribe,
    SubscribeEntry, Will,
};
use braid_proto::reason::ReasonCode;
use braid_store::{
    Batch, Change, Claim, Commit, Completion, LazyMessage, Lsn, NextIds, QueueEntry, Recover,
    RecoveredSession, RecoveredState, Store, StoreError, StoredMessage,
};

use crate::disk::{Disk, over_a_file};
use crate::support::{
    Client, TestBroker, connect_v5, filter, id, lasting, message, pass, publish_packet, quiet, settle, texts,
    unsubscribe_packet, will,
};

/// Broker that can be restarted, or can crash at any moment.
struct Restartable {
    disk: Disk,
    store: Arc<dyn Store>,
    broker: TestBroker,
}

impl Restartable {
    fn start() -> Self {
        Self::start_with(quiet())
    }

    fn start_with(config: BrokerConfig) -> Self {
        Self::over(config, Disk::new(), |_| {})
    }

    fn over(config: BrokerConfig, disk: Disk, meanwhile: impl FnOnce(&dyn Store)) -> Self {
        let store = disk.open();
        meanwhile(&*store);
        let broker = TestBroker::start_with_all(config, Anonymous::default(), store.clone());
        Self { disk, store, broker }
    }

    /// Content of the store.
    fn image(&self) -> RecoveredState {
        let mut image = RecoveredState::default();
        self.store.recover(&mut image).expect("it can be read");
        image
    }

    fn session(&self, client_id: &str) -> Option<RecoveredSession> {
        self.image().sessions.into_values().find(|session| session.record.client_id.as_str() == client_id)
    }

    /// Crashes the broker and starts another over its store: changes of the old one are fenced from then on.
    fn crash(self) -> Self {
        self.crash_for(Duration::ZERO)
    }

    /// Crashes the broker and starts another after `downtime`.
    fn crash_for(self, downtime: Duration) -> Self {
        self.crash_and_move(|at| at - downtime)
    }

    /// Crashes the broker, and sets the clock back before the next start.
    fn crash_and_set_back(self, by: Duration) -> Self {
        self.crash_and_move(|at| at + by)
    }

    /// Crashes the broker, and sets the clock forward before the next start, like a downtime.
    fn crash_and_set_forward(self, by: Duration) -> Self {
        self.crash_for(by)
    }

    fn crash_and_move(self, change: impl Fn(SystemTime) -> SystemTime) -> Self {
        Self::over(quiet(), self.disk.after_crash(), |store| move_disconnections(store, change))
    }

    /// Stops the broker and starts another.
    async fn restart(mut self) -> Self {
        self.broker.handle.stop();
        self.broker.ended().await;
        Self::over(quiet(), self.disk.after_crash(), |_| {})
    }
}

/// Changes the time of every disconnection in the store.
fn move_disconnections(store: &dyn Store, change: impl Fn(SystemTime) -> SystemTime) {
    let mut image = RecoveredState::default();
    store.recover(&mut image).expect("it can be read");
    for (session, RecoveredSession { record, claim, .. }) in image.sessions {
        let Some(at) = record.parked_at else { continue };
        let parked = Change::Parked { session, at: change(at), expiry: record.expiry, claim };
        store.commit([parked].into_iter().collect()).wait().expect("it takes everything");
    }
}

fn entries(session: Option<RecoveredSession>) -> Vec<QueueEntry> {
    session.expect("the store has the session").queue.into_iter().map(|(_, entry)| entry).collect()
}

#[tokio::test(start_paused = true)]
async fn sessions_are_recovered_with_subscriptions_and_queues_in_order() {
    let mortal = Restartable::start();
    let mut publisher = mortal.broker.v5("publisher").await;
    let mut client = mortal.broker.resume("client").await;
    client.subscribe("a/+", QoS::ExactlyOnce).await;
    client.subscribe("b", QoS::AtLeastOnce).await;
    client.subscribe("c", QoS::AtLeastOnce).await;
    client.send(unsubscribe_packet(77, &["c"])).await;
    client.find_unsuback().await;
    client.disconnect().await;
    let all: Vec<_> = (0..300).map(|number| number.to_string()).collect();
    let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce];
    for (number, text) in all[..200].iter().enumerate() {
        publisher.publish(["a/1", "b", "a/2"][number % 3], text, qos[number % 2]).await;
        publisher.publish("b", "not kept", QoS::AtMostOnce).await;
    }
    drop(publisher);
    let mortal = mortal.restart().await;
    let mut publisher = mortal.broker.v5("publisher").await;
    for text in &all[200..] {
        publisher.publish("a/1", text, QoS::AtLeastOnce).await;
    }
    publisher.publish("c", "unsubscribed", QoS::AtLeastOnce).await;
    let mortal = mortal.crash();
    let mut client = mortal.broker.resume("client").await;
    assert!(client.connack().session_present);
    let got = client.take_many(300).await;
    assert_eq!(texts(&got), all);
    assert!(got.iter().all(|publish| !publish.dup));
    client.expect_silence().await;
    assert_eq!(entries(mortal.session("client")), [], "what is done is not kept");
    // The subscriptions are in the routing table as well.
    let mut publisher = mortal.broker.v5("publisher").await;
    publisher.publish("a/9", "live", QoS::ExactlyOnce).await;
    assert_eq!(client.take().await, "live");
}

// [MQTT-4.4.0-1], [MQTT-3.3.1-1], [MQTT-4.6.0-1]
#[tokio::test(start_paused = true)]
async fn inflight_messages_are_sent_again_with_their_identifiers() {
    let mortal = Restartable::start();
    let mut publisher = mortal.broker.v5("publisher").await;
    let mut client = mortal.broker.resume("client").await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    for number in 0..5 {
        publisher.publish("t", number.to_string(), QoS::AtLeastOnce).await;
    }
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(client.expect_publish().await.packet_id.expect("QoS 1 has one"));
    }
    client.send_ack(AckKind::Puback, ids[1]).await;
    settle().await;
    let mortal = mortal.crash();
    publisher = mortal.broker.v5("publisher").await;
    publisher.publish("t", "5", QoS::AtLeastOnce).await;
    let mut client = mortal.broker.resume("client").await;
    let again = client.take_many(5).await;
    assert_eq!(texts(&again), ["0", "2", "3", "4", "5"]);
    let again_ids: Vec<_> = again.iter().filter_map(|publish| publish.packet_id).collect();
    assert_eq!(again_ids[..4], [ids[0], ids[2], ids[3], ids[4]]);
    assert!(!ids.contains(&again_ids[4]), "a new identifier for a new message"); // [MQTT-2.2.1-3]
    let dups: Vec<_> = again.iter().map(|publish| publish.dup).collect();
    assert_eq!(dups, [true, true, true, true, false]);
    settle().await;
    assert_eq!(entries(mortal.session("client")), []);
}

// [MQTT-4.3.3-6], [MQTT-4.4.0-1]
#[tokio::test(start_paused = true)]
async fn qos_2_arrives_exactly_once_at_a_subscriber() {
    let mortal = Restartable::start();
    let mut publisher = mortal.broker.v5("publisher").await;
    let mut client = mortal.broker.resume("client").await;
    client.subscribe("t", QoS::ExactlyOnce).await;
    for text in ["sent", "released", "done"] {
        publisher.publish("t", text, QoS::ExactlyOnce).await;
    }
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(client.expect_publish().await.packet_id.expect("QoS 2 has one"));
    }
    for packet_id in &ids[1..] {
        client.send_ack(AckKind::Pubrec, *packet_id).await;
        client.find_ack(AckKind::Pubrel, *packet_id).await;
    }
    client.send_ack(AckKind::Pubcomp, ids[2]).await;
    settle().await;
    let mortal = mortal.crash();
    let mut client = mortal.broker.resume("client").await;
    assert_eq!(client.expect_ack(AckKind::Pubrel).await.packet_id, ids[1]);
    let again = client.expect_publish().await;
    assert_eq!((again.packet_id, again.dup, &*again.payload), (Some(ids[0]), true, &b"sent"[..]));
    client.expect_silence().await;
    client.send_ack(AckKind::Pubcomp, ids[1]).await;
    client.acknowledge(&again).await;
    client.expect_silence().await;
    assert_eq!(entries(mortal.session("client")), []);
}

// [MQTT-4.3.3-10], [MQTT-4.3.3-12]
#[tokio::test(start_paused = true)]
async fn qos_2_arrives_exactly_once_from_a_publisher() {
    let mortal = Restartable::start();
    let mut subscriber = mortal.broker.resume("subscriber").await;
    subscriber.subscribe("t", QoS::AtLeastOnce).await;
    subscriber.disconnect().await;
    let mut publisher = mortal.broker.resume("publisher").await;
    for (packet_id, text) in [(7, "once"), (8, "finished")] {
        publisher.send(publish_packet("t", text, QoS::ExactlyOnce, packet_id)).await;
        publisher.find_ack(AckKind::Pubrec, id(packet_id)).await;
    }
    publisher.send_ack(AckKind::Pubrel, id(8)).await;
    publisher.find_ack(AckKind::Pubcomp, id(8)).await;
    let mortal = mortal.crash();
    let mut publisher = mortal.broker.resume("publisher").await;
    let again = Publish { dup: true, qos: QoS::ExactlyOnce, packet_id: Some(id(7)), ..message("t", "once") };
    publisher.send(Packet::Publish(again)).await;
    publisher.find_ack(AckKind::Pubrec, id(7)).await;
    publisher.send_ack(AckKind::Pubrel, id(7)).await;
    publisher.find_ack(AckKind::Pubcomp, id(7)).await;
    let mortal = mortal.crash();
    // Both identifiers are free for other messages.
    let mut publisher = mortal.broker.resume("publisher").await;
    for packet_id in [7, 8] {
        publisher.send(publish_packet("t", "new", QoS::ExactlyOnce, packet_id)).await;
        publisher.find_ack(AckKind::Pubrec, id(packet_id)).await;
    }
    let mut subscriber = mortal.broker.resume("subscriber").await;
    assert_eq!(texts(&subscriber.take_all().await), ["once", "finished", "new", "new"]);
}

// Acknowledgements right before a DISCONNECT are stored.
#[tokio::test(start_paused = true)]
async fn acknowledgements_right_before_a_disconnect_are_stored() {
    let mortal = Restartable::start();
    let mut other = mortal.broker.v5("other").await;
    let mut client = mortal.broker.resume("client").await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    other.publish("t", "acknowledged", QoS::AtLeastOnce).await;
    let publish = client.expect_publish().await;
    let bye = Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success)));
    let packet_id = publish.packet_id.expect("QoS 1 has one");
    let ack = Ack::new(AckKind::Puback, packet_id, ReasonCode::Success);
    client.send_all([Packet::Ack(ack), publish_packet("t", "last", QoS::ExactlyOnce, 9), bye]).await;
    while client.next().await.is_some() {}
    let session = mortal.session("client").expect("it is parked");
    assert!(session.record.parked_at.is_some());
    assert_eq!(session.received.into_keys().collect::<Vec<_>>(), [id(9)]);
    let mortal = mortal.crash();
    let mut client = mortal.broker.resume("client").await;
    assert_eq!(texts(&client.take_all().await), ["last"]);
}

/// Store whose clock is two hours ahead of that of the machine.
struct Ahead(Arc<dyn Store>);

const AHEAD: Duration = Duration::from_secs(2 * 3600);

impl Store for Ahead {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        self.0.recover(into)
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        self.0.claim(client_id)
    }

    fn commit(&self, batch: Batch) -> Commit {
        self.0.commit(batch)
    }

    fn messages_of(&self, lsns: &[Lsn]) -> Completion<Vec<Option<StoredMessage>>> {
        self.0.messages_of(lsns)
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError> {
        self.0.messages(show)
    }

    fn wall_clock(&self) -> SystemTime {
        SystemTime::now() + AHEAD
    }
}

#[tokio::test(start_paused = true)]
async fn stored_times_are_by_the_clock_of_the_store() {
    let disk = Disk::new();
    let store: Arc<dyn Store> = Arc::new(Ahead(disk.open()));
    let broker = TestBroker::start_with_all(quiet(), Anonymous::default(), store.clone());
    let mortal = Restartable { disk, store, broker };
    let mut client = mortal.broker.resume("client").await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    client.disconnect().await;
    let mut publisher = mortal.broker.v5("publisher").await;
    let properties = MessageProperties { message_expiry: Some(60), ..MessageProperties::default() };
    let publish = Publish {
        qos: QoS::AtLeastOnce,
        packet_id: Some(id(1)),
        properties: Some(Box::new(properties)),
        ..message("t", "expires")
    };
    publisher.send(Packet::Publish(publish)).await;
    publisher.find_ack(AckKind::Puback, id(1)).await;
    let earliest = SystemTime::now() + AHEAD - Duration::from_secs(60);
    assert!(mortal.session("client").and_then(|session| session.record.parked_at) > Some(earliest));
    let mut times = Vec::new();
    let mut note =
        |_, message: LazyMessage<'_>| times.push(message.read().map(|message| message.expires_at()));
    mortal.store.messages(&mut note).expect("it can be read");
    assert!(matches!(&times[..], [Ok(at)] if *at > Some(earliest)), "{times:?}");
}

// [MQTT-3.3.1-5], [MQTT-3.3.1-6]
#[tokio::test(start_paused = true)]
async fn retained_messages_are_recovered_and_cleared_ones_are_not() {
    let mortal = Restartable::start();
    let mut publisher = mortal.broker.v5("publisher").await;
    let brief = MessageProperties { message_expiry: Some(5), ..MessageProperties::default() };
    let kept = |topic: &str, payload: &str, qos| Publish { retain: true, qos, ..message(topic, payload) };
    publisher.publish_as(kept("r/0", "qos 0", QoS::AtMostOnce)).await;
    publisher.publish_as(kept("r/1", "replaced", QoS::AtLeastOnce)).await;
    publisher.publish_as(kept("r/1", "qos 1", QoS::AtLeastOnce)).await;
    publisher.publish_as(kept("r/2", "cleared", QoS::ExactlyOnce)).await;
    publisher.publish_as(kept("r/2", "", QoS::ExactlyOnce)).await;
    let brief = Publish { properties: Some(Box::new(brief)), ..kept("r/3", "brief", QoS::AtLeastOnce) };
    publisher.publish_as(brief).await;
    let mortal = mortal.crash();
    let mut client = mortal.broker.v5("client").await;
    client.subscribe("r/#", QoS::ExactlyOnce).await;
    let mut got = client.take_all().await;
    got.sort_by_key(|publish| publish.topic.clone());
    assert_eq!(texts(&got), ["qos 0", "qos 1", "brief"]);
    assert!(got.iter().all(|publish| publish.retain));
    pass(30).await;
    assert_eq!(mortal.image().retained.len(), 2, "what expired is forgotten here and there");
}

// [MQTT-3.1.3-9], [MQTT-3.1.2-8]
#[tokio::test(start_paused = true)]
async fn wills_are_published_after_a_restart() {
    let mortal = Restartable::start();
    let mut mourner = mortal.broker.resume("mourner").await;
    mourner.subscribe("will/#", QoS::AtLeastOnce).await;
    mourner.disconnect().await;
    let with_will = |client_id, delay| {
        let will = Will { delay, qos: QoS::AtLeastOnce, ..will(&format!("will/{client_id}"), client_id) };
        Connect { will: Some(will), ..lasting(client_id) }
    };
    mortal.broker.connect(with_will("delayed", 60)).await.vanish().await;
    mortal.broker.connect(with_will("dismissed", 60)).await.disconnect().await;
    mortal.broker.connect(with_will("returned", 60)).await.vanish().await;
    mortal.broker.resume("returned").await.vanish().await;
    let _online = mortal.broker.connect(with_will("online", 0)).await;
    let mortal = mortal.crash();
    let mut mourner = mortal.broker.resume("mourner").await;
    assert_eq!(mourner.take().await, "online");
    pass(58).await;
    mourner.expect_silence().await;
    pass(2).await;
    assert_eq!(mourner.take().await, "delayed");
    settle().await;
    // A published Will is not published again.
    let mortal = mortal.crash();
    let mut mourner = mortal.broker.resume("mourner").await;
    pass(1000).await;
    mourner.expect_silence().await;
}

#[tokio::test(start_paused = true)]
async fn the_delay_of_a_will_runs_while_the_broker_is_down() {
    let mortal = Restartable::start();
    let mut mourner = mortal.broker.resume("mourner").await;
    mourner.subscribe("will", QoS::AtLeastOnce).await;
    mourner.disconnect().await;
    let delayed = Will { delay: 600, qos: QoS::AtLeastOnce, ..will("will", "late") };
    mortal.broker.connect(Connect { will: Some(delayed), ..lasting("mortal") }).await.vanish().await;
    let mortal = mortal.crash_for(Duration::from_secs(500));
    let mut mourner = mortal.broker.resume("mourner").await;
    pass(98).await;
    mourner.expect_silence().await;
    pass(3).await;
    assert_eq!(mourner.take().await, "late");
}

// [MQTT-3.1.2-23], [MQTT-4.1.0-2]
#[tokio::test(start_paused = true)]
async fn sessions_expire_while_the_broker_is_down() {
    let mortal = Restartable::start();
    let hour = |client_id: &str| lasting(client_id);
    let mut day = lasting("day");
    day.properties.session_expiry = Some(24 * 3600);
    for connect in [hour("hour"), day.clone()] {
        let mut client = mortal.broker.connect(connect).await;
        client.subscribe("t", QoS::AtLeastOnce).await;
        client.vanish().await;
    }
    let mortal = mortal.crash_for(Duration::from_secs(3000));
    let client = mortal.broker.connect(hour("hour")).await;
    assert!(client.connack().session_present, "ten minutes are left");
    client.vanish().await;
    let mortal = mortal.crash_for(Duration::from_secs(4000));
    assert!(mortal.session("hour").is_none(), "it is gone from the store as well");
    let client = mortal.broker.connect(hour("hour")).await;
    assert!(!client.connack().session_present);
    let client = mortal.broker.connect(day.clone()).await;
    assert!(client.connack().session_present);
    client.vanish().await;
    // A client that was connected when its broker ended counts as disconnected from the next start, not from each
    // start.
    let _connected = mortal.broker.connect(day.clone()).await;
    assert_eq!(mortal.session("day").and_then(|session| session.record.parked_at), None);
    let mortal = mortal.crash();
    assert!(mortal.session("day").is_some_and(|session| session.record.parked_at.is_some()));
    // The rest of the interval keeps running.
    let mortal = mortal.crash_for(Duration::from_secs(20 * 3600));
    pass(4 * 3600 + 10).await;
    assert!(mortal.session("day").is_none());
}

// [BQ-52]
// The clock runs while the store is read.
#[tokio::test(start_paused = true)]
async fn sessions_that_expired_while_the_broker_was_down_end_at_its_start() {
    let mortal = Restartable::start();
    mortal.broker.connect(lasting("hour")).await.vanish().await;
    tokio::time::resume();
    let mortal = mortal.crash_for(Duration::from_secs(4000));
    assert!(mortal.session("hour").is_none());
}

#[tokio::test(start_paused = true)]
async fn priorities_of_subscriptions_and_queued_messages_are_recovered() {
    let mortal = Restartable::start();
    let mut client = mortal.broker.resume("client").await;
    for (number, topic, priority) in [(1, "bulk", "50"), (2, "urgent", "200")] {
        client
            .send(Packet::Subscribe(Box::new(Subscribe {
                packet_id: id(number),
                id: None,
                user: [("braid-priority", priority)].into(),
                entries: vec![SubscribeEntry::new(filter(topic), QoS::AtLeastOnce)],
            })))
            .await;
        assert!(matches!(client.next().await, Some(Packet::Suback(_))));
    }
    client.vanish().await;
    let mut mortal = mortal;
    for round in 1..=2 {
        let mut publisher = mortal.broker.v5("publisher").await;
        for topic in ["bulk", "urgent"] {
            publisher.publish(topic, format!("{topic} {round}"), QoS::AtLeastOnce).await;
        }
        mortal = mortal.crash();
    }
    let mut client = mortal.broker.resume("client").await;
    assert_eq!(texts(&client.take_all().await), ["urgent 1", "urgent 2", "bulk 1", "bulk 2"]);
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// With a clock that was set back by a day no session lives longer than the whole interval.
#[tokio::test(start_paused = true)]
async fn a_clock_that_was_set_back_restarts_the_expiry_of_sessions() {
    let mortal = Restartable::start();
    let mut mourner = mortal.broker.resume("mourner").await;
    mourner.subscribe("will", QoS::AtLeastOnce).await;
    let delayed = Will { delay: 600, qos: QoS::AtLeastOnce, ..will("will", "late") };
    mortal.broker.connect(Connect { will: Some(delayed), ..lasting("mortal") }).await.vanish().await;
    settle().await;
    let mortal = mortal.crash_and_set_back(DAY);
    let mut mourner = mortal.broker.resume("mourner").await;
    pass(598).await;
    mourner.expect_silence().await;
    pass(3).await;
    assert_eq!(mourner.take().await, "late");
    pass(2990).await;
    assert!(mortal.session("mortal").is_some());
    pass(20).await;
    assert!(mortal.session("mortal").is_none());
}

/// A machine that starts with the time of yesterday and is synchronized later.
#[tokio::test(start_paused = true)]
async fn a_clock_that_was_wrong_at_one_start_ends_no_session_at_the_next() {
    let mortal = Restartable::start();
    let mut away = mortal.broker.resume("away").await;
    away.subscribe("t", QoS::AtLeastOnce).await;
    away.disconnect().await;
    let _connected = mortal.broker.resume("connected").await;
    mortal.broker.v5("publisher").await.publish("t", "kept", QoS::AtLeastOnce).await;
    settle().await;
    let mortal = mortal.crash_and_set_back(DAY);
    settle().await;
    let mortal = mortal.crash_and_set_forward(DAY);
    settle().await;
    assert!(mortal.session("connected").is_some(), "it had a connection when the broker ended");
    let mut away = mortal.broker.resume("away").await;
    assert_eq!(away.take().await, "kept");
}

#[tokio::test(start_paused = true)]
async fn an_ended_session_leaves_nothing() {
    let mortal = Restartable::start();
    let mut publisher = mortal.broker.v5("publisher").await;
    let mut client = mortal.broker.resume("client").await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    publisher.publish("t", "old", QoS::AtLeastOnce).await;
    // A Clean Start by takeover leaves nothing of the old session.
    let mut clean = mortal.broker.connect(Connect { clean_start: true, ..lasting("client") }).await;
    let session = mortal.session("client").expect("the new one");
    assert!(session.subscriptions.is_empty() && session.queue.is_empty());
    // DISCONNECT ends the session.
    let mut bye = Disconnect::new(ReasonCode::Success);
    bye.session_expiry = Some(0);
    clean.send(Packet::Disconnect(Box::new(bye))).await;
    clean.expect_end().await;
    assert!(mortal.session("client").is_none());
    // A session without expiry replaces one with expiry.
    mortal.broker.resume("client").await.disconnect().await;
    assert!(mortal.session("client").is_some());
    mortal.broker.v5("client").await;
    assert!(mortal.session("client").is_none());
    let mortal = mortal.crash();
    assert!(!mortal.broker.resume("client").await.connack().session_present);
}

// [MQTT-4.8.2-4]
#[tokio::test(start_paused = true)]
async fn shared_messages_move_to_another_member_in_the_store_too() {
    let mortal = Restartable::start();
    let mut publisher = mortal.broker.v5("publisher").await;
    let mut first = mortal.broker.resume("first").await;
    first.subscribe("$share/g/t", QoS::AtLeastOnce).await;
    publisher.publish("t", "unacknowledged", QoS::AtLeastOnce).await;
    first.expect_publish().await;
    first.vanish().await;
    publisher.publish("t", "waiting", QoS::AtLeastOnce).await;
    let mut second = mortal.broker.resume("second").await;
    second.subscribe("$share/g/t", QoS::AtLeastOnce).await;
    second.vanish().await;
    mortal.broker.v5("first").await.disconnect().await;
    let mortal = mortal.crash();
    let mut second = mortal.broker.resume("second").await;
    assert_eq!(texts(&second.take_all().await), ["unacknowledged", "waiting"]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_message_is_not_stored() {
    let limits = LimitsConfig { queued_messages: 3, ..LimitsConfig::default() };
    let mortal = Restartable::start_with(BrokerConfig { limits, ..quiet() });
    let mut publisher = mortal.broker.v5("publisher").await;
    let mut client = mortal.broker.resume("client").await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    client.disconnect().await;
    for number in 0..5 {
        publisher.publish("t", number.to_string(), QoS::AtLeastOnce).await;
    }
    assert_eq!(mortal.broker.statistics().get(Counter::MessagesDropped), 2);
    let mortal = mortal.crash();
    let mut client = mortal.broker.resume("client").await;
    assert_eq!(texts(&client.take_all().await), ["0", "1", "2"]);
}

/// Retained messages of a batch get their sequence numbers before the others.
#[tokio::test(start_paused = true)]
async fn one_write_of_many_kinds_keeps_its_order() {
    let mortal = Restartable::start();
    let mut publisher = mortal.broker.v5("publisher").await;
    let mut client: Client = mortal.broker.resume("client").await;
    let entries = ["t", "t/#", "$share/g/t"].map(|text| SubscribeEntry::new(filter(text), QoS::AtLeastOnce));
    client.subscribe_all(None, entries.into()).await;
    client.disconnect().await;
    let packets = (1..=20_u16).map(|number| {
        let (qos, packet_id) = (QoS::AtLeastOnce, Some(id(number)));
        let retain = number % 3 == 0;
        Packet::Publish(Publish { retain, qos, packet_id, ..message("t", number.to_string()) })
    });
    publisher.send_all(packets).await;
    publisher.find_ack(AckKind::Puback, id(20)).await;
    let mortal = mortal.crash();
    let mut client = mortal.broker.connect(Connect { clean_start: false, ..connect_v5("client") }).await;
    let mut got = texts(&client.take_all().await);
    let numbers: Vec<_> = (1..=20).map(|number| number.to_string()).collect();
    // One copy for both overlapping subscriptions, one for the shared one, each in the order of sending.
    let mut copies = [Vec::new(), Vec::new()];
    for text in got.drain(..) {
        let second = copies[0].contains(&text);
        copies[usize::from(second)].push(text);
    }
    assert_eq!(copies, [numbers.clone(), numbers]);
}

/// On several threads a delivery may be acknowledged at once: the store must have been told of it before.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_delivery_that_is_acknowledged_at_once_leaves_nothing_in_the_store() {
    const PUBLISHERS: usize = 4;
    const MESSAGES: usize = 300;
    let mortal = Restartable::start();
    let mut client = mortal.broker.resume("client").await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    let mut publishing = tokio::task::JoinSet::new();
    for number in 0..PUBLISHERS {
        let mut publisher = mortal.broker.v5(&format!("publisher-{number}")).await;
        publishing.spawn(async move {
            for _ in 0..MESSAGES {
                publisher.publish("t", "", QoS::AtLeastOnce).await;
            }
        });
    }
    for _ in 0..PUBLISHERS * MESSAGES {
        client.take().await;
    }
    publishing.join_all().await;
    client.send(Packet::Pingreq).await;
    assert_eq!(client.next().await, Some(Packet::Pingresp));
    assert_eq!(entries(mortal.session("client")), []);
}

over_a_file!(
    sessions_are_recovered_with_subscriptions_and_queues_in_order,
    inflight_messages_are_sent_again_with_their_identifiers,
    qos_2_arrives_exactly_once_at_a_subscriber,
    qos_2_arrives_exactly_once_from_a_publisher,
    acknowledgements_right_before_a_disconnect_are_stored,
    retained_messages_are_recovered_and_cleared_ones_are_not,
    wills_are_published_after_a_restart,
    the_delay_of_a_will_runs_while_the_broker_is_down,
    sessions_expire_while_the_broker_is_down,
    priorities_of_subscriptions_and_queued_messages_are_recovered,
    a_clock_that_was_set_back_restarts_the_expiry_of_sessions,
    a_clock_that_was_wrong_at_one_start_ends_no_session_at_the_next,
    an_ended_session_leaves_nothing,
    shared_messages_move_to_another_member_in_the_store_too,
    a_dropped_message_is_not_stored,
    one_write_of_many_kinds_keeps_its_order
);
