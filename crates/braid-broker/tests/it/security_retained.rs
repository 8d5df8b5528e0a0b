//! Rule of safety 4 on retained messages: their publishers are asked about, and a replay that is under way ends with
//! its subscription.

use std::sync::Arc;

use braid_auth::identity::{Attributes, Identity};
use braid_broker::cluster::Storage;
use braid_broker::view::{RetainedQuery, RetainedRow};
use braid_broker::{
    Authenticate, Authentication, Authorize, Broker, Counter, Credentials, PermitAll, SecurityAction,
};
use braid_proto::packet::{AckKind, ClientId, Connect, Packet, Publish, QoS};
use braid_proto::stream::StreamKey;
use braid_store::{Change, Lsn, MemoryStore, Store, StoredMessage};

use crate::support::{
    AclRules, Client, Lanes, QuicBroker, TestBroker, UserNames, connect_v5, filter, message, named, pass,
    quiet, settle, texts, topic, will,
};

const ALL: &str = "allow all topic #";

fn retained(topic: &str) -> Publish {
    Publish { retain: true, qos: QoS::AtLeastOnce, ..message(topic, topic) }
}

async fn retain(broker: &TestBroker, connect: Connect, topic: &str) {
    let mut publisher = broker.connect(connect).await;
    publisher.publish_as(retained(topic)).await;
    publisher.disconnect().await;
}

/// Payloads of the retained messages that a new subscriber gets, over one stream and over a stream of several.
async fn found(broker: &QuicBroker) -> Vec<String> {
    let mut single = broker.memory.v5("single").await;
    single.subscribe("#", QoS::AtLeastOnce).await;
    let mut payloads = texts(&single.take_all().await);
    single.disconnect().await;
    let mut several = broker.v5("several").await;
    let data: StreamKey = several.open().await;
    several.subscribe(data, "#", QoS::AtMostOnce).await;
    settle().await;
    let mut others = Vec::new();
    for _ in 0..payloads.len() {
        others.push(several.take(data).await);
    }
    several.expect_silence(data).await;
    several.close(0).await;
    payloads.sort();
    others.sort();
    assert_eq!(payloads, others);
    payloads
}

/// CVE-2018-12546: a retained message is delivered only while its publisher may publish it: its user, its Client
/// Identifier and the sender of a Will, also after a restart. It is kept, and another publisher may replace it.
#[tokio::test(start_paused = true)]
async fn rule_4_a_retained_message_whose_publisher_lost_its_permission_is_not_delivered() {
    for restarts in [false, true] {
        let rules = AclRules::of(ALL);
        let store = Arc::new(MemoryStore::new());
        let start = |store| QuicBroker::start_with_access(quiet(), UserNames, rules.clone(), store);
        let mut broker = start(store.clone());
        retain(&broker.memory, named("u", connect_v5("a")), "by-user").await;
        retain(&broker.memory, named("v", connect_v5("b")), "by-client").await;
        retain(&broker.memory, named("v", connect_v5("c")), "by-other").await;
        let with_will = named("u", Connect { will: Some(will("by-will", "by-will")), ..connect_v5("d") });
        let mut dying = with_will;
        dying.will.as_mut().expect("there is one").retain = true;
        broker.memory.connect(dying).await.vanish().await;
        settle().await;
        assert_eq!(found(&broker).await, ["by-client", "by-other", "by-user", "by-will"]);
        for (rules_now, expected) in [
            ("deny publish user u topic #\nallow all topic #", &["by-client", "by-other"][..]),
            (ALL, &["by-client", "by-other", "by-user", "by-will"]),
            ("deny publish client b topic #\nallow all topic #", &["by-other", "by-user", "by-will"]),
            ("deny publish user u topic by-user\nallow all topic #", &["by-client", "by-other", "by-will"]),
            ("allow subscribe,receive topic #", &[]),
            // Whether a publisher may receive it does not matter.
            (
                "allow publish,subscribe topic #\nallow receive client single topic #\nallow receive client several topic #",
                &["by-client", "by-other", "by-user", "by-will"],
            ),
        ] {
            rules.replace(rules_now);
            if restarts {
                broker.memory.handle.stop();
                broker.memory.ended().await;
                broker = start(Arc::new(store.reopen()));
            }
            for _ in 0..2 {
                assert_eq!(found(&broker).await, expected, "{rules_now}, restarts: {restarts}");
            }
        }
        // Operators are told the publishers, after a restart too.
        let query = RetainedQuery { filter: filter("#"), with_payload: false };
        let page = broker.memory.handle.retained(&query, None, 10).await;
        let publisher = |row: &RetainedRow| Some(row.publisher.as_ref()?.client_id().to_owned());
        let mut publishers: Vec<_> = page.rows.iter().filter_map(publisher).collect();
        publishers.sort();
        assert_eq!(publishers, ["a", "b", "c", "d"], "restarts: {restarts}");
        let mut events = broker.memory.handle.security_events();
        rules.revoke("u");
        assert_eq!(found(&broker).await, ["by-client", "by-other"], "restarts: {restarts}");
        let event = events.recv().await.expect("an event");
        assert_eq!(event.action.name(), "retained");
        assert!(
            matches!(&event.action, SecurityAction::Retained(topic) if topic.as_str().starts_with("by-"))
        );
        assert_eq!(event.identity.as_ref().and_then(Identity::user), Some("u"));
        assert_eq!(event.client_id.as_ref().map(ClientId::as_str), Some("a"));
        retain(&broker.memory, named("v", connect_v5("e")), "by-user").await;
        assert_eq!(found(&broker).await, ["by-client", "by-other", "by-user"]);
    }
}

