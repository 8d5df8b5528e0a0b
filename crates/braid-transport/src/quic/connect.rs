//! Endpoint of a client: one per connection.

use std::fmt::Display;
use std::future::{Future, ready};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;

use noq::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig};
use noq::{ClientConfig, Connection, ConnectionError, Endpoint, TransportErrorCode, VarInt};
use tokio::time::timeout;

use super::config::{self, QuicOptions, Transport};
use super::congestion::controller::SharedGate;
use super::connection::{Confirmed, Established, Multi, peer};
use super::early::taken_by_server;
use super::http3::Http3Connection;
use super::panic_guard::{Broken, PanicGuard};
use super::runtime::{Failures, GuardedRuntime};
use super::simulated;
use crate::connect::ConnectOptions;
use crate::error::{CertificateError, ConnectError};
use crate::link::Link;
use crate::race::race;
use crate::sim::Host;
use crate::tcp;
use crate::tls::{ClientTls, tls_error};

/// Connects to the first address of `host` that answers, and opens the control stream.
pub(crate) async fn connect(
    (host, port): (&str, u16),
    addresses: &[SocketAddr],
    tls: &ClientTls,
    options: &ConnectOptions,
) -> Result<Link, ConnectError> {
    let addresses = tcp::reachable_from(options.local, host, addresses)?;
    let open = |address| system_endpoint(address, options.local);
    Attempt::new(host, port, tls, &options.quic, &open)?.race(addresses, control_stream).await
}

/// Connects to the first address of `host` that answers, for HTTP/3.
pub(crate) async fn connect_http3(
    (host, port): (&str, u16),
    addresses: &[SocketAddr],
    tls: &ClientTls,
    options: &ConnectOptions,
) -> Result<Http3Connection, ConnectError> {
    let addresses = tcp::reachable_from(options.local, host, addresses)?;
    let open = |address| system_endpoint(address, options.local);
    Attempt::new(host, port, tls, &options.quic, &open)?.race(addresses, http3).await
}

/// Connects from a simulated host to `server`, whose certificate names `host`.
pub(crate) async fn connect_simulated(
    from: &Host,
    server: SocketAddr,
    host: &str,
    tls: &ClientTls,
    options: &QuicOptions,
) -> Result<Link, ConnectError> {
    let open = |_| simulated::endpoint_on(from, from.attach(None)?, None);
    Attempt::new(host, server.port(), tls, options, &open)?.race(vec![server], control_stream).await
}

/// An endpoint of its own for a connection to `address`.
fn system_endpoint(address: SocketAddr, local: Option<IpAddr>) -> io::Result<(Endpoint, Failures)> {
    let any = match (local, address) {
        (Some(local), _) => SocketAddr::new(local, 0),
        (None, SocketAddr::V4(_)) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        (None, SocketAddr::V6(_)) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let runtime = Arc::new(GuardedRuntime::default());
    let failures = runtime.failures();
    let endpoint = Endpoint::new(config::endpoint(None), None, UdpSocket::bind(any)?, runtime)?;
    Ok((endpoint, failures))
}

fn no_answer(address: SocketAddr) -> io::Error {
    let reason = format!(
        "no answer from {address}: does it listen there on UDP, and does every firewall let UDP through?"
    );
    io::Error::new(io::ErrorKind::TimedOut, reason)
}

/// Failure of an attempt: with another address to try, or final.
enum Failure {
    Unreachable(io::Error),
    Final(ConnectError),
}

/// A connection that is established, or begun with early data.
struct Connected {
    connection: Connection,
    address: SocketAddr,
    endpoint: Endpoint,
    failures: Failures,
    options: Arc<QuicOptions>,
    gate: Option<Arc<SharedGate>>,
    confirmed: Option<Confirmed>,
}

type Finish<T> = fn(Connected) -> Pin<Box<dyn Future<Output = Result<T, ConnectionError>> + Send>>;

/// Opens the control stream of MQTT.
fn control_stream(
    connected: Connected,
) -> Pin<Box<dyn Future<Output = Result<Link, ConnectionError>> + Send>> {
    Box::pin(async move {
        let Connected { connection, address, endpoint, failures, options, gate, confirmed } = connected;
        let control = connection.open_bi().await?;
        let endpoint = Some(endpoint);
        Ok(Link::Multi(Multi::new(Established {
            control,
            connection,
            address,
            endpoint,
            failures,
            options,
            gate,
            confirmed,
        })))
    })
}

fn http3(
    connected: Connected,
) -> Pin<Box<dyn Future<Output = Result<Http3Connection, ConnectionError>> + Send>> {
    let Connected { connection, address, endpoint, failures, .. } = connected;
    let peer = peer(&connection, address);
    Box::pin(ready(Ok(Http3Connection::new(connection, peer, Some(endpoint), failures))))
}

struct Attempt<'a> {
    host: &'a str,
    port: u16,
    tls: &'a ClientTls,
    config: ClientConfig,
    /// Address for early data, and its configuration.
    early: Option<(SocketAddr, ClientConfig)>,
    transport: Transport,
    open: &'a Open<'a>,
}

/// Makes the endpoint for a connection to an address.
type Open<'a> = dyn Fn(SocketAddr) -> io::Result<(Endpoint, Failures)> + Sync + 'a;

