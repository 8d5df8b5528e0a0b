//! Durability before acknowledgement, with stores that are slow or fail. Clean sessions do not use the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_broker::{Anonymous, BrokerConfig, MqttConfig, SysConfig};
use braid_proto::packet::{
    Ack, AckKind, ClientId, Connect, Disconnect, Packet, ProtocolVersion, QoS, SubscribeEntry,
};
use braid_proto::reason::ReasonCode;
use braid_store::faults::{FailingStore, HoldingStore};
use braid_store::{
    Batch, Claim, Commit, Completion, LazyMessage, Lsn, MemoryStore, NextIds, Recover, Store, StoreError,
    StoredMessage,
};

use crate::support::{
    Client, TestBroker, connect_v3, connect_v5, filter, id, lasting, message, pass, publish_packet, quiet,
    settle, subscribe_packet, texts, unsubscribe_packet, will,
};

type Slow = Arc<HoldingStore<MemoryStore>>;

fn slow() -> (Slow, TestBroker) {
    let store = Arc::new(HoldingStore::new(MemoryStore::new()));
    (store.clone(), TestBroker::start_over(store))
}

/// Commits everything that is held, and runs all tasks that this wakes.
async fn release_all(store: &Slow) {
    loop {
        settle().await;
        if !store.release() {
            return;
        }
    }
}

/// A connected client whose session outlives the connection.
async fn resume(store: &Slow, broker: &TestBroker, client_id: &str) -> Client {
    let mut client = broker.link(ProtocolVersion::V5).await;
    client.send_connect(lasting(client_id)).await;
    release_all(store).await;
    client.accepted().await;
    client
}

/// Subscribes with one filter, and commits the subscription. SUBACK is left to be read.
async fn subscribe_durably(store: &Slow, client: &mut Client, text: &str, qos: QoS) {
    client.send(subscribe_packet(5, None, vec![SubscribeEntry::new(filter(text), qos)])).await;
    release_all(store).await;
}

#[tokio::test(start_paused = true)]
async fn connack_waits_until_the_session_is_durable() {
    let (store, broker) = slow();
    for _ in 0..2 {
        let mut client = broker.link(ProtocolVersion::V5).await;
        client.send_connect(lasting("client")).await;
        client.expect_silence().await;
        assert!(store.release());
        client.accepted().await;
        client.disconnect().await;
        release_all(&store).await;
    }
}

/// After Session Present 0 the earlier session must not come back, even after a crash.
// [MQTT-3.1.2-4]
#[tokio::test(start_paused = true)]
async fn connack_of_a_clean_start_waits_until_the_old_session_is_gone() {
    let (store, broker) = slow();
    for ends_itself in [false, true] {
        let mut client = resume(&store, &broker, "client").await;
        if ends_itself {
            let mut bye = Disconnect::new(ReasonCode::Success);
            bye.session_expiry = Some(0);
            client.send(Packet::Disconnect(Box::new(bye))).await;
            settle().await;
        } else {
            client.vanish().await;
            release_all(&store).await;
        }
        let mut clean = broker.link(ProtocolVersion::V5).await;
        clean.send_connect(connect_v5("client")).await;
        clean.expect_silence().await;
        assert_eq!(store.held(), 1, "the end of the session");
        assert!(store.release());
        clean.accepted().await;
        assert!(!clean.connack().session_present);
        // No commit is left.
        clean.disconnect().await;
        let mut again = broker.link(ProtocolVersion::V5).await;
        again.send_connect(connect_v5("client")).await;
        again.accepted().await;
        again.disconnect().await;
    }
}

// [MQTT-3.1.2-4]
#[tokio::test(start_paused = true)]
async fn clean_start_over_a_session_that_may_come_back_is_refused() {
    let (store, broker) = slow();
    resume(&store, &broker, "client").await.vanish().await;
    release_all(&store).await;
    let mut clean = broker.link(ProtocolVersion::V5).await;
    clean.send_connect(connect_v5("client")).await;
    settle().await;
    store.lose();
    assert_eq!(clean.expect_connack().await.reason, ReasonCode::ServerUnavailable);
    let broker = TestBroker::start_over(Arc::new(store.inner().reopen()));
    assert!(broker.resume("client").await.connack().session_present);
}

