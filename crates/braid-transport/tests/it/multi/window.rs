//! Bytes that QUIC takes ahead of those it can send.

use std::sync::atomic::{AtomicUsize, Ordering};

use braid_transport::quic::Congestion;
use braid_transport::sim::{Conditions, Direction, Policer, Shaper};
use noq::VarInt;
use noq::congestion::CubicConfig;
use tokio::time::Instant;

use super::client::raw_server;
use super::*;

use crate::noq_peer;

/// A client that takes whatever comes.
fn thirsty() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(64 << 20)).receive_window(VarInt::MAX);
    transport
}

/// Congestion control that follows its window alone, without a gate.
fn cubic() -> QuicOptions {
    QuicOptions { congestion: Congestion::Cubic, gate: false, ..QuicOptions::server() }
}

/// Takes `length` bytes; when the last came.
async fn swallow(mut recv: RecvStream, length: usize) -> Instant {
    let (mut buffer, mut total) = (vec![0; 64 * 1024], 0);
    while total < length {
        total += recv.read(&mut buffer).await.expect("read").expect("open");
    }
    Instant::now()
}

/// Adds what comes, also what comes behind a gap, until the stream ends.
async fn count_bytes(recv: RecvStream, count: Arc<AtomicUsize>) {
    let mut recv = recv.into_unordered();
    while let Ok(Some(chunk)) = recv.read_chunk(64 * 1024).await {
        count.fetch_add(chunk.bytes.len(), Ordering::Relaxed);
    }
}

/// Puts a device behind such a link; the way up is as long, and otherwise perfect.
fn impair(device: &Host, conditions: &Conditions) {
    device.change_one(Direction::Up, |link| *link = Conditions::delayed(conditions.latency));
    device.change_one(Direction::Down, |link| *link = conditions.clone());
}

/// Time of the link for `length` bytes.
async fn ours(conditions: &Conditions, length: usize) -> Duration {
    let mut scene = Scene::between(cubic(), thirsty()).await;
    let (key, _send, recv) = scene.open().await;
    impair(&scene.device, conditions);
    let start = Instant::now();
    let received = tokio::spawn(swallow(recv, length));
    write(&mut scene.server, key, &vec![7; length]).await;
    received.await.expect("join") - start
}

/// Time of the QUIC library alone, with 64 MiB ahead of the bytes that it can send.
async fn theirs(conditions: &Conditions, length: usize) -> Duration {
    let (pki, network) = (Pki::new(), Network::new(7));
    let mut transport = TransportConfig::default();
    transport.send_window(64 << 20).congestion_controller_factory(Arc::new(CubicConfig::default()));
    let server = noq_peer::endpoint(&network.host("server"), Some(raw_server(&pki, transport)));
    let device = network.host("device");
    let endpoint = noq_peer::endpoint(&device, None);
    let mut config = raw_config(&pki, "mqtt");
    config.transport_config(Arc::new(thirsty()));
    let address = server.local_addr().expect("address");
    let connecting = endpoint.connect_with(config, address, "localhost").expect("connect");
    let accept = async { server.accept().await.expect("incoming").await.expect("handshake") };
    let (client, server) = tokio::join!(connecting, accept);
    let client = client.expect("connect");
    let (mut send, recv) = client.open_bi().await.expect("open");
    send.write_all(b"!").await.expect("write");
    let (mut send, _recv) = server.accept_bi().await.expect("accept");
    wait(A_WHILE).await;
    impair(&device, conditions);
    let start = Instant::now();
    let received = tokio::spawn(swallow(recv, length));
    send.write_all(&vec![7; length]).await.expect("write");
    received.await.expect("join") - start
}

#[tokio::test(start_paused = true)]
async fn bulk_on_a_long_path_is_as_fast_as_with_everything_in_quic() {
    let latency = Duration::from_millis(25);
    for shaper in [None, Some(Shaper { rate: 8000.0, queue: 4000 })] {
        let conditions = Conditions { shaper, ..Conditions::delayed(latency) };
        let (ours, theirs) = (ours(&conditions, 10 << 20).await, theirs(&conditions, 10 << 20).await);
        assert!(ours.mul_f64(0.9) <= theirs, "{ours:?} instead of {theirs:?} with {shaper:?}");
    }
}

/// Offers a client behind such a link whatever is taken, for ten seconds. How many bytes were ahead of it at most, and
/// how many it was sent.
async fn press(options: QuicOptions, down: Conditions) -> (usize, usize) {
    let mut scene = Scene::between(options, thirsty()).await;
    let (key, _send, recv) = scene.open().await;
    scene.device.change_one(Direction::Down, |link| *link = down);
    let delivered = Arc::new(AtomicUsize::new(0));
    tokio::spawn(count_bytes(recv, Arc::clone(&delivered)));
    let (mut accepted, mut ahead) = (0, 0);
    for _ in 0..1000 {
        accepted += fill(&mut scene.server, key);
        ahead = ahead.max(accepted - delivered.load(Ordering::Relaxed));
        wait(Duration::from_millis(10)).await;
    }
    (ahead, delivered.load(Ordering::Relaxed))
}

