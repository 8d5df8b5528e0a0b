//! A link of one stream.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use braid_proto::stream::StreamKey;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::transport::{Peer, Read};

/// One ordered stream of bytes each way, and its peer.
pub struct Single {
    /// The bytes. `poll_shutdown` delivers all written bytes before it closes.
    pub io: Box<dyn ByteStream>,
    /// The other end.
    pub peer: Peer,
    /// The socket of TCP once more, where its path is measured.
    pub(crate) probe: Option<OwnedFd>,
    /// Trust of a WebSocket.
    pub(crate) trust: Option<Trust>,
}

/// Trust of a stream in its peer, whose messages may be larger from then on. Clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust(Arc<AtomicBool>);

impl Trust {
    pub(crate) fn set(&self) {
        // The task that reads is the one that sets it.
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A reliable, ordered stream of bytes both ways. [MQTT-4.2.0-1]
///
/// One vectored write is one system call on TCP and one binary frame on WebSocket, so a driver
/// that collects its packets before it writes gets the most of either.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

impl Single {
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Poll<io::Result<Read>> {
        if !wants(StreamKey::CONTROL) {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let ended = buffer.filled().len() == before;
        Poll::Ready(Ok(if ended { Read::Closed } else { Read::Bytes(StreamKey::CONTROL) }))
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        stream: StreamKey,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !stream.is_control() {
            let error = io::Error::new(io::ErrorKind::NotConnected, "there is only the control stream");
            return Poll::Ready(Err(error));
        }
        match ready!(Pin::new(&mut self.io).poll_write_vectored(cx, slices)) {
            // The link is lost: on a link of many streams that kind means one of them.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, error)))
            }
            outcome => Poll::Ready(outcome),
        }
    }
}