/// A client that is not read because the broker has not acknowledged what it sent is not silent. [MQTT-3.1.2-22]
#[tokio::test(start_paused = true)]
async fn keep_alive_waits_while_the_receive_maximum_is_used_up() {
    for strict_keepalive in [false, true] {
        let store = Arc::new(HoldingStore::new(MemoryStore::new()));
        let mqtt = MqttConfig { receive_maximum: 2, strict_keepalive, ..MqttConfig::default() };
        let config = BrokerConfig { mqtt, ..quiet() };
        let broker = TestBroker::start_with_all(config, Anonymous::default(), store.clone());
        let mut durable = resume(&store, &broker, "durable").await;
        subscribe_durably(&store, &mut durable, "t", QoS::AtLeastOnce).await;
        let mut client = broker.connect(Connect { keep_alive: 10, ..connect_v5("client") }).await;
        client.send(publish_packet("t", "1", QoS::AtLeastOnce, 1)).await;
        client.send(publish_packet("t", "2", QoS::AtLeastOnce, 2)).await;
        settle().await;
        client.send(Packet::Pingreq).await;
        pass(60).await;
        client.expect_silence().await;
        release_all(&store).await;
        for number in [1, 2] {
            assert_eq!(client.expect_ack(AckKind::Puback).await.packet_id, id(number));
        }
        assert!(matches!(client.next().await, Some(Packet::Pingresp)));
        // Nothing is unread any more.
        pass(14).await;
        client.expect_silence().await;
        client.expect_disconnect(ReasonCode::KeepAliveTimeout).await;
    }
}

// [MQTT-4.3.2-4], [MQTT-4.3.3-8], [MQTT-3.8.4-1], [MQTT-3.10.4-4]
#[tokio::test(start_paused = true)]
async fn acknowledgements_wait_and_pings_do_not() {
    let (store, broker) = slow();
    let mut client = resume(&store, &broker, "client").await;
    let entries = |text| vec![SubscribeEntry::new(filter(text), QoS::AtMostOnce)];
    let subscribe = |text| subscribe_packet(5, None, entries(text));
    let publish = |qos, packet_id| publish_packet("t", "", qos, packet_id);
    let ack = |kind, packet_id| Packet::Ack(Ack::new(kind, id(packet_id), ReasonCode::Success));
    let mut other = resume(&store, &broker, "other").await;
    other.send(subscribe("t")).await;
    release_all(&store).await;
    assert!(matches!(other.next().await, Some(Packet::Suback(_))));
    // A durable subscriber, so that QoS 1 messages are stored.
    let mut durable = resume(&store, &broker, "durable").await;
    subscribe_durably(&store, &mut durable, "t", QoS::ExactlyOnce).await;
    let cases = [
        (subscribe("a"), "Suback"),
        (publish(QoS::AtLeastOnce, 1), "Puback"),
        (publish(QoS::ExactlyOnce, 2), "Pubrec"),
        (ack(AckKind::Pubrel, 2), "Pubcomp"),
        (unsubscribe_packet(6, &["a"]), "Unsuback"),
    ];
    for (packet, answer) in cases {
        client.send(packet).await;
        client.send(Packet::Pingreq).await;
        assert_eq!(client.next().await, Some(Packet::Pingresp), "not held by {answer}");
        client.expect_silence().await;
        assert!(store.release(), "{answer} has something to wait for");
        let next = client.next_at_once().await;
        assert!(next.as_ref().is_some_and(|next| format!("{next:?}").contains(answer)), "{answer}: {next:?}");
        client.expect_silence().await;
        release_all(&store).await;
    }
}

