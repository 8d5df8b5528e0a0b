//! Endpoint of a server: one UDP socket, accepting without waiting, restarted when its socket fails.

use std::io;
use std::mem;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use noq::crypto::rustls::QuicServerConfig;
use noq::{
    Connecting, Connection, ConnectionError, Endpoint, PathId, Runtime, ServerConfig, TransportConfig,
    TransportErrorCode, VarInt,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout};

use super::amplification::{AmplificationLimit, ValidatingCrypto};
use super::codes::{self, code};
use super::config::{self, QuicOptions, Transport};
use super::congestion::controller::SharedGate;
use super::connection::{Established, Multi, chain, peer};
use super::early::confirmed_by_client;
use super::http3::Http3Connection;
use super::panic_guard::{Broken, PanicGuard, guarded, is_sound};
use super::round_trips::RoundTrips;
use super::runtime::{Failures, GuardedRuntime};
use super::simulated;
use super::tickets::Tickets;
use crate::error::{BindError, CertificateError, HandshakeError};
use crate::link::Link;
use crate::sim::{Attached, Host};
use crate::tcp;
use crate::tls::{ALPN_H3, ServerTls, client_certificate};
use crate::transport::canonical;

/// Unread bytes over all streams that a client may send before its CONNECT is accepted: a first flight, and little for
/// a peer that connects many times and sends nothing.
const UNTRUSTED_WINDOW: VarInt = VarInt::from_u32(128 << 10);

/// Unread bytes of a connection with HTTP/3: as large as hyper's for HTTP/2.
const HTTP_WINDOW: VarInt = VarInt::from_u32(1 << 20);

/// Requested size of the socket's buffers, bytes; the system gives what its limits allow.
const SOCKET_BUFFER: usize = 4 << 20;

/// Time for the last connections to close.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// The TLS alert for "no application protocol in common".
const NO_APPLICATION_PROTOCOL: u8 = 120;

pub(crate) struct QuicListener {
    endpoint: ForgettableEndpoint,
    /// Opens the endpoint; again on the same port.
    open: OpenEndpoint,
    health: EndpointHealth,
    tls: ServerTls,
    /// Source of `config`.
    tls_config: Arc<rustls::ServerConfig>,
    config: Arc<ServerConfig>,
    transport: Transport,
    handshakes: Handshakes,
    round_trips: RoundTrips,
    failures: Failures,
    limit: AmplificationLimit,
}

type OpenEndpoint = Box<dyn FnMut(ServerConfig) -> io::Result<(Endpoint, Failures)> + Send + Sync>;

/// Condition of the endpoint behind a QUIC listener. A listener of another kind is always available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointHealth {
    /// Number of times that the endpoint was restarted after its socket failed.
    pub restarts: u64,
    /// False from a failure until a restart succeeds.
    pub is_available: bool,
}

impl Default for EndpointHealth {
    fn default() -> Self {
        Self { restarts: 0, is_available: true }
    }
}

/// An endpoint that is forgotten instead of dropped once the library has panicked in it.
struct ForgettableEndpoint(Option<Endpoint>);

impl Drop for ForgettableEndpoint {
    fn drop(&mut self) {
        if self.0.as_ref().is_some_and(|endpoint| guarded(|| endpoint.open_connections()).is_err()) {
            mem::forget(self.0.take());
        }
    }
}

impl QuicListener {
    pub(crate) fn bind(
        tls: ServerTls,
        address: SocketAddr,
        options: &QuicOptions,
    ) -> Result<Self, BindError> {
        let limit = AmplificationLimit::default();
        let runtime = Arc::new(GuardedRuntime::limited(limit.clone()));
        let failures = runtime.failures();
        Self::bind_on(runtime, failures, limit, tls, address, options)
    }

