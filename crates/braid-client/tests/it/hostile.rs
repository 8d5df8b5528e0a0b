//! Servers that break the specification.

use std::future::poll_fn;
use std::io::IoSlice;
use std::time::Duration;

use braid_client::{
    Builder, ConnackProperties, ConnectionEvent, Error, ProtocolVersion, QoS, ReasonCode, Reconnect,
    Subscribe, TopicFilter,
};
use braid_proto::connection::Event;
use braid_proto::packet::{
    Connack, Disconnect, Packet, PacketId, PacketType, Publish, Suback, UserProperties,
};
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicName;
use bytes::BytesMut;
use tokio::join;

use super::server::{Listening, Peer, network};

/// Lists of codes that do not answer a request with two filters.
fn wrong_counts() -> [Vec<ReasonCode>; 3] {
    [0, 1, 3].map(|count| vec![ReasonCode::Success; count])
}

fn reconnecting() -> (Listening, Builder) {
    let (listening, builder) = network();
    let pause = Duration::from_secs(1);
    (listening, builder.reconnect(Reconnect::Backoff { initial: pause, maximum: pause }))
}

fn two_filters() -> Subscribe {
    Subscribe::new(["a", "b"].map(|filter| TopicFilter::parse(filter).unwrap()))
}

#[tokio::test(start_paused = true)]
async fn a_suback_with_another_number_of_codes_ends_the_connection() {
    for codes in wrong_counts() {
        let (mut listening, builder) = reconnecting();
        let (mut peer, parts) = join!(listening.accept(), builder.connect());
        let (client, _messages) = parts.unwrap();
        let (result, ()) = join!(client.subscribe(two_filters()), async {
            let subscribe = peer.subscribe().await;
            peer.suback(&subscribe, codes.clone()).await;
            assert!(peer.event().await.is_none(), "{codes:?}");
        });
        assert!(matches!(result, Err(Error::WrongAnswer { answer: PacketType::Suback })), "{result:?}");
        // Nothing of it counts as granted, so nothing is restored.
        let mut peer = listening.accept().await;
        peer.run(Duration::from_secs(10)).await;
        let pending = peer.pending();
        assert!(!pending.iter().any(|event| matches!(event, Event::Subscribe(..))), "{pending:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_suback_with_another_number_of_codes_after_a_reconnect_ends_the_connection_and_no_subscription() {
    for codes in wrong_counts() {
        let (mut listening, builder) = reconnecting();
        let (mut peer, parts) = join!(listening.accept(), builder.connect());
        let (client, _messages) = parts.unwrap();
        join!(client.subscribe(two_filters()), peer.grant_next()).0.unwrap();
        drop(peer);
        let mut peer = listening.accept().await;
        let subscribe = peer.subscribe().await;
        assert_eq!(subscribe.entries.len(), 2);
        peer.suback(&subscribe, codes.clone()).await;
        assert!(peer.event().await.is_none(), "{codes:?}");
        // Both are restored with the next connection.
        let mut peer = listening.accept().await;
        assert_eq!(peer.grant_next().await.1, ["a", "b"]);
        peer.run(Duration::from_secs(10)).await;
        assert!(peer.pending().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn an_unsuback_with_another_number_of_codes_ends_the_connection() {
    for codes in wrong_counts() {
        let (mut listening, builder) = reconnecting();
        let (mut peer, parts) = join!(listening.accept(), builder.connect());
        let (client, _messages) = parts.unwrap();
        join!(client.subscribe(two_filters()), peer.grant_next()).0.unwrap();
        let (result, ()) = join!(client.unsubscribe(["a", "b"]), async {
            let (on, unsubscribe) = peer.unsubscribe_on().await;
            peer.unsuback(on, &unsubscribe, codes.clone()).await;
            assert!(peer.event().await.is_none(), "{codes:?}");
        });
        assert!(matches!(result, Err(Error::WrongAnswer { answer: PacketType::Unsuback })), "{result:?}");
        // They may still be there.
        let mut peer = listening.accept().await;
        assert_eq!(peer.grant_next().await.1, ["a", "b"]);
    }
}

/// Packets that a server may send, from CONNACK on.
fn conversation() -> Vec<Packet> {
    let id = PacketId::new(1).unwrap();
    let publish = |qos, packet_id| Publish {
        dup: false,
        qos,
        retain: false,
        topic: Some(TopicName::parse("t").unwrap()),
        packet_id,
        topic_alias: None,
        subscription_ids: Vec::new(),
        properties: None,
        payload: "payload".into(),
        spooled: false,
    };
    let connack = Connack {
        session_present: false,
        reason: ReasonCode::Success,
        properties: ConnackProperties { receive_maximum: Some(9), ..ConnackProperties::default() },
    };
    let suback = Suback {
        packet_id: id,
        codes: vec![ReasonCode::Success],
        reason_string: None,
        user: UserProperties::new(),
    };
    vec![
        Packet::Connack(Box::new(connack)),
        Packet::Suback(Box::new(suback)),
        Packet::Publish(publish(QoS::AtMostOnce, None)),
        Packet::Publish(publish(QoS::AtLeastOnce, Some(id))),
        Packet::Publish(publish(QoS::ExactlyOnce, Some(id))),
        Packet::Pingresp,
        Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success))),
    ]
}

/// Bytes of a server: noise before or after CONNACK, or a conversation with wrong bits.
fn hostile_bytes(rng: &mut fastrand::Rng) -> Vec<u8> {
    let packets = conversation();
    let mut bytes = BytesMut::new();
    let kind = rng.u8(0..3);
    let count = [0, 1, packets.len()][usize::from(kind)];
    packets[..count].iter().for_each(|packet| packet.encode(ProtocolVersion::V5, &mut bytes));
    let mut bytes = bytes.to_vec();
    if kind == 2 {
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(0..bytes.len());
            bytes[at] ^= 1 << rng.u8(0..8);
        }
    } else {
        let count = rng.usize(1..500);
        bytes.extend(std::iter::repeat_with(|| rng.u8(..)).take(count));
    }
    bytes
}

async fn write(peer: &mut Peer, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let slices = [IoSlice::new(bytes)];
        let write = poll_fn(|cx| {
            let written = peer.link.poll_write(cx, StreamKey::CONTROL, &slices);
            let _ = peer.link.poll_flush(cx);
            written
        });
        match write.await {
            Ok(written) => bytes = &bytes[written..],
            Err(_) => return, // The client has gone.
        }
    }
}

/// The client ends with an error, which it tells: a panic of its task would end it without.
#[tokio::test(start_paused = true)]
async fn any_bytes_of_a_server_end_the_client_with_an_error() {
    let mut connected = 0;
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut listening, builder) = network();
        let builder = builder.reconnect(Reconnect::Never);
        let (client, mut messages) = builder.start().unwrap();
        let mut events = client.events();
        let mut peer = listening.incoming().await;
        write(&mut peer, &hostile_bytes(&mut rng)).await;
        drop(peer);
        while messages.recv().await.is_some() {}
        let mut last = None;
        while let Some(event) = events.recv().await {
            connected += u32::from(matches!(event, ConnectionEvent::Connected { .. }));
            last = Some(event);
        }
        assert!(
            matches!(last, Some(ConnectionEvent::Disconnected { retry_in: None, .. })),
            "{seed}: {last:?}"
        );
        assert!(client.subscribe(two_filters()).await.is_err(), "{seed}");
    }
    assert!(connected > 200, "{connected} got beyond CONNACK");
}
