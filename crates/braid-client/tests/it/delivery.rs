//! Received messages and their acknowledgements.

use std::time::Duration;

use braid_client::{Client, ConnectionEvent, Messages, QoS};
use tokio::join;
use tokio::time::timeout;

use super::server::{Peer, network};

const MOMENT: Duration = Duration::from_millis(100);

/// Runs the client until it is idle.
async fn settle(peer: &mut Peer) -> usize {
    let nothing = timeout(MOMENT, async { while let Some(_event) = peer.event().await {} }).await;
    assert!(nothing.is_err(), "the connection is open");
    peer.session().outbound.len()
}

#[tokio::test(start_paused = true)]
async fn a_message_is_acknowledged_when_it_is_taken() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut listening, builder) = network();
        let (mut peer, parts) = join!(listening.accept(), builder.connect());
        let (_client, mut messages) = parts.unwrap();
        peer.deliver("t", "m", qos).await;
        assert_eq!(settle(&mut peer).await, 1, "the application has not taken it");
        assert_eq!(messages.recv().await.unwrap().payload, "m");
        assert_eq!(settle(&mut peer).await, 0);
    }
}

/// A client that acknowledges by itself, and has been sent three messages.
async fn three_to_acknowledge() -> (Peer, Client, Messages) {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.manual_acknowledgement(true).connect());
    let (client, messages) = parts.unwrap();
    for payload in ["1", "2", "3"] {
        peer.deliver("t", payload, QoS::AtLeastOnce).await;
    }
    (peer, client, messages)
}

#[tokio::test(start_paused = true)]
async fn manual_acknowledgement_covers_everything_before_it() {
    let (mut peer, _client, mut messages) = three_to_acknowledge().await;
    messages.recv().await.unwrap();
    let second = messages.recv().await.unwrap();
    messages.recv().await.unwrap();
    assert_eq!(settle(&mut peer).await, 3, "taken is not acknowledged");
    messages.acknowledge(&second);
    assert_eq!(settle(&mut peer).await, 1);
}

/// The application may not have stored it: the server has to keep it. [MQTT-4.3.3-8]
#[tokio::test(start_paused = true)]
async fn a_message_of_qos_2_that_is_not_acknowledged_comes_again() {
    let (mut listening, builder) = network();
    let builder = builder.manual_acknowledgement(true).session_expiry(Duration::from_secs(60));
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (_client, mut messages) = parts.unwrap();
    for payload in ["1", "2"] {
        peer.deliver("t", payload, QoS::ExactlyOnce).await;
    }
    let first = messages.recv().await.unwrap();
    messages.recv().await.unwrap();
    messages.acknowledge(&first);
    peer.run(MOMENT).await;
    let (mut peer, _) = listening.accept_with(Some(peer.cut())).await;
    assert_eq!(settle(&mut peer).await, 1, "the first is complete");
    let again = messages.recv().await.unwrap();
    assert_eq!((again.dup, &again.payload[..]), (true, &b"2"[..]));
    messages.acknowledge(&again);
    assert_eq!(settle(&mut peer).await, 0);
    assert!(timeout(MOMENT, messages.recv()).await.is_err());
}

