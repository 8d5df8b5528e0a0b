//! Connecting, losing the connection, and getting it back.

use std::time::Duration;

use braid_client::{
    ConnectionEvent, Error, ProtocolVersion, Publication, QoS, ReasonCode, Reconnect, Subscribe, TopicFilter,
};
use braid_proto::connection::Event;
use tokio::join;
use tokio::time::{Instant, timeout};

use super::server::{Peer, network};

const KEEP: Duration = Duration::from_secs(3600);

fn publication(payload: &'static str, qos: QoS) -> Publication {
    Publication::to("t", payload).unwrap().qos(qos)
}

/// Grants the next SUBSCRIBE and returns its filters.
async fn grant(peer: &mut Peer) -> Vec<String> {
    let subscribe = peer.subscribe().await;
    peer.grant(&subscribe).await;
    subscribe.entries.iter().map(|entry| entry.filter.as_ref().unwrap().to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_failure_of_connect_is_its_error() {
    let (mut listening, builder) = network();
    let (result, ()) = join!(builder.connect(), async {
        let mut peer = listening.incoming().await;
        peer.connect().await;
        peer.reject(ReasonCode::ServerBusy).await;
    });
    let error = result.err().unwrap();
    assert!(matches!(error, Error::Refused { reason: ReasonCode::ServerBusy, .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_without_end_ends_the_client_as_others_do() {
    let (mut listening, builder) = network();
    let builder = builder.disconnect_timeout(Duration::MAX);
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, mut messages) = parts.unwrap();
    let waiting = client.enqueue(publication("1", QoS::AtLeastOnce)).await.unwrap();
    let serving = async {
        let (_, token) = peer.publish().await;
        peer.persisted(token.unwrap()).await;
        assert!(peer.event().await.is_none());
    };
    let (ended, ()) = join!(client.disconnect(), serving);
    ended.unwrap();
    waiting.await.unwrap();
    assert!(messages.recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn messages_published_offline_wait_for_the_connection() {
    let (mut listening, builder) = network();
    let (client, _messages) = builder.start().unwrap();
    client.try_publish(publication("1", QoS::AtMostOnce)).unwrap();
    let waiting = client.enqueue(publication("2", QoS::AtLeastOnce)).await.unwrap();
    let mut peer = listening.accept().await;
    assert_eq!(peer.publish().await.0.payload, "1");
    let (message, token) = peer.publish().await;
    assert_eq!(message.payload, "2");
    peer.persisted(token.unwrap()).await;
    assert_eq!(waiting.await.unwrap(), ReasonCode::Success);
}

#[tokio::test(start_paused = true)]
async fn a_message_without_an_acknowledgement_is_sent_again_and_resolves_once_there_is_one() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut listening, builder) = network();
        let builder = builder.session_expiry(KEEP);
        let (mut peer, parts) = join!(listening.accept(), builder.connect());
        let (client, _messages) = parts.unwrap();
        let waiting = client.enqueue(publication("m", qos)).await.unwrap();
        peer.publish().await;
        let session = peer.cut();
        let (mut peer, connect) = listening.accept_with(Some(session)).await;
        assert!(!connect.clean_start, "only the first connection starts a new session");
        let result = tokio::select! {
            result = waiting => result,
            () = acknowledge_all(&mut peer) => panic!("the client has gone"),
        };
        assert_eq!(result.unwrap(), ReasonCode::Success, "{qos}");
    }
}

async fn acknowledge_all(peer: &mut Peer) {
    while let Some(event) = peer.event().await {
        if let Event::Publish(_, Some(token)) | Event::Release(token) = event {
            peer.persisted(token).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_of_a_lost_session_is_published_again() {
    // MQTT 3.1.1 with Clean Session: the server never resumes a session.
    for version in [ProtocolVersion::V311, ProtocolVersion::V5] {
        let (mut listening, builder) = network();
        let (mut peer, parts) = join!(listening.accept(), builder.version(version).connect());
        let (client, _messages) = parts.unwrap();
        let waiting = client.enqueue(publication("m", QoS::AtLeastOnce)).await.unwrap();
        peer.publish().await;
        drop(peer);
        let (mut peer, connect) = listening.accept_with(None).await;
        assert_eq!(connect.clean_start, version == ProtocolVersion::V311);
        let (message, token) = peer.publish().await;
        assert_eq!(message.payload, "m");
        peer.persisted(token.unwrap()).await;
        assert_eq!(waiting.await.unwrap(), ReasonCode::Success);
    }
}

#[tokio::test(start_paused = true)]
async fn unwritten_qos_0_fails_with_the_connection() {
    let (mut listening, builder) = network();
    let (peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    // More than the link buffers; the server does not read.
    let large = Publication::to("t", vec![0; 200_000]).unwrap();
    let waiting = client.enqueue(large).await.unwrap();
    assert!(timeout(Duration::from_secs(1), std::future::pending::<()>()).await.is_err());
    drop(peer);
    let lost = waiting.await;
    assert!(matches!(lost, Err(Error::ConnectionLost)), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn subscriptions_are_restored_when_the_server_has_lost_them() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.session_expiry(KEEP).connect());
    let (client, _messages) = parts.unwrap();
    for filter in ["a", "b", "c"] {
        let (codes, _) = join!(client.subscribe(Subscribe::to(filter).unwrap()), grant(&mut peer));
        codes.unwrap();
    }
    let (codes, ()) = join!(client.unsubscribe(["b"]), async {
        let (on, unsubscribe) = peer.unsubscribe_on().await;
        peer.unsuback(on, &unsubscribe, vec![ReasonCode::Success]).await;
    });
    codes.unwrap();
    drop(peer);
    let mut peer = listening.accept().await;
    assert_eq!(grant(&mut peer).await, ["a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn subscriptions_are_not_repeated_when_the_session_is_present() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.session_expiry(KEEP).connect());
    let (client, _messages) = parts.unwrap();
    let (codes, _) = join!(client.subscribe(Subscribe::to("a").unwrap()), grant(&mut peer));
    codes.unwrap();
    let session = peer.cut();
    let (mut peer, _) = listening.accept_with(Some(session)).await;
    client.try_publish(publication("next", QoS::AtMostOnce)).unwrap();
    // Would panic if a SUBSCRIBE came first.
    assert_eq!(peer.publish().await.0.payload, "next");
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_not_granted_again_is_an_event() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let (codes, _) = join!(client.subscribe(Subscribe::to("a").unwrap()), grant(&mut peer));
    codes.unwrap();
    let mut events = client.events();
    drop(peer);
    let mut peer = listening.accept().await;
    let subscribe = peer.subscribe().await;
    peer.suback(&subscribe, vec![ReasonCode::NotAuthorized]).await;
    loop {
        match events.recv().await.unwrap() {
            ConnectionEvent::SubscriptionLost { filter, reason } => {
                assert_eq!((filter, reason), (TopicFilter::parse("a").unwrap(), ReasonCode::NotAuthorized));
                break;
            }
            other => assert!(!matches!(other, ConnectionEvent::Disconnected { retry_in: None, .. })),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_subscribe_is_sent_again() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.session_expiry(KEEP).connect());
    let (client, _messages) = parts.unwrap();
    let (codes, (filters, _peer)) = join!(client.subscribe(Subscribe::to("a").unwrap()), async {
        peer.subscribe().await;
        let session = peer.cut();
        let (mut peer, _) = listening.accept_with(Some(session)).await;
        (grant(&mut peer).await, peer)
    });
    assert_eq!(filters, ["a"]);
    assert_eq!(codes.unwrap(), [ReasonCode::GrantedQos2]);
}

#[tokio::test(start_paused = true)]
async fn pauses_between_attempts_grow_and_start_over_after_success() {
    let (mut listening, builder) = network();
    let backoff = Reconnect::Backoff { initial: Duration::from_secs(1), maximum: Duration::from_secs(60) };
    let (_client, _messages) = builder.reconnect(backoff).start().unwrap();
    let mut last = Instant::now();
    let mut pauses = Vec::new();
    for _ in 0..6 {
        drop(listening.incoming().await);
        pauses.push(last.elapsed());
        last = Instant::now();
    }
    for (attempt, pause) in pauses.iter().enumerate().skip(1) {
        let longest = Duration::from_secs(1 << (attempt - 1));
        assert!(*pause >= longest / 2 && *pause <= longest + Duration::from_millis(10), "{pauses:?}");
    }
    drop(listening.accept().await);
    last = Instant::now();
    drop(listening.incoming().await);
    assert!(last.elapsed() <= Duration::from_millis(1010), "the first pause again, not {:?}", last.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_takeover_ends_the_client_without_a_reconnect() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, mut messages) = parts.unwrap();
    peer.disconnect(ReasonCode::SessionTakenOver).await;
    let closed = client.closed().await;
    assert!(matches!(closed, Err(Error::Disconnected { reason: ReasonCode::SessionTakenOver, .. })));
    assert!(messages.recv().await.is_none());
    let late = client.publish(publication("m", QoS::AtMostOnce)).await;
    assert!(matches!(late, Err(Error::Disconnected { .. })), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn the_reason_of_the_server_is_read_after_a_write_error() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.receive_queue(1).connect());
    let (client, _messages) = parts.unwrap();
    peer.deliver("t", "not taken, so the client stops reading", QoS::AtMostOnce).await;
    peer.run(Duration::from_secs(1)).await;
    peer.disconnect(ReasonCode::SessionTakenOver).await;
    drop(peer);
    client.try_publish(publication("m", QoS::AtMostOnce)).unwrap();
    let closed = timeout(KEEP, client.closed()).await.expect("no reconnect after a takeover");
    assert!(
        matches!(closed, Err(Error::Disconnected { reason: ReasonCode::SessionTakenOver, .. })),
        "{closed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn reconnect_never_ends_with_the_first_loss() {
    let (mut listening, builder) = network();
    let (peer, parts) = join!(listening.accept(), builder.reconnect(Reconnect::Never).connect());
    let (client, _messages) = parts.unwrap();
    let waiting = client.enqueue(publication("m", QoS::AtLeastOnce)).await.unwrap();
    drop(peer);
    assert!(matches!(waiting.await, Err(Error::ConnectionLost)));
    assert!(matches!(client.closed().await, Err(Error::ConnectionLost)));
}

#[tokio::test(start_paused = true)]
async fn events_report_connect_loss_and_close() {
    let (mut listening, builder) = network();
    let (client, _messages) = builder.start().unwrap();
    let mut events = client.events();
    let peer = listening.accept().await;
    assert!(matches!(events.recv().await, Some(ConnectionEvent::Connected { session_present: false, .. })));
    // A late receiver gets the last event.
    assert!(matches!(client.events().recv().await, Some(ConnectionEvent::Connected { .. })));
    drop(peer);
    assert!(matches!(events.recv().await, Some(ConnectionEvent::Disconnected { retry_in: Some(_), .. })));
    let mut peer = listening.accept().await;
    assert!(matches!(events.recv().await, Some(ConnectionEvent::Connected { .. })));
    let (ended, _) = join!(client.disconnect(), peer.event());
    ended.unwrap();
    let last = events.recv().await;
    assert!(matches!(last, Some(ConnectionEvent::Disconnected { error: Error::Closed, retry_in: None })));
    assert!(events.recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn disconnect_waits_for_earlier_messages() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let waiting = client.enqueue(publication("m", QoS::AtLeastOnce)).await.unwrap();
    let (ended, ()) = join!(client.disconnect(), async {
        let (_, token) = peer.publish().await;
        peer.persisted(token.unwrap()).await;
        assert!(peer.event().await.is_none(), "DISCONNECT, and nothing before it");
    });
    ended.unwrap();
    waiting.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn disconnect_waits_no_longer_than_its_timeout() {
    let (mut listening, builder) = network();
    let limit = Duration::from_secs(5);
    let (mut peer, parts) = join!(listening.accept(), builder.disconnect_timeout(limit).connect());
    let (client, _messages) = parts.unwrap();
    let waiting = client.enqueue(publication("m", QoS::AtLeastOnce)).await.unwrap();
    let start = Instant::now();
    let (ended, ()) = join!(client.disconnect(), async {
        peer.publish().await;
        assert!(peer.event().await.is_none());
    });
    ended.unwrap();
    assert_eq!(start.elapsed().as_secs(), 5);
    assert!(matches!(waiting.await, Err(Error::Closed)));
}

#[tokio::test(start_paused = true)]
async fn disconnect_without_a_connection_is_immediate() {
    let (listening, builder) = network();
    drop(listening);
    let (client, _messages) = builder.start().unwrap();
    let waiting = client.enqueue(publication("m", QoS::AtLeastOnce)).await.unwrap();
    let start = Instant::now();
    assert!(client.disconnect().await.is_err());
    assert!(waiting.await.is_err());
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_closes_the_connection() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, messages) = parts.unwrap();
    let other = client.clone();
    drop((client, messages));
    assert!(timeout(Duration::from_secs(1), peer.event()).await.is_err(), "one handle is left");
    drop(other);
    assert!(peer.event().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_a_timeout() {
    let (mut listening, builder) = network();
    let start = Instant::now();
    let limit = Duration::from_secs(7);
    let (result, _peer) = join!(builder.connect_timeout(limit).connect(), async {
        let mut peer = listening.incoming().await;
        peer.connect().await;
        peer
    });
    assert!(matches!(result, Err(Error::Violation(_))));
    assert_eq!(start.elapsed().as_secs(), 7);
}

#[tokio::test(start_paused = true)]
async fn an_expired_message_is_not_sent_when_the_connection_comes() {
    let (mut listening, builder) = network();
    let (client, _messages) = builder.start().unwrap();
    let old = publication("old", QoS::AtLeastOnce).expires_after(Duration::from_secs(5));
    let old = client.enqueue(old).await.unwrap();
    client.try_publish(publication("new", QoS::AtMostOnce)).unwrap();
    tokio::time::advance(Duration::from_secs(6)).await;
    let mut peer = listening.accept().await;
    assert_eq!(peer.publish().await.0.payload, "new");
    assert!(matches!(old.await, Err(Error::Expired)));
}
