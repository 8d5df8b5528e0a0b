//! A QUIC connection as a link of many streams.
//!
//! One task owns the link and drives its connection with it: what has come is taken in by reads, and a flush sends what
//! was written.

mod close;
mod datagrams;
mod events;
mod path_migration;
mod path_state;
mod read;
mod reassembly;
mod receive_half;
mod receive_window;
mod send_limit;
mod state;
mod stream;
mod stream_finish;
#[cfg(test)]
mod tests;
mod unread_estimate;
mod write;
mod write_scheduler;

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use braid_proto::stream::StreamKey;
use noq_proto::crypto::rustls::HandshakeData;
use rustls::pki_types::CertificateDer;
use tokio::io::ReadBuf;
use tokio::runtime::Handle;

use self::close::{Closing, LINGER};
use super::codes;
use super::congestion::GateState;
use super::io::Connection;
use crate::tls;
use crate::transport::{Close, Dir, Peer, Read, Transport};

pub use self::datagrams::DatagramCounts;
pub use self::path_state::{Blocked, LoadCounts};
pub(super) use self::receive_window::MAX_WINDOW;
pub use self::receive_window::ReceiveBudget;
pub(crate) use self::state::ConnectionState;
pub(super) use self::state::{Established, Rebind, any_port};
pub(super) use self::stream::CloseReason;

/// A QUIC connection: the control stream and any number of data streams.
pub struct Multi {
    pub(crate) peer: Peer,
    /// `None` once the close has begun.
    state: Option<Box<ConnectionState>>,
    closing: Option<Closing>,
    /// Deadline of the close, if one was set.
    deadline: Option<Instant>,
}

impl Multi {
    pub(super) fn new(established: Established) -> Self {
        let peer = peer(&established.connection, established.address);
        let state = Some(Box::new(ConnectionState::new(established)));
        Self { peer, state, closing: None, deadline: None }
    }

    pub(crate) fn is_early(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.early.is_some())
    }

    pub(crate) fn gate_state(&self) -> Option<GateState> {
        self.state.as_ref()?.gate.as_ref()?.state()
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Poll<io::Result<Read>> {
        let Some(state) = &mut self.state else { return Poll::Ready(Ok(Read::Closed)) };
        let read = ready!(state.poll_read(cx, buffer, wants));
        if let Ok(Read::Moved(address)) = read {
            self.peer.address = Some(address);
        }
        Poll::Ready(read)
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        stream: StreamKey,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.with(|state| state.poll_write(cx, stream, slices))?
    }

    pub(crate) fn flush(&mut self, cx: &mut Context<'_>) {
        if let Some(state) = &mut self.state {
            state.flush(cx);
        }
    }

    pub(crate) async fn wait_for<'a, F: Future>(&'a mut self, ask: impl FnOnce(&'a Peer) -> F) -> F::Output {
        let Self { peer, state, .. } = self;
        let mut answer = pin!(ask(peer));
        poll_fn(|cx| {
            if let Some(state) = state {
                state.flush(cx);
            }
            answer.as_mut().poll(cx)
        })
        .await
    }

    pub(crate) fn poll_open(&mut self, cx: &mut Context<'_>, dir: Dir) -> Poll<io::Result<StreamKey>> {
        self.with(|state| match state.poll_open(dir) {
            Poll::Pending => {
                // The peer is told that it has to permit more.
                state.flush(cx);
                state.poll_open(dir)
            }
            opened => opened,
        })?
    }

    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>, close: Close) -> Poll<io::Result<()>> {
        if self.state.is_some() {
            self.closing = self.begin_close(close);
        }
        let Some(closing) = self.closing.as_mut() else { return Poll::Ready(Ok(())) };
        ready!(closing.as_mut().poll(cx));
        self.closing = None;
        Poll::Ready(Ok(()))
    }

    pub(crate) fn close_by(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Runs `call` on the state.
    pub(crate) fn with<T>(&mut self, call: impl FnOnce(&mut ConnectionState) -> T) -> io::Result<T> {
        let closed = || io::Error::new(io::ErrorKind::BrokenPipe, "the link is closed");
        Ok(call(self.state.as_mut().ok_or_else(closed)?))
    }

    fn begin_close(&mut self, close: Close) -> Option<Closing> {
        let state = self.state.take()?;
        // The time runs from now on, unless the end was decided on before. [BQ-41]
        let deadline = self.deadline.map(tokio::time::Instant::from_std);
        let deadline = deadline.unwrap_or_else(|| tokio::time::Instant::now() + LINGER);
        Some(state.into_closing().close(close, deadline))
    }
}

impl Drop for Multi {
    fn drop(&mut self) {
        let close = Close { code: codes::CLOSE_NORMAL, stop: None };
        let closing = self.closing.take().or_else(|| self.begin_close(close));
        // Without a runtime nothing can be delivered any more: dropping closes the connection.
        if let (Some(closing), Ok(runtime)) = (closing, Handle::try_current()) {
            runtime.spawn(closing);
        }
    }
}

impl fmt::Debug for Multi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Multi").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Certificates that the peer has sent.
pub(super) fn chain(connection: &Connection) -> Option<Vec<CertificateDer<'static>>> {
    connection.session().peer_identity()?.downcast().ok().map(|chain| *chain)
}

/// The peer as the handshake has shown it.
pub(super) fn peer(connection: &Connection, address: SocketAddr) -> Peer {
    let handshake = connection.session().handshake_data();
    let handshake = handshake.and_then(|handshake| handshake.downcast::<HandshakeData>().ok());
    let chain = chain(connection);
    Peer {
        tls_version: Some("TLSv1.3"),
        alpn: handshake.and_then(|data| data.protocol).map(|name| String::from_utf8_lossy(&name).into()),
        certificate: chain.and_then(|chain| tls::leaf(Some(&chain))),
        ..Peer::plain(Transport::Quic, Some(address))
    }
}
