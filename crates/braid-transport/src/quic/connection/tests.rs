//! Memory that a link keeps for its streams.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::task::Poll;

use braid_proto::stream::{Priority, StreamKey};
use tokio::io::ReadBuf;

use super::{ConnectionState, Multi};
use crate::certificate::self_signed;
use crate::link::Link;
use crate::quic::codes::CLOSE_ABNORMAL;
use crate::quic::{QuicOptions, ReceiveBudget};
use crate::sim::{Conditions, Network};
use crate::tls::{ClientAuth, ClientTls, ClientTlsOptions, ServerTls};
use crate::transport::{Close, Dir, Read};
use crate::{ListenOptions, Listener};

/// Both ends of a new connection: server, client.
pub(super) async fn pair() -> (Listener, Link, Link) {
    pair_behind(|_| ()).await
}

async fn pair_behind(change: impl Fn(&mut Conditions)) -> (Listener, Link, Link) {
    pair_with(QuicOptions::server(), change).await
}

pub(super) async fn pair_with(quic: QuicOptions, change: impl Fn(&mut Conditions)) -> (Listener, Link, Link) {
    let dir = tempfile::tempdir().expect("directory");
    let files = self_signed(dir.path(), &["localhost".to_owned()]).expect("pair");
    let ca_files = vec![files.certificate.clone()];
    let client = ClientTls::new(ClientTlsOptions { ca_files, ..ClientTlsOptions::default() });
    let server = ServerTls::load(files, ClientAuth::None).expect("load");
    let network = Network::new(5);
    let mut listener =
        network.listen(server, &ListenOptions { quic, ..ListenOptions::default() }).expect("listen");
    let address = listener.local_addr().expect("address");
    let device = network.host("device");
    device.change(change);
    let connector = device.connector(address, client, QuicOptions::client());
    let connect = async {
        let mut client = connector.connect().await.expect("connect");
        write(&mut client, StreamKey::CONTROL).await;
        client
    };
    let accept = async { listener.accept().await.expect("accept").handshake().await.expect("handshake") };
    let (client, mut server) = tokio::join!(connect, accept);
    assert_eq!(next(&mut server).await, Read::Bytes(StreamKey::CONTROL));
    (listener, server, client)
}

pub(super) async fn next(link: &mut Link) -> Read {
    next_wanted(link, |_| true).await
}

/// The next read of a stream that is wanted.
async fn next_wanted(link: &mut Link, wants: impl FnMut(StreamKey) -> bool) -> Read {
    try_next(link, wants).await.expect("the link lives")
}

async fn try_next(link: &mut Link, mut wants: impl FnMut(StreamKey) -> bool) -> io::Result<Read> {
    let mut bytes = [0; 64];
    let mut buffer = ReadBuf::new(&mut bytes);
    poll_fn(|cx| {
        let read = link.poll_read(cx, &mut buffer, &mut wants);
        let _ = link.poll_flush(cx);
        read
    })
    .await
}

pub(super) async fn write(link: &mut Link, stream: StreamKey) {
    let written = poll_fn(|cx| {
        let written = link.poll_write(cx, stream, &[IoSlice::new(b"!")]);
        let _ = link.poll_flush(cx);
        written
    })
    .await;
    assert_eq!(written.expect("write"), 1);
}

pub(super) fn state(link: &mut Link) -> &mut ConnectionState {
    let Link::Multi(Multi { state: Some(state), .. }) = link else { panic!("a link of many streams") };
    state
}

