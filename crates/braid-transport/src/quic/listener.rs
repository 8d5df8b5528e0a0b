//! Listener of a server: one UDP socket, accepting without waiting, restarted when its socket fails.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use noq_proto::crypto::rustls::QuicServerConfig;
use noq_proto::{ConnectionError, Dir, Incoming, ServerConfig, TransportErrorCode, VarInt};
use socket2::{Domain, Protocol, Type};
use tokio::task::coop::consume_budget;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::admission_turns::{AdmissionTurn, AdmissionTurns};
use super::amplification::{AmplificationLimit, PathValidationLimit, ValidatingCrypto};
use super::announced_window::AnnouncedWindow;
use super::codes::{self, code};
use super::config::{self, ConnectionConfig, QuicOptions, Transport};
use super::congestion::controller::SharedGate;
use super::connection::{Established, Multi, chain, peer};
use super::early::Early;
use super::http3::Http3Connection;
use super::io::{Connection, Endpoint, MOST_WAITING, Socket};
use super::offered_protocols::OfferedProtocols;
use crate::error::{BindError, CertificateError, HandshakeError};
use crate::link::Link;
use crate::sim::{Host, Socket as SimulatedSocket};
use crate::tcp;
use crate::tls::{ALPN_H3, ServerTls, Tickets, client_certificate};
use crate::transport::canonical;

/// Unread bytes over all streams that a client may send before its CONNECT is accepted: a first flight, and little for
/// a peer that connects many times and sends nothing.
const UNTRUSTED_WINDOW: VarInt = VarInt::from_u32(128 << 10);

/// Unread bytes of a connection with HTTP/3: as large as hyper's for HTTP/2.
const HTTP_WINDOW: VarInt = VarInt::from_u32(1 << 20);

/// Requested size of the socket's buffers, bytes; the system gives what its limits allow, Linux `net.core.rmem_max`. A
/// thousand clients at once send 1.2 MB, which count twice there.
const SOCKET_BUFFER: usize = 8 << 20;

/// Bytes of a client that waits for its handshake, behind its first packet: repetitions of it, and early data. Then of
/// all these clients.
const WAITING_BYTES: u64 = 64 << 10;
const ALL_WAITING_BYTES: u64 = 32 << 20;

/// Time for the last connections to close.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);
/// Time after that in which a close is sent again to a peer to which it was lost.
const REPEAT_LIMIT: Duration = Duration::from_millis(300);

/// The TLS alert for "no application protocol in common".
const NO_APPLICATION_PROTOCOL: u8 = 120;

pub(crate) struct QuicListener {
    /// `None` after a failure, until a restart succeeds.
    endpoint: Option<Arc<Endpoint>>,
    /// Opens the endpoint; again on the same port.
    open: OpenEndpoint,
    health: EndpointHealth,
    tls: ServerTls,
    /// Source of `config`.
    tls_config: Arc<rustls::ServerConfig>,
    config: Arc<ServerConfig>,
    transport: Transport,
    handshakes: Handshakes,
    turns: AdmissionTurns,
    limit: AmplificationLimit,
}

type OpenEndpoint = Box<dyn FnMut(ServerConfig) -> io::Result<Arc<Endpoint>> + Send + Sync>;

/// Condition of the endpoint behind a QUIC listener. A listener of another kind is always available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointHealth {
    /// Number of times that the endpoint was restarted after its socket failed.
    pub restarts: u64,
    /// False from a failure until a restart succeeds.
    pub is_available: bool,
    /// Number of clients that were refused because of their wait for the handshake, [`QuicOptions::handshake_wait`].
    pub turned_away: u64,
}

impl Default for EndpointHealth {
    fn default() -> Self {
        Self { restarts: 0, is_available: true, turned_away: 0 }
    }
}

impl QuicListener {
    pub(crate) fn bind(
        tls: ServerTls,
        address: SocketAddr,
        options: &QuicOptions,
    ) -> Result<Self, BindError> {
        Self::bind_with(tls, address, options, Socket::system)
    }

    /// `wrap`: makes a socket of that of the system.
    pub(super) fn bind_with(
        tls: ServerTls,
        address: SocketAddr,
        options: &QuicOptions,
        wrap: impl Fn(UdpSocket) -> io::Result<Socket> + Send + Sync + 'static,
    ) -> Result<Self, BindError> {
        let socket = socket(address).map_err(|error| BindError::from_io("UDP", address, &error))?;
        let (endpoint_config, wait) = (config::endpoint(options.quic_lb.as_ref()), options.handshake_wait);
        let limit = AmplificationLimit::default();
        Self::with(tls, address, options, limit.clone(), move |config| {
            let socket = Arc::new(wrap(socket.try_clone()?)?);
            Ok(Endpoint::spawn(endpoint_config.clone(), config, socket, limit.clone(), wait))
        })
    }

