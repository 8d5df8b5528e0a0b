//! Tests of panics and errors inside the QUIC library, with a socket that fails on purpose.

use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use braid_proto::stream::StreamKey;
use bytes::Bytes;
use h3::quic::{Connection, OpenStreams, RecvStream, SendStreamUnframed};
use noq::udp::{RecvMeta, Transmit};
use noq::{AsyncTimer, AsyncUdpSocket, Runtime, UdpSender};
use tokio::io::ReadBuf;
use tokio::time::timeout;

use super::amplification::AmplificationLimit;
use super::config::QuicOptions;
use super::endpoint::{EndpointHealth, QuicListener};
use super::quic_lb::QuicLb;
use super::runtime::GuardedRuntime;
use crate::certificate::self_signed;
use crate::http::{Http3Bidi, Http3Connection, connect_http3};
use crate::link::Link;
use crate::tls::{ClientAuth, ClientTls, ClientTlsOptions, ServerTls};
use crate::transport::{Dir, Read, Transport};
use crate::{ConnectOptions, Target, connect};

/// Address to which sending panics.
type Victim = Arc<Mutex<Option<SocketAddr>>>;

#[derive(Debug, Default)]
struct FaultyRuntime {
    guarded: GuardedRuntime,
    victim: Victim,
    /// The next receive fails, once.
    fails_on_receive: Arc<AtomicBool>,
    /// Receiving panics, in the task of the endpoint.
    panics_on_receive: Arc<AtomicBool>,
    /// Accepting panics, in a call on the endpoint.
    panics_on_accept: Arc<AtomicBool>,
    /// No socket can be opened.
    fails_on_open: Arc<AtomicBool>,
}

impl Runtime for FaultyRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        self.guarded.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.guarded.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Box<dyn AsyncUdpSocket>> {
        if self.fails_on_open.load(Ordering::Relaxed) {
            return Err(io::Error::other("an error on purpose, instead of a socket"));
        }
        let inner = self.guarded.wrap_udp_socket(socket)?;
        Ok(Box::new(FaultySocket {
            inner,
            victim: Arc::clone(&self.victim),
            fails_on_receive: Arc::clone(&self.fails_on_receive),
            panics_on_receive: Arc::clone(&self.panics_on_receive),
            panics_on_accept: Arc::clone(&self.panics_on_accept),
        }))
    }
}

#[derive(Debug)]
struct FaultySocket {
    inner: Box<dyn AsyncUdpSocket>,
    victim: Victim,
    fails_on_receive: Arc<AtomicBool>,
    panics_on_receive: Arc<AtomicBool>,
    panics_on_accept: Arc<AtomicBool>,
}

