//! 0-RTT: round trips saved, and early data that the server rejects.

use std::time::Duration;

use braid_client::{
    Builder, Client, ConnectionEvent, Messages, OptionsError, ProtocolVersion, Publication, QoS, Reconnect,
    RetainHandling, Subscribe, TopicFilter,
};
use braid_proto::connection::Event;
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::Host;
use tokio::join;
use tokio::time::{Instant, timeout};

use super::server::{Listening, Peer, network, quic_with};

const ROUND_TRIP: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_secs(10);

fn early() -> (Listening, Builder, Host) {
    let (listening, builder, device) = quic_with(QuicOptions::server());
    device.change(|link| link.latency = ROUND_TRIP / 2);
    let reconnect = Reconnect::Backoff { initial: PAUSE, maximum: PAUSE };
    (listening, builder.zero_rtt(true).reconnect(reconnect).session_expiry(Duration::from_secs(3600)), device)
}

/// Waits for CONNACK; returns the end of the pause before it.
async fn reconnected(events: &mut braid_client::Events) -> Duration {
    let mut start = Instant::now();
    loop {
        match events.recv().await.unwrap() {
            ConnectionEvent::Connected { .. } => return start.elapsed(),
            ConnectionEvent::Disconnected { retry_in, .. } => start = Instant::now() + retry_in.unwrap(),
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_replaced_connection_is_established_after_one_round_trip() {
    let (mut listening, builder, _) = early();
    let start = Instant::now();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    assert!(start.elapsed() >= 2 * ROUND_TRIP, "the first one has no ticket");
    let mut events = client.events();
    events.recv().await;
    // The ticket comes with the handshake.
    peer.run(ROUND_TRIP).await;
    let session = peer.cut();
    let accepting = async {
        let (mut peer, _) = listening.accept_with(Some(session)).await;
        peer.run(ROUND_TRIP).await;
        peer
    };
    let (time, mut peer) = join!(reconnected(&mut events), accepting);
    // A millisecond each way, and one for the timer.
    assert!((ROUND_TRIP..ROUND_TRIP + Duration::from_millis(10)).contains(&time), "{time:?}");
    let publication = Publication::to("t", "m").unwrap().qos(QoS::AtLeastOnce);
    let waiting = client.enqueue(publication).await.unwrap();
    assert_eq!(peer.take().await.1, "m");
    join!(waiting, peer.run(ROUND_TRIP)).0.unwrap();
}

/// [BQ-62]
#[tokio::test(start_paused = true)]
async fn a_server_that_rejects_early_data_is_dialled_again_at_once() {
    let (mut listening, builder, _) = early();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let mut events = client.events();
    events.recv().await;
    peer.run(ROUND_TRIP).await;
    client.try_publish(Publication::to("t", "lost").unwrap().qos(QoS::AtLeastOnce)).unwrap();
    peer.publish().await;
    let session = peer.cut();
    listening.forget_tickets();
    let accepting = async {
        // The first one is the rejected attempt, whose CONNECT is never delivered.
        let mut refused = listening.incoming_unless_gone().await;
        if let Some(refused) = &mut refused {
            assert!(refused.event().await.is_none(), "no packet of it may be handled");
        }
        let (mut peer, _) = listening.accept_with(Some(session)).await;
        peer.run(ROUND_TRIP).await;
        peer
    };
    let (time, mut peer) = join!(reconnected(&mut events), accepting);
    assert!(time < 4 * ROUND_TRIP, "without another pause, not after {time:?}");
    assert_eq!(peer.take().await.1, "lost", "the session went on");
}

// -- Subscriptions ---------------------------------------------------------------------------------

/// A connection with its ticket, and these subscriptions: filter and stream.
async fn subscribed(
    listening: &mut Listening,
    builder: Builder,
    subscriptions: &[(&str, u32)],
) -> (Peer, Client, Messages) {
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, messages) = parts.unwrap();
    for (filter, number) in subscriptions {
        let subscribe = Subscribe::to(filter).unwrap().stream(*number);
        let (codes, _) = join!(client.subscribe(subscribe), peer.grant_next());
        codes.unwrap();
    }
    peer.run(ROUND_TRIP).await;
    (peer, client, messages)
}

/// Streams, filters and Retain Handling of the next SUBSCRIBEs, which are granted.
async fn grant(peer: &mut Peer, count: usize) -> Vec<(StreamKey, String, RetainHandling)> {
    let mut granted = Vec::new();
    for _ in 0..count {
        let (stream, subscribe) = peer.subscribe_on().await;
        let codes = subscribe.entries.iter().map(|entry| entry.qos.into()).collect();
        peer.suback_on(stream, &subscribe, codes).await;
        let filters: Vec<_> =
            subscribe.entries.iter().map(|entry| entry.filter.as_ref().unwrap().to_string()).collect();
        granted.push((stream, filters.concat(), subscribe.entries[0].retain_handling));
    }
    granted
}

/// No further SUBSCRIBE arrives.
async fn assert_silent(peer: &mut Peer) {
    peer.run(10 * ROUND_TRIP).await;
    assert!(!peer.pending().iter().any(|event| matches!(event, Event::Subscribe(..) | Event::Publish(..))));
}

/// [BQ-61]
#[tokio::test(start_paused = true)]
async fn messages_come_two_round_trips_sooner_where_the_subscription_is_early() {
    for (early, number, has_session, round_trips) in [
        (true, 0, false, 1),
        (true, 1, false, 1),
        (true, 1, true, 1),
        (false, 0, false, 3),
        (false, 1, false, 3),
        (false, 1, true, 3),
    ] {
        let (mut listening, builder, _) = self::early();
        let expiry = Duration::from_secs(if has_session { 3600 } else { 0 });
        let builder = builder.zero_rtt(early).session_expiry(expiry);
        let (peer, client, mut messages) = subscribed(&mut listening, builder, &[("a", number)]).await;
        let mut events = client.events();
        let session = peer.cut();
        let serving = async {
            let mut peer = listening.accept_with(has_session.then_some(session)).await.0;
            let (stream, subscribed) = peer.grant_next().await;
            assert_eq!((stream.is_control(), subscribed), (number == 0, vec!["a".to_owned()]));
            peer.deliver_on(stream, "a", "m", QoS::AtLeastOnce).await;
            assert_silent(&mut peer).await;
        };
        let receiving = async {
            let start = loop {
                if let ConnectionEvent::Disconnected { retry_in, .. } = events.recv().await.unwrap() {
                    break Instant::now() + retry_in.unwrap();
                }
            };
            assert_eq!(messages.recv().await.unwrap().payload, "m");
            start.elapsed()
        };
        let (time, ()) = join!(receiving, serving);
        let expected = round_trips * ROUND_TRIP;
        assert!(
            (expected..expected + ROUND_TRIP / 4).contains(&time),
            "early {early}, stream {number}, session {has_session}: {time:?}"
        );
    }
}

/// A server that has kept the session against the expectation of the client, or lost it: no filter is subscribed twice,
/// and no retained message is sent again.
#[tokio::test(start_paused = true)]
async fn early_subscriptions_are_right_whether_the_server_kept_the_session_or_not() {
    use RetainHandling::{SendAlways, SendIfNew};
    let all = [("a", 0), ("b", 1), ("c", 1)];
    for (expiry, has_session, wanted) in [
        (0, false, vec![("a", SendIfNew), ("bc", SendIfNew)]),
        (0, true, vec![("a", SendIfNew), ("bc", SendIfNew)]),
        (3600, true, vec![("bc", SendIfNew)]),
        (3600, false, vec![("bc", SendIfNew), ("a", SendAlways)]),
    ] {
        let (mut listening, builder, _) = early();
        let builder = builder.session_expiry(Duration::from_secs(expiry));
        let (peer, _client, _messages) = subscribed(&mut listening, builder, &all).await;
        let session = peer.cut();
        let (mut peer, _) = listening.accept_with(has_session.then_some(session)).await;
        let granted = grant(&mut peer, wanted.len()).await;
        let mut told: Vec<_> =
            granted.iter().map(|(_, filters, retain)| (filters.as_str(), *retain)).collect();
        told.sort_by_key(|(filters, _)| wanted.iter().position(|(other, _)| other == filters));
        assert_eq!(told, wanted, "expiry {expiry}, session {has_session}");
        assert!(granted.iter().all(|(stream, filters, _)| stream.is_control() == (filters == "a")));
        assert_silent(&mut peer).await;
    }
}

/// The limit holds for all streams together, however often their outboxes are empty.
#[tokio::test(start_paused = true)]
async fn early_data_above_64_kib_follows_connack() {
    const FILTERS: usize = 60;
    for numbers in [[0, 0, 0], [1, 2, 3]] {
        let (mut listening, builder, _) = early();
        let builder = builder.session_expiry(Duration::ZERO);
        let (mut peer, client, _messages) = subscribed(&mut listening, builder, &[]).await;
        for (at, number) in numbers.into_iter().enumerate() {
            let filter = |n| TopicFilter::parse(&format!("{at}/{n:0500}")).unwrap();
            let subscribe = Subscribe::new((0..FILTERS).map(filter)).stream(number);
            join!(client.subscribe(subscribe), peer.grant_next()).0.unwrap();
        }
        drop(peer.cut());
        let mut peer = listening.incoming().await;
        peer.connect().await;
        peer.run(10 * ROUND_TRIP).await;
        let start = Instant::now();
        peer.accept(None).await;
        let (mut before, mut after) = (0, 0);
        while before + after < 3 * FILTERS {
            let filters = peer.grant_next().await.1;
            let bytes: usize = filters.iter().map(String::len).sum();
            if start.elapsed() < ROUND_TRIP / 2 {
                before += filters.len();
                assert!(
                    before * bytes / filters.len() <= 64 * 1024,
                    "{before} filters on streams {numbers:?}"
                );
            } else {
                after += filters.len();
            }
        }
        assert!(before >= FILTERS && before + after == 3 * FILTERS, "{before} and {after}");
        assert_silent(&mut peer).await;
    }
}

/// MQTT 3 has no Retain Handling.
#[tokio::test(start_paused = true)]
async fn no_early_subscribe_requests_retained_messages_again() {
    let (mut listening, builder, _) = early();
    let builder = builder.version(ProtocolVersion::V311).clean_start(false);
    let (peer, _client, _messages) = subscribed(&mut listening, builder, &[("a", 0), ("b", 1)]).await;
    let session = peer.cut();
    let (mut peer, _) = listening.accept_with(Some(session)).await;
    assert_eq!(grant(&mut peer, 1).await[0].1, "b", "its stream has to be told in any case");
    assert_silent(&mut peer).await;
}

/// Streams have no order among each other.
#[tokio::test(start_paused = true)]
async fn an_answer_that_overtakes_connack_is_read_after_it() {
    let (mut listening, builder, device) = early();
    let builder = builder.session_expiry(Duration::ZERO);
    let (peer, client, mut messages) = subscribed(&mut listening, builder, &[("a", 1)]).await;
    let mut events = client.events();
    drop(peer.cut());
    let serving = async {
        let mut peer = listening.incoming().await;
        peer.connect().await;
        // The handshake packets of the server are in transit; CONNACK is lost.
        peer.run(ROUND_TRIP).await;
        device.change(|link| link.loss = 1.0);
        peer.accept(None).await;
        peer.run(Duration::from_millis(2)).await;
        device.change(|link| link.loss = 0.0);
        let (stream, _) = peer.grant_next().await;
        peer.deliver_on(stream, "a", "m", QoS::AtLeastOnce).await;
        peer.run(10 * ROUND_TRIP).await;
    };
    let receiving = timeout(2 * PAUSE, messages.recv());
    let ((), received, _) = join!(serving, receiving, reconnected(&mut events));
    assert_eq!(received.expect("SUBACK was heard").unwrap().payload, "m");
}

/// [BQ-62]
#[tokio::test(start_paused = true)]
async fn rejected_early_subscriptions_are_requested_again_exactly_once() {
    for expiry in [0, 3600] {
        let (mut listening, builder, _) = early();
        let builder = builder.session_expiry(Duration::from_secs(expiry));
        let (peer, _client, _messages) =
            subscribed(&mut listening, builder, &[("a", 0), ("b", 1), ("c", 2)]).await;
        drop(peer.cut());
        listening.forget_tickets();
        if let Some(mut refused) = listening.incoming_unless_gone().await {
            assert!(refused.event().await.is_none(), "no packet of it may be handled");
        }
        let mut peer = listening.accept().await;
        let mut granted: Vec<_> =
            grant(&mut peer, 3).await.into_iter().map(|(_, filter, _)| filter).collect();
        granted.sort();
        assert_eq!(granted, ["a", "b", "c"]);
        assert_silent(&mut peer).await;
    }
}

/// A server that closes the connection because of an early SUBSCRIBE gets it after CONNACK.
#[tokio::test(start_paused = true)]
async fn a_server_that_ends_the_connection_for_an_early_subscription_gets_it_after_connack() {
    let (mut listening, builder, _) = early();
    let builder = builder.session_expiry(Duration::ZERO);
    let (peer, client, _messages) = subscribed(&mut listening, builder, &[("a", 0)]).await;
    let mut events = client.events();
    drop(peer.cut());
    let mut peer = listening.accept().await;
    peer.subscribe().await;
    peer.disconnect(ReasonCode::ServerBusy).await;
    drop(peer);
    let connected = reconnected(&mut events);
    let (_, mut peer) = join!(connected, async {
        let mut peer = listening.incoming().await;
        peer.connect().await;
        peer.run(2 * ROUND_TRIP).await;
        peer.accept(None).await;
        let start = Instant::now();
        assert_eq!(grant(&mut peer, 1).await[0].1, "a");
        assert!(start.elapsed() >= ROUND_TRIP, "after CONNACK");
        peer
    });
    assert_silent(&mut peer).await;
}

#[tokio::test(start_paused = true)]
async fn options_of_quic_are_refused_on_other_transports() {
    let (_listening, builder) = network();
    let error = builder.clone().zero_rtt(true).start().unwrap_err().to_string();
    let expected = OptionsError::NeedsQuic { option: "0-RTT" }.to_string();
    assert_eq!(error, expected);
    assert!(
        quic_with(QuicOptions::server())
            .1
            .link_rate(0)
            .start()
            .unwrap_err()
            .to_string()
            .contains("leave it out")
    );
    let error = quic_with(QuicOptions::server()).1.gate_reserve(4).start().unwrap_err().to_string();
    assert_eq!(error, "the gate can reserve 1 to 3 packets for urgent messages, not 4");
    assert!(builder.link_rate(1000).start().unwrap_err().to_string().contains("quic://host"));
}
