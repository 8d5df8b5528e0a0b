//! Subscriptions of streams and connections that end: their move to the control stream, in the router, the store and
//! the retained cursors.

use std::sync::{Arc, Mutex};

use braid_broker::{BrokerConfig, LimitsConfig, StreamsConfig, SysConfig};
use braid_proto::packet::{ClientId, Packet, Publish, QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;
use braid_proto::session::RetainHandling;
use braid_proto::stream::StreamKey;
use braid_store::{
    Batch, Change, Claim, Commit, Completion, LazyMessage, Lsn, MemoryStore, NextIds, Recover, Store,
    StoreError, StoredMessage,
};
use braid_transport::quic::QuicOptions;

use crate::support::{
    CONTROL, Ended, Lanes, QuicBroker, anyone, filter, lasting, message, pass, quiet, subscribe_packet,
    unsubscribe_packet,
};

/// Subscribes with QoS 0 and Retain Handling 1; returns the code.
async fn subscribe_if_new(client: &mut Lanes, on: StreamKey, text: &str) -> ReasonCode {
    let retain_handling = RetainHandling::SendIfNew;
    let entry = SubscribeEntry { retain_handling, ..SubscribeEntry::new(filter(text), QoS::AtMostOnce) };
    let packet_id = client.next_id();
    client.send(on, &subscribe_packet(packet_id, None, vec![entry]));
    client.expect_suback(on).await.codes[0]
}

async fn unsubscribe(client: &mut Lanes, on: StreamKey, text: &str) -> ReasonCode {
    let packet_id = client.next_id();
    client.send(on, &unsubscribe_packet(packet_id, &[text]));
    client.expect_unsuback(on).await[0]
}

async fn finish(client: &Lanes, stream: StreamKey) {
    client.finish(stream);
    assert_eq!(client.expect_ended(stream).await, Ended::Finished);
}

/// Messages that arrive on these streams within a second, each as the number of its stream.
async fn arrivals(client: &Lanes, streams: &[StreamKey]) -> Vec<StreamKey> {
    pass(1).await;
    let is_publish = |packet: &Packet| matches!(packet, Packet::Publish(_));
    let come =
        |stream: &StreamKey| client.received(*stream).iter().filter(|packet| is_publish(packet)).count();
    streams.iter().flat_map(|stream| std::iter::repeat_n(*stream, come(stream))).collect()
}

/// Publishes to a topic; returns the streams that bring the message.
async fn streams_of(
    broker: &QuicBroker,
    client: &Lanes,
    topic: &str,
    streams: &[StreamKey],
) -> Vec<StreamKey> {
    broker.memory.v5("publisher").await.publish(topic, "x", QoS::AtMostOnce).await;
    arrivals(client, streams).await
}

async fn retain(broker: &QuicBroker, topic: &str, payload: impl AsRef<[u8]>) {
    let mut publisher = broker.memory.v5("publisher").await;
    publisher.publish_as(Publish { retain: true, ..message(topic, payload) }).await;
    pass(1).await;
}

/// [BQ-42]
#[tokio::test(start_paused = true)]
async fn the_control_stream_has_one_copy_of_what_several_streams_left() {
    let broker = QuicBroker::start();
    let mut client = broker.v5("client").await;
    let (one, two) = (client.open().await, client.open().await);
    for (stream, text) in [(one, "a"), (one, "$share/g/s"), (two, "a")] {
        client.subscribe(stream, text, QoS::AtMostOnce).await;
    }
    finish(&client, one).await;
    assert_eq!(streams_of(&broker, &client, "a", &[CONTROL, two]).await, [CONTROL, two]);
    assert_eq!(streams_of(&broker, &client, "s", &[CONTROL, two]).await, [CONTROL]);
    finish(&client, two).await;
    assert_eq!(streams_of(&broker, &client, "a", &[CONTROL]).await, [CONTROL]);
    assert_eq!(unsubscribe(&mut client, CONTROL, "a").await, ReasonCode::Success);
    assert_eq!(streams_of(&broker, &client, "a", &[CONTROL]).await, []);
}

/// [BQ-42]: the end of a stream, or of the connection, lowers no QoS; nor does a restart after it.
#[tokio::test(start_paused = true)]
async fn the_control_stream_has_the_higher_qos_of_what_several_streams_left() {
    for ends in ["stream", "connection"] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let start = || QuicBroker::start_over(quiet(), QuicOptions::server(), anyone(), store.clone());
        let broker = start();
        let mut client = broker.resume("client").await;
        let data = client.open().await;
        client.subscribe(data, "a", QoS::ExactlyOnce).await;
        client.subscribe(CONTROL, "a", QoS::AtMostOnce).await;
        let mut publisher = broker.memory.v5("publisher").await;
        if ends == "stream" {
            finish(&client, data).await;
            publisher.publish("a", "x", QoS::AtLeastOnce).await;
            assert_eq!(client.expect_publish(CONTROL).await.qos, QoS::AtLeastOnce);
        }
        client.vanish().await;
        publisher.publish("a", "y", QoS::ExactlyOnce).await;
        pass(1).await;
        // As in a crash: the first broker writes nothing more to the store.
        let broker = start();
        let client = broker.resume("client").await;
        if ends == "stream" {
            assert_eq!(client.take(CONTROL).await, "x");
        }
        assert_eq!(client.take(CONTROL).await, "y");
        broker.memory.v5("publisher").await.publish("a", "z", QoS::ExactlyOnce).await;
        assert_eq!(client.expect_publish(CONTROL).await.qos, QoS::ExactlyOnce);
    }
}

