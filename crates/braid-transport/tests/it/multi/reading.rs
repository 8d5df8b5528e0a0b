//! Reading: what is told, in which order, and what it costs.

use std::io::ErrorKind;

use futures_util::FutureExt;
use noq::{VarInt, WriteError};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_stream_is_told_then_its_bytes_then_its_end() {
    let mut scene = Scene::new().await;
    let (mut send, _recv) = scene.client.open_bi().await.expect("open");
    send.write_all(b"PUBLISH").await.expect("write");
    send.finish().expect("finish");
    let key = StreamKey::bidi(1);
    assert_eq!(next(&mut scene.server).await, (Read::Opened(key), vec![]));
    assert_eq!(next(&mut scene.server).await, (Read::Bytes(key), b"PUBLISH".to_vec()));
    assert_eq!(next(&mut scene.server).await, (Read::Finished(key), vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_unidirectional_stream_is_told_by_its_own_number() {
    let mut scene = Scene::new().await;
    for n in 0..2 {
        let mut send = scene.client.open_uni().await.expect("open");
        send.write_all(b"PUBLISH").await.expect("write");
        send.finish().expect("finish");
        let key = StreamKey::uni(n);
        assert_eq!(next(&mut scene.server).await, (Read::Opened(key), vec![]));
        assert_eq!(next(&mut scene.server).await, (Read::Bytes(key), b"PUBLISH".to_vec()));
        assert_eq!(next(&mut scene.server).await, (Read::Finished(key), vec![]));
    }
}

#[tokio::test(start_paused = true)]
async fn streams_are_told_in_the_order_of_their_numbers_and_empty_ones_too() {
    let mut scene = Scene::new().await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(scene.client.open_bi().await.expect("open"));
    }
    // Only the last is used: that opens all below it.
    streams[4].0.finish().expect("finish");
    for n in 1..=5 {
        assert_eq!(next(&mut scene.server).await, (Read::Opened(StreamKey::bidi(n)), vec![]));
    }
    assert_eq!(next(&mut scene.server).await, (Read::Finished(StreamKey::bidi(5)), vec![]));
    streams[0].0.finish().expect("finish");
    assert_eq!(next(&mut scene.server).await, (Read::Finished(StreamKey::bidi(1)), vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_reset_is_told_with_its_code() {
    let mut scene = Scene::new().await;
    let (key, mut send, _recv) = scene.open().await;
    send.reset(VarInt::from_u32(0x97)).expect("reset");
    assert_eq!(next(&mut scene.server).await, (Read::Reset(key, 0x97), vec![]));
}

// [BQ-33]
#[tokio::test(start_paused = true)]
async fn a_stop_is_told_without_a_write_and_answered_with_a_reset_of_the_same_code() {
    let mut scene = Scene::new().await;
    scene.server.set_trusted();
    let (key, mut send, mut recv) = scene.open().await;
    recv.stop(VarInt::from_u32(0x8e)).expect("stop");
    assert_eq!(next(&mut scene.server).await, (Read::Stopped(key, 0x8e), vec![]));
    let error = poll_fn(|cx| scene.server.poll_write(cx, key, &[IoSlice::new(b"y")])).await;
    assert_eq!(error.expect_err("ended").kind(), ErrorKind::NotConnected);
    sleep(A_WHILE).await;
    assert_eq!(scene.client.stats().frame_rx.reset_stream, 1);
    // The other half lives on.
    send.write_all(b"more").await.expect("write");
    assert_eq!(next(&mut scene.server).await, (Read::Bytes(key), b"more".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_a_write_runs_into_is_told_too() {
    let mut scene = Scene::new().await;
    let (key, _send, mut recv) = scene.open().await;
    recv.stop(VarInt::from_u32(0x8e)).expect("stop");
    sleep(A_WHILE).await;
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Err(error)) = scene.server.poll_write(&mut cx, key, &[IoSlice::new(b"y")]) else {
        panic!("the stream has ended")
    };
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    assert_eq!(next(&mut scene.server).await, (Read::Stopped(key, 0x8e), vec![]));
}

// [BQ-55]
#[tokio::test(start_paused = true)]
async fn stream_that_is_not_wanted_stays_under_its_flow_control_and_stops_no_other() {
    let options = QuicOptions { stream_receive_window: 256 * 1024, ..QuicOptions::server() };
    let mut scene = Scene::with(options).await;
    scene.server.set_trusted();
    let (unwanted, mut send, _recv) = scene.open().await;
    let (other, mut other_send, _other_recv) = scene.open().await;
    let writer = tokio::spawn(async move {
        send.write_all(&[1; 1_000_000]).await.expect("write");
        send.finish().expect("finish");
        send
    });
    for _ in 0..100 {
        other_send.write_all(&[2; 10_000]).await.expect("write");
        let mut left = 10_000;
        while left > 0 {
            let (read, bytes) = next_of(&mut scene.server, |key| key != unwanted).await;
            assert_eq!(read, Read::Bytes(other));
            left -= bytes.len();
        }
    }
    sleep(A_WHILE).await;
    assert!(!writer.is_finished(), "256 KiB of its window are all it can have sent");

    let mut received = 0;
    loop {
        match next(&mut scene.server).await {
            (Read::Bytes(key), bytes) if key == unwanted => received += bytes.len(),
            (Read::Finished(key), _) if key == unwanted => break,
            other => panic!("{:?}", other.0),
        }
    }
    assert_eq!(received, 1_000_000);
    writer.await.expect("join");
}

#[tokio::test(start_paused = true)]
async fn the_control_stream_comes_first_and_the_others_in_turn() {
    let mut scene = Scene::new().await;
    scene.server.set_trusted();
    let mut streams = Vec::new();
    for _ in 0..3 {
        let (mut send, recv) = scene.client.open_bi().await.expect("open");
        send.write_all(&[0; 3 * 16 * 1024]).await.expect("write");
        streams.push((send, recv));
    }
    scene.send.write_all(b"PINGREQ").await.expect("write");
    sleep(A_WHILE).await;
    let mut order = Vec::new();
    while order.len() < 10 {
        if let (Read::Bytes(key), _) = next(&mut scene.server).await {
            order.push(key);
        }
    }
    let data = [1, 2, 3].map(StreamKey::bidi);
    assert_eq!(order[0], StreamKey::CONTROL);
    assert_eq!(order[1..], [data, data, data].concat());
}

#[tokio::test(start_paused = true)]
async fn a_flood_on_the_control_stream_does_not_silence_the_others() {
    let mut scene = Scene::new().await;
    scene.server.set_trusted();
    let (_, mut send, _recv) = scene.open().await;
    send.write_all(&[0; 10 * 16 * 1024]).await.expect("write");
    scene.send.write_all(&[0; 10 * 16 * 1024]).await.expect("write");
    sleep(A_WHILE).await;
    let mut turns = Vec::new();
    while turns.len() < 10 {
        if let (Read::Bytes(key), _) = next(&mut scene.server).await {
            turns.push(key.is_control());
        }
    }
    assert_eq!(turns, [true, false].repeat(5));
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_costs_a_look_at_the_stream_that_has_something() {
    let mut scene = Scene::new().await;
    let mut streams = Vec::new();
    for _ in 0..200 {
        streams.push(scene.open().await);
    }
    assert!(next(&mut scene.server).now_or_never().is_none());
    let asked = std::cell::RefCell::new(Vec::new());
    let next = next_of(&mut scene.server, |key| {
        asked.borrow_mut().push(key);
        true
    });
    let write = streams[150].1.write_all(b"y");
    let ((read, _), written) = tokio::join!(next, write);
    written.expect("write");
    assert_eq!(read, Read::Bytes(StreamKey::bidi(151)));
    assert_eq!(asked.into_inner(), [StreamKey::bidi(151)], "the other 200 were not looked at");
}

#[tokio::test(start_paused = true)]
async fn a_buffer_without_room_is_an_error_and_not_the_end() {
    let mut scene = Scene::new().await;
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Err(error)) = scene.server.poll_read(&mut cx, &mut ReadBuf::new(&mut []), &mut |_| true)
    else {
        panic!("no room")
    };
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[tokio::test(start_paused = true)]
async fn more_streams_than_are_granted_wait_for_those_that_end() {
    let mut scene = Scene::with(QuicOptions { bidi_streams: 3, ..QuicOptions::server() }).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        streams.push(scene.open().await);
    }
    let client = scene.client.clone();
    let waiting = tokio::spawn(async move {
        let (mut send, _recv) = client.open_bi().await.expect("open");
        send.write_all(b"!").await
    });
    sleep(A_WHILE).await;
    assert!(!waiting.is_finished());
    let (key, mut send, _recv) = streams.remove(0);
    send.finish().expect("finish");
    assert_eq!(next(&mut scene.server).await, (Read::Finished(key), vec![]));
    scene.server.finish(key);
    assert_eq!(next(&mut scene.server).await.0, Read::Opened(StreamKey::bidi(3)));
    assert_eq!(waiting.await.expect("join"), Ok::<(), WriteError>(()));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_read_empty_is_not_asked_for_again_before_it_has_more() {
    let mut scene = Scene::new().await;
    let (key, mut send, _recv) = scene.open().await;
    for piece in [b"one", b"two"] {
        send.write_all(piece).await.expect("write");
        assert_eq!(next(&mut scene.server).await, (Read::Bytes(key), piece.to_vec()));
        let nothing = next_of(&mut scene.server, |key| panic!("{key:?} has nothing"));
        assert!(nothing.now_or_never().is_none());
    }
    // The end behind bytes is told, too.
    send.write_all(b"three").await.expect("write");
    send.finish().expect("finish");
    assert_eq!(next(&mut scene.server).await, (Read::Bytes(key), b"three".to_vec()));
    assert_eq!(next(&mut scene.server).await.0, Read::Finished(key));
}
