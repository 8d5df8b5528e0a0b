//! Certificates and connected links for the tests.

use std::fs;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use braid_proto::stream::StreamKey;
use braid_transport::{
    CertificateFiles, ClientAuth, ClientTls, ClientTlsOptions, Close, ConnectError, ConnectOptions,
    HandshakeError, ListenOptions, Listener, ListenerKind, Peer, Read, ServerTls, Target, Transport, connect,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::JoinHandle;

use crate::driven::Link;

/// A CA and certificates it has signed, in a directory of their own.
pub(crate) struct Pki {
    dir: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Test CA");
        let key = KeyPair::generate().expect("key");
        let ca = CertifiedIssuer::self_signed(params, key).expect("ca");
        let dir = tempfile::tempdir().expect("directory");
        fs::write(dir.path().join("ca.pem"), ca.pem()).expect("write");
        Self { dir, ca }
    }

    /// The CA, to sign with.
    pub(crate) fn issuer(&self) -> &CertifiedIssuer<'static, KeyPair> {
        &self.ca
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.path().join("ca.pem")
    }

    /// Writes (or writes anew) a certificate for `names` under `stem`.
    pub(crate) fn issue(&self, stem: &str, names: &[&str]) -> CertificateFiles {
        self.issue_with(stem, names, |_| {})
    }

    /// As [`issue`](Self::issue), with changed parameters.
    pub(crate) fn issue_with(
        &self,
        stem: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> CertificateFiles {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("params");
        params.distinguished_name.push(DnType::CommonName, stem);
        change(&mut params);
        let key = KeyPair::generate().expect("key");
        let certificate = params.signed_by(&key, &self.ca).expect("certificate");
        let files = CertificateFiles {
            certificate: self.path().join(format!("{stem}.pem")),
            key: self.path().join(format!("{stem}.key")),
        };
        fs::write(&files.certificate, certificate.pem()).expect("write");
        fs::write(&files.key, key.serialize_pem()).expect("write");
        files
    }

    pub(crate) fn server(&self) -> ServerTls {
        self.server_with(ClientAuth::None)
    }

    pub(crate) fn server_with(&self, auth: ClientAuth) -> ServerTls {
        ServerTls::load(self.issue("server", &["localhost", "127.0.0.1"]), auth).expect("server certificate")
    }

    /// A client that believes this CA.
    pub(crate) fn client(&self) -> ClientTls {
        self.client_with(|_| {})
    }

    pub(crate) fn client_with(&self, change: impl FnOnce(&mut ClientTlsOptions)) -> ClientTls {
        let mut options = ClientTlsOptions { ca_files: vec![self.ca()], ..ClientTlsOptions::default() };
        change(&mut options);
        ClientTls::new(options)
    }

    /// One of each kind of listener.
    pub(crate) fn kinds(&self) -> [ListenerKind; 5] {
        let tls = self.server();
        [
            ListenerKind::Tcp,
            ListenerKind::Tls(tls.clone()),
            ListenerKind::Ws,
            ListenerKind::Wss(tls.clone()),
            ListenerKind::Quic(tls),
        ]
    }
}

pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub(crate) fn bind(kind: ListenerKind) -> Listener {
    Listener::bind(kind, loopback(), &ListenOptions::default()).expect("bind")
}

pub(crate) fn address(listener: &Listener) -> SocketAddr {
    listener.local_addr().expect("address")
}

pub(crate) fn target(transport: Transport, address: SocketAddr) -> Target {
    let path = "/mqtt".to_owned();
    Target { transport, host: "localhost".to_owned(), port: address.port(), path }
}

/// Accepts one connection and shakes hands in a task.
pub(crate) async fn accept(listener: &mut Listener) -> JoinHandle<Result<Link, HandshakeError>> {
    let incoming = listener.accept().await.expect("accept");
    tokio::spawn(async { incoming.handshake().await.map(Link::from) })
}

/// Connects in a task. On success the server has been sent one byte, which makes a QUIC stream known.
pub(crate) fn dial(listener: &Listener, tls: &ClientTls) -> JoinHandle<Result<Wire, ConnectError>> {
    let (target, tls) = (target(listener.transport(), address(listener)), tls.clone());
    tokio::spawn(async move {
        let mut link = Wire::from(Link::from(connect(&target, &tls, &ConnectOptions::default()).await?));
        link.io.write_all(b"!").await.expect("first byte");
        link.io.flush().await.expect("flush");
        Ok(link)
    })
}

/// Both ends of a new connection: server, client.
pub(crate) async fn pair(listener: &mut Listener, tls: &ClientTls) -> (Wire, Wire) {
    let client = dial(listener, tls);
    let server = accept(listener).await;
    let client = client.await.expect("join").expect("connect");
    let mut server = Wire::from(server.await.expect("join").expect("handshake"));
    assert_eq!(server.io.read_u8().await.expect("first byte"), b'!');
    (server, client)
}

/// A link of any kind, of which the control stream is used.
pub(crate) struct Wire {
    pub(crate) io: Control,
    pub(crate) peer: Peer,
}

impl From<braid_transport::Link> for Wire {
    fn from(link: braid_transport::Link) -> Self {
        Self::from(Link::from(link))
    }
}

impl From<Link> for Wire {
    fn from(link: Link) -> Self {
        Self { peer: link.peer(), io: Control(link) }
    }
}

/// The control stream of a link. What happens on other streams is overlooked.
pub(crate) struct Control(pub(crate) Link);

impl AsyncRead for Control {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match ready!(self.0.poll_read(cx, buf, &mut |stream| stream.is_control()))? {
                Read::Bytes(StreamKey::CONTROL) | Read::Closed => return Poll::Ready(Ok(())),
                _ => {}
            }
        }
    }
}

impl AsyncWrite for Control {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, StreamKey::CONTROL, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_close(cx, Close { code: 0, stop: None })
    }
}

/// `length` bytes that repeat with no power of two.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..=250_u8).cycle().take(length).collect()
}

/// Sends `bytes` from one link to the other and checks that they arrive.
pub(crate) async fn carry(from: &mut Wire, to: &mut Wire, bytes: &[u8]) {
    let send = async {
        from.io.write_all(bytes).await.expect("write");
        from.io.flush().await.expect("flush");
    };
    let mut received = vec![0; bytes.len()];
    let receive = async {
        to.io.read_exact(&mut received).await.expect("read");
    };
    tokio::join!(send, receive);
    assert!(received == bytes, "{} bytes were changed on their way", bytes.len());
}

/// Everything up to the end of the stream.
pub(crate) async fn drain(link: &mut Wire) -> Vec<u8> {
    let mut bytes = Vec::new();
    link.io.read_to_end(&mut bytes).await.expect("end of the stream");
    bytes
}
