//! A connection after its handshake.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use braid_proto::stream::{Priority, StreamKey};
use bytes::Bytes;
use tokio::io::{AsyncWrite, ReadBuf};

use crate::path_sample::{PathSample, TcpMetrics};
use crate::quic::{
    Blocked, ConnectionState, DatagramCounts, GateState, LoadCounts, Multi, PathReport, PathState,
};
use crate::single::{ByteStream, Single};
use crate::transport::{Close, Dir, Peer, Read};
use crate::ws::WsStream;

/// The transport under one MQTT Network Connection.
///
/// One shape for each kind of driver, not one for each transport. A driver is one task that polls the link from one
/// function: events of all streams wake that task.
pub enum Link {
    /// One ordered stream of bytes each way: TCP, TLS, WebSocket or in-memory. It counts as the control stream.
    Single(Single),
    /// A control stream and any number of data streams: QUIC.
    Multi(Multi),
}

impl Link {
    /// Link of one stream.
    pub(crate) fn single(peer: Peer, io: impl ByteStream + 'static) -> Self {
        Self::Single(Single { io: Box::new(io), peer, probe: None, trust: None })
    }

    /// Link of a WebSocket.
    pub(crate) fn websocket(peer: Peer, io: WsStream<impl ByteStream + 'static>) -> Self {
        let trust = Some(io.trust());
        Self::Single(Single { io: Box::new(io), peer, probe: None, trust })
    }

    /// Link of one stream whose path [`Link::path_sample`] measures on this socket.
    pub(crate) fn measured_by(mut self, socket: Option<OwnedFd>) -> Self {
        if let Self::Single(single) = &mut self {
            single.probe = socket;
        }
        self
    }

    /// Runs `call` on the state of a QUIC connection; `None` on a single stream, and when the link is lost.
    fn on_quic<T>(&mut self, call: impl FnOnce(&mut ConnectionState) -> T) -> Option<T> {
        match self {
            Self::Single(_) => None,
            Self::Multi(multi) => multi.with(call).ok(),
        }
    }

    /// The other end. Its address follows [`Read::Moved`].
    #[must_use]
    pub fn peer(&self) -> &Peer {
        match self {
            Self::Single(single) => &single.peer,
            Self::Multi(multi) => &multi.peer,
        }
    }

    /// True if bytes that are read may be a replay of an earlier connection's first flight: until [`Read::Confirmed`]
    /// on QUIC with 0-RTT, otherwise never.
    #[must_use]
    pub fn is_early(&self) -> bool {
        match self {
            Self::Single(_) => false,
            Self::Multi(multi) => multi.is_early(),
        }
    }

    /// State of the connection's gate, if there is one.
    #[must_use]
    pub fn gate_state(&self) -> Option<GateState> {
        match self {
            Self::Single(_) => None,
            Self::Multi(multi) => multi.gate_state(),
        }
    }

    /// State of the path. `None` on a single stream, and when the link is lost.
    pub fn path_state(&mut self) -> Option<PathState> {
        self.on_quic(|state| state.path_state()).flatten()
    }

    /// All paths of a QUIC connection. None on a single stream, and when the link is lost.
    pub fn paths(&mut self) -> Vec<PathReport> {
        self.on_quic(ConnectionState::paths).unwrap_or_default()
    }

    /// Measurements of the path. `None` in memory, over TCP without
    /// [`ConnectOptions::measured`](crate::ConnectOptions::measured), and when the link is lost.
    pub fn path_sample(&mut self) -> Option<PathSample> {
        match self {
            Self::Single(single) => TcpMetrics::of(single.probe.as_ref()?).ok().map(PathSample::Tcp),
            Self::Multi(multi) => multi.with(ConnectionState::path_stats).ok()?.map(PathSample::Quic),
        }
    }

    /// Reason for which a stream that refused bytes takes none now. `None` if it did not refuse any, or may be asked
    /// again, on a single stream, and when the link is lost.
    pub fn blocked(&mut self, stream: StreamKey) -> Option<Blocked> {
        self.on_quic(|state| state.blocked(stream)).flatten()
    }

    /// True if there can be data streams.
    #[must_use]
    pub fn is_multi(&self) -> bool {
        matches!(self, Self::Multi(_))
    }