// [MQTT-4.6.0-2]
#[tokio::test(start_paused = true)]
async fn acknowledgement_without_a_commit_keeps_its_order() {
    let (store, broker) = slow();
    let mut durable = resume(&store, &broker, "durable").await;
    subscribe_durably(&store, &mut durable, "kept", QoS::AtLeastOnce).await;
    let mut client = broker.v5("client").await;
    client.send(publish_packet("kept", "", QoS::AtLeastOnce, 1)).await;
    settle().await;
    client.send(publish_packet("unwatched", "", QoS::AtLeastOnce, 2)).await;
    client.expect_silence().await;
    assert!(store.release());
    assert_eq!(client.expect_ack(AckKind::Puback).await.packet_id, id(1));
    assert_eq!(client.expect_ack(AckKind::Puback).await.packet_id, id(2));
}

#[tokio::test(start_paused = true)]
async fn retained_message_of_a_clean_session_is_committed_first() {
    let (store, broker) = slow();
    let mut client = broker.v5("client").await;
    let mut publish = message("t", "kept");
    (publish.retain, publish.qos, publish.packet_id) = (true, QoS::AtLeastOnce, Some(id(1)));
    client.send(Packet::Publish(publish)).await;
    client.expect_silence().await;
    assert!(store.release());
    client.expect_ack(AckKind::Puback).await;
}

// [MQTT-4.3.3-2], [MQTT-4.3.3-4]
#[tokio::test(start_paused = true)]
async fn qos_2_is_not_sent_before_its_identifier_is_durable() {
    let (store, broker) = slow();
    let mut client = resume(&store, &broker, "client").await;
    subscribe_durably(&store, &mut client, "t", QoS::ExactlyOnce).await;
    assert!(matches!(client.next().await, Some(Packet::Suback(_))));
    let mut publisher = broker.v5("publisher").await;
    publisher.send(publish_packet("t", "QoS 1", QoS::AtLeastOnce, 1)).await;
    let first = client.expect_publish().await;
    assert_eq!(first.qos, QoS::AtLeastOnce, "QoS 1 does not wait");
    client.acknowledge(&first).await;
    release_all(&store).await;
    publisher.send(publish_packet("t", "QoS 2", QoS::ExactlyOnce, 2)).await;
    client.expect_silence().await;
    assert!(store.release(), "the publisher's message");
    client.expect_silence().await;
    assert!(store.release(), "the identifier");
    let second = client.expect_publish().await;
    let packet_id = second.packet_id.expect("QoS 2 has one");
    client.send_ack(AckKind::Pubrec, packet_id).await;
    client.expect_silence().await;
    assert!(store.release(), "the release");
    assert_eq!(client.expect_ack(AckKind::Pubrel).await.packet_id, packet_id);
}

// [MQTT-4.3.3-4]
#[tokio::test(start_paused = true)]
async fn a_pubrec_right_behind_connect_is_durable_before_its_pubrel() {
    let (store, broker) = slow();
    let mut client = resume(&store, &broker, "client").await;
    subscribe_durably(&store, &mut client, "t", QoS::ExactlyOnce).await;
    let mut publisher = broker.v5("publisher").await;
    publisher.send(publish_packet("t", "", QoS::ExactlyOnce, 2)).await;
    release_all(&store).await;
    assert!(matches!(client.next().await, Some(Packet::Suback(_))));
    let packet_id = client.expect_publish().await.packet_id.expect("QoS 2 has one");
    client.vanish().await;
    release_all(&store).await;
    let mut client = broker.link(ProtocolVersion::V5).await;
    let connect = Packet::Connect(Box::new(lasting("client")));
    client.send_all([connect, Packet::Ack(Ack::new(AckKind::Pubrec, packet_id, ReasonCode::Success))]).await;
    settle().await;
    assert!(store.release(), "the new connection");
    settle().await;
    assert_eq!(store.held(), 1, "the release");
    client.accepted().await;
    assert_eq!(
        client.expect_publish().await.packet_id,
        Some(packet_id),
        "sent again, before its PUBREC was read"
    );
    client.expect_silence().await;
    assert!(store.release());
    assert_eq!(client.find_ack(AckKind::Pubrel, packet_id).await.reason, ReasonCode::Success);
}