impl AsyncUdpSocket for FaultySocket {
    /// The library calls it for each connection that it accepts.
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        assert!(
            !self.panics_on_accept.load(Ordering::Relaxed),
            "a panic on purpose, in a call on the endpoint"
        );
        Box::pin(FaultySender { inner: self.inner.create_sender(), victim: Arc::clone(&self.victim) })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = self.inner.poll_recv(cx, bufs, meta);
        let panics = received.is_ready() && self.panics_on_receive.load(Ordering::Relaxed);
        assert!(!panics, "a panic on purpose, in the task of the endpoint");
        match received.is_ready() && self.fails_on_receive.swap(false, Ordering::Relaxed) {
            true => Poll::Ready(Err(io::Error::other("an error on purpose, in the task of the endpoint"))),
            false => received,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_receive_segments(&self) -> NonZeroUsize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

#[derive(Debug)]
struct FaultySender {
    inner: Pin<Box<dyn UdpSender>>,
    victim: Victim,
}

impl UdpSender for FaultySender {
    fn poll_send(
        mut self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let victim = *self.victim.lock().expect("not poisoned");
        assert!(victim != Some(transmit.destination), "a panic on purpose, inside the QUIC stack");
        self.inner.as_mut().poll_send(transmit, cx)
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        self.inner.max_transmit_segments()
    }
}

async fn write(link: &mut Link, stream: StreamKey, bytes: &[u8]) -> io::Result<usize> {
    poll_fn(|cx| link.poll_write(cx, stream, &[IoSlice::new(bytes)])).await
}

/// The next byte of any stream.
async fn read(link: &mut Link) -> io::Result<u8> {
    let mut byte = [0];
    loop {
        let mut buffer = ReadBuf::new(&mut byte);
        if let Read::Bytes(_) = poll_fn(|cx| link.poll_read(cx, &mut buffer, &mut |_| true)).await? {
            return Ok(byte[0]);
        }
    }
}

/// A listener on this runtime, and the configuration of its clients.
fn listen(runtime: Arc<FaultyRuntime>) -> (QuicListener, ClientTls) {
    listen_with(runtime, &QuicOptions::server())
}

fn listen_with(runtime: Arc<FaultyRuntime>, options: &QuicOptions) -> (QuicListener, ClientTls) {
    listen_at(runtime, options, SocketAddr::from(([127, 0, 0, 1], 0)))
}

fn listen_at(
    runtime: Arc<FaultyRuntime>,
    options: &QuicOptions,
    address: SocketAddr,
) -> (QuicListener, ClientTls) {
    let dir = tempfile::tempdir().expect("directory");
    let files = self_signed(dir.path(), &["localhost".to_owned()]).expect("pair");
    let ca_files = vec![files.certificate.clone()];
    let alpn = vec![options.alpn.to_owned()];
    let client = ClientTls::new(ClientTlsOptions { ca_files, alpn, ..ClientTlsOptions::default() });
    client.check().expect("the files are read before they are deleted");
    let server = ServerTls::load(files, ClientAuth::None).expect("load");
    let failures = runtime.guarded.failures();
    let limit = AmplificationLimit::default();
    let listener = QuicListener::bind_on(runtime, failures, limit, server, address, options).expect("bind");
    (listener, client)
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
    let runtime = Arc::new(FaultyRuntime::default());
    let victim = Arc::clone(&runtime.victim);
    let (mut listener, client) = listen(runtime);
    let (mut struck, _its_client) = pair(&mut listener, &client).await;
    let (mut spared, mut spared_client) = pair(&mut listener, &client).await;
    let data = StreamKey::bidi(1);

    *victim.lock().expect("not poisoned") = struck.peer().address;
    write(&mut struck, data, b"into the trap").await.expect("taken, not sent");
    // The task that would wake this reader is gone.
    let error = read(&mut struck).await.expect_err("broken");
    assert!(error.to_string().contains("the QUIC stack failed"), "{error}");
    for stream in [StreamKey::CONTROL, data] {
        let error = write(&mut struck, stream, b"more").await.expect_err("broken");
        assert!(error.to_string().contains("the QUIC stack failed"), "{error}");
    }
    struck.abort(data, 1);
    drop(struck);

    write(&mut spared_client, data, b"x").await.expect("write");
    assert_eq!(read(&mut spared).await.expect("read"), b'x');
    let (mut server, mut client) = pair(&mut listener, &client).await;
    write(&mut server, data, b"y").await.expect("write");
    assert_eq!(read(&mut client).await.expect("read"), b'y');
}

#[tokio::test]
async fn a_panic_of_the_stack_ends_one_connection_of_http3() {
    let runtime = Arc::new(FaultyRuntime::default());
    let victim = Arc::clone(&runtime.victim);
    let options = QuicOptions::http3_server(8, Duration::from_secs(60));
    let (mut listener, tls) = listen_with(runtime, &options);
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
    *victim.lock().expect("not poisoned") = struck.peer().address;
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
async fn a_link_that_broke_unnoticed_can_be_closed_and_dropped() {
    let runtime = Arc::new(FaultyRuntime::default());
    let (victim, mut failures) = (Arc::clone(&runtime.victim), runtime.guarded.failures());
    let (mut listener, client) = listen(runtime);
    for close_first in [true, false] {
        let (mut struck, _its_client) = pair(&mut listener, &client).await;
        *victim.lock().expect("not poisoned") = struck.peer().address;
        write(&mut struck, StreamKey::bidi(1), b"into the trap").await.expect("taken, not sent");
        failures.changed().await.expect("the runtime lives");
        if close_first {
            let close = crate::Close { code: 0, stop: None };
            poll_fn(|cx| struck.poll_close(cx, close)).await.expect_err("broken");
        }
        drop(struck);
    }
}

#[tokio::test]
async fn endpoint_whose_task_ends_is_restarted_on_its_port() {
    let runtime = Arc::new(FaultyRuntime::default());
    let fails_on_receive = Arc::clone(&runtime.fails_on_receive);
    let (mut listener, client) = listen(runtime);
    let address = listener.local_addr();
    let (mut lost, mut lost_client) = pair(&mut listener, &client).await;
    fails_on_receive.store(true, Ordering::Relaxed);
    write(&mut lost_client, StreamKey::bidi(1), b"the last").await.expect("taken");

    let error = failure(&mut listener).await;
    assert!(error.contains("was restarted"), "{error}");
    assert_eq!(listener.health(), EndpointHealth { restarts: 1, is_available: true });
    assert_eq!(listener.local_addr(), address);
    // The link does not wait for its idle timeout.
    timeout(LIMIT, read(&mut lost)).await.expect("noticed").expect_err("lost");

    let (mut server, mut client) = pair(&mut listener, &client).await;
    write(&mut server, StreamKey::bidi(1), b"y").await.expect("write");
    assert_eq!(read(&mut client).await.expect("read"), b'y');
}

/// A connection ID of QUIC-LB is recognised by the endpoint that follows, and answered with a stateless reset (RFC
/// 9000, 10.3), so that the client does not wait for its idle timeout.
#[tokio::test]
async fn clients_of_a_restarted_endpoint_get_a_stateless_reset() {
    let runtime = Arc::new(FaultyRuntime::default());
    let fails_on_receive = Arc::clone(&runtime.fails_on_receive);
    let server_id = "0102".parse().expect("server ID");
    let lb = QuicLb::new(0, server_id, 8, Some([9; 16].into())).expect("configuration");
    let options = QuicOptions { quic_lb: Some(lb), ..QuicOptions::server() };
    let (mut listener, client) = listen_with(runtime, &options);
    let (_lost, mut lost_client) = pair(&mut listener, &client).await;
    fails_on_receive.store(true, Ordering::Relaxed);
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
        let (mut listener, tls) = listen_with(Arc::default(), &first);
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

    let (_next, _) = listen_at(Arc::default(), &options, address);
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
    let runtime = Arc::new(FaultyRuntime::default());
    let (fails_on_receive, fails_on_open) =
        (Arc::clone(&runtime.fails_on_receive), Arc::clone(&runtime.fails_on_open));
    let (mut listener, client) = listen(runtime);
    let (_lost, mut lost_client) = pair(&mut listener, &client).await;
    fails_on_open.store(true, Ordering::Relaxed);
    fails_on_receive.store(true, Ordering::Relaxed);
    write(&mut lost_client, StreamKey::bidi(1), b"the last").await.expect("taken");
    for _ in 0..2 {
        let error = failure(&mut listener).await;
        assert!(error.contains("cannot restart"), "{error}");
        assert_eq!(listener.health(), EndpointHealth { restarts: 0, is_available: false });
    }
    fails_on_open.store(false, Ordering::Relaxed);
    let error = failure(&mut listener).await;
    assert!(error.contains("was restarted"), "{error}");
    assert_eq!(listener.health(), EndpointHealth { restarts: 1, is_available: true });
}

/// Variable of the environment with the panic that this process runs into.
const PANIC: &str = "BRAID_TRANSPORT_PANIC";

/// Name of the test that panics in processes of its own.
const ABORTING_TEST: &str = "quic::panic_tests::a_panic_that_no_guard_can_catch_aborts_the_process";

/// A change of this behaviour, after an update of the library, makes a restart possible: see `panic_guard`.
#[test]
fn a_panic_that_no_guard_can_catch_aborts_the_process() {
    if let Ok(place) = std::env::var(PANIC) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        return runtime.block_on(panic_at(&place));
    }
    for place in ["task of the endpoint", "call on the endpoint", "task of a connection without handles"] {
        let child = Command::new(std::env::current_exe().expect("path"))
            .args(["--exact", ABORTING_TEST, "--nocapture"])
            .env(PANIC, place)
            .output()
            .expect("run");
        let stderr = String::from_utf8_lossy(&child.stderr);
        assert!(stderr.contains("a panic on purpose"), "{place}: {stderr}");
        assert_eq!(child.status.code(), None, "{place}: no signal has ended the process: {stderr}");
    }
}

async fn panic_at(place: &str) {
    let runtime = Arc::new(FaultyRuntime::default());
    let (victim, panics_on_receive, panics_on_accept) = (
        Arc::clone(&runtime.victim),
        Arc::clone(&runtime.panics_on_receive),
        Arc::clone(&runtime.panics_on_accept),
    );
    let (mut listener, client) = listen(runtime);
    let (server, mut other) = pair(&mut listener, &client).await;
    match place {
        "task of the endpoint" => {
            panics_on_receive.store(true, Ordering::Relaxed);
            write(&mut other, StreamKey::bidi(1), b"the last").await.expect("taken");
        }
        "call on the endpoint" => {
            panics_on_accept.store(true, Ordering::Relaxed);
            let address = listener.local_addr().expect("address");
            tokio::spawn(async move { dial(address, &client).await });
            let incoming = listener.accept().await.expect("accept");
            incoming.handshake().await.expect_err("the panic is caught");
        }
        _ => {
            *victim.lock().expect("not poisoned") = server.peer().address;
            drop(server);
        }
    }
    // Time for the task to run.
    let _ = timeout(LIMIT, listener.accept()).await;
}
