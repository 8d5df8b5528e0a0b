//! Priorities on one stream: urgent messages overtake queued ones between packets.

use std::sync::Arc;

use braid_broker::{Anonymous, BrokerConfig, PriorityRule};
use braid_proto::packet::ProtocolVersion;
use braid_proto::packet::{Packet, Publish, QoS, Subscribe, SubscribeEntry};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::Priority;
use braid_store::{MemoryStore, Store};

use crate::support::{
    Client, TestBroker, connect_v5, filter, id, lasting, message, quiet, settle, texts, unsubscribe_packet,
    will,
};

/// Number of messages of [`SIZE`] above the amount that the broker encodes ahead for one client.
const BULK: usize = 300;

/// Size of a bulk message, bytes.
const SIZE: usize = 1000;

/// Bulk messages that may be encoded, or in the link, before an urgent one is queued.
const AHEAD: usize = 70;

fn with_rules(rules: &[(&str, u16)]) -> BrokerConfig {
    let rule = |(text, priority): &(&str, u16)| PriorityRule {
        filter: filter(text),
        priority: Priority::new(*priority),
    };
    BrokerConfig { priority: rules.iter().map(rule).collect(), ..quiet() }
}

fn subscribe_packet(texts: &[&str], priorities: &[&str]) -> Packet {
    Packet::Subscribe(Box::new(Subscribe {
        packet_id: id(7),
        id: None,
        user: priorities.iter().map(|value| ("braid-priority", *value)).collect(),
        entries: texts.iter().map(|text| SubscribeEntry::new(filter(text), QoS::AtMostOnce)).collect(),
    }))
}

/// Subscribes with these User Properties; returns the codes of the SUBACK.
async fn subscribe(client: &mut Client, texts: &[&str], priorities: &[&str]) -> Vec<ReasonCode> {
    client.send(subscribe_packet(texts, priorities)).await;
    match client.next().await {
        Some(Packet::Suback(suback)) => suback.codes,
        other => panic!("SUBACK expected, not {other:?}"),
    }
}

/// A client whose link holds 1,024 bytes, so that unread messages wait in the broker.
async fn slow(broker: &TestBroker, client_id: &str) -> Client {
    let mut client = broker.narrow_link(ProtocolVersion::V5, 1024).await;
    client.send_connect(connect_v5(client_id)).await;
    client.accepted().await;
    client
}

/// Publishes `count` messages of 1,000 bytes, whose payloads begin with their number.
async fn publish_bulk(publisher: &mut Client, topic: &str, count: usize) {
    for number in 0..count {
        publisher.publish(topic, format!("{number:0SIZE$}"), QoS::AtMostOnce).await;
    }
    settle().await;
}

/// Positions of the messages of a topic among all received ones.
fn places(all: &[Publish], topic: &str) -> Vec<usize> {
    let is_it = |publish: &Publish| publish.topic.as_ref().is_some_and(|name| name.as_str() == topic);
    all.iter().enumerate().filter(|(_, publish)| is_it(publish)).map(|(at, _)| at).collect()
}

fn is_in_order(all: &[Publish], topic: &str) -> bool {
    places(all, topic).into_iter().map(|at| &all[at].payload[..]).is_sorted()
}

