//! Retransmissions: a message goes to the stream of its first PUBLISH, unless the server has refused it.

use std::time::Duration;

use braid_client::{Error, Priority, Publication, QoS, ReasonCode};
use braid_proto::connection::{Event, ServerOptions};
use braid_proto::stream::StreamKey;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::Shaper;
use tokio::join;
use tokio::time::{Instant, timeout};

use super::server::{Peer, network, quic_with};

const KEEP: Duration = Duration::from_secs(3600);
const MOMENT: Duration = Duration::from_secs(1);
const LARGE: usize = 5 << 20;
const ALARM: Priority = Priority::new(60_000);

fn small(topic: &str, number: usize) -> Publication {
    let priority = Priority::new(if topic == "urgent" { 200 } else { 100 });
    Publication::to(topic, format!("{topic} {number}")).unwrap().qos(QoS::AtLeastOnce).priority(priority)
}

fn large(topic: &str, qos: QoS) -> Publication {
    Publication::to(topic, vec![b'x'; LARGE]).unwrap().qos(qos)
}

/// The next messages, acknowledged at once: stream and payload.
async fn take(peer: &mut Peer, count: usize) -> Vec<(StreamKey, String)> {
    let mut taken = Vec::new();
    for _ in 0..count {
        taken.push(peer.take().await);
    }
    taken
}

/// Streams of each of these payloads, in the order of arrival.
fn streams_of(taken: &[(StreamKey, String)], start: &str) -> Vec<StreamKey> {
    taken.iter().filter(|(_, payload)| payload.starts_with(start)).map(|(stream, _)| *stream).collect()
}

// -- Streams ---------------------------------------------------------------------------------------

/// [BQ-21], [MQTT-4.4.0-1], [MQTT-4.6.0-1]
#[tokio::test(start_paused = true)]
async fn a_retransmitted_large_message_delays_no_other() {
    let (mut listening, builder, device) = quic_with(QuicOptions::server());
    let builder = builder.session_expiry(KEEP);
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    client.try_publish(large("bulk", QoS::AtLeastOnce)).unwrap();
    let mut wanted = Vec::new();
    for number in 0..10 {
        for topic in ["plain", "urgent"] {
            client.try_publish(small(topic, number)).unwrap();
            wanted.push(format!("{topic} {number}"));
        }
    }
    // All of them arrive and stay unacknowledged.
    for _ in 0..21 {
        peer.publish().await;
    }
    let session = peer.cut();
    // Five megabytes take three quarters of a minute here.
    device.change(|link| link.shaper = Some(Shaper { rate: 100.0, queue: 50 }));
    // After the ten retransmissions.
    client.try_publish(small("plain", 10)).unwrap();
    wanted.push("plain 10".to_owned());
    let (mut peer, _) = listening.accept_with(Some(session)).await;
    let start = Instant::now();
    client
        .try_publish(Publication::to("alarm", "alarm").unwrap().qos(QoS::AtLeastOnce).priority(ALARM))
        .unwrap();
    let taken = take(&mut peer, 22).await;
    assert!(start.elapsed() < 2 * MOMENT, "{:?}", start.elapsed());
    assert_eq!(streams_of(&taken, "alarm").len(), 1);
    for topic in ["plain", "urgent"] {
        let of_topic = |all: &mut dyn Iterator<Item = &String>| -> Vec<String> {
            all.filter(|payload| payload.starts_with(topic)).cloned().collect()
        };
        assert_eq!(of_topic(&mut taken.iter().map(|(_, payload)| payload)), of_topic(&mut wanted.iter()));
        let mut streams = streams_of(&taken, topic);
        streams.dedup();
        assert!(streams.len() == 1 && !streams[0].is_control(), "{topic} on {streams:?}");
    }
    let large = peer.take().await;
    assert!(start.elapsed() > 20 * MOMENT, "it did not wait for its turn");
    assert!(!large.0.is_control() && streams_of(&taken, "").iter().all(|stream| *stream != large.0));
    peer.run(MOMENT).await;
    assert_eq!(peer.ended, [(large.0, None)], "a stream of its own again");
    assert!(peer.pending().iter().all(|event| !matches!(event, Event::Publish(..))), "each of them once");
}

#[tokio::test(start_paused = true)]
async fn retransmissions_on_one_stream_keep_the_order_of_first_sending() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.session_expiry(KEEP).connect());
    let (client, _messages) = parts.unwrap();
    let mut wanted = Vec::new();
    for number in 0..5 {
        for topic in ["plain", "urgent"] {
            client.try_publish(small(topic, number)).unwrap();
            peer.publish().await;
            wanted.push(format!("{topic} {number}"));
        }
    }
    let (mut peer, _) = listening.accept_with(Some(peer.cut())).await;
    let taken = take(&mut peer, 10).await;
    assert_eq!(taken.into_iter().map(|(_, payload)| payload).collect::<Vec<_>>(), wanted);
}

