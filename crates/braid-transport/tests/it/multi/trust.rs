//! Bytes that a client may send before its CONNECT is accepted.

use std::sync::atomic::{AtomicUsize, Ordering};

use noq::VarInt;

use super::*;

// [BQ-13]
#[tokio::test(start_paused = true)]
async fn before_trust_all_streams_together_hold_128_kib() {
    let mut scene = Scene::new().await;
    let sent = Arc::new(AtomicUsize::new(0));
    let mut writers = Vec::new();
    for _ in 0..100 {
        let (client, sent) = (scene.client.clone(), Arc::clone(&sent));
        writers.push(tokio::spawn(async move {
            let (mut send, recv) = client.open_bi().await.expect("open");
            let mut left = 100 * 1024;
            while left > 0 {
                let written = send.write(&vec![0; left]).await.expect("write");
                left -= written;
                sent.fetch_add(written, Ordering::Relaxed);
            }
            (send, recv)
        }));
    }
    for _ in 0..2 {
        assert!(matches!(next_of(&mut scene.server, |_| false).await, (Read::Opened(_), _)));
    }
    sleep(Duration::from_secs(1)).await;
    let held = sent.load(Ordering::Relaxed);
    assert!((120_000..=128 << 10).contains(&held), "{held}");

    scene.server.set_trusted();
    for writer in writers {
        writer.await.expect("nothing is read, and all is sent");
    }
    assert_eq!(sent.load(Ordering::Relaxed), 100 * 100 * 1024);
}

#[tokio::test(start_paused = true)]
async fn before_trust_what_is_read_makes_room() {
    let mut scene = Scene::new().await;
    let (mut send, recv) = scene.client.open_bi().await.expect("open");
    let writer = tokio::spawn(async move {
        send.write_all(&vec![0; 3 << 20]).await.expect("write");
        (send, recv)
    });
    let mut received = 0;
    while received < 3 << 20 {
        received += next(&mut scene.server).await.1.len();
    }
    writer.await.expect("join");
}

// [BQ-33]
#[tokio::test(start_paused = true)]
async fn a_stop_is_told_at_once_before_the_client_is_trusted_and_later() {
    let mut scene = Scene::new().await;
    let mut sends = Vec::new();
    for code in [0x8e, 0x8f] {
        let (key, send, mut recv) = scene.open().await;
        sends.push(send);
        recv.stop(VarInt::from_u32(code)).expect("stop");
        assert_eq!(next(&mut scene.server).await, (Read::Stopped(key, code.into()), vec![]));
        scene.server.set_trusted();
    }
}
