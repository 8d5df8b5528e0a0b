//! Rules about mountpoints that a comparison with separate brokers does not show.

use std::sync::{Arc, Mutex};

use braid_auth::acl::Decision;
use braid_auth::identity::{Attributes, Identity};
use braid_broker::{
    Action, Anonymous, Authenticate, Authentication, Authorize, BrokerConfig, Credentials, Grant, Outcome,
    PermitAll, SysConfig,
};
use braid_proto::packet::{
    Auth, ClientId, Connect, MessageProperties, Packet, ProtocolVersion, Publish, QoS, SubscribeEntry,
    UserProperties, Will,
};
use braid_proto::reason::ReasonCode;
use braid_store::MemoryStore;

use crate::support::{
    Client, Entrance, TestBroker, connect_v5, filter, lasting, message, pass, quiet, settle, texts, topic,
    will,
};

const V5: ProtocolVersion = ProtocolVersion::V5;

/// Authenticator whose identities are the user names; `NAME@TENANT/` has a mountpoint.
struct UserNames;

impl Authenticate for UserNames {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        let name = credentials.user_name;
        let mountpoint = name.and_then(|name| name.split_once('@')).map(|(_, mountpoint)| mountpoint.into());
        let attributes = Attributes { user: name.map(Into::into), mountpoint, ..Attributes::default() };
        let identity = Identity::new(attributes).expect("no rules");
        Box::pin(async { Ok(identity.into()) })
    }
}

fn start<const N: usize>(mountpoints: [&str; N]) -> (TestBroker, [Entrance; N]) {
    start_with(UserNames, Arc::new(PermitAll), mountpoints)
}

fn start_with<const N: usize>(
    rule: impl Authenticate,
    authorize: Arc<dyn Authorize>,
    mountpoints: [&str; N],
) -> (TestBroker, [Entrance; N]) {
    TestBroker::start_mounted(quiet(), rule, authorize, Arc::new(MemoryStore::new()), mountpoints)
}

fn user(client_id: &str, name: &str) -> Connect {
    Connect { user_name: Some(name.into()), ..connect_v5(client_id) }
}

async fn refused(entrance: &Entrance, connect: Connect) -> ReasonCode {
    let mut client = entrance.link(connect.version).await;
    client.send_connect(connect).await;
    let reason = client.expect_connack().await.reason;
    client.expect_end().await;
    reason
}

