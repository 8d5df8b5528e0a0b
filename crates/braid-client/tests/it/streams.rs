//! Streams of QUIC: mapping of messages, opening and ends.

use std::num::NonZeroU32;
use std::time::Duration;

use braid_client::{
    Client, ConnectionEvent, Error, Priority, ProtocolVersion, Publication, QoS, ReasonCode, RetainHandling,
    SendError, StreamPolicy, Subscribe,
};
use braid_proto::connection::{Event, ServerOptions};
use braid_proto::stream::StreamKey;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::Shaper;
use tokio::join;
use tokio::time::{Instant, timeout};

use super::server::{Peer, network, quic, quic_with};

const KEEP: Duration = Duration::from_secs(3600);
const MOMENT: Duration = Duration::from_secs(1);
const LARGE: usize = 300 * 1024;
const CONTROL: StreamKey = StreamKey::CONTROL;

fn publication(topic: &str, payload: &'static str) -> Publication {
    Publication::to(topic, payload).unwrap().qos(QoS::AtLeastOnce)
}

fn large(topic: &str, first: u8, qos: QoS) -> Publication {
    Publication::to(topic, vec![first; LARGE]).unwrap().qos(qos)
}

/// Publishes without waiting.
async fn publish(client: &Client, publication: Publication) {
    drop(client.enqueue(publication).await.unwrap());
}

/// The stream that carries the next message, which must have this payload.
async fn stream_of(peer: &mut Peer, payload: &str) -> StreamKey {
    let (stream, taken) = peer.take().await;
    assert_eq!(taken, payload);
    stream
}

#[tokio::test(start_paused = true)]
async fn each_priority_has_a_stream_and_the_session_the_control_stream() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    publish(&client, publication("t", "plain")).await;
    let plain = stream_of(&mut peer, "plain").await;
    assert!(!plain.is_control(), "an alarm could not overtake it there");
    let alarm = |payload| publication("t", payload).priority(Priority::new(60_000));
    publish(&client, alarm("alarm")).await;
    let urgent = stream_of(&mut peer, "alarm").await;
    assert!(urgent != plain && !urgent.is_control());
    // They are there to stay.
    publish(&client, alarm("again")).await;
    assert_eq!(stream_of(&mut peer, "again").await, urgent);
    publish(&client, publication("u", "other topic")).await;
    assert_eq!(stream_of(&mut peer, "other topic").await, plain);
    let (codes, (stream, _)) = join!(client.subscribe(Subscribe::to("a").unwrap()), peer.grant_next());
    codes.unwrap();
    assert_eq!(stream, CONTROL);
}

#[tokio::test(start_paused = true)]
async fn a_client_may_stay_on_the_control_stream() {
    let (mut listening, builder) = quic();
    let builder = builder.stream_policy(StreamPolicy::control());
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    publish(&client, publication("t", "1").priority(Priority::HIGHEST)).await;
    assert_eq!(stream_of(&mut peer, "1").await, CONTROL);
    publish(&client, large("t", b'x', QoS::AtLeastOnce)).await;
    assert_eq!(stream_of(&mut peer, &"x".repeat(16)).await, CONTROL);
    assert!(peer.opened.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_number_names_one_stream_for_messages_and_subscriptions() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, mut messages) = parts.unwrap();
    let subscribe = Subscribe::to("a").unwrap().stream(7);
    let (codes, (seven, _)) = join!(client.subscribe(subscribe), peer.grant_next());
    assert_eq!(codes.unwrap(), [ReasonCode::GrantedQos2]);
    assert!(!seven.is_control());
    publish(&client, publication("t", "7").stream(7)).await;
    assert_eq!(stream_of(&mut peer, "7").await, seven);
    publish(&client, publication("t", "8").stream(8)).await;
    assert_ne!(stream_of(&mut peer, "8").await, seven);
    publish(&client, publication("t", "0").stream(0)).await;
    assert_eq!(stream_of(&mut peer, "0").await, CONTROL);
    peer.deliver_on(seven, "a", "delivered", QoS::ExactlyOnce).await;
    let received = async { messages.recv().await.unwrap().payload.clone() };
    let (payload, ()) = join!(received, peer.run(MOMENT));
    assert_eq!(payload, "delivered");
    peer.run(MOMENT).await;
    assert_eq!(peer.session().outbound.len(), 0, "its exchange is over");
}