#[tokio::test(start_paused = true)]
async fn qos_2_whose_identifier_was_lost_is_never_sent() {
    let (store, broker) = slow();
    let mut client = resume(&store, &broker, "client").await;
    subscribe_durably(&store, &mut client, "t", QoS::ExactlyOnce).await;
    assert!(matches!(client.next().await, Some(Packet::Suback(_))));
    let mut publisher = broker.v5("publisher").await;
    publisher.send(publish_packet("t", "", QoS::ExactlyOnce, 2)).await;
    settle().await;
    assert!(store.release(), "the publisher's message");
    client.send(Packet::Pingreq).await;
    client.expect_silence().await;
    assert_eq!(store.held(), 1, "the identifier");
    store.lose();
    client.expect_end().await;
}

#[tokio::test(start_paused = true)]
async fn messages_that_were_not_durable_were_not_acknowledged() {
    let (store, broker) = slow();
    let mut durable = resume(&store, &broker, "durable").await;
    subscribe_durably(&store, &mut durable, "t", QoS::AtLeastOnce).await;
    assert!(matches!(durable.next().await, Some(Packet::Suback(_))));
    durable.vanish().await;
    release_all(&store).await;
    let mut publisher = broker.v5("publisher").await;
    publisher.send(publish_packet("t", "lost", QoS::AtLeastOnce, 1)).await;
    settle().await;
    store.lose();
    publisher.expect_disconnect(ReasonCode::ImplementationSpecificError).await;
    let broker = TestBroker::start_over(Arc::new(store.inner().reopen()));
    let mut durable = broker.resume("durable").await;
    assert!(durable.connack().session_present);
    assert_eq!(texts(&durable.take_all().await), Vec::<String>::new());
}

/// Clients that wait for the store are told of its failure, all others that the broker stops.
#[tokio::test(start_paused = true)]
async fn failed_store_stops_the_broker_and_its_acknowledgements() {
    // One for each session, one for the subscription.
    let store = Arc::new(FailingStore::after(3, MemoryStore::new()));
    let config = BrokerConfig { sys: SysConfig { interval_secs: 1000 }, ..BrokerConfig::default() };
    let mut broker = TestBroker::start_with_all(config, Anonymous::default(), store.clone());
    let mut durable = broker.resume("durable").await;
    durable.subscribe("kept", QoS::AtLeastOnce).await;
    let mut faithful = broker.resume("faithful").await;
    let mut reader = broker.v5("reader").await;
    reader.subscribe("$SYS/broker/store/state", QoS::ExactlyOnce).await;
    assert_eq!(reader.take().await, "ok");
    let mut old = broker.v3("old").await;
    let mut publisher = broker.v5("publisher").await;
    publisher.send(publish_packet("kept", "lost", QoS::AtLeastOnce, 1)).await;
    // Requests of other clients come too late.
    faithful
        .send(subscribe_packet(9, None, vec![SubscribeEntry::new(filter("more"), QoS::AtMostOnce)]))
        .await;
    old.send(publish_packet("kept", "lost", QoS::ExactlyOnce, 1)).await;
    publisher.expect_disconnect(ReasonCode::ImplementationSpecificError).await;
    assert!(reader.take().await.starts_with("failed: the store cannot write any more"));
    reader.expect_disconnect(ReasonCode::ServerShuttingDown).await;
    let reason = [ReasonCode::ImplementationSpecificError, ReasonCode::ServerShuttingDown];
    let Some(Packet::Disconnect(disconnect)) = faithful.next().await else { panic!("no SUBACK") };
    assert!(reason.contains(&disconnect.reason), "{disconnect:?}");
    old.expect_end().await;
    drop((durable, faithful, reader, old, publisher));
    assert!(matches!(broker.outcome().await, Err(StoreError::Failed { .. })));
    assert!(broker.handle.is_stopping());
    // Acknowledged messages are there, and no others.
    let next = TestBroker::start_over(Arc::new(store.inner().reopen()));
    let mut durable = next.resume("durable").await;
    assert!(durable.connack().session_present);
    next.v5("publisher").await.publish("kept", "alive", QoS::AtLeastOnce).await;
    assert_eq!(durable.take().await, "alive");
}