/// [BQ-52], [BQ-53], [BQ-54]
#[tokio::test(start_paused = true)]
async fn rules_order_what_waits_between_packets() {
    let broker = TestBroker::start_with(with_rules(&[("high/#", 200), ("low", 8), ("mid", 150)]));
    let mut publisher = broker.v5("publisher").await;
    let mut client = slow(&broker, "client").await;
    client.subscribe("#", QoS::AtMostOnce).await;
    publish_bulk(&mut publisher, "bulk", BULK).await;
    for number in 0..20 {
        for topic in ["low", "mid", "high/1", "high/2"] {
            publisher.publish(topic, format!("{number:02}"), QoS::AtMostOnce).await;
        }
    }
    settle().await;
    let all = client.take_many(BULK + 80).await;
    let first = places(&all, "high/1")[0];
    assert!((1..AHEAD).contains(&first), "the urgent ones come after {first} messages");
    let urgent: Vec<_> = all[first..first + 60].iter().map(topic_of).collect();
    // One priority is one lane for all topics.
    assert!(urgent[..40].chunks(2).all(|pair| pair == ["high/1", "high/2"]), "{urgent:?}");
    assert!(urgent[40..].iter().all(|topic| *topic == "mid"));
    assert!(all[first + 60..BULK + 60].iter().all(|publish| topic_of(publish) == "bulk"));
    assert_eq!(places(&all, "low"), (BULK + 60..BULK + 80).collect::<Vec<_>>());
    assert!(["bulk", "low", "mid", "high/1", "high/2"].iter().all(|topic| is_in_order(&all, topic)));
    client.expect_silence().await;
}

fn topic_of(publish: &Publish) -> &str {
    publish.topic.as_ref().map_or("", |topic| topic.as_str())
}

/// Publishes bulk, then one small message to `topic`; returns how many messages come before it, [BULK] when it
/// overtakes none.
async fn place_behind_bulk(broker: &TestBroker, client: &mut Client, topic: &str) -> usize {
    let mut publisher = broker.v5("publisher").await;
    publish_bulk(&mut publisher, "bulk", BULK).await;
    publisher.publish(topic, "x", QoS::AtMostOnce).await;
    settle().await;
    let all = client.take_many(BULK + 1).await;
    places(&all, topic)[0]
}

#[tokio::test(start_paused = true)]
async fn without_rules_everything_keeps_its_order() {
    let broker = TestBroker::start();
    let mut client = slow(&broker, "client").await;
    client.subscribe("#", QoS::AtMostOnce).await;
    assert_eq!(place_behind_bulk(&broker, &mut client, "alarms/fire").await, BULK);
}

#[tokio::test(start_paused = true)]
async fn equals_keep_the_order_in_which_they_came() {
    let broker = TestBroker::start_with(with_rules(&[("alarms/#", 100), ("#", 100)]));
    let mut client = slow(&broker, "client").await;
    client.subscribe("#", QoS::AtMostOnce).await;
    assert_eq!(place_behind_bulk(&broker, &mut client, "alarms/fire").await, BULK);
}

/// [BQ-52]
#[tokio::test(start_paused = true)]
async fn the_first_rule_in_the_file_that_matches_decides() {
    for (rules, overtakes) in [
        (vec![("alarms/+", 200), ("#", 8)], true),
        (vec![("#", 8), ("alarms/+", 200)], false),
        (vec![("alarms/test", 200), ("alarms/fire", 40_000), ("alarms/#", 1)], true),
        (vec![("alarms/test", 200), ("alarms/#", 1), ("alarms/fire", 40_000)], false),
        (vec![("+/fire", 101)], true),
        (vec![("alarms", 200)], false),
    ] {
        let broker = TestBroker::start_with(with_rules(&rules));
        let mut client = slow(&broker, "client").await;
        client.subscribe("#", QoS::AtMostOnce).await;
        let place = place_behind_bulk(&broker, &mut client, "alarms/fire").await;
        assert_eq!(place < AHEAD, overtakes, "{rules:?}: {place}");
        assert!(overtakes || place == BULK, "{rules:?}: {place}");
    }
}