/// Two tasks that each handle a message finish in any order.
#[tokio::test(start_paused = true)]
async fn an_acknowledgement_of_an_older_message_takes_none_back() {
    let (mut peer, _client, mut messages) = three_to_acknowledge().await;
    let first = messages.recv().await.unwrap();
    messages.recv().await.unwrap();
    let third = messages.recv().await.unwrap();
    messages.acknowledge(&third);
    messages.acknowledge(&first);
    assert_eq!(settle(&mut peer).await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_acknowledgement_of_an_older_connection_is_ignored() {
    let (mut listening, builder) = network();
    let builder = builder.manual_acknowledgement(true).session_expiry(Duration::from_secs(60));
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (_client, mut messages) = parts.unwrap();
    peer.deliver("t", "old", QoS::AtLeastOnce).await;
    let old = messages.recv().await.unwrap();
    let session = peer.cut();
    let (mut peer, _) = listening.accept_with(Some(session)).await;
    assert_eq!(settle(&mut peer).await, 1, "it came again");
    messages.acknowledge(&old);
    assert_eq!(
        settle(&mut peer).await,
        1,
        "the server must send it again and get an acknowledgement for that"
    );
    let again = messages.recv().await.unwrap();
    assert!(again.dup);
    messages.acknowledge(&again);
    assert_eq!(settle(&mut peer).await, 0);
}

#[tokio::test(start_paused = true)]
async fn messages_are_acknowledged_after_the_receiver_is_dropped() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (_client, messages) = parts.unwrap();
    peer.deliver("t", "waiting", QoS::AtLeastOnce).await;
    assert_eq!(settle(&mut peer).await, 1);
    drop(messages);
    assert_eq!(settle(&mut peer).await, 0);
    peer.deliver("t", "later", QoS::ExactlyOnce).await;
    assert_eq!(settle(&mut peer).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_application_makes_the_server_wait_and_gets_every_message() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.receive_queue(10).connect());
    let (_client, mut messages) = parts.unwrap();
    let payload = "x".repeat(10_000);
    let sent = std::cell::Cell::new(0);
    let deliver = async {
        for _ in 0..100 {
            peer.deliver("t", &payload, QoS::AtMostOnce).await;
            sent.set(sent.get() + 1);
        }
    };
    tokio::pin!(deliver);
    assert!(timeout(MOMENT, &mut deliver).await.is_err(), "a megabyte fits nowhere");
    // The queue, one read more, and the buffer of the link.
    assert!(sent.get() < 30, "{} messages were taken from the server", sent.get());
    let receive = async {
        for _ in 0..100 {
            assert_eq!(messages.recv().await.unwrap().payload.len(), 10_000);
        }
    };
    join!(deliver, receive);
}

#[tokio::test(start_paused = true)]
async fn a_paused_client_pings_and_stays_connected() {
    let (mut listening, builder) = network();
    let builder = builder.receive_queue(1).keep_alive(Duration::from_secs(10));
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, mut messages) = parts.unwrap();
    peer.deliver("t", "1", QoS::AtMostOnce).await;
    let quiet = timeout(Duration::from_secs(300), peer.event()).await;
    assert!(quiet.is_err(), "the client went away: {quiet:?}");
    assert_eq!(messages.recv().await.unwrap().payload, "1");
    peer.deliver("t", "2", QoS::AtMostOnce).await;
    assert_eq!(messages.recv().await.unwrap().payload, "2");
    drop(client);
}

/// The messages of the connection before fill the queue.
#[tokio::test(start_paused = true)]
async fn a_paused_client_connects_again() {
    let (mut listening, builder) = network();
    let builder = builder.receive_queue(1).session_expiry(Duration::from_secs(600));
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, mut messages) = parts.unwrap();
    peer.deliver("t", "1", QoS::AtMostOnce).await;
    settle(&mut peer).await;
    let mut events = client.events();
    let (mut peer, _) = listening.accept_with(Some(peer.cut())).await;
    let connected = async {
        loop {
            match events.recv().await {
                Some(ConnectionEvent::Connected { session_present: true, .. }) => return,
                Some(
                    ConnectionEvent::Disconnected { retry_in: Some(_), .. }
                    | ConnectionEvent::Connected { .. },
                ) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    let quiet = timeout(Duration::from_secs(300), peer.event());
    let (quiet, connected) = join!(quiet, timeout(Duration::from_secs(60), connected));
    connected.expect("CONNACK is read");
    assert!(quiet.is_err(), "the client went away: {quiet:?}");
    // A read beside that of CONNACK is not made until there is room.
    peer.deliver("t", "2", QoS::AtMostOnce).await;
    assert!(timeout(Duration::from_secs(300), peer.event()).await.is_err(), "it pings");
    for text in ["1", "2"] {
        assert_eq!(messages.recv().await.unwrap().payload, text);
    }
}

#[tokio::test(start_paused = true)]
async fn queued_messages_can_be_taken_after_the_end() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, mut messages) = parts.unwrap();
    peer.deliver("t", "1", QoS::AtMostOnce).await;
    settle(&mut peer).await;
    let (ended, event) = join!(client.disconnect(), peer.event());
    ended.unwrap();
    assert!(event.is_none());
    assert_eq!(messages.recv().await.unwrap().payload, "1");
    assert!(messages.recv().await.is_none());
}