/// [BQ-43]
#[tokio::test(start_paused = true)]
async fn a_subscription_replaces_one_left_over_from_another_stream() {
    let broker = QuicBroker::start();
    retain(&broker, "a", "kept").await;
    let mut client = broker.v5("client").await;
    let [one, two, three, four] =
        [client.open().await, client.open().await, client.open().await, client.open().await];
    let all = [CONTROL, two, three, four];
    client.subscribe(one, "a", QoS::AtMostOnce).await;
    client.subscribe(two, "a", QoS::AtMostOnce).await;
    assert_eq!(arrivals(&client, &[CONTROL, one, two, three, four]).await, [one, two]);
    finish(&client, one).await;
    // For Retain Handling 1 the subscription is not new.
    assert_eq!(subscribe_if_new(&mut client, three, "a").await, ReasonCode::Success);
    assert_eq!(arrivals(&client, &all).await, []);
    assert_eq!(streams_of(&broker, &client, "a", &all).await, [two, three]);
    // No moved subscription is left: on another stream the subscription is new.
    assert_eq!(subscribe_if_new(&mut client, four, "a").await, ReasonCode::Success);
    assert_eq!(arrivals(&client, &all).await, [four]);
    // A stream with the same filter replaces the moved subscription, too.
    finish(&client, four).await;
    assert_eq!(subscribe_if_new(&mut client, two, "a").await, ReasonCode::Success);
    assert_eq!(arrivals(&client, &[CONTROL, two, three]).await, []);
    assert_eq!(streams_of(&broker, &client, "a", &[CONTROL, two, three]).await, [two, three]);
}

/// [BQ-42]
#[tokio::test(start_paused = true)]
async fn a_session_without_connection_has_each_filter_once() {
    let broker = QuicBroker::start();
    let mut client = broker.resume("client").await;
    let (one, two) = (client.open().await, client.open().await);
    client.subscribe(one, "a", QoS::AtLeastOnce).await;
    client.subscribe(two, "a", QoS::AtLeastOnce).await;
    client.disconnect().await.expect("in order");
    broker.memory.v5("publisher").await.publish("a", "x", QoS::AtLeastOnce).await;
    let client = broker.resume("client").await;
    assert_eq!(client.take(CONTROL).await, "x");
    client.expect_silence(CONTROL).await;
}

/// Store that records changes of subscriptions, and whether they were lazy.
#[derive(Default)]
struct Told {
    inner: MemoryStore,
    subscribed: Mutex<Vec<(QoS, bool)>>,
}

impl Store for Told {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        self.inner.recover(into)
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        self.inner.claim(client_id)
    }

    fn commit(&self, batch: Batch) -> Commit {
        let is_late = batch.is_lazy();
        let qos = |change: &Change| match change {
            Change::Subscribed { subscription, .. } => Some((subscription.qos, is_late)),
            _ => None,
        };
        self.subscribed.lock().expect("no thread panics").extend(batch.changes().iter().filter_map(qos));
        self.inner.commit(batch)
    }

    fn messages_of(&self, lsns: &[Lsn]) -> Completion<Vec<Option<StoredMessage>>> {
        self.inner.messages_of(lsns)
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError> {
        self.inner.messages(show)
    }
}

/// The subscription of the remaining stream was acknowledged: it is not stored late. [BQ-42]
#[tokio::test(start_paused = true)]
async fn the_store_is_told_at_once_which_subscription_is_left() {
    let store = Arc::new(Told::default());
    let broker = QuicBroker::start_over(quiet(), QuicOptions::server(), anyone(), store.clone());
    let mut client = broker.resume("client").await;
    let (one, two) = (client.open().await, client.open().await);
    client.subscribe(one, "a", QoS::AtLeastOnce).await;
    client.subscribe(two, "a", QoS::AtMostOnce).await;
    // The control stream keeps one of the subscriptions that end.
    for stream in [one, two] {
        finish(&client, stream).await;
    }
    let subscribed = std::mem::take(&mut *store.subscribed.lock().unwrap());
    assert_eq!(subscribed[..2], [(QoS::AtLeastOnce, false), (QoS::AtMostOnce, false)]);
    assert!(subscribed.len() > 2, "it is told of what is left");
    assert!(subscribed.iter().all(|(_, is_late)| !is_late), "{subscribed:?}");
}

