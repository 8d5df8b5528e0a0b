//! A WebSocket as a stream of bytes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig, WebSocketContext};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes, error::ProtocolError};

use super::blocking::{Blocking, settle};
use crate::wakers::Wakers;

/// What an idle link keeps allocated for reading, and the most one system call reads.
const READ_BUFFER: usize = 4 * 1024;

/// The largest frame sent. A link keeps a buffer of this size once it has sent one.
const MAX_SENT_FRAME: usize = 32 * 1024;

/// The largest first message: what a stranger may make us hold before MQTT has seen anything.
const OPENING_MESSAGE: usize = 64 * 1024;

/// How long a closing link waits for the peer's goodbye.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// For the upgrade, whose frame buffers are thrown away.
pub(super) fn handshake_config() -> WebSocketConfig {
    WebSocketConfig::default().read_buffer_size(0)
}

/// MQTT bytes in binary frames; packets and frames need not begin or end together [MQTT-6.0.0-2].
///
/// Each write is one frame of at most [`MAX_SENT_FRAME`] bytes.
pub(crate) struct WsStream<S> {
    io: S,
    protocol: WebSocketContext,
    wakers: Arc<Wakers>,
    /// Wakes everybody in `wakers`. Reading may write (a pong, the answer to a close) and writing may
    /// wait behind such a frame; when they are two tasks, the connection below, which remembers one
    /// waker per direction, would forget one of them.
    both: Waker,
    /// The rest of the message that was read last.
    unread: Bytes,
    /// What `protocol` is told once the first message has come, until then.
    max_frame_bytes: Option<usize>,
    end: End,
}

/// How far the end of the connection has come.
enum End {
    /// Nobody has spoken of it.
    Open,
    /// The peer has closed, or broke the protocol: there is nothing more to read.
    Unreadable,
    /// We have said goodbye and wait for the peer's, for so long.
    Goodbye(Pin<Box<Sleep>>),
    /// Both have, or we have waited enough: the connection below can go.
    Done,
}

impl<S> WsStream<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// `io` is a connection whose upgrade is done. `max_frame_bytes` bounds what is received.
    pub(super) fn new(io: S, role: Role, max_frame_bytes: usize) -> Self {
        let opening = OPENING_MESSAGE.min(max_frame_bytes);
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(0)
            .max_frame_size(Some(opening))
            .max_message_size(Some(opening));
        let (wakers, both) = Wakers::new();
        Self {
            io,
            protocol: WebSocketContext::new(role, Some(config)),
            wakers,
            both,
            unread: Bytes::new(),
            max_frame_bytes: Some(max_frame_bytes),
            end: End::Open,
        }
    }

    /// Waits for the next message with bytes in it. `false` at the end of the stream.
    fn poll_message(&mut self) -> Poll<io::Result<bool>> {
        while self.unread.is_empty() {
            if !matches!(self.end, End::Open) {
                return Poll::Ready(Ok(false));
            }
            match self.protocol.read(&mut Blocking { io: &mut self.io, waker: &self.both }) {
                Ok(Message::Binary(bytes)) => self.take_message(bytes),
                Ok(Message::Text(_)) => {
                    // [MQTT-6.0.0-1]
                    let reason = "MQTT travels in binary frames";
                    return Poll::Ready(Err(self.violated(CloseCode::Unsupported, reason)));
                }
                // The library has answered a ping or a close by itself.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_)) => {}
                Err(error) => return self.read_failed(error),
            }
        }
        Poll::Ready(Ok(true))
    }

    fn take_message(&mut self, bytes: Bytes) {
        self.unread = bytes;
        if !self.unread.is_empty()
            && let Some(limit) = self.max_frame_bytes.take()
        {
            self.protocol.set_config(|config| {
                config.max_frame_size = Some(limit);
                config.max_message_size = Some(limit);
            });
        }
    }

    fn read_failed(&mut self, error: Error) -> Poll<io::Result<bool>> {
        match error {
            Error::Io(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            Error::Io(error) => {
                self.end = End::Unreadable;
                Poll::Ready(Err(error))
            }
            Error::ConnectionClosed
            | Error::AlreadyClosed
            | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
                self.end = End::Unreadable;
                Poll::Ready(Ok(false))
            }
            Error::Capacity(error) => Poll::Ready(Err(self.violated(CloseCode::Size, &error.to_string()))),
            // Only text is checked for UTF-8, and text is not for us. [MQTT-6.0.0-1]
            Error::Utf8(_) => {
                Poll::Ready(Err(self.violated(CloseCode::Unsupported, "MQTT travels in binary frames")))
            }
            error => Poll::Ready(Err(self.violated(CloseCode::Protocol, &error.to_string()))),
        }
    }

    /// The peer broke the protocol: tells it why, as far as the connection takes it at once.
    fn violated(&mut self, code: CloseCode, reason: &str) -> io::Error {
        self.end = End::Unreadable;
        // A close frame has room for 123 bytes of reason.
        let short: String = reason.chars().take(100).filter(char::is_ascii).collect();
        let frame = CloseFrame { code, reason: Utf8Bytes::from(short) };
        let _ = self.protocol.close(&mut Blocking { io: &mut self.io, waker: &self.both }, Some(frame));
        io::Error::new(io::ErrorKind::InvalidData, format!("WebSocket: {reason}"))
    }

    /// Hands every frame so far to the connection below, and that one's bytes to the system.
    fn poll_drain(&mut self) -> Poll<io::Result<()>> {
        let flushed = self.protocol.flush(&mut Blocking { io: &mut self.io, waker: &self.both });
        settle(flushed)
    }

    fn poll_goodbye(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.end {
                End::Open | End::Unreadable => {
                    ready!(self.poll_drain())?;
                    let frame = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
                    let said = self
                        .protocol
                        .close(&mut Blocking { io: &mut self.io, waker: &self.both }, Some(frame));
                    self.end = match settle(said) {
                        Poll::Ready(Err(_)) => End::Done,
                        _ => End::Goodbye(Box::pin(sleep(CLOSE_WAIT))),
                    };
                }
                End::Goodbye(patience) => {
                    // What the peer still sends is read and thrown away: a socket that is closed
                    // over unread bytes resets the connection, and our last bytes with it.
                    match self.protocol.read(&mut Blocking { io: &mut self.io, waker: &self.both }) {
                        Ok(Message::Close(_)) => self.end = End::Done,
                        Ok(_) => {}
                        Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                            ready!(patience.as_mut().poll(cx));
                            self.end = End::Done;
                        }
                        Err(_) => self.end = End::Done,
                    }
                }
                End::Done => return Pin::new(&mut self.io).poll_shutdown(cx),
            }
        }
    }
}

