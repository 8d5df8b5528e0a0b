//! Fairness between clients, and towards a client that follows the rules.

use std::time::Duration;

use braid_broker::{BrokerConfig, Counter, LimitsConfig, PriorityRule};
use braid_proto::packet::{
    Disconnect, Packet, ProtocolVersion, Publish, QoS, Subscribe, SubscribeEntry, Unsubscribe, UserProperties,
};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::Priority;

use crate::support::{
    TestBroker, connect_v3, connect_v5, filter, id, lasting, message, pass, quiet, texts, will,
};

fn with_limits(limits: LimitsConfig) -> BrokerConfig {
    BrokerConfig { limits, ..quiet() }
}

// [MQTT-3.3.1-9]
#[tokio::test(start_paused = true)]
async fn more_retained_messages_than_a_queue_holds_are_all_sent() {
    let limits = LimitsConfig { queued_messages: 300, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(with_limits(limits));
    let mut publisher = broker.v5("publisher").await;
    let names: Vec<_> = (0..2500).map(|number| format!("r/{number:04}")).collect();
    for name in &names {
        publisher.publish_as(Publish { retain: true, ..message(name, name) }).await;
    }
    let mut looker = broker.v5("looker").await;
    looker.subscribe("r/+", QoS::AtMostOnce).await;
    let seen = looker.take_all().await;
    assert_eq!(texts(&seen), names);
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 0);
}

#[tokio::test(start_paused = true)]
async fn filter_repeated_in_one_subscribe_gets_retained_messages_once() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    publisher.publish_as(Publish { retain: true, ..message("r/1", "x") }).await;
    let mut looker = broker.v5("looker").await;
    let entries = (0..50).map(|_| SubscribeEntry::new(filter("r/#"), QoS::AtMostOnce)).collect();
    looker.subscribe_all(None, entries).await;
    assert_eq!(looker.take_all().await.len(), 1);
}

/// More filters than one turn handles: one answer, with the codes in their order.
#[tokio::test(start_paused = true)]
async fn many_filters_in_one_packet_are_answered_together() {
    let broker = TestBroker::start();
    let mut client = broker.v5("client").await;
    let names: Vec<_> = (0..1000).map(|number| format!("f/{number}")).collect();
    let qos = |number: usize| [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][number % 3];
    let entry = |(number, name): (usize, &String)| SubscribeEntry::new(filter(name), qos(number));
    let entries = names.iter().enumerate().map(entry).collect();
    let granted: Vec<ReasonCode> = (0..1000).map(|number| qos(number).into()).collect();
    assert_eq!(client.subscribe_all(None, entries).await.codes, granted);
    client.publish("f/999", "x", QoS::AtMostOnce).await;
    assert_eq!(client.take_all().await.len(), 1);
    let mut filters: Vec<_> = names.iter().map(|name| Ok(filter(name))).collect();
    filters[500] = Ok(filter("unknown"));
    let unsubscribe = Unsubscribe { packet_id: id(2), user: UserProperties::new(), filters };
    client.send(Packet::Unsubscribe(Box::new(unsubscribe))).await;
    let Some(Packet::Unsuback(unsuback)) = client.next().await else { panic!("no UNSUBACK") };
    let mut expected = vec![ReasonCode::Success; 1000];
    expected[500] = ReasonCode::NoSubscriptionExisted;
    assert_eq!(unsuback.codes, expected);
    client.publish("f/999", "x", QoS::AtMostOnce).await;
    client.expect_silence().await;
}

