//! Shared subscriptions (MQTT 5, 4.8.2): selection of the member that receives a message.

use braid_broker::{BrokerConfig, Counter, LimitsConfig};
use braid_proto::packet::{AckKind, Packet, Publish, QoS};
use braid_proto::reason::ReasonCode;

use crate::support::{Client, TestBroker, connect_v5, lasting, quiet, settle, texts};

async fn member(broker: &TestBroker, client_id: &str, qos: QoS) -> Client {
    let mut member = broker.v5(client_id).await;
    member.subscribe("$share/g/t/#", qos).await;
    member
}

/// Publishes the numbers as messages.
async fn publish(publisher: &mut Client, numbers: std::ops::Range<u32>, qos: QoS) {
    for number in numbers {
        publisher.publish("t/1", number.to_string(), qos).await;
    }
}

#[tokio::test(start_paused = true)]
async fn members_take_turns_and_each_group_receives_a_copy() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut one = member(&broker, "one", QoS::AtLeastOnce).await;
    let mut two = member(&broker, "two", QoS::AtMostOnce).await;
    let mut old = broker.v3("old").await;
    old.subscribe("$share/g/t/#", QoS::ExactlyOnce).await;
    let mut other = broker.v5("other").await;
    other.subscribe("$share/other/t/1", QoS::AtLeastOnce).await;
    let mut direct = broker.v5("direct").await;
    direct.subscribe("t/1", QoS::AtLeastOnce).await;
    publish(&mut publisher, 0..9, QoS::AtLeastOnce).await;
    let all = [one.take_all().await, two.take_all().await, old.take_all().await];
    assert_eq!(
        all.each_ref().map(|publishes| texts(publishes)),
        [["0", "3", "6"], ["1", "4", "7"], ["2", "5", "8"]]
    );
    // [MQTT-4.8.2-3]
    assert!(all[1].iter().all(|publish| publish.qos == QoS::AtMostOnce));
    assert_eq!(other.take_all().await.len(), 9);
    assert_eq!(direct.take_all().await.len(), 9);
}

#[tokio::test(start_paused = true)]
async fn a_client_with_both_kinds_of_subscription_receives_both_copies() {
    let broker = TestBroker::start();
    let mut client = broker.v5("client").await;
    client.subscribe("t/1", QoS::AtMostOnce).await;
    client.subscribe("$share/g/t/1", QoS::AtMostOnce).await;
    client.publish("t/1", "x", QoS::AtMostOnce).await;
    assert_eq!(client.take_all().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn only_connected_members_have_a_turn() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut away = broker.resume("away").await;
    away.subscribe("$share/g/t/#", QoS::AtLeastOnce).await;
    let mut here = member(&broker, "here", QoS::AtLeastOnce).await;
    away.disconnect().await;
    publish(&mut publisher, 0..4, QoS::AtLeastOnce).await;
    assert_eq!(here.take_all().await.len(), 4);
    // With no member connected, a session keeps it.
    here.disconnect().await;
    publish(&mut publisher, 4..6, QoS::AtLeastOnce).await;
    let mut away = broker.resume("away").await;
    assert_eq!(texts(&away.take_all().await), ["4", "5"]);
}

#[tokio::test(start_paused = true)]
async fn a_member_without_room_has_no_turn() {
    let limits = LimitsConfig { queued_messages: 5, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(BrokerConfig { limits, ..quiet() });
    let mut publisher = broker.v5("publisher").await;
    let mut connect = connect_v5("stuck");
    connect.properties.receive_maximum = Some(1);
    let mut stuck = broker.connect(connect).await;
    stuck.subscribe("$share/g/t/#", QoS::AtLeastOnce).await;
    let mut reading = member(&broker, "reading", QoS::AtLeastOnce).await;
    let mut taken = 0;
    for number in 0..100 {
        publisher.publish("t/1", number.to_string(), QoS::AtLeastOnce).await;
        taken += reading.take_all().await.len();
    }
    // One is in flight to the member that never acknowledges, and its queue is full.
    assert_eq!(taken, 100 - 6);
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 0);
}

// [MQTT-4.8.2-5]
#[tokio::test(start_paused = true)]
async fn messages_of_an_ended_session_go_to_another_member_unless_qos_2_was_in_flight() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut connect = connect_v5("leaving");
    connect.properties.receive_maximum = Some(2);
    let mut leaving = broker.connect(connect).await;
    leaving.subscribe("$share/g/t/#", QoS::ExactlyOnce).await;
    publisher.publish("t/1", "one", QoS::AtLeastOnce).await;
    publisher.publish("t/1", "two", QoS::ExactlyOnce).await;
    publisher.publish("t/1", "queued one", QoS::AtLeastOnce).await;
    publisher.publish("t/1", "queued two", QoS::ExactlyOnce).await;
    let sent: Vec<Publish> = vec![leaving.expect_publish().await, leaving.expect_publish().await];
    assert_eq!(texts(&sent), ["one", "two"]);
    let mut staying = member(&broker, "staying", QoS::ExactlyOnce).await;
    staying.expect_silence().await;
    leaving.vanish().await;
    assert_eq!(texts(&staying.take_all().await), ["one", "queued one", "queued two"]);
}

