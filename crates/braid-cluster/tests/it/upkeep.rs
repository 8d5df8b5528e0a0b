//! Maintenance of the streams, and retained messages that the API removes.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::State;
use braid_broker::PriorityRule;
use braid_cluster::{ClusterOptions, Risk, Upkeep};
use braid_proto::packet::QoS;
use braid_proto::reason::ReasonCode;
use braid_proto::stream::Priority;
use braid_proto::topic::{TopicFilter, TopicName};
use futures_util::TryStreamExt;
use tokio::time::Instant;

use super::broker::{BrokerNode, PATIENCE};
use super::servers::{Servers, Settings};

async fn one_server(upkeep: Upkeep) -> (Servers, ClusterOptions, Context) {
    let servers = Servers::start(1, &Settings::default()).await;
    let mut options = servers.options("a", "1");
    options.accepted = vec![Risk::Replicas];
    (options.dimensions.replicas, options.dimensions.shards) = (1, 1);
    options.upkeep = upkeep;
    let client = async_nats::connect(servers.url(0)).await.unwrap();
    (servers, options, async_nats::jetstream::new(client))
}

async fn state(jetstream: &Context, stream: &str) -> State {
    jetstream.get_stream(stream).await.unwrap().cached_info().state.clone()
}

/// Waits until the state of a stream is as wanted.
async fn until(jetstream: &Context, stream: &str, is_so: impl Fn(&State) -> bool) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let state = state(jetstream, stream).await;
        if is_so(&state) {
            return;
        }
        assert!(Instant::now() < give_up, "{state:?}");
        tokio::task::yield_now().await;
    }
}

