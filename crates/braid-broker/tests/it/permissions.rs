//! Permission: the actions that an authorizer may deny, sessions of other users, and what a denied client sees.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use braid_auth::acl::Decision;
use braid_auth::identity::Identity;
use braid_broker::{Action, Authorize, Counter, PermitAll, SecurityAction};
use braid_proto::packet::{
    Ack, AckKind, ClientId, Connect, Packet, ProtocolVersion, Publish, QoS, Subscribe, SubscribeEntry,
};
use braid_proto::reason::ReasonCode;
use braid_store::MemoryStore;

use crate::support::{
    CONTROL, Client, Ended, QuicBroker, TestBroker, UserNames, anyone, connect_v5, filter, id, lasting,
    message, named, quiet, settle, texts, unsubscribe_packet, will,
};

/// Authorizer that denies the actions with one name to one client, and records all actions that it was asked about.
#[derive(Default)]
struct Deny {
    action: Mutex<&'static str>,
    asked: Mutex<Vec<String>>,
    generation: AtomicU64,
}

impl Deny {
    fn the(action: &'static str) -> Arc<Self> {
        Arc::new(Self { action: Mutex::new(action), ..Self::default() })
    }

    fn change(&self, action: &'static str) {
        *self.action.lock().expect("not poisoned") = action;
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    fn has_asked(&self, question: &str) -> bool {
        self.asked.lock().expect("not poisoned").iter().any(|asked| asked == question)
    }
}

impl Authorize for Deny {
    fn decide(&self, identity: &Identity, client_id: &ClientId, action: Action<'_>) -> Decision {
        let (name, about) = match action {
            Action::Publish(topic) => ("publish", topic.as_str()),
            Action::Subscribe(filter) => ("subscribe", filter.as_str()),
            Action::Receive(topic) => ("receive", topic.as_str()),
            Action::Prioritize(filter) => ("prioritize", filter.as_str()),
        };
        let question = format!("{identity:?} as {}: {name} {about}", client_id.as_str());
        self.asked.lock().expect("not poisoned").push(question);
        let allowed = name != *self.action.lock().expect("not poisoned") || client_id.as_str() != "client";
        Decision { allowed, line: None, list: 0 }
    }

    fn is_revoked(&self, identity: &Identity) -> bool {
        *self.action.lock().expect("not poisoned") == "everything" && identity.user() == Some("u")
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }
}

fn start(rules: &Arc<Deny>) -> TestBroker {
    TestBroker::start_with_access(UserNames, rules.clone(), Arc::new(MemoryStore::new()))
}

async fn refusal(broker: &TestBroker, connect: Connect) -> ReasonCode {
    let mut client = broker.link(ProtocolVersion::V5).await;
    client.send_connect(connect).await;
    let reason = client.expect_connack().await.reason;
    client.expect_end().await;
    reason
}

async fn is_connected(client: &mut Client) -> bool {
    client.send(Packet::Pingreq).await;
    client.next().await == Some(Packet::Pingresp)
}

#[tokio::test(start_paused = true)]
async fn a_denied_will_refuses_the_connect() {
    let rules = Deny::the("publish");
    let broker = start(&rules);
    let connect = || Connect { will: Some(will("t", "gone")), ..connect_v5("client") };
    assert_eq!(refusal(&broker, named("u", connect())).await, ReasonCode::NotAuthorized);
    assert!(rules.has_asked("u as client: publish t"));
    rules.change("");
    drop(broker.connect(connect()).await);
}

#[tokio::test(start_paused = true)]
async fn a_denied_publish_is_acknowledged_with_a_reason_and_reaches_no_subscriber() {
    let rules = Deny::the("publish");
    let broker = start(&rules);
    let mut subscriber = broker.v5("subscriber").await;
    subscriber.subscribe("t", QoS::AtMostOnce).await;
    let mut client = broker.connect(named("u", connect_v5("client"))).await;
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        assert_eq!(client.publish("t", "x", qos).await, ReasonCode::NotAuthorized);
    }
    client.publish("t", "x", QoS::AtMostOnce).await;
    settle().await;
    subscriber.expect_silence().await;
    assert!(rules.has_asked("u as client: publish t"));
    rules.change("");
    assert_eq!(client.publish("t", "y", QoS::AtLeastOnce).await, ReasonCode::Success);
    assert_eq!(subscriber.take().await, "y");
}

