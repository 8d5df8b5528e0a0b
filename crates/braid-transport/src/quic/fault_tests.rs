//! Tests of panics and errors inside QUIC, with a socket that fails on purpose.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use bytes::Bytes;
use h3::quic::{Connection, OpenStreams, RecvStream, SendStreamUnframed};
use tokio::io::ReadBuf;
use tokio::time::timeout;

use super::config::QuicOptions;
use super::io::Socket;
use super::listener::{EndpointHealth, QuicListener};
use super::quic_lb::QuicLb;
use crate::certificate::self_signed;
use crate::http::{Http3Bidi, Http3Connection, connect_http3};
use crate::link::Link;
use crate::tls::{ClientAuth, ClientTls, ClientTlsOptions, ServerTls};
use crate::transport::{Dir, Read, Transport};
use crate::{ConnectOptions, Target, connect};

/// Faults of a socket.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Address to which sending panics.
    victim: Mutex<Option<SocketAddr>>,
    /// The next receive fails, once.
    fails_on_receive: AtomicBool,
    /// Receiving panics.
    panics_on_receive: AtomicBool,
    /// No socket can be opened.
    fails_on_open: AtomicBool,
}

impl Faults {
    fn set_victim(&self, address: Option<SocketAddr>) {
        *self.victim.lock().expect("not poisoned") = address;
    }

    fn open(self: &Arc<Self>, socket: UdpSocket) -> io::Result<Socket> {
        if self.fails_on_open.load(Ordering::Relaxed) {
            return Err(io::Error::other("an error on purpose, instead of a socket"));
        }
        let mut socket = Socket::system(socket)?;
        socket.faults = Some(Arc::clone(self));
        Ok(socket)
    }

    pub(super) fn send(&self, to: SocketAddr) {
        let victim = *self.victim.lock().expect("not poisoned");
        assert!(victim != Some(to), "a panic on purpose, inside the QUIC stack");
    }

    pub(super) fn receive(&self) -> io::Result<()> {
        let panics = self.panics_on_receive.swap(false, Ordering::Relaxed);
        assert!(!panics, "a panic on purpose, in the task of the endpoint");
        match self.fails_on_receive.swap(false, Ordering::Relaxed) {
            true => Err(io::Error::other("an error on purpose, in the task of the endpoint")),
            false => Ok(()),
        }
    }
}

async fn write(link: &mut Link, stream: StreamKey, bytes: &[u8]) -> io::Result<usize> {
    poll_fn(|cx| {
        let written = link.poll_write(cx, stream, &[IoSlice::new(bytes)]);
        let _ = link.poll_flush(cx)?;
        written
    })
    .await
}

/// The next byte of any stream.
async fn read(link: &mut Link) -> io::Result<u8> {
    let mut byte = [0];
    let came = poll_fn(|cx| -> Poll<io::Result<()>> {
        let mut buffer = ReadBuf::new(&mut byte);
        while let Poll::Ready(read) = link.poll_read(cx, &mut buffer, &mut |_| true) {
            if let Read::Bytes(_) = read? {
                return Poll::Ready(Ok(()));
            }
        }
        let _ = link.poll_flush(cx)?;
        Poll::Pending
    });
    came.await?;
    Ok(byte[0])
}

/// A listener whose sockets have these faults, and the configuration of its clients.
fn listen(faults: &Arc<Faults>) -> (QuicListener, ClientTls) {
    listen_with(faults, &QuicOptions::server())
}

fn listen_with(faults: &Arc<Faults>, options: &QuicOptions) -> (QuicListener, ClientTls) {
    listen_at(faults, options, SocketAddr::from(([127, 0, 0, 1], 0)))
}

fn listen_at(faults: &Arc<Faults>, options: &QuicOptions, address: SocketAddr) -> (QuicListener, ClientTls) {
    let dir = tempfile::tempdir().expect("directory");
    let files = self_signed(dir.path(), &["localhost".to_owned()]).expect("pair");
    let ca_files = vec![files.certificate.clone()];
    let alpn = vec![options.alpn.to_owned()];
    let client = ClientTls::new(ClientTlsOptions { ca_files, alpn, ..ClientTlsOptions::default() });
    client.check().expect("the files are read before they are deleted");
    let server = ServerTls::load(files, ClientAuth::None).expect("load");
    let faults = Arc::clone(faults);
    let listener = QuicListener::bind_with(server, address, options, move |socket| faults.open(socket));
    (listener.expect("bind"), client)
}

async fn dial(address: SocketAddr, tls: &ClientTls) -> Link {
    let target = Target {
        transport: Transport::Quic,
        host: "localhost".to_owned(),
        port: address.port(),
        path: String::new(),
    };
    connect(&target, tls, &ConnectOptions::default()).await.expect("connect")
}