/// [BQ-52]
#[tokio::test(start_paused = true)]
async fn the_priority_of_a_subscribe_overrides_the_rules() {
    for (rules, asked, overtakes) in [
        (vec![], vec!["200"], true),
        (vec![("alarms/#", 50)], vec!["200"], true),
        (vec![("alarms/#", 200)], vec!["100"], false),
        (vec![], vec!["200", "0"], false),
        (vec![], vec!["never", "200"], true),
    ] {
        let broker = TestBroker::start_with(with_rules(&rules));
        let mut client = slow(&broker, "client").await;
        client.subscribe("bulk", QoS::AtMostOnce).await;
        assert_eq!(subscribe(&mut client, &["alarms/#"], &asked).await, [ReasonCode::Success]);
        let place = place_behind_bulk(&broker, &mut client, "alarms/fire").await;
        assert_eq!(place < AHEAD, overtakes, "{rules:?} {asked:?}: {place}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_highest_priority_of_several_matching_subscriptions_counts() {
    let broker = TestBroker::start_with(with_rules(&[("alarms/#", 50)]));
    let mut client = slow(&broker, "client").await;
    client.subscribe("#", QoS::AtMostOnce).await;
    subscribe(&mut client, &["alarms/fire"], &["200"]).await;
    assert!(place_behind_bulk(&broker, &mut client, "alarms/fire").await < AHEAD);
    assert_eq!(place_behind_bulk(&broker, &mut client, "alarms/flood").await, BULK);
}

/// [BQ-52]
#[tokio::test(start_paused = true)]
async fn a_priority_that_is_none_is_refused_and_nothing_subscribed() {
    let broker = TestBroker::start();
    let mut client = broker.v5("client").await;
    client.subscribe("old", QoS::AtLeastOnce).await;
    for value in ["urgent", "-1", "65536", ""] {
        let codes = subscribe(&mut client, &["old", "new"], &["5", value]).await;
        assert_eq!(codes, [ReasonCode::ImplementationSpecificError; 2], "{value:?}");
    }
    client.publish("new", "x", QoS::AtMostOnce).await;
    client.expect_silence().await;
    // Earlier subscriptions keep their priority.
    client.publish("old", "x", QoS::AtLeastOnce).await;
    let publish = client.expect_publish().await;
    assert_eq!(publish.qos, QoS::AtLeastOnce);
    client.acknowledge(&publish).await;
    client.send(unsubscribe_packet(9, &["new", "old"])).await;
    let codes = client.find_unsuback().await.codes;
    assert_eq!(codes, [ReasonCode::NoSubscriptionExisted, ReasonCode::Success]);
    // The lowest and highest values are valid.
    for value in ["0", "65535"] {
        assert_eq!(subscribe(&mut client, &["new"], &[value]).await, [ReasonCode::Success]);
    }
}

/// [BQ-52]
#[tokio::test(start_paused = true)]
async fn members_of_a_group_get_the_topics_priority_or_their_own() {
    for (asked, fire, flood) in [(vec![], true, false), (vec!["200"], true, true), (vec!["1"], false, false)]
    {
        let broker = TestBroker::start_with(with_rules(&[("alarms/fire", 200)]));
        let mut client = slow(&broker, "client").await;
        client.subscribe("bulk", QoS::AtMostOnce).await;
        assert_eq!(subscribe(&mut client, &["$share/g/alarms/#"], &asked).await, [ReasonCode::Success]);
        let place = place_behind_bulk(&broker, &mut client, "alarms/fire").await;
        assert_eq!(place < AHEAD, fire, "fire: {place}");
        let place = place_behind_bulk(&broker, &mut client, "alarms/flood").await;
        assert_eq!(place < AHEAD, flood, "flood: {place}");
    }
}

/// Unsent messages of a member go to another with the priority of the other's subscription.
#[tokio::test(start_paused = true)]
async fn a_message_moved_to_another_member_keeps_the_priority_of_its_topic() {
    let broker = TestBroker::start_with(with_rules(&[("g/z", 200)]));
    let mut publisher = broker.v5("publisher").await;
    let mut leaving = broker.resume("leaving").await;
    leaving.send(subscribe_qos_1("$share/g/g/#", "5")).await;
    settle().await;
    leaving.vanish().await;
    for topic in ["g/a", "g/b", "g/z"] {
        publisher.publish(topic, topic, QoS::AtLeastOnce).await;
    }
    let mut stays = slow(&broker, "stays").await;
    stays.subscribe("bulk", QoS::AtMostOnce).await;
    stays.subscribe("$share/g/g/#", QoS::AtLeastOnce).await;
    publish_bulk(&mut publisher, "bulk", BULK).await;
    // Clean Start ends the session of the first member.
    let _again = broker.v5("leaving").await;
    settle().await;
    let all = stays.take_many(BULK + 3).await;
    assert!(places(&all, "g/z")[0] < AHEAD);
    assert_eq!([places(&all, "g/a"), places(&all, "g/b")], [[BULK + 1], [BULK + 2]]);
}

fn subscribe_qos_1(text: &str, priority: &str) -> Packet {
    let Packet::Subscribe(mut subscribe) = subscribe_packet(&[text], &[priority]) else { unreachable!() };
    subscribe.entries[0].qos = QoS::AtLeastOnce;
    Packet::Subscribe(subscribe)
}

/// [BQ-52]
#[tokio::test(start_paused = true)]
async fn retained_messages_come_in_the_order_of_their_priorities() {
    let broker = TestBroker::start_with(with_rules(&[("z/alarm", 200), ("a/bulk", 8)]));
    let mut client = broker.v5("client").await;
    for topic in ["a/bulk", "m/1", "m/2", "z/alarm"] {
        client.publish_as(Publish { retain: true, ..message(topic, topic) }).await;
    }
    settle().await;
    client.subscribe("#", QoS::AtMostOnce).await;
    assert_eq!(texts(&client.take_all().await), ["z/alarm", "m/1", "m/2", "a/bulk"]);
    // With one priority for all, messages keep the order of the topics.
    subscribe(&mut client, &["#"], &["5"]).await;
    assert_eq!(texts(&client.take_all().await), ["a/bulk", "m/1", "m/2", "z/alarm"]);
}

#[tokio::test(start_paused = true)]
async fn a_will_has_the_priority_of_its_topic() {
    let broker = TestBroker::start_with(with_rules(&[("alarms/#", 200)]));
    let mut publisher = broker.v5("publisher").await;
    let mut client = slow(&broker, "client").await;
    client.subscribe("#", QoS::AtMostOnce).await;
    let mut connect = connect_v5("mortal");
    connect.will = Some(will("alarms/mortal", "x"));
    let mortal = broker.connect(connect).await;
    publish_bulk(&mut publisher, "bulk", BULK).await;
    mortal.vanish().await;
    let all = client.take_many(BULK + 1).await;
    assert!(places(&all, "alarms/mortal")[0] < AHEAD);
}

/// Priorities of subscriptions belong to the session; rules to the running broker.
#[tokio::test(start_paused = true)]
async fn priorities_survive_a_restart_with_their_session() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    {
        let broker = TestBroker::start_over(store.clone());
        let mut client = broker.resume("client").await;
        client.subscribe("bulk", QoS::AtMostOnce).await;
        subscribe(&mut client, &["asked"], &["200"]).await;
        subscribe(&mut client, &["ruled"], &[]).await;
        client.vanish().await;
    }
    let broker = TestBroker::start_with_all(
        with_rules(&[("ruled", 50_000), ("asked", 1)]),
        Anonymous::default(),
        store,
    );
    let mut client = broker.narrow_link(ProtocolVersion::V5, 1024).await;
    client.send_connect(lasting("client")).await;
    client.accepted().await;
    assert!(client.connack().session_present);
    assert!(place_behind_bulk(&broker, &mut client, "asked").await < AHEAD);
    assert!(place_behind_bulk(&broker, &mut client, "ruled").await < AHEAD);
}

/// [BQ-53]
#[tokio::test(start_paused = true)]
async fn messages_queued_offline_are_sent_by_priority() {
    let broker = TestBroker::start_with(with_rules(&[("high", 200), ("low", 8)]));
    let mut publisher = broker.v5("publisher").await;
    let mut client = broker.resume("client").await;
    client.subscribe("#", QoS::AtLeastOnce).await;
    client.disconnect().await;
    for topic in ["low", "mid", "high", "low", "mid", "high"] {
        publisher.publish(topic, topic, QoS::AtLeastOnce).await;
    }
    let mut client = broker.resume("client").await;
    assert_eq!(texts(&client.take_all().await), ["high", "high", "mid", "mid", "low", "low"]);
}