impl<'a> Attempt<'a> {
    fn new(
        host: &'a str,
        port: u16,
        tls: &'a ClientTls,
        options: &QuicOptions,
        open: &'a Open<'a>,
    ) -> Result<Self, CertificateError> {
        let transport = options.transport(VarInt::MAX);
        let config = |tls| {
            let crypto = QuicClientConfig::try_from(tls)
                .map_err(|error: NoInitialCipherSuite| CertificateError::config(&error))?;
            let mut config = ClientConfig::new(Arc::new(crypto));
            config.transport_config(Arc::clone(&transport.shared));
            Ok::<_, CertificateError>(config)
        };
        let early = match tls.resumable(host, port) {
            Some(address) if options.zero_rtt => Some((address, config(tls.quic_early()?)?)),
            _ => None,
        };
        let config = config(tls.quic()?)?;
        Ok(Self { host, port, tls, config, early, transport, open })
    }

    /// `finish`: makes the result of a connection.
    async fn race<T>(&self, mut addresses: Vec<SocketAddr>, finish: Finish<T>) -> Result<T, ConnectError> {
        self.tls.warn_if_insecure(self.host);
        if let Some((early, _)) = &self.early {
            addresses.sort_by_key(|address| address != early);
        }
        match race(addresses, |address| self.within_limit(address, finish)).await {
            Ok(Ok(connected)) => Ok(connected),
            Ok(Err(error)) => Err(error),
            Err(last) => Err(ConnectError::unreachable(self.host, self.port, last)),
        }
    }

    /// Result that decides the race: a connection, or an answer that other addresses would give as well. An error of
    /// this function is for this address alone.
    async fn within_limit<T>(
        &self,
        address: SocketAddr,
        finish: Finish<T>,
    ) -> io::Result<Result<T, ConnectError>> {
        match timeout(self.transport.options.handshake_limit, PanicGuard::new(self.at(address, finish))).await
        {
            Ok(Ok(Ok(connected))) => Ok(Ok(connected)),
            Ok(Ok(Err(Failure::Final(error)))) => Ok(Err(error)),
            Ok(Ok(Err(Failure::Unreachable(error)))) => Err(error),
            Ok(Err(Broken)) => Err(Broken.into()),
            Err(_elapsed) => Err(no_answer(address)),
        }
    }

    async fn at<T>(&self, address: SocketAddr, finish: Finish<T>) -> Result<T, Failure> {
        let local = |error: io::Error| {
            Failure::Unreachable(io::Error::new(error.kind(), format!("{error} ({address})")))
        };
        let (endpoint, failures) = (self.open)(address).map_err(local)?;
        let early = self.early.as_ref().filter(|(to, _)| *to == address).map(|(_, config)| config);
        let name = self.tls.server_name(self.host);
        let mut config = early.unwrap_or(&self.config).clone();
        let gate = self.transport.gated().map(|(transport, gate)| {
            config.transport_config(transport);
            gate
        });
        let connecting = endpoint.connect_with(config, address, name).map_err(|error| self.refused(error))?;
        let begun = if early.is_some() { connecting.into_0rtt() } else { Err(connecting) };
        let (connection, confirmed) = match begun {
            Ok((connection, accepted)) => {
                let (tls, host, port) = (self.tls.clone(), self.host.to_owned(), self.port);
                // The next attempt waits for an answer, from whichever address.
                let silence = move || tls.forget_resumable(&host, port);
                let limit = self.transport.options.handshake_limit;
                let confirmed = taken_by_server(accepted, connection.clone(), limit, silence);
                (connection, Some(confirmed))
            }
            Err(connecting) => {
                let connection = connecting.await.map_err(|error| self.explain(&error, address))?;
                self.tls.set_resumable(self.host, self.port, address);
                (connection, None)
            }
        };
        let options = Arc::clone(&self.transport.options);
        let connected = Connected { connection, address, endpoint, failures, options, gate, confirmed };
        finish(connected).await.map_err(|error| self.explain(&error, address))
    }

    /// Before a packet was sent.
    fn refused(&self, error: noq::ConnectError) -> Failure {
        Failure::Final(match error {
            noq::ConnectError::InvalidServerName(name) => ConnectError::ServerName(name),
            error => self.failed(&error),
        })
    }

    fn explain(&self, error: &ConnectionError, address: SocketAddr) -> Failure {
        let (alpn, host) = (TransportErrorCode::crypto(120), self.host);
        match error {
            ConnectionError::TimedOut => Failure::Unreachable(no_answer(address)),
            ConnectionError::TransportError(error) => {
                let tls = error.crypto.as_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
                Failure::Final(match tls {
                    Some(tls) => tls_error(host, tls),
                    None => self.failed(&error),
                })
            }
            ConnectionError::ConnectionClosed(close) if close.error_code == alpn => {
                let spoken = self.tls.quic_alpn();
                Failure::Final(ConnectError::Alpn { host: host.to_owned(), port: self.port, spoken })
            }
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
            {
                let reason = format!("{address} takes no more connections now");
                Failure::Unreachable(io::Error::new(io::ErrorKind::ConnectionRefused, reason))
            }
            error => Failure::Final(self.failed(&error)),
        }
    }

    fn failed(&self, reason: &impl Display) -> ConnectError {
        ConnectError::Other(format!("QUIC with {}:{} failed: {reason}", self.host, self.port))
    }
}
