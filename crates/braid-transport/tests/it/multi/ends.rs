//! The ends of streams.

use braid_proto::stream::Priority;
use braid_transport::sim::{Direction, Shaper};
use noq::{ReadError, VarInt};
use tokio::time::Instant;

use super::*;

// [BQ-31]
#[tokio::test(start_paused = true)]
async fn the_end_of_a_stream_travels_alone() {
    let mut scene = Scene::new().await;
    let (key, _send, mut recv) = scene.open().await;
    let before = scene.client.stats().frame_rx.stream;
    // Nothing happens between the two, so an end that did not wait would share the data's frame.
    write(&mut scene.server, key, b"PUBACK").await;
    scene.server.finish(key);
    let received = drive(&mut scene.server, recv.read_to_end(100)).await;
    assert_eq!(received.expect("read"), b"PUBACK");
    assert_eq!(scene.client.stats().frame_rx.stream - before, 2, "one frame of data, one that ends it");
}

#[tokio::test(start_paused = true)]
async fn a_stream_on_which_nothing_was_written_ends_at_once() {
    let mut scene = Scene::new().await;
    let (key, _send, mut recv) = scene.open().await;
    let start = Instant::now();
    scene.server.finish(key);
    // The link is not polled.
    assert_eq!(recv.read_to_end(100).await.expect("read"), b"");
    assert!(start.elapsed() <= Duration::from_millis(2), "{:?}", start.elapsed());
    assert!(write_fails(&mut scene.server, key));
}

// [BQ-31]
#[tokio::test(start_paused = true)]
async fn the_end_waits_for_a_repetition_of_the_data() {
    let mut scene = Scene::new().await;
    let (key, _send, mut recv) = scene.open().await;
    scene.device.change_one(Direction::Down, |link| link.cut = true);
    write(&mut scene.server, key, b"PUBACK").await;
    scene.server.finish(key);
    drive(&mut scene.server, sleep(Duration::from_millis(20))).await;
    scene.device.change_one(Direction::Down, |link| link.cut = false);
    let arrivals = async {
        recv.read_exact(&mut [0; 6]).await.expect("read");
        let data = Instant::now();
        assert_eq!(recv.read(&mut [0; 6]).await, Ok(None));
        (data, Instant::now())
    };
    let (data, end) = drive(&mut scene.server, arrivals).await;
    assert!(end - data >= Duration::from_millis(2), "a round trip for the acknowledgement: {:?}", end - data);
}

