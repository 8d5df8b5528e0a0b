//! Streams that wait for a slow store delay no others.

use std::sync::Arc;

use braid_broker::BrokerConfig;
use braid_proto::packet::{Ack, AckKind, Packet, PacketId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_store::MemoryStore;
use braid_store::faults::HoldingStore;
use braid_transport::quic::QuicOptions;

use crate::support::{
    CONTROL, Lanes, QuicBroker, anyone, filter, lasting, pass, publish_packet, quiet, settle,
    subscribe_packet,
};

type Slow = Arc<HoldingStore<MemoryStore>>;

/// A broker over a store that holds every commit.
fn slow() -> (Slow, QuicBroker) {
    let store: Slow = Arc::new(HoldingStore::new(MemoryStore::new()));
    let broker =
        QuicBroker::start_over(BrokerConfig { ..quiet() }, QuicOptions::server(), anyone(), store.clone());
    (store, broker)
}

async fn release_all(store: &Slow) {
    loop {
        pass(1).await;
        if !store.release() {
            return;
        }
    }
}

/// A client with a durable session, subscribed to the topic "1", "2" on each of two data streams.
async fn client(store: &Slow, broker: &QuicBroker) -> (Lanes, [StreamKey; 2]) {
    let mut client = broker.link("client").await;
    client.send_connect(lasting("client"));
    release_all(store).await;
    client.accepted().await;
    let streams = [client.open().await, client.open().await];
    for (number, stream) in (1..).zip(streams) {
        let entry = braid_proto::packet::SubscribeEntry::new(filter(&format!("{number}")), QoS::ExactlyOnce);
        client.send(stream, &subscribe_packet(number, None, vec![entry]));
        release_all(store).await;
        client.expect_suback(stream).await;
    }
    (client, streams)
}

/// Publishes to a topic without waiting for the acknowledgement, which waits for the store.
async fn publish(broker: &QuicBroker, topic: &str, qos: QoS) {
    let mut publisher = broker.memory.v5(&format!("publisher of {topic}")).await;
    publisher.send(publish_packet(topic, topic, qos, 1)).await;
    settle().await;
}

/// Expects nothing on stream `held`, and traffic on all others.
async fn others_go_on(broker: &QuicBroker, client: &Lanes, held: StreamKey, free: StreamKey) {
    publish(broker, "2", QoS::AtLeastOnce).await;
    assert_eq!(client.expect_publish(free).await.payload, "2");
    client.ping(CONTROL).await;
    client.ping(free).await;
    client.expect_silence(held).await;
}

/// [BQ-55], and decision 6: a QoS 2 PUBLISH waits until its identifier is durable, and other streams do not wait.
#[tokio::test(start_paused = true)]
async fn a_qos_2_delivery_that_waits_for_the_store_holds_back_its_own_stream_alone() {
    let (store, broker) = slow();
    let (client, [held, free]) = client(&store, &broker).await;
    publish(&broker, "1", QoS::ExactlyOnce).await;
    others_go_on(&broker, &client, held, free).await;
    release_all(&store).await;
    assert_eq!(client.expect_publish(held).await.payload, "1");
}

/// As above, for PUBREL.
#[tokio::test(start_paused = true)]
async fn a_pubrel_that_waits_for_the_store_holds_back_its_own_stream_alone() {
    let (store, broker) = slow();
    let (client, [held, free]) = client(&store, &broker).await;
    publish(&broker, "1", QoS::ExactlyOnce).await;
    release_all(&store).await;
    let id = client.expect_publish(held).await.packet_id.expect("QoS 2 has one");
    client.send_ack(held, AckKind::Pubrec, id);
    settle().await;
    others_go_on(&broker, &client, held, free).await;
    release_all(&store).await;
    client.expect_ack(held, AckKind::Pubrel, id.value()).await;
}

/// Bytes before the barrier leave, none behind it: not even an acknowledgement that is not durable itself.
#[tokio::test(start_paused = true)]
async fn bytes_behind_a_barrier_wait_on_their_stream() {
    let (store, broker) = slow();
    let (client, [held, _]) = client(&store, &broker).await;
    publish(&broker, "1", QoS::ExactlyOnce).await;
    client.send(held, &Packet::Ack(Ack::new(AckKind::Pubrel, PacketId::FIRST, ReasonCode::Success)));
    client.expect_silence(held).await;
    release_all(&store).await;
    assert_eq!(client.expect_publish(held).await.payload, "1");
    match client.expect(held).await {
        Packet::Ack(ack) => assert_eq!(ack.kind, AckKind::Pubcomp),
        other => panic!("PUBCOMP expected, not {other:?}"),
    }
}

/// [BQ-42]: the stream of a message that is not durable yet ends. Its repetition waits on the control stream: otherwise
/// a crash would send it twice.
#[tokio::test(start_paused = true)]
async fn a_message_that_changes_its_stream_waits_for_the_store_all_the_same() {
    let (store, broker) = slow();
    let (client, [held, free]) = client(&store, &broker).await;
    publish(&broker, "1", QoS::ExactlyOnce).await;
    client.reset(held, 7);
    settle().await;
    client.expect_silence(CONTROL).await;
    publish(&broker, "2", QoS::AtLeastOnce).await;
    assert_eq!(client.expect_publish(free).await.payload, "2");
    release_all(&store).await;
    assert_eq!(client.find_publish(CONTROL).await.payload, "1");
}

/// [BQ-22]: PUBREL follows its repeated PUBLISH, on whichever stream PUBREC came. It waits there.
#[tokio::test(start_paused = true)]
async fn a_pubrel_on_another_stream_than_its_pubrec_waits_for_the_store() {
    let (store, broker) = slow();
    let (client, [first, _]) = client(&store, &broker).await;
    publish(&broker, "1", QoS::ExactlyOnce).await;
    release_all(&store).await;
    client.expect_publish(first).await;
    client.vanish().await;
    release_all(&store).await;
    let mut client = broker.link("client").await;
    client.send_connect(lasting("client"));
    release_all(&store).await;
    client.accepted().await;
    let id = client.find_publish(CONTROL).await.packet_id.expect("QoS 2 has one");
    let other = client.open().await;
    client.send_ack(other, AckKind::Pubrec, id);
    settle().await;
    client.expect_silence(CONTROL).await;
    release_all(&store).await;
    client.expect_ack(CONTROL, AckKind::Pubrel, id.value()).await;
}

/// As above, for a PUBREC that comes twice before the store has the first.
#[tokio::test(start_paused = true)]
async fn a_second_pubrel_does_not_overtake_the_store_either() {
    let (store, broker) = slow();
    let (client, [first, other]) = client(&store, &broker).await;
    publish(&broker, "1", QoS::ExactlyOnce).await;
    release_all(&store).await;
    let id = client.expect_publish(first).await.packet_id.expect("QoS 2 has one");
    for stream in [first, other] {
        client.send_ack(stream, AckKind::Pubrec, id);
        settle().await;
    }
    for stream in [first, other] {
        client.expect_silence(stream).await;
    }
    release_all(&store).await;
    for stream in [first, other] {
        client.expect_ack(stream, AckKind::Pubrel, id.value()).await;
    }
}