#[tokio::test(start_paused = true)]
async fn an_acknowledged_message_goes_to_no_other_member() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut leaving = member(&broker, "leaving", QoS::ExactlyOnce).await;
    publisher.publish("t/1", "done", QoS::AtLeastOnce).await;
    leaving.take().await;
    // A refusal completes it as well. [MQTT-4.8.2-6]
    publisher.publish("t/1", "refused", QoS::AtLeastOnce).await;
    let refused = leaving.expect_publish().await;
    let mut puback = braid_proto::packet::Ack::new(
        AckKind::Puback,
        refused.packet_id.expect("QoS 1"),
        ReasonCode::ImplementationSpecificError,
    );
    leaving.send(Packet::Ack(puback.clone())).await;
    publisher.publish("t/1", "refused", QoS::ExactlyOnce).await;
    puback.kind = AckKind::Pubrec;
    puback.packet_id = leaving.expect_publish().await.packet_id.expect("QoS 2");
    leaving.send(Packet::Ack(puback)).await;
    let mut staying = member(&broker, "staying", QoS::ExactlyOnce).await;
    leaving.disconnect().await;
    settle().await;
    staying.expect_silence().await;
}

// [MQTT-4.8.2-4]
#[tokio::test(start_paused = true)]
async fn a_member_whose_session_lasts_completes_its_inflight_messages() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut member = broker.resume("member").await;
    member.subscribe("$share/g/t/#", QoS::ExactlyOnce).await;
    publisher.publish("t/1", "two", QoS::ExactlyOnce).await;
    let first = member.expect_publish().await;
    let mut staying = self::member(&broker, "staying", QoS::ExactlyOnce).await;
    member.vanish().await;
    staying.expect_silence().await;
    let mut member = broker.resume("member").await;
    let second = member.expect_publish().await;
    assert_eq!((second.dup, second.packet_id, &second.payload), (true, first.packet_id, &first.payload));
    member.acknowledge(&second).await;
    // The end of a session by Clean Start redistributes as well.
    publisher.publish("t/1", "for member", QoS::AtLeastOnce).await;
    publisher.publish("t/1", "for staying", QoS::AtLeastOnce).await;
    let clean = braid_proto::packet::Connect { clean_start: true, ..lasting("member") };
    let _clean = broker.connect(clean).await;
    let mut all = texts(&staying.take_all().await);
    all.sort_unstable();
    assert_eq!(all, ["for member", "for staying"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_without_any_member_is_dropped() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut last = member(&broker, "last", QoS::AtLeastOnce).await;
    publisher.publish("t/1", "x", QoS::AtLeastOnce).await;
    last.expect_publish().await;
    last.vanish().await;
    assert_eq!(publisher.publish("t/1", "x", QoS::AtLeastOnce).await, ReasonCode::NoMatchingSubscribers);
}
