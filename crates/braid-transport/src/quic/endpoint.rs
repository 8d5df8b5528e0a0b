//! The server's endpoint: one UDP socket, accepting without waiting.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use noq::crypto::rustls::QuicServerConfig;
use noq::{Connection, ConnectionError, Endpoint, Runtime, ServerConfig, TransportErrorCode};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

use super::codes::{self, code};
use super::config::{self, QuicOptions, Transport};
use super::early::confirmed_by_client;
use super::link::{Established, UNTRUSTED_WINDOW, link};
use super::panic_guard::{Broken, Shield, is_sound, shielded};
use super::runtime::{Failures, ShieldedRuntime};
use super::simulated;
use super::tickets::Tickets;
use crate::error::{BindError, CertificateError, HandshakeError};
use crate::link::{Link, canonical};
use crate::sim::{Attached, Host};
use crate::tcp;
use crate::tls::ServerTls;

/// What we ask of the system for the socket; it gives what its limits allow.
const SOCKET_BUFFER: usize = 4 << 20;

/// How long closing waits for the last connections to say goodbye.
const FAREWELL: Duration = Duration::from_secs(3);

/// The TLS alert for "no application protocol in common".
const NO_APPLICATION_PROTOCOL: u8 = 120;

pub(crate) struct QuicListener {
    endpoint: Endpoint,
    tls: ServerTls,
    /// What `config` was made from.
    tls_config: Arc<rustls::ServerConfig>,
    config: Arc<ServerConfig>,
    transport: Transport,
    options: QuicOptions,
    under_way: UnderWay,
    failures: Failures,
}

impl QuicListener {
    pub(crate) fn bind(
        tls: ServerTls,
        address: SocketAddr,
        options: &QuicOptions,
    ) -> Result<Self, BindError> {
        let runtime = Arc::new(ShieldedRuntime::default());
        let failures = runtime.failures();
        Self::bind_on(runtime, failures, tls, address, options)
    }

    /// `failures` tells of the panics of tasks on `runtime`.
    pub(super) fn bind_on(
        runtime: Arc<dyn Runtime>,
        failures: Failures,
        tls: ServerTls,
        address: SocketAddr,
        options: &QuicOptions,
    ) -> Result<Self, BindError> {
        Self::with(tls, address, options, |config| {
            let endpoint = Endpoint::new(config::endpoint(), Some(config), socket(address)?, runtime)?;
            Ok((endpoint, failures))
        })
    }

    /// On a socket of a simulated host.
    pub(crate) fn simulated(
        host: &Host,
        socket: Attached,
        tls: ServerTls,
        options: &QuicOptions,
    ) -> Result<Self, BindError> {
        let address = socket.local;
        Self::with(tls, address, options, |config| simulated::endpoint_on(host, socket, Some(config)))
    }

    fn with(
        tls: ServerTls,
        address: SocketAddr,
        options: &QuicOptions,
        endpoint: impl FnOnce(ServerConfig) -> io::Result<(Endpoint, Failures)>,
    ) -> Result<Self, BindError> {
        let tls_config = tls.quic();
        let mut config = ServerConfig::with_crypto(crypto(&tls_config, options)?);
        let transport = options.transport(UNTRUSTED_WINDOW);
        config.transport_config(Arc::clone(&transport.shared));
        let (endpoint, failures) =
            endpoint(config.clone()).map_err(|error| BindError::from_io("UDP", address, error))?;
        let (config, options, under_way) = (Arc::new(config), options.clone(), UnderWay::default());
        Ok(Self { endpoint, tls, tls_config, config, transport, options, under_way, failures })
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.endpoint.local_addr().ok()
    }

    pub(crate) async fn accept(&mut self) -> io::Result<Box<QuicIncoming>> {
        let incoming = loop {
            let incoming = Shield::new(self.endpoint.accept())
                .await?
                .ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the UDP socket is lost"))?;
            if incoming.remote_address_validated() || self.under_way.count() < self.options.retry_above {
                break incoming;
            }
            // [BQ-71] It succeeds: an address that is not validated has not been asked yet.
            let _ = shielded(|| incoming.retry());
            // A flood must not keep the thread.
            consume_budget().await;
        };
        self.refresh();
        Ok(Box::new(QuicIncoming {
            incoming,
            config: Arc::clone(&self.config),
            transport: self.transport.clone(),
            alpn: self.options.alpn,
            certificate_first: self.tls.asks_for_certificates(),
            send_window: self.options.send_window,
            under_way: self.under_way.clone(),
            failures: self.failures.clone(),
        }))
    }

    /// Takes over a reloaded certificate.
    fn refresh(&mut self) {
        let tls_config = self.tls.quic();
        if Arc::ptr_eq(&tls_config, &self.tls_config) {
            return;
        }
        match crypto(&tls_config, &self.options) {
            Ok(crypto) => {
                let mut config = ServerConfig::clone(&self.config);
                config.crypto = crypto;
                self.endpoint.set_server_config(Some(config.clone()));
                self.config = Arc::new(config);
            }
            Err(error) => tracing::error!(%error, "QUIC keeps the old certificate"),
        }
        self.tls_config = tls_config;
    }