    /// `failures` reports the panics of tasks on `runtime`, and `limit` is that of its sockets.
    pub(super) fn bind_on(
        runtime: Arc<dyn Runtime>,
        failures: Failures,
        limit: AmplificationLimit,
        tls: ServerTls,
        address: SocketAddr,
        options: &QuicOptions,
    ) -> Result<Self, BindError> {
        let socket = socket(address).map_err(|error| BindError::from_io("UDP", address, &error))?;
        let endpoint_config = config::endpoint(options.quic_lb.as_ref());
        Self::with(tls, address, options, limit, move |config| {
            let socket = socket.try_clone()?;
            let endpoint =
                Endpoint::new(endpoint_config.clone(), Some(config), socket, Arc::clone(&runtime))?;
            Ok((endpoint, failures.clone()))
        })
    }

    /// On a socket of a simulated host.
    pub(crate) fn simulated(
        host: &Host,
        socket: Attached,
        tls: ServerTls,
        options: &QuicOptions,
    ) -> Result<Self, BindError> {
        let (host, address, mut first) = (host.clone(), socket.local, Some(socket));
        let endpoint_config = config::endpoint(options.quic_lb.as_ref());
        let limit = AmplificationLimit::default();
        Self::with(tls, address, options, limit.clone(), move |config| {
            let socket = first.take().map_or_else(|| host.attach(Some(address.port())), Ok)?;
            simulated::listener_on(&host, socket, endpoint_config.clone(), config, limit.clone())
        })
    }

    fn with(
        tls: ServerTls,
        address: SocketAddr,
        options: &QuicOptions,
        limit: AmplificationLimit,
        mut open: impl FnMut(ServerConfig) -> io::Result<(Endpoint, Failures)> + Send + Sync + 'static,
    ) -> Result<Self, BindError> {
        let tls_config = tls.quic();
        let mut config = ServerConfig::with_crypto(crypto(&tls, &tls_config, options)?);
        let transport = options.transport(UNTRUSTED_WINDOW);
        config.transport_config(Arc::clone(&transport.shared));
        let (endpoint, failures) =
            open(config.clone()).map_err(|error| BindError::from_io("UDP", address, &error))?;
        Ok(Self {
            endpoint: ForgettableEndpoint(Some(endpoint)),
            open: Box::new(open),
            health: EndpointHealth::default(),
            tls,
            tls_config,
            config: Arc::new(config),
            transport,
            handshakes: Handshakes::default(),
            round_trips: RoundTrips::default(),
            failures,
            limit,
        })
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.endpoint.0.as_ref()?.local_addr().ok()
    }

    pub(crate) fn health(&self) -> EndpointHealth {
        self.health
    }

    pub(crate) async fn accept(&mut self) -> io::Result<Box<QuicIncoming>> {
        let incoming = loop {
            let accepted = match &self.endpoint.0 {
                Some(endpoint) => PanicGuard::new(endpoint.accept()).await.ok().flatten(),
                None => None,
            };
            let Some(incoming) = accepted else { return Err(self.restart()) };
            if incoming.remote_address_validated()
                || self.handshakes.count() < self.transport.options.retry_above
            {
                break incoming;
            }
            // [BQ-71] No error: an address that is not validated has not been asked yet.
            let _ = guarded(|| incoming.retry());
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
            round_trips: self.round_trips.clone(),
            failures: self.failures.clone(),
            limit: self.limit.clone(),
        }))
    }

    /// Replaces the endpoint, whose task has ended, by one on the same port with the same configuration. Returns the
    /// error that [`accept`](Self::accept) reports.
    fn restart(&mut self) -> io::Error {
        self.endpoint = ForgettableEndpoint(None);
        self.health.is_available = false;
        match (self.open)(ServerConfig::clone(&self.config)) {
            Ok((endpoint, failures)) => {
                self.endpoint = ForgettableEndpoint(Some(endpoint));
                self.failures = failures;
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
                if let Some(endpoint) = &self.endpoint.0 {
                    endpoint.set_server_config(Some(config.clone()));
                }
                self.config = Arc::new(config);
            }
            Err(error) => tracing::error!(%error, "QUIC keeps the old certificate"),
        }
        self.tls_config = tls_config;
    }

    pub(crate) async fn close(self) {
        let _ = PanicGuard::new(async {
            let Some(endpoint) = &self.endpoint.0 else { return };
            stop_accepting(endpoint, &self.config);
            if timeout(CLOSE_LIMIT, endpoint.wait_all_draining()).await.is_err() {
                endpoint.close(code(codes::CLOSE_NORMAL), b"");
                let _ = timeout(CLOSE_LIMIT, endpoint.wait_all_draining()).await;
            }
        })
        .await;
    }
}

