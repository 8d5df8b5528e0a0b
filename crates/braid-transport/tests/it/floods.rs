//! QUIC clients that keep the rules of RFC 9000, and send as many frames as fit into packets.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use braid_transport::Link;
use noq::TransportConfig;
use noq::congestion::CubicConfig;
use tokio::io::ReadBuf;
use tokio::time::sleep as wait;

use crate::peers::{FULL, Forged, send_packets};

/// A client that sends 1 MiB before the first acknowledgement.
fn hasty() -> TransportConfig {
    let mut cubic = CubicConfig::default();
    cubic.initial_window(1 << 20);
    let mut transport = TransportConfig::default();
    transport.congestion_controller_factory(Arc::new(cubic));
    transport
}

/// One poll of the task that owns a link; how many STREAM frames it has taken in.
async fn poll_once(server: &mut Link) -> u64 {
    let before = server.stream_frames().expect("QUIC");
    let mut bytes = vec![0; 16 << 10];
    poll_fn(|cx| {
        while let Poll::Ready(read) = server.poll_read(cx, &mut ReadBuf::new(&mut bytes), &mut |_| true) {
            read.expect("the link lives");
        }
        let _ = server.poll_flush(cx);
        Poll::Ready(())
    })
    .await;
    server.stream_frames().expect("QUIC") - before
}

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
            // With length; stream 4.
            payload.chunks_exact_mut(3).for_each(|frame| frame.copy_from_slice(&[0x0A, 4, 0]));
        }
    });
    send_packets(&connection);
    let (mut most, mut total, mut quiet) = (0, 0, 0);
    while quiet < 100 {
        let frames = poll_once(&mut server).await;
        (most, total) = (most.max(frames), total + frames);
        quiet = if frames == 0 { quiet + 1 } else { 0 };
        wait(Duration::from_millis(1)).await;
    }
    println!("{total} frames, {most} in a poll at most");
    assert!(total > 100_000, "{total} frames");
    assert!(most <= 5_000, "{most} frames in a poll");
}
