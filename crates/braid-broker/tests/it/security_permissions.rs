//! Rules of safety 4 and 5: the access control list on the concrete topic at every delivery, and names that would be
//! wildcards.

use std::sync::Arc;

use braid_broker::{BrokerConfig, Counter, SysConfig};
use braid_proto::packet::{
    AckKind, Connect, Packet, ProtocolVersion, Publish, QoS, Subscribe, SubscribeEntry,
};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_store::MemoryStore;

use crate::support::{
    AclRules, CONTROL, Client, Lanes, QuicBroker, TestBroker, UserNames, connect_v5, filter, id, lasting,
    message, named, pass, publish_packet, quiet, settle, subscribe_packet, texts, will,
};

const ALL: &str = "allow all topic #";

/// Filters that cover the secret topic are granted, and it is not delivered.
const SECRET: &str = "deny receive client client topic t/secret\nallow all topic #";

fn start(rules: &Arc<AclRules>) -> QuicBroker {
    start_over(rules, Arc::new(MemoryStore::new()))
}

fn start_over(rules: &Arc<AclRules>, store: Arc<MemoryStore>) -> QuicBroker {
    QuicBroker::start_with_access(quiet(), UserNames, rules.clone(), store)
}

/// Subscribes on a stream; returns the answer.
async fn subscribe(client: &mut Lanes, stream: StreamKey, text: &str) -> ReasonCode {
    let packet_id = client.next_id();
    let entries = vec![SubscribeEntry::new(filter(text), QoS::AtLeastOnce)];
    client.send(stream, &subscribe_packet(packet_id, None, entries));
    client.expect_suback(stream).await.codes[0]
}

/// Payloads that arrive on a stream within a second, acknowledged.
async fn arrived(client: &Lanes, stream: StreamKey) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        pass(1).await;
        let packets = client.received(stream);
        if packets.is_empty() {
            return payloads;
        }
        for packet in packets {
            let Packet::Publish(publish) = packet else { panic!("PUBLISH expected, not {packet:?}") };
            client.acknowledge(stream, &publish).await;
            payloads.push(String::from_utf8_lossy(&publish.payload).into_owned());
        }
    }
}

/// Publishes on a stream; returns the answer.
async fn publish(client: &mut Lanes, stream: StreamKey, topic: &str) -> ReasonCode {
    let packet_id = client.next_id();
    client.send(stream, &publish_packet(topic, "x", QoS::AtLeastOnce, packet_id));
    client.find_ack(stream, AckKind::Puback, packet_id).await
}

async fn publish_all(publisher: &mut Client, topics: &[&str]) {
    for topic in topics {
        publisher.publish(topic, topic, QoS::AtLeastOnce).await;
    }
}

const TOPICS: [&str; 3] = ["t/1", "t/secret", "t/2"];
const PERMITTED: [&str; 2] = ["t/1", "t/2"];

