//! Connections of a client, each on a socket of its own.

use std::fmt::Display;
use std::future::{Future, ready};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;

use noq_proto::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig};
use noq_proto::{ClientConfig, ConnectionError, Dir, EndpointConfig, TransportErrorCode, VarInt};
use tokio::time::timeout;

use super::announced_window::AnnouncedWindow;
use super::config::{self, ConnectionConfig, QuicOptions, Transport};
use super::congestion::controller::SharedGate;
use super::connection::{Established, MAX_WINDOW, Multi, Rebind, any_port, peer};
use super::early::{Early, Wait};
use super::http3::Http3Connection;
use super::io::{Connection, LocalPaths, OpenSocket, Socket};
use super::multipath::Multipath;
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
    if options.quic.multipath.is_wanted() {
        let multipath = &options.quic.multipath;
        let open = |address, first| system_sockets(address, first, multipath);
        return Attempt::new(host, port, tls, &options.quic, &open)?.race(addresses, control_stream).await;
    }
    let open = |address, _| system_socket(address, options.local);
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
    let open = |address, _| system_socket(address, options.local);
    Attempt::new(host, port, tls, &options.quic, &open)?.race(addresses, http3).await
}

/// Connects from simulated hosts to `server`, whose certificate names `host`. Those beyond the first are further
/// interfaces, for paths of their own.
pub(crate) async fn connect_simulated(
    from: &[Host],
    server: SocketAddr,
    host: &str,
    tls: &ClientTls,
    options: &QuicOptions,
) -> Result<Link, ConnectError> {
    let open = |_, first| simulated_sockets(from, first, &options.multipath);
    Attempt::new(host, server.port(), tls, options, &open)?.race(vec![server], control_stream).await
}

/// Socket of a connection, and what belongs to it.
struct Opened {
    socket: Socket,
    config: EndpointConfig,
    rebind: Rebind,
    /// Local paths of a connection that is to have several.
    locals: Option<LocalPaths>,
}