#[tokio::test(start_paused = true)]
async fn a_subscription_asks_for_its_priority() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let subscribe = Subscribe::to("a").unwrap().priority(Priority::new(1)).priority(Priority::new(9));
    let (codes, user) = join!(client.subscribe(subscribe), async {
        let (_, subscribe) = peer.subscribe_on().await;
        peer.grant(&subscribe).await;
        subscribe.user
    });
    codes.unwrap();
    assert_eq!(user, [("braid-priority", "9")].into()); // [BQ-52]
}

// -- Streams of one message ------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_large_message_has_a_stream_that_ends_with_its_exchange() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut listening, builder) = quic();
        let (mut peer, parts) = join!(listening.accept(), builder.connect());
        let (client, _messages) = parts.unwrap();
        let waiting = client.enqueue(large("t", b'x', qos)).await.unwrap();
        let (stream, message, token) = peer.publish_on().await;
        assert_eq!((message.payload.len(), peer.ended.len()), (LARGE, 0));
        if let Some(token) = token {
            peer.run(MOMENT).await;
            assert_eq!(peer.ended, [], "{qos} without its acknowledgement");
            peer.persisted(token).await;
        }
        if qos == QoS::ExactlyOnce {
            let Some(Event::Release(token)) = peer.event().await else { panic!("PUBREL") };
            assert_eq!(token.stream(), stream);
            assert_eq!(peer.ended, [], "the exchange goes on");
            peer.persisted(token).await;
        }
        peer.run(MOMENT).await;
        assert_eq!(waiting.await.unwrap(), ReasonCode::Success);
        assert_eq!(peer.ended, [(stream, None)], "{qos}");
        assert_eq!(peer.opened, [stream]);
    }
}

#[tokio::test(start_paused = true)]
async fn large_messages_of_one_topic_come_one_after_the_other_and_others_side_by_side() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    for (topic, first) in [("a", b'1'), ("a", b'2'), ("b", b'3')] {
        publish(&client, large(topic, first, QoS::AtMostOnce)).await;
    }
    publish(&client, publication("a", "small")).await;
    peer.run(MOMENT).await;
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.push(peer.take().await);
    }
    let stream = |of: &str| taken.iter().find(|(_, payload)| payload.starts_with(of)).unwrap().0;
    let place = |of: &str| taken.iter().position(|(_, payload)| payload.starts_with(of)).unwrap();
    assert!(place("1") < place("2"), "one topic keeps its order");
    assert_eq!(place("small"), 0, "what is small goes first");
    let first_end = peer.ended.iter().position(|(ended, _)| *ended == stream("1")).unwrap();
    let opened = |of: StreamKey| peer.opened.iter().position(|other| *other == of).unwrap();
    assert!(opened(stream("3")) < opened(stream("2")), "another topic did not wait");
    assert!(first_end < peer.ended.iter().position(|(ended, _)| *ended == stream("2")).unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_large_message_is_reset_when_it_expires_on_its_way() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut listening, builder, device) = quic_with(QuicOptions::server());
        let (mut peer, parts) = join!(listening.accept(), builder.connect());
        let (client, _messages) = parts.unwrap();
        publish(&client, publication("t", "first")).await;
        stream_of(&mut peer, "first").await;
        device.change(|link| link.loss = 1.0);
        let expiring = Publication::to("t", vec![0; 8 << 20]).unwrap().qos(qos);
        let start = Instant::now();
        let waiting = client.enqueue(expiring.expires_after(Duration::from_secs(5))).await.unwrap();
        let ((result, time), ()) =
            join!(async { (waiting.await, start.elapsed()) }, peer.run(Duration::from_secs(6)));
        assert!(matches!(result, Err(Error::Expired)), "{qos}: {result:?}");
        assert_eq!(time.as_secs(), 5);
        assert_eq!(client.unwritten(), 0, "nothing of it is kept");
        device.change(|link| link.loss = 0.0);
        publish(&client, publication("t", "next")).await;
        stream_of(&mut peer, "next").await;
        peer.run(MOMENT).await;
        let reset = (StreamKey::bidi(2), Some(u64::from(ReasonCode::UnspecifiedError.value())));
        assert_eq!(peer.ended, [reset]);
        assert!(
            peer.pending().iter().all(|event| !matches!(event, Event::Publish(..))),
            "nor sent elsewhere"
        );
    }
}

