//! Commands: publish, disconnect, delete a session; and the list of listeners.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use braid_broker::command::CommandError;
use braid_broker::view::ViewError;
use braid_broker::{Anonymous, BrokerConfig, LimitsConfig, PermitAll};
use braid_proto::message::Message;
use braid_proto::packet::QoS;
use braid_proto::reason::ReasonCode;
use braid_store::faults::FailingStore;
use braid_store::{MemoryStore, StoreError};
use braid_transport::{EndpointHealth, Transport};

use super::name;
use crate::support::{TestBroker, connect_v5, lasting, quiet, settle, topic, will};

fn own(to: &str, retain: bool) -> Message {
    Message::new(topic(to), "x", QoS::AtLeastOnce, retain)
}

#[tokio::test(start_paused = true)]
async fn publish_tells_the_number_of_receivers_or_why_not() {
    let limits = LimitsConfig { retained_messages: 1, ..quiet().limits };
    let mut broker = TestBroker::start_with(BrokerConfig { limits, ..quiet() });
    let (mut one, mut two) = (broker.resume("one").await, broker.resume("two").await);
    for client in [&mut one, &mut two] {
        client.subscribe("a", QoS::AtLeastOnce).await;
        client.subscribe("$share/g/s", QoS::AtLeastOnce).await;
    }
    two.vanish().await;
    let receivers = async |to: &str, retain| {
        broker.handle.publish_durably(own(to, retain)).await.map(|published| published.receivers)
    };
    assert_eq!(receivers("a", false).await, Ok(2), "one of them is disconnected");
    assert_eq!(receivers("s", false).await, Ok(1), "one member of the group");
    assert_eq!(receivers("unknown", false).await, Ok(0));
    assert_eq!(receivers("kept", true).await, Ok(0));
    assert_eq!(receivers("a", true).await, Err(CommandError::NotRetained { receivers: 2 }));
    let _ = receivers;
    let failure = StoreError::Failed { reason: "no disk".into() };
    broker.handle.fail(&failure);
    let refused = broker.handle.publish_durably(own("a", false)).await;
    assert!(matches!(refused, Err(CommandError::Store(_) | CommandError::Stopping)), "{refused:?}");
    assert_eq!(broker.outcome().await, Err(failure));
    let refused = broker.handle.publish_durably(own("a", false)).await;
    assert_eq!(refused, Err(CommandError::Stopping));
}

/// The failure is told apart from those before anything was published.
#[tokio::test(start_paused = true)]
async fn a_message_whose_commit_fails_was_delivered_all_the_same() {
    // The commits before are those of the session and its subscription.
    let store = Arc::new(FailingStore::after(2, MemoryStore::new()));
    let broker = TestBroker::start_over(store);
    let mut client = broker.resume("client").await;
    client.subscribe("a", QoS::AtMostOnce).await;
    let published = broker.handle.publish_durably(own("a", true)).await;
    assert_eq!(published, Err(CommandError::NotDurable { receivers: 1 }));
    assert_eq!(client.take().await, "x");
    let refused = broker.handle.publish_durably(own("a", false)).await;
    assert!(matches!(refused, Err(CommandError::Store(_) | CommandError::Stopping)), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_is_disconnected_and_keeps_its_session() {
    let broker = TestBroker::start();
    let mut client = broker.resume("client").await;
    assert!(broker.handle.disconnect(&name("client"), ReasonCode::AdministrativeAction));
    client.expect_disconnect(ReasonCode::AdministrativeAction).await;
    settle().await;
    assert!(
        !broker.handle.disconnect(&name("client"), ReasonCode::AdministrativeAction),
        "it is not connected"
    );
    assert!(!broker.handle.disconnect(&name("unknown"), ReasonCode::AdministrativeAction));
    assert!(broker.handle.client(&name("client")).await.is_ok());
}

/// Connected or not, durable or not: nothing of the session is left, and its delayed Will is published.
#[tokio::test(start_paused = true)]
async fn a_deleted_session_is_gone_from_the_store_too() {
    for is_connected in [true, false] {
        let store = Arc::new(MemoryStore::new());
        let broker = TestBroker::start_over(store.clone());
        let mut watcher = broker.v5("watcher").await;
        watcher.subscribe("gone", QoS::AtMostOnce).await;
        let mut connect = lasting("client");
        connect.will = Some(will("gone", "bye"));
        connect.will.as_mut().expect("it has one").delay = 500;
        let mut client = broker.connect(connect).await;
        client.subscribe("a", QoS::AtLeastOnce).await;
        if is_connected {
            assert_eq!(broker.handle.delete_session(&name("client")).await, Ok(true));
            client.expect_disconnect(ReasonCode::AdministrativeAction).await;
        } else {
            client.vanish().await;
            broker.handle.publish_durably(own("a", false)).await.expect("it is queued");
            assert_eq!(broker.handle.delete_session(&name("client")).await, Ok(true));
        }
        assert_eq!(watcher.take().await, "bye");
        assert_eq!(broker.handle.client(&name("client")).await, Err(ViewError::NotFound));
        assert_eq!(broker.handle.delete_session(&name("client")).await, Ok(false));
        let published = broker.handle.publish_durably(own("a", false)).await.expect("there is no subscriber");
        assert_eq!(published.receivers, 0);
        let mut broker = broker;
        broker.handle.stop();
        broker.ended().await;
        let again = TestBroker::start_over(store);
        assert_eq!(again.handle.client(&name("client")).await, Err(ViewError::NotFound));
        let client = again.resume("client").await;
        assert!(!client.connack().session_present);
    }
}

/// Such as a request of HTTP whose client has gone away.
#[tokio::test(start_paused = true)]
async fn a_session_is_deleted_also_where_the_caller_does_not_wait() {
    let broker = TestBroker::start();
    let mut client = broker.resume("client").await;
    {
        let named = name("client");
        let mut deleted = pin!(broker.handle.delete_session(&named));
        poll_fn(|cx| {
            assert!(deleted.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    }
    client.expect_disconnect(ReasonCode::AdministrativeAction).await;
    settle().await;
    assert_eq!(broker.handle.client(&name("client")).await, Err(ViewError::NotFound));
}

#[tokio::test(start_paused = true)]
async fn listeners_count_their_connections_and_tell_of_failures() {
    let (store, rules) = (Arc::new(MemoryStore::new()), Arc::new(PermitAll));
    let (broker, [entrance]) =
        TestBroker::start_mounted(quiet(), Anonymous::default(), rules, store, ["t1/"]);
    let mut events = broker.handle.events();
    let (first, _second) = (broker.v5("first").await, broker.v5("second").await);
    let _third = entrance.connect(connect_v5("third")).await;
    first.vanish().await;
    let health = EndpointHealth { restarts: 1, is_available: false, turned_away: 0 };
    broker.fail_accept(health).await;
    settle().await;
    let all = broker.handle.listeners();
    let counts: Vec<_> = all.iter().map(|one| (one.connections, one.accepted)).collect();
    assert_eq!(counts, [(1, 2), (1, 1)]);
    assert_eq!(all.iter().map(|one| one.is_available).collect::<Vec<_>>(), [false, true]);
    assert_eq!((all[0].transport, all[0].address, all[0].restarts), (Transport::Mem, None, 1));
    let names: Vec<_> = std::iter::from_fn(|| events.try_recv().ok()).map(|event| event.name()).collect();
    assert_eq!(names, ["connected", "connected", "connected", "disconnected", "listener_restarted"]);
}