#[tokio::test(start_paused = true)]
async fn a_denied_subscription_is_refused_in_suback() {
    let rules = Deny::the("subscribe");
    let broker = start(&rules);
    let mut client = broker.v5("client").await;
    let entries = vec![SubscribeEntry::new(filter("t/#"), QoS::AtLeastOnce)];
    assert_eq!(client.subscribe_all(None, entries).await.codes, [ReasonCode::NotAuthorized]);
    assert!(rules.has_asked("anonymous as client: subscribe t/#"));
    broker.v5("publisher").await.publish("t/1", "x", QoS::AtLeastOnce).await;
    client.expect_silence().await;
}

#[tokio::test(start_paused = true)]
async fn a_denied_delivery_is_dropped_even_if_its_subscription_is_older_than_the_rule() {
    let rules = Deny::the("");
    let broker = start(&rules);
    let mut client = broker.resume("client").await;
    client.subscribe("t/#", QoS::AtLeastOnce).await;
    let mut publisher = broker.v5("publisher").await;
    publisher.publish("t/1", "before", QoS::AtLeastOnce).await;
    let publish = client.expect_publish().await;
    client.acknowledge(&publish).await;
    rules.change("receive");
    publisher.publish("t/1", "after", QoS::AtLeastOnce).await;
    client.expect_silence().await;
    assert!(rules.has_asked("anonymous as client: receive t/1"));
    // The session keeps nothing of it.
    rules.change("");
    client.vanish().await;
    let mut client = broker.resume("client").await;
    client.expect_silence().await;
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 1);
}

/// The subscription is granted: its filter covers what the client may not receive.
#[tokio::test(start_paused = true)]
async fn a_denied_retained_message_is_not_delivered() {
    let rules = Deny::the("receive");
    let broker = start(&rules);
    let mut publisher = broker.v5("publisher").await;
    let retained = |payload| Publish { qos: QoS::AtLeastOnce, retain: true, ..message("t/1", payload) };
    publisher.publish_as(retained("secret")).await;
    let mut client = broker.v5("client").await;
    client.subscribe("t/#", QoS::AtLeastOnce).await;
    client.expect_silence().await;
    assert!(rules.has_asked("anonymous as client: receive t/1"));
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 1);
    rules.change("");
    client.subscribe("t/+", QoS::AtLeastOnce).await;
    assert_eq!(client.take().await, "secret");
}

/// Messages that were queued while the client was away, before the rule changed or after.
#[tokio::test(start_paused = true)]
async fn a_denied_message_of_the_offline_queue_is_not_delivered() {
    let rules = Deny::the("");
    let broker = start(&rules);
    let mut client = broker.resume("client").await;
    client.subscribe("t/#", QoS::AtLeastOnce).await;
    client.vanish().await;
    let mut publisher = broker.v5("publisher").await;
    publisher.publish("t/1", "before", QoS::AtLeastOnce).await;
    rules.change("receive");
    publisher.publish("t/2", "after", QoS::AtLeastOnce).await;
    let mut client = broker.resume("client").await;
    client.expect_silence().await;
    assert!(rules.has_asked("anonymous as client: receive t/1"));
    assert!(rules.has_asked("anonymous as client: receive t/2"));
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 2);
    // The session keeps nothing of them.
    rules.change("");
    client.vanish().await;
    broker.resume("client").await.expect_silence().await;
}

/// A member that may not receive a message does not take it from the others of its group, connected or not.
#[tokio::test(start_paused = true)]
async fn a_denied_member_of_a_shared_subscription_is_passed_over() {
    let rules = Deny::the("receive");
    let broker = start(&rules);
    let mut client = broker.resume("client").await;
    client.subscribe("$share/g/t/#", QoS::AtLeastOnce).await;
    let mut other = broker.v5("other").await;
    other.subscribe("$share/g/t/#", QoS::AtLeastOnce).await;
    let mut publisher = broker.v5("publisher").await;
    let numbers: Vec<_> = (0..6).map(|number: u8| number.to_string()).collect();
    for number in &numbers[..3] {
        publisher.publish("t/1", number.clone(), QoS::AtLeastOnce).await;
    }
    client.vanish().await;
    for number in &numbers[3..] {
        publisher.publish("t/1", number.clone(), QoS::AtLeastOnce).await;
    }
    assert_eq!(texts(&other.take_all().await), numbers);
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 0);
    // No other member is left: the message is dropped.
    drop(other);
    settle().await;
    publisher.publish("t/1", "x", QoS::AtLeastOnce).await;
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 1);
    rules.change("");
    let mut client = broker.resume("client").await;
    client.expect_silence().await;
    publisher.publish("t/1", "y", QoS::AtLeastOnce).await;
    assert_eq!(client.take().await, "y");
}

