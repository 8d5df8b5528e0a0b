//! The receive window of a connection, and pieces of streams behind gaps.

use braid_transport::quic::ReceiveBudget;
use braid_transport::sim::{Conditions, Direction};
use tokio::time::Instant;

use super::*;

/// A client that has as much in flight as it may.
fn eager() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.send_window(64 << 20).max_idle_timeout(None);
    transport
}

/// Sends so many bytes, of which each tells where it is.
fn send(mut stream: SendStream, length: usize) {
    tokio::spawn(async move {
        let bytes: Vec<u8> = (0..length).map(pattern).collect();
        stream.write_all(&bytes).await.expect("write");
        stream.finish().expect("finish");
        let _ = stream.stopped().await;
    });
}

fn pattern(offset: usize) -> u8 {
    u8::try_from(offset % 251).expect("below 251")
}

/// Reads a stream to its end: its length.
async fn read_all(server: &mut Link, key: StreamKey) -> usize {
    let mut length = 0;
    loop {
        let (read, bytes) = next(server).await;
        if read == Read::Finished(key) {
            return length;
        }
        assert_eq!(read, Read::Bytes(key));
        let expected = (length..).map(pattern);
        assert!(bytes.iter().copied().zip(expected).all(|(byte, expected)| byte == expected));
        length += bytes.len();
    }
}

/// Time for 64 MiB from a client on a path of 50 ms. `burst`: begin of 30 ms in which many packets are lost, and time
/// without any packet after it.
async fn transfer(options: QuicOptions, burst: Option<(Duration, Duration)>) -> Duration {
    const LENGTH: usize = 64 << 20;
    let mut scene = Scene::between(options, eager()).await;
    scene.server.set_trusted();
    let path = Conditions::delayed(Duration::from_millis(25));
    for way in [Direction::Up, Direction::Down] {
        scene.device.change_one(way, |link| *link = path.clone());
    }
    let (mut stream, _recv) = scene.client.open_bi().await.expect("open");
    stream.write_all(&[pattern(0)]).await.expect("write");
    let key = StreamKey::bidi(u32::try_from(stream.id().index()).expect("a small number"));
    assert_eq!(next(&mut scene.server).await.0, Read::Opened(key));
    assert_eq!(next(&mut scene.server).await.1, [pattern(0)]);
    let start = Instant::now();
    let device = &scene.device;
    send(stream, LENGTH);
    let losses = async {
        let Some((begin, outage)) = burst else { return };
        wait(begin).await;
        device.change_one(Direction::Up, |link| link.loss = 0.4);
        wait(Duration::from_millis(30)).await;
        device.change_one(Direction::Up, |link| link.loss = 1.0);
        wait(outage).await;
        device.change_one(Direction::Up, |link| link.loss = 0.0);
    };
    let (length, ()) = tokio::join!(read_all(&mut scene.server, key), losses);
    assert_eq!(length, LENGTH);
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn the_window_grows_for_a_reader_that_keeps_up_as_far_as_the_budget_goes() {
    let grown = transfer(QuicOptions::server(), None).await;
    let receive_budget = ReceiveBudget::new(1 << 20);
    let small = transfer(QuicOptions { receive_budget, ..QuicOptions::server() }, None).await;
    // 256 KiB in a round trip of 50 ms take 13 s, and little is unread on top.
    assert!(small >= Duration::from_secs(10), "{small:?}");
    assert!(grown <= Duration::from_secs(2), "{grown:?}");
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_losses_with_much_in_flight_ends_no_connection() {
    for (begin, outage) in [(300, 0), (500, 40_000), (700, 0)] {
        let burst = (Duration::from_millis(begin), Duration::from_millis(outage));
        transfer(QuicOptions::server(), Some(burst)).await;
    }
}