/// CVE-2021-34434: live, retained, from the offline queue and of a shared subscription, on a link of one stream and on
/// each of several streams.
#[tokio::test(start_paused = true)]
async fn rule_4_every_way_of_delivery_asks_about_the_concrete_topic() {
    for way in ["live", "retained", "offline", "shared"] {
        let rules = AclRules::of(SECRET);
        let broker = start(&rules);
        let mut publisher = broker.memory.v5("publisher").await;
        let filters = match way {
            "shared" => ["$share/g/t/#", "$share/h/t/+", "$share/i/t/secret", "$share/j/#"],
            _ => ["t/#", "t/+", "t/secret", "#"],
        };
        let expected: [&[&str]; 4] = [&PERMITTED, &PERMITTED, &[], &PERMITTED];
        let retained = |topic| Publish { retain: true, qos: QoS::AtLeastOnce, ..message(topic, topic) };
        if way == "retained" {
            for topic in TOPICS {
                publisher.publish_as(retained(topic)).await;
            }
        }
        // Several streams.
        let mut client = broker.resume("client").await;
        let streams = [client.open().await, client.open().await, client.open().await, CONTROL];
        for (stream, filter) in streams.into_iter().zip(filters) {
            assert_eq!(subscribe(&mut client, stream, filter).await, ReasonCode::GrantedQos1);
        }
        if way == "offline" {
            client.close(0).await;
            publish_all(&mut publisher, &TOPICS).await;
            client = broker.resume("client").await;
            let mut payloads = arrived(&client, CONTROL).await;
            payloads.sort();
            payloads.dedup();
            assert_eq!(payloads, PERMITTED);
        } else {
            if way != "retained" {
                publish_all(&mut publisher, &TOPICS).await;
            }
            for (stream, expected) in streams.into_iter().zip(expected) {
                let mut payloads = arrived(&client, stream).await;
                payloads.sort();
                assert_eq!(payloads, expected, "{way} on {stream}");
            }
        }
        client.close(0).await;
        // One stream.
        let mut client = broker.memory.resume("client").await;
        client.take_all().await;
        let _ = client.subscribe_all(None, vec![SubscribeEntry::new(filter("t/#"), QoS::AtLeastOnce)]).await;
        match way {
            "retained" => {}
            "offline" => {
                client.vanish().await;
                publish_all(&mut publisher, &TOPICS).await;
                client = broker.memory.resume("client").await;
            }
            _ => publish_all(&mut publisher, &TOPICS).await,
        }
        let payloads = texts(&client.take_all().await);
        assert!(payloads.iter().all(|payload| payload != "t/secret"), "{way}: {payloads:?}");
        assert!(
            PERMITTED.iter().all(|payload| payloads.contains(&(*payload).to_owned())),
            "{way}: {payloads:?}"
        );
    }
}

/// A filter is granted only if the rules permit all that it can match.
#[tokio::test(start_paused = true)]
async fn rule_4_wildcard_filters_need_rules_for_all_that_they_match() {
    for (rules, granted, denied) in [
        (
            "allow all topic a/+",
            &["a/+", "a/b", "$share/g/a/+"][..],
            &["a/#", "#", "+/b", "+/+", "a", "$share/g/a/#"][..],
        ),
        ("allow all topic a/#", &["a", "a/#", "a/+/c", "a/+"], &["#", "+", "+/#"]),
        (
            "deny subscribe topic a/secret\nallow all topic a/#",
            &["a/b", "a/b/#", "a/+/c"],
            &["a/#", "a/+", "a/secret", "$share/g/a/+"],
        ),
        ("deny all topic +/secret\nallow all topic #", &["a/b", "a/b/+"], &["#", "+/+", "a/+", "b/secret"]),
        (
            "allow subscribe topic %c/+\nallow publish topic #",
            &["client/+", "client/x"],
            &["+/x", "other/+", "#", "client/#"],
        ),
    ] {
        let rules = AclRules::of(rules);
        let broker = start(&rules);
        let mut client = broker.v5("client").await;
        let mut single = broker.memory.v5("client-2").await;
        let data = client.open().await;
        for (filters, code) in [(granted, ReasonCode::GrantedQos1), (denied, ReasonCode::NotAuthorized)] {
            for text in filters {
                for stream in [CONTROL, data] {
                    assert_eq!(subscribe(&mut client, stream, text).await, code, "{text}");
                }
                if !text.contains("client") {
                    let entries = vec![SubscribeEntry::new(filter(text), QoS::AtLeastOnce)];
                    assert_eq!(single.subscribe_all(None, entries).await.codes, [code], "{text}");
                }
            }
        }
    }
}

