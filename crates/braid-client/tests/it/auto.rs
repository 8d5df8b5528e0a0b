//! Clients that choose between QUIC and TLS, for which a link in memory stands, and move between them.

use std::time::Duration;

use braid_client::{
    Client, ConnectionEvent, Error, Events, Messages, Publication, QoS, Reconnect, Subscribe, Transport,
};
use braid_proto::connection::Event;
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};
use braid_transport::sim::Host;
use tokio::join;
use tokio::time::{Instant, timeout};

use super::server::{Listening, Peer, quic_and_memory};

const ROUND_TRIP: Duration = Duration::from_millis(40);
const PAUSE: Duration = Duration::from_secs(1);

/// Listeners, a builder whose reconnects pause for a second, and a path of 40 ms.
fn both() -> (Listening, Listening, braid_client::Builder, Host) {
    let (quic, tls, builder, device) = quic_and_memory();
    device.change(|link| link.latency = ROUND_TRIP / 2);
    (quic, tls, builder.reconnect(Reconnect::Backoff { initial: PAUSE, maximum: PAUSE }), device)
}

async fn next(events: &mut Events) -> ConnectionEvent {
    timeout(Duration::from_secs(600), events.recv()).await.expect("an event").expect("the client lives")
}

/// Waits for CONNACK; returns its transport.
async fn connected(events: &mut Events) -> Transport {
    loop {
        if let ConnectionEvent::Connected { transport, .. } = next(events).await {
            return transport;
        }
    }
}

fn alarm(text: &str) -> Publication {
    Publication::to("alarms", text.to_owned()).unwrap().qos(QoS::ExactlyOnce)
}

/// Answers all that the client sends for this time. Returns the messages that are new to the session.
async fn serve(peer: &mut Peer, time: Duration) -> Vec<String> {
    let mut arrived = Vec::new();
    let _ = timeout(time, async {
        while let Some(event) = peer.event().await {
            match event {
                Event::Publish(message, token) => {
                    arrived.push(String::from_utf8(message.payload.to_vec()).unwrap());
                    peer.persisted(token.unwrap()).await;
                }
                Event::Release(token) => peer.persisted(token).await,
                _ => {}
            }
        }
    })
    .await;
    arrived
}

/// A client over QUIC, with its first connection.
async fn over_quic(quic: &mut Listening, builder: braid_client::Builder) -> (Peer, Client, Messages, Events) {
    let (peer, parts) = join!(quic.accept(), builder.connect());
    let (client, messages) = parts.unwrap();
    let mut events = client.events();
    assert_eq!(connected(&mut events).await, Transport::Quic);
    (peer, client, messages, events)
}

/// A client over TLS, with its first connection: QUIC answers later.
async fn over_tls(
    tls: &mut Listening,
    builder: braid_client::Builder,
    device: &Host,
) -> (Peer, Client, Messages, Events) {
    device.change(|link| link.latency = Duration::from_millis(200));
    let (peer, parts) = join!(tls.accept(), builder.connect());
    let (client, messages) = parts.unwrap();
    let mut events = client.events();
    assert_eq!(connected(&mut events).await, Transport::Mem);
    (peer, client, messages, events)
}

