//! The end of a link, from either side.

use braid_transport::Close;
use braid_transport::quic::codes;
use braid_transport::sim::{Conditions, Direction, Shaper};
use noq::{ConnectionError, VarInt};
use tokio::time::Instant;

use super::*;

async fn close(link: &mut Link, code: u32, stop: Option<u8>) {
    poll_fn(|cx| link.poll_close(cx, Close { code, stop })).await.expect("close");
}

fn close_code(error: ConnectionError) -> Option<u64> {
    match error {
        ConnectionError::ApplicationClosed(close) => Some(close.error_code.into_inner()),
        _ => None,
    }
}

// [BQ-41]
#[tokio::test(start_paused = true)]
async fn a_kick_says_why_stops_every_stream_and_closes_with_its_code() {
    let mut scene = Scene::new().await;
    let (data, mut send, mut recv) = scene.open().await;
    send.write_all(b"unread").await.expect("write");
    let before = scene.client.stats().frame_rx.stream;
    write(&mut scene.server, data, b"PUBACK").await;
    write(&mut scene.server, StreamKey::CONTROL, b"DISCONNECT").await;
    let client = async {
        assert_eq!(send.stopped().await, Ok(Some(VarInt::from_u32(0x8e))));
        assert_eq!(scene.send.stopped().await, Ok(Some(VarInt::from_u32(0x8e))));
        assert_eq!(scene.recv.read_to_end(100).await.expect("read"), b"DISCONNECT");
        assert_eq!(recv.read_to_end(100).await.expect("read"), b"PUBACK");
        scene.client.closed().await
    };
    let ((), error) = tokio::join!(close(&mut scene.server, codes::CLOSE_ABNORMAL, Some(0x8e)), client);
    assert_eq!(close_code(error), Some(codes::CLOSE_ABNORMAL.into()));
    assert_eq!(scene.client.stats().frame_rx.stream - before, 4, "no end shares a frame with data");
    assert_eq!(next(&mut scene.server).await.0, Read::Closed);
    let mut cx = Context::from_waker(Waker::noop());
    let outcome = scene.server.poll_write(&mut cx, StreamKey::CONTROL, &[IoSlice::new(b"x")]);
    assert!(matches!(outcome, Poll::Ready(Err(_))), "{outcome:?}");
    close(&mut scene.server, 0, None).await;
}

// [BQ-41]: who takes STOP_SENDING for the end has heard why by then.
#[tokio::test(start_paused = true)]
async fn last_words_are_heard_before_the_stop() {
    for latency in [1, 20, 300].map(Duration::from_millis) {
        let mut scene = Scene::new().await;
        let (_data, send, _recv) = scene.open().await;
        scene.device.change(|link| link.latency = latency);
        write(&mut scene.server, StreamKey::CONTROL, b"DISCONNECT").await;
        let client = async {
            let mut bytes = [0; 10];
            scene.recv.read_exact(&mut bytes).await.expect("read");
            assert_eq!(scene.client.stats().frame_rx.stop_sending, 0, "{latency:?}");
            assert_eq!(send.stopped().await, Ok(Some(VarInt::from_u32(0x8e))));
            assert_eq!(scene.client.close_reason(), None, "the stop is told before the end");
        };
        tokio::join!(close(&mut scene.server, 0, Some(0x8e)), client);
    }
}

/// A control stream that the peer does not read, and a data stream with more than a slow path carries in time.
async fn stuck() -> (Scene, SendStream) {
    let mut scene = Scene::new().await;
    let (data, send, _recv) = scene.open().await;
    exhaust(&mut scene.server, StreamKey::CONTROL).await;
    let slow = Conditions {
        shaper: Some(Shaper { rate: 20.0, queue: 10 }),
        ..Conditions::delayed(Duration::from_millis(1))
    };
    scene.device.change_one(Direction::Down, |link| *link = slow);
    fill(&mut scene.server, data);
    (scene, send)
}

// [BQ-41]
#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_is_stopped_and_closed_in_time() {
    let (mut scene, send) = stuck().await;
    let start = Instant::now();
    let client = async {
        assert_eq!(send.stopped().await, Ok(Some(VarInt::from_u32(0x8e))));
        assert!(start.elapsed() <= Duration::from_secs(2), "{:?}", start.elapsed());
        let error = scene.client.closed().await;
        assert_eq!(close_code(error), Some(codes::CLOSE_ABNORMAL.into()));
        start.elapsed()
    };
    let close = async {
        close(&mut scene.server, codes::CLOSE_ABNORMAL, Some(0x8e)).await;
        start.elapsed()
    };
    let (closed, seen) = tokio::join!(close, client);
    assert_eq!(closed, Duration::from_secs(3));
    assert!(seen <= Duration::from_millis(3600), "behind at most eleven packets of 20 a second: {seen:?}");
}