/// [MQTT-3.2.2-15]
#[tokio::test(start_paused = true)]
async fn a_message_that_is_too_large_for_the_server_leaves_no_stream_open() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut listening, builder) = quic();
        listening.options = ServerOptions { maximum_packet_size: LARGE + 1000, ..ServerOptions::default() };
        let (mut peer, parts) = join!(listening.accept(), builder.connect());
        let (client, _messages) = parts.unwrap();
        let too_large = Publication::to("t", vec![b'x'; LARGE + 1000]).unwrap().qos(qos);
        let publishing = timeout(MOMENT, client.publish(too_large));
        let (result, ()) = join!(publishing, peer.run(2 * MOMENT));
        let error = result.expect("it is known at once").unwrap_err();
        assert!(matches!(error, Error::Send(SendError::TooLarge)), "{qos}: {error:?}");
        assert!(error.to_string().contains("maximum packet size"), "{error}");
        let stream = StreamKey::bidi(1);
        assert_eq!((&peer.opened[..], &peer.ended[..]), (&[stream][..], &[(stream, None)][..]), "{qos}");
        // Nor does it stop its lane, which ends the stream of each message before the next.
        publish(&client, large("t", b'y', qos)).await;
        let next = stream_of(&mut peer, &"y".repeat(16)).await;
        peer.run(MOMENT).await;
        assert!(
            !next.is_control() && peer.pending().iter().all(|event| !matches!(event, Event::Publish(..)))
        );
    }
}

// -- Credit ----------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_server_without_data_streams_gets_everything_on_the_control_stream() {
    let (mut listening, builder, _) = quic_with(QuicOptions { bidi_streams: 1, ..QuicOptions::server() });
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let start = Instant::now();
    publish(&client, publication("t", "1")).await;
    publish(&client, publication("t", "2").stream(3)).await;
    publish(&client, large("t", b'x', QoS::AtLeastOnce)).await;
    for payload in ["1", "2", "xxxxxxxxxxxxxxxx"] {
        assert_eq!(stream_of(&mut peer, payload).await, CONTROL);
    }
    assert!(start.elapsed() < MOMENT, "it is known at once");
}

#[tokio::test(start_paused = true)]
async fn lanes_share_the_streams_that_the_server_grants() {
    let (mut listening, builder, _) = quic_with(QuicOptions { bidi_streams: 3, ..QuicOptions::server() });
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    for number in 1..=6 {
        publish(&client, publication("t", "m").stream(number)).await;
        // An idle stream ends and makes room for the next.
        assert_eq!(stream_of(&mut peer, "m").await, StreamKey::bidi(number));
    }
    // Streams in use do not end: a lane that waits longer than a second uses the control stream.
    for number in [11, 12] {
        let subscribe = Subscribe::to("a").unwrap().stream(number);
        let (codes, (stream, _)) = join!(client.subscribe(subscribe), peer.grant_next());
        codes.unwrap();
        assert!(!stream.is_control());
    }
    let start = Instant::now();
    publish(&client, publication("t", "late").stream(13)).await;
    assert_eq!(stream_of(&mut peer, "late").await, CONTROL);
    assert!(start.elapsed() >= MOMENT && start.elapsed() < 2 * MOMENT, "{:?}", start.elapsed());
}

// -- Streams that the server ends ------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_subscription_whose_stream_ends_gets_another_one() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let subscribe = Subscribe::to("a").unwrap().stream(7).id(NonZeroU32::MIN);
    let (codes, (first, _)) = join!(client.subscribe(subscribe), peer.grant_next());
    codes.unwrap();
    let (codes, _) = join!(client.subscribe(Subscribe::to("b").unwrap()), peer.grant_next());
    codes.unwrap();
    peer.abort(first, ReasonCode::QuotaExceeded);
    let (second, again) = peer.subscribe_on().await;
    assert!(second != first && !second.is_control());
    assert_eq!((again.entries.len(), again.id), (1, Some(NonZeroU32::MIN)), "only what was on that stream");
    assert_eq!(again.entries[0].retain_handling, RetainHandling::SendIfNew, "retained messages came before");
    peer.suback_on(second, &again, vec![ReasonCode::GrantedQos2]).await;
    publish(&client, publication("t", "7").stream(7)).await;
    assert_eq!(stream_of(&mut peer, "7").await, second);
}

