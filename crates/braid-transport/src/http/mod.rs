//! Connections for HTTP: byte streams over TCP and TLS for HTTP/1.1 and 2, and QUIC connections for HTTP/3.
//!
//! This module agrees on the version (ALPN) and measures the path. It reads and writes no HTTP messages, with one
//! exception: [`Http3Connection`] bounds the frames that the `h3` crate would otherwise buffer whole.

mod stream;
mod tail;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

pub use self::tail::TailProbes;
pub use crate::path_sample::{PathSample, PathStats, TcpMetrics, TcpProbe};
pub use crate::quic::http3::{
    Cancellations, Http3Bidi, Http3Connection, Http3Open, Http3Recv, Http3Send, PathProbe,
};
pub use crate::ws::WebSocketUpgrades;

use self::stream::SharedTcp;
use crate::error::{BindError, ConnectError, HandshakeError};
use crate::quic::{self, EndpointHealth, QuicIncoming, QuicListener, QuicOptions};
use crate::single::ByteStream;
pub use crate::tls::ALPN_H3;
use crate::tls::{self, ClientTls, ServerTls};
use crate::transport::{Peer, Transport, canonical};
use crate::{ConnectOptions, TcpOptions, tcp};

/// Unread bytes of one request's body: as large as hyper's for HTTP/2.
const STREAM_WINDOW: u32 = 1 << 20;

/// Unread bytes of one response's body. The library ends a connection with more than 1,024 separate pieces of a stream,
/// and looks above 2,048.
const RESPONSE_WINDOW: u32 = 2 << 20;

/// Bytes of one connection's responses that are not acknowledged: as many as Linux buffers for TCP. A client that
/// acknowledges nothing has the server keep them.
const SEND_WINDOW: u64 = 4 << 20;

/// Round-trip time that is assumed for HTTP/3 until one is measured: the first timeout of a handshake is three times as
/// long. RFC 9002 (6.2.2) recommends 333 ms, with which a lost first packet costs a page a second. On a path with a
/// longer round trip than the timeout, a handshake has a few packets more.
const INITIAL_RTT: Duration = Duration::from_millis(50);

/// Packets behind a missing one that show its loss, for HTTP/3: an initial window, so that jitter, which may turn round
/// packets that were sent together, is not taken for loss.
const PACKET_THRESHOLD: u32 = 10;

/// Time limit of a client's handshake: on a path that loses half of the packets it takes several timeouts.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);

/// Byte stream for HTTP/1.1 or 2.
pub struct HttpStream {
    /// The bytes.
    pub io: Box<dyn ByteStream>,
    /// The other end. [`Peer::alpn`] is the version that TLS agreed on.
    pub peer: Peer,
    /// Measurements of the connection.
    pub probe: TcpProbe,
}

impl HttpStream {
    fn plain(io: TcpStream, peer: Peer) -> Self {
        let socket = Arc::new(io);
        let probe = TcpProbe::new(&socket);
        Self { io: Box::new(SharedTcp(socket)), peer, probe }
    }
}

impl fmt::Debug for HttpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpStream").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// TCP listener for HTTP/1.1 and 2.
pub struct HttpListener {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<ServerTls>,
}

impl HttpListener {
    /// Binds `address`; port 0 lets the system choose. Must be called inside a tokio runtime. Without `tls` nothing is
    /// encrypted.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn bind(address: SocketAddr, tls: Option<ServerTls>, accept_queue: u32) -> Result<Self, BindError> {
        let refused = |error: io::Error| BindError::from_io("TCP", address, &error);
        let listener = tcp::listen(address, accept_queue, &TcpOptions::default()).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self { listener, address, tls })
    }

    /// The bound address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Accepts the next connection without waiting for bytes of the peer. Cancel safe.
    ///
    /// # Errors
    /// The process is short of something (descriptors, memory): pause a moment and call again.
    pub async fn accept(&self) -> io::Result<HttpIncoming> {
        let (io, address) = tcp::accept(&self.listener).await?;
        Ok(HttpIncoming { io, address: canonical(address), tls: self.tls.clone() })
    }
}

/// TCP connection whose TLS handshake has not begun. Closed when it is dropped.
pub struct HttpIncoming {
    io: TcpStream,
    address: SocketAddr,
    tls: Option<ServerTls>,
}

impl HttpIncoming {
    /// Address of the peer.
    #[must_use]
    pub fn peer_address(&self) -> SocketAddr {
        self.address
    }

    /// Completes the TLS handshake, if there is TLS. Its duration depends on the peer, so it needs a timeout.
    ///
    /// # Errors
    /// The peer ended the connection, or TLS cannot be agreed upon.
    pub async fn handshake(self) -> Result<HttpStream, HandshakeError> {
        let Self { io, address, tls } = self;
        let Some(tls) = tls else {
            return Ok(HttpStream::plain(io, Peer::plain(Transport::Tcp, Some(address))));
        };
        let mut peer = Peer::plain(Transport::Tls, Some(address));
        let socket = Arc::new(io);
        let probe = TcpProbe::new(&socket);
        let io = tls.accept_http(SharedTcp(socket)).await?;
        let session = io.get_ref().1;
        tls::describe(&mut peer, session);
        peer.certificate = tls::client_certificate(session.peer_certificates(), &tls);
        Ok(HttpStream { io: Box::new(io), peer, probe })
    }
}

