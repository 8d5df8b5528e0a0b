//! Large messages over links that break: they go on where they were, and arrive once.

use std::sync::Arc;
use std::time::Duration;

use braid_client::{Client, ClientTlsOptions, ConnectionEvent, Publication, QoS, Reconnect, Transport};
use braid_proto::decoder::{PartialMessages, Spool};
use braid_proto::packet::{AckKind, Connect, Packet, RESUME_PROPERTY};
use braid_proto::reason::ReasonCode;
use braid_store::spool::{FileSpool, SpoolOptions};
use braid_transport::sim::{Direction, Host, Shaper};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::support::{
    self, QuicBroker, Relay, TestBroker, bytes, lasting, publish_packet, quiet, settle, wait,
};

const SIZE: usize = 20_000_000;
/// Bytes per second of the links, about.
const RATE: usize = 400_000;
fn spool() -> (Arc<FileSpool>, TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SpoolOptions { threshold: 1 << 20, bytes: 1 << 30, keep_free: 0 };
    (Arc::new(FileSpool::open(directory.path(), options).expect("the system allows it")), directory)
}

fn builder(url: &str, resumes: bool) -> braid_client::Builder {
    let second = Duration::from_secs(1);
    Client::builder(url)
        .client_id("device")
        .session_expiry(Duration::from_secs(3600))
        .keep_alive(Duration::from_secs(5))
        .reconnect(Reconnect::Backoff { initial: second, maximum: second })
        .tls(ClientTlsOptions { insecure: true, ..ClientTlsOptions::default() })
        .resume_large(resumes)
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at / 253) ^ (at / 65_537)).to_le_bytes()[0]).collect()
}

fn large(len: usize) -> Publication {
    Publication::to("large", payload(len)).expect("a topic").qos(QoS::ExactlyOnce)
}

/// Cuts what `cut` cuts after `up`, and restores it after `down`, for ever.
async fn breaking(cut: impl Fn(bool), up: Duration, down: Duration) {
    loop {
        wait(up).await;
        cut(true);
        wait(down).await;
        cut(false);
    }
}

/// Publishes the large message over a link that breaks, at most for `limit`. True: it is acknowledged.
async fn publish(client: &Client, cuts: impl Future<Output = ()>, limit: Duration) -> bool {
    tokio::select! {
        result = timeout(limit, client.publish(large(SIZE))) => {
            matches!(result, Ok(Ok(reason)) if reason == ReasonCode::Success)
        }
        () = cuts => false,
    }
}

/// The link in memory stands for TLS: one stream. [BQ-96], [BQ-97], [BQ-98]
#[tokio::test(start_paused = true)]
async fn a_message_over_tls_goes_on_where_it_was_cut() {
    for resumes in [true, false] {
        let (spool, _directory) = spool();
        let broker = TestBroker::start_with_spool(quiet(), spool.clone());
        let mut subscriber = broker.v5("subscriber").await;
        subscriber.subscribe("large", QoS::ExactlyOnce).await;
        let relay = Relay::start(broker.connector.clone(), RATE);
        let builder = builder("mqtt://unused", resumes).in_memory(relay.connector.clone());
        let (client, _messages) = builder.connect().await.expect("the broker is there");
        // A part of 6 MB each.
        let cut = |is_cut: bool| {
            if is_cut {
                relay.cut();
            }
        };
        let cuts = breaking(cut, Duration::from_secs(15), Duration::ZERO);
        let is_done = publish(&client, cuts, Duration::from_secs(120)).await;
        assert_eq!(is_done, resumes, "{} bytes", relay.sent());
        if resumes {
            assert!(relay.sent() <= SIZE * 12 / 10, "{} bytes", relay.sent());
            let message = subscriber.take_many(1).await.remove(0);
            assert!(message.payload == payload(SIZE));
            subscriber.expect_silence().await;
        } else {
            assert!(relay.sent() > 3 * SIZE / 2, "{} bytes", relay.sent());
        }
    }
}

fn up(device: &Host) -> usize {
    usize::try_from(device.counters(Direction::Up).bytes).expect("few")
}

fn narrow(device: &Host) {
    device.change_one(Direction::Up, |link| link.shaper = Some(Shaper { rate: 300.0, queue: 50 }));
    device.change(|link| link.latency = Duration::from_millis(20));
}

/// A broker over QUIC, a subscriber of the large message, and a device behind a narrow link. The directory of the spool
/// lives with them.
async fn quic() -> (QuicBroker, support::Client, Host, TempDir) {
    let (spool, directory) = spool();
    let broker = QuicBroker::start_with_spool(spool);
    let mut subscriber = broker.memory.v5("subscriber").await;
    subscriber.subscribe("large", QoS::ExactlyOnce).await;
    let device = broker.host("device");
    narrow(&device);
    (broker, subscriber, device, directory)
}