/// Messages in flight that the client may not receive any more are not sent again. The
/// identifier of QoS 2 is released first: the client may have the message, and would take the next one with the
/// identifier for its repetition.
#[tokio::test(start_paused = true)]
async fn a_denied_retransmission_ends_the_exchange() {
    let rules = Deny::the("");
    let broker = start(&rules);
    let mut client = broker.resume("client").await;
    client.subscribe("t/#", QoS::ExactlyOnce).await;
    let mut publisher = broker.v5("publisher").await;
    let mut sent = Vec::new();
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        publisher.publish("t/1", "secret", qos).await;
        sent.push(client.expect_publish().await.packet_id.expect("an identifier"));
    }
    client.vanish().await;
    rules.change("receive");
    let mut client = broker.resume("client").await;
    assert!(client.connack().session_present);
    assert_eq!(client.expect_ack(AckKind::Pubrel).await.packet_id, sent[1]);
    client.expect_silence().await;
    assert!(rules.has_asked("anonymous as client: receive t/1"));
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 2);
    // A lost connection does not bring the message back, even if it is permitted again.
    client.vanish().await;
    rules.change("");
    let mut client = broker.resume("client").await;
    assert_eq!(client.expect_ack(AckKind::Pubrel).await.packet_id, sent[1]);
    client.send(Packet::Ack(Ack::new(AckKind::Pubcomp, sent[1], ReasonCode::Success))).await;
    client.vanish().await;
    let mut client = broker.resume("client").await;
    client.expect_silence().await;
    publisher.publish("t/2", "public", QoS::AtLeastOnce).await;
    assert_eq!(client.take().await, "public");
}

/// Authorizer that denies every delivery once it is closed, and counts the questions between two turns of another task.
#[derive(Default)]
struct CountedDenials {
    is_closed: AtomicBool,
    turn: AtomicUsize,
    asked: Mutex<HashMap<usize, usize>>,
}

impl Authorize for CountedDenials {
    fn decide(&self, _identity: &Identity, _client_id: &ClientId, action: Action<'_>) -> Decision {
        let allowed = !matches!(action, Action::Receive(_)) || !self.is_closed.load(Ordering::SeqCst);
        if !allowed {
            let turn = self.turn.load(Ordering::SeqCst);
            *self.asked.lock().expect("not poisoned").entry(turn).or_default() += 1;
        }
        Decision { allowed, line: None, list: 0 }
    }
}

