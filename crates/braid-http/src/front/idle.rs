//! Byte stream that ends when nothing moves for too long.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::count::Permit;
use crate::counters::{FrontCounters, HttpVersion};

/// Byte stream of a connection with its permit and the time limit without a byte in either direction, which is shorter
/// until the first byte.
pub(super) struct IdleTimeout<T> {
    io: T,
    idle: Duration,
    timer: Pin<Box<Sleep>>,
    /// Time of the last byte. The timer is set anew only when it has run out.
    moved: Instant,
    has_begun: bool,
    /// The protocol has changed: another one has its own time limits.
    is_upgraded: Arc<AtomicBool>,
    permit: Permit,
    /// Counter of what is written.
    sent: (FrontCounters, HttpVersion),
}

impl<T> IdleTimeout<T> {
    pub(super) fn new(
        io: T,
        first: Duration,
        idle: Duration,
        permit: Permit,
        sent: (FrontCounters, HttpVersion),
    ) -> Self {
        let timer = Box::pin(sleep(first));
        let is_upgraded = Arc::default();
        Self { io, idle, timer, moved: Instant::now(), has_begun: false, is_upgraded, permit, sent }
    }

    /// Flag that turns the time limit off.
    pub(super) fn upgraded(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_upgraded)
    }

    fn wrote(&self, outcome: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = outcome {
            let (counters, version) = &self.sent;
            counters.sent(*version, *bytes as u64);
        }
    }

    /// Notes progress, or looks at the time.
    fn observe<R>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if outcome.is_ready() {
            self.moved = Instant::now();
            self.permit.activity().moved(self.moved);
            if !self.has_begun {
                self.has_begun = true;
                self.timer.as_mut().reset(self.moved + self.idle);
            }
            return outcome;
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let end = self.moved + self.idle;
            let is_upgraded = self.is_upgraded.load(Ordering::Relaxed);
            if !self.has_begun || (end <= Instant::now() && !is_upgraded) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.timer.as_mut().reset(if is_upgraded { Instant::now() + self.idle } else { end });
        }
        outcome
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for IdleTimeout<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_read(cx, buffer);
        self.observe(cx, outcome)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for IdleTimeout<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.wrote(&outcome);
        self.observe(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.wrote(&outcome);
        self.observe(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    /// Bytes of TLS may wait here, without an end.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.io).poll_flush(cx) {
            Poll::Pending => self.observe(cx, Poll::Pending),
            flushed => flushed,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.io).poll_shutdown(cx) {
            Poll::Pending => self.observe(cx, Poll::Pending),
            closed => closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::advance;

    use super::super::count::ConnectionCount;
    use super::*;
    use crate::limits::Limits;

    fn sent() -> (FrontCounters, HttpVersion) {
        (FrontCounters::default(), HttpVersion::One)
    }

    fn permit() -> Permit {
        ConnectionCount::new(&Limits::default(), FrontCounters::default())
            .admit([127, 0, 0, 1].into())
            .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_byte_and_each_later_one_have_their_time() {
        let (first, idle) = (Duration::from_secs(10), Duration::from_secs(75));
        let (_client, server) = duplex(100);
        let began = Instant::now();
        let error = IdleTimeout::new(server, first, idle, permit(), sent()).read_u8().await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed()), (io::ErrorKind::TimedOut, first));

        let (mut client, server) = duplex(100);
        let mut server = IdleTimeout::new(server, first, idle, permit(), sent());
        client.write_all(&[1, 2]).await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), 1);
        advance(Duration::from_secs(60)).await;
        assert_eq!(server.read_u8().await.unwrap(), 2);
        let began = Instant::now();
        assert_eq!(server.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), idle);
    }

    #[tokio::test(start_paused = true)]
    async fn another_protocol_has_no_time_limit() {
        let idle = Duration::from_secs(75);
        let (mut client, server) = duplex(100);
        let mut server = IdleTimeout::new(server, idle, idle, permit(), sent());
        client.write_all(&[1]).await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), 1);
        server.upgraded().store(true, Ordering::Relaxed);
        let waiting = tokio::time::timeout(Duration::from_secs(1000), server.read_u8());
        assert!(waiting.await.is_err(), "still open");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_is_idle() {
        let (mut client, server) = duplex(1);
        let idle = Duration::from_secs(5);
        let mut server = IdleTimeout::new(server, idle, idle, permit(), sent());
        client.write_all(&[0]).await.unwrap();
        server.read_u8().await.unwrap();
        assert_eq!(server.write_all(&[0; 10]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