/// Both ends of a new connection with a data stream: server, client.
async fn pair(listener: &mut QuicListener, tls: &ClientTls) -> (Link, Link) {
    let (address, tls) = (listener.local_addr().expect("address"), tls.clone());
    let client = tokio::spawn(async move {
        let mut client = dial(address, &tls).await;
        write(&mut client, StreamKey::CONTROL, b"!").await.expect("write");
        let data = poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open");
        write(&mut client, data, b"!").await.expect("write");
        client
    });
    let mut server = listener.accept().await.expect("accept").handshake().await.expect("handshake");
    for _ in 0..2 {
        assert_eq!(read(&mut server).await.expect("read"), b'!');
    }
    (server, client.await.expect("join"))
}

#[tokio::test]
async fn a_panic_of_the_stack_ends_one_connection_and_nothing_else() {
    let faults = Arc::new(Faults::default());
    let (mut listener, client) = listen(&faults);
    let (mut struck, its_client) = pair(&mut listener, &client).await;
    let (mut spared, mut spared_client) = pair(&mut listener, &client).await;
    let data = StreamKey::bidi(1);

    faults.set_victim(struck.peer().address);
    // The task of the connection, which it takes with it.
    let task = tokio::spawn(async move { write(&mut struck, data, b"into the trap").await });
    assert!(task.await.expect_err("a panic").is_panic());
    // The endpoint may answer what its client sends on.
    faults.set_victim(None);
    drop(its_client);

    write(&mut spared_client, data, b"x").await.expect("write");
    assert_eq!(read(&mut spared).await.expect("read"), b'x');
    let (mut server, mut client) = pair(&mut listener, &client).await;
    write(&mut server, data, b"y").await.expect("write");
    assert_eq!(read(&mut client).await.expect("read"), b'y');
}

#[tokio::test]
async fn a_panic_of_the_stack_ends_one_connection_of_http3() {
    let faults = Arc::new(Faults::default());
    let options = QuicOptions::http3_server(8, Duration::from_secs(60));
    let (mut listener, tls) = listen_with(&faults, &options);
    let address = listener.local_addr().expect("address");
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let tls = tls.clone();
        let client = tokio::spawn(async move {
            let quic = QuicOptions::http3_client();
            let options = ConnectOptions { quic, ..ConnectOptions::default() };
            connect_http3("localhost", &[address], &tls, &options).await.expect("connect")
        });
        let accepted = listener.accept().await.expect("accept").handshake_http3().await.expect("handshake");
        let mut client = client.await.expect("join");
        let mut stream = open(&mut client).await;
        send(&mut stream, b"\0\x01x").await.expect("written");
        let mut server = accepted;
        let stream_of_server = accept(&mut server).await.expect("a stream");
        pairs.push((server, stream_of_server, client, stream));
    }
    let (mut struck, mut its_stream, _client, _stream) = pairs.remove(0);
    faults.set_victim(struck.peer().address);
    let _ = send(&mut its_stream, b"\0\x01y").await;
    let error = accept(&mut struck).await.expect_err("broken");
    assert!(error.contains("the QUIC stack failed"), "{error}");
    let error = send(&mut its_stream, b"more").await.expect_err("broken");
    assert!(error.contains("the QUIC stack failed"), "{error}");
    assert!(struck.probe().sample().is_err());
    OpenStreams::<Bytes>::close(&mut struck, h3::error::Code::H3_NO_ERROR, b"");
    drop((its_stream, struck));

    let (_spared, mut its_stream, _client, mut stream) = pairs.remove(0);
    send(&mut its_stream, b"\0\x01z").await.expect("written");
    let data = poll_fn(|cx| stream.poll_data(cx)).await.expect("read").expect("bytes");
    assert_eq!(data, b"\0\x01z"[..]);
}

async fn open(connection: &mut Http3Connection) -> Http3Bidi<Bytes> {
    poll_fn(|cx| OpenStreams::<Bytes>::poll_open_bidi(connection, cx)).await.expect("open")
}

async fn accept(connection: &mut Http3Connection) -> Result<Http3Bidi<Bytes>, String> {
    poll_fn(|cx| Connection::<Bytes>::poll_accept_bidi(connection, cx))
        .await
        .map_err(|error| error.to_string())
}