/// However many deliveries a connection drops, other tasks get their turn.
#[tokio::test(start_paused = true)]
async fn denied_deliveries_are_dropped_a_few_at_a_time() {
    let rules = Arc::new(CountedDenials::default());
    let broker = TestBroker::start_with_access(UserNames, rules.clone(), Arc::new(MemoryStore::new()));
    let mut client = broker.resume("client").await;
    client.subscribe("t/#", QoS::AtLeastOnce).await;
    client.vanish().await;
    let mut publisher = broker.v5("publisher").await;
    for number in 0..3000 {
        publisher.publish(&format!("t/{number}"), "x", QoS::AtLeastOnce).await;
    }
    rules.is_closed.store(true, Ordering::SeqCst);
    let counted = rules.clone();
    let turns = tokio::spawn(async move {
        loop {
            counted.turn.fetch_add(1, Ordering::SeqCst);
            // Behind the tasks that are ready now; `yield_now` would wait until none is.
            let mut has_waited = false;
            std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut has_waited, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    });
    let client = broker.resume("client").await;
    while broker.statistics().get(Counter::MessagesDropped) < 3000 {
        tokio::task::yield_now().await;
    }
    turns.abort();
    drop(client);
    let asked = rules.asked.lock().expect("not poisoned");
    assert_eq!(asked.values().sum::<usize>(), 3000);
    assert!(asked.values().all(|asked| *asked <= 1024), "256 in each of four turns: {asked:?}");
}

/// A session belongs to the user that made it: no one else resumes it, takes it over or ends it, also after a restart.
#[tokio::test(start_paused = true)]
async fn a_session_of_another_user_is_refused() {
    let store = Arc::new(MemoryStore::new());
    let permit = || Arc::new(PermitAll);
    let mut broker = TestBroker::start_with_access(UserNames, permit(), store.clone());
    let mut client = broker.connect(named("owner", lasting("client"))).await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    let others = || {
        let connects = [true, false].map(|clean_start| Connect { clean_start, ..lasting("client") });
        let [first, second] = connects.clone();
        connects.into_iter().chain([named("other", first), named("other", second)])
    };
    for connect in others() {
        assert_eq!(refusal(&broker, connect).await, ReasonCode::NotAuthorized);
    }
    assert!(is_connected(&mut client).await);
    client.vanish().await;
    for connect in others() {
        assert_eq!(refusal(&broker, connect).await, ReasonCode::NotAuthorized);
    }
    broker.v5("publisher").await.publish("t", "x", QoS::AtLeastOnce).await;
    broker.handle.stop();
    broker.ended().await;
    let broker = TestBroker::start_with_access(UserNames, permit(), Arc::new(store.reopen()));
    for connect in others() {
        assert_eq!(refusal(&broker, connect).await, ReasonCode::NotAuthorized);
    }
    let mut client = broker.connect(named("owner", lasting("client"))).await;
    assert!(client.connack().session_present);
    assert_eq!(client.take().await, "x");
    let _second = broker.connect(named("owner", lasting("client"))).await;
    client.expect_disconnect(ReasonCode::SessionTakenOver).await;
}

/// Rules that change end subscriptions of connected clients, and of others when they return.
#[tokio::test(start_paused = true)]
async fn subscriptions_that_are_denied_by_now_end() {
    let rules = Deny::the("");
    let store = Arc::new(MemoryStore::new());
    let mut broker = TestBroker::start_with_access(UserNames, rules.clone(), store.clone());
    for is_connected in [true, false] {
        let mut client = broker.resume("client").await;
        client.subscribe("t/#", QoS::AtLeastOnce).await;
        if is_connected {
            rules.change("subscribe");
            broker.handle.recheck_clients().await;
        } else {
            client.vanish().await;
            rules.change("subscribe");
            client = broker.resume("client").await;
        }
        settle().await;
        rules.change("");
        broker.v5("publisher").await.publish("t/1", "x", QoS::AtLeastOnce).await;
        client.expect_silence().await;
        client.vanish().await;
    }
    broker.handle.stop();
    broker.ended().await;
    let broker = TestBroker::start_over(Arc::new(store.reopen()));
    let mut client = broker.resume("client").await;
    broker.v5("publisher").await.publish("t/1", "x", QoS::AtLeastOnce).await;
    client.expect_silence().await;
}

/// [MQTT-3.10.4-2]: a priority that is lowered leaves no subscription behind that UNSUBSCRIBE does not end.
#[tokio::test(start_paused = true)]
async fn a_lowered_priority_leaves_the_subscription_of_the_control_stream() {
    let rules = Deny::the("");
    let broker =
        QuicBroker::start_with_access(quiet(), anyone(), rules.clone(), Arc::new(MemoryStore::new()));
    let client = broker.v5("client").await;
    let (kept, ended) = (client.open().await, client.open().await);
    for stream in [kept, ended] {
        let packet = Packet::Subscribe(Box::new(Subscribe {
            packet_id: id(7),
            id: None,
            user: [("braid-priority", "200")].into_iter().collect(),
            entries: vec![SubscribeEntry::new(filter("t"), QoS::AtMostOnce)],
        }));
        client.send(stream, &packet);
        assert_eq!(client.expect_suback(stream).await.codes, [ReasonCode::Success]);
    }
    client.finish(ended);
    assert_eq!(client.expect_ended(ended).await, Ended::Finished);
    rules.change("prioritize");
    broker.memory.handle.recheck_clients().await;
    settle().await;
    let mut publisher = broker.memory.v5("publisher").await;
    publisher.publish("t", "x", QoS::AtMostOnce).await;
    for stream in [CONTROL, kept] {
        assert_eq!(client.take(stream).await, "x");
    }
    client.send(CONTROL, &unsubscribe_packet(9, &["t"]));
    assert_eq!(client.expect_unsuback(CONTROL).await, [ReasonCode::Success]);
    publisher.publish("t", "y", QoS::AtMostOnce).await;
    client.expect_silence(CONTROL).await;
    client.expect_silence(kept).await;
}

#[tokio::test(start_paused = true)]
async fn a_revoked_user_is_disconnected() {
    let rules = Deny::the("");
    let broker = start(&rules);
    let mut events = broker.handle.security_events();
    let mut client = broker.connect(named("u", connect_v5("a"))).await;
    let mut other = broker.connect(named("v", connect_v5("b"))).await;
    broker.handle.recheck_clients().await;
    assert!(is_connected(&mut client).await);
    rules.change("everything");
    broker.handle.recheck_clients().await;
    client.expect_disconnect(ReasonCode::NotAuthorized).await;
    assert!(is_connected(&mut other).await);
    assert_eq!(events.recv().await.expect("an event").action, SecurityAction::Revoked);
}

/// CVE-2026-95846: a Will is asked about at CONNECT, and again when it is published.
#[tokio::test(start_paused = true)]
async fn a_will_that_is_denied_by_now_is_not_published() {
    let rules = Deny::the("");
    let broker = start(&rules);
    let mut subscriber = broker.v5("subscriber").await;
    subscriber.subscribe("t", QoS::AtMostOnce).await;
    for denied in ["publish", ""] {
        let client = broker.connect(Connect { will: Some(will("t", "gone")), ..connect_v5("client") }).await;
        rules.change(denied);
        client.vanish().await;
        match denied {
            "" => assert_eq!(subscriber.take().await, "gone"),
            _ => subscriber.expect_silence().await,
        }
        rules.change("");
    }
}

/// A subscription without the permission for its priority is granted with the usual one.
#[tokio::test(start_paused = true)]
async fn a_priority_above_the_usual_needs_permission() {
    for (denied, first) in [("prioritize", "usual"), ("", "urgent")] {
        let broker = start(&Deny::the(denied));
        let mut client = broker.resume("client").await;
        for (topic, priority) in [("usual", None), ("urgent", Some("65535"))] {
            let user = priority.map(|value: &str| ("braid-priority", value)).into_iter().collect();
            let entries = vec![SubscribeEntry::new(filter(topic), QoS::AtLeastOnce)];
            client
                .send(Packet::Subscribe(Box::new(Subscribe { packet_id: id(7), id: None, user, entries })))
                .await;
            assert!(
                matches!(client.next().await, Some(Packet::Suback(suback)) if !suback.codes[0].is_error())
            );
        }
        client.vanish().await;
        let mut publisher = broker.v5("publisher").await;
        for topic in ["usual", "urgent"] {
            publisher.publish(topic, topic, QoS::AtLeastOnce).await;
        }
        assert_eq!(broker.resume("client").await.take().await, first, "denied: {denied:?}");
    }
}

/// Events name action, client and rule; a flood is counted.
#[tokio::test(start_paused = true)]
async fn refusals_are_security_events() {
    let rules = Deny::the("publish");
    let broker = start(&rules);
    let mut events = broker.handle.security_events();
    let mut client = broker.connect(named("u", connect_v5("client"))).await;
    client.publish("t", "x", QoS::AtLeastOnce).await;
    let event = events.recv().await.expect("an event");
    assert_eq!((event.action.name(), event.action.topic()), ("publish", Some("t")));
    assert_eq!(event.client_id.as_ref().map(ClientId::as_str), Some("client"));
    assert_eq!(event.identity.as_ref().and_then(Identity::user), Some("u"));
    assert!(event.decision.is_some_and(|decision| !decision.allowed));
    for number in 0..500 {
        client.publish(&format!("t/{number}"), "x", QoS::AtLeastOnce).await;
    }
    // Events about connections are counted for themselves.
    assert_eq!(refusal(&broker, named("eve", connect_v5("client"))).await, ReasonCode::NotAuthorized);
    let mut passed = 0;
    let mut takeovers = 0;
    while let Ok(event) = events.try_recv() {
        if event.action == SecurityAction::Session {
            takeovers += 1;
            continue;
        }
        passed += 1;
    }
    assert!(passed <= 100, "{passed} events in no time");
    assert_eq!(takeovers, 1);
    tokio::time::advance(Duration::from_secs(2)).await;
    client.publish("t/late", "x", QoS::AtLeastOnce).await;
    let event = events.recv().await.expect("an event");
    assert_eq!(event.suppressed, 0, "the event of the takeover had them");
}
