//! A QUIC connection as a link of many streams.
//!
//! One task owns the link and polls it; there is no task per connection or stream. The library's wakers collect events,
//! and the owner is woken once for any number of them.

mod close;
mod events;
mod path_state;
mod read;
mod send_limit;
mod state;
mod stream;
mod stream_finish;
#[cfg(test)]
mod tests;
mod write;
mod write_scheduler;

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use braid_proto::stream::StreamKey;
use noq::crypto::rustls::HandshakeData;
use rustls::pki_types::CertificateDer;
use tokio::io::ReadBuf;
use tokio::runtime::Handle;

use self::close::{Closing, LINGER};
use self::events::EventWakers;
use super::codes;
use super::congestion::GateState;
use super::panic_guard::{Broken, guarded, is_sound};
use crate::tls;
use crate::transport::{Close, Dir, Peer, Read, Transport};

pub(super) use self::events::Confirmed;
pub use self::path_state::{Blocked, PathState};
pub(crate) use self::state::ConnectionState;
pub(super) use self::state::Established;

/// A QUIC connection: the control stream and any number of data streams.
pub struct Multi {
    pub(crate) peer: Peer,
    /// `None` once the library has panicked in it, or the close has begun.
    state: Option<Box<ConnectionState>>,
    closing: Option<Closing>,
    /// Deadline of the close, if one was set.
    deadline: Option<Instant>,
    is_broken: bool,
    wakers: Arc<EventWakers>,
}

impl Multi {
    pub(super) fn new(established: Established) -> Self {
        let peer = peer(&established.connection, established.address);
        let wakers = Arc::new(EventWakers::default());
        let state = Some(Box::new(ConnectionState::new(established, Arc::clone(&wakers))));
        Self { peer, state, closing: None, deadline: None, is_broken: false, wakers }
    }

    pub(crate) fn is_early(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.events.is_early())
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
        self.wakers.register(cx);
        if self.state.is_none() && !self.is_broken {
            return Poll::Ready(Ok(Read::Closed));
        }
        let read = ready!(self.with(|state| state.poll_read(cx, buffer, wants))?);
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
        self.wakers.register(cx);
        self.with(|state| state.poll_write(cx, stream, slices))?
    }

    pub(crate) fn poll_open(&mut self, cx: &mut Context<'_>, dir: Dir) -> Poll<io::Result<StreamKey>> {
        self.wakers.register(cx);
        self.with(|state| state.poll_open(dir))?
    }

    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>, close: Close) -> Poll<io::Result<()>> {
        if self.state.is_some() {
            self.closing = self.begin_close(close)?;
        }
        let Some(closing) = self.closing.as_mut() else { return Poll::Ready(Ok(())) };
        let outcome = ready!(closing.as_mut().poll(cx));
        self.closing = None;
        Poll::Ready(outcome.map_err(io::Error::from))
    }

    pub(crate) fn close_by(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Runs `call` on the state, which is forgotten if that panics.
    pub(crate) fn with<T>(&mut self, call: impl FnOnce(&mut ConnectionState) -> T) -> io::Result<T> {
        let Some(state) = self.state.as_mut() else {
            let closed = || io::Error::new(io::ErrorKind::BrokenPipe, "the link is closed");
            return Err(if self.is_broken { Broken.into() } else { closed() });
        };
        guarded(|| call(state)).map_err(|broken| {
            std::mem::forget(self.state.take());
            self.is_broken = true;
            broken.into()
        })
    }

    fn begin_close(&mut self, close: Close) -> io::Result<Option<Closing>> {
        let Some(state) = self.state.take() else { return Ok(None) };
        if is_sound(&state.connection) {
            // The time runs from now on, unless the end was decided on before. [BQ-41]
            let deadline = self.deadline.map(tokio::time::Instant::from_std);
            let deadline = deadline.unwrap_or_else(|| tokio::time::Instant::now() + LINGER);
            return Ok(Some(state.into_closing().close(close, deadline)));
        }
        std::mem::forget(state);
        self.is_broken = true;
        Err(Broken.into())
    }
}

impl Drop for Multi {
    fn drop(&mut self) {
        let close = Close { code: codes::CLOSE_NORMAL, stop: None };
        let closing = self.closing.take().or_else(|| self.begin_close(close).ok().flatten());
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
pub(super) fn chain(connection: &noq::Connection) -> Option<Vec<CertificateDer<'static>>> {
    connection.peer_identity()?.downcast().ok().map(|chain| *chain)
}

/// The peer as the handshake has shown it.
pub(super) fn peer(connection: &noq::Connection, address: SocketAddr) -> Peer {
    let handshake =
        connection.handshake_data().and_then(|handshake| handshake.downcast::<HandshakeData>().ok());
    let chain = chain(connection);
    Peer {
        tls_version: Some("TLSv1.3"),
        alpn: handshake.and_then(|data| data.protocol).map(|name| String::from_utf8_lossy(&name).into()),
        certificate: chain.and_then(|chain| tls::leaf(Some(&chain))),
        ..Peer::plain(Transport::Quic, Some(address))
    }
}