/// QUIC listener for HTTP/3, with Retry above a number of handshakes, the limit of three times the bytes of an address
/// that is not validated, and a guard against panics of the library.
pub struct Http3Listener(QuicListener);

impl Http3Listener {
    /// Binds `address`. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The address cannot be listened on, or QUIC cannot use the certificate.
    pub fn bind(address: SocketAddr, tls: ServerTls, options: &QuicOptions) -> Result<Self, BindError> {
        QuicListener::bind(tls, address, options).map(Self)
    }

    /// The bound address.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.local_addr()
    }

    /// Condition of the endpoint.
    #[must_use]
    pub fn health(&self) -> EndpointHealth {
        self.0.health()
    }

    /// Accepts the next connection without waiting for bytes of the peer. Cancel safe.
    ///
    /// # Errors
    /// The endpoint failed; the call has tried to restart it. Pause a moment and call again.
    pub async fn accept(&mut self) -> io::Result<Http3Incoming> {
        self.0.accept().await.map(Http3Incoming)
    }

    /// Stops listening and waits until all connections are closed, at most a few seconds.
    pub async fn close(self) {
        self.0.close().await;
    }
}

/// QUIC connection whose handshake has not begun.
pub struct Http3Incoming(Box<QuicIncoming>);

impl Http3Incoming {
    /// Address of the peer, which is not validated yet.
    #[must_use]
    pub fn peer_address(&self) -> SocketAddr {
        self.0.peer_address()
    }

    /// Turns the peer away without a handshake.
    pub fn refuse(self) {
        self.0.refuse();
    }

    /// Completes the handshake. Its duration depends on the peer, so it needs a timeout.
    ///
    /// # Errors
    /// The peer ended the connection, or speaks another protocol.
    pub async fn handshake(self) -> Result<Http3Connection, HandshakeError> {
        self.0.handshake_http3().await
    }
}

impl QuicOptions {
    /// Options of a server for HTTP/3: `streams` requests in flight, and the same time limit for idle connections as on
    /// TCP. No early data, which an attacker could send again (RFC 8470).
    #[must_use]
    pub fn http3_server(streams: u32, idle: Duration) -> Self {
        Self {
            stream_receive_window: STREAM_WINDOW,
            send_window: SEND_WINDOW,
            bidi_streams: streams,
            // Control stream, QPACK streams, and few of unknown types, which are refused.
            uni_streams: 8,
            idle_timeout: Some(idle),
            keep_alive: None,
            loss_floor: true,
            packet_threshold: PACKET_THRESHOLD,
            initial_rtt: INITIAL_RTT,
            gate: false,
            zero_rtt: false,
            alpn: ALPN_H3,
            ..Self::server()
        }
    }

    /// Options of a client for HTTP/3.
    #[must_use]
    pub fn http3_client() -> Self {
        Self {
            stream_receive_window: RESPONSE_WINDOW,
            uni_streams: 8,
            loss_floor: true,
            packet_threshold: PACKET_THRESHOLD,
            initial_rtt: INITIAL_RTT,
            handshake_limit: HANDSHAKE_LIMIT,
            gate: false,
            ..Self::client()
        }
    }
}

/// Connects to the first of `addresses` that answers, over TLS if `tls` is given, whose options name the versions to
/// offer (ALPN). `host`: the name that the certificate must have.
///
/// # Errors
/// No address answers, or TLS cannot be agreed upon.
pub async fn connect_http(
    host: &str,
    addresses: &[SocketAddr],
    tls: Option<&ClientTls>,
    options: &ConnectOptions,
) -> Result<HttpStream, ConnectError> {
    let port = addresses.first().map_or(0, SocketAddr::port);
    let io = tcp::dial((host, port), addresses, &options.tcp, options.local).await?;
    let address = io.peer_addr().ok();
    let Some(tls) = tls else { return Ok(HttpStream::plain(io, Peer::plain(Transport::Tcp, address))) };
    let mut peer = Peer::plain(Transport::Tls, address);
    let socket = Arc::new(io);
    let probe = TcpProbe::new(&socket);
    let io = tls.connect(SharedTcp(socket), host, Transport::Tls).await?;
    tls::describe(&mut peer, io.get_ref().1);
    Ok(HttpStream { io: Box::new(io), peer, probe })
}

/// Connects to the first of `addresses` that answers, for HTTP/3. The options of `tls` must name [`ALPN_H3`], and
/// `options.quic` be those of [`QuicOptions::http3_client`].
///
/// # Errors
/// No address answers, or QUIC cannot be agreed upon.
pub async fn connect_http3(
    host: &str,
    addresses: &[SocketAddr],
    tls: &ClientTls,
    options: &ConnectOptions,
) -> Result<Http3Connection, ConnectError> {
    let port = addresses.first().map_or(0, SocketAddr::port);
    quic::connect_http3((host, port), addresses, tls, options).await
}