fn second(options: &ClusterOptions) -> ClusterOptions {
    ClusterOptions { node: "b".parse().unwrap(), instance: "2".to_owned(), ..options.clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retained_message_is_removed_everywhere_and_its_copy_too() {
    let upkeep = Upkeep { removals: Duration::from_secs(1), ..Upkeep::default() };
    let (_servers, options, jetstream) = one_server(upkeep).await;
    let (a, b) = (BrokerNode::start(&options).await, BrokerNode::start(&second(&options)).await);
    let topic = TopicName::parse("r/1").unwrap();
    let (mut subscriber, _) = b.connect("subscriber").await;
    subscriber.subscribe("r/#", QoS::AtMostOnce).await;
    let (mut publisher, _) = a.connect("publisher").await;
    for (topic, payload) in [("r/1", "one"), ("r/2", "two")] {
        publisher.publish(topic, payload, true).await;
        assert_eq!(subscriber.text().await, format!("{payload} q0 0"));
    }
    assert!(!a.handle.delete_retained(&TopicName::parse("r").unwrap()).await.unwrap());
    assert!(a.handle.delete_retained(&topic).await.unwrap());
    publisher.publish("r/3", "three", false).await;
    assert_eq!(subscriber.text().await, "three q0 0", "subscribers hear nothing of the removal");
    for (node, name) in [(&a, "late-a"), (&b, "late-b")] {
        let (mut late, _) = node.connect(name).await;
        late.subscribe("r/#", QoS::AtMostOnce).await;
        assert_eq!(late.text().await, "two q0 0 retain");
    }
    assert!(!b.handle.delete_retained(&topic).await.unwrap(), "it is gone at the other node");
    // By a client.
    publisher.publish("r/2", "", true).await;
    until(&jetstream, "test-r", |state| state.messages == 0 && state.last_sequence >= 4).await;
    publisher.publish("r/2", "again", true).await;
    until(&jetstream, "test-r", |state| state.messages == 1).await;
    // A node that starts now finds what was removed in the log.
    a.stop().await;
    b.stop().await;
    let c = BrokerNode::start(&options).await;
    let (mut late, _) = c.connect("late").await;
    late.subscribe("r/#", QoS::AtMostOnce).await;
    assert_eq!(late.text().await, "again q0 0 retain");
    c.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_absent_clients_hold_the_log_only_where_they_need_it() {
    let upkeep = Upkeep {
        trim: Duration::from_secs(1),
        behind: 1,
        record_after: 1,
        rest: Duration::ZERO,
        ..Upkeep::default()
    };
    let (_servers, options, jetstream) = one_server(upkeep).await;
    let node = BrokerNode::start(&options).await;
    let other = BrokerNode::start(&second(&options)).await;
    // Their nodes write where they are.
    let (_here, _there) = (node.connect("here").await, other.connect("there").await);
    for (client, filter, qos) in [
        ("idle", "idle/#", QoS::AtLeastOnce),
        ("zero", "t/#", QoS::AtMostOnce),
        ("waits", "t/+/x", QoS::AtLeastOnce),
    ] {
        let (mut client, _) = node.connect(client).await;
        client.subscribe(filter, qos).await;
    }
    let (mut publisher, _) = node.connect("publisher").await;
    for number in 1..=20 {
        publisher.publish(&format!("t/{number}"), number.to_string(), false).await;
    }
    // Nothing of it is needed by any of them.
    until(&jetstream, "test-m-0", |state| state.first_sequence == 21).await;
    publisher.publish("t/21/x", "needed", false).await;
    for number in 22..=30 {
        publisher.publish(&format!("t/{number}"), number.to_string(), false).await;
    }
    let all = |state: &State| state.last_sequence == 30;
    until(&jetstream, "test-m-0", all).await;
    // The others go on, and one record is where its message is.
    let records = jetstream.get_stream("test-s").await.unwrap();
    let give_up = Instant::now() + PATIENCE;
    let done = async |client: &str| {
        let record = records.get_last_raw_message_by_subject(&format!("test.s.{client}")).await.unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record.payload).unwrap();
        record["p"][0]["d"].as_u64().unwrap()
    };
    while done("idle").await < 30 || done("zero").await < 30 {
        assert!(Instant::now() < give_up, "{} {}", done("idle").await, done("zero").await);
        tokio::task::yield_now().await;
    }
    assert_eq!(done("waits").await, 20);
    assert_eq!(state(&jetstream, "test-m-0").await.first_sequence, 21);
    let (mut waits, is_present) = node.connect("waits").await;
    assert!(is_present);
    assert_eq!(waits.text().await, "needed q1 1");
    waits.acknowledge(braid_proto::packet::AckKind::Puback, 1).await;
    drop(waits);
    until(&jetstream, "test-m-0", |state| state.first_sequence == 31).await;
    node.stop().await;
    other.stop().await;
}

// The Session Expiry Interval begins with the end of the connection (MQTT 5, 3.1.2.11.2), and not once more when a node
// takes the session to publish its Will.
#[tokio::test(flavor = "multi_thread")]
async fn a_will_does_not_make_its_session_last_longer() {
    let (_servers, options, jetstream) = one_server(Upkeep::default()).await;
    let node = BrokerNode::start(&options).await;
    let (mut subscriber, _) = node.connect("subscriber").await;
    subscriber.subscribe("w", QoS::AtLeastOnce).await;
    let (absent, reason) = node.connect_with_will("absent", "w", 2).await;
    assert_eq!(reason, ReasonCode::Success);
    drop(absent);
    let records = jetstream.get_stream("test-s").await.unwrap();
    // Time at which the connection ended, once no node has the session and its Will is there or not.
    let parked_at = async |has_will: bool| {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let record = records.get_last_raw_message_by_subject("test.s.absent").await.unwrap();
            let record: serde_json::Value = serde_json::from_slice(&record.payload).unwrap();
            if record.get("o").is_none() && record.get("w").is_some() == has_will {
                return record["a"].as_u64().unwrap();
            }
            assert!(Instant::now() < give_up, "{record}");
            tokio::task::yield_now().await;
        }
    };
    let ended = parked_at(true).await;
    assert_eq!(subscriber.text().await, "will q1 1");
    assert_eq!(parked_at(false).await, ended);
    node.stop().await;
}

/// Groups that have a consumer in the first shard.
async fn groups(jetstream: &Context) -> usize {
    let stream = jetstream.get_stream("test-m-0").await.unwrap();
    let names: Vec<String> = stream.consumer_names().try_collect().await.unwrap();
    names.iter().filter(|name| name.starts_with("g-")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_group_holds_the_log_and_goes_with_its_last_member() {
    let upkeep = Upkeep { trim: Duration::from_millis(200), behind: 1, record_after: 1, ..Upkeep::default() };
    let (_servers, options, jetstream) = one_server(upkeep).await;
    let node = BrokerNode::start(&options).await;
    let (mut member, _) = node.connect("member").await;
    member.subscribe("$share/g/t/#", QoS::AtLeastOnce).await;
    let (mut publisher, _) = node.connect("publisher").await;
    let publish = async |publisher: &mut super::broker::Client, number: u64| {
        publisher.publish(&format!("t/{number}"), number.to_string(), false).await;
    };
    for number in 1..=3 {
        publish(&mut publisher, number).await;
        assert_eq!(member.text().await, format!("{number} q1 {number}"));
    }
    member.acknowledge(braid_proto::packet::AckKind::Puback, 1).await;
    until(&jetstream, "test-m-0", |state| state.first_sequence == 2).await;
    member.acknowledge(braid_proto::packet::AckKind::Puback, 3).await;
    member.acknowledge(braid_proto::packet::AckKind::Puback, 2).await;
    until(&jetstream, "test-m-0", |state| state.first_sequence == 4).await;
    // Messages wait in the log for a group whose members are away.
    drop(member);
    for number in 4..=5 {
        publish(&mut publisher, number).await;
    }
    publisher.publish("u", "without a subscriber", false).await;
    let (mut member, is_present) = node.connect("member").await;
    assert!(is_present);
    // In any order: one that found no member comes again later.
    let mut texts = member.texts(2).await;
    texts.sort_unstable();
    assert!(texts[0].starts_with("4 q1 ") && texts[1].starts_with("5 q1 "), "{texts:?}");
    assert_eq!(state(&jetstream, "test-m-0").await.first_sequence, 4);
    for id in [1, 2] {
        member.acknowledge(braid_proto::packet::AckKind::Puback, id).await;
    }
    until(&jetstream, "test-m-0", |state| state.first_sequence == 7).await;
    assert_eq!(groups(&jetstream).await, 1);
    // One that is not acknowledged any more.
    publish(&mut publisher, 6).await;
    assert!(member.text().await.starts_with("6 q1 "));
    member.unsubscribe("$share/g/t/#").await;
    let give_up = Instant::now() + PATIENCE;
    while groups(&jetstream).await > 0 {
        assert!(Instant::now() < give_up);
        tokio::task::yield_now().await;
    }
    // A member that comes later gets what comes later.
    publish(&mut publisher, 7).await;
    member.subscribe("$share/g/t/#", QoS::AtLeastOnce).await;
    publish(&mut publisher, 8).await;
    // Perhaps one that its node had not delivered when it subscribed.
    let mut text = member.text().await;
    if text.starts_with("7 ") {
        text = member.text().await;
    }
    assert!(text.starts_with("8 q1 "), "{text}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_messages_follow_their_topic_to_another_shard() {
    let (_servers, options, _) = one_server(Upkeep::default()).await;
    let node = BrokerNode::start(&options).await;
    let (mut publisher, _) = node.connect("publisher").await;
    for number in 1..=5 {
        publisher.publish("a", number.to_string(), true).await;
    }
    node.stop().await;
    let filter = TopicFilter::parse("a").unwrap();
    let rule = PriorityRule { filter, priority: Priority::new(60_000) };
    let node = BrokerNode::start_with(&options, vec![rule]).await;
    let (mut publisher, _) = node.connect("publisher").await;
    for payload in ["urgent", "later"] {
        publisher.publish("a", payload, true).await;
    }
    let (mut subscriber, _) = node.connect("subscriber").await;
    subscriber.subscribe("a", QoS::AtMostOnce).await;
    assert_eq!(subscriber.text().await, "later q0 0 retain");
    node.stop().await;
}

// The servers give a message that waits for room in the window to another member too, and the first one may get it
// twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_member_is_given_no_more_than_its_window() {
    const WINDOW: usize = 256;
    const MESSAGES: usize = WINDOW + 100;
    let (_servers, options, jetstream) = one_server(Upkeep::default()).await;
    let node = BrokerNode::start(&options).await;
    let (mut member, _) = node.connect("member").await;
    member.subscribe("$share/g/t", QoS::AtLeastOnce).await;
    let (mut publisher, _) = node.connect("publisher").await;
    for number in 0..MESSAGES {
        publisher.publish("t", number.to_string(), false).await;
    }
    let stream = jetstream.get_stream("test-m-0").await.unwrap();
    let names: Vec<String> = stream.consumer_names().try_collect().await.unwrap();
    let group = names.iter().find(|name| name.starts_with("g-")).unwrap();
    let in_flight = async || {
        let info = stream.consumer_info(group).await.unwrap();
        (info.num_ack_pending, usize::try_from(info.num_pending).unwrap())
    };
    let give_up = Instant::now() + PATIENCE;
    while in_flight().await.0 < WINDOW {
        assert!(Instant::now() < give_up, "{:?}", in_flight().await);
    }
    for _ in 0..100 {
        assert_eq!(in_flight().await, (WINDOW, MESSAGES - WINDOW));
    }
    // One that is acknowledged makes room for the next.
    assert!(member.text().await.ends_with("q1 1"));
    member.acknowledge(braid_proto::packet::AckKind::Puback, 1).await;
    while in_flight().await.1 == MESSAGES - WINDOW {
        assert!(Instant::now() < give_up);
    }
    node.stop().await;
}