/// A rule that changes between two SUBSCRIBEs of one filter on two streams holds for both at once.
#[tokio::test(start_paused = true)]
async fn rule_4_rules_that_change_between_streams() {
    let rules = AclRules::of(ALL);
    let broker = start(&rules);
    let mut publisher = broker.memory.v5("publisher").await;
    let mut client = broker.resume("client").await;
    let (first, second) = (client.open().await, client.open().await);
    assert_eq!(subscribe(&mut client, first, "t/#").await, ReasonCode::GrantedQos1);
    assert_eq!(subscribe(&mut client, first, "other").await, ReasonCode::GrantedQos1);
    rules.replace("deny all client client topic t/#\nallow all topic #");
    assert_eq!(subscribe(&mut client, second, "t/#").await, ReasonCode::NotAuthorized);
    assert_eq!(subscribe(&mut client, second, "other").await, ReasonCode::GrantedQos1);
    // The subscription of the first stream is older than the rule.
    publish_all(&mut publisher, &["t/1", "other"]).await;
    for stream in [first, second] {
        assert_eq!(arrived(&client, stream).await, ["other"]);
    }
    // As before identifier on two streams, at the same time: each is decided about by the rules, not by the other.
    for stream in [first, second] {
        client.send(stream, &publish_packet("t/1", "x", QoS::AtLeastOnce, 7));
        client.send(stream, &publish_packet("other", "x", QoS::AtLeastOnce, 8));
    }
    for stream in [first, second] {
        assert_eq!(client.find_ack(stream, AckKind::Puback, 7).await, ReasonCode::NotAuthorized);
        assert_eq!(client.find_ack(stream, AckKind::Puback, 8).await, ReasonCode::Success);
        assert_eq!(arrived(&client, stream).await, ["x", "x"]);
    }
    broker.memory.handle.recheck_clients().await;
    pass(1).await;
    rules.replace(ALL);
    publish_all(&mut publisher, &["t/1", "other"]).await;
    for stream in [first, second] {
        assert_eq!(arrived(&client, stream).await, ["other"], "the recheck has ended the other one");
    }
    assert_eq!(subscribe(&mut client, second, "t/#").await, ReasonCode::GrantedQos1);
    publish_all(&mut publisher, &["t/1"]).await;
    assert_eq!(arrived(&client, second).await, ["t/1"]);
    assert!(arrived(&client, first).await.is_empty());
    // On both streams, the recheck ends both.
    assert_eq!(subscribe(&mut client, first, "t/#").await, ReasonCode::GrantedQos1);
    rules.replace("deny all client client topic t/#\nallow all topic #");
    broker.memory.handle.recheck_clients().await;
    settle().await;
    rules.replace(ALL);
    publish_all(&mut publisher, &["t/1"]).await;
    for stream in [first, second, CONTROL] {
        assert!(arrived(&client, stream).await.is_empty());
    }
}

/// Messages that were sent before the rule changed have gone; none goes after.
#[tokio::test(start_paused = true)]
async fn rule_4_revocation_in_the_middle_of_an_offline_replay() {
    const WINDOW: u16 = 10;
    let connect = || {
        let mut connect = lasting("client");
        connect.properties.receive_maximum = Some(WINDOW);
        connect
    };
    for is_rechecked in [false, true] {
        for on_quic in [false, true] {
            let rules = AclRules::of(ALL);
            let broker = start(&rules);
            let mut client = broker.memory.connect(connect()).await;
            client.subscribe("t/#", QoS::AtLeastOnce).await;
            client.vanish().await;
            let mut publisher = broker.memory.v5("publisher").await;
            for number in 0..50 {
                let topic = if number % 2 == 0 { "t/secret" } else { "t/1" };
                publisher.publish(topic, format!("{topic} {number}"), QoS::AtLeastOnce).await;
            }
            let revoke = async || {
                rules.replace(SECRET);
                if is_rechecked {
                    broker.memory.handle.recheck_clients().await;
                }
            };
            let (before, after): (Vec<String>, Vec<String>) = if on_quic {
                let client = broker.connect(connect()).await;
                let before = vec![client.take(CONTROL).await, client.take(CONTROL).await];
                pass(1).await;
                revoke().await;
                (before, arrived(&client, CONTROL).await)
            } else {
                let mut client = broker.memory.connect(connect()).await;
                let before = vec![client.take().await, client.take().await];
                settle().await;
                revoke().await;
                (before, texts(&client.take_all().await))
            };
            assert_eq!(before.len() + after.len(), 12 + 19, "{before:?} {after:?}");
            let late = after.iter().skip(usize::from(WINDOW)).filter(|text| text.starts_with("t/secret"));
            assert_eq!(late.collect::<Vec<_>>(), Vec::<&String>::new());
            assert_eq!(broker.memory.statistics().get(Counter::MessagesDropped), 19);
        }
    }
}