#[tokio::test(start_paused = true)]
async fn quic_is_taken_where_it_works() {
    let (mut quic, _tls, builder, _device) = both();
    let start = Instant::now();
    let _parts = over_quic(&mut quic, builder).await;
    assert!(start.elapsed() < 3 * ROUND_TRIP, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn blocked_udp_costs_one_head_start_once() {
    let (_quic, mut tls, builder, device) = both();
    device.change(|link| link.cut = true);
    let start = Instant::now();
    let (mut peer, parts) = join!(tls.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(250));
    let mut events = client.events();
    assert_eq!(connected(&mut events).await, Transport::Mem);
    // QUIC goes on in the background, and counts as broken after three seconds.
    peer.run(Duration::from_secs(4)).await;
    let session = peer.cut();
    let ConnectionEvent::Disconnected { retry_in: Some(pause), .. } = next(&mut events).await else {
        panic!("the link was cut");
    };
    let cut = Instant::now();
    let (_peer, transport) = join!(tls.accept_with(Some(session)), connected(&mut events));
    assert_eq!(transport, Transport::Mem);
    assert!(
        cut.elapsed() <= pause + Duration::from_millis(2),
        "{:?} after a pause of {pause:?}",
        cut.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn quic_that_answers_late_is_moved_to() {
    let (mut quic, mut tls, builder, device) = both();
    let (mut before, _client, _messages, mut events) = over_tls(&mut tls, builder, &device).await;
    let moving = async {
        let (mut after, ()) = join!(quic.incoming(), before.run(Duration::from_secs(2)));
        after.connect().await;
        after.accept(Some(before.cut())).await;
        after
    };
    let (_after, transport) = join!(moving, connected(&mut events));
    assert_eq!(transport, Transport::Quic);
}

#[tokio::test(start_paused = true)]
async fn a_black_hole_after_a_good_handshake_is_left_within_seconds_and_nothing_is_lost() {
    let (mut quic, mut tls, builder, device) = both();
    let (mut peer, client, _messages, mut events) = over_quic(&mut quic, builder).await;
    let (acknowledged, arrived) = join!(client.publish(alarm("1")), serve(&mut peer, 10 * ROUND_TRIP));
    acknowledged.unwrap();
    assert_eq!(arrived, ["1"]);
    device.change(|link| link.cut = true);
    let start = Instant::now();
    let waiting = client.enqueue(alarm("2")).await.unwrap();
    let moved = async {
        let incoming = tls.incoming();
        let (mut after, ()) = join!(incoming, peer.run(Duration::from_secs(1)));
        assert!(!after.connect().await.clean_start);
        after.accept(Some(peer.cut())).await;
        serve(&mut after, Duration::from_secs(1)).await
    };
    let (arrived, result) = join!(moved, waiting);
    assert_eq!(arrived, ["2"]);
    result.unwrap();
    let ConnectionEvent::Moving { to: Transport::Mem, reason } = next(&mut events).await else {
        panic!("the client moves, it does not reconnect");
    };
    assert_eq!(&*reason, "no answer over QUIC, while TLS answers");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// The session goes back and forth with unanswered messages of QoS 2, of which each arrives once. [BQ-91]
#[tokio::test(start_paused = true)]
async fn moves_that_are_asked_for_lose_and_repeat_nothing() {
    let (mut quic, mut tls, builder, _device) = both();
    let (mut peer, client, _messages, mut events) = over_quic(&mut quic, builder).await;
    let mut arrived = Vec::new();
    for round in 0..100 {
        let waiting = client.enqueue(alarm(&round.to_string())).await.unwrap();
        client.change_transport().await.unwrap();
        let (listening, transport) = match round % 2 {
            0 => (&mut tls, Transport::Mem),
            _ => (&mut quic, Transport::Quic),
        };
        let moved = async {
            // Half of the messages are answered before the move, half after it.
            let before = async {
                if round % 4 < 2 {
                    return serve(&mut peer, Duration::from_millis(500)).await;
                }
                peer.run(Duration::from_millis(500)).await;
                let published = peer.pending().into_iter().filter_map(|event| match event {
                    Event::Publish(message, _) => Some(message),
                    _ => None,
                });
                published.map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect()
            };
            let (mut after, texts) = join!(listening.incoming(), before);
            arrived.extend(texts);
            after.connect().await;
            after.accept(Some(peer.cut())).await;
            arrived.extend(serve(&mut after, 10 * ROUND_TRIP).await);
            after
        };
        let (after, result, over) = join!(moved, waiting, connected(&mut events));
        result.unwrap();
        assert_eq!(over, transport);
        peer = after;
    }
    assert_eq!(arrived, (0..100).map(|round| round.to_string()).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_not_asked_to_last_ends_with_the_client() {
    let (mut quic, _tls, builder, _device) = both();
    let ((mut peer, connect), parts) = join!(quic.accept_with(None), builder.connect());
    let (client, _messages) = parts.unwrap();
    assert_eq!(connect.properties.session_expiry, Some(60), "long enough for a move");
    let (ended, ()) = join!(client.disconnect(), async {
        while let Some(event) = peer.event().await {
            drop(event);
        }
    });
    ended.unwrap();
    assert!(!peer.session_expiry().outlives_connection());
}

#[tokio::test(start_paused = true)]
async fn without_any_transport_the_error_names_both() {
    let (quic, tls, builder, device) = both();
    device.change(|link| link.cut = true);
    drop((quic, tls));
    let error = builder.connect().await.err().unwrap();
    let Error::NoTransport { quic, .. } = &error else { panic!("{error}") };
    assert!(matches!(**quic, Error::ConnectTimeout { .. } | Error::Connect(_)), "{error}");
    assert!(error.is_transient());
}

/// Subscriptions of data streams go to the one stream of TLS, and back.
#[tokio::test(start_paused = true)]
async fn deliveries_go_on_after_a_move() {
    let (mut quic, mut tls, builder, _device) = both();
    let (mut peer, client, mut messages, mut events) = over_quic(&mut quic, builder).await;
    let subscribe = Subscribe::to("orders/#").unwrap().qos(QoS::AtLeastOnce).stream(3);
    join!(client.subscribe(subscribe), peer.grant_next()).0.unwrap();
    client.change_transport().await.unwrap();
    let moved = async {
        let (mut after, ()) = join!(tls.incoming(), peer.run(Duration::from_millis(500)));
        after.connect().await;
        after.accept(Some(peer.cut())).await;
        after.deliver("orders/1", "go", QoS::AtLeastOnce).await;
        after.run(Duration::from_millis(100)).await;
        after
    };
    let (_after, over) = join!(moved, connected(&mut events));
    assert_eq!(over, Transport::Mem);
    assert_eq!(messages.recv().await.unwrap().message.payload, "go");
}

#[tokio::test(start_paused = true)]
async fn server_references_are_followed_at_once_and_five_times_a_minute() {
    let (_quic, mut tls, builder, device) = both();
    device.change(|link| link.cut = true);
    let (mut peer, parts) = join!(tls.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let mut events = client.events();
    connected(&mut events).await;
    peer.run(Duration::from_secs(4)).await;
    let start = Instant::now();
    for _ in 0..5 {
        peer.redirect("other.example:8883").await;
        (peer, _) = tls.accept_with(None).await;
        assert_eq!(connected(&mut events).await, Transport::Mem);
    }
    assert!(start.elapsed() < PAUSE / 2, "without a pause, not after {:?}", start.elapsed());
    peer.redirect("other.example:8883").await;
    let ConnectionEvent::Disconnected { error, retry_in: Some(_) } = next(&mut events).await else {
        panic!("the client waits, and goes on with the server of the URL");
    };
    assert!(matches!(error, Error::Disconnected { reason: ReasonCode::ServerMoved, .. }), "{error}");
}

/// Early data is sent before any answer, so that its link says nothing about the path.
#[tokio::test(start_paused = true)]
async fn early_data_without_an_answer_is_left_for_tls() {
    let (mut quic, mut tls, builder, device) = both();
    let builder = builder.zero_rtt(true);
    let (mut peer, _client, _messages, mut events) = over_quic(&mut quic, builder).await;
    // The ticket comes with the handshake.
    peer.run(10 * ROUND_TRIP).await;
    let session = peer.cut();
    let ConnectionEvent::Disconnected { retry_in: Some(pause), .. } = next(&mut events).await else {
        panic!("the link was cut");
    };
    device.change(|link| link.cut = true);
    let cut = Instant::now();
    let (_peer, over) = join!(tls.accept_with(Some(session)), connected(&mut events));
    assert_eq!(over, Transport::Mem);
    let waited = cut.elapsed().saturating_sub(pause);
    assert!(waited <= Duration::from_millis(255), "{waited:?}");
}

/// An acknowledgement of QUIC alone gets no answer, and is no sign of silence.
#[tokio::test(start_paused = true)]
async fn a_client_that_only_receives_does_not_move() {
    let (mut quic, mut tls, builder, device) = both();
    device.change(|link| link.latency = Duration::from_millis(115));
    let (mut peer, client, _messages, mut events) = over_quic(&mut quic, builder).await;
    let subscribe = Subscribe::to("orders/#").unwrap().qos(QoS::AtMostOnce);
    join!(client.subscribe(subscribe), peer.grant_next()).0.unwrap();
    for _ in 0..20 {
        peer.deliver("orders/1", "go", QoS::AtMostOnce).await;
        peer.run(Duration::from_millis(3210)).await;
    }
    let moved = timeout(Duration::from_secs(1), tls.incoming()).await;
    assert!(moved.is_err(), "nothing asks for TLS");
    let event = timeout(Duration::from_secs(1), events.recv()).await;
    assert!(event.is_err(), "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn an_idle_client_moves_when_it_is_asked_to() {
    let (mut quic, mut tls, builder, _device) = both();
    let (mut peer, client, _messages, mut events) = over_quic(&mut quic, builder).await;
    peer.run(Duration::from_secs(20)).await;
    let start = Instant::now();
    client.change_transport().await.unwrap();
    let (mut after, ()) = join!(tls.incoming(), peer.run(Duration::from_millis(100)));
    after.connect().await;
    join!(after.accept(Some(peer.cut())), connected(&mut events));
    assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
}

/// A message that the application has not taken is acknowledged on the link on which it came, and not sent again.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_not_taken_yet_does_not_arrive_twice() {
    let (mut quic, mut tls, builder, _device) = both();
    let (mut peer, client, mut messages, mut events) = over_quic(&mut quic, builder).await;
    let subscribe = Subscribe::to("orders/#").unwrap().qos(QoS::AtLeastOnce);
    join!(client.subscribe(subscribe), peer.grant_next()).0.unwrap();
    peer.run(Duration::from_secs(1)).await;
    peer.deliver("orders/1", "go", QoS::AtLeastOnce).await;
    peer.run(ROUND_TRIP).await;
    client.change_transport().await.unwrap();
    let taking = async {
        tokio::time::sleep(ROUND_TRIP / 2).await;
        messages.recv().await.unwrap()
    };
    let moving = async {
        let (mut after, ()) = join!(tls.incoming(), peer.run(10 * ROUND_TRIP));
        after.connect().await;
        after.accept(Some(peer.cut())).await;
        after.run(Duration::from_secs(1)).await;
        after
    };
    let (_after, message, _) = join!(moving, taking, connected(&mut events));
    assert_eq!(message.message.payload, "go");
    let again = timeout(Duration::from_secs(5), messages.recv()).await;
    assert!(again.is_err(), "{again:?}");
}

/// The end by the server has its reason, whatever the client was about to do.
#[tokio::test(start_paused = true)]
async fn a_session_that_another_client_takes_during_a_move_is_not_taken_back() {
    let (mut quic, mut tls, builder, _device) = both();
    let (mut peer, client, _messages, mut events) = over_quic(&mut quic, builder).await;
    // Without an answer the move waits.
    let waiting = client.enqueue(alarm("1")).await.unwrap();
    peer.run(ROUND_TRIP).await;
    client.change_transport().await.unwrap();
    let ending = async {
        peer.run(ROUND_TRIP / 4).await;
        peer.take_over().await;
    };
    let ((), event) = join!(ending, next(&mut events));
    let ConnectionEvent::Disconnected { error, retry_in: None } = event else { panic!("{event:?}") };
    assert!(matches!(error, Error::Disconnected { reason: ReasonCode::SessionTakenOver, .. }), "{error}");
    assert!(waiting.await.is_err());
    let event = tls.incoming().await.event().await;
    assert!(event.is_none(), "the link is closed without CONNECT: {event:?}");
}

/// The other server may have other rules: the client goes back to the one that took it.
#[tokio::test(start_paused = true)]
async fn a_move_that_is_refused_is_undone() {
    let (mut quic, mut tls, builder, _device) = both();
    let (mut peer, client, _messages, mut events) = over_quic(&mut quic, builder).await;
    client.change_transport().await.unwrap();
    let refusing = async {
        let (mut after, ()) = join!(tls.incoming(), peer.run(Duration::from_millis(200)));
        after.connect().await;
        after.reject(ReasonCode::NotAuthorized).await;
        quic.accept_with(Some(peer.cut())).await.0
    };
    let (mut peer, over) = join!(refusing, connected(&mut events));
    assert_eq!(over, Transport::Quic);
    // Refused without a move before it, it is the end.
    peer.disconnect(ReasonCode::NotAuthorized).await;
    let event = next(&mut events).await;
    assert!(matches!(event, ConnectionEvent::Disconnected { retry_in: None, .. }), "{event:?}");
}

/// QUIC that leads elsewhere: a server that refuses the client which TLS has.
#[tokio::test(start_paused = true)]
async fn quic_that_refuses_a_client_of_tls_is_not_the_first_choice_any_more() {
    let (mut quic, mut tls, builder, device) = both();
    let (mut before, _client, _messages, mut events) = over_tls(&mut tls, builder, &device).await;
    let refusing = async {
        let (mut after, ()) = join!(quic.incoming(), before.run(Duration::from_secs(2)));
        after.connect().await;
        after.reject(ReasonCode::NotAuthorized).await;
        // Fast enough for the head start.
        device.change(|link| link.latency = ROUND_TRIP / 2);
        let session = before.cut();
        tokio::select! {
            accepted = tls.accept_with(Some(session)) => accepted.0,
            () = connect_over(&mut quic) => panic!("the client goes back"),
        }
    };
    let (_peer, over) = join!(refusing, connected(&mut events));
    assert_eq!(over, Transport::Mem);
}

/// Waits for a CONNECT.
async fn connect_over(listening: &mut Listening) {
    listening.incoming().await.connect().await;
}

/// A server that takes handshakes of QUIC, and does not answer CONNECT there.
#[tokio::test(start_paused = true)]
async fn quic_without_connack_is_left_for_tls_after_two_connections() {
    let (mut quic, mut tls, builder, _device) = both();
    let builder = builder.connect_timeout(Duration::from_secs(2));
    let (client, _messages) = builder.start().unwrap();
    let mut events = client.events();
    for _ in 0..2 {
        let mut peer = quic.incoming().await;
        peer.connect().await;
        let end = timeout(Duration::from_secs(60), peer.event()).await;
        assert!(matches!(end, Ok(None)), "{end:?}");
    }
    let (_peer, over) = tokio::select! {
        both = async { join!(tls.accept(), connected(&mut events)) } => both,
        () = connect_over(&mut quic) => panic!("a third one"),
    };
    assert_eq!(over, Transport::Mem);
}

/// DISCONNECT on the link that is left would end the session, and take messages with it.
#[tokio::test(start_paused = true)]
async fn a_session_that_the_server_ends_with_its_connection_is_not_moved_for_a_better_link() {
    let (mut quic, mut tls, builder, device) = both();
    tls.options.maximum_session_expiry = SessionExpiry::WITH_CONNECTION;
    let (mut peer, _client, _messages, mut events) = over_tls(&mut tls, builder, &device).await;
    let (late, ()) = join!(quic.incoming_unless_gone(), peer.run(Duration::from_secs(30)));
    if let Some(mut late) = late {
        assert!(late.event().await.is_none(), "QUIC answers, and gets no CONNECT");
    }
    let event = timeout(Duration::from_secs(1), events.recv()).await;
    assert!(event.is_err(), "{event:?}");
}

/// CONNECT of a link that was left arrives later, or is thought to.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_taken_over_by_its_own_connect_comes_back_once() {
    let (mut quic, mut tls, builder, device) = both();
    let builder = builder.zero_rtt(true);
    let (mut peer, _client, _messages, mut events) = over_quic(&mut quic, builder).await;
    peer.run(10 * ROUND_TRIP).await;
    let session = peer.cut();
    assert!(matches!(next(&mut events).await, ConnectionEvent::Disconnected { .. }));
    device.change(|link| link.cut = true);
    let ((mut peer, _), over) = join!(tls.accept_with(Some(session)), connected(&mut events));
    assert_eq!(over, Transport::Mem);
    // The attempt of QUIC beside it ends.
    peer.run(Duration::from_secs(5)).await;
    device.change(|link| link.cut = false);
    for is_last in [false, true] {
        peer.take_over().await;
        let ConnectionEvent::Disconnected { error, retry_in } = next(&mut events).await else {
            panic!("the session is taken");
        };
        assert!(matches!(error, Error::Disconnected { reason: ReasonCode::SessionTakenOver, .. }), "{error}");
        assert_eq!(retry_in.is_none(), is_last);
        if !is_last {
            let session = peer.cut();
            (peer, _) = join!(accept_any(&mut quic, &mut tls, session), connected(&mut events));
        }
    }
}

/// Accepts the next connection of either transport.
async fn accept_any(quic: &mut Listening, tls: &mut Listening, session: Session) -> Peer {
    let mut peer = tokio::select! {
        peer = quic.incoming() => peer,
        peer = tls.incoming() => peer,
    };
    peer.connect().await;
    peer.accept(Some(session)).await;
    peer
}