/// Answers every stream, and its end with the end of the other direction.
async fn answer(link: &mut Link, mut streams: usize, abort: bool) {
    while streams > 0 {
        match next(link).await {
            Read::Bytes(key) if !key.is_uni() => write(link, key).await,
            Read::Finished(key) => {
                if abort {
                    link.abort(key, 0x83);
                } else {
                    link.finish(key);
                }
                streams -= 1;
            }
            Read::Opened(_) | Read::Bytes(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Entries of all collections that grow with streams.
fn entries(link: &Link) -> usize {
    let Link::Multi(Multi { state: Some(state), .. }) = link else { panic!("a link of many streams") };
    let (reads, writes) = (&state.reads, &state.writes);
    let queued = reads.queue.len() + reads.notices.len();
    state.streams.len() + queued + writes.active.len() + writes.scheduler.len()
}

#[tokio::test(start_paused = true)]
async fn streams_that_are_over_leave_nothing() {
    let (_listener, mut server, mut client) = pair().await;
    for dir in [Dir::Bidi, Dir::Uni] {
        for _ in 0..100 {
            let visits = async {
                for _ in 0..50 {
                    let key = poll_fn(|cx| client.poll_open(cx, dir)).await.expect("open");
                    write(&mut client, key).await;
                    client.finish(key);
                    // Both halves of a bidirectional stream end.
                    while dir == Dir::Bidi && next(&mut client).await != Read::Finished(key) {}
                    // The end of a unidirectional stream waits for a read.
                    if dir == Dir::Uni {
                        tokio::select! {
                            read = next(&mut client) => panic!("{read:?}"),
                            () = tokio::time::sleep(std::time::Duration::from_millis(60)) => {}
                        }
                    }
                }
            };
            let answers = async {
                tokio::select! {
                    () = answer(&mut server, usize::MAX, false) => {}
                    () = visits => {}
                }
            };
            answers.await;
        }
        assert_eq!(entries(&client), 0, "{dir:?}");
        assert_eq!(entries(&server), 0, "{dir:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn streams_that_were_aborted_leave_nothing_in_the_link() {
    let (_listener, mut server, mut client) = pair().await;
    for _ in 0..5_000 {
        let key = poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open");
        write(&mut client, key).await;
        client.finish(key);
        let ended =
            async { while !matches!(next(&mut client).await, Read::Reset(..) | Read::Stopped(..)) {} };
        tokio::select! {
            () = answer(&mut server, usize::MAX, true) => {}
            () = ended => {}
        }
        client.abort(key, 0x83);
    }
    assert_eq!((entries(&client), entries(&server)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_received_and_not_read_are_estimated() {
    let (_listener, mut server, mut client) = pair().await;
    server.set_trusted();
    let total = 512 << 10;
    let key = poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open");
    let payload = vec![7; total];
    let mut written = 0;
    while written < total {
        // Either end wakes this task; the server reads its control stream only.
        poll_fn(|cx| {
            let mut bytes = [0; 64];
            let mut buffer = ReadBuf::new(&mut bytes);
            while let Poll::Ready(read) = server.poll_read(cx, &mut buffer, &mut |key| key.is_control()) {
                assert_eq!(read.expect("the link lives"), Read::Opened(key));
            }
            assert!(client.poll_read(cx, &mut buffer, &mut |_| true).is_pending());
            let _ = server.poll_flush(cx);
            let _ = client.poll_flush(cx);
            let taken = std::task::ready!(client.poll_write(cx, key, &[IoSlice::new(&payload[written..])]));
            written += taken.expect("write");
            Poll::Ready(())
        })
        .await;
    }
    write(&mut client, StreamKey::CONTROL).await;
    let arrival = async {
        while next_wanted(&mut server, StreamKey::is_control).await != Read::Bytes(StreamKey::CONTROL) {}
        tokio::select! {
            read = next_wanted(&mut server, StreamKey::is_control) => read,
            read = next(&mut client) => read,
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(5), arrival).await.expect_err("all has arrived");
    let unread = server.unread_bytes();
    assert!((total..total + total / 20).contains(&unread), "{unread} of {total}");
    let mut left = total;
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        let mut buffer = ReadBuf::new(&mut buffer);
        let read =
            poll_fn(|cx| server.poll_read(cx, &mut buffer, &mut |_| true)).await.expect("the link lives");
        assert!(matches!(read, Read::Bytes(_)), "{read:?}");
        left -= buffer.filled().len();
    }
    tokio::time::timeout(std::time::Duration::from_secs(1), next(&mut server))
        .await
        .expect_err("all is read");
    assert_eq!(server.unread_bytes(), 0);
}

/// The peer is gone: neither acknowledgements nor room for the rest are waited for.
#[tokio::test(start_paused = true)]
async fn the_close_of_a_lost_connection_takes_no_time() {
    let (_listener, mut server, mut client) = pair().await;
    let key = poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open");
    write(&mut client, key).await;
    while next(&mut server).await != Read::Bytes(key) {}
    for stream in [StreamKey::CONTROL, key] {
        write(&mut server, stream).await;
    }
    // CONNECTION_CLOSE leaves at once, without FIN.
    client.close_by(tokio::time::Instant::now().into_std());
    drop(client);
    while try_next(&mut server, |_| true).await.is_ok_and(|read| read != Read::Closed) {}
    let begin = tokio::time::Instant::now();
    let close = Close { code: CLOSE_ABNORMAL, stop: None };
    poll_fn(|cx| server.poll_close(cx, close)).await.expect("closed");
    assert!(begin.elapsed().is_zero(), "{:?}", begin.elapsed());
}

/// The endpoint of the connection is gone, and may have given its place to another.
#[tokio::test(start_paused = true)]
async fn a_lost_connection_sends_nothing_more() {
    let (_listener, mut server, mut client) = pair().await;
    let written = poll_fn(|cx| server.poll_write(cx, StreamKey::CONTROL, &[IoSlice::new(b"!")])).await;
    assert_eq!(written.expect("write"), 1);
    state(&mut server).connection.lose("on purpose");
    try_next(&mut server, |_| true).await.expect_err("lost");
    // The endpoint may answer what the client sends with a stateless reset.
    let read = tokio::time::timeout(std::time::Duration::from_secs(5), try_next(&mut client, |_| true)).await;
    assert!(!matches!(read, Ok(Ok(_))), "{read:?}");
}

/// FIN has a frame of its own even if the turn between took longer than the wait for it. [BQ-31]
#[tokio::test(start_paused = true)]
async fn the_fin_after_a_long_turn_does_not_travel_with_its_bytes() {
    let (_listener, mut server, mut client) = pair().await;
    let key = poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open");
    write(&mut client, key).await;
    while next(&mut server).await != Read::Bytes(key) {}
    let frames = |link: &mut Link| state(link).connection.stats().frame_tx.stream;
    let before = frames(&mut server);
    let written = poll_fn(|cx| server.poll_write(cx, key, &[IoSlice::new(b"!")])).await;
    assert_eq!(written.expect("write"), 1);
    server.finish(key);
    tokio::time::advance(std::time::Duration::from_secs(4)).await;
    tokio::select! {
        read = next(&mut server) => panic!("{read:?}"),
        () = async { while next(&mut client).await != Read::Finished(key) {} } => {}
    }
    assert_eq!(frames(&mut server) - before, 2);
}

/// Small messages, a packet each, on a stream that is not read for long.
#[tokio::test(start_paused = true)]
async fn an_unread_stream_of_many_packets_ends_no_connection() {
    const MESSAGES: usize = 5_000;
    let (_listener, mut server, mut client) = pair().await;
    server.set_trusted();
    let key = poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open");
    let message = [7; 100];
    for _ in 0..MESSAGES {
        let written = poll_fn(|cx| {
            let written = client.poll_write(cx, key, &[IoSlice::new(&message)]);
            let _ = client.poll_flush(cx);
            written
        });
        assert_eq!(written.await.expect("write"), message.len());
        tokio::select! {
            read = next_wanted(&mut server, StreamKey::is_control) => assert_eq!(read, Read::Opened(key)),
            read = next(&mut client) => panic!("{read:?}"),
            () = tokio::time::sleep(std::time::Duration::from_millis(1)) => {}
        }
    }
    let total = MESSAGES * message.len();
    assert!((total..2 * total).contains(&server.unread_bytes()), "{}", server.unread_bytes());
    let mut left = total;
    let mut buffer = vec![0; 10_000];
    while left > 0 {
        let mut buffer = ReadBuf::new(&mut buffer);
        let read = poll_fn(|cx| server.poll_read(cx, &mut buffer, &mut |_| true)).await;
        assert_eq!(read.expect("the link lives"), Read::Bytes(key));
        assert!(buffer.filled().iter().all(|byte| *byte == 7));
        left -= buffer.filled().len();
    }
}

/// Pieces that are taken out of the library before they are wanted give the peer no credit. [BQ-55]
#[tokio::test(start_paused = true)]
async fn an_unread_stream_of_full_packets_gets_no_more_than_its_window() {
    const WINDOW: usize = 7 << 19;
    let (_listener, mut server, mut client) = pair_behind(|link| link.mtu = 1200).await;
    server.set_trusted();
    let key = poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open");
    let (mut sent, mut memory) = (0, [0; 64]);
    let mut end = Box::pin(tokio::time::sleep(std::time::Duration::from_secs(30)));
    poll_fn(|cx| {
        let mut buffer = ReadBuf::new(&mut memory);
        while let Poll::Ready(read) = server.poll_read(cx, &mut buffer, &mut |key| key.is_control()) {
            assert_eq!(read.expect("the link lives"), Read::Opened(key));
        }
        assert!(client.poll_read(cx, &mut buffer, &mut |_| true).is_pending());
        while let Poll::Ready(written) = client.poll_write(cx, key, &[IoSlice::new(&[7; 10_000])]) {
            sent += written.expect("write");
        }
        let _ = (server.poll_flush(cx), client.poll_flush(cx));
        end.as_mut().poll(cx)
    })
    .await;
    assert_eq!(sent, WINDOW);
    assert!(state(&mut server).window.held() > 0, "pieces were taken");
}

/// Streams that are not read take little, and leave room for alarms. [BQ-55]
#[tokio::test(start_paused = true)]
async fn unread_streams_take_little_and_leave_alarms_their_room() {
    const ALARM: usize = 500;
    let (_listener, mut server, mut client) = pair_with(
        QuicOptions { receive_budget: ReceiveBudget::new(1 << 20), ..QuicOptions::server() },
        |_| (),
    )
    .await;
    server.set_trusted();
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open"));
    }
    let alarms = streams.remove(0);
    client.set_priority(alarms, Priority::HIGHEST);
    let (mut sent, mut memory, start) = (0, [0; 4096], tokio::time::Instant::now());
    for _ in 0..100 {
        let begin = tokio::time::Instant::now();
        let mut pause = Box::pin(tokio::time::sleep(std::time::Duration::from_millis(100)));
        let (mut unsent, mut received, mut took) = (ALARM, 0, None);
        poll_fn(|cx| {
            let mut buffer = ReadBuf::new(&mut memory);
            while let Poll::Ready(read) = server.poll_read(cx, &mut buffer, &mut |key| key == alarms) {
                assert!(matches!(read, Ok(Read::Opened(_) | Read::Bytes(_))), "{read:?}");
                received += buffer.filled().len();
                buffer.clear();
            }
            assert!(client.poll_read(cx, &mut buffer, &mut |_| true).is_pending());
            if unsent > 0
                && let Poll::Ready(written) =
                    client.poll_write(cx, alarms, &[IoSlice::new(&[7; ALARM][..unsent])])
            {
                unsent -= written.expect("write");
            }
            for key in &streams {
                while let Poll::Ready(written) = client.poll_write(cx, *key, &[IoSlice::new(&[0; 1400])]) {
                    sent += written.expect("write");
                }
            }
            let _ = (server.poll_flush(cx), client.poll_flush(cx));
            if received == ALARM && took.is_none() {
                took = Some(begin.elapsed());
            }
            if took.is_some() { pause.as_mut().poll(cx) } else { Poll::Pending }
        })
        .await;
        let limit = std::time::Duration::from_millis(150) + start.elapsed() / 16;
        assert!(took <= Some(limit), "{took:?} of {limit:?}");
    }
    // Four times the window that the budget gives, what was allowed since, and what the client holds.
    assert!((1 << 20..5 << 19).contains(&sent), "{sent}");
    assert!((1 << 20..3 << 19).contains(&server.unread_bytes()), "{}", server.unread_bytes());
}