/// Refuses all clients that wait to be accepted, and all later ones. The connections of the endpoint live on.
fn stop_accepting(endpoint: &Endpoint, config: &ServerConfig) {
    // Not `None`: the library reads the configuration when more comes from a client that waits, and panics.
    let mut refusing = config.clone();
    refusing.max_incoming(0).incoming_buffer_size(0);
    endpoint.set_server_config(Some(refusing));
    while let Some(Some(incoming)) = endpoint.accept().now_or_never() {
        incoming.refuse();
    }
}

impl Drop for QuicListener {
    fn drop(&mut self) {
        // The endpoint lives as long as its connections; it must not collect more that are never accepted.
        if let Some(endpoint) = &self.endpoint.0 {
            let _ = guarded(|| stop_accepting(endpoint, &self.config));
        }
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

/// A first packet whose handshake has not begun.
pub(crate) struct QuicIncoming {
    incoming: noq::Incoming,
    config: Arc<ServerConfig>,
    transport: Transport,
    tls: ServerTls,
    handshakes: Handshakes,
    round_trips: RoundTrips,
    failures: Failures,
    limit: AmplificationLimit,
}

impl QuicIncoming {
    pub(crate) fn peer_address(&self) -> SocketAddr {
        canonical(self.incoming.remote_address())
    }

    // [BQ-7]
    pub(crate) fn refuse(self) {
        let _ = guarded(|| self.incoming.refuse());
    }

    /// Shakes hands and waits for the control stream, which is the first one the client opens. With
    /// early data that may be before the handshake is done.
    pub(crate) async fn handshake(self) -> Result<Link, HandshakeError> {
        PanicGuard::new(self.establish())
            .await
            .unwrap_or_else(|Broken| Err(HandshakeError::Io(Broken.into())))
    }

    /// Shakes hands for HTTP/3.
    pub(crate) async fn handshake_http3(self) -> Result<Http3Connection, HandshakeError> {
        PanicGuard::new(self.establish_http3())
            .await
            .unwrap_or_else(|Broken| Err(HandshakeError::Io(Broken.into())))
    }

    async fn establish_http3(self) -> Result<Http3Connection, HandshakeError> {
        let (round_trips, from) = (self.round_trips.clone(), self.peer_address().ip());
        // Counted until the end of the handshake.
        let Begun { connecting, offered, address, tls, options, failures, handshakes: _held, gate: _ } =
            self.begin()?;
        let connection = connecting.await.map_err(|error| explain(&error, &offered, &tls, options.alpn))?;
        if let Some(path) = connection.path_stats(PathId::ZERO) {
            round_trips.note(from, path.rtt, Instant::now());
        }
        connection.set_receive_window(HTTP_WINDOW);
        let certificate = chain(&connection).and_then(|chain| client_certificate(Some(&chain), &tls));
        let mut peer = peer(&connection, address);
        peer.certificate = certificate;
        Ok(Http3Connection::new(connection, peer, None, failures))
    }

    /// Answers the first packet.
    fn begin(self) -> Result<Begun, HandshakeError> {
        let address = self.peer_address();
        let Self { incoming, mut config, transport, tls, handshakes, round_trips, failures, limit } = self;
        let limited = limit.connection(incoming.remote_address(), incoming.remote_address_validated());
        let (inner, limited) = (Arc::clone(&config.crypto), Arc::new(limited));
        Arc::make_mut(&mut config).crypto = Arc::new(ValidatingCrypto { inner, connection: limited });
        if let Some(rtt) = round_trips.of(address.ip(), Instant::now()) {
            let mut known = TransportConfig::clone(&transport.shared);
            known.initial_rtt(rtt);
            Arc::make_mut(&mut config).transport_config(Arc::new(known));
        }
        let gate = transport.gated().map(|(transport, gate)| {
            Arc::make_mut(&mut config).transport_config(transport);
            gate
        });
        let (offered, options) = (offered_protocols(&incoming), transport.options);
        let connecting =
            incoming.accept_with(config).map_err(|error| explain(&error, &offered, &tls, options.alpn))?;
        Ok(Begun { connecting, offered, address, tls, options, failures, handshakes, gate })
    }

    async fn establish(self) -> Result<Link, HandshakeError> {
        let Begun { connecting, offered, address, tls, options, failures, handshakes, gate } =
            self.begin()?;
        let failed = |error| explain(&error, &offered, &tls, options.alpn);
        // Early data has to wait for a certificate: its sender is known only after the handshake.
        let begun = if tls.asks_for_certificates() { Err(connecting) } else { connecting.into_0rtt() };
        let connection = match begun {
            Ok((connection, _accepted)) => connection,
            Err(connecting) => connecting.await.map_err(failed)?,
        };
        let mut unopened = Unopened(Some(connection.clone()));
        let mut confirmed = Some(confirmed_by_client(connection.clone(), handshakes));
        let control = loop {
            tokio::select! {
                biased;
                Some(()) = OptionFuture::from(confirmed.as_mut()) => confirmed = None,
                control = connection.accept_bi() => break control,
            }
        };
        let control = control.map_err(|error| match confirmed {
            Some(_) => failed(error),
            None => {
                HandshakeError::Quic(format!("the connection ended before its control stream began: {error}"))
            }
        })?;
        let confirmed = confirmed.filter(|_| control.1.is_0rtt());
        unopened.0 = None;
        let certificate = chain(&connection).and_then(|chain| client_certificate(Some(&chain), &tls));
        let mut multi = Multi::new(Established {
            control,
            connection,
            address,
            endpoint: None,
            failures,
            options,
            gate,
            confirmed,
        });
        multi.peer.certificate = certificate;
        Ok(Link::Multi(multi))
    }
}

/// A connection whose handshake has begun.
struct Begun {
    connecting: Connecting,
    /// Application protocols of the client, for messages.
    offered: String,
    address: SocketAddr,
    tls: ServerTls,
    options: Arc<QuicOptions>,
    failures: Failures,
    handshakes: Handshakes,
    gate: Option<Arc<SharedGate>>,
}

/// A connection without a control stream. When it is no longer waited for, that is no normal end. [BQ-6], [BQ-40]
struct Unopened(Option<Connection>);

impl Drop for Unopened {
    fn drop(&mut self) {
        let Some(connection) = self.0.take() else { return };
        if is_sound(&connection) {
            connection.close(code(codes::CLOSE_ABNORMAL), b"no control stream");
        } else {
            mem::forget(connection);
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
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    tcp::share_families(&socket, address)?;
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// The application protocols in a client's first packet, for the message if none of them is ours.
fn offered_protocols(incoming: &noq::Incoming) -> String {
    let names: Vec<String> = incoming
        .decrypt()
        .and_then(|initial| initial.alpns())
        .into_iter()
        .flatten()
        .map_while(Result::ok)
        .map(|name| String::from_utf8_lossy(&name).into_owned())
        .collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// `alpn`: the application protocol if `tls` has none of its own.
fn explain(error: &ConnectionError, offered: &str, tls: &ServerTls, alpn: &str) -> HandshakeError {
    match error {
        ConnectionError::TransportError(error)
            if error.code == TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL) =>
        {
            let spoken = tls.own_alpn().filter(|_| alpn != ALPN_H3).unwrap_or_else(|| alpn.to_owned());
            // [BQ-1]
            tracing::info!(offered, spoken, "QUIC client without a common application protocol");
            HandshakeError::Alpn { offered: offered.to_owned(), spoken }
        }
        ConnectionError::TransportError(error) => {
            let cause = error.crypto.as_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
            HandshakeError::Quic(cause.map_or_else(|| error.to_string(), |cause| tls.explain(cause)))
        }
        error => HandshakeError::Quic(error.to_string()),
    }
}