    /// The next action of the peer. To be called until it is pending.
    ///
    /// A stream for which `wants` is false is not read: its bytes stay under its flow control, and its FIN or reset
    /// comes after them. `wants` is asked again with every call. Fair: the control stream first, then the others in
    /// turn, one buffer each; the control stream has at most every other turn while others have something.
    ///
    /// # Errors
    /// The link is lost. A buffer without room is an error too.
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Poll<io::Result<Read>> {
        if buffer.remaining() == 0 {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "there is no room in the read buffer");
            return Poll::Ready(Err(error));
        }
        match self {
            Self::Single(single) => single.poll_read(cx, buffer, wants),
            Self::Multi(multi) => multi.poll_read(cx, buffer, wants),
        }
    }

    /// Writes on a stream, as much as is taken now. A call before the task was woken is cheap.
    ///
    /// All streams together take twice the congestion window; the rest waits with the caller. Streams of one priority
    /// share it, the longest waiting first, in any order of calls. A write finds room however much is unacknowledged on
    /// streams of lower priority, as long as the peer's flow control allows. [BQ-56]
    ///
    /// # Errors
    /// `NotConnected`: the stream has ended, the link lives. Any other: the link is lost.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        stream: StreamKey,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Single(single) => single.poll_write(cx, stream, slices),
            Self::Multi(multi) => multi.poll_write(cx, stream, slices),
        }
    }

    /// Sends the bytes that a layer in between still holds. To be called at the end of each turn of the driver, whether
    /// it has written or not: on QUIC nothing leaves before, acknowledgements neither.
    ///
    /// # Errors
    /// The link is lost.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Single(single) => Pin::new(&mut single.io).poll_flush(cx),
            // Not waited for: bytes that may not leave yet do so in a later turn.
            Self::Multi(multi) => {
                multi.flush(cx);
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Waits for an answer that `ask` asks for, about the peer. Meanwhile nothing is read and written, but QUIC goes
    /// on: what was written is acknowledged and repeated in the task of the link.
    pub async fn wait_for<'a, F: Future>(&'a mut self, ask: impl FnOnce(&'a Peer) -> F) -> F::Output {
        match self {
            Self::Single(single) => ask(&single.peer).await,
            Self::Multi(multi) => multi.wait_for(ask).await,
        }
    }

    /// Sets the priority of a stream, also for bytes that were written and are not sent yet: from its next turn by the
    /// old priority on. To be raised before the first write of a burst, and lowered after the last was sent. Without
    /// effect on a single stream. The control stream is above all. [BQ-50]
    pub fn set_priority(&mut self, stream: StreamKey, priority: Priority) {
        self.on_quic(|state| state.set_priority(stream, priority));
    }

    /// Ends the sending half of a data stream with FIN, in a frame without payload: at once if nothing was written on
    /// it, otherwise once nothing on the connection is unacknowledged. While other streams prevent that: three round
    /// trips after its bytes can have been sent. A stream that is not read delays no other; a higher priority that
    /// fills the connection does. After 3 s in any case; bytes may then be retransmitted together with the FIN. Nothing
    /// is lost. [BQ-31]
    pub fn finish(&mut self, stream: StreamKey) {
        self.on_quic(|state| state.finish(stream));
    }

    /// Sends RESET_STREAM and STOP_SENDING with this code for the halves that are open. No read reports the stream any
    /// more.
    pub fn abort(&mut self, stream: StreamKey, code: u64) {
        self.on_quic(|state| state.abort(stream, code));
    }

    /// Opens a stream (client): ready as soon as the peer's credit allows. The first bytes written open it at the
    /// server.
    ///
    /// # Errors
    /// `Unsupported` on a single stream and for a server; any other: the link is lost.
    pub fn poll_open(&mut self, cx: &mut Context<'_>, dir: Dir) -> Poll<io::Result<StreamKey>> {
        match self {
            Self::Single(_) => {
                let error = io::Error::new(io::ErrorKind::Unsupported, "only QUIC has data streams");
                Poll::Ready(Err(error))
            }
            Self::Multi(multi) => multi.poll_open(cx, dir),
        }
    }

    /// Closes the link: delivers written bytes, then sends STOP_SENDING if asked for, ends the streams with FIN in
    /// frames without payload, and the connection with its code; within 3 s, or by the deadline of [`Link::close_by`],
    /// whatever the peer does. A single stream is shut down. Afterwards reads return [`Read::Closed`] and writes an
    /// error. [BQ-41]
    ///
    /// Dropping a link does the same in the background, with code 0, and goes on with a close that has begun.
    ///
    /// # Errors
    /// The link was lost before.
    pub fn poll_close(&mut self, cx: &mut Context<'_>, close: Close) -> Poll<io::Result<()>> {
        match self {
            Self::Single(single) => Pin::new(&mut single.io).poll_shutdown(cx),
            Self::Multi(multi) => multi.poll_close(cx, close),
        }
    }

    /// Sets the deadline of the close: CONNECTION_CLOSE leaves by then, also if the link is dropped. Without effect on
    /// a single stream, and once the close has begun. [BQ-41]
    pub fn close_by(&mut self, deadline: Instant) {
        if let Self::Multi(multi) = self {
            multi.close_by(deadline);
        }
    }

    /// Largest datagram (RFC 9221) that can be sent now, in bytes; it follows the path. `None` unless both ends permit
    /// datagrams, on a single stream, and when the link is lost. [BQ-80]
    pub fn datagram_size(&mut self) -> Option<usize> {
        self.on_quic(ConnectionState::datagram_size).flatten()
    }

    /// Queues a datagram, which may be lost and is never sent again. It leaves with a later flush: when the path takes
    /// a packet, and no stream of a higher priority has something to send; those of its own priority take turns with
    /// it. At most 256 wait, and 64 KiB: the oldest of the lowest priority is dropped for another. Without effect
    /// unless [`Link::datagram_size`] is at least its length. [BQ-86]
    pub fn send_datagram(&mut self, priority: Priority, datagram: Bytes) {
        self.on_quic(|state| state.send_datagram(priority, datagram));
    }

    /// Number of datagrams that wait to be sent.
    pub fn unsent_datagrams(&mut self) -> usize {
        self.on_quic(|state| state.unsent_datagrams()).unwrap_or(0)
    }

    /// Counts of datagrams. `None` on a single stream, and when the link is lost.
    pub fn datagram_counts(&mut self) -> Option<DatagramCounts> {
        self.on_quic(|state| state.datagram_counts())
    }

    /// Counts of the connection's work. `None` on a single stream, and when the link is lost.
    pub fn load_counts(&mut self) -> Option<LoadCounts> {
        self.on_quic(|state| state.load_counts())
    }

    /// Number of STREAM and DATAGRAM frames received. It grows when bytes come, whether they are read or wait under
    /// flow control; PING and ACK of QUIC itself do not count. `None` on a single stream, and when the link is
    /// lost. [BQ-44]
    pub fn stream_frames(&mut self) -> Option<u64> {
        self.on_quic(|state| state.stream_frames())
    }

    /// Upper estimate of the bytes that were received on streams that are not read, at most the window of each. 0 on a
    /// single stream, whose bytes wait in the operating system, and when the link is lost.
    pub fn unread_bytes(&mut self) -> usize {
        self.on_quic(ConnectionState::unread_bytes).unwrap_or(0)
    }

    /// The part of them that is known exactly, and is there while all streams are read, too: bytes behind gaps.
    pub fn held_bytes(&mut self) -> usize {
        self.on_quic(|state| state.held_bytes()).unwrap_or(0)
    }

    /// The CONNECT was accepted: the client may send on each stream up to the window of the stream. Until then it was
    /// 128 KiB over all streams. [BQ-13] A message of a WebSocket may be as long as the options permit; until then it
    /// was 64 KiB. Without effect on another single stream.
    pub fn set_trusted(&mut self) {
        match self {
            Self::Single(single) => {
                if let Some(trust) = &single.trust {
                    trust.set();
                }
            }
            Self::Multi(_) => {
                self.on_quic(ConnectionState::set_trusted);
            }
        }
    }

    /// Moves a client's connection to a new local socket; `None` for any free port. [BQ-70]
    ///
    /// # Errors
    /// `Unsupported` on a single stream and for a server; else the socket cannot be bound.
    pub fn rebind(&mut self, address: Option<SocketAddr>) -> io::Result<()> {
        match self {
            Self::Single(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "only QUIC moves to another socket"))
            }
            Self::Multi(multi) => multi.with(|state| state.rebind(address))?,
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(single) => f.debug_tuple("Single").field(&single.peer).finish(),
            Self::Multi(multi) => multi.fmt(f),
        }
    }
}
