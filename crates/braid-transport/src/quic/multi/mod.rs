//! A QUIC connection as a link of many streams.
//!
//! One task owns the link and polls it; there is no task per connection or stream. What the library
//! has to tell rings a bell, and the owner is woken once for any number of them.

mod arrivals;
mod bells;
mod close;
mod gating;
mod holders;
mod loss;
mod parts;
mod read;
mod settle;
mod stream;
#[cfg(test)]
mod tests;
mod unsent;
mod urgency;
mod waiting;
mod whereabouts;
mod window;
mod write;

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

use self::bells::Bells;
use self::close::{Farewell, LINGER};
use self::parts::Parts;
use super::codes;
use super::link::Established;
use super::pacing::GateState;
use super::shield::{Broken, is_sound, shielded};
use crate::link::{Close, Dir, Peer, Read};

/// A QUIC connection: the control stream and any number of data streams.
pub struct Multi {
    pub(crate) peer: Peer,
    /// `None` once the library has panicked in it, or the end has begun.
    parts: Option<Box<Parts>>,
    /// The end, once it has begun.
    farewell: Option<Farewell>,
    /// When it is to be over, if that was said.
    deadline: Option<Instant>,
    is_broken: bool,
    bells: Arc<Bells>,
}

impl Multi {
    pub(super) fn new(peer: Peer, established: Established) -> Self {
        let bells = Arc::new(Bells::default());
        let parts = Some(Box::new(Parts::new(established, Arc::clone(&bells))));
        Self { peer, parts, farewell: None, deadline: None, is_broken: false, bells }
    }

    pub(crate) fn is_early(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.confirmed.is_some())
    }

    pub(crate) fn gate_state(&self) -> Option<GateState> {
        self.parts.as_ref()?.gating.state()
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Poll<io::Result<Read>> {
        self.bells.listen(cx);
        if self.parts.is_none() && !self.is_broken {
            return Poll::Ready(Ok(Read::Closed));
        }
        let read = ready!(self.with(|parts| parts.poll_read(cx, buffer, wants))?);
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
        self.bells.listen(cx);
        self.with(|parts| parts.poll_write(cx, stream, slices))?
    }

    pub(crate) fn set_priority(&mut self, stream: StreamKey, priority: Priority) {
        let _ = self.with(|parts| parts.set_priority(stream, priority));
    }

    pub(crate) fn finish(&mut self, stream: StreamKey) {
        let _ = self.with(|parts| parts.finish(stream));
    }

    pub(crate) fn abort(&mut self, stream: StreamKey, code: u64) {
        let _ = self.with(|parts| parts.abort(stream, code));
    }

    pub(crate) fn poll_open(&mut self, cx: &mut Context<'_>, dir: Dir) -> Poll<io::Result<StreamKey>> {
        self.bells.listen(cx);
        self.with(|parts| parts.poll_open(dir))?
    }

    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>, close: Close) -> Poll<io::Result<()>> {
        if self.parts.is_some() {
            self.farewell = self.begin_farewell(close)?;
        }
        let Some(farewell) = self.farewell.as_mut() else { return Poll::Ready(Ok(())) };
        let outcome = ready!(farewell.as_mut().poll(cx));
        self.farewell = None;
        Poll::Ready(outcome.map_err(io::Error::from))
    }

    pub(crate) fn close_by(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    pub(crate) fn stream_frames(&mut self) -> Option<u64> {
        self.with(|parts| parts.connection.stats().frame_rx.stream).ok()
    }

    pub(crate) fn set_trusted(&mut self) {
        let _ = self.with(Parts::set_trusted);
    }

    pub(crate) fn rebind(&mut self, address: Option<SocketAddr>) -> io::Result<()> {
        self.with(|parts| parts.rebind(address))?
    }

    /// Runs `call` on the handles; they are forgotten if it panics.
    fn with<T>(&mut self, call: impl FnOnce(&mut Parts) -> T) -> io::Result<T> {
        let Some(parts) = self.parts.as_mut() else {
            return Err(if self.is_broken { Broken.into() } else { closed() });
        };
        shielded(|| call(parts)).map_err(|broken| {
            std::mem::forget(self.parts.take());
            self.is_broken = true;
            broken.into()
        })
    }

    fn begin_farewell(&mut self, close: Close) -> io::Result<Option<Farewell>> {
        let Some(parts) = self.parts.take() else { return Ok(None) };
        if is_sound(&parts.connection) {
            // From now on, unless the end was decided on before. [BQ-41]
            let deadline = self.deadline.map_or_else(|| Now::now() + LINGER, Now::from_std);
            return Ok(Some(parts.into_remains().farewell(close, deadline)));
        }
        std::mem::forget(parts);
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
        let farewell = match self.farewell.take() {
            None => self.begin_farewell(close).ok().flatten(),
            farewell => farewell,
        };
        // Without a runtime nothing can be delivered any more: dropping closes the connection.
        if let (Some(farewell), Ok(runtime)) = (farewell, Handle::try_current()) {
            runtime.spawn(farewell);
        }
    }
}

impl fmt::Debug for Multi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Multi").field("peer", &self.peer).finish_non_exhaustive()
    }
}