/// A revoked user is cut off in the middle of its replay, on one stream and on several.
#[tokio::test(start_paused = true)]
async fn rule_4_revoked_users_get_no_more_of_their_queue() {
    for on_quic in [false, true] {
        let rules = AclRules::of(ALL);
        let broker = start(&rules);
        let connect = || {
            let mut connect = named("u", lasting("client"));
            connect.properties.receive_maximum = Some(1);
            connect
        };
        let mut client = broker.memory.connect(connect()).await;
        client.subscribe("t", QoS::AtLeastOnce).await;
        client.vanish().await;
        let mut publisher = broker.memory.v5("publisher").await;
        for number in 0..10 {
            publisher.publish("t", number.to_string(), QoS::AtLeastOnce).await;
        }
        if on_quic {
            let client = broker.connect(connect()).await;
            let publish = client.expect_publish(CONTROL).await;
            rules.revoke("u");
            broker.memory.handle.recheck_clients().await;
            client.acknowledge(CONTROL, &publish).await;
            client.expect_disconnect(ReasonCode::NotAuthorized).await;
        } else {
            let mut client = broker.memory.connect(connect()).await;
            client.expect_publish().await;
            rules.revoke("u");
            broker.memory.handle.recheck_clients().await;
            client.expect_disconnect(ReasonCode::NotAuthorized).await;
        }
    }
}

/// Messages that are queued to a stream which the client does not read are not sent once it reads again.
#[tokio::test(start_paused = true)]
async fn rule_4_messages_that_wait_for_an_unread_stream_are_asked_about_again() {
    const MESSAGES: usize = 400;
    let rules = AclRules::of(ALL);
    let broker = start(&rules);
    let mut client = broker.v5("client").await;
    let data = client.open().await;
    client.subscribe(data, "t/#", QoS::AtLeastOnce).await;
    client.leave_unread(data);
    let mut publisher = broker.memory.v5("publisher").await;
    for _ in 0..MESSAGES {
        publisher.publish("t/secret", [b'x'; 16 << 10], QoS::AtLeastOnce).await;
    }
    pass(1).await;
    rules.replace(SECRET);
    publisher.publish("t/1", "last", QoS::AtLeastOnce).await;
    pass(1).await;
    client.read(data);
    let payloads = arrived(&client, data).await;
    let secrets = payloads.iter().filter(|payload| *payload != "last").count();
    assert_eq!(payloads.last().map(String::as_str), Some("last"));
    let dropped = broker.memory.statistics().get(Counter::MessagesDropped);
    assert!(secrets < MESSAGES, "all were sent");
    assert_eq!(secrets as u64 + dropped, MESSAGES as u64);
}

/// A session that is resumed keeps the subscriptions, priorities and messages that are still permitted, also after a
/// restart.
#[tokio::test(start_paused = true)]
async fn rule_4_resume_asks_again() {
    for restarts in [false, true] {
        let rules = AclRules::of(ALL);
        let store = Arc::new(MemoryStore::new());
        let mut broker = start_over(&rules, store.clone());
        let mut client = broker.resume("client").await;
        let data = client.open().await;
        for (stream, text) in [(data, "a/#"), (CONTROL, "b/#"), (data, "c/#")] {
            assert_eq!(subscribe(&mut client, stream, text).await, ReasonCode::GrantedQos1);
        }
        client.close(0).await;
        let mut publisher = broker.memory.v5("publisher").await;
        publish_all(&mut publisher, &["a/1", "b/1", "c/1"]).await;
        rules.replace("deny subscribe,receive client client topic b/#\ndeny receive client client topic c/1\nallow all topic #");
        if restarts {
            broker.memory.handle.stop();
            broker.memory.ended().await;
            broker = start_over(&rules, Arc::new(store.reopen()));
        }
        let client = broker.resume("client").await;
        assert!(client.connack().session_present);
        assert_eq!(arrived(&client, CONTROL).await, ["a/1"]);
        rules.replace(ALL);
        let mut publisher = broker.memory.v5("publisher").await;
        publish_all(&mut publisher, &["a/2", "b/2", "c/2"]).await;
        assert_eq!(arrived(&client, CONTROL).await, ["a/2", "c/2"]);
    }
}