/// A store that fails between two commits.
#[tokio::test(start_paused = true)]
async fn store_that_reports_its_failure_stops_the_broker() {
    let mut broker = TestBroker::start();
    let mut client = broker.v5("client").await;
    let failure = StoreError::Failed { reason: "the device is gone".into() };
    broker.handle.fail(&failure);
    broker.handle.fail(&StoreError::Closed);
    client.expect_disconnect(ReasonCode::ServerShuttingDown).await;
    drop(client);
    assert_eq!(broker.outcome().await, Err(failure));
}

#[tokio::test(start_paused = true)]
async fn session_that_cannot_be_stored_is_refused() {
    let mut broker = TestBroker::start_over(Arc::new(FailingStore::after(0, MemoryStore::new())));
    let mut client = broker.link(ProtocolVersion::V5).await;
    client.send_connect(lasting("client")).await;
    assert_eq!(client.expect_connack().await.reason, ReasonCode::ServerUnavailable);
    client.expect_end().await;
    drop(client);
    assert!(broker.outcome().await.is_err());
}

/// Store that counts the changes committed to it.
#[derive(Default)]
struct CountingStore {
    inner: MemoryStore,
    calls: AtomicUsize,
}

impl Store for CountingStore {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        self.inner.recover(into)
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.inner.claim(client_id)
    }

    fn commit(&self, batch: Batch) -> Commit {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.inner.commit(batch)
    }

    fn messages_of(&self, lsns: &[Lsn]) -> Completion<Vec<Option<StoredMessage>>> {
        self.inner.messages_of(lsns)
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError> {
        self.inner.messages(show)
    }
}

#[tokio::test(start_paused = true)]
async fn clean_sessions_do_not_use_the_store() {
    let store = Arc::new(CountingStore::default());
    let broker = TestBroker::start_over(store.clone());
    let mut five = broker.v5("five").await;
    let mut three = broker.connect(Connect { will: Some(will("t", "gone")), ..connect_v3("three") }).await;
    for client in [&mut five, &mut three] {
        client.subscribe("t", QoS::ExactlyOnce).await;
        client.subscribe("$share/g/t", QoS::ExactlyOnce).await;
    }
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        five.publish("t", "for both", qos).await;
        settle().await;
    }
    five.take_many(3).await;
    five.send(unsubscribe_packet(99, &["t"])).await;
    five.find_unsuback().await;
    three.vanish().await;
    let bye = Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success)));
    five.send(bye).await;
    settle().await;
    assert_eq!(store.calls.load(Ordering::SeqCst), 0);
    // The counter works.
    broker.resume("lasting").await;
    assert!(store.calls.load(Ordering::SeqCst) > 0);
}

/// All messages of one write to a durable subscriber cost one commit.
#[tokio::test(start_paused = true)]
async fn one_write_causes_one_commit() {
    let store = Arc::new(CountingStore::default());
    let broker = TestBroker::start_over(store.clone());
    let mut durable = broker.resume("durable").await;
    durable.subscribe("t", QoS::AtLeastOnce).await;
    durable.vanish().await;
    let mut publisher = broker.v5("publisher").await;
    let before = store.calls.load(Ordering::SeqCst);
    let packets = (1..=100).map(|number| publish_packet("t", "", QoS::AtLeastOnce, number));
    publisher.send_all(packets).await;
    publisher.find_ack(AckKind::Puback, id(100)).await;
    assert_eq!(store.calls.load(Ordering::SeqCst) - before, 1);
}
