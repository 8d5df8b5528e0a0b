//! A link of many streams, against a raw client of the QUIC library, on a simulated network.

mod classes;
mod client;
mod closing;
mod datagrams;
mod ends;
mod moving;
mod paths;
mod reading;
mod receive_window;
mod roaming;
mod silence;
mod trust;
mod window;
mod writing;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use braid_proto::stream::StreamKey;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Host, Network};
use braid_transport::{ListenOptions, Listener, Read};
use noq::{Connection, Endpoint, RecvStream, SendStream, TransportConfig};
use tokio::io::ReadBuf;
use tokio::time::{sleep, timeout};

use crate::driven::Link;
use crate::noq_peer;
use crate::quic::raw_config;
use crate::support::{Pki, accept, address};

/// Longer than anything takes that needs no lost packet to be noticed; the round trip is 2 ms.
const A_WHILE: Duration = Duration::from_millis(60);

/// Nothing takes so long.
const A_MINUTE: Duration = Duration::from_secs(60);

/// A server's link, and the client at its other end.
struct Scene {
    server: Link,
    client: Connection,
    send: SendStream,
    recv: RecvStream,
    device: Host,
    _endpoint: Endpoint,
    _listener: Listener,
}

impl Scene {
    async fn new() -> Self {
        Self::with(QuicOptions::server()).await
    }

    async fn with(quic: QuicOptions) -> Self {
        Self::between(quic, TransportConfig::default()).await
    }

    async fn between(quic: QuicOptions, client: TransportConfig) -> Self {
        let (pki, network) = (Pki::new(), Network::new(7));
        let options = ListenOptions { quic, ..ListenOptions::default() };
        let mut listener = network.host("server").listen(pki.server(), &options).expect("listen");
        let device = network.host("device");
        let endpoint = noq_peer::endpoint(&device, None);
        let mut config = raw_config(&pki, "mqtt");
        config.transport_config(Arc::new(client));
        let connecting = endpoint.connect_with(config, address(&listener), "localhost").expect("connect");
        let client = tokio::spawn(async move {
            let connection = connecting.await.expect("handshake");
            let (mut send, recv) = connection.open_bi().await.expect("open");
            send.write_all(b"!").await.expect("write");
            (connection, send, recv)
        });
        let mut server = accept(&mut listener).await.await.expect("join").expect("handshake");
        let (client, send, recv) = client.await.expect("join");
        assert_eq!(next(&mut server).await, (Read::Bytes(StreamKey::CONTROL), b"!".to_vec()));
        Self { server, client, send, recv, device, _endpoint: endpoint, _listener: listener }
    }

    /// Opens a stream, of which the server knows then.
    async fn open(&mut self) -> (StreamKey, SendStream, RecvStream) {
        let (mut send, recv) = self.client.open_bi().await.expect("open");
        // A stream is opened by its first byte.
        send.write_all(b"!").await.expect("write");
        let key = StreamKey::bidi(u32::try_from(send.id().index()).expect("a small number"));
        assert_eq!(next(&mut self.server).await.0, Read::Opened(key));
        assert_eq!(next(&mut self.server).await, (Read::Bytes(key), b"!".to_vec()));
        (key, send, recv)
    }
}

/// Links at both ends of a connection from a host, the server's first, which has read a byte.
async fn links(network: &Network, device: &Host) -> (Link, Link, Listener) {
    let pki = Pki::new();
    let mut listener = network.listen(pki.server(), &ListenOptions::default()).expect("listen");
    let connector = device.connector(address(&listener), pki.client(), QuicOptions::client());
    let client = tokio::spawn(async move {
        let mut client = Link::from(connector.connect().await.expect("connect"));
        write(&mut client, StreamKey::CONTROL, b"!").await;
        client
    });
    let mut server = accept(&mut listener).await.await.expect("join").expect("handshake");
    let client = client.await.expect("join");
    assert_eq!(next(&mut server).await.1, b"!");
    (server, client, listener)
}

/// The next action of the peer, with its bytes.
async fn next(link: &mut Link) -> (Read, Vec<u8>) {
    next_of(link, |_| true).await
}

async fn next_of(link: &mut Link, wants: impl FnMut(StreamKey) -> bool) -> (Read, Vec<u8>) {
    try_next(link, wants).await.expect("the link lives")
}

async fn try_next(link: &mut Link, mut wants: impl FnMut(StreamKey) -> bool) -> io::Result<(Read, Vec<u8>)> {
    let mut bytes = vec![0; 16 * 1024];
    let mut buffer = ReadBuf::new(&mut bytes);
    let read = timeout(A_MINUTE, poll_fn(|cx| link.poll_read(cx, &mut buffer, &mut wants)));
    let read = read.await.expect("something happens within a minute")?;
    Ok((read, buffer.filled().to_vec()))
}

/// Writes all of it, however long that takes.
async fn write(link: &mut Link, stream: StreamKey, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let slices = [IoSlice::new(bytes)];
        let written = poll_fn(|cx| link.poll_write(cx, stream, &slices)).await.expect("write");
        bytes = &bytes[written..];
    }
}

/// Writes what is taken at once.
pub(crate) fn write_now(link: &mut Link, stream: StreamKey, bytes: &[u8]) -> Poll<usize> {
    let mut cx = Context::from_waker(Waker::noop());
    link.poll_write(&mut cx, stream, &[IoSlice::new(bytes)]).map(|written| written.expect("write"))
}

/// Writes until no more is taken; how much that was.
pub(crate) fn fill(link: &mut Link, stream: StreamKey) -> usize {
    let mut total = 0;
    while let Poll::Ready(written) = write_now(link, stream, &[7; 10_000]) {
        total += written;
    }
    total
}

/// Writes until the peer's flow control allows no more on this stream; how much that was.
async fn exhaust(link: &mut Link, stream: StreamKey) -> usize {
    let mut total = 0;
    loop {
        let written = fill(link, stream);
        if written == 0 {
            return total;
        }
        total += written;
        wait(A_WHILE).await;
    }
}

/// Waits on the paused clock, which moves only when all tasks are idle.
async fn wait(duration: Duration) {
    tokio::time::advance(Duration::ZERO).await; // Panics if the clock is a real one.
    let nothing = timeout(duration, std::future::pending::<()>()).await;
    assert!(nothing.is_err());
}

/// Polls the link as its driver would while something else happens.
async fn drive<T>(link: &mut Link, other: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        read = next(link) => panic!("{read:?}"),
        outcome = other => outcome,
    }
}
