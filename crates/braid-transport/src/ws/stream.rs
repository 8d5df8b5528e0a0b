//! A WebSocket as a stream of bytes.

use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocket, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes, error::ProtocolError};

use crate::single::{ByteStream, Trust};

/// Read buffer of an idle link, and upper bound of one system call, bytes.
const READ_BUFFER: usize = 4 * 1024;

/// Largest frame that is sent, bytes. A link keeps a buffer of this size once it has sent one.
const MAX_SENT_FRAME: usize = 32 * 1024;

/// Bytes that wait for the connection below at most: a frame, and pongs of a peer that does not read them. When it is
/// full, the last pong waits and replaces the one before, as RFC 6455, 5.5.3 allows.
const MAX_UNSENT: usize = MAX_SENT_FRAME + 8 * 1024;

/// Messages without bytes in one read: a flood of pings must not keep the thread from other tasks.
const EMPTY_MESSAGES: usize = 64;

/// Largest message of a client that is not trusted, bytes: before its CONNECT is accepted it may use so much memory.
const UNTRUSTED_MESSAGE: usize = 64 * 1024;

/// Time for the peer's close frame.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// Configuration for the upgrade, whose frame buffers are dropped.
pub(super) fn handshake_config() -> WebSocketConfig {
    WebSocketConfig::default().read_buffer_size(0)
}

/// MQTT bytes in binary frames; packets and frames need not begin or end together [MQTT-6.0.0-2].
///
/// Each write is one frame of at most [`MAX_SENT_FRAME`] bytes.
pub(crate) struct WsStream<S> {
    socket: WebSocket<Blocking<S>>,
    wakers: Arc<Wakers>,
    /// The rest of the message that was read last.
    unread: Bytes,
    /// Limit that applies once the peer is trusted; `None` from then on.
    trusted_limit: Option<usize>,
    trust: Trust,
    end: End,
}

/// Progress of the close.
enum End {
    /// Before the closing handshake.
    Open,
    /// The peer has closed, or violated the protocol: nothing more is read.
    Unreadable,
    /// A close frame was sent, and the peer's is awaited until the timer fires.
    Closing(Pin<Box<Sleep>>),
    /// Both close frames were sent, or the time is over: the connection below can be closed.
    Done,
}

impl<S: ByteStream> WsStream<S> {
    /// `io` is a connection after its upgrade. `max_frame_bytes` bounds frames that are received. A client trusts its
    /// server from the beginning.
    pub(super) fn new(io: S, role: Role, max_frame_bytes: usize) -> Self {
        let (limit, trusted_limit) = match role {
            Role::Server => (UNTRUSTED_MESSAGE.min(max_frame_bytes), Some(max_frame_bytes)),
            Role::Client => (max_frame_bytes, None),
        };
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(0)
            .max_write_buffer_size(MAX_UNSENT)
            .max_frame_size(Some(limit))
            .max_message_size(Some(limit));
        let wakers = Arc::new(Wakers::default());
        let blocking = Blocking { io, waker: Waker::from(Arc::clone(&wakers)) };
        Self {
            socket: WebSocket::from_raw_socket(blocking, role, Some(config)),
            wakers,
            unread: Bytes::new(),
            trusted_limit,
            trust: Trust::default(),
            end: End::Open,
        }
    }

    pub(crate) fn trust(&self) -> Trust {
        self.trust.clone()
    }

    /// Waits for the next message with bytes in it. `false` at the end of the stream.
    fn poll_message(&mut self) -> Poll<io::Result<bool>> {
        let mut messages = 0;
        while self.unread.is_empty() {
            if !matches!(self.end, End::Open) {
                return Poll::Ready(Ok(false));
            }
            if messages == EMPTY_MESSAGES {
                self.wakers.reader.wake();
                return Poll::Pending;
            }
            messages += 1;
            self.apply_trust();
            match self.socket.read() {
                Ok(Message::Binary(bytes)) => self.unread = bytes,
                Ok(Message::Text(_)) => {
                    // [MQTT-6.0.0-1]
                    let reason = "MQTT requires binary frames";
                    return Poll::Ready(Err(self.violated(CloseCode::Unsupported, reason)));
                }
                // The library has answered a ping or a close by itself.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_)) => {}
                Err(error) => return self.read_failed(error),
            }
        }
        Poll::Ready(Ok(true))
    }

    fn apply_trust(&mut self) {
        if let Some(limit) = self.trusted_limit.take_if(|_| self.trust.is_set()) {
            self.socket.set_config(|config| {
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
            // Only text is checked for UTF-8, and MQTT is never text. [MQTT-6.0.0-1]
            Error::Utf8(_) => {
                Poll::Ready(Err(self.violated(CloseCode::Unsupported, "MQTT requires binary frames")))
            }
            error => Poll::Ready(Err(self.violated(CloseCode::Protocol, &error.to_string()))),
        }
    }

    /// Ends a connection whose peer violated the protocol, with a close frame if the connection takes it at once.
    fn violated(&mut self, code: CloseCode, reason: &str) -> io::Error {
        self.end = End::Unreadable;
        // A close frame has room for 123 bytes of reason.
        let short: String = reason.chars().take(100).filter(char::is_ascii).collect();
        let frame = CloseFrame { code, reason: Utf8Bytes::from(short) };
        let _ = self.socket.close(Some(frame));
        io::Error::new(io::ErrorKind::InvalidData, format!("WebSocket: {reason}"))
    }

    /// Flushes all frames to the connection below, and its bytes to the system.
    fn poll_drain(&mut self) -> Poll<io::Result<()>> {
        to_poll(self.socket.flush())
    }

    fn poll_closing(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.end {
                End::Open | End::Unreadable => {
                    ready!(self.poll_drain())?;
                    let frame = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
                    self.end = match to_poll(self.socket.close(Some(frame))) {
                        Poll::Ready(Err(_)) => End::Done,
                        _ => End::Closing(Box::pin(sleep(CLOSE_WAIT))),
                    };
                }
                End::Closing(timer) => {
                    // Bytes that the peer still sends are dropped: a socket that is closed over unread bytes resets the
                    // connection, and with it the last bytes of this end.
                    match self.socket.read() {
                        Ok(Message::Close(_)) => self.end = End::Done,
                        Ok(_) => {}
                        Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                            ready!(timer.as_mut().poll(cx));
                            self.end = End::Done;
                        }
                        Err(_) => self.end = End::Done,
                    }
                }
                End::Done => return Pin::new(&mut self.socket.get_mut().io).poll_shutdown(cx),
            }
        }
    }
}