// [BQ-41]: nothing but the control stream is left to end.
#[tokio::test(start_paused = true)]
async fn a_control_stream_that_is_not_read_is_not_waited_for_to_the_last() {
    let mut scene = Scene::new().await;
    exhaust(&mut scene.server, StreamKey::CONTROL).await;
    let start = Instant::now();
    close(&mut scene.server, codes::CLOSE_NORMAL, Some(0x8e)).await;
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

// [BQ-41]: one deadline, in any state of the link.
#[tokio::test(start_paused = true)]
async fn a_link_that_is_dropped_ends_when_it_would_have_ended() {
    for (agreed, polled) in [(None, true), (Some(2), true), (Some(2), false), (None, false)] {
        let (mut scene, _send) = stuck().await;
        let start = Instant::now();
        if let Some(seconds) = agreed {
            scene.server.close_by((start + Duration::from_secs(seconds)).into_std());
        }
        if polled {
            let close = close(&mut scene.server, codes::CLOSE_NORMAL, None);
            timeout(Duration::from_secs(1), close).await.expect_err("it takes longer");
        }
        scene.device.change(|link| *link = Conditions::delayed(Duration::from_millis(1)));
        // Datagrams in flight come late.
        scene.device.change_one(Direction::Down, |link| link.cut = true);
        drop(scene.server);
        let by = start + Duration::from_secs(agreed.unwrap_or(3));
        tokio::time::sleep_until(by - Duration::from_millis(1)).await;
        scene.device.change(|link| link.cut = false);
        let error = scene.client.closed().await;
        assert_eq!(close_code(error), Some(codes::CLOSE_NORMAL.into()), "{agreed:?} {polled}");
        assert!(by.elapsed() <= Duration::from_millis(5), "{agreed:?} {polled}: {:?}", by.elapsed());
    }
}

// [BQ-41]
#[tokio::test(start_paused = true)]
async fn a_peer_that_is_gone_holds_a_close_for_three_seconds() {
    let mut scene = Scene::new().await;
    let (data, _send, _recv) = scene.open().await;
    scene.device.change(|link| link.cut = true);
    write(&mut scene.server, data, &[0; 10_000]).await;
    let start = Instant::now();
    close(&mut scene.server, 0, None).await;
    assert_eq!(start.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_link_delivers_every_stream() {
    let mut scene = Scene::new().await;
    let (data, _send, mut recv) = scene.open().await;
    write(&mut scene.server, data, b"PUBLISH").await;
    write(&mut scene.server, StreamKey::CONTROL, b"DISCONNECT").await;
    drop(scene.server);
    assert_eq!(recv.read_to_end(100).await.expect("read"), b"PUBLISH");
    assert_eq!(scene.recv.read_to_end(100).await.expect("read"), b"DISCONNECT");
    assert_eq!(close_code(scene.client.closed().await), Some(0));
}

// [BQ-40]
#[tokio::test(start_paused = true)]
async fn the_end_of_the_control_stream_is_told_after_what_other_streams_brought() {
    let mut scene = Scene::new().await;
    let (key, mut send, _recv) = scene.open().await;
    send.write_all(&[1; 100_000]).await.expect("write");
    scene.send.write_all(b"DISCONNECT").await.expect("write");
    scene.send.finish().expect("finish");
    sleep(A_WHILE).await;
    let (mut control, mut data) = (0, 0);
    loop {
        match next(&mut scene.server).await {
            (Read::Bytes(StreamKey::CONTROL), bytes) => control += bytes.len(),
            (Read::Bytes(stream), bytes) if stream == key => data += bytes.len(),
            (read, _) => {
                assert_eq!(read, Read::Closed);
                break;
            }
        }
    }
    assert_eq!((control, data), (10, 100_000));
    assert_eq!(next(&mut scene.server).await.0, Read::Closed, "and again");
}

// [BQ-40]
#[tokio::test(start_paused = true)]
async fn a_close_in_order_is_told_after_what_came_before_it() {
    let mut scene = Scene::new().await;
    let (key, mut send, _recv) = scene.open().await;
    send.write_all(b"PUBLISH").await.expect("write");
    scene.send.write_all(b"DISCONNECT").await.expect("write");
    sleep(A_WHILE).await;
    scene.client.close(codes::CLOSE_NORMAL.into(), b"");
    sleep(A_WHILE).await;
    let nothing = timeout(A_WHILE, try_next(&mut scene.server, |_| false)).await;
    assert!(nothing.is_err(), "the control stream is not wanted yet: {nothing:?}");
    assert_eq!(next(&mut scene.server).await, (Read::Bytes(StreamKey::CONTROL), b"DISCONNECT".to_vec()));
    assert_eq!(next(&mut scene.server).await, (Read::Bytes(key), b"PUBLISH".to_vec()));
    assert_eq!(next(&mut scene.server).await.0, Read::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_reader_hears_of_every_end() {
    for (code, in_order) in [(codes::CLOSE_NORMAL, true), (codes::CLOSE_ABNORMAL, false)] {
        for wanted in [true, in_order] {
            let mut scene = Scene::new().await;
            let close = async {
                sleep(A_WHILE).await;
                scene.client.close(code.into(), b"");
            };
            let (read, ()) = tokio::join!(try_next(&mut scene.server, |_| wanted), close);
            match (read, in_order) {
                (Ok((Read::Closed, _)), true) | (Err(_), false) => {}
                (read, _) => panic!("{read:?} after code {code}, wanted {wanted}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_control_stream_is_an_error() {
    let mut scene = Scene::new().await;
    scene.send.reset(VarInt::from_u32(0x81)).expect("reset");
    let error = try_next(&mut scene.server, |_| true).await.expect_err("lost").to_string();
    assert_eq!(error, "the peer reset the control stream with code 0x81");
}

#[tokio::test(start_paused = true)]
async fn bytes_before_stop_sending_on_the_control_stream_are_read_first() {
    let mut scene = Scene::new().await;
    scene.send.write_all(b"DISCONNECT").await.expect("write");
    scene.recv.stop(VarInt::from_u32(0x8e)).expect("stop");
    sleep(A_WHILE).await;
    assert!(write_now(&mut scene.server, StreamKey::CONTROL, b"PINGREQ").is_pending());
    assert_eq!(next(&mut scene.server).await, (Read::Bytes(StreamKey::CONTROL), b"DISCONNECT".to_vec()));
    let error = try_next(&mut scene.server, |_| true).await.expect_err("lost").to_string();
    assert_eq!(error, "the peer stopped the control stream with code 0x8e");
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_fails_writes_with_another_error_than_an_ended_stream() {
    let mut scene = Scene::new().await;
    scene.client.close(codes::CLOSE_ABNORMAL.into(), b"");
    sleep(A_WHILE).await;
    let error = poll_fn(|cx| scene.server.poll_write(cx, StreamKey::CONTROL, &[IoSlice::new(b"x")])).await;
    assert_ne!(error.expect_err("lost").kind(), io::ErrorKind::NotConnected);
}

#[tokio::test(start_paused = true)]
async fn a_blocked_writer_hears_of_the_end() {
    let mut scene = Scene::new().await;
    let (data, _send, _recv) = scene.open().await;
    exhaust(&mut scene.server, data).await;
    let close = async {
        sleep(A_WHILE).await;
        scene.client.close(codes::CLOSE_ABNORMAL.into(), b"");
    };
    let write = poll_fn(|cx| scene.server.poll_write(cx, data, &[IoSlice::new(b"x")]));
    let (outcome, ()) = tokio::join!(write, close);
    outcome.expect_err("lost");
}

// [BQ-40]
#[tokio::test(start_paused = true)]
async fn the_end_of_an_idle_control_stream_is_told_without_a_write() {
    let mut scene = Scene::new().await;
    scene.server.set_trusted();
    scene.recv.stop(VarInt::from_u32(7)).expect("stop");
    let mut buffer = [0; 16];
    let ended = poll_fn(|cx| scene.server.poll_read(cx, &mut ReadBuf::new(&mut buffer), &mut |_| true)).await;
    assert!(ended.is_err_and(|error| error.to_string().contains("0x7")));
}

/// More bytes of the client are dropped meanwhile, however many. [BQ-41]
#[tokio::test(start_paused = true)]
async fn last_words_are_heard_by_a_client_that_sends_much() {
    let mut client = TransportConfig::default();
    client.send_window(64 << 20);
    let mut scene = Scene::between(QuicOptions::server(), client).await;
    scene.server.set_trusted();
    scene.device.change(|link| link.latency = Duration::from_millis(100));
    let (data, mut send, _recv) = scene.open().await;
    let sending = tokio::spawn(async move {
        let piece = vec![0; 1 << 16];
        while send.write_all(&piece).await.is_ok() {}
        send
    });
    let mut received = 0;
    while received < 40 << 20 {
        received += next_of(&mut scene.server, |key| key == data).await.1.len();
    }
    // Behind a gap it would be too much for the library.
    scene.device.change_one(Direction::Up, |link| link.loss = 0.1);
    write(&mut scene.server, StreamKey::CONTROL, b"DISCONNECT").await;
    let client = async {
        assert_eq!(scene.recv.read_to_end(100).await.expect("read"), b"DISCONNECT");
        scene.client.closed().await
    };
    let ((), error) = tokio::join!(close(&mut scene.server, codes::CLOSE_ABNORMAL, Some(0x8e)), client);
    assert_eq!(close_code(error), Some(codes::CLOSE_ABNORMAL.into()));
    let _ = sending.await.expect("join");
}