// [BQ-56]
#[tokio::test(start_paused = true)]
async fn a_peer_with_huge_windows_holds_little_of_what_cannot_be_sent_yet() {
    let shaper = Some(Shaper { rate: 200.0, queue: 50 });
    let down = Conditions { shaper, ..Conditions::delayed(Duration::from_millis(25)) };
    let (ahead, delivered) = press(cubic(), down).await;
    // Twice the congestion window, which slow start takes beyond the queue.
    assert!(ahead <= 512 * 1024, "{ahead}");
    // Ten seconds of a path with 280 kB/s.
    assert!(delivered > 2_500_000, "{delivered}");
}

/// A peer whose library acknowledges everything and whose application reads nothing: what it has is not held for it.
// [BQ-56]
#[tokio::test(start_paused = true)]
async fn a_peer_that_grants_everything_and_reads_nothing_holds_no_more_than_may_be_unacknowledged() {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::MAX).receive_window(VarInt::MAX);
    let mut scene = Scene::between(cubic(), transport).await;
    // The library of the peer holds some 1,000 packets of each.
    let mut streams = Vec::new();
    for _ in 0..40 {
        streams.push(scene.open().await);
    }
    let shaper = Some(Shaper { rate: 1000.0, queue: 50 });
    let down = Conditions { shaper, ..Conditions::delayed(Duration::from_millis(25)) };
    scene.device.change_one(Direction::Down, |link| *link = down);
    let (mut accepted, mut ahead) = (0, 0);
    for round in 0..1000 {
        accepted += fill(&mut scene.server, streams[round / 25].0) as u64;
        // With headers, which are less than a tenth.
        let received = scene.client.stats().udp_rx.bytes;
        ahead = ahead.max((accepted + accepted / 10).saturating_sub(received));
        wait(Duration::from_millis(10)).await;
    }
    assert!(accepted > 10_000_000, "{accepted}");
    assert!(ahead <= 512 * 1024 + accepted / 10, "{ahead} of {accepted}");
    let refused = scene.server.load_counts().refused_writes;
    assert!((100..=10_000).contains(&refused), "{refused}");
}

// [BQ-53], [BQ-56]
#[tokio::test(start_paused = true)]
async fn a_slow_path_is_given_little_more_than_a_second_of_it_ahead() {
    for options in [QuicOptions::server(), cubic()] {
        let policer = Some(Policer { rate: 29.0, burst: 5 });
        let down = Conditions { policer, ..Conditions::delayed(Duration::from_millis(20)) };
        let (ahead, delivered) = press(options, down).await;
        assert!(ahead <= 64 * 1024, "{ahead}");
        assert!(delivered > 200_000, "{delivered}");
    }
}

#[tokio::test(start_paused = true)]
async fn equals_share_the_window() {
    let mut scene = Scene::between(QuicOptions::server(), thirsty()).await;
    let mut delivered = Vec::new();
    let mut keys = Vec::new();
    let mut sends = Vec::new();
    for _ in 0..64 {
        let (key, send, recv) = scene.open().await;
        let count = Arc::new(AtomicUsize::new(0));
        keys.push(key);
        sends.push(send);
        delivered.push(Arc::clone(&count));
        tokio::spawn(count_bytes(recv, count));
    }
    let down = Conditions {
        shaper: Some(Shaper { rate: 1000.0, queue: 200 }),
        ..Conditions::delayed(Duration::from_millis(5))
    };
    scene.device.change_one(Direction::Down, |link| *link = down);
    // A driver that always begins with the same stream, and gives it whatever it takes.
    let driver = poll_fn(|cx| {
        for key in &keys {
            while let Poll::Ready(written) = scene.server.poll_write(cx, *key, &[IoSlice::new(&[7; 10_000])])
            {
                written.expect("write");
            }
        }
        Poll::<()>::Pending
    });
    timeout(Duration::from_secs(10), driver).await.expect_err("there is always more to write");
    let delivered: Vec<usize> = delivered.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let (least, most) = (delivered.iter().min().expect("64"), delivered.iter().max().expect("64"));
    assert!(delivered.iter().sum::<usize>() > 10_000_000, "{delivered:?}");
    // The first filled the window before there were others.
    assert!(most - least <= 256 * 1024 + 64 * 1024, "{delivered:?}");
    assert!(*least > 100_000, "{delivered:?}");
}