#[tokio::test(start_paused = true)]
async fn beside_busy_streams_an_end_comes_after_three_round_trips() {
    let mut scene = Scene::new().await;
    let (key, _send, mut recv) = scene.open().await;
    let (busy, _busy_send, _busy_recv) = scene.open().await;
    write(&mut scene.server, key, b"PUBACK").await;
    let start = Instant::now();
    scene.server.finish(key);
    let end = tokio::spawn(async move {
        recv.read_to_end(100).await.expect("read");
        start.elapsed()
    });
    while !end.is_finished() {
        // There is always something unacknowledged.
        write(&mut scene.server, busy, b"x").await;
        drive(&mut scene.server, sleep(Duration::from_millis(1))).await;
    }
    let end = end.await.expect("join");
    assert!((Duration::from_millis(6)..Duration::from_millis(12)).contains(&end), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_read_delays_no_end() {
    let mut scene = Scene::new().await;
    let (stuck, _stuck_send, _stuck_recv) = scene.open().await;
    scene.server.set_priority(stuck, Priority::HIGHEST);
    exhaust(&mut scene.server, stuck).await;
    let (key, _send, mut recv) = scene.open().await;
    write(&mut scene.server, key, b"PUBACK").await;
    let start = Instant::now();
    scene.server.finish(key);
    let received = drive(&mut scene.server, recv.read_to_end(100)).await;
    assert_eq!(received.expect("read"), b"PUBACK");
    // The client may wait 25 ms with its acknowledgement.
    assert!(start.elapsed() < Duration::from_millis(40), "{:?}", start.elapsed());
}

// [BQ-31]
#[tokio::test(start_paused = true)]
async fn behind_a_higher_priority_an_end_still_travels_alone() {
    let mut client = TransportConfig::default();
    client.stream_receive_window(VarInt::from_u32(64 * 1024));
    let mut scene = Scene::between(QuicOptions::server(), client).await;
    let (key, _send, mut recv) = scene.open().await;
    let (busy, _busy_send, mut busy_recv) = scene.open().await;
    scene.server.set_priority(key, Priority::new(1));
    scene.server.set_priority(busy, Priority::new(2));
    scene.device.change_one(Direction::Down, |link| link.shaper = Some(Shaper { rate: 100.0, queue: 50 }));
    tokio::spawn(
        async move { while busy_recv.read(&mut [0; 4096]).await.is_ok_and(|read| read.is_some()) {} },
    );
    fill(&mut scene.server, busy);
    write(&mut scene.server, key, b"PUBACK").await;
    scene.server.finish(key);
    let arrivals = tokio::spawn(async move {
        recv.read_exact(&mut [0; 6]).await.expect("read");
        let data = Instant::now();
        assert_eq!(recv.read(&mut [0; 6]).await, Ok(None));
        Instant::now() - data
    });
    for _ in 0..100 {
        fill(&mut scene.server, busy);
        drive(&mut scene.server, sleep(Duration::from_millis(10))).await;
    }
    assert!(!arrivals.is_finished());
    let gap = drive(&mut scene.server, arrivals).await.expect("join");
    assert!(gap > Duration::ZERO, "the end came with the data");
}

// [BQ-31]
#[tokio::test(start_paused = true)]
async fn on_a_busy_path_that_slows_down_the_end_waits_until_all_was_sent() {
    const SIZE: usize = 24_000;
    let mut scene = Scene::new().await;
    let (key, _send, mut recv) = scene.open().await;
    let (busy, _busy_send, _busy_recv) = scene.open().await;
    scene.device.change_one(Direction::Down, |link| link.shaper = Some(Shaper { rate: 100.0, queue: 50 }));
    write(&mut scene.server, key, &[0; SIZE]).await;
    scene.server.finish(key);
    let arrivals = tokio::spawn(async move {
        recv.read_exact(&mut [0; SIZE]).await.expect("read");
        let data = Instant::now();
        assert_eq!(recv.read(&mut [0; 6]).await, Ok(None));
        Instant::now() - data
    });
    while !arrivals.is_finished() {
        // There is always something unacknowledged, and something that was just written.
        write(&mut scene.server, busy, b"x").await;
        drive(&mut scene.server, sleep(Duration::from_millis(1))).await;
    }
    let gap = arrivals.await.expect("join");
    assert!(gap > Duration::ZERO, "the end came with the data");
}

#[tokio::test(start_paused = true)]
async fn many_ends_wait_for_one_another_no_longer_than_for_themselves() {
    let mut scene = Scene::new().await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        streams.push(scene.open().await);
    }
    let start = Instant::now();
    for (key, ..) in &streams {
        write(&mut scene.server, *key, b"PUBACK").await;
        scene.server.finish(*key);
    }
    for (_, _, recv) in &mut streams {
        assert_eq!(drive(&mut scene.server, recv.read_to_end(100)).await.expect("read"), b"PUBACK");
    }
    // The client may wait 25 ms with its acknowledgement.
    assert!(start.elapsed() < Duration::from_millis(40), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn abort_resets_and_stops_with_the_code() {
    let mut scene = Scene::new().await;
    let (key, send, mut recv) = scene.open().await;
    write(&mut scene.server, key, b"y").await;
    scene.server.abort(key, 0x95);
    let code = VarInt::from_u32(0x95);
    assert_eq!(send.stopped().await.expect("stopped"), Some(code));
    let error = recv.read_to_end(100).await.expect_err("reset");
    assert_eq!(error, noq::ReadToEndError::Read(ReadError::Reset(code)));
    assert!(write_fails(&mut scene.server, key));
    scene.send.write_all(b"PINGREQ").await.expect("write");
    let next = next(&mut scene.server).await;
    assert_eq!(next, (Read::Bytes(StreamKey::CONTROL), b"PINGREQ".to_vec()), "nothing else is told of it");
}

// [BQ-32]
#[tokio::test(start_paused = true)]
async fn abort_after_a_reset_answers_with_a_reset_of_the_same_code_alone() {
    let mut scene = Scene::new().await;
    let (key, mut send, mut recv) = scene.open().await;
    send.reset(VarInt::from_u32(0x97)).expect("reset");
    let (Read::Reset(reset, code), _) = next(&mut scene.server).await else { panic!("a reset") };
    assert_eq!((reset, code), (key, 0x97));
    scene.server.abort(key, code);
    let error = recv.read_to_end(100).await.expect_err("reset");
    assert_eq!(error, noq::ReadToEndError::Read(ReadError::Reset(VarInt::from_u32(0x97))));
    sleep(A_WHILE).await;
    let frames = scene.client.stats().frame_rx;
    assert_eq!((frames.reset_stream, frames.stop_sending), (1, 0), "there is nothing left to stop");
}

#[tokio::test(start_paused = true)]
async fn abort_ends_the_half_that_is_open() {
    let mut scene = Scene::new().await;
    let (finished, mut send, mut recv) = scene.open().await;
    send.finish().expect("finish");
    assert_eq!(next(&mut scene.server).await.0, Read::Finished(finished));
    scene.server.abort(finished, 0x95);
    let error = recv.read_to_end(100).await.expect_err("reset");
    assert_eq!(error, noq::ReadToEndError::Read(ReadError::Reset(VarInt::from_u32(0x95))));

    let (other, send, mut recv) = scene.open().await;
    scene.server.finish(other);
    assert_eq!(recv.read_to_end(100).await.expect("read"), b"");
    scene.server.abort(other, 0x95);
    assert_eq!(send.stopped().await.expect("stopped"), Some(VarInt::from_u32(0x95)));
    // Twice, or for the control stream, it does nothing.
    scene.server.abort(other, 0x95);
    scene.server.abort(StreamKey::CONTROL, 0x95);
    scene.server.finish(StreamKey::CONTROL);
    write(&mut scene.server, StreamKey::CONTROL, b"x").await;
    scene.recv.read_exact(&mut [0; 1]).await.expect("read");
}

/// STOP_SENDING travels with the first frame of its stream.
// [BQ-33]
#[tokio::test(start_paused = true)]
async fn streams_that_begin_with_a_stop_leave_room_for_others() {
    let mut scene = Scene::new().await;
    let code = VarInt::from_u32(0x8e);
    // More than may be open at a time.
    for _ in 0..600 {
        let opened = drive(&mut scene.server, timeout(A_MINUTE, scene.client.open_bi())).await;
        let (mut send, mut recv) = opened.expect("a stream is permitted").expect("open");
        recv.stop(code).expect("stop");
        send.write_all(b"!").await.expect("write");
        send.finish().expect("finish");
        let key = StreamKey::bidi(u32::try_from(send.id().index()).expect("a small number"));
        let mut told = Vec::new();
        while told.last() != Some(&Read::Finished(key)) {
            told.push(next(&mut scene.server).await.0);
        }
        let stopped = Read::Stopped(key, code.into_inner());
        assert_eq!(told, [Read::Opened(key), stopped, Read::Bytes(key), Read::Finished(key)]);
        assert!(write_fails(&mut scene.server, key));
        scene.server.finish(key);
    }
}

fn write_fails(link: &mut Link, key: StreamKey) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    let outcome = link.poll_write(&mut cx, key, &[IoSlice::new(b"x")]);
    matches!(outcome, Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::NotConnected)
}