async fn topics(client: &mut Client) -> Vec<String> {
    let all = client.take_all().await;
    all.into_iter().map(|publish| publish.topic.expect("no alias").as_str().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_client_outside_sees_a_tenant_below_its_mountpoint_and_a_tenant_only_what_it_can_name() {
    let (broker, [entrance]) = start(["t1/"]);
    let mut outside = broker.v5("c").await;
    let mut tenant = entrance.connect(connect_v5("c")).await;
    for text in ["#", "$x/#", "$mount/t1/$x/#"] {
        outside.subscribe(text, QoS::AtMostOnce).await;
        tenant.subscribe(text, QoS::AtMostOnce).await;
    }
    for text in ["a", "/", "$x/a"] {
        tenant.publish(text, "", QoS::AtLeastOnce).await;
    }
    assert_eq!(topics(&mut outside).await, ["t1/a", "t1//", "$mount/t1/$x/a"]);
    assert_eq!(topics(&mut tenant).await, ["a", "/", "$x/a"]);
    for text in ["a", "t1", "t1/", "t1/b", "t1/$x/a", "t2/a", "$x/a", "$mount/t1/b", "$mount/t1/$x/b"] {
        outside.publish(text, "", QoS::AtLeastOnce).await;
    }
    settle().await;
    assert_eq!(topics(&mut tenant).await, ["b", "$x/b"]);
}

/// A shared group of a tenant has members outside if they write its mountpoint. A tenant is passed over for a topic
/// that it cannot name, also where no rules are asked.
#[tokio::test(start_paused = true)]
async fn a_tenant_is_no_member_of_its_group_for_topics_that_it_cannot_name() {
    let (broker, [entrance]) = start(["t1/"]);
    let mut outside = broker.v5("c").await;
    let mut tenant = entrance.connect(connect_v5("c")).await;
    outside.subscribe("$share/g/t1/#", QoS::AtMostOnce).await;
    tenant.subscribe("$share/g/#", QoS::AtMostOnce).await;
    let mut publisher = broker.v5("publisher").await;
    for text in ["t1", "t1/$x/a"].repeat(5) {
        publisher.publish(text, "", QoS::AtLeastOnce).await;
    }
    assert_eq!(topics(&mut outside).await, ["t1", "t1/$x/a"].repeat(5));
    for _ in 0..10 {
        publisher.publish("t1/a", "", QoS::AtLeastOnce).await;
    }
    assert_eq!((topics(&mut outside).await.len(), topics(&mut tenant).await.len()), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn a_response_topic_is_mapped_and_left_out_where_the_tenant_has_no_name_for_it() {
    let (broker, [entrance]) = start(["t1/"]);
    let mut outside = broker.v5("c").await;
    let mut tenant = entrance.connect(connect_v5("c")).await;
    outside.subscribe("t1/to/outside", QoS::AtMostOnce).await;
    tenant.subscribe("to/tenant", QoS::AtMostOnce).await;
    let asking = |to: &str, response: &str| {
        let properties = MessageProperties { response_topic: Some(topic(response)), ..Default::default() };
        Publish { properties: properties.boxed(), ..message(to, "") }
    };
    tenant.publish_as(asking("to/outside", "answer")).await;
    for response in ["t1/answer", "answer"] {
        outside.publish_as(asking("t1/to/tenant", response)).await;
    }
    let response = |publish: &Publish| {
        let properties = publish.properties.as_ref();
        properties.and_then(|all| all.response_topic.as_ref()).map(|topic| topic.as_str().to_owned())
    };
    assert_eq!(response(&outside.expect_publish().await).as_deref(), Some("t1/answer"));
    assert_eq!(response(&tenant.expect_publish().await).as_deref(), Some("answer"));
    assert_eq!(response(&tenant.expect_publish().await), None);
}

#[tokio::test(start_paused = true)]
async fn topics_of_the_broker_are_not_in_a_mountpoint_and_cannot_be_published_to_there() {
    let config = BrokerConfig { sys: SysConfig { interval_secs: 1 }, ..quiet() };
    let (store, rule) = (Arc::new(MemoryStore::new()), Anonymous::default());
    let (broker, [entrance]) = TestBroker::start_mounted(config, rule, Arc::new(PermitAll), store, ["t1/"]);
    let mut outside = broker.v5("c").await;
    let mut tenant = entrance.connect(connect_v5("c")).await;
    for text in ["#", "$SYS/#", "$mount/#"] {
        outside.subscribe(text, QoS::AtMostOnce).await;
        tenant.subscribe(text, QoS::AtMostOnce).await;
    }
    pass(3).await;
    assert!(topics(&mut outside).await.iter().all(|topic| topic.starts_with("$SYS/broker/")));
    tenant.expect_silence().await;
    let to = "$SYS/broker/uptime";
    assert_eq!(tenant.publish(to, "", QoS::AtLeastOnce).await, ReasonCode::NotAuthorized);
    let with_will = Connect { will: Some(will(to, "")), ..connect_v5("w") };
    assert_eq!(refused(&entrance, with_will).await, ReasonCode::NotAuthorized);
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_is_too_long_with_its_mountpoint_is_refused_like_one_that_is_too_long() {
    let (_broker, [entrance]) = start(["t1/"]);
    let (long, deep) = ("x".repeat(65_533), ["x"; 200].join("/"));
    for text in [&long, &deep] {
        let mut client = entrance.connect(connect_v5("c")).await;
        let entries = vec![SubscribeEntry::new(filter(text), QoS::AtMostOnce)];
        assert_eq!(client.subscribe_all(None, entries).await.codes, [ReasonCode::TopicFilterInvalid]);
        client.send(Packet::Publish(message(text, ""))).await;
        client.expect_disconnect(ReasonCode::TopicNameInvalid).await;
        let mut client = entrance.connect(connect_v5("c")).await;
        let properties = MessageProperties { response_topic: Some(topic(text)), ..Default::default() };
        client.send(Packet::Publish(Publish { properties: properties.boxed(), ..message("a", "") })).await;
        client.expect_disconnect(ReasonCode::TopicNameInvalid).await;
    }
    // A CONNECT may not be as long.
    let response = MessageProperties { response_topic: Some(topic(&deep)), ..Default::default() }.boxed();
    for will in [will(&deep, ""), Will { properties: response, ..will("a", "") }] {
        let with_will = Connect { will: Some(will), ..connect_v5("c") };
        assert_eq!(refused(&entrance, with_will).await, ReasonCode::TopicNameInvalid);
    }
}

/// Authorizer that permits all that it is asked about, and records it.
#[derive(Default)]
struct Asked(Mutex<Vec<String>>);

impl Asked {
    fn take(&self) -> Vec<String> {
        let mut asked = std::mem::take(&mut *self.0.lock().expect("not poisoned"));
        asked.dedup();
        asked
    }
}

impl Authorize for Asked {
    fn decide(&self, _identity: &Identity, client_id: &ClientId, action: Action<'_>) -> Decision {
        let (name, about) = match action {
            Action::Publish(topic) => ("publish", topic.as_str()),
            Action::Subscribe(filter) => ("subscribe", filter.as_str()),
            Action::Receive(topic) => ("receive", topic.as_str()),
            Action::Prioritize(filter) => ("prioritize", filter.as_str()),
        };
        self.0.lock().expect("not poisoned").push(format!("{client_id}: {name} {about}"));
        Decision { allowed: about != "denied", line: None, list: 0 }
    }
}

/// Also for a session without a connection, and after a restart.
#[tokio::test(start_paused = true)]
async fn rules_are_asked_about_the_topics_and_the_identifier_that_the_client_knows() {
    let (rules, store) = (Arc::new(Asked::default()), Arc::new(MemoryStore::new()));
    let start = |store| TestBroker::start_mounted(quiet(), UserNames, rules.clone(), store, ["t1/%u/"]);
    let (_broker, [entrance]) = start(store.clone());
    let mut connect = Connect { user_name: Some("u".into()), ..lasting("c") };
    connect.will = Some(Will { delay: 60, qos: QoS::AtLeastOnce, ..will("w", "will") });
    let mut client = entrance.connect(connect.clone()).await;
    assert_eq!(rules.take(), ["c: publish w"]);
    for text in ["a/#", "$share/g/a", "w"] {
        client.subscribe(text, QoS::AtLeastOnce).await;
    }
    assert_eq!(rules.take(), ["c: subscribe a/#", "c: subscribe $share/g/a", "c: subscribe w"]);
    let denied = vec![SubscribeEntry::new(filter("denied"), QoS::AtLeastOnce)];
    assert_eq!(client.subscribe_all(None, denied).await.codes, [ReasonCode::NotAuthorized]);
    assert_eq!(client.publish("denied", "", QoS::AtLeastOnce).await, ReasonCode::NotAuthorized);
    assert_eq!(rules.take(), ["c: subscribe denied", "c: publish denied"]);
    assert_eq!(client.publish("a", "", QoS::AtLeastOnce).await, ReasonCode::Success);
    assert_eq!(client.take_all().await.len(), 2);
    assert_eq!(rules.take(), ["c: publish a", "c: receive a"]);
    client.vanish().await;
    let (_broker, [entrance]) = start(Arc::new(store.reopen()));
    let mut other = entrance.connect(Connect { client_id: "d".into(), will: None, ..connect.clone() }).await;
    other.publish("a", "", QoS::AtLeastOnce).await;
    pass(61).await;
    assert_eq!(rules.take(), ["d: publish a", "c: receive a", "c: publish w"]);
    let mut client = entrance.connect(Connect { will: None, ..connect }).await;
    assert!(client.connack().session_present);
    assert_eq!(topics(&mut client).await, ["a", "a", "w"]);
    let again = ["subscribe $share/g/a", "subscribe a/#", "subscribe w", "receive a", "receive w"];
    let mut asked = rules.take();
    asked.sort_unstable_by_key(|question| question.contains("receive"));
    asked[..3].sort_unstable();
    assert_eq!(asked, again.map(|question| format!("c: {question}")));
}

/// CVE-2017-7650.
#[tokio::test(start_paused = true)]
async fn the_mountpoint_of_a_user_needs_a_name_that_can_stand_there() {
    let (_broker, [users, clients]) = start(["u/%u/", "c/%c/"]);
    for name in ["+", "#", "a/b", "$u", ""] {
        assert_eq!(refused(&users, user("c", name)).await, ReasonCode::NotAuthorized, "{name}");
        if !name.is_empty() {
            let reason = refused(&clients, connect_v5(name)).await;
            assert_eq!(reason, ReasonCode::ClientIdentifierNotValid, "{name}");
        }
    }
    assert_eq!(refused(&users, connect_v5("c")).await, ReasonCode::NotAuthorized);
    let mut one = users.connect(user("c", "one")).await;
    let mut two = users.connect(user("c", "two")).await;
    one.subscribe("#", QoS::AtMostOnce).await;
    two.publish("a", "2", QoS::AtLeastOnce).await;
    one.publish("a", "1", QoS::AtLeastOnce).await;
    assert_eq!(texts(&one.take_all().await), ["1"]);
    // A client identifier that the broker assigns can stand there.
    let mut assigned = clients.connect(connect_v5("")).await;
    assert!(!assigned.connack().properties.assigned_client_id.as_ref().unwrap().as_str().contains('/'));
    assigned.publish("a", "3", QoS::AtLeastOnce).await;
    one.expect_silence().await;
}

#[tokio::test(start_paused = true)]
async fn the_mountpoint_of_an_identity_comes_before_that_of_the_listener() {
    let (broker, [entrance]) = start(["t1/"]);
    let mut outside = broker.v5("o").await;
    outside.subscribe("#", QoS::AtMostOnce).await;
    for (name, expected) in [("u", "t1/a"), ("u@t2/", "t2/a"), ("u@t3/x/", "t3/x/a")] {
        let mut client = entrance.connect(user("c", name)).await;
        client.publish("a", "", QoS::AtLeastOnce).await;
        assert_eq!(topics(&mut outside).await, [expected]);
    }
    // Also where the listener has none.
    let mut client = broker.connect(user("c", "u@t2/")).await;
    client.publish("a", "", QoS::AtLeastOnce).await;
    assert_eq!(topics(&mut outside).await, ["t2/a"]);
    for name in ["u@", "u@t2", "u@$SYS/", "u@+/"] {
        assert_eq!(refused(&entrance, user("c", name)).await, ReasonCode::NotAuthorized, "{name}");
    }
}

/// Authenticator that gives each client the identifier in its user name.
struct Renamed;

impl Authenticate for Renamed {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        let client_id = credentials.user_name.map(|name| ClientId::from(&*name.replace('|', "\0")));
        Box::pin(async { Ok(Outcome::Accepted(Box::new(Grant { client_id, ..Grant::default() }))) })
    }
}

#[tokio::test(start_paused = true)]
async fn no_client_names_the_session_of_another_name_space() {
    let (broker, [entrance]) = start_with(Renamed, Arc::new(PermitAll), ["t1/"]);
    let mut tenant = entrance.connect(user("x", "c")).await;
    let mut link = broker.link(V5).await;
    link.send_connect(user("x", "t1/|c")).await;
    assert_eq!(link.expect_connack().await.reason, ReasonCode::ClientIdentifierNotValid);
    for client_id in ["t1/c", "c", "t1/"] {
        broker.connect(user("x", client_id)).await;
        tenant.expect_silence().await;
    }
    // The identifier that an authenticator gives is told to the client without the mountpoint.
    let renamed = entrance.connect(user("", "given")).await;
    let assigned = renamed.connack().properties.assigned_client_id.as_ref().map(ClientId::as_str);
    assert_eq!(assigned, Some("given"));
}

/// Authenticator of one user, whose mountpoint is the Authentication Data.
struct Claimed;

impl Authenticate for Claimed {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        assert_eq!(credentials.client_id.as_str(), "c");
        let text = credentials.data.map(|data| String::from_utf8_lossy(data).into());
        let attributes = Attributes { user: Some("u".into()), mountpoint: text, ..Attributes::default() };
        let identity = Identity::new(attributes).expect("no rules");
        Box::pin(async { Ok(identity.into()) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_reauthentication_does_not_change_the_mountpoint() {
    let (broker, []) = start_with(Claimed, Arc::new(PermitAll), []);
    let mut connect = connect_v5("c");
    connect.properties.authentication_method = Some("m".into());
    connect.properties.authentication_data = Some("t1/".into());
    let mut client = broker.connect(connect).await;
    let auth = |mountpoint: &'static str| {
        Packet::Auth(Box::new(Auth {
            reason: ReasonCode::ReAuthenticate,
            method: Some("m".into()),
            authentication_data: Some(mountpoint.into()),
            reason_string: None,
            user: UserProperties::new(),
        }))
    };
    client.send(auth("t1/")).await;
    assert!(matches!(client.next().await, Some(Packet::Auth(_))));
    client.send(auth("t2/")).await;
    client.expect_disconnect(ReasonCode::NotAuthorized).await;
}