    /// On a socket of a simulated host.
    pub(crate) fn simulated(
        host: &Host,
        socket: SimulatedSocket,
        tls: ServerTls,
        options: &QuicOptions,
    ) -> Result<Self, BindError> {
        let (host, address, mut first) = (host.clone(), socket.local_addr(), Some(socket));
        let (endpoint_config, wait) = (config::endpoint(options.quic_lb.as_ref()), options.handshake_wait);
        let limit = AmplificationLimit::default();
        Self::with(tls, address, options, limit.clone(), move |config| {
            let socket = first.take().map_or_else(|| host.attach(Some(address.port())), Ok)?;
            let endpoint_config = config::seeded(endpoint_config.clone(), &host);
            let socket = Arc::new(Socket::simulated(socket));
            Ok(Endpoint::spawn(endpoint_config, config, socket, limit.clone(), wait))
        })
    }

    fn with(
        tls: ServerTls,
        address: SocketAddr,
        options: &QuicOptions,
        limit: AmplificationLimit,
        mut open: impl FnMut(ServerConfig) -> io::Result<Arc<Endpoint>> + Send + Sync + 'static,
    ) -> Result<Self, BindError> {
        let tls_config = tls.quic();
        let mut config = ServerConfig::with_crypto(crypto(&tls, &tls_config, options)?);
        let transport = options.transport(UNTRUSTED_WINDOW);
        config
            .transport_config(Arc::clone(&transport.shared))
            // The endpoint refuses those above.
            .max_incoming(MOST_WAITING + 1)
            .incoming_buffer_size(WAITING_BYTES)
            .incoming_buffer_size_total(ALL_WAITING_BYTES);
        let endpoint = open(config.clone()).map_err(|error| BindError::from_io("UDP", address, &error))?;
        Ok(Self {
            endpoint: Some(endpoint),
            open: Box::new(open),
            health: EndpointHealth::default(),
            tls,
            tls_config,
            config: Arc::new(config),
            transport,
            handshakes: Handshakes::default(),
            turns: AdmissionTurns::new(),
            limit,
        })
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref()?.local_addr().ok()
    }

    pub(crate) fn health(&self) -> EndpointHealth {
        let now = self.endpoint.as_ref().map_or(0, |endpoint| endpoint.turned_away());
        EndpointHealth { turned_away: self.health.turned_away + now, ..self.health }
    }

    /// The next client, when those before it have been answered.
    pub(crate) async fn accept(&mut self) -> io::Result<Box<QuicIncoming>> {
        let (incoming, turn) = loop {
            if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.has_waiting()) {
                // All that can run goes first: messages of connections that are up, and handshakes that have begun.
                yield_now().await;
            }
            let turn = self.turns.next().await;
            let accepted = match &self.endpoint {
                Some(endpoint) => endpoint.next_incoming().await.map(|incoming| (endpoint, incoming)),
                None => None,
            };
            let Some((endpoint, incoming)) = accepted else { return Err(self.restart()) };
            if incoming.remote_address_validated()
                || self.handshakes.count() < self.transport.options.retry_above
            {
                let address = incoming.remote_address();
                let endpoint = Arc::clone(endpoint);
                break (Unaccepted { address, incoming: Some(incoming), endpoint }, turn);
            }
            // [BQ-71] No error: an address that is not validated has not been asked yet.
            endpoint.retry(incoming);
            // A flood must not keep the thread.
            consume_budget().await;
        };
        self.refresh();
        Ok(Box::new(QuicIncoming {
            incoming,
            config: Arc::clone(&self.config),
            transport: self.transport.clone(),
            tls: self.tls.clone(),
            handshakes: self.handshakes.clone(),
            turn,
            limit: self.limit.clone(),
        }))
    }

    /// Replaces the endpoint, whose task has ended, by one on the same port with the same configuration. Returns the
    /// error that [`accept`](Self::accept) reports.
    fn restart(&mut self) -> io::Error {
        self.health.turned_away = self.health().turned_away;
        self.endpoint = None;
        self.health.is_available = false;
        match (self.open)(ServerConfig::clone(&self.config)) {
            Ok(endpoint) => {
                self.endpoint = Some(endpoint);
                self.health.restarts += 1;
                self.health.is_available = true;
                io::Error::other("the QUIC endpoint failed and was restarted; its connections are lost")
            }
            Err(error) => {
                io::Error::new(error.kind(), format!("the QUIC endpoint failed and cannot restart: {error}"))
            }
        }
    }

    /// Takes over a reloaded certificate.
    fn refresh(&mut self) {
        let tls_config = self.tls.quic();
        if Arc::ptr_eq(&tls_config, &self.tls_config) {
            return;
        }
        match crypto(&self.tls, &tls_config, &self.transport.options) {
            Ok(crypto) => {
                let mut config = ServerConfig::clone(&self.config);
                config.crypto = crypto;
                if let Some(endpoint) = &self.endpoint {
                    endpoint.set_config(config.clone());
                }
                self.config = Arc::new(config);
            }
            Err(error) => tracing::error!(%error, "QUIC keeps the old certificate"),
        }
        self.tls_config = tls_config;
    }

    pub(crate) async fn close(self) {
        self.stop_accepting();
        let Some(endpoint) = &self.endpoint else { return };
        if timeout(CLOSE_LIMIT, endpoint.wait_quiet()).await.is_err() {
            endpoint.close_all(code(codes::CLOSE_NORMAL));
        }
        let _ = timeout(REPEAT_LIMIT, endpoint.wait_empty()).await;
    }

    /// Refuses clients that wait to be accepted, and those that come from now on.
    pub(crate) fn stop_accepting(&self) {
        if let Some(endpoint) = &self.endpoint {
            endpoint.stop_accepting(&self.config);
        }
    }
}