/// An acknowledged alarm is not lost because the queue is full of QoS 0.
#[tokio::test(start_paused = true)]
async fn qos0_gives_way_to_qos1() {
    let limits = LimitsConfig { queued_messages: 100, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(with_limits(limits));
    let mut slow = broker.narrow_link(ProtocolVersion::V5, 1024).await;
    slow.send_connect(lasting("slow")).await;
    slow.accepted().await;
    slow.subscribe("#", QoS::AtLeastOnce).await;
    let mut publisher = broker.v5("publisher").await;
    for _ in 0..1000 {
        publisher.publish("flood", "x".repeat(500), QoS::AtMostOnce).await;
    }
    publisher.publish("alarm", "fire", QoS::AtLeastOnce).await;
    let seen = slow.take_all().await;
    assert!(texts(&seen).contains(&"fire".to_owned()));
    assert!(broker.statistics().get(Counter::MessagesDropped) > 500);
}

#[tokio::test(start_paused = true)]
async fn receiver_of_a_large_delivery_is_still_read() {
    let broker = TestBroker::start();
    let mut slow = broker.narrow_link(ProtocolVersion::V311, 1024).await;
    let mut connect = connect_v3("slow");
    connect.keep_alive = 2;
    slow.send_connect(connect).await;
    slow.accepted().await;
    slow.subscribe("big", QoS::AtMostOnce).await;
    let mut publisher = broker.v5("publisher").await;
    publisher.publish("big", "x".repeat(1_000_000), QoS::AtLeastOnce).await;
    for _ in 0..10 {
        pass(1).await;
        slow.send(Packet::Pingreq).await;
    }
    assert_eq!(slow.expect_publish().await.payload.len(), 1_000_000);
}

#[tokio::test(start_paused = true)]
async fn will_below_sys_is_refused() {
    let broker = TestBroker::start();
    let mut client = broker.link(ProtocolVersion::V5).await;
    let mut connect = connect_v5("forger");
    connect.will = Some(will("$SYS/broker/version", "forged"));
    client.send_connect(connect).await;
    assert_eq!(client.expect_connack().await.reason, ReasonCode::NotAuthorized);
    client.expect_end().await;
}

#[tokio::test(start_paused = true)]
async fn sessions_and_retained_bytes_have_limits() {
    let limits = LimitsConfig { sessions: 2, retained_bytes: 2000, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(with_limits(limits));
    let mut first = broker.v5("first").await;
    broker.connect(lasting("second")).await.vanish().await;
    let mut third = broker.link(ProtocolVersion::V5).await;
    third.send_connect(connect_v5("third")).await;
    assert_eq!(third.expect_connack().await.reason, ReasonCode::QuotaExceeded);
    assert_eq!(broker.statistics().get(Counter::ConnectionsRefused), 1);
    // A client with a session may connect.
    let _second = broker.connect(lasting("second")).await;

    let retained =
        |topic, size| Publish { qos: QoS::AtLeastOnce, retain: true, ..message(topic, "x".repeat(size)) };
    assert_eq!(first.publish_as(retained("a", 1000)).await, ReasonCode::NoMatchingSubscribers);
    assert_eq!(first.publish_as(retained("b", 1000)).await, ReasonCode::QuotaExceeded);
    // The end of a session frees its place.
    assert_eq!(first.publish_as(retained("a", 1200)).await, ReasonCode::NoMatchingSubscribers);
    assert_eq!(first.publish_as(retained("a", 0)).await, ReasonCode::NoMatchingSubscribers);
    assert_eq!(first.publish_as(retained("b", 1000)).await, ReasonCode::NoMatchingSubscribers);
}

/// A turn ends before all messages of one read are dispatched; the rest is not lost with the link.
#[tokio::test(start_paused = true)]
async fn messages_before_a_disconnect_reach_all_subscribers() {
    const MESSAGES: usize = 3000;
    let broker = TestBroker::start();
    let mut subscribers = Vec::new();
    for number in 0..20 {
        let mut subscriber = broker.v5(&format!("subscriber {number}")).await;
        subscriber.subscribe("t", QoS::AtMostOnce).await;
        subscribers.push(subscriber);
    }
    // One read brings all of it.
    let mut publisher = broker.narrow_link(ProtocolVersion::V5, 1 << 20).await;
    publisher.send_connect(connect_v5("publisher")).await;
    publisher.accepted().await;
    publisher.publish("t", "0", QoS::AtLeastOnce).await;
    let all = (1..MESSAGES).map(|_| crate::support::publish_packet("t", "x", QoS::AtMostOnce, 0));
    publisher.send_all(all.chain([Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success)))])).await;
    for subscriber in &mut subscribers {
        assert_eq!(subscriber.take_all().await.len(), MESSAGES);
    }
}

