//! Listeners of all transports. Accepting is cheap; handshakes run apart from it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::error::BindError;
use crate::incoming::{Incoming, IncomingKind, Upgrade};
use crate::proxy::ProxyOptions;
use crate::quic::{EndpointHealth, QuicListener, QuicOptions};
use crate::tls::ServerTls;
use crate::transport::{Transport, canonical};
use crate::{TcpOptions, WebSocketOptions, tcp};

/// Protocols of a listener.
#[derive(Clone, Debug)]
pub enum ListenerKind {
    /// MQTT on TCP.
    Tcp,
    /// MQTT on TLS.
    Tls(ServerTls),
    /// MQTT on WebSocket.
    Ws,
    /// MQTT on WebSocket on TLS.
    Wss(ServerTls),
    /// MQTT on QUIC (UDP).
    Quic(ServerTls),
}

impl ListenerKind {
    /// The transport of its links.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match self {
            Self::Tcp => Transport::Tcp,
            Self::Tls(_) => Transport::Tls,
            Self::Ws => Transport::Ws,
            Self::Wss(_) => Transport::Wss,
            Self::Quic(_) => Transport::Quic,
        }
    }
}

/// Options of a listener.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// TCP connections that the system queues for `accept`, as far as its own limit allows.
    pub accept_queue: u32,
    /// For [`ListenerKind::Ws`] and [`ListenerKind::Wss`].
    pub websocket: WebSocketOptions,
    /// For [`ListenerKind::Quic`].
    pub quic: QuicOptions,
    /// For transports over TCP: options of accepted sockets.
    pub tcp: TcpOptions,
    /// For transports over TCP: the PROXY protocol, which every connection has to use then.
    pub proxy: Option<ProxyOptions>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            accept_queue: 4096,
            websocket: WebSocketOptions::default(),
            quic: QuicOptions::server(),
            tcp: TcpOptions::default(),
            proxy: None,
        }
    }
}

/// Listener on a bound address, or in memory.
pub struct Listener {
    address: Option<SocketAddr>,
    transport: Transport,
    socket: Socket,
}

enum Socket {
    Stream { listener: TcpListener, upgrade: Upgrade },
    Quic(Box<QuicListener>),
    Memory { arrivals: mpsc::Receiver<Result<Incoming, AcceptFailure>>, health: EndpointHealth },
}

/// Failure of an in-memory listener, on behalf of a test.
#[derive(Debug)]
pub(crate) struct AcceptFailure {
    pub(crate) error: io::Error,
    /// Condition that the listener reports from this failure on.
    pub(crate) health: EndpointHealth,
}

impl Listener {
    /// Binds `address`; port 0 lets the system choose. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The address cannot be listened on, QUIC cannot use the certificate, or the PROXY protocol is asked for on QUIC.
    pub fn bind(kind: ListenerKind, address: SocketAddr, options: &ListenOptions) -> Result<Self, BindError> {
        let transport = kind.transport();
        let tls = match kind {
            ListenerKind::Tcp | ListenerKind::Ws => None,
            ListenerKind::Tls(tls) | ListenerKind::Wss(tls) => Some(tls),
            ListenerKind::Quic(_) if options.proxy.is_some() => return Err(BindError::proxy_without_tcp()),
            ListenerKind::Quic(tls) => {
                return QuicListener::bind(tls, address, &options.quic).map(Self::from_quic);
            }
        };
        let websocket = transport.is_websocket().then(|| Arc::new(options.websocket.clone()));
        let proxy = options.proxy.clone().map(Arc::new);
        let upgrade = Upgrade { transport, proxy, tls, websocket };
        let listener = tcp::listen(address, options.accept_queue, &options.tcp)
            .map_err(|error| BindError::from_io("TCP", address, &error))?;
        let address = listener.local_addr().ok().or(Some(address));
        Ok(Self { address, transport, socket: Socket::Stream { listener, upgrade } })
    }

    pub(crate) fn from_quic(listener: QuicListener) -> Self {
        let address = listener.local_addr();
        Self { address, transport: Transport::Quic, socket: Socket::Quic(Box::new(listener)) }
    }

    pub(crate) fn in_memory(arrivals: mpsc::Receiver<Result<Incoming, AcceptFailure>>) -> Self {
        let socket = Socket::Memory { arrivals, health: EndpointHealth::default() };
        Self { address: None, transport: Transport::Mem, socket }
    }

    /// Listener of connections that an HTTP server has upgraded.
    pub(crate) fn of_upgrades(
        transport: Transport,
        arrivals: mpsc::Receiver<Result<Incoming, AcceptFailure>>,
    ) -> Self {
        Self { transport, ..Self::in_memory(arrivals) }
    }

    /// The bound address, with the port that the system chose. `None` for an in-memory listener.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The transport of its links.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Tests whether its links come through proxies, which tell the addresses of the clients.
    #[must_use]
    pub fn has_proxy(&self) -> bool {
        matches!(&self.socket, Socket::Stream { upgrade, .. } if upgrade.proxy.is_some())
    }

    /// Accepts the next connection without waiting for bytes of the peer.
    /// Cancel safe. Once the last [`Connector`](crate::mem::Connector) of an in-memory listener is gone it waits
    /// forever.
    ///
    /// # Errors
    /// The process is short of something (descriptors, memory); the listener stays usable, so pause
    /// a moment and call again. A QUIC endpoint whose socket failed is lost with its connections; each call tries to
    /// restart it and reports that as an error.
    pub async fn accept(&mut self) -> io::Result<Incoming> {
        let kind = match &mut self.socket {
            Socket::Stream { listener, upgrade } => {
                let (io, address) = tcp::accept(listener).await?;
                IncomingKind::Stream { io, address: canonical(address), upgrade: upgrade.clone() }
            }
            Socket::Quic(listener) => IncomingKind::Quic(listener.accept().await?),
            Socket::Memory { arrivals, health } => match arrivals.recv().await {
                Some(Ok(incoming)) => return Ok(incoming),
                Some(Err(failure)) => {
                    *health = failure.health;
                    return Err(failure.error);
                }
                None => std::future::pending().await,
            },
        };
        Ok(Incoming(kind))
    }

    /// Condition of the QUIC endpoint.
    #[must_use]
    pub fn endpoint_health(&self) -> EndpointHealth {
        match &self.socket {
            Socket::Quic(listener) => listener.health(),
            Socket::Memory { health, .. } => *health,
            Socket::Stream { .. } => EndpointHealth::default(),
        }
    }

    /// True if the links use the socket of the listener: they end when it is dropped.
    #[must_use]
    pub fn shares_socket(&self) -> bool {
        match self.socket {
            Socket::Quic(_) => true,
            Socket::Stream { .. } | Socket::Memory { .. } => false,
        }
    }

    /// Refuses clients that wait to be accepted, and those that come from now on; on QUIC only, as elsewhere the system
    /// collects them until the listener is dropped.
    pub fn stop_accepting(&self) {
        if let Socket::Quic(listener) = &self.socket {
            listener.stop_accepting();
        }
    }

    /// Stops listening. Links that exist live on. For QUIC, whose links share the socket, it waits until all of them
    /// are closed, at most a few seconds: call it last.
    pub async fn close(self) {
        match self.socket {
            Socket::Quic(listener) => listener.close().await,
            // Closed when they are dropped.
            Socket::Stream { .. } | Socket::Memory { .. } => {}
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("transport", &self.transport)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