impl Drop for QuicListener {
    fn drop(&mut self) {
        // The endpoint lives as long as its connections; it must not collect more that are never accepted.
        self.stop_accepting();
    }
}

/// Number of handshakes that have not been completed: each holds a clone.
#[derive(Clone, Default)]
struct Handshakes(Arc<()>);

impl Handshakes {
    /// All clones but the listener's own.
    fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// First packet of a client, which is refused when it is dropped.
struct Unaccepted {
    address: SocketAddr,
    /// `None` once it was accepted.
    incoming: Option<Incoming>,
    endpoint: Arc<Endpoint>,
}

impl Drop for Unaccepted {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take() {
            self.endpoint.refuse(incoming);
        }
    }
}

/// A first packet whose handshake has not begun.
pub(crate) struct QuicIncoming {
    incoming: Unaccepted,
    config: Arc<ServerConfig>,
    transport: Transport,
    tls: ServerTls,
    handshakes: Handshakes,
    turn: AdmissionTurn,
    limit: AmplificationLimit,
}

impl QuicIncoming {
    pub(crate) fn peer_address(&self) -> SocketAddr {
        canonical(self.incoming.address)
    }

    // [BQ-7]
    pub(crate) fn refuse(self) {
        drop(self.incoming);
    }

    /// Shakes hands for HTTP/3.
    pub(crate) async fn handshake_http3(self) -> Result<Http3Connection, HandshakeError> {
        // Counted until the end of the handshake.
        let Begun { mut connection, offered, address, tls, options, handshakes: _held, gate: _ } =
            self.begin().await?;
        connection.connected().await.map_err(|error| explain(&error, &offered, &tls, options.alpn))?;
        connection.set_receive_window(HTTP_WINDOW);
        let certificate = chain(&connection).and_then(|chain| client_certificate(Some(&chain), &tls));
        let mut peer = peer(&connection, address);
        peer.certificate = certificate;
        Ok(Http3Connection::new(connection, peer))
    }

    /// Answers the first packet.
    async fn begin(self) -> Result<Begun, HandshakeError> {
        let address = self.peer_address();
        let Self { mut incoming, mut config, transport, tls, handshakes, turn, limit } = self;
        let endpoint = Arc::clone(&incoming.endpoint);
        // Before the client is taken: it is refused if this is cancelled.
        let admission = endpoint.admission().await;
        let Some(first) = incoming.incoming.take() else {
            return Err(HandshakeError::Quic("the client was answered before".to_owned()));
        };
        let limited = limit.connection(first.remote_address(), first.remote_address_validated());
        let paths = PathValidationLimit::new(first.remote_address());
        let inner = Arc::new(AnnouncedWindow(Arc::clone(&config.crypto)));
        let offered = Arc::new(OfferedProtocols::default());
        let crypto = ValidatingCrypto::new(inner, limited, &paths, Arc::clone(&offered));
        Arc::make_mut(&mut config).crypto = Arc::new(crypto);
        // Without the round trip of an earlier connection: with it the library would give up validating the path of a
        // client that moves to a slower network. A client that repeats its first packet gets the flight again.
        let path = transport.options.known_path(address.ip(), None);
        let ConnectionConfig { shared, gate, activities } = transport.connection(None, path);
        Arc::make_mut(&mut config).transport_config(shared);
        let options = transport.options;
        let parts = (gate.clone(), activities, paths);
        let connection = Connection::accept_client(Arc::clone(&endpoint), first, config, parts)
            .map_err(|error| explain(&error, &offered, &tls, options.alpn))?;
        drop(admission);
        let mut connection = Box::new(connection);
        connection.take_turn().await;
        drop(turn);
        Ok(Begun { connection, offered, address, tls, options, handshakes, gate })
    }