#[tokio::test(start_paused = true)]
async fn a_lane_whose_streams_are_reset_repeatedly_uses_the_control_stream() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let subscribe = Subscribe::to("a").unwrap().stream(7);
    let (codes, (mut stream, _)) = join!(client.subscribe(subscribe), peer.grant_next());
    codes.unwrap();
    let mut ended = 0;
    while !stream.is_control() {
        peer.abort(stream, ReasonCode::ProtocolError);
        ended += 1;
        stream = peer.grant_next().await.0;
    }
    assert_eq!(ended, 5);
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_request_is_sent_again_after_its_stream_ended() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let subscribing = client.subscribe(Subscribe::to("a").unwrap().stream(7));
    let (codes, stream) = join!(subscribing, async {
        let (stream, subscribe) = peer.subscribe_on().await;
        peer.abort(stream, ReasonCode::ServerBusy);
        peer.suback_on(stream, &subscribe, vec![ReasonCode::GrantedQos2]).await;
        let (next, filters) = peer.grant_next().await;
        assert_eq!(filters, ["a"]);
        (stream, next)
    });
    assert_eq!(codes.unwrap(), [ReasonCode::GrantedQos2]);
    assert_ne!(stream.0, stream.1);
}

#[tokio::test(start_paused = true)]
async fn messages_of_an_ended_stream_are_retransmitted_or_fail() {
    let (mut listening, builder, _) =
        quic_with(QuicOptions { stream_receive_window: 10_000, ..QuicOptions::server() });
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    publish(&client, publication("t", "open").stream(7)).await;
    let stream = stream_of(&mut peer, "open").await;
    let reliable = client.enqueue(publication("t", "reliable").stream(7)).await.unwrap();
    peer.publish().await;
    peer.ignore(stream);
    let lossy = Publication::to("t", vec![0; 100_000]).unwrap().stream(7);
    let lossy = client.enqueue(lossy).await.unwrap();
    peer.run(MOMENT).await;
    peer.abort(stream, ReasonCode::QuotaExceeded);
    let again = stream_of(&mut peer, "reliable").await;
    assert!(again != stream && !again.is_control(), "the next stream of its lane"); // [BQ-21], [BQ-42]
    let (reliable, lossy, ()) = join!(reliable, lossy, peer.run(MOMENT));
    assert_eq!(reliable.unwrap(), ReasonCode::Success);
    let error = lossy.unwrap_err();
    assert!(matches!(error, Error::StreamEnded { code: Some(0x97) }), "{error:?}");
    assert!(error.to_string().contains("quota exceeded"), "{error}");
}