async fn send(stream: &mut Http3Bidi<Bytes>, bytes: &'static [u8]) -> Result<(), String> {
    let mut bytes = Bytes::from_static(bytes);
    while !bytes.is_empty() {
        poll_fn(|cx| stream.poll_send(cx, &mut bytes)).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[tokio::test]
async fn endpoint_whose_task_ends_is_restarted_on_its_port() {
    let faults = Arc::new(Faults::default());
    let (mut listener, client) = listen(&faults);
    let address = listener.local_addr();
    for (restarts, fault) in (1..).zip([&faults.fails_on_receive, &faults.panics_on_receive]) {
        let (mut lost, mut lost_client) = pair(&mut listener, &client).await;
        fault.store(true, Ordering::Relaxed);
        write(&mut lost_client, StreamKey::bidi(1), b"the last").await.expect("taken");

        let error = failure(&mut listener).await;
        assert!(error.contains("was restarted"), "{error}");
        assert_eq!(listener.health(), EndpointHealth { restarts, is_available: true, turned_away: 0 });
        assert_eq!(listener.local_addr(), address);
        // The link does not wait for its idle timeout.
        timeout(LIMIT, read(&mut lost)).await.expect("noticed").expect_err("lost");

        let (mut server, mut client) = pair(&mut listener, &client).await;
        write(&mut server, StreamKey::bidi(1), b"y").await.expect("write");
        assert_eq!(read(&mut client).await.expect("read"), b'y');
    }
}

/// A connection ID of QUIC-LB is recognised by the endpoint that follows, and answered with a stateless reset (RFC
/// 9000, 10.3), so that the client does not wait for its idle timeout.
#[tokio::test]
async fn clients_of_a_restarted_endpoint_get_a_stateless_reset() {
    let faults = Arc::new(Faults::default());
    let server_id = "0102".parse().expect("server ID");
    let lb = QuicLb::new(0, server_id, 8, Some([9; 16].into())).expect("configuration");
    let options = QuicOptions { quic_lb: Some(lb), ..QuicOptions::server() };
    let (mut listener, client) = listen_with(&faults, &options);
    let (_lost, mut lost_client) = pair(&mut listener, &client).await;
    faults.fails_on_receive.store(true, Ordering::Relaxed);
    write(&mut lost_client, StreamKey::bidi(1), b"the last").await.expect("taken");
    assert!(failure(&mut listener).await.contains("was restarted"));
    let error = timeout(LIMIT, read(&mut lost_client)).await.expect("told").expect_err("lost");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

/// A server that starts on the port of one with its server ID and key, as after a crash of the process, resets the
/// connections of that one.
#[tokio::test]
async fn clients_of_a_killed_server_get_a_stateless_reset_from_the_next_one() {
    let server_id = "0102".parse().expect("server ID");
    let lb = QuicLb::new(0, server_id, 8, Some([9; 16].into())).expect("configuration");
    let options = QuicOptions { quic_lb: Some(lb), ..QuicOptions::server() };
    let killed = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let killed = killed.expect("runtime");
    let first = options.clone();
    let up = killed.spawn(async move {
        let (mut listener, tls) = listen_with(&Arc::default(), &first);
        let address = listener.local_addr().expect("address");
        tokio::spawn(async move {
            let link = listener.accept().await.expect("accept").handshake().await.expect("handshake");
            std::future::pending::<()>().await;
            drop((listener, link));
        });
        (address, tls)
    });
    let (address, tls) = up.await.expect("join");
    let mut client = dial(address, &tls).await;
    // Its sockets close, and nothing is sent any more.
    tokio::task::spawn_blocking(|| drop(killed)).await.expect("join");

    let (_next, _) = listen_at(&Arc::default(), &options, address);
    write(&mut client, StreamKey::CONTROL, b"a datagram of some length").await.expect("taken");
    let error = timeout(LIMIT, read(&mut client)).await.expect("told").expect_err("lost");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

/// Limit of the time in which a failure is noticed.
const LIMIT: Duration = Duration::from_secs(20);

/// The error that the listener reports next.
async fn failure(listener: &mut QuicListener) -> String {
    let accepted = timeout(LIMIT, listener.accept()).await.expect("the failure is noticed");
    accepted.err().expect("it is reported").to_string()
}

#[tokio::test]
async fn endpoint_that_cannot_restart_is_unavailable_until_it_can() {
    let faults = Arc::new(Faults::default());
    let (mut listener, client) = listen(&faults);
    let (_lost, mut lost_client) = pair(&mut listener, &client).await;
    faults.fails_on_open.store(true, Ordering::Relaxed);
    faults.fails_on_receive.store(true, Ordering::Relaxed);
    write(&mut lost_client, StreamKey::bidi(1), b"the last").await.expect("taken");
    for _ in 0..2 {
        let error = failure(&mut listener).await;
        assert!(error.contains("cannot restart"), "{error}");
        assert_eq!(listener.health(), EndpointHealth { restarts: 0, is_available: false, turned_away: 0 });
    }
    faults.fails_on_open.store(false, Ordering::Relaxed);
    let error = failure(&mut listener).await;
    assert!(error.contains("was restarted"), "{error}");
    assert_eq!(listener.health(), EndpointHealth { restarts: 1, is_available: true, turned_away: 0 });
}