    /// Shakes hands and waits for the control stream, which is the first one the client opens. With
    /// early data that may be before the handshake is done.
    pub(crate) async fn handshake(self) -> Result<Link, HandshakeError> {
        let Begun { mut connection, offered, address, tls, options, handshakes, gate } = self.begin().await?;
        connection.hold_until_confirmed(handshakes);
        // Early data has to wait for a certificate: its sender is known only after the handshake.
        if tls.asks_for_certificates() {
            connection.connected().await.map_err(|error| explain(&error, &offered, &tls, options.alpn))?;
        }
        let mut unopened = Unopened(Some(connection));
        let is_early =
            unopened.control_stream().await.map_err(|(error, is_confirmed)| match is_confirmed {
                false => explain(&error, &offered, &tls, options.alpn),
                true => HandshakeError::Quic(format!(
                    "the connection ended before its control stream began: {error}"
                )),
            })?;
        let Some(connection) = unopened.0.take() else {
            return Err(HandshakeError::Quic("the connection was closed".to_owned()));
        };
        let early = (is_early && !connection.is_confirmed()).then_some(Early::Received);
        let certificate = chain(&connection).and_then(|chain| client_certificate(Some(&chain), &tls));
        let mut multi = Multi::new(Established { connection, address, options, gate, early, rebind: None });
        multi.peer.certificate = certificate;
        Ok(Link::Multi(multi))
    }
}

/// A connection whose handshake has begun.
struct Begun {
    connection: Box<Connection>,
    /// Application protocols of the client, for messages.
    offered: Arc<OfferedProtocols>,
    address: SocketAddr,
    tls: ServerTls,
    options: Arc<QuicOptions>,
    handshakes: Handshakes,
    gate: Option<Arc<SharedGate>>,
}

/// A connection without a control stream. When it is no longer waited for, that is no normal end. [BQ-6], [BQ-40]
struct Unopened(Option<Box<Connection>>);

impl Unopened {
    /// Waits for the control stream. True if it began with early data. An error comes with whether the handshake was
    /// confirmed.
    async fn control_stream(&mut self) -> Result<bool, (ConnectionError, bool)> {
        let Some(connection) = &mut self.0 else { return Err((ConnectionError::LocallyClosed, false)) };
        connection
            .drive(|connection| {
                // Asked before, because the stream may come with the end of the handshake.
                if connection.accept(Dir::Bi).is_some() {
                    return Some(Ok(connection.is_handshaking()));
                }
                let error = connection.error()?.clone();
                Some(Err((error, connection.is_confirmed())))
            })
            .await
    }
}

impl Drop for Unopened {
    fn drop(&mut self) {
        let Some(mut connection) = self.0.take() else { return };
        connection.close(code(codes::CLOSE_ABNORMAL));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(connection.drained());
        }
    }
}

/// `config`: the one of `tls` for QUIC.
fn crypto(
    tls: &ServerTls,
    config: &rustls::ServerConfig,
    options: &QuicOptions,
) -> Result<Arc<QuicServerConfig>, CertificateError> {
    // The options of TLS name the protocols of MQTT.
    let has_own_alpn = tls.own_alpn().is_some() && options.alpn != ALPN_H3;
    let mut tls = config.clone();
    if !has_own_alpn {
        tls.alpn_protocols = vec![options.alpn.as_bytes().to_vec()];
    }
    // A new store each time: a session that began under another CA, or before the client was revoked, must not be
    // resumed.
    tls.session_storage = Arc::new(Tickets::new(options.tickets));
    // QUIC allows none or all. RFC 9001, 4.6.1.
    tls.max_early_data_size = if options.zero_rtt { u32::MAX } else { 0 };
    let crypto = QuicServerConfig::try_from(tls).map_err(|error| CertificateError::config(&error))?;
    Ok(Arc::new(crypto))
}

fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    tcp::share_families(&socket, address)?;
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// `alpn`: the application protocol if `tls` has none of its own.
fn explain(
    error: &ConnectionError,
    offered: &OfferedProtocols,
    tls: &ServerTls,
    alpn: &str,
) -> HandshakeError {
    match error {
        ConnectionError::TransportError(error)
            if error.code == TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL) =>
        {
            let spoken = tls.own_alpn().filter(|_| alpn != ALPN_H3).unwrap_or_else(|| alpn.to_owned());
            // [BQ-1]
            let offered = offered.names();
            tracing::info!(offered, spoken, "QUIC client without a common application protocol");
            HandshakeError::Alpn { offered, spoken }
        }
        ConnectionError::TransportError(error) => {
            let cause = error.crypto.as_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
            HandshakeError::Quic(cause.map_or_else(|| error.to_string(), |cause| tls.explain(cause)))
        }
        error => HandshakeError::Quic(error.to_string()),
    }
}
