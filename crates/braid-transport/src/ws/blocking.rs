//! Between polling and the blocking calls that the library makes.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::tungstenite::Error;

/// The library's word for "not now" is an error.
pub(super) fn settle(result: Result<(), Error>) -> Poll<io::Result<()>> {
    match result {
        Ok(()) => Poll::Ready(Ok(())),
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        Err(Error::Io(error)) => Poll::Ready(Err(error)),
        Err(Error::ConnectionClosed | Error::AlreadyClosed) => Poll::Ready(Ok(())),
        Err(error) => Poll::Ready(Err(io::Error::other(error))),
    }
}

/// The connection below as the library wants to see it: calls that fail when they would wait.
pub(super) struct Blocking<'a, S> {
    pub(super) io: &'a mut S,
    pub(super) waker: &'a Waker,
}

impl<S: AsyncRead + Unpin> Read for Blocking<'_, S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(buf);
        let mut cx = Context::from_waker(self.waker);
        match Pin::new(&mut *self.io).poll_read(&mut cx, &mut buf) {
            Poll::Ready(Ok(())) => Ok(buf.filled().len()),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl<S: AsyncWrite + Unpin> Write for Blocking<'_, S> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut cx = Context::from_waker(self.waker);
        match Pin::new(&mut *self.io).poll_write(&mut cx, buf) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut cx = Context::from_waker(self.waker);
        match Pin::new(&mut *self.io).poll_flush(&mut cx) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}