// -- Reconnecting ----------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn subscriptions_are_restored_on_their_streams() {
    for has_session in [true, false] {
        let (mut listening, builder) = quic();
        let (mut peer, parts) = join!(listening.accept(), builder.session_expiry(KEEP).connect());
        let (client, _messages) = parts.unwrap();
        for (filter, number) in [("control", 0), ("a", 1), ("b", 1), ("c", 2)] {
            let subscribe = Subscribe::to(filter).unwrap().stream(number);
            let (codes, _) = join!(client.subscribe(subscribe), peer.grant_next());
            codes.unwrap();
        }
        let session = peer.cut();
        let (mut peer, _) = listening.accept_with(has_session.then_some(session)).await;
        let mut restored = Vec::new();
        for _ in 0..if has_session { 2 } else { 3 } {
            restored.push(peer.grant_next().await);
        }
        restored.sort_by_key(|(stream, filters)| (!stream.is_control(), filters.concat()));
        let filters: Vec<_> = restored.iter().map(|(_, filters)| filters.concat()).collect();
        // The server has kept the first one, and keeps the others on the control stream. [BQ-42], [BQ-43]
        assert_eq!(filters, if has_session { vec!["ab", "c"] } else { vec!["control", "ab", "c"] });
        let streams: Vec<_> = restored.iter().map(|(stream, _)| stream.is_control()).collect();
        assert_eq!(streams, if has_session { vec![false; 2] } else { vec![true, false, false] });
        assert_ne!(restored[restored.len() - 1].0, restored[restored.len() - 2].0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_queued_at_the_end_of_a_connection_is_restored_once() {
    let (mut listening, builder, _) = quic_with(QuicOptions { bidi_streams: 2, ..QuicOptions::server() });
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    for (filter, number) in [("a", 1), ("b", 2)] {
        let subscribe = Subscribe::to(filter).unwrap().stream(number);
        let (codes, _) = join!(client.subscribe(subscribe), peer.grant_next());
        codes.unwrap();
    }
    drop(peer.cut());
    let mut peer = listening.accept().await;
    assert!(!peer.grant_next().await.0.is_control(), "there is no stream for the other yet");
    drop(peer.cut());
    let mut peer = listening.accept().await;
    let mut filters = [peer.grant_next().await.1.concat(), peer.grant_next().await.1.concat()];
    filters.sort();
    assert_eq!(filters, ["a", "b"]);
    peer.run(10 * MOMENT).await;
    assert!(!peer.pending().iter().any(|event| matches!(event, Event::Subscribe(..))));
}

/// A restarted server with a lower limit: subscriptions that fit are restored, the others reported as lost.
#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_too_large_now_does_not_fail_others() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let filters = ["a".repeat(50), "b".repeat(200), "c".repeat(50)];
    for filter in &filters {
        let subscribe = Subscribe::to(filter).unwrap();
        let (codes, _) = join!(client.subscribe(subscribe), peer.grant_next());
        codes.unwrap();
    }
    let mut events = client.events();
    drop(peer.cut());
    listening.options = ServerOptions { maximum_packet_size: 100, ..ServerOptions::default() };
    let mut peer = listening.accept().await;
    assert_eq!(peer.grant_next().await.1, [filters[0].clone()]);
    assert_eq!(peer.grant_next().await.1, [filters[2].clone()]);
    peer.run(MOMENT).await;
    let lost = loop {
        if let ConnectionEvent::SubscriptionLost { filter, reason } = events.recv().await.unwrap() {
            break (filter.to_string(), reason);
        }
    };
    assert_eq!(lost, (filters[1].clone(), ReasonCode::PacketTooLarge));
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_lost_session_use_their_streams_again() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let waiting = client.enqueue(publication("t", "m").stream(7)).await.unwrap();
    assert!(!peer.publish_on().await.0.is_control());
    drop(peer.cut());
    let mut peer = listening.accept().await;
    assert!(!stream_of(&mut peer, "m").await.is_control());
    let (done, ()) = join!(waiting, peer.run(MOMENT));
    assert_eq!(done.unwrap(), ReasonCode::Success);
}

/// [BQ-41]
#[tokio::test(start_paused = true)]
async fn the_reason_of_a_takeover_is_read_after_the_end_of_all_streams() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    for number in 0..3 {
        // Unacknowledged messages move to the control stream when their stream ends.
        publish(&client, publication("t", "m").stream(number)).await;
        peer.publish().await;
    }
    let (ended, ()) = join!(client.closed(), peer.take_over());
    let error = ended.unwrap_err();
    assert!(matches!(error, Error::Disconnected { reason: ReasonCode::SessionTakenOver, .. }), "{error:?}");
}

// -- Requests, disconnect, migration ---------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn unsubscribe_uses_the_stream_of_the_subscription() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.version(ProtocolVersion::V311).connect());
    let (client, _messages) = parts.unwrap();
    let mut streams = Vec::new();
    for (filter, number) in [("a", 1), ("b", 2), ("c", 2)] {
        let subscribe = Subscribe::to(filter).unwrap().stream(number);
        let (codes, (stream, _)) = join!(client.subscribe(subscribe), peer.grant_next());
        codes.unwrap();
        streams.push(stream);
    }
    let (codes, asked) = join!(client.unsubscribe(["b", "c", "a", "none"]), async {
        let mut asked = Vec::new();
        for count in [2, 1, 1] {
            let (stream, unsubscribe) = peer.unsubscribe_on().await;
            assert_eq!(unsubscribe.filters.len(), count);
            peer.unsuback(stream, &unsubscribe, vec![ReasonCode::Success; count]).await;
            asked.push(stream);
        }
        asked
    });
    assert_eq!(codes.unwrap(), [ReasonCode::Success; 4]);
    assert_eq!(asked, [streams[1], streams[0], CONTROL]);
}

