//! The control stream as a stream of bytes, and how a connection ends.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use noq::{Connection, ConnectionError, Endpoint, ReadError, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::acknowledged::all_acknowledged;
use super::codes::{self, code};
use super::shield::{Broken, Shield, is_sound, shielded};
use crate::wakers::Wakers;

/// How long the peer may take to acknowledge our last bytes.
const LINGER: Duration = Duration::from_secs(3);

/// How long a client's CONNECTION_CLOSE may take to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// The control stream. When it is shut down or dropped, what was written is delivered, then the
/// stream is finished and the connection closed with [`codes::CLOSE_NORMAL`].
pub(super) struct QuicStream {
    /// `None` once the library has panicked in it.
    parts: Option<Parts>,
    /// The end, once it has begun.
    linger: Option<Linger>,
    /// Who waits here, for when the library can no longer wake them.
    wakers: Arc<Wakers>,
}

type Linger = Pin<Box<dyn Future<Output = Result<(), Broken>> + Send>>;

struct Parts {
    /// `None` once the end has begun.
    send: Option<SendStream>,
    recv: RecvStream,
    connection: Connection,
    /// A client's own endpoint.
    endpoint: Option<Endpoint>,
}

impl QuicStream {
    /// `endpoint` is given by a client, whose endpoint serves this connection alone.
    pub(super) fn new(
        send: SendStream,
        recv: RecvStream,
        connection: Connection,
        endpoint: Option<Endpoint>,
        wakers: Arc<Wakers>,
    ) -> Self {
        Self { parts: Some(Parts { send: Some(send), recv, connection, endpoint }), linger: None, wakers }
    }

    /// Runs `call` on the handles; they are forgotten if it panics.
    fn with<T>(&mut self, call: impl FnOnce(&mut Parts) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Some(parts) = self.parts.as_mut() else { return Poll::Ready(Err(Broken.into())) };
        match shielded(|| call(parts)) {
            Ok(outcome) => outcome,
            Err(broken) => {
                std::mem::forget(self.parts.take());
                Poll::Ready(Err(broken.into()))
            }
        }
    }
}

impl AsyncRead for QuicStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.wakers.reader.register(cx.waker());
        let outcome = this.with(|parts| Pin::new(&mut parts.recv).poll_read(cx, buf));
        match ready!(outcome) {
            Err(error) if is_normal_close(&error) => Poll::Ready(Ok(())),
            outcome => Poll::Ready(outcome),
        }
    }
}

/// Many clients close the connection without finishing the stream first: that is its end as well.
fn is_normal_close(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<ReadError>());
    matches!(
        cause,
        Some(ReadError::ConnectionLost(ConnectionError::ApplicationClosed(close)))
            if close.error_code == code(codes::CLOSE_NORMAL)
    )
}

impl AsyncWrite for QuicStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.wakers.writer.register(cx.waker());
        this.with(|parts| {
            let Some(send) = parts.send.as_mut() else { return Poll::Ready(Err(shut_down())) };
            write_all_of(send, cx, bufs)
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Nothing to do: QUIC sends what it has as soon as it may.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(parts) = this.parts.as_mut()
            && let Some(send) = parts.send.take()
        {
            this.linger = Some(linger(send, parts.connection.clone(), parts.endpoint.take()));
        }
        let Some(linger) = this.linger.as_mut() else { return Poll::Ready(Ok(())) };
        let outcome = ready!(linger.as_mut().poll(cx));
        this.linger = None;
        Poll::Ready(outcome.map_err(io::Error::from))
    }
}

impl Drop for QuicStream {
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.take() else { return };
        if !is_sound(&parts.connection) {
            std::mem::forget((parts, self.linger.take()));
            return;
        }
        let rest = match parts.send.take() {
            Some(send) => Some(linger(send, parts.connection.clone(), parts.endpoint.take())),
            None => self.linger.take(),
        };
        let (Some(rest), Ok(runtime)) = (rest, Handle::try_current()) else {
            parts.connection.close(code(codes::CLOSE_NORMAL), b"");
            return;
        };
        runtime.spawn(rest);
    }
}

/// Writes as many of `bufs` as are taken now.
fn write_all_of(
    send: &mut SendStream,
    cx: &mut Context<'_>,
    bufs: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let mut total = 0;
    for buf in bufs.iter().filter(|buf| !buf.is_empty()) {
        match Pin::new(&mut *send).poll_write(cx, buf) {
            Poll::Ready(Ok(written)) => {
                total += written;
                if written < buf.len() {
                    break;
                }
            }
            // What was taken so far counts; the error comes back with the next write.
            Poll::Pending | Poll::Ready(Err(_)) if total > 0 => break,
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
        }
    }
    Poll::Ready(Ok(total))
}

fn shut_down() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the control stream is shut down")
}

/// Delivers what was written, finishes the stream and closes the connection.
fn linger(send: SendStream, connection: Connection, endpoint: Option<Endpoint>) -> Linger {
    Box::pin(Shield::new(async move {
        let in_time = timeout(LINGER, deliver(send, &connection)).await;
        if in_time.is_err() {
            tracing::debug!("the peer did not acknowledge the last bytes in time");
        }
        connection.close(code(codes::CLOSE_NORMAL), b"");
        if let Some(endpoint) = endpoint {
            // The process may end next, and the close frame has to leave before it does.
            let _ = timeout(FAREWELL, endpoint.wait_all_draining()).await;
        }
    }))
}

/// Waits until the peer has acknowledged everything, then sends the end of the stream by itself:
/// some clients drop the data that arrives together with it.
async fn deliver(mut send: SendStream, connection: &Connection) {
    all_acknowledged(&mut send, connection).await;
    if send.finish().is_ok() {
        let _ = send.stopped().await;
    }
}
