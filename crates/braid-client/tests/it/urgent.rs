//! Urgent messages never wait for bulk: not for queue room, not for their turn, not for an acknowledgement, not for a
//! stream.

use std::time::Duration;

use braid_client::{Builder, Client, Error, Priority, Publication, QoS, ReasonCode, StreamPolicy};
use braid_proto::connection::ServerOptions;
use braid_proto::stream::StreamKey;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::Shaper;
use tokio::join;
use tokio::time::{Instant, interval, timeout};

use super::server::{Listening, network, quic, quic_with};

const MOMENT: Duration = Duration::from_secs(1);
const ALARM: Priority = Priority::new(60_000);

fn bulk(payload: impl Into<bytes::Bytes>) -> Publication {
    Publication::to("bulk", payload).unwrap().qos(QoS::AtLeastOnce)
}

fn alarm() -> Publication {
    Publication::to("alarm", "alarm").unwrap().qos(QoS::AtLeastOnce).priority(ALARM)
}

/// On one stream and on many.
fn networks() -> [(Listening, Builder); 2] {
    [network(), quic()]
}

// -- Room ------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn bulk_takes_no_queue_room_of_an_alarm() {
    let (mut listening, builder) = network();
    let (client, _messages) = builder.send_queue(2).start().unwrap();
    // The server does not accept the connection: no request leaves the queue.
    for number in ["1", "2"] {
        client.try_publish(bulk(number)).unwrap();
    }
    assert!(matches!(client.try_publish(bulk("3")), Err(Error::QueueFull)));
    client.try_publish(alarm()).unwrap();
    client.try_publish(alarm()).unwrap();
    assert!(matches!(client.try_publish(alarm()), Err(Error::QueueFull)), "it has a limit of its own");
    let waiting = client.enqueue(bulk("4"));
    tokio::pin!(waiting);
    assert!(timeout(MOMENT, &mut waiting).await.is_err(), "bulk waits for bulk");
    let mut peer = listening.accept().await;
    for wanted in ["alarm", "alarm", "1", "2"] {
        assert_eq!(peer.take().await.1, wanted);
    }
    let (last, taken) = join!(waiting, peer.take());
    drop(last.unwrap());
    assert_eq!(taken.1, "4");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_for_room_takes_none() {
    let (mut listening, builder) = network();
    let (client, _messages) = builder.send_queue(1).start().unwrap();
    client.try_publish(bulk("1")).unwrap();
    for _ in 0..3 {
        assert!(timeout(MOMENT, client.enqueue(bulk("never"))).await.is_err());
    }
    let mut peer = listening.accept().await;
    assert_eq!(peer.take().await.1, "1");
    peer.run(MOMENT).await;
    client.try_publish(bulk("2")).unwrap();
    assert_eq!(peer.take().await.1, "2");
}