/// DISCONNECT precedes all data streams, and QUIC still buffers the control stream, on a path so slow that most of it
/// is in transit for longer than any timeout.
async fn disconnect_waits_for_qos_0(policy: StreamPolicy) {
    let (mut listening, builder, device) = quic_with(QuicOptions::server());
    let builder = builder.disconnect_timeout(KEEP).stream_policy(policy);
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    device.change(|link| {
        link.latency = Duration::from_millis(50);
        link.loss = 0.1;
    });
    for number in 0..20 {
        let publication = Publication::to("t", vec![b'0' + number; 20_000]).unwrap();
        client.try_publish(publication).unwrap();
    }
    let (ended, taken) = join!(client.disconnect(), async {
        let mut taken = 0;
        while let Some(event) = peer.event().await {
            taken += usize::from(matches!(event, Event::Publish(..)));
        }
        drop(peer);
        taken
    });
    ended.unwrap();
    assert_eq!(taken, 20, "all of them were accepted before");
}

#[tokio::test(start_paused = true)]
async fn disconnect_waits_for_qos_0_on_data_streams() {
    disconnect_waits_for_qos_0(StreamPolicy::default()).await;
}

#[tokio::test(start_paused = true)]
async fn disconnect_waits_for_qos_0_on_the_control_stream() {
    disconnect_waits_for_qos_0(StreamPolicy::control()).await;
}

/// As above, on a path that carries nothing for longer than the lane waits for the end of its stream.
#[tokio::test(start_paused = true)]
async fn disconnect_waits_for_a_stream_that_its_lane_has_released() {
    let (mut listening, builder, device) = quic_with(QuicOptions::server());
    // PINGRESP would wait as well, and with a gate QUIC buffers little.
    let builder = builder.disconnect_timeout(KEEP).keep_alive(Duration::ZERO).gate(false);
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    device.change(|link| link.shaper = Some(Shaper { rate: 2.0, queue: 50 }));
    let mut waiting = client.enqueue(large("t", b'x', QoS::AtMostOnce)).await.unwrap();
    while timeout(Duration::ZERO, &mut waiting).await.is_err() {
        peer.run(MOMENT).await;
    }
    // QUIC buffers the rest and sends it slowly.
    device.change(|link| link.shaper = Some(Shaper { rate: 0.15, queue: 50 }));
    peer.run(70 * MOMENT).await;
    assert!(peer.pending().is_empty());
    let start = Instant::now();
    let (ended, taken) = join!(client.disconnect(), async {
        let taken = peer.take().await;
        while peer.event().await.is_some() {}
        drop(peer);
        taken.1
    });
    ended.unwrap();
    assert_eq!(taken, "x".repeat(16));
    assert!(start.elapsed() > 20 * MOMENT, "{:?}", start.elapsed());
}

