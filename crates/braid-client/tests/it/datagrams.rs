//! Messages in datagrams of QUIC.

use std::time::Duration;

use braid_client::{Client, Messages, Publication, QoS};
use braid_transport::quic::QuicOptions;
use tokio::join;

use super::server::{Peer, quic, quic_with};

fn unreliable(payload: impl Into<bytes::Bytes>) -> Publication {
    Publication::to("t", payload).unwrap().unreliable()
}

async fn permitted() -> (Peer, Client, Messages, braid_transport::sim::Host) {
    let options = QuicOptions { datagrams: true, ..QuicOptions::server() };
    let (mut listening, builder, host) = quic_with(options);
    let (peer, parts) = join!(listening.accept(), builder.datagrams(true).gate(false).connect());
    let (client, messages) = parts.unwrap();
    (peer, client, messages, host)
}

/// [BQ-83]
#[tokio::test(start_paused = true)]
async fn unreliable_messages_go_in_datagrams_and_others_do_not() {
    let (mut peer, client, _messages, _) = permitted().await;
    client.publish(unreliable("1")).await.unwrap();
    assert_eq!(peer.take().await.1, "1");
    assert_eq!((peer.datagrams, client.datagrams().sent), (1, 1));
    client.publish(Publication::to("t", "2").unwrap()).await.unwrap();
    let safe = client.enqueue(unreliable("3").qos(QoS::AtLeastOnce)).await.unwrap();
    assert_eq!(peer.take().await.1, "2");
    assert_eq!(peer.take().await.1, "3");
    drop(safe);
    let large = client.enqueue(unreliable(vec![b'x'; 3000])).await.unwrap();
    assert!(peer.take().await.1.starts_with('x'));
    large.await.unwrap();
    let retained = client.enqueue(unreliable("4").retain(true)).await.unwrap();
    assert_eq!(peer.take().await.1, "4");
    retained.await.unwrap();
    let counts = client.datagrams();
    assert_eq!((peer.datagrams, counts.sent, counts.streamed, counts.dropped), (1, 1, 3, 0));
}

/// Its properties are not counted where the message is chosen for a datagram, and its lane has no stream yet. [BQ-83]
#[tokio::test(start_paused = true)]
async fn a_message_that_fits_into_no_datagram_delays_none_of_its_lane() {
    let (mut peer, client, _messages, _) = permitted().await;
    let wide = unreliable(vec![b'x'; 1000]).user_property("unit", "m".repeat(400)).stream(3);
    let wide = client.enqueue(wide).await.unwrap();
    let next = client.enqueue(Publication::to("t", "2").unwrap().stream(3)).await.unwrap();
    assert!(peer.take().await.1.starts_with('x'));
    assert_eq!(peer.take().await.1, "2");
    wide.await.unwrap();
    next.await.unwrap();
    assert_eq!((peer.datagrams, client.datagrams().streamed), (0, 1));
}

/// [BQ-81]
#[tokio::test(start_paused = true)]
async fn a_server_without_the_extension_gets_none() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.datagrams(true).connect());
    let (client, _messages) = parts.unwrap();
    let sent = client.enqueue(unreliable("1")).await.unwrap();
    assert_eq!(peer.take().await.1, "1");
    sent.await.unwrap();
    assert_eq!((peer.datagrams, client.datagrams().streamed), (0, 1));
}

/// [BQ-85]
#[tokio::test(start_paused = true)]
async fn datagrams_of_the_server_are_messages_or_have_no_effect() {
    let (mut peer, client, mut messages, _) = permitted().await;
    for datagram in [&b"\x30\x05\x00"[..], b"\xD0\x00", b"\x31\x05\x00\x01t\x00m"] {
        peer.send_datagram(datagram).await;
    }
    peer.send_datagram(b"\x30\x05\x00\x01t\x00m").await;
    let received = messages.recv().await.unwrap();
    assert_eq!(&received.message.payload[..], b"m");
    let counts = client.datagrams();
    assert_eq!((counts.received, counts.refused), (4, 3));
}

/// [BQ-84]: one message is lost, the next ones are not late.
#[tokio::test(start_paused = true)]
async fn losses_delay_nothing() {
    let (mut peer, client, _messages, host) = permitted().await;
    host.change(|link| link.loss = 0.3);
    for number in 0..200 {
        client.publish(unreliable(number.to_string())).await.unwrap();
        peer.run(Duration::from_millis(20)).await;
    }
    let mut arrived = Vec::new();
    for event in peer.pending() {
        let braid_proto::connection::Event::Publish(message, None) = event else { panic!("{event:?}") };
        arrived.push(String::from_utf8(message.payload.to_vec()).unwrap().parse::<u32>().unwrap());
    }
    assert!((110..170).contains(&arrived.len()), "{}", arrived.len());
    assert!(arrived.is_sorted_by(|a, b| a < b), "in order where nothing reorders, and none twice");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_has_sent_its_datagrams() {
    let (mut peer, client, messages, _) = permitted().await;
    for number in 0..50 {
        client.publish(unreliable(vec![b'0' + number; 1000])).await.unwrap();
    }
    drop(messages);
    let closing = async { client.disconnect().await.unwrap() };
    join!(closing, peer.run(Duration::from_secs(10)));
    let messages = peer.pending().into_iter();
    let published = messages.filter(|event| matches!(event, braid_proto::connection::Event::Publish(..)));
    assert_eq!(published.count(), 50);
}
