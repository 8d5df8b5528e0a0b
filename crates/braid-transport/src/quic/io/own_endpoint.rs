//! Endpoint of a client: a socket with one connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use noq_proto::{
    ClientConfig, ConnectError, ConnectionEvent, ConnectionHandle, DatagramEvent, EndpointConfig,
    EndpointEvent, FourTuple,
};

use super::batch;
use super::datagram_queue::Datagrams;
use super::socket::{Datagram, Socket};
use super::timer::now;

/// Datagrams after which a client handles events, and so takes pieces of streams out of the library.
const MAX_RECEIVED: usize = 64;

/// Buffers that a client has filled at a time, each with up to 64 datagrams.
const MAX_BATCH: usize = 2;

/// Socket of a client with one connection, and its half of the library.
pub(super) struct OwnEndpoint {
    library: noq_proto::Endpoint,
    socket: Arc<Socket>,
    /// Socket before a move, until something comes in on the new one.
    previous: Option<Arc<Socket>>,
}

impl OwnEndpoint {
    /// Begins a connection.
    pub(super) fn connect(
        config: EndpointConfig,
        client: ClientConfig,
        socket: Arc<Socket>,
        server: SocketAddr,
        name: &str,
    ) -> Result<(Self, ConnectionHandle, noq_proto::Connection), ConnectError> {
        let mut library = noq_proto::Endpoint::new(Arc::new(config), None, !socket.may_fragment());
        let (handle, connection) = library.connect(now(), client, server, name)?;
        Ok((Self { library, socket, previous: None }, handle, connection))
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
    pub(super) fn rebind(
        &mut self,
        open: impl FnOnce(&Socket) -> io::Result<Socket>,
    ) -> io::Result<Arc<Socket>> {
        let socket = Arc::new(open(&self.socket)?);
        self.previous = Some(std::mem::replace(&mut self.socket, Arc::clone(&socket)));
        Ok(socket)
    }

    /// Datagrams for the connection, some hundred at most at a time.
    pub(super) fn receive(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionHandle,
    ) -> io::Result<Datagrams> {
        let mut datagrams = Datagrams::default();
        if let Some(previous) = self.previous.take()
            && receive(&previous, &mut self.library, cx, connection, &mut datagrams).is_ok()
            && datagrams.events.is_empty()
        {
            self.previous = Some(previous);
        }
        receive(&self.socket, &mut self.library, cx, connection, &mut datagrams)?;
        Ok(datagrams)
    }
}

/// Receives datagrams for the connection on a socket of a client.
fn receive(
    socket: &Socket,
    endpoint: &mut noq_proto::Endpoint,
    cx: &mut Context<'_>,
    connection: ConnectionHandle,
    datagrams: &mut Datagrams,
) -> io::Result<()> {
    let mut count = 0;
    while count < MAX_RECEIVED {
        let received = socket.poll_receive(cx, MAX_BATCH, |Datagram { from, to, ecn, bytes }| {
            count += 1;
            let (mut answer, now) = (Vec::new(), now());
            match endpoint.handle(now, FourTuple::new(from, to), ecn, bytes, &mut answer) {
                Some(DatagramEvent::ConnectionEvent(handle, event)) if handle == connection => {
                    datagrams.events.push(event);
                    datagrams.last = Some(now);
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
