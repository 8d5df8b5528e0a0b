//! A QUIC connection as a link of many streams.
//!
//! One task owns the link and polls it; there is no task per connection or stream. What the library
//! has to tell rings a bell, and the owner is woken once for any number of them.

mod active_priorities;
mod close;
mod close_reason;
mod gating;
mod incoming;
mod path_migration;
mod read;
mod send_limit;
mod state;
mod stream;
mod stream_finish;
#[cfg(test)]
mod tests;
mod unsent_bytes;
mod urgency;
mod wakers;
mod write;
mod write_scheduler;

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use braid_proto::stream::{Priority, StreamKey};
use tokio::io::ReadBuf;
use tokio::runtime::Handle;
use tokio::time::Instant as Now;

use self::close::{Closing, LINGER};
use self::state::ConnectionState;
use self::wakers::Wakers;
use super::codes;
use super::congestion::GateState;
use super::link::Established;
use super::panic_guard::{Broken, is_sound, shielded};
use crate::link::{Close, Dir, Peer, Read};

/// A QUIC connection: the control stream and any number of data streams.
pub struct Multi {
    pub(crate) peer: Peer,
    /// `None` once the library has panicked in it, or the end has begun.
    state: Option<Box<ConnectionState>>,
    /// The end, once it has begun.
    closing: Option<Closing>,
    /// When it is to be over, if that was said.
    deadline: Option<Instant>,
    is_broken: bool,
    wakers: Arc<Wakers>,
}

impl Multi {
    pub(super) fn new(peer: Peer, established: Established) -> Self {
        let wakers = Arc::new(Wakers::default());
        let state = Some(Box::new(ConnectionState::new(established, Arc::clone(&wakers))));
        Self { peer, state, closing: None, deadline: None, is_broken: false, wakers }
    }

    pub(crate) fn is_early(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.confirmed.is_some())
    }

    pub(crate) fn gate_state(&self) -> Option<GateState> {
        self.state.as_ref()?.gating.state()
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Poll<io::Result<Read>> {
        self.wakers.listen(cx);
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
        self.wakers.listen(cx);
        self.with(|state| state.poll_write(cx, stream, slices))?
    }

    pub(crate) fn set_priority(&mut self, stream: StreamKey, priority: Priority) {
        let _ = self.with(|state| state.set_priority(stream, priority));
    }

    pub(crate) fn finish(&mut self, stream: StreamKey) {
        let _ = self.with(|state| state.finish(stream));
    }

    pub(crate) fn abort(&mut self, stream: StreamKey, code: u64) {
        let _ = self.with(|state| state.abort(stream, code));
    }

    pub(crate) fn poll_open(&mut self, cx: &mut Context<'_>, dir: Dir) -> Poll<io::Result<StreamKey>> {
        self.wakers.listen(cx);
        self.with(|state| state.poll_open(dir))?
    }

    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>, close: Close) -> Poll<io::Result<()>> {
        if self.state.is_some() {
            self.closing = self.begin_farewell(close)?;
        }
        let Some(closing) = self.closing.as_mut() else { return Poll::Ready(Ok(())) };
        let outcome = ready!(closing.as_mut().poll(cx));
        self.closing = None;
        Poll::Ready(outcome.map_err(io::Error::from))
    }

    pub(crate) fn close_by(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    pub(crate) fn stream_frames(&mut self) -> Option<u64> {
        self.with(|state| state.connection.stats().frame_rx.stream).ok()
    }

    pub(crate) fn set_trusted(&mut self) {
        let _ = self.with(ConnectionState::set_trusted);
    }

    pub(crate) fn rebind(&mut self, address: Option<SocketAddr>) -> io::Result<()> {
        self.with(|state| state.rebind(address))?
    }

    /// Runs `call` on the handles; they are forgotten if it panics.
    fn with<T>(&mut self, call: impl FnOnce(&mut ConnectionState) -> T) -> io::Result<T> {
        let Some(state) = self.state.as_mut() else {
            return Err(if self.is_broken { Broken.into() } else { closed() });
        };
        shielded(|| call(state)).map_err(|broken| {
            std::mem::forget(self.state.take());
            self.is_broken = true;
            broken.into()
        })
    }

    fn begin_farewell(&mut self, close: Close) -> io::Result<Option<Closing>> {
        let Some(state) = self.state.take() else { return Ok(None) };
        if is_sound(&state.connection) {
            // From now on, unless the end was decided on before. [BQ-41]
            let deadline = self.deadline.map_or_else(|| Now::now() + LINGER, Now::from_std);
            return Ok(Some(state.into_remains().closing(close, deadline)));
        }
        std::mem::forget(state);
        self.is_broken = true;
        Err(Broken.into())
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the link is closed")
}

impl Drop for Multi {
    fn drop(&mut self) {
        let close = Close { code: codes::CLOSE_NORMAL, stop: None };
        let closing = match self.closing.take() {
            None => self.begin_farewell(close).ok().flatten(),
            closing => closing,
        };
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