#[tokio::test(start_paused = true)]
async fn turn_over_its_budget_goes_on_reading() {
    let broker = TestBroker::start();
    let mut subscriber = broker.v5("subscriber").await;
    subscriber.subscribe("t", QoS::AtMostOnce).await;
    // One read brings all of it.
    let mut publisher = broker.narrow_link(ProtocolVersion::V5, 1 << 20).await;
    publisher.send_connect(connect_v5("publisher")).await;
    publisher.accepted().await;
    publisher.send_all((0..3000).map(|_| crate::support::publish_packet("t", "x", QoS::AtMostOnce, 0))).await;
    assert_eq!(subscriber.take_all().await.len(), 3000);
    publisher.publish("t", "y", QoS::AtLeastOnce).await;
    assert_eq!(subscriber.take().await, "y");
}

/// A client that marks everything urgent does not fill the queue of a subscriber that others publish to: above its rate
/// it waits for the subscriber as they do.
#[tokio::test(start_paused = true)]
async fn a_client_that_marks_everything_urgent_is_slowed_like_others() {
    for (rate, is_slowed) in [(20_000, true), (0, false)] {
        let limits =
            LimitsConfig { queued_messages: 100, urgent_bytes_per_second: rate, ..LimitsConfig::default() };
        let rule = PriorityRule {
            filter: filter("urgent/#"),
            priority: Priority::new(Priority::DEFAULT.value() + 1),
        };
        let broker = TestBroker::start_with(BrokerConfig { priority: vec![rule], ..with_limits(limits) });
        let mut connect = connect_v5("subscriber");
        connect.properties.receive_maximum = Some(1);
        let mut subscriber = broker.connect(connect).await;
        subscriber.subscribe("#", QoS::AtLeastOnce).await;
        let reading = tokio::spawn(async move {
            loop {
                let publish = subscriber.expect_publish().await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                subscriber.acknowledge(&publish).await;
                if publish.payload == "x" {
                    return;
                }
            }
        });
        let mut greedy = broker.v5("greedy").await;
        for number in 0..300 {
            greedy.publish("urgent/all", format!("{number:0100}"), QoS::AtLeastOnce).await;
        }
        let mut other = broker.v5("other").await;
        other.publish("bulk", "x", QoS::AtLeastOnce).await;
        pass(60).await;
        assert_eq!(reading.is_finished(), is_slowed, "the message of the other client has arrived");
        assert_eq!(broker.statistics().get(Counter::MessagesDropped) == 0, is_slowed);
        reading.abort();
    }
}

/// A subscriber that gives itself the highest priority for everything and does not read fills its own queue only.
#[tokio::test(start_paused = true)]
async fn a_subscriber_of_everything_at_the_highest_priority_delays_no_other() {
    let limits = LimitsConfig { queued_messages: 100, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(with_limits(limits));
    let mut greedy = broker.narrow_link(ProtocolVersion::V5, 1024).await;
    greedy.send_connect(lasting("greedy")).await;
    greedy.accepted().await;
    let user = [("braid-priority", "65535")].into();
    let entries = vec![SubscribeEntry::new(filter("#"), QoS::AtLeastOnce)];
    greedy.send(Packet::Subscribe(Box::new(Subscribe { packet_id: id(1), id: None, user, entries }))).await;
    assert!(matches!(greedy.next().await, Some(Packet::Suback(_))));
    let mut subscriber = broker.v5("subscriber").await;
    subscriber.subscribe("t", QoS::AtLeastOnce).await;
    let mut publisher = broker.v5("publisher").await;
    let start = tokio::time::Instant::now();
    for number in 0..1000 {
        let text = format!("{number:0500}");
        publisher.publish("t", &text, QoS::AtLeastOnce).await;
        assert_eq!(subscriber.take().await, text);
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "nothing waits for the greedy one");
    let dropped = broker.statistics().get(Counter::MessagesDropped);
    // Its queue with the reserve, and an outbox of 64 KiB.
    assert!((700..875).contains(&dropped), "{dropped}");
}