/// [BQ-42]
#[tokio::test(start_paused = true)]
async fn a_take_over_leaves_no_subscription_on_a_stream_that_is_gone() {
    let broker = QuicBroker::start();
    let mut client = broker.resume("client").await;
    let (one, two) = (client.open().await, client.open().await);
    client.subscribe(one, "a", QoS::AtMostOnce).await;
    client.subscribe(two, "b", QoS::AtMostOnce).await;
    let mut other = broker.resume("client").await;
    // These streams have the same numbers, but no subscriptions.
    assert_eq!([other.open().await, other.open().await], [one, two]);
    let all = [CONTROL, one, two];
    other.subscribe(two, "c", QoS::AtMostOnce).await;
    other.subscribe(one, "c", QoS::AtMostOnce).await;
    assert_eq!(streams_of(&broker, &other, "a", &all).await, [CONTROL]);
    assert_eq!(streams_of(&broker, &other, "b", &all).await, [CONTROL]);
    assert_eq!(streams_of(&broker, &other, "c", &all).await, [one, two]);
}

/// The store does not record streams.
#[tokio::test(start_paused = true)]
async fn after_a_restart_a_filter_is_there_if_any_stream_had_it() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let streams = StreamsConfig { strict_streams: true, ..StreamsConfig::default() };
    let start = || {
        let config = BrokerConfig { streams: streams.clone(), ..quiet() };
        QuicBroker::start_over(config, QuicOptions::server(), anyone(), store.clone())
    };
    let broker = start();
    let mut client = broker.resume("client").await;
    let (one, two) = (client.open().await, client.open().await);
    client.subscribe(one, "kept", QoS::AtLeastOnce).await;
    client.subscribe(two, "kept", QoS::AtMostOnce).await;
    client.subscribe(one, "ended", QoS::AtLeastOnce).await;
    assert_eq!(unsubscribe(&mut client, two, "kept").await, ReasonCode::Success);
    assert_eq!(unsubscribe(&mut client, one, "ended").await, ReasonCode::Success);
    // Subscriptions of the control stream stay when those of data streams end.
    client.subscribe(CONTROL, "merged", QoS::AtLeastOnce).await;
    client.subscribe(two, "merged", QoS::AtMostOnce).await;
    finish(&client, two).await;
    // As in a crash: the first broker writes nothing more to the store.
    let broker = start();
    let client = broker.connect(lasting("client")).await;
    assert!(client.connack().session_present);
    let mut publisher = broker.memory.v5("publisher").await;
    for topic in ["kept", "ended", "merged"] {
        publisher.publish(topic, topic, QoS::AtLeastOnce).await;
    }
    for topic in ["kept", "merged"] {
        let publish = client.expect_publish(CONTROL).await;
        assert_eq!((&publish.payload[..], publish.qos), (topic.as_bytes(), QoS::AtLeastOnce));
    }
    client.expect_silence(CONTROL).await;
}

/// A connected client that takes 256 KiB of each stream before it reads.
async fn slow_link(broker: &QuicBroker) -> Lanes {
    let options = QuicOptions { stream_receive_window: 256 * 1024, ..QuicOptions::client() };
    let mut client = broker.link_with("client", options).await;
    client.send_connect(lasting("client"));
    client.accepted().await;
    client
}

/// A client for which `count` retained messages of 2,000 bytes are pending on a stream that it does not read.
async fn pending_retained(broker: &QuicBroker, count: usize) -> (Lanes, StreamKey) {
    let mut publisher = broker.memory.v5("publisher").await;
    for number in 0..count {
        let retained = message(&format!("r/{number}"), format!("{number:02000}"));
        publisher.publish_as(Publish { retain: true, ..retained }).await;
    }
    pass(1).await;
    let client = slow_link(broker).await;
    let one = client.open().await;
    client.leave_unread(one);
    let entry = SubscribeEntry::new(filter("r/#"), QoS::AtMostOnce);
    client.send(one, &subscribe_packet(1, None, vec![entry]));
    pass(1).await;
    (client, one)
}

/// [BQ-42]
#[tokio::test(start_paused = true)]
async fn pending_retained_messages_of_a_reset_stream_continue_on_the_control_stream() {
    const COUNT: usize = 600;
    let broker = QuicBroker::start();
    let (client, one) = pending_retained(&broker, COUNT).await;
    client.reset(one, 0);
    // QoS 0 messages in flight are lost with the stream; most were not sent yet.
    let come = arrivals(&client, &[CONTROL]).await.len();
    assert!((COUNT / 4..COUNT).contains(&come), "{come} came");
}

