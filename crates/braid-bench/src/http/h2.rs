use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use ::h2::Reason;
use ::h2::client::{Builder, SendRequest};
use bytes::Bytes;
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::account::Answer;
use super::body::ReceivedBody;
use super::failure::{Ended, Failure};
use super::link::Link;
use super::streams::{self, Exchange, StreamFailure};

/// Flow-control windows of streams and of the connection, as in h2load: 2^30 - 1, so that they never limit.
const WINDOW: u32 = (1 << 30) - 1;
/// Bytes of the head of a frame [RFC 9113, 4.1], and types of frames with header fields.
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

/// Sends the requests of the client, `depth` in flight at most, until all have a response or the connection ends.
pub(super) async fn run<T>(io: T, link: &Rc<Link>, depth: usize) -> Result<Ended, Failure>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let request = &link.worker().load().request;
    let head = request.head().map_err(Failure::Request)?;
    let header_bytes = Rc::new(Cell::new(0));
    let (frames, counted) = (FrameMeter::default(), Rc::clone(&header_bytes));
    let io = Metered { io, link: Rc::clone(link), frames, header_bytes: counted };
    let (send, connection) = Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .enable_push(false)
        .handshake(io)
        .await?;
    let exchange = || Http2Exchange {
        send: send.clone(),
        link: Rc::clone(link),
        head: head.clone(),
        body: request.body().clone(),
        header_bytes: Rc::clone(&header_bytes),
    };
    streams::run(link, depth, exchange, async { Ok(connection.await?) }).await
}

struct Http2Exchange {
    send: SendRequest<Bytes>,
    link: Rc<Link>,
    head: http::Request<()>,
    body: Bytes,
    /// Bytes of frames with header fields that no response was charged with.
    header_bytes: Rc<Cell<u64>>,
}

impl Exchange for Http2Exchange {
    async fn exchange(&mut self) -> Result<Answer, StreamFailure> {
        std::future::poll_fn(|cx| self.send.poll_ready(cx)).await?;
        let (response, mut body) = self.send.send_request(self.head.clone(), self.body.is_empty())?;
        if !self.body.is_empty() {
            body.send_data(self.body.clone(), true)?;
        }
        let (head, mut body) = response.await?.into_parts();
        self.link.account().responded(Instant::now());
        self.link.account().learn_from(&head.headers, Instant::now());
        let mut received = ReceivedBody::new(&self.link.worker().load().expectation);
        while let Some(bytes) = body.data().await {
            let bytes = bytes?;
            received.push(&bytes);
            body.flow_control().release_capacity(bytes.len())?;
        }
        body.trailers().await?;
        let plain_header_bytes = plain_header_bytes(&head.headers);
        let (status, header_bytes) = (head.status.as_u16(), self.header_bytes.take());
        Ok(Answer { status, header_bytes, plain_header_bytes, body: received })
    }
}

impl From<::h2::Error> for StreamFailure {
    fn from(error: ::h2::Error) -> Self {
        match error.reason() {
            // A graceful end [RFC 9113, 6.8]: the server has not processed the request.
            Some(Reason::NO_ERROR) if error.is_go_away() => Self::Connection(Failure::Going),
            _ if error.is_reset() => Self::Stream,
            _ => Self::Connection(error.into()),
        }
    }
}

/// Bytes of names and values, with `:status` and its three digits.
pub(super) fn plain_header_bytes(headers: &HeaderMap) -> u64 {
    let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    (":status".len() + 3 + fields.sum::<usize>()) as u64
}

/// Transport that counts received bytes, and those of header fields, which the `h2` crate does not tell.
struct Metered<T> {
    io: T,
    link: Rc<Link>,
    frames: FrameMeter,
    header_bytes: Rc<Cell<u64>>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let bytes = &buffer.filled()[before..];
        self.link.received(bytes.len(), Instant::now());
        let headers = self.frames.header_bytes(bytes);
        self.header_bytes.set(self.header_bytes.get() + headers);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let taken = ready!(Pin::new(&mut self.io).poll_write(cx, bytes))?;
        self.link.sent(Instant::now());
        Poll::Ready(Ok(taken))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let taken = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, slices))?;
        self.link.sent(Instant::now());
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Counter of the payload of frames with header fields, in a stream of bytes.
#[derive(Debug, Default)]
struct FrameMeter {
    head: [u8; FRAME_HEAD],
    /// Bytes of the head that were received.
    known: usize,
    /// Bytes of the payload that are missing.
    missing: usize,
}

impl FrameMeter {
    /// Payload bytes of the frames of interest that end or begin in `bytes`, without those before.
    fn header_bytes(&mut self, mut bytes: &[u8]) -> u64 {
        let mut counted = 0;
        while !bytes.is_empty() {
            if self.missing > 0 {
                let len = self.missing.min(bytes.len());
                (self.missing, bytes) = (self.missing - len, &bytes[len..]);
                continue;
            }
            let len = bytes.len().min(FRAME_HEAD - self.known);
            self.head[self.known..][..len].copy_from_slice(&bytes[..len]);
            (self.known, bytes) = (self.known + len, &bytes[len..]);
            if self.known == FRAME_HEAD {
                let [high, middle, low, kind, ..] = self.head;
                self.known = 0;
                self.missing = u32::from_be_bytes([0, high, middle, low]) as usize;
                if matches!(kind, HEADERS | CONTINUATION) {
                    counted += self.missing as u64;
                }
            }
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_with_header_fields_are_counted_in_any_pieces() {
        let frame =
            |kind, len: u8| [vec![0, 0, len, kind, 0, 0, 0, 0, 1], vec![HEADERS; len.into()]].concat();
        let stream =
            [frame(4, 0), frame(HEADERS, 20), frame(0, 30), frame(CONTINUATION, 5), frame(HEADERS, 0)];
        let stream = stream.concat();
        for size in 1..=stream.len() {
            let mut meter = FrameMeter::default();
            let counted: u64 = stream.chunks(size).map(|piece| meter.header_bytes(piece)).sum();
            assert_eq!(counted, 25, "{size} bytes at once");
        }
    }
}
