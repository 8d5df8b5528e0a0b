//! The server's endpoint: one UDP socket, accepting without waiting.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use noq::crypto::rustls::QuicServerConfig;
use noq::{ConnectionError, Endpoint, EndpointConfig, Runtime, ServerConfig, TransportErrorCode};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::time::timeout;

use super::codes::{self, code};
use super::config::QuicOptions;
use super::link::link;
use super::shield::{Broken, Failures, Shield, ShieldedRuntime, shielded};
use crate::error::{BindError, CertificateError, HandshakeError};
use crate::link::{Link, canonical};
use crate::tcp;
use crate::tls::{ALPN_MQTT, ServerTls};

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
        let failed = |error| BindError::from_io("UDP", address, error);
        let tls_config = tls.quic();
        let mut config = ServerConfig::with_crypto(crypto(&tls_config)?);
        config.transport_config(options.transport());
        let socket = socket(address).map_err(failed)?;
        let endpoint = Endpoint::new(EndpointConfig::default(), Some(config.clone()), socket, runtime)
            .map_err(failed)?;
        Ok(Self { endpoint, tls, tls_config, config: Arc::new(config), failures })
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.endpoint.local_addr().ok()
    }

    pub(crate) async fn accept(&mut self) -> io::Result<Box<QuicIncoming>> {
        let incoming = Shield::new(self.endpoint.accept()).await?;
        let incoming =
            incoming.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the UDP socket is lost"))?;
        self.refresh();
        let (config, failures) = (Arc::clone(&self.config), self.failures.clone());
        Ok(Box::new(QuicIncoming { incoming, config, failures }))
    }

    /// Takes over a reloaded certificate.
    fn refresh(&mut self) {
        let tls_config = self.tls.quic();
        if Arc::ptr_eq(&tls_config, &self.tls_config) {
            return;
        }
        match crypto(&tls_config) {
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

    pub(crate) async fn close(self) {
        self.endpoint.set_server_config(None);
        if timeout(FAREWELL, self.endpoint.wait_all_draining()).await.is_err() {
            self.endpoint.close(code(codes::CLOSE_NORMAL), b"");
            let _ = timeout(FAREWELL, self.endpoint.wait_all_draining()).await;
        }
    }
}

impl Drop for QuicListener {
    fn drop(&mut self) {
        // The endpoint lives as long as its connections; it must not collect more that nobody accepts.
        let _ = shielded(|| self.endpoint.set_server_config(None));
    }
}

/// A first packet whose handshake has not begun.
pub(crate) struct QuicIncoming {
    incoming: noq::Incoming,
    config: Arc<ServerConfig>,
    failures: Failures,
}

impl QuicIncoming {
    pub(crate) fn peer_address(&self) -> SocketAddr {
        canonical(self.incoming.remote_address())
    }

    pub(crate) fn refuse(self) {
        self.incoming.refuse();
    }

    /// Shakes hands and waits for the control stream, which is the first one the client opens.
    pub(crate) async fn handshake(self) -> Result<Link, HandshakeError> {
        let address = self.peer_address();
        let offered = offered_protocols(&self.incoming);
        let establish = async move {
            let connection = self
                .incoming
                .accept_with(self.config)
                .map_err(|error| explain(&error, &offered))?
                .await
                .map_err(|error| explain(&error, &offered))?;
            let control = connection.accept_bi().await.map_err(|error| {
                HandshakeError::Quic(format!("the connection ended before its control stream began: {error}"))
            })?;
            Ok(link(control, connection, address, None, self.failures))
        };
        Shield::new(establish).await.unwrap_or_else(|Broken| Err(HandshakeError::Io(Broken.into())))
    }
}

fn crypto(tls: &Arc<rustls::ServerConfig>) -> Result<Arc<QuicServerConfig>, CertificateError> {
    let crypto = QuicServerConfig::try_from(Arc::clone(tls))
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

fn explain(error: &ConnectionError, offered: &str) -> HandshakeError {
    match error {
        ConnectionError::TransportError(error)
            if error.code == TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL) =>
        {
            tracing::info!(offered, spoken = ALPN_MQTT, "QUIC client without a common application protocol");
            HandshakeError::Alpn { offered: offered.to_owned(), spoken: ALPN_MQTT }
        }
        error => HandshakeError::Quic(error.to_string()),
    }
}
