//! QUIC clients that keep the rules of RFC 9000, and send as many frames as fit into packets.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use braid_transport::{Link, Read};
use noq::TransportConfig;
use noq::congestion::CubicConfig;
use tokio::io::ReadBuf;
use tokio::time::sleep as wait;

use crate::peers::{FULL, Forged, one_byte, send_packets};

/// A client that sends 1 MiB before the first acknowledgement.
fn hasty() -> TransportConfig {
    let mut cubic = CubicConfig::default();
    cubic.initial_window(1 << 20);
    let mut transport = TransportConfig::default();
    transport.congestion_controller_factory(Arc::new(cubic));
    transport
}

/// One poll of the task that owns a link, with what it reads. Data streams are read if they are wanted.
async fn poll_once(server: &mut Link, wants_data: bool) -> std::io::Result<Vec<Read>> {
    let (mut bytes, mut reads) = (vec![0; 16 << 10], Vec::new());
    poll_fn(|cx| {
        let read = loop {
            let mut buffer = ReadBuf::new(&mut bytes);
            match server.poll_read(cx, &mut buffer, &mut |key| wants_data || key.is_control()) {
                Poll::Ready(Ok(read)) => reads.push(read),
                Poll::Ready(Err(error)) => break Err(error),
                Poll::Pending => break Ok(()),
            }
        };
        let _ = server.poll_flush(cx);
        Poll::Ready(read)
    })
    .await
    .map(|()| reads)
}

/// STREAM frames that have come.
fn frames_of(server: &mut Link) -> u64 {
    server.stream_frames().expect("QUIC")
}

/// Frame without a byte: with length; stream 4.
const EMPTY: [u8; 3] = [0x0A, 4, 0];

/// Packets full of STREAM frames without a byte: each is an event of the library.
#[tokio::test(start_paused = true)]
async fn frames_without_a_byte_leave_other_tasks_their_turns() {
    const PACKETS: usize = 500;
    let Forged { connection, frames, server, .. } = Forged::connect_with(Vec::new(), hasty()).await;
    let mut server = server.into_inner();
    server.set_trusted();
    let packets = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&packets);
    frames.set(move |payload: &mut [u8]| {
        if payload.len() >= FULL && count.fetch_add(1, Ordering::Relaxed) < PACKETS {
            payload.chunks_exact_mut(3).for_each(|frame| frame.copy_from_slice(&EMPTY));
        }
    });
    send_packets(&connection);
    let (mut most, mut total, mut quiet) = (0, 0, 0);
    while quiet < 100 {
        let before = frames_of(&mut server);
        poll_once(&mut server, true).await.expect("the link lives");
        let frames = frames_of(&mut server) - before;
        (most, total) = (most.max(frames), total + frames);
        quiet = if frames == 0 { quiet + 1 } else { 0 };
        wait(Duration::from_millis(1)).await;
    }
    println!("{total} frames, {most} in a poll at most");
    assert!(total > 100_000, "{total} frames");
    assert!(most <= 5_000, "{most} frames in a poll");
}