impl<S: ByteStream> AsyncRead for WsStream<S> {
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

impl<S: ByteStream> AsyncWrite for WsStream<S> {
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
        if !this.socket.can_write() {
            return Poll::Ready(Err(closed()));
        }
        // One frame waits in the buffer at most.
        ready!(this.poll_drain())?;
        let payload = gather(bufs);
        let length = payload.len();
        if length == 0 {
            return Poll::Ready(Ok(0));
        }
        match to_poll(this.socket.write(Message::Binary(payload))) {
            // The frame is taken; bytes that the connection did not take go with the next flush.
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
        if this.socket.can_write() { this.poll_drain() } else { Poll::Ready(Ok(())) }
    }

    /// Sends what was written and a close frame, waits for the peer's, and closes what is below.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.wakers.writer.register(cx.waker());
        this.poll_closing(cx)
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

/// Converts the library's error for "not now".
fn to_poll(result: Result<(), Error>) -> Poll<io::Result<()>> {
    match result {
        Ok(()) => Poll::Ready(Ok(())),
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        Err(Error::Io(error)) => Poll::Ready(Err(error)),
        Err(Error::ConnectionClosed | Error::AlreadyClosed) => Poll::Ready(Ok(())),
        Err(error) => Poll::Ready(Err(io::Error::other(error))),
    }
}

/// Blocking view of the connection below, for the library: calls fail where they would wait.
struct Blocking<S> {
    io: S,
    /// Wakes all [`Wakers`]. A read may write (a pong, the answer to a close) and a write may wait behind such a frame;
    /// the connection below keeps one waker per direction, and would forget one of two tasks.
    waker: Waker,
}

impl<S: AsyncRead + Unpin> Read for Blocking<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(buf);
        let mut cx = Context::from_waker(&self.waker);
        or_would_block(Pin::new(&mut self.io).poll_read(&mut cx, &mut buf)).map(|()| buf.filled().len())
    }
}

impl<S: AsyncWrite + Unpin> Write for Blocking<S> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        or_would_block(Pin::new(&mut self.io).poll_write(&mut Context::from_waker(&self.waker), buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        or_would_block(Pin::new(&mut self.io).poll_flush(&mut Context::from_waker(&self.waker)))
    }
}

fn or_would_block<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// Tasks that read and write a WebSocket; often they are one.
#[derive(Debug, Default)]
struct Wakers {
    reader: AtomicWaker,
    writer: AtomicWaker,
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.reader.wake();
        self.writer.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
    use tokio::time::timeout;

    use super::*;

    /// Masked frame of at most 125 bytes, with a mask of zeros.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("a short frame");
        [&[first, 0x80 | length, 0, 0, 0, 0], payload].concat()
    }

    const PING: u8 = 0x89;
    const BINARY: u8 = 0x82;

    /// Counter of wakes.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pongs_that_are_not_read_are_bounded() {
        let (ours, mut theirs) = duplex(1024);
        let mut stream = WsStream::new(ours, Role::Server, 1 << 20);
        let (last, pings) = ([0xEE; 125], 2_000);
        let send = async {
            let flood = frame(PING, &[0x55; 125]).repeat(pings);
            theirs.write_all(&flood).await.expect("write");
            theirs.write_all(&frame(PING, &last)).await.expect("write");
            theirs.write_all(&frame(BINARY, &[7])).await.expect("write");
        };
        let (byte, ()) = tokio::join!(stream.read_u8(), send);
        assert_eq!(byte.expect("read"), 7);
        let answer = async {
            stream.flush().await.expect("flush");
            stream.shutdown().await.expect("shutdown");
            drop(stream);
        };
        let mut pongs = Vec::new();
        let (_, read) = tokio::join!(answer, theirs.read_to_end(&mut pongs));
        read.expect("read");
        assert!(pongs.len() <= MAX_UNSENT + 2 * 1024, "{} bytes", pongs.len());
        assert!(pongs.windows(last.len()).any(|part| part == last), "the last ping is answered");
    }

    #[tokio::test]
    async fn a_flood_of_pings_yields_to_other_tasks() {
        let flood = [frame(PING, b"").repeat(3 * EMPTY_MESSAGES), frame(BINARY, &[7])].concat();
        let (ours, mut theirs) = duplex(2 * flood.len());
        let mut stream = WsStream::new(ours, Role::Server, 1 << 20);
        theirs.write_all(&flood).await.expect("write");
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut reading = std::pin::pin!(stream.read_u8());
        let mut pauses = 0;
        while reading.as_mut().poll(&mut context).is_pending() {
            pauses += 1;
            assert_eq!(wakes.0.load(Ordering::Relaxed), pauses, "the task goes on by itself");
        }
        assert_eq!(pauses, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_writer_is_woken_beside_a_waiting_reader() {
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