/// Each message is on a stream of its own. [BQ-96], [BQ-97], [BQ-98]
#[tokio::test(start_paused = true)]
async fn a_message_over_quic_goes_on_where_it_was_cut() {
    for resumes in [true, false] {
        let (broker, mut subscriber, device, _directory) = quic().await;
        let builder = builder("quic://localhost", resumes).in_simulation(device.clone(), broker.address);
        let (client, _messages) = builder.connect().await.expect("the broker is there");
        // Long enough for both ends to give the connection up.
        let cut = |is_cut: bool| device.change(|link| link.cut = is_cut);
        let cuts = breaking(cut, Duration::from_secs(30), Duration::from_secs(90));
        let is_done = publish(&client, cuts, Duration::from_secs(700)).await;
        assert_eq!(is_done, resumes, "{} bytes", up(&device));
        if resumes {
            assert!(up(&device) <= SIZE * 12 / 10, "{} bytes", up(&device));
            let message = subscriber.take_many(1).await.remove(0);
            assert!(message.payload == payload(SIZE));
            subscriber.expect_silence().await;
        } else {
            assert!(up(&device) > 3 * SIZE / 2, "{} bytes", up(&device));
        }
    }
}

/// [BQ-98]
#[tokio::test(start_paused = true)]
async fn a_message_goes_on_over_another_transport() {
    const LEN: usize = 4_000_000;
    for first in [Transport::Quic, Transport::Mem] {
        let (broker, mut subscriber, device, _directory) = quic().await;
        let relay = Relay::start(broker.memory.connector.clone(), RATE);
        let is_blocked = first == Transport::Mem;
        device.change(|link| link.cut = is_blocked);
        let builder = builder("auto://localhost", true)
            .in_simulation(device.clone(), broker.address)
            .in_memory(relay.connector.clone());
        let (client, _messages) = builder.connect().await.expect("the broker is there");
        let mut events = client.events();
        let acknowledged = client.enqueue(large(LEN)).await.expect("the queue has room");
        wait(Duration::from_secs(5)).await;
        device.change(|link| link.cut = false);
        client.change_transport().await.expect("there is another");
        assert!(matches!(acknowledged.await, Ok(ReasonCode::Success)));
        let mut over = Vec::new();
        while let Ok(Some(event)) = timeout(Duration::ZERO, events.recv()).await {
            if let ConnectionEvent::Connected { transport, .. } = event {
                over.push(transport);
            }
        }
        assert!(matches!(over[..], [before, after] if before == first && after != first), "{over:?}");
        let (quic, memory) = (up(&device), relay.sent());
        assert!(quic + memory <= LEN * 12 / 10, "{quic} and {memory} bytes, {first} first");
        assert!(quic.min(memory) >= LEN / 5, "{quic} and {memory} bytes, {first} first");
        assert!(subscriber.take_many(1).await[0].payload == payload(LEN));
        subscriber.expect_silence().await;
    }
}

fn resuming() -> Connect {
    let mut connect = lasting("device");
    connect.properties.session_expiry = Some(36_000);
    connect.properties.user.push(RESUME_PROPERTY, "1");
    connect
}

/// [BQ-96], [BQ-97], [BQ-99]
#[tokio::test(start_paused = true)]
async fn a_part_lives_for_an_hour_and_a_lie_about_it_gets_a_reason() {
    const NONE: ReasonCode = ReasonCode::NoMatchingSubscribers;
    let (spool, _directory) = spool();
    let broker = TestBroker::start_with_spool(quiet(), spool.clone());
    let whole = publish_packet("large", payload(3 << 20), QoS::AtLeastOnce, 5);
    let mut device = broker.connect(resuming()).await;
    device.send_bytes(&bytes(&whole)[..2 << 20]).await;
    settle().await;
    device.vanish().await;
    assert!(spool.used() > 1 << 20);
    let mut device = broker.connect(resuming()).await;
    let user = &device.connack().properties.user;
    let listed: Vec<_> = user.iter().filter(|(name, _)| *name == RESUME_PROPERTY).collect();
    assert!(matches!(listed[..], [(_, value)] if value.starts_with("5:2097")), "{listed:?}");
    // Not mentioned: it waits for the next connection, but not for ever.
    device.publish("small", "1", QoS::AtLeastOnce).await;
    device.vanish().await;
    wait(PartialMessages::KEPT_FOR - Duration::from_secs(60)).await;
    assert!(spool.used() > 1 << 20);
    wait(Duration::from_secs(61)).await;
    assert_eq!(spool.used(), 0);
    let Packet::Publish(mut lie) = publish_packet("large", payload(3 << 20), QoS::AtLeastOnce, 5) else {
        panic!("PUBLISH");
    };
    lie.dup = true;
    lie.properties.get_or_insert_default().user.push("braid-offset", "2097140");
    // Without a part in CONNACK the property is one like any other.
    let mut device = broker.connect(resuming()).await;
    device.send(Packet::Publish(lie.clone())).await;
    assert_eq!(device.expect_ack(AckKind::Puback).await.reason, NONE);
    device.send_bytes(&bytes(&whole)[..2 << 20]).await;
    settle().await;
    device.vanish().await;
    let mut device = broker.connect(resuming()).await;
    device.send(Packet::Publish(lie)).await;
    let ack = device.expect_ack(AckKind::Puback).await;
    assert_eq!(ack.reason, ReasonCode::ImplementationSpecificError);
    assert!(ack.properties.is_some_and(|properties| properties.reason_string.is_some()));
    device.send(whole).await;
    assert_eq!(device.expect_ack(AckKind::Puback).await.reason, NONE);
    settle().await;
    assert_eq!(spool.used(), 0);
}
