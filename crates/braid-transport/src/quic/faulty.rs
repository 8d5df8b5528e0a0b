//! A runtime whose socket panics inside the library, and what is left of the process then.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

use noq::udp::{RecvMeta, Transmit};
use noq::{AsyncTimer, AsyncUdpSocket, Runtime, UdpSender};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::config::QuicOptions;
use super::endpoint::QuicListener;
use super::shield::ShieldedRuntime;
use crate::certificate::self_signed;
use crate::link::{Link, Single, Transport};
use crate::tls::{ClientAuth, ClientTls, ClientTlsOptions, ServerTls};
use crate::{ConnectOptions, Target, connect};

/// Sending to this address panics.
type Victim = Arc<Mutex<Option<SocketAddr>>>;

#[derive(Debug, Default)]
struct FaultyRuntime {
    shielded: ShieldedRuntime,
    victim: Victim,
}

impl Runtime for FaultyRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        self.shielded.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.shielded.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Box<dyn AsyncUdpSocket>> {
        let inner = self.shielded.wrap_udp_socket(socket)?;
        Ok(Box::new(FaultySocket { inner, victim: Arc::clone(&self.victim) }))
    }
}

#[derive(Debug)]
struct FaultySocket {
    inner: Box<dyn AsyncUdpSocket>,
    victim: Victim,
}

impl AsyncUdpSocket for FaultySocket {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(FaultySender { inner: self.inner.create_sender(), victim: Arc::clone(&self.victim) })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
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

async fn pair(listener: &mut QuicListener, tls: &ClientTls) -> (Single, Single) {
    let target = Target {
        transport: Transport::Quic,
        host: "localhost".to_owned(),
        port: listener.local_addr().expect("address").port(),
        path: String::new(),
    };
    let tls = tls.clone();
    let client = tokio::spawn(async move {
        let Link::Single(mut client) =
            connect(&target, &tls, &ConnectOptions::default()).await.expect("connect");
        client.io.write_all(b"!").await.expect("write");
        client
    });
    let Link::Single(mut server) =
        listener.accept().await.expect("accept").handshake().await.expect("handshake");
    assert_eq!(server.io.read_u8().await.expect("read"), b'!');
    (server, client.await.expect("join"))
}

#[tokio::test]
async fn a_panic_of_the_stack_ends_one_connection_and_nothing_else() {
    let dir = tempfile::tempdir().expect("directory");
    let files = self_signed(dir.path(), &["localhost".to_owned()]).expect("pair");
    let ca_files = vec![files.certificate.clone()];
    let client = ClientTls::new(ClientTlsOptions { ca_files, ..ClientTlsOptions::default() });
    let server = ServerTls::load(files, ClientAuth::None).expect("load");
    let runtime = Arc::new(FaultyRuntime::default());
    let (victim, failures) = (Arc::clone(&runtime.victim), runtime.shielded.failures());
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut listener =
        QuicListener::bind_on(runtime, failures, server, anywhere, &QuicOptions::server()).expect("bind");
    let (mut struck, _its_client) = pair(&mut listener, &client).await;
    let (mut spared, mut spared_client) = pair(&mut listener, &client).await;

    *victim.lock().expect("not poisoned") = struck.peer.address;
    struck.io.write_all(b"into the trap").await.expect("taken, not sent");
    // The task that would wake this reader is gone: somebody else has to.
    let error = struck.io.read_u8().await.expect_err("broken");
    assert!(error.to_string().contains("the QUIC stack failed"), "{error}");
    assert!(struck.io.write_all(b"more").await.is_err());
    drop(struck);

    spared_client.io.write_all(b"x").await.expect("write");
    assert_eq!(spared.io.read_u8().await.expect("read"), b'x');
    let (mut server, mut client) = pair(&mut listener, &client).await;
    server.io.write_all(b"y").await.expect("write");
    assert_eq!(client.io.read_u8().await.expect("read"), b'y');
}