/// A server with a low Receive Maximum: retransmissions leave a part of it to urgent messages.
#[tokio::test(start_paused = true)]
async fn retransmissions_leave_room_for_an_alarm() {
    let (mut listening, builder, _) = quic_with(QuicOptions::server());
    let (mut peer, parts) = join!(listening.accept(), builder.session_expiry(KEEP).connect());
    let (client, _messages) = parts.unwrap();
    for number in 0..20 {
        client.try_publish(small("plain", number)).unwrap();
        peer.publish().await;
    }
    listening.options = ServerOptions { receive_maximum: 8, ..ServerOptions::default() };
    let (mut peer, _) = listening.accept_with(Some(peer.cut())).await;
    let mut tokens = Vec::new();
    for number in 0..7 {
        let (message, token) = peer.publish().await;
        assert_eq!(message.payload, format!("plain {number}"));
        tokens.push(token.unwrap());
    }
    peer.run(MOMENT).await;
    assert!(peer.pending().is_empty(), "one place is left");
    client
        .try_publish(Publication::to("alarm", "alarm").unwrap().qos(QoS::AtLeastOnce).priority(ALARM))
        .unwrap();
    assert_eq!(peer.take().await.1, "alarm");
    for token in tokens {
        peer.persisted(token).await;
    }
    for number in 7..20 {
        assert_eq!(peer.take().await.1, format!("plain {number}"));
    }
}

/// [BQ-42]
#[tokio::test(start_paused = true)]
async fn a_large_message_whose_stream_ends_gets_others_before_the_control_stream() {
    let (mut listening, builder, _) = quic_with(QuicOptions::server());
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let waiting = client.enqueue(large("bulk", QoS::ExactlyOnce)).await.unwrap();
    for number in 1..=5 {
        let stream = StreamKey::bidi(number);
        peer.ignore(stream);
        peer.run(MOMENT).await;
        assert_eq!(peer.opened.last(), Some(&stream));
        peer.abort(stream, ReasonCode::ServerBusy);
    }
    assert!(peer.take().await.0.is_control());
    let Some(Event::Release(token)) = peer.event().await else { panic!("PUBREL") };
    peer.persisted(token).await;
    let (done, ()) = join!(timeout(MOMENT, waiting), peer.run(MOMENT));
    assert_eq!(done.expect("PUBCOMP").unwrap(), ReasonCode::Success);
}

// -- Refused messages ------------------------------------------------------------------------------

const REFUSALS: [ReasonCode; 5] = [
    ReasonCode::PacketTooLarge,
    ReasonCode::QuotaExceeded,
    ReasonCode::PayloadFormatInvalid,
    ReasonCode::TopicNameInvalid,
    ReasonCode::QosNotSupported,
];

/// [BQ-34]
#[tokio::test(start_paused = true)]
async fn a_message_refused_with_its_stream_fails() {
    for (refusal, qos) in REFUSALS
        .into_iter()
        .flat_map(|refusal| [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce].map(|qos| (refusal, qos)))
    {
        let (mut listening, builder, _) = quic_with(QuicOptions::server());
        let (mut peer, parts) = join!(listening.accept(), builder.session_expiry(KEEP).connect());
        let (client, _messages) = parts.unwrap();
        let stream = StreamKey::bidi(1);
        peer.ignore(stream);
        let waiting = client.enqueue(large("bulk", qos)).await.unwrap();
        peer.run(MOMENT).await;
        assert_eq!(peer.opened, [stream]);
        peer.abort(stream, refusal);
        let (result, ()) = join!(timeout(MOMENT, waiting), peer.run(MOMENT));
        match result.expect("an answer") {
            Err(Error::PublishRefused(reason)) if qos > QoS::AtMostOnce => assert_eq!(reason, refusal),
            Err(Error::StreamEnded { code: Some(code) }) if qos == QoS::AtMostOnce => {
                assert_eq!(code, u64::from(refusal.value()));
            }
            other => panic!("{qos}: {other:?}"),
        }
        assert_eq!(client.unwritten(), 0);
        // The message is not retransmitted, and its lane goes on.
        let next = || Publication::to("bulk", vec![b'y'; 1 << 20]).unwrap().qos(qos);
        client.try_publish(next()).unwrap();
        assert_eq!(peer.take().await, (StreamKey::bidi(2), "y".repeat(16)), "{refusal} {qos}");
        peer.run(MOMENT).await;
        let (mut peer, _) = listening.accept_with(Some(peer.cut())).await;
        client.try_publish(next()).unwrap();
        assert_eq!(peer.take().await, (StreamKey::bidi(1), "y".repeat(16)));
        peer.run(MOMENT).await;
        assert!(peer.pending().iter().all(|event| !matches!(event, Event::Publish(..))));
    }
}

/// [MQTT-4.3.3-6]
#[tokio::test(start_paused = true)]
async fn a_message_with_pubrec_survives_the_reset_of_its_stream() {
    let (mut listening, builder, _) = quic_with(QuicOptions::server());
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    let waiting = client.enqueue(large("bulk", QoS::ExactlyOnce)).await.unwrap();
    let (stream, _) = peer.take().await;
    let Some(Event::Release(token)) = peer.event().await else { panic!("PUBREL") };
    peer.abort(stream, ReasonCode::QuotaExceeded);
    // Its PUBCOMP is lost with the stream: PUBREL comes again.
    peer.persisted(token).await;
    let (result, ()) = join!(timeout(MOMENT, waiting), peer.run(MOMENT));
    assert_eq!(result.expect("PUBCOMP").unwrap(), ReasonCode::Success);
}