impl<S> AsyncRead for WsStream<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.wakers.reader.register(cx.waker());
        if ready!(this.poll_message())? {
            let length = this.unread.len().min(buf.remaining());
            buf.put_slice(&this.unread.split_to(length));
            if this.unread.is_empty() {
                // An empty slice of it would keep the whole message alive.
                this.unread = Bytes::new();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S> AsyncWrite for WsStream<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
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
        if !this.protocol.can_write() {
            return Poll::Ready(Err(closed()));
        }
        // One frame waits in the buffer at most.
        ready!(this.poll_drain())?;
        let payload = gather(bufs);
        let length = payload.len();
        if length == 0 {
            return Poll::Ready(Ok(0));
        }
        let written = this
            .protocol
            .write(&mut Blocking { io: &mut this.io, waker: &this.both }, Message::Binary(payload));
        match settle(written) {
            // The frame is ours now; what the connection did not take goes with the next flush.
            Poll::Pending | Poll::Ready(Ok(())) => Poll::Ready(Ok(length)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.wakers.writer.register(cx.waker());
        if this.protocol.can_write() { this.poll_drain() } else { Poll::Ready(Ok(())) }
    }

    /// Sends what was written and a close frame, waits for the peer's, and closes what is below.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.wakers.writer.register(cx.waker());
        this.poll_goodbye(cx)
    }
}

/// The first [`MAX_SENT_FRAME`] bytes of `bufs` in one piece.
fn gather(bufs: &[IoSlice<'_>]) -> Bytes {
    let total: usize = bufs.iter().map(|buf| buf.len()).sum();
    let length = total.min(MAX_SENT_FRAME);
    let mut payload = BytesMut::with_capacity(length);
    for buf in bufs {
        let mut part: &[u8] = buf;
        let room = length - payload.len();
        part = part.get(..room).unwrap_or(part);
        payload.extend_from_slice(part);
    }
    payload.freeze()
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the WebSocket is closed")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_writer_that_waits_is_woken_beside_a_reader_that_waits() {
        let (ours, mut theirs) = duplex(64);
        let (mut reader, mut writer) = split(WsStream::new(ours, Role::Server, 1 << 20));
        let reading = tokio::spawn(async move { reader.read_u8().await });
        let writing = tokio::spawn(async move {
            writer.write_all(&[7; 100_000]).await.expect("write");
            writer.flush().await.expect("flush");
            writer
        });
        let mut received = vec![0; 100_000];
        let read = timeout(Duration::from_secs(60), theirs.read_exact(&mut received)).await;
        read.expect("the writer was never woken").expect("read");
        drop((theirs, reading, writing));
    }
}
