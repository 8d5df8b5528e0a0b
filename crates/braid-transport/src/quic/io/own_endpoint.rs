//! Endpoint of a client: one connection, on one socket or on one for each interface.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use noq_proto::{
    ClientConfig, ConnectError, ConnectionEvent, ConnectionHandle, DatagramEvent, EndpointConfig,
    EndpointEvent, FourTuple,
};

use super::batch;
use super::socket::{Datagram, Socket};
use super::timer::now;

/// Datagrams after which a client takes pieces of streams out of the library.
const MAX_RECEIVED: usize = 64;

/// Buffers that a client has filled at a time, each with up to 64 datagrams.
const MAX_BATCH: usize = 2;

/// Sockets of a client with one connection, and its half of the library.
pub(super) struct OwnEndpoint {
    library: noq_proto::Endpoint,
    server: SocketAddr,
    /// One, or one for each local path.
    sockets: Vec<PathSocket>,
    /// Socket before a move, until something for the connection comes in on the new one.
    previous: Option<Arc<Socket>>,
    /// Indices of local paths whose sockets have failed.
    failed: Vec<usize>,
}

struct PathSocket {
    /// Index of the local path.
    local: usize,
    socket: Arc<Socket>,
    /// Address of the socket, where there may be several.
    ip: Option<IpAddr>,
}

impl OwnEndpoint {
    /// Begins a connection. `local`: index of the local path of its socket, if there are several.
    pub(super) fn connect(
        config: EndpointConfig,
        client: ClientConfig,
        socket: Arc<Socket>,
        local: Option<usize>,
        (server, name): (SocketAddr, &str),
    ) -> Result<(Self, ConnectionHandle, noq_proto::Connection), ConnectError> {
        let mut library = noq_proto::Endpoint::new(Arc::new(config), None, !socket.may_fragment());
        let (handle, connection) = library.connect(now(), client, server, name)?;
        let ip = local.and_then(|_| Some(socket.local_addr().ok()?.ip()));
        let sockets = vec![PathSocket { local: local.unwrap_or(0), socket, ip }];
        Ok((Self { library, server, sockets, previous: None, failed: Vec::new() }, handle, connection))
    }

    /// Takes an event of the connection.
    pub(super) fn handle_event(
        &mut self,
        connection: ConnectionHandle,
        event: EndpointEvent,
    ) -> Option<ConnectionEvent> {
        self.library.handle_event(connection, event)
    }

    /// Moves to a socket that `open` makes of the old one, which receives until something comes in on the new one.
    ///
    /// # Errors
    /// `open` failed, or there are several sockets.
    pub(super) fn rebind(
        &mut self,
        open: impl FnOnce(&Socket) -> io::Result<Socket>,
    ) -> io::Result<Arc<Socket>> {
        let [PathSocket { socket: own, ip: None, .. }] = &mut self.sockets[..] else {
            let reason = "a connection with paths at several interfaces stays there";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        };
        let socket = Arc::new(open(own)?);
        self.previous = Some(std::mem::replace(own, Arc::clone(&socket)));
        Ok(socket)
    }

    /// Address of the server at the begin of the connection.
    pub(super) fn server(&self) -> SocketAddr {
        self.server
    }

    /// The socket of a local path.
    pub(super) fn socket_of(&self, local: usize) -> Option<Arc<Socket>> {
        self.sockets.iter().find(|socket| socket.local == local).map(|socket| Arc::clone(&socket.socket))
    }

    /// Sets the socket of a local path, and its address.
    pub(super) fn set_socket(&mut self, local: usize, socket: Arc<Socket>, ip: IpAddr) {
        self.sockets.retain(|socket| socket.local != local);
        self.sockets.push(PathSocket { local, socket, ip: Some(ip) });
    }

    /// Local paths whose sockets have failed since the last call.
    pub(super) fn take_failed(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.failed)
    }

    /// Datagrams for the connection, some hundred at most at a time.
    ///
    /// # Errors
    /// The last socket has failed.
    pub(super) fn receive(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionHandle,
    ) -> io::Result<Vec<ConnectionEvent>> {
        let mut datagrams = Vec::new();
        let library = &mut self.library;
        self.previous
            .take_if(|previous| receive(previous, None, library, cx, connection, &mut datagrams).is_err());
        let on_previous = datagrams.len();
        let mut failure = None;
        self.sockets.retain(|PathSocket { local, socket, ip }| {
            let received = receive(socket, *ip, library, cx, connection, &mut datagrams);
            let is_open = received.is_ok();
            if let Err(error) = received {
                self.failed.push(*local);
                failure = Some(error);
            }
            is_open
        });
        if datagrams.len() > on_previous {
            self.previous = None;
        }
        match failure {
            Some(error) if self.sockets.is_empty() => Err(error),
            _ => Ok(datagrams),
        }
    }
}

/// Receives datagrams for the connection on a socket of a client. `ip`: its address, if it is bound to one.
fn receive(
    socket: &Socket,
    ip: Option<IpAddr>,
    endpoint: &mut noq_proto::Endpoint,
    cx: &mut Context<'_>,
    connection: ConnectionHandle,
    datagrams: &mut Vec<ConnectionEvent>,
) -> io::Result<()> {
    let mut count = 0;
    while count < MAX_RECEIVED {
        let received = socket.poll_receive(cx, MAX_BATCH, |Datagram { from, to, ecn, bytes }| {
            count += 1;
            let mut answer = Vec::new();
            match endpoint.handle(now(), FourTuple::new(from, ip.or(to)), ecn, bytes, &mut answer) {
                Some(DatagramEvent::ConnectionEvent(handle, event)) if handle == connection => {
                    datagrams.push(event);
                }
                Some(DatagramEvent::Response(transmit)) => {
                    let _ = socket.try_send(&batch::of(&transmit, &answer));
                }
                _ => {}
            }
        });
        match received {
            Poll::Ready(received) => received?,
            Poll::Pending => return Ok(()),
        }
    }
    cx.waker().wake_by_ref();
    Ok(())
}