// -- Turns -----------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn queued_messages_are_sent_by_priority_and_in_order_within_one() {
    for (mut listening, builder) in networks() {
        let (client, _messages) = builder.start().unwrap();
        for number in 0..6_u16 {
            let publication = bulk(number.to_string()).priority(Priority::new(number % 3));
            client.try_publish(publication).unwrap();
        }
        let mut peer = listening.accept().await;
        let mut taken = Vec::new();
        for _ in 0..6 {
            taken.push(peer.take().await.1);
        }
        assert_eq!(taken, ["2", "5", "1", "4", "0", "3"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_alarm_passes_a_queue_full_of_bulk_on_one_stream() {
    let (mut listening, builder) = network();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    for _ in 0..200 {
        client.try_publish(bulk(vec![b'x'; 10_000]).qos(QoS::AtMostOnce)).unwrap();
    }
    // The link and the outbox are full; the server does not read.
    assert!(timeout(MOMENT, std::future::pending::<()>()).await.is_err());
    client.try_publish(alarm().qos(QoS::AtMostOnce)).unwrap();
    let mut before = 0;
    while peer.take().await.1 != "alarm" {
        before += 1;
    }
    // 64 KiB of the link and 32 KiB of the outbox were sent before.
    assert!((5..=12).contains(&before), "{before} messages came before the alarm");
}

// -- Acknowledgements ------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn bulk_that_waits_for_acknowledgements_does_not_delay_an_alarm() {
    for (mut listening, builder) in networks() {
        listening.options = ServerOptions { receive_maximum: 8, ..ServerOptions::default() };
        let (mut peer, parts) = join!(listening.accept(), builder.connect());
        let (client, _messages) = parts.unwrap();
        for number in 0..20 {
            client.try_publish(bulk(number.to_string())).unwrap();
        }
        let mut tokens = Vec::new();
        while let Ok((message, token)) = timeout(MOMENT, peer.publish()).await {
            assert_eq!(message.payload, tokens.len().to_string());
            tokens.push(token.unwrap());
        }
        assert_eq!(tokens.len(), 7, "one place is left");
        let waiting = client.enqueue(alarm()).await.unwrap();
        let (_, payload) = peer.take().await;
        assert_eq!(payload, "alarm");
        let (done, ()) = join!(waiting, peer.run(MOMENT));
        assert_eq!(done.unwrap(), ReasonCode::Success);
        // Bulk goes on where it stopped.
        for token in tokens {
            peer.persisted(token).await;
        }
        assert_eq!(peer.take().await.1, "7");
    }
}

// -- Streams ---------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_read_blocks_only_itself() {
    let (mut listening, builder) = quic();
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    client.try_publish(bulk("first")).unwrap();
    let (stuck, _) = peer.take().await;
    peer.ignore(stuck);
    for _ in 0..500 {
        client.try_publish(bulk(vec![b'x'; 10_000])).unwrap();
    }
    peer.run(MOMENT).await;
    let start = Instant::now();
    client.try_publish(alarm()).unwrap();
    let (stream, payload) = peer.take().await;
    assert!(payload == "alarm" && stream != stuck);
    assert!(start.elapsed() < Duration::from_millis(10), "{:?}", start.elapsed());
    // Bulk waits as messages in the queue: QUIC has a window of it, the outbox a little more.
    assert!(client.unwritten() < 64 * 1024, "{}", client.unwritten());
}

/// Latency of the slowest of 100 alarms, one every 100 ms, beside bulk over a slow link.
async fn slowest_alarm(policy: StreamPolicy) -> Duration {
    let (mut listening, builder, device) = quic_with(QuicOptions::server());
    device.change(|link| {
        link.latency = Duration::from_millis(10);
        link.shaper = Some(Shaper { rate: 100.0, queue: 50 });
    });
    let builder = builder.stream_policy(policy).link_rate(90_000).keep_alive(Duration::ZERO);
    let (mut peer, parts) = join!(listening.accept(), builder.connect());
    let (client, _messages) = parts.unwrap();
    for number in 0..1000 {
        // Ten priorities: with the default policy ten streams.
        let bulk = bulk(vec![b'x'; 10_000]).qos(QoS::AtMostOnce).priority(Priority::new(number % 10));
        client.try_publish(bulk).unwrap();
    }
    let reading = tokio::spawn(async move {
        let mut slowest = Duration::ZERO;
        for _ in 0..100 {
            let (message, _) = loop {
                let (message, token) = peer.publish().await;
                if message.topic.as_str() == "alarm" {
                    break (message, token);
                }
            };
            let sent: u64 = String::from_utf8_lossy(&message.payload).parse().unwrap();
            slowest = slowest.max(BEGIN.with(|begin| begin.elapsed()) - Duration::from_millis(sent));
        }
        slowest
    });
    let mut ticks = interval(Duration::from_millis(100));
    for _ in 0..100 {
        ticks.tick().await;
        let now = BEGIN.with(|begin| begin.elapsed()).as_millis().to_string();
        client.try_publish(Publication::to("alarm", now).unwrap().priority(ALARM)).unwrap();
    }
    reading.await.unwrap()
}

thread_local! {
    static BEGIN: Instant = Instant::now();
}

#[tokio::test(start_paused = true)]
async fn alarms_are_on_time_over_a_slow_link_and_are_not_without_priorities() {
    let with = slowest_alarm(StreamPolicy::default()).await;
    assert!(with < Duration::from_millis(100), "the slowest took {with:?}");
    let without = slowest_alarm(StreamPolicy::control()).await;
    assert!(without > Duration::from_millis(500), "the slowest took {without:?} on one stream");
}

#[tokio::test(start_paused = true)]
async fn a_large_message_does_not_delay_small_ones() {
    let (mut listening, builder, device) = quic_with(QuicOptions::server());
    device.change(|link| link.shaper = Some(Shaper { rate: 100.0, queue: 50 }));
    let (mut peer, parts) = join!(listening.accept(), builder.link_rate(90_000).connect());
    let (client, _messages) = parts.unwrap();
    publish_large(&client);
    peer.run(MOMENT).await;
    let start = Instant::now();
    client.try_publish(bulk("small")).unwrap();
    let (stream, payload) = peer.take().await;
    assert_eq!((stream, &*payload), (StreamKey::bidi(2), "small"));
    assert!(start.elapsed() < Duration::from_millis(250), "{:?}", start.elapsed());
}

fn publish_large(client: &Client) {
    client.try_publish(bulk(vec![0; 2 << 20])).unwrap();
}