/// Packets full of RESET_STREAM and STOP_SENDING, for all streams that the server has granted and for new ones as soon
/// as it grants them: a frame for a stream that has ended costs nothing more, and no more streams are kept than were
/// granted.
#[tokio::test(start_paused = true)]
async fn streams_that_are_opened_and_reset_cost_what_was_granted() {
    const BIDI: u32 = 256;
    const UNI: u32 = 16;
    const PACKETS: usize = 5_000;
    let Forged { connection, frames, server, .. } = Forged::connect_with(Vec::new(), hasty()).await;
    // The library of the client has to know the streams that the server resets.
    let mut streams = Vec::new();
    for _ in 1..BIDI {
        streams.push(connection.open_bi().await.expect("granted"));
    }
    let mut server = server.into_inner();
    server.set_trusted();
    let (packets, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU32::new(0)));
    let (count, over, next_uni) = (Arc::clone(&packets), Arc::clone(&ended), AtomicU32::new(0));
    frames.set(move |payload: &mut [u8]| {
        if payload.len() < FULL {
            return;
        }
        let packet = u32::try_from(count.fetch_add(1, Ordering::Relaxed)).expect("few");
        let (bidi, uni) = payload.split_at_mut(600);
        for (at, frames) in (46 * packet..).zip(bidi.chunks_exact_mut(13)) {
            let [a, b, c, d] = ((4 * (1 + at % (BIDI - 1))) | (2 << 30)).to_be_bytes();
            frames.copy_from_slice(&[0x05, a, b, c, d, 0, 0x04, a, b, c, d, 0, 0]);
        }
        for frame in uni.chunks_exact_mut(7) {
            let number = next_uni.load(Ordering::Relaxed).min(over.load(Ordering::Relaxed) + UNI - 1);
            next_uni.store(number + 1, Ordering::Relaxed);
            let [a, b, c, d] = ((4 * number + 2) | (2 << 30)).to_be_bytes();
            frame.copy_from_slice(&[0x04, a, b, c, d, 0, 0]);
        }
    });
    for (mut send, _receive) in streams {
        tokio::spawn(async move { while send.write_all(&[0; 1 << 16]).await.is_ok() {} });
    }
    let (mut opened, mut reset, mut stopped, mut most) = ([0; 2], [0; 2], 0, 0);
    while packets.load(Ordering::Relaxed) < PACKETS {
        for read in poll_once(&mut server, true).await.expect("the link lives") {
            match read {
                Read::Opened(key) => opened[usize::from(key.is_uni())] += 1,
                Read::Reset(key, 0) => reset[usize::from(key.is_uni())] += 1,
                Read::Stopped(_, 0) => stopped += 1,
                other => panic!("{other:?}"),
            }
            most = most.max(opened[1] - reset[1]);
        }
        ended.store(reset[1], Ordering::Relaxed);
        wait(Duration::from_millis(1)).await;
    }
    println!("{opened:?} opened, {reset:?} reset, {stopped} stopped, {most} of {UNI} at a time");
    // Those of which this end resets its half are not granted again, as no acknowledgement comes.
    assert_eq!((opened[0], reset[0], stopped), (BIDI - 1, BIDI - 1, BIDI - 1));
    assert!(opened[1] > 4 * UNI && most <= UNI, "{opened:?}, {most}");
}

/// A byte in each packet, on a stream that is not read, with frames that have none.
#[tokio::test(start_paused = true)]
async fn single_bytes_that_are_not_read_are_held_or_end_the_connection() {
    // Without a gap, and with one behind each of ten bytes.
    for (with_gaps, packets) in [(false, 8_000), (true, 30_000)] {
        let Forged { connection, frames, server, .. } = Forged::connect_with(Vec::new(), hasty()).await;
        let mut server = server.into_inner();
        server.set_trusted();
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        frames.set(move |payload: &mut [u8]| {
            if payload.len() >= FULL && count.load(Ordering::Relaxed) < packets {
                let number = count.fetch_add(1, Ordering::Relaxed);
                let offset = if with_gaps { 1 + number + number / 10 } else { number };
                payload[..8].copy_from_slice(&one_byte(offset));
                payload[8..68].chunks_exact_mut(3).for_each(|frame| frame.copy_from_slice(&EMPTY));
            }
        });
        send_packets(&connection);
        let mut error = None;
        while error.is_none() && sent.load(Ordering::Relaxed) < packets {
            error = poll_once(&mut server, false).await.err();
            // Each byte is held once, and few packets are waiting.
            assert!(server.held_bytes() <= packets + 1_000, "{}", server.held_bytes());
            wait(Duration::from_millis(1)).await;
        }
        let sent = sent.load(Ordering::Relaxed);
        println!("{sent} packets, {error:?}");
        if with_gaps {
            let error = error.expect("an end");
            assert!(error.to_string().contains("too many gaps"), "{error}");
            assert!((10 * 1_000..10 * 2_200).contains(&sent), "{sent}");
            continue;
        }
        assert!(error.is_none(), "{error:?}");
        let mut quiet = 0;
        while quiet < 100 {
            let reads = poll_once(&mut server, true).await.expect("the link lives");
            quiet = if reads.is_empty() { quiet + 1 } else { 0 };
            assert!(reads.iter().all(|read| *read == Read::Bytes(StreamKey::bidi(1))), "{reads:?}");
            wait(Duration::from_millis(1)).await;
        }
        assert_eq!(server.held_bytes(), 0);
    }
}
