//! What a link keeps in memory, seen from inside.

use std::future::poll_fn;
use std::io::IoSlice;

use braid_proto::stream::StreamKey;
use tokio::io::ReadBuf;

use super::Multi;
use crate::certificate::self_signed;
use crate::link::{Dir, Link, Read};
use crate::quic::QuicOptions;
use crate::sim::Network;
use crate::tls::{ClientAuth, ClientTls, ClientTlsOptions, ServerTls};
use crate::{ListenOptions, Listener};

/// Both ends of a new connection: server, client.
async fn pair() -> (Listener, Link, Link) {
    let dir = tempfile::tempdir().expect("directory");
    let files = self_signed(dir.path(), &["localhost".to_owned()]).expect("pair");
    let ca_files = vec![files.certificate.clone()];
    let client = ClientTls::new(ClientTlsOptions { ca_files, ..ClientTlsOptions::default() });
    let server = ServerTls::load(files, ClientAuth::None).expect("load");
    let network = Network::new(5);
    let mut listener = network.listen(server, &ListenOptions::default()).expect("listen");
    let address = listener.local_addr().expect("address");
    let connector = network.host("device").connector(address, client, QuicOptions::client());
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

async fn next(link: &mut Link) -> Read {
    let mut bytes = [0; 64];
    let mut buffer = ReadBuf::new(&mut bytes);
    poll_fn(|cx| link.poll_read(cx, &mut buffer, &mut |_| true)).await.expect("the link lives")
}

async fn write(link: &mut Link, stream: StreamKey) {
    let written = poll_fn(|cx| link.poll_write(cx, stream, &[IoSlice::new(b"!")])).await;
    assert_eq!(written.expect("write"), 1);
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

/// Entries of all that grows with streams.
fn entries(link: &Link) -> usize {
    let Link::Multi(Multi { state: Some(state), .. }) = link else { panic!("a link of many streams") };
    state.streams.len()
        + state.active_priorities.len()
        + state.write_scheduler.len()
        + state.queue.len()
        + state.told.len()
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
                    // Of a bidirectional stream both halves end.
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