/// [BQ-42]
#[tokio::test(start_paused = true)]
async fn pending_retained_messages_of_a_stream_come_on_the_control_stream_after_a_resume() {
    const COUNT: usize = 600;
    for is_taken_over in [false, true] {
        let broker = QuicBroker::start();
        let (first, one) = pending_retained(&broker, COUNT).await;
        let first = if is_taken_over {
            Some(first)
        } else {
            first.vanish().await;
            None
        };
        let mut client = slow_link(&broker).await;
        client.leave_unread(CONTROL);
        // The stream with the same number is another stream.
        assert_eq!(client.open().await, one);
        client.subscribe(one, "others", QoS::AtMostOnce).await;
        client.read(CONTROL);
        let come = arrivals(&client, &[one, CONTROL]).await;
        assert!((COUNT / 4..COUNT).contains(&come.len()), "{} came", come.len());
        assert!(!come.contains(&one), "{one} has not asked for it");
        drop(first);
    }
}

/// [MQTT-3.10.4-2]
#[tokio::test(start_paused = true)]
async fn unsubscribe_ends_pending_retained_messages_on_every_stream() {
    const COUNT: usize = 1500;
    for ends_stream in [false, true] {
        let broker = QuicBroker::start();
        let (client, one) = pending_retained(&broker, COUNT).await;
        client.leave_unread(CONTROL);
        if ends_stream {
            client.reset(one, 0);
            pass(1).await;
        }
        client.send(CONTROL, &unsubscribe_packet(2, &["r/#"]));
        pass(1).await;
        [one, CONTROL].iter().for_each(|stream| client.read(*stream));
        pass(1).await;
        let packets = [client.received(one), client.received(CONTROL)].concat();
        let is_answered = packets
            .iter()
            .any(|packet| matches!(packet, Packet::Unsuback(answer) if !answer.codes[0].is_error()));
        let come = packets.iter().filter(|packet| matches!(packet, Packet::Publish(_))).count();
        // Earlier deliveries are still sent.
        assert!(is_answered && (1..COUNT / 2).contains(&come), "{come} came");
    }
}

/// [MQTT-4.1.0-2]
#[tokio::test(start_paused = true)]
async fn nothing_of_a_session_that_ends_is_left() {
    let config = BrokerConfig { sys: SysConfig { interval_secs: 1 }, ..BrokerConfig::default() };
    let broker = QuicBroker::start_with(config);
    let mut client = broker.v5("client").await;
    let (one, two) = (client.open().await, client.open().await);
    for (stream, text) in [(one, "a/+"), (two, "a/+"), (two, "$share/g/a"), (CONTROL, "a/+")] {
        client.subscribe(stream, text, QoS::AtMostOnce).await;
    }
    for expected in ["4", "0"] {
        pass(2).await;
        let mut other = broker.memory.v5("other").await;
        other.subscribe("$SYS/broker/subscriptions/count", QoS::AtMostOnce).await;
        assert_eq!(other.take().await, expected);
        other.disconnect().await;
        client.disconnect().await.expect("in order");
    }
}

#[tokio::test(start_paused = true)]
async fn the_limit_counts_every_filter_of_every_stream() {
    let limits = LimitsConfig { subscriptions: 2, ..LimitsConfig::default() };
    let broker = QuicBroker::start_with(BrokerConfig { limits, ..quiet() });
    let mut client = broker.v5("client").await;
    let [one, two, three] = [client.open().await, client.open().await, client.open().await];
    let (granted, refused) = (ReasonCode::Success, ReasonCode::QuotaExceeded);
    for (stream, expected) in [(one, granted), (two, granted), (CONTROL, refused), (one, granted)] {
        assert_eq!(subscribe_if_new(&mut client, stream, "a").await, expected, "{stream}");
    }
    // Retained messages pending for a stream are replaced, not added to.
    finish(&client, one).await;
    assert_eq!(subscribe_if_new(&mut client, three, "a").await, granted);
    assert_eq!(subscribe_if_new(&mut client, three, "b").await, refused);
}

/// [BQ-15], [BQ-16]
#[tokio::test(start_paused = true)]
async fn each_stream_gets_all_retained_messages_of_its_own_subscription() {
    const COUNT: usize = 600;
    let broker = QuicBroker::start();
    let (mut client, one) = pending_retained(&broker, COUNT).await;
    let two = client.open().await;
    client.subscribe(two, "r/#", QoS::AtMostOnce).await;
    assert_eq!(arrivals(&client, &[two]).await.len(), COUNT);
    client.read(one);
    assert_eq!(arrivals(&client, &[one]).await.len(), COUNT);
}
