//! The client's endpoint: one per connection.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use noq::crypto::rustls::QuicClientConfig;
use noq::{ClientConfig, ConnectionError, Endpoint, EndpointConfig, TransportErrorCode};
use tokio::time::timeout;

use super::config::QuicOptions;
use super::link::link;
use super::shield::{Broken, Shield, ShieldedRuntime};
use crate::error::{CertificateError, ConnectError};
use crate::link::Link;
use crate::race::race;
use crate::tcp;
use crate::tls::{ClientTls, explain};

/// What one address may take. UDP gives no other sign that nobody is there.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Connects to the first address of `host` that answers, and opens the control stream.
pub(crate) async fn connect(
    host: &str,
    port: u16,
    tls: &ClientTls,
    options: &QuicOptions,
) -> Result<Link, ConnectError> {
    let crypto = QuicClientConfig::try_from(tls.quic()?)
        .map_err(|error| CertificateError::Config { reason: error.to_string() })?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(options.transport());
    tls.warn_if_insecure(host);
    let attempt = Attempt { host, port, tls, config };
    let outcome = race(tcp::resolve(host, port).await?, |address| attempt.within_limit(address)).await;
    match outcome {
        Ok(Ok(link)) => Ok(link),
        Ok(Err(error)) => Err(error),
        Err(reason) => {
            Err(ConnectError::Unreachable { host: host.to_owned(), port, reason: reason.unwrap_or_default() })
        }
    }
}

fn no_answer(address: SocketAddr) -> String {
    format!("no answer from {address}: does it listen there on UDP, and does every firewall let UDP through?")
}

/// Why an attempt failed: another address may do better, or not.
enum Failure {
    Unreachable(String),
    Final(ConnectError),
}

struct Attempt<'a> {
    host: &'a str,
    port: u16,
    tls: &'a ClientTls,
    config: ClientConfig,
}

impl Attempt<'_> {
    /// What decides the race: a link, or an answer that no other address will better. An error of
    /// this function is for this address alone.
    async fn within_limit(&self, address: SocketAddr) -> Result<Result<Link, ConnectError>, String> {
        match timeout(ATTEMPT, Shield::new(self.at(address))).await {
            Ok(Ok(Ok(link))) => Ok(Ok(link)),
            Ok(Ok(Err(Failure::Final(error)))) => Ok(Err(error)),
            Ok(Ok(Err(Failure::Unreachable(reason)))) => Err(reason),
            Ok(Err(Broken)) => Err(io::Error::from(Broken).to_string()),
            Err(_elapsed) => Err(no_answer(address)),
        }
    }

    async fn at(&self, address: SocketAddr) -> Result<Link, Failure> {
        let local = |error: io::Error| Failure::Unreachable(format!("{error} ({address})"));
        let any = match address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = UdpSocket::bind(any).map_err(local)?;
        let runtime = Arc::new(ShieldedRuntime::default());
        let failures = runtime.failures();
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, runtime).map_err(local)?;
        let name = self.tls.server_name(self.host);
        let connection = endpoint
            .connect_with(self.config.clone(), address, name)
            .map_err(|error| self.refused(error))?
            .await
            .map_err(|error| self.explain(&error, address))?;
        let control = connection.open_bi().await.map_err(|error| self.explain(&error, address))?;
        Ok(link(control, connection, address, Some(endpoint), failures))
    }

    /// Before a packet was sent.
    fn refused(&self, error: noq::ConnectError) -> Failure {
        Failure::Final(match error {
            noq::ConnectError::InvalidServerName(name) => ConnectError::ServerName { name },
            error => self.failed(error.to_string()),
        })
    }

    fn explain(&self, error: &ConnectionError, address: SocketAddr) -> Failure {
        let (alpn, host) = (TransportErrorCode::crypto(120), self.host);
        match error {
            ConnectionError::TimedOut => Failure::Unreachable(no_answer(address)),
            ConnectionError::TransportError(error) => {
                let tls = error.crypto.as_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
                Failure::Final(match tls {
                    Some(tls) => explain::tls_error(host, tls),
                    None => self.failed(error.to_string()),
                })
            }
            ConnectionError::ConnectionClosed(close) if close.error_code == alpn => {
                let spoken = self.tls.quic_alpn();
                Failure::Final(ConnectError::Alpn { host: host.to_owned(), port: self.port, spoken })
            }
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
            {
                Failure::Unreachable(format!("{address} takes no more connections now"))
            }
            error => Failure::Final(self.failed(error.to_string())),
        }
    }

    fn failed(&self, reason: String) -> ConnectError {
        ConnectError::Quic { host: self.host.to_owned(), port: self.port, reason }
    }
}