/// The limit is the `disconnect_timeout` of the application.
#[tokio::test(start_paused = true)]
async fn disconnect_waits_no_longer_than_its_limit() {
    for policy in [StreamPolicy::default(), StreamPolicy::control()] {
        let (mut listening, builder, device) = quic_with(QuicOptions::server());
        let builder = builder.stream_policy(policy).disconnect_timeout(20 * MOMENT);
        let (mut peer, parts) = join!(listening.accept(), builder.connect());
        let (client, _messages) = parts.unwrap();
        device.change(|link| link.loss = 1.0);
        client.publish(Publication::to("t", "m").unwrap()).await.unwrap();
        let start = Instant::now();
        let ended = async {
            let _ = client.disconnect().await;
            start.elapsed()
        };
        let (time, ()) = join!(ended, peer.run(60 * MOMENT));
        assert!((20..30).contains(&time.as_secs()), "{time:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_application_does_not_delay_acknowledgements_on_data_streams() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.receive_queue(1).connect());
    let (client, mut messages) = parts.unwrap();
    peer.deliver("t", "not taken yet", QoS::AtMostOnce).await;
    peer.run(MOMENT).await;
    let publishing = timeout(MOMENT, client.publish(publication("t", "m")));
    let (result, _) = join!(publishing, async {
        peer.take().await;
        peer.run(MOMENT).await;
    });
    assert_eq!(result.expect("its acknowledgement is read").unwrap(), ReasonCode::Success);
    assert_eq!(messages.recv().await.unwrap().payload, "not taken yet");
}

#[tokio::test(start_paused = true)]
async fn a_connection_survives_another_port() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    publish(&client, publication("t", "before")).await;
    let stream = stream_of(&mut peer, "before").await;
    let before = peer.link.peer().address;
    let (moved, ()) = join!(client.rebind(), peer.run(MOMENT));
    moved.unwrap();
    publish(&client, publication("t", "after")).await;
    assert_eq!(stream_of(&mut peer, "after").await, stream);
    peer.run(MOMENT).await;
    assert_ne!(peer.link.peer().address, before);
}

/// [BQ-70]
#[tokio::test(start_paused = true)]
async fn a_large_message_survives_another_port_in_its_middle() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut listening, builder, device) = quic_with(QuicOptions::server());
        let (mut peer, parts) = join!(listening.accept(), builder.connect());
        let (client, _messages) = parts.unwrap();
        device.change(|link| link.shaper = Some(Shaper { rate: 100.0, queue: 50 }));
        let waiting = client.enqueue(large("t", b'x', qos)).await.unwrap();
        peer.run(MOMENT).await;
        assert_eq!(peer.opened, [StreamKey::bidi(1)], "it is on its way");
        let (moved, ()) = join!(client.rebind(), peer.run(MOMENT / 4));
        moved.unwrap();
        assert_eq!(stream_of(&mut peer, &"x".repeat(16)).await, StreamKey::bidi(1));
        if let (QoS::ExactlyOnce, Some(Event::Release(token))) = (qos, peer.event().await) {
            peer.persisted(token).await;
        }
        let (done, ()) = join!(timeout(MOMENT, waiting), peer.run(2 * MOMENT));
        assert_eq!(done.expect("an answer").unwrap(), ReasonCode::Success);
        assert!(!peer.pending().iter().any(|event| matches!(event, Event::Publish(..))), "{qos}");
        assert_eq!(peer.opened, [StreamKey::bidi(1)]);
    }
}

/// A partly sent QoS 0 message fails with its connection; QoS 1 and 2 arrive whole on the new one.
#[tokio::test(start_paused = true)]
async fn a_connection_ends_in_the_middle_of_a_large_message() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut listening, builder) = quic();
        let (mut peer, parts) = join!(listening.accept(), builder.session_expiry(KEEP).connect());
        let (client, _messages) = parts.unwrap();
        let stream = StreamKey::bidi(1);
        peer.ignore(stream);
        let message = Publication::to("t", vec![b'x'; 5 << 20]).unwrap().qos(qos);
        let waiting = client.enqueue(message).await.unwrap();
        peer.run(MOMENT).await;
        assert!(client.unwritten() > 0 && peer.opened == [stream], "a part of it is written");
        let (mut peer, _) = listening.accept_with(Some(peer.cut())).await;
        if qos == QoS::AtMostOnce {
            let (done, ()) = join!(timeout(MOMENT, waiting), peer.run(2 * MOMENT));
            assert!(matches!(done.expect("an answer"), Err(Error::ConnectionLost)));
        } else {
            assert_eq!(stream_of(&mut peer, &"x".repeat(16)).await, stream);
            if qos == QoS::ExactlyOnce {
                let Some(Event::Release(token)) = peer.event().await else { panic!("PUBREL") };
                peer.persisted(token).await;
            }
            let (done, ()) = join!(timeout(MOMENT, waiting), peer.run(2 * MOMENT));
            assert_eq!(done.expect("an answer").unwrap(), ReasonCode::Success);
        }
        assert!(!peer.pending().iter().any(|event| matches!(event, Event::Publish(..))), "{qos}");
        assert_eq!(client.unwritten(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn rebind_needs_quic() {
    let (mut listening, builder) = network();
    let (client, _messages) = builder.start().unwrap();
    assert!(matches!(client.rebind().await, Err(Error::Send(_))), "there is no connection yet");
    let mut peer = listening.accept().await;
    let (moved, ()) = join!(client.rebind(), peer.run(MOMENT));
    let error = moved.unwrap_err().to_string();
    assert!(error.contains("only QUIC"), "{error}");
}