    /// From now on the endpoint drives the connections that it has. Whoever waits to be accepted is refused.
    fn stop_accepting(&self) {
        // Not `None`: the library looks into the configuration when more comes from somebody who waits, and panics.
        let mut nobody = ServerConfig::clone(&self.config);
        nobody.max_incoming(0).incoming_buffer_size(0);
        self.endpoint.set_server_config(Some(nobody));
        while let Some(Some(incoming)) = self.endpoint.accept().now_or_never() {
            incoming.refuse();
        }
    }

    pub(crate) async fn close(self) {
        self.stop_accepting();
        if timeout(FAREWELL, self.endpoint.wait_all_draining()).await.is_err() {
            self.endpoint.close(code(codes::CLOSE_NORMAL), b"");
            let _ = timeout(FAREWELL, self.endpoint.wait_all_draining()).await;
        }
    }
}

impl Drop for QuicListener {
    fn drop(&mut self) {
        // The endpoint lives as long as its connections; it must not collect more that nobody accepts.
        let _ = shielded(|| self.stop_accepting());
    }
}

/// Counts the handshakes that have not been completed: each holds a clone.
#[derive(Clone, Default)]
struct UnderWay(Arc<()>);

impl UnderWay {
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
    /// What is spoken here.
    alpn: &'static str,
    /// Early data has to wait: whom it is from is known only after the handshake.
    certificate_first: bool,
    send_window: u64,
    under_way: UnderWay,
    failures: Failures,
}

impl QuicIncoming {
    pub(crate) fn peer_address(&self) -> SocketAddr {
        canonical(self.incoming.remote_address())
    }

    // [BQ-7]
    pub(crate) fn refuse(self) {
        self.incoming.refuse();
    }

    /// Shakes hands and waits for the control stream, which is the first one the client opens. With
    /// early data that may be before the handshake is done.
    pub(crate) async fn handshake(self) -> Result<Link, HandshakeError> {
        Shield::new(self.establish()).await.unwrap_or_else(|Broken| Err(HandshakeError::Io(Broken.into())))
    }

    async fn establish(self) -> Result<Link, HandshakeError> {
        let address = self.peer_address();
        let Self {
            incoming,
            mut config,
            transport,
            alpn,
            certificate_first,
            send_window,
            under_way,
            failures,
        } = self;
        let gate = transport.gated().map(|(transport, gate)| {
            Arc::make_mut(&mut config).transport_config(transport);
            gate
        });
        let offered = offered_protocols(&incoming);
        let failed = |error| explain(&error, &offered, alpn);
        let connecting = incoming.accept_with(config).map_err(failed)?;
        let begun = if certificate_first { Err(connecting) } else { connecting.into_0rtt() };
        let connection = match begun {
            Ok((connection, _accepted)) => connection,
            Err(connecting) => connecting.await.map_err(failed)?,
        };
        let mut unopened = Unopened(Some(connection.clone()));
        let mut confirmed = Some(confirmed_by_client(connection.clone(), under_way));
        let control = loop {
            tokio::select! {
                biased;
                Some(()) = OptionFuture::from(confirmed.as_mut()) => confirmed = None,
                control = connection.accept_bi() => break control,
            }
        };
        let control = control.map_err(|error| match confirmed {
            Some(_) => explain(&error, &offered, alpn),
            None => {
                HandshakeError::Quic(format!("the connection ended before its control stream began: {error}"))
            }
        })?;
        let confirmed = confirmed.filter(|_| control.1.is_0rtt());
        unopened.0 = None;
        let endpoint = None;
        Ok(link(Established {
            control,
            connection,
            address,
            endpoint,
            failures,
            send_window,
            gate,
            confirmed,
        }))
    }
}

/// A connection without a control stream. When nobody waits for one any more that is no normal end. [BQ-6], [BQ-40]
struct Unopened(Option<Connection>);

impl Drop for Unopened {
    fn drop(&mut self) {
        let Some(connection) = self.0.take() else { return };
        if is_sound(&connection) {
            connection.close(code(codes::CLOSE_ABNORMAL), b"no control stream");
        } else {
            std::mem::forget(connection);
        }
    }
}

fn crypto(
    tls: &rustls::ServerConfig,
    options: &QuicOptions,
) -> Result<Arc<QuicServerConfig>, CertificateError> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![options.alpn.as_bytes().to_vec()];
    // A new store each time: a session that began under another CA must not be resumed under this one.
    tls.session_storage = Arc::new(Tickets::new(options.tickets));
    // QUIC knows nothing between none and all. RFC 9001, 4.6.1.
    tls.max_early_data_size = if options.zero_rtt { u32::MAX } else { 0 };
    let crypto = QuicServerConfig::try_from(tls)
        .map_err(|error| CertificateError::Config { reason: error.to_string() })?;
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

fn explain(error: &ConnectionError, offered: &str, spoken: &'static str) -> HandshakeError {
    match error {
        ConnectionError::TransportError(error)
            if error.code == TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL) =>
        {
            // [BQ-1]
            tracing::info!(offered, spoken, "QUIC client without a common application protocol");
            HandshakeError::Alpn { offered: offered.to_owned(), spoken }
        }
        error => HandshakeError::Quic(error.to_string()),
    }
}