/// A priority that is not permitted any more falls to the usual one: for connected clients with the recheck, for
/// others when they return, and the store learns of it.
#[tokio::test(start_paused = true)]
async fn rule_4_priorities_are_asked_about_again() {
    const USUAL: &str = "deny prioritize topic #\nallow all topic #";
    for (is_connected, restarts) in [(true, false), (false, false), (true, true), (false, true)] {
        let rules = AclRules::of(ALL);
        let store = Arc::new(MemoryStore::new());
        let mut broker = TestBroker::start_with_access(UserNames, rules.clone(), store.clone());
        let mut client = broker.resume("client").await;
        for (topic, priority) in [("usual", None), ("urgent", Some("65535"))] {
            let user = priority.map(|value: &str| ("braid-priority", value)).into_iter().collect();
            let entries = vec![SubscribeEntry::new(filter(topic), QoS::AtLeastOnce)];
            let subscribe = Subscribe { packet_id: id(7), id: None, user, entries };
            client.send(Packet::Subscribe(Box::new(subscribe))).await;
            assert!(matches!(client.next().await, Some(Packet::Suback(_))));
        }
        if is_connected {
            rules.replace(USUAL);
            broker.handle.recheck_clients().await;
        } else {
            client.vanish().await;
            rules.replace(USUAL);
            client = broker.resume("client").await;
        }
        settle().await;
        rules.replace(ALL);
        client.vanish().await;
        if restarts {
            broker.handle.stop();
            broker.ended().await;
            broker = TestBroker::start_with_access(UserNames, rules.clone(), Arc::new(store.reopen()));
        }
        let mut publisher = broker.v5("publisher").await;
        publish_all(&mut publisher, &["usual", "urgent"]).await;
        let mut client = broker.resume("client").await;
        assert_eq!(texts(&client.take_all().await), ["usual", "urgent"], "{is_connected} {restarts}");
    }
}

/// CVE-2017-7650: a name that contains `+`, `#` or `/` is not one that `%u` and `%c` expand to, for allow and deny.
#[tokio::test(start_paused = true)]
async fn rule_5_names_that_are_wildcards_match_nothing() {
    let rules = AclRules::of(
        "allow all topic users/%u/#\nallow all topic clients/%c/#\nallow all user probe topic #",
    );
    let broker = start(&rules);
    let mut probe = broker.memory.connect(named("probe", connect_v5("probe"))).await;
    probe.subscribe("#", QoS::AtMostOnce).await;
    for (name, is_literal) in [
        ("jane", true),
        ("a b", true),
        ("%u", true),
        ("+", false),
        ("#", false),
        ("a/b", false),
        ("a+", false),
        ("jane#", false),
        ("/", false),
    ] {
        for level in ["users", "clients"] {
            let connect = match level {
                "users" => named(name, connect_v5("some-client")),
                _ => named("some-user", connect_v5(name)),
            };
            let code = |is_ok: bool, code| if is_ok { code } else { ReasonCode::NotAuthorized };
            let mut client = broker.connect(connect).await;
            let data = client.open().await;
            for stream in [CONTROL, data] {
                // Its own level, and the one that the name would be as a filter.
                for text in [format!("{level}/jane/#"), format!("{level}/+/#"), format!("{level}/{name}/x")] {
                    let is_ok = is_literal && (text.contains(&format!("/{name}/")) && !text.contains('+'));
                    let Ok(_) = braid_proto::topic::TopicFilter::parse(&text) else { continue };
                    let granted = subscribe(&mut client, stream, &text).await;
                    assert_eq!(granted, code(is_ok, ReasonCode::GrantedQos1), "{name}: {text}");
                }
                for text in [format!("{level}/jane/x"), format!("{level}/a/b/x"), format!("{level}/{name}/x")]
                {
                    let is_ok = is_literal && text.contains(&format!("/{name}/"));
                    if text.contains(['+', '#']) {
                        continue;
                    }
                    let answer = publish(&mut client, stream, &text).await;
                    assert_eq!(answer, code(is_ok, ReasonCode::Success), "{name}: {text}");
                    if is_ok {
                        assert_eq!(probe.take().await, "x");
                    }
                }
                client.received(stream);
            }
            probe.expect_silence().await;
            client.close(0).await;
        }
    }
}

