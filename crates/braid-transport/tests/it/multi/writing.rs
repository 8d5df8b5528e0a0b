//! Writes: streams that wait for no other, and their order.

use std::io::ErrorKind;

use braid_proto::stream::Priority;
use braid_transport::sim::{Direction, Shaper};

use super::*;

#[tokio::test(start_paused = true)]
async fn written_bytes_arrive_on_their_stream() {
    let mut scene = Scene::new().await;
    let (one, _one_send, mut one_recv) = scene.open().await;
    let (two, _two_send, mut two_recv) = scene.open().await;
    let mut cx = Context::from_waker(Waker::noop());
    let slices = [IoSlice::new(b"PUB"), IoSlice::new(b""), IoSlice::new(b"ACK")];
    assert!(matches!(scene.server.poll_write(&mut cx, two, &slices), Poll::Ready(Ok(6))));
    write(&mut scene.server, one, b"SUBACK").await;
    write(&mut scene.server, StreamKey::CONTROL, b"PINGRESP").await;
    let mut received = [0; 6];
    two_recv.read_exact(&mut received).await.expect("read");
    assert_eq!(&received, b"PUBACK");
    one_recv.read_exact(&mut received).await.expect("read");
    assert_eq!(&received, b"SUBACK");
    let mut received = [0; 8];
    scene.recv.read_exact(&mut received).await.expect("read");
    assert_eq!(&received, b"PINGRESP");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_there_is_named() {
    let mut scene = Scene::new().await;
    let mut cx = Context::from_waker(Waker::noop());
    let uni = {
        let mut send = scene.client.open_uni().await.expect("open");
        send.write_all(b"x").await.expect("write");
        assert!(matches!(next(&mut scene.server).await, (Read::Opened(_), _)));
        StreamKey::uni(0)
    };
    for key in [StreamKey::bidi(9), uni] {
        let Poll::Ready(Err(error)) = scene.server.poll_write(&mut cx, key, &[IoSlice::new(b"x")]) else {
            panic!("{key} takes nothing")
        };
        assert_eq!(error.kind(), ErrorKind::NotConnected);
    }
}

// [BQ-55]
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_read_stops_itself_alone() {
    let mut scene = Scene::new().await;
    let (stuck, _send, mut stuck_recv) = scene.open().await;
    let (other, _other_send, mut other_recv) = scene.open().await;
    let mut written = exhaust(&mut scene.server, stuck).await;
    assert!(write_now(&mut scene.server, stuck, b"x").is_pending());
    for _ in 0..100 {
        write(&mut scene.server, other, &[1; 10_000]).await;
        other_recv.read_exact(&mut [0; 10_000]).await.expect("read");
    }
    let mut buffer = vec![0; written];
    let reading = stuck_recv.read_exact(&mut buffer);
    let (read, ()) = tokio::join!(reading, write(&mut scene.server, stuck, b"there is room again"));
    read.expect("read");
    written = 19;
    let mut buffer = vec![0; written];
    stuck_recv.read_exact(&mut buffer).await.expect("read");
    assert_eq!(buffer, b"there is room again");
}

// [BQ-56]
#[tokio::test(start_paused = true)]
async fn an_urgent_write_finds_room_though_bulk_has_filled_the_window() {
    let window = 32 * 1024;
    let mut scene = Scene::with(QuicOptions { send_window: window as u64, ..QuicOptions::server() }).await;
    let (bulk, _bulk_send, mut bulk_recv) = scene.open().await;
    let (urgent, _urgent_send, mut urgent_recv) = scene.open().await;
    let (equal, _equal_send, _equal_recv) = scene.open().await;
    scene.server.set_priority(bulk, Priority::new(10));
    scene.server.set_priority(equal, Priority::new(10));
    scene.server.set_priority(urgent, Priority::new(200));
    sleep(A_WHILE).await;
    // Nothing is acknowledged from now on.
    scene.device.change_one(Direction::Up, |link| link.cut = true);
    assert_eq!(fill(&mut scene.server, bulk), window);
    assert!(write_now(&mut scene.server, equal, b"x").is_pending(), "it has no more right than the other");
    assert_eq!(write_now(&mut scene.server, urgent, &[1; 10_000]), Poll::Ready(10_000));
    assert_eq!(write_now(&mut scene.server, StreamKey::CONTROL, &[2; 10_000]), Poll::Ready(10_000));
    assert!(write_now(&mut scene.server, bulk, b"x").is_pending(), "the room was not for bulk");

    // The room is bounded, and the control stream is still above.
    let beyond = 10_000 + 10_000 + fill(&mut scene.server, urgent);
    assert_eq!(beyond, 1 << 20);
    assert_eq!(write_now(&mut scene.server, StreamKey::CONTROL, &[2; 10_000]), Poll::Ready(10_000));

    scene.device.change_one(Direction::Up, |link| link.cut = false);
    let mut received = vec![0; beyond - 10_000];
    urgent_recv.read_exact(&mut received).await.expect("read");
    let mut received = vec![0; window];
    bulk_recv.read_exact(&mut received).await.expect("read");
    write(&mut scene.server, bulk, b"as before").await;
    bulk_recv.read_exact(&mut received[..9]).await.expect("read");
    assert_eq!(&received[..9], b"as before");
}

// [BQ-56]
#[tokio::test(start_paused = true)]
async fn beside_ten_backlogged_streams_an_urgent_write_never_waits() {
    let mut scene = Scene::new().await;
    let mut bulk = Vec::new();
    for _ in 0..10 {
        bulk.push(scene.open().await);
    }
    let (urgent, _send, mut recv) = scene.open().await;
    scene.server.set_priority(urgent, Priority::HIGHEST);
    scene.device.change_one(Direction::Down, |link| link.shaper = Some(Shaper { rate: 100.0, queue: 20 }));
    let received = tokio::spawn(async move { recv.read_exact(&mut [0; 100 * 100]).await });
    for _ in 0..100 {
        for (stream, ..) in &bulk {
            fill(&mut scene.server, *stream);
        }
        assert_eq!(write_now(&mut scene.server, urgent, &[1; 100]), Poll::Ready(100));
        sleep(Duration::from_millis(100)).await;
    }
    received.await.expect("join").expect("read");
}

// [BQ-50]
#[tokio::test(start_paused = true)]
async fn the_higher_priority_is_sent_first() {
    let mut scene = Scene::new().await;
    let (low, _low_send, mut low_recv) = scene.open().await;
    let (high, _high_send, mut high_recv) = scene.open().await;
    scene.server.set_priority(low, Priority::new(0));
    scene.device.change_one(Direction::Down, |link| link.shaper = Some(Shaper { rate: 100.0, queue: 50 }));
    // Before the others, as much as is taken.
    fill(&mut scene.server, low);
    assert_eq!(write_now(&mut scene.server, high, &[1; 100_000]), Poll::Ready(100_000));
    assert_eq!(write_now(&mut scene.server, StreamKey::CONTROL, &[2; 50_000]), Poll::Ready(50_000));
    let mut early = vec![0; 100_000];
    let (mut low_count, mut control_count) = (0, 0);
    let mut high_left = 100_000;
    let mut buffer = vec![0; 100_000];
    let mut control = vec![0; 50_000];
    while high_left > 0 {
        tokio::select! {
            biased;
            read = scene.recv.read(&mut control) => control_count += read.expect("read").expect("open"),
            read = high_recv.read(&mut buffer) => {
                high_left -= read.expect("read").expect("open");
                assert!(control_count >= 40_000 || high_left > 80_000, "control {control_count}, left {high_left}");
            }
            read = low_recv.read(&mut early) => low_count += read.expect("read").expect("open"),
        }
    }
    assert_eq!(control_count, 50_000);
    assert!(low_count < 5_000, "{low_count}");
}

// [BQ-50]
#[tokio::test(start_paused = true)]
async fn a_stream_that_waits_for_room_is_raised_without_another_write() {
    let mut scene = Scene::new().await;
    let (raised, _raised_send, mut raised_recv) = scene.open().await;
    let (bulk, _bulk_send, mut bulk_recv) = scene.open().await;
    for key in [raised, bulk] {
        scene.server.set_priority(key, Priority::new(10));
    }
    scene.device.change_one(Direction::Down, |link| link.shaper = Some(Shaper { rate: 100.0, queue: 50 }));
    assert_eq!(write_now(&mut scene.server, raised, &[1; 15_000]), Poll::Ready(15_000));
    let written = fill(&mut scene.server, bulk);
    assert!(written >= 15_000, "{written}");
    sleep(Duration::from_millis(1)).await;
    scene.server.set_priority(raised, Priority::new(200));
    let mut received = vec![0; 100_000];
    raised_recv.read_exact(&mut received[..15_000]).await.expect("read");
    // As much as was sent in turns before, and what was in flight.
    let mut count = 0;
    while let Ok(read) = timeout(Duration::ZERO, bulk_recv.read(&mut received)).await {
        count += read.expect("read").expect("open");
    }
    assert!(count < 10_000, "{count} of {written}");
}