/// A socket of the system for a connection to `address`.
fn system_socket(address: SocketAddr, local: Option<IpAddr>) -> io::Result<Opened> {
    let any = match (local, address) {
        (Some(local), _) => SocketAddr::new(local, 0),
        (None, SocketAddr::V4(_)) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        (None, SocketAddr::V6(_)) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let bind = |address| Socket::system(UdpSocket::bind(address)?);
    let rebind: Rebind = Arc::new(move |before, address| match address {
        Some(address) => bind(address),
        None => bind(any_port(before.local_addr()?)),
    });
    Ok(Opened { socket: bind(any)?, config: config::endpoint(None), rebind, locals: None })
}

/// A socket at one of the local paths for a connection to `address`.
fn system_sockets(address: SocketAddr, first: usize, multipath: &Multipath) -> io::Result<Opened> {
    let options = multipath.clone();
    let open: OpenSocket = Arc::new(move |local| {
        let local = options.locals.get(local).ok_or(io::ErrorKind::NotFound)?;
        Socket::system(local.open(address)?)
    });
    let socket = open(first)?;
    let locals = Some(LocalPaths { options: multipath.clone(), open, first });
    Ok(Opened { socket, config: config::endpoint(None), rebind: unmoved(), locals })
}

/// A socket of a simulated host, which moves to another port only, or of one of several.
fn simulated_sockets(hosts: &[Host], first: usize, multipath: &Multipath) -> io::Result<Opened> {
    let hosts = hosts.to_vec();
    let host = hosts.get(first).ok_or(io::ErrorKind::NotFound)?;
    let config = config::seeded(config::endpoint(None), host);
    let socket = Socket::simulated(host.attach(None)?);
    if !multipath.is_wanted() {
        let host = host.clone();
        let rebind: Rebind = Arc::new(move |_, _| Ok(Socket::simulated(host.attach(None)?)));
        return Ok(Opened { socket, config, rebind, locals: None });
    }
    let open: OpenSocket = Arc::new(move |local| {
        let host = hosts.get(local).ok_or(io::ErrorKind::NotFound)?;
        Ok(Socket::simulated(host.attach(None)?))
    });
    let locals = Some(LocalPaths { options: multipath.clone(), open, first });
    Ok(Opened { socket, config, rebind: unmoved(), locals })
}

/// A connection with several paths follows its interfaces.
fn unmoved() -> Rebind {
    Arc::new(|_, _| Err(io::ErrorKind::Unsupported.into()))
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
    connection: Box<Connection>,
    address: SocketAddr,
    rebind: Rebind,
    options: Arc<QuicOptions>,
    gate: Option<Arc<SharedGate>>,
    early: Option<Early>,
}

type Finish<T> = fn(Connected) -> Pin<Box<dyn Future<Output = Result<T, ConnectionError>> + Send>>;

/// Opens the control stream of MQTT.
fn control_stream(
    connected: Connected,
) -> Pin<Box<dyn Future<Output = Result<Link, ConnectionError>> + Send>> {
    Box::pin(async move {
        let Connected { mut connection, address, rebind, options, gate, early } = connected;
        // Nothing is sent before, so that early data goes with the first packet.
        if connection.open(Dir::Bi).is_none() {
            let opened = connection.drive(|connection| match connection.open(Dir::Bi) {
                Some(_control) => Some(Ok(())),
                None => connection.error().map(|error| Err(error.clone())),
            });
            opened.await?;
        }
        let rebind = Some(rebind);
        Ok(Link::Multi(Multi::new(Established { connection, address, options, gate, early, rebind })))
    })
}

fn http3(
    connected: Connected,
) -> Pin<Box<dyn Future<Output = Result<Http3Connection, ConnectionError>> + Send>> {
    let Connected { mut connection, address, .. } = connected;
    connection.set_receive_window(VarInt::MAX);
    let peer = peer(&connection, address);
    Box::pin(ready(Ok(Http3Connection::new(connection, peer))))
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

/// Opens the socket for a connection to an address, at the local path of this index.
type Open<'a> = dyn Fn(SocketAddr, usize) -> io::Result<Opened> + Sync + 'a;

impl<'a> Attempt<'a> {
    fn new(
        host: &'a str,
        port: u16,
        tls: &'a ClientTls,
        options: &QuicOptions,
        open: &'a Open<'a>,
    ) -> Result<Self, CertificateError> {
        let transport = options.transport(VarInt::from_u32(MAX_WINDOW));
        let config = |tls| {
            let crypto = QuicClientConfig::try_from(tls)
                .map_err(|error: NoInitialCipherSuite| CertificateError::config(&error))?;
            let mut config = ClientConfig::new(Arc::new(AnnouncedWindow(Arc::new(crypto))));
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
        // All interfaces for an address, before the next address.
        let count = self.transport.options.multipath.locals.len().max(1);
        let attempts =
            addresses.into_iter().flat_map(|address| (0..count).map(move |local| (address, local)));
        match race(attempts.collect(), |(address, local)| self.within_limit(address, local, finish)).await {
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
        local: usize,
        finish: Finish<T>,
    ) -> io::Result<Result<T, ConnectError>> {
        match timeout(self.transport.options.handshake_limit, self.at(address, local, finish)).await {
            Ok(Ok(connected)) => Ok(Ok(connected)),
            Ok(Err(Failure::Final(error))) => Ok(Err(error)),
            Ok(Err(Failure::Unreachable(error))) => Err(error),
            Err(_elapsed) => Err(no_answer(address)),
        }
    }

    async fn at<T>(&self, address: SocketAddr, local: usize, finish: Finish<T>) -> Result<T, Failure> {
        let no_socket = |error: io::Error| {
            Failure::Unreachable(io::Error::new(error.kind(), format!("{error} ({address})")))
        };
        let Opened { socket, config: endpoint, rebind, locals } =
            (self.open)(address, local).map_err(no_socket)?;
        let early = self.early.as_ref().filter(|(to, _)| *to == address).map(|(_, config)| config);
        let name = self.tls.server_name(self.host);
        let mut config = early.unwrap_or(&self.config).clone();
        let known = self.transport.options.known_round_trip(address.ip());
        // A socket for any local address has the one from which packets to the server leave.
        let bound = socket.local_addr().ok().map(|local| local.ip());
        let local =
            bound.filter(|ip| !ip.is_unspecified()).or_else(|| ConnectOptions::route_to(address).ok());
        let path = self.transport.options.known_path(address.ip(), local);
        let ConnectionConfig { shared, gate, activities } = self.transport.connection(known, path.clone());
        let rebind: Rebind = Arc::new(move |before, address| {
            let socket = rebind(before, address)?;
            path.leave();
            Ok(socket)
        });
        config.transport_config(shared);
        let (socket, server) = (Arc::new(socket), (address, name));
        let connection =
            Connection::connect(endpoint, config, socket, server, gate.clone(), locals.zip(activities));
        let mut connection = Box::new(connection.map_err(|error| self.refused(error))?);
        let options = Arc::clone(&self.transport.options);
        let early = if early.is_some() && connection.has_early_keys() {
            let (tls, host, port) = (self.tls.clone(), self.host.to_owned(), self.port);
            // The next attempt waits for an answer, from whichever address.
            let silence = move || tls.forget_resumable(&host, port);
            Some(Early::Sent(Wait::new(options.handshake_limit, silence)))
        } else {
            connection.connected().await.map_err(|error| self.explain(&error, address))?;
            self.tls.set_resumable(self.host, self.port, address);
            options.note_round_trip(&connection, address);
            None
        };
        let connected = Connected { connection, address, rebind, options, gate, early };
        finish(connected).await.map_err(|error| self.explain(&error, address))
    }

    /// Before a packet was sent.
    fn refused(&self, error: noq_proto::ConnectError) -> Failure {
        Failure::Final(match error {
            noq_proto::ConnectError::InvalidServerName(name) => ConnectError::ServerName(name),
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