/// Topics of the broker are written by the broker alone, whatever the rules say, and read by those who may.
#[tokio::test(start_paused = true)]
async fn rule_5_broker_topics_are_not_written_and_read_only_with_permission() {
    let config = || BrokerConfig { sys: SysConfig { interval_secs: 1 }, ..BrokerConfig::default() };
    let rules = AclRules::of(
        "allow subscribe,receive client reader topic $SYS/#\nallow publish topic $SYS/#\nallow all topic #",
    );
    let broker =
        QuicBroker::start_with_access(config(), UserNames, rules.clone(), Arc::new(MemoryStore::new()));
    let mut reader = broker.memory.v5("reader").await;
    reader.subscribe("$SYS/#", QoS::AtMostOnce).await;
    let is_sys =
        |publish: &Publish| publish.topic.as_ref().is_some_and(|topic| topic.as_str().starts_with("$SYS/"));
    pass(2).await;
    let publish = reader.expect_publish().await;
    assert!(is_sys(&publish), "{publish:?}");
    // CVE-2026-33217
    let mut client = broker.v5("client").await;
    let data = client.open().await;
    for stream in [CONTROL, data] {
        for topic in ["$SYS", "$SYS/broker/uptime", "$SYS/", "$SYS/forged"] {
            for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
                let packet_id = client.next_id();
                let kind = match qos {
                    QoS::AtLeastOnce => AckKind::Puback,
                    _ => AckKind::Pubrec,
                };
                let publish = Publish { retain: true, ..message(topic, "forged") };
                client.send(
                    stream,
                    &Packet::Publish(Publish { qos, packet_id: Some(id(packet_id)), ..publish }),
                );
                assert_eq!(
                    client.find_ack(stream, kind, packet_id).await,
                    ReasonCode::NotAuthorized,
                    "{topic}"
                );
            }
            let with_will = Connect { will: Some(will(topic, "forged")), ..connect_v5("dying") };
            let mut dying = broker.memory.link(ProtocolVersion::V5).await;
            dying.send_connect(with_will).await;
            assert_eq!(dying.expect_connack().await.reason, ReasonCode::NotAuthorized, "{topic}");
        }
        // Reading needs a rule of its own: `#` covers no topic that begins with `$`.
        for text in ["$SYS/#", "$SYS/broker/+", "$SYS/broker/uptime", "$share/g/$SYS/#"] {
            assert_eq!(subscribe(&mut client, stream, text).await, ReasonCode::NotAuthorized, "{text}");
        }
        assert_eq!(subscribe(&mut client, stream, "#").await, ReasonCode::GrantedQos1);
    }
    pass(5).await;
    for stream in [CONTROL, data] {
        assert!(client.received(stream).is_empty(), "`#` does not match them");
    }
    let own = reader.take_all().await;
    assert!(!own.is_empty() && own.iter().all(|publish| publish.payload != "forged"));
    // A permission that is taken away ends with the next message.
    rules.replace(ALL);
    pass(5).await;
    reader.expect_silence().await;
}