/// Messages of the broker itself, and those that were retained while nothing was asked, have no publisher.
#[tokio::test(start_paused = true)]
async fn rule_4_a_retained_message_without_a_known_publisher_is_delivered() {
    let store = Arc::new(MemoryStore::new());
    let permit: Arc<dyn Authorize> = Arc::new(PermitAll);
    let mut broker = TestBroker::start_with_access(UserNames, permit, store.clone());
    retain(&broker, named("u", connect_v5("a")), "t").await;
    broker.handle.stop();
    broker.ended().await;
    let rules = AclRules::of("deny publish topic #\nallow all topic #");
    let broker = QuicBroker::start_with_access(quiet(), UserNames, rules, Arc::new(store.reopen()));
    assert_eq!(found(&broker).await, ["t"]);
}

/// A store with a publisher that cannot be read ends the start: a message is not delivered by an unknown publisher.
#[tokio::test(start_paused = true)]
async fn rule_4_a_damaged_publisher_ends_the_start() {
    for (text, is_valid) in
        [(r#"{"client":"a","identity":{}}"#, true), (r#"{"client":"a""#, false), ("", false)]
    {
        let store = MemoryStore::new();
        let lsn = Lsn::new(1);
        let message = StoredMessage::from_parts(topic("t"), "x", QoS::AtMostOnce, true, None, None)
            .with_publisher(Some(text.into()));
        let changes = [Change::Stored { lsn, message }, Change::Retained { message: lsn }];
        store.commit(changes.into_iter().collect()).await.expect("it is in memory");
        let (config, rules) = (quiet(), AclRules::of(ALL));
        let broker = Broker::recover(
            config,
            Box::new(UserNames),
            rules,
            Storage::of(Arc::new(store)),
            Vec::new(),
            |_| {},
        );
        let error = broker.err().map(|error| error.to_string());
        assert_eq!(error.is_none(), is_valid, "{text}");
        assert!(error.is_none_or(|error| error.contains("the publisher of message 1")), "{text}");
    }
}

/// Authenticator whose clients have rules of their own.
struct WithRules;

impl Authenticate for WithRules {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        let rules = Some("allow publish topic own".into());
        let (user, source) = (credentials.user_name.map(Into::into), Some("jwt".into()));
        let attributes = Attributes { user, source, rules, ..Attributes::default() };
        Box::pin(async { Ok(Identity::new(attributes).expect("they are valid").into()) })
    }
}

/// Rules of a token end with it. A message that they permitted stays permitted until a rule denies it to its user or
/// client by name; other rules come behind those of a token. The list of the broker is asked about the others.
#[tokio::test(start_paused = true)]
async fn rule_4_a_retained_message_outlives_the_token_that_permitted_it() {
    const READERS: &str = "allow subscribe,receive topic #";
    for restarts in [false, true] {
        let rules = AclRules::of("allow publish topic listed\nallow subscribe,receive topic #");
        let store = Arc::new(MemoryStore::new());
        let start = |store| QuicBroker::start_with_access(quiet(), WithRules, rules.clone(), store);
        let mut broker = start(store.clone());
        let mut publisher = broker.memory.connect(named("u", connect_v5("a"))).await;
        for topic in ["own", "listed"] {
            publisher.publish_as(retained(topic)).await;
        }
        publisher.disconnect().await;
        assert_eq!(found(&broker).await, ["listed", "own"]);
        rules.replace(READERS);
        if restarts {
            broker.memory.handle.stop();
            broker.memory.ended().await;
            broker = start(Arc::new(store.reopen()));
        }
        assert_eq!(found(&broker).await, ["own"], "restarts: {restarts}");
        rules.revoke("u");
        assert_eq!(found(&broker).await, ["own"], "a removed user of a password file is another one");
        for (rule, is_withdrawn) in [
            ("deny publish topic #", false),
            ("deny publish user v topic #", false),
            ("deny publish user u topic other", false),
            ("deny subscribe,receive user u topic #", false),
            ("allow publish topic own\ndeny publish user u topic #", false),
            ("deny publish user u topic #", true),
            ("deny all client a topic own", true),
        ] {
            rules.replace(&format!("{rule}\n{READERS}"));
            assert_eq!(found(&broker).await.is_empty(), is_withdrawn, "{rule}, restarts: {restarts}");
        }
    }
}

/// A recheck that ends a subscription ends the replay of retained messages that it had begun: what the connection has
/// not taken yet is not sent, although the client may still receive each of the messages.
#[tokio::test(start_paused = true)]
async fn rule_4_a_pending_replay_of_retained_messages_ends_with_the_subscription() {
    const MESSAGES: usize = 1000;
    for revokes in [false, true] {
        let rules = AclRules::of(ALL);
        let broker =
            QuicBroker::start_with_access(quiet(), UserNames, rules.clone(), Arc::new(MemoryStore::new()));
        let mut publisher = broker.memory.v5("publisher").await;
        for number in 0..MESSAGES {
            publisher.publish_as(retained(&format!("t/{number}"))).await;
        }
        let mut connect = connect_v5("client");
        connect.properties.receive_maximum = Some(1);
        let mut client: Client = broker.memory.connect(connect.clone()).await;
        client.subscribe("t/#", QoS::AtLeastOnce).await;
        let mut several = broker.connect(Connect { client_id: "several".into(), ..connect }).await;
        let data = several.open().await;
        several.subscribe(data, "t/#", QoS::AtLeastOnce).await;
        settle().await;
        if revokes {
            rules.replace("deny subscribe topic #\nallow all topic #");
        }
        broker.memory.handle.recheck_clients().await;
        settle().await;
        let received = client.take_all().await.len();
        let mut on_stream = 0;
        while let Some(publish) = next_publish(&several, data).await {
            several.send_ack(data, AckKind::Puback, publish.packet_id.expect("QoS 1"));
            on_stream += 1;
        }
        for received in [received, on_stream] {
            assert!(received > 0);
            assert_eq!(received < MESSAGES, revokes, "{received}");
        }
        assert_eq!(broker.memory.statistics().get(Counter::MessagesDropped), 0);
    }
}

async fn next_publish(client: &Lanes, stream: StreamKey) -> Option<Publish> {
    pass(1).await;
    let mut packets = client.received(stream);
    assert!(packets.len() <= 1, "one is in flight");
    match packets.pop()? {
        Packet::Publish(publish) => Some(publish),
        packet => panic!("PUBLISH expected, not {packet:?}"),
    }
}
