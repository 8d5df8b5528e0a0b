//! QUIC connection for the `h3` crate: its transport traits on a connection that the tasks of requests share.

mod frame_limit;
mod shared;
mod stream;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Buf;
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming};
use noq_proto::{ConnectionError, Dir, VarInt};

pub use self::stream::{Http3Bidi, Http3Recv, Http3Send};

use self::frame_limit::FrameLimit;
use self::shared::{Handle, WeakHandle};
use self::stream::SendOptions;
use super::congestion::permit_extra_packet;
use super::io::Connection;
use crate::path_sample::PathStats;
use crate::transport::{Peer, canonical};

/// Unidirectional streams that a peer may open: control, two of QPACK, and some of unknown types. `h3` keeps an entry
/// for each whose type has not arrived.
const UNI_STREAMS: usize = 64;

impl PathStats {
    /// The measurements of a path, without the address.
    pub(in crate::quic) fn of(stats: &noq_proto::PathStats) -> Self {
        Self {
            remote: None,
            srtt: stats.rtt,
            received_bytes: stats.udp_rx.bytes,
            received_datagrams: stats.udp_rx.datagrams,
            sent_packets: stats.sent_packets,
            sent_bytes: stats.sent_bytes,
            lost_packets: stats.lost_packets.saturating_sub(stats.lost_plpmtud_probes),
            congestion_events: stats.congestion_events,
            cwnd: stats.cwnd,
            rate: stats.bandwidth_estimate.map(|bits| bits / 8),
            mtu: stats.current_mtu,
        }
    }
}

/// Reads the measurements of a connection that belongs to another value.
#[derive(Clone)]
pub struct PathProbe {
    connection: WeakHandle,
    acknowledged_ends: Arc<AtomicBool>,
}

impl PathProbe {
    /// The measurements now.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn sample(&self) -> io::Result<PathStats> {
        self.connection.with(|connection| {
            let remote = connection.remote_address().map(canonical);
            Some((PathStats { remote, ..PathStats::of(&connection.path_stats()?) }, false))
        })
    }

    /// Lets the end of each stream that is sent be complete when the peer has acknowledged all of it, or when it is
    /// handed to QUIC: then its time says nothing about the path. The latter at first.
    pub fn wait_for_acknowledgements(&self, wait: bool) {
        self.acknowledged_ends.store(wait, Ordering::Relaxed);
    }

    /// Sends a PING, whose acknowledgement shows which packets before it were lost, if the path is lossy by `is_lossy`
    /// or silent: packets are in flight, and none was acknowledged for a round trip. Then the congestion window does
    /// not limit it. Returns whether it was sent.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn ping(&self, is_lossy: impl Fn(&PathStats) -> bool, now: Instant) -> io::Result<bool> {
        self.connection.with(|connection| {
            let is_silent = permit_extra_packet(connection.congestion_controller()?.clone_box(), now);
            let is_probed = is_silent || is_lossy(&PathStats::of(&connection.path_stats()?));
            let is_sent = is_probed && connection.ping();
            Some((is_sent, is_sent))
        })
    }
}

impl fmt::Debug for PathProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathProbe").finish_non_exhaustive()
    }
}

/// Tells which requests of a connection the client cancels. [RFC 9114, 4.1.1]
#[derive(Clone)]
pub struct Cancellations(WeakHandle);

impl Cancellations {
    /// Ready when the client has stopped the stream of a response, or the connection has ended. Only the last caller
    /// for a stream is woken, and its end must not be awaited at the same time.
    pub fn poll_cancelled(&self, id: quic::StreamId, cx: &Context<'_>) -> Poll<()> {
        // Both libraries count streams to 2^62.
        let id = VarInt::from_u64(id.into_inner()).unwrap_or(VarInt::MAX);
        self.0.poll_end(id.into(), cx)
    }
}

impl fmt::Debug for Cancellations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancellations").finish_non_exhaustive()
    }
}

/// Established QUIC connection, of either end, to be served or used by `h3`.
pub struct Http3Connection {
    open: Http3Open,
    uni_streams: usize,
    send_options: SendOptions,
    peer: Peer,
}

impl Http3Connection {
    /// Spawns the task that drives the connection.
    pub(super) fn new(connection: Box<Connection>, peer: Peer) -> Self {
        Self {
            open: Http3Open { handle: Handle::spawn(connection), acknowledged_ends: Arc::default() },
            uni_streams: 0,
            send_options: SendOptions::default(),
            peer,
        }
    }

    /// The other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// On streams that the peer opens, what is given to `h3` as the payload of DATA frames is whole frames, and is sent
    /// without the header that `h3` puts before it. So a server encodes the frames of a response itself, and sends head
    /// and body in one write.
    #[must_use]
    pub fn without_data_headers(mut self) -> Self {
        self.send_options.data_headers = false;
        self
    }

    /// Resets a stream that the peer has opened when the peer has taken no byte of it for this time.
    #[must_use]
    pub fn with_stall_limit(mut self, limit: Duration) -> Self {
        self.send_options.stall_limit = Some(limit);
        self
    }

    /// Cancellations of the requests on streams that the peer opens.
    #[must_use]
    pub fn cancellations(&self) -> Cancellations {
        Cancellations(self.open.handle.downgrade())
    }

    /// Measurements of the path.
    #[must_use]
    pub fn probe(&self) -> PathProbe {
        PathProbe {
            connection: self.open.handle.downgrade(),
            acknowledged_ends: Arc::clone(&self.open.acknowledged_ends),
        }
    }
}

impl fmt::Debug for Http3Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http3Connection").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Opens streams on a connection.
#[derive(Clone)]
pub struct Http3Open {
    handle: Handle,
    /// See [`PathProbe::wait_for_acknowledgements`].
    acknowledged_ends: Arc<AtomicBool>,
}

impl fmt::Debug for Http3Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http3Open").finish_non_exhaustive()
    }
}

impl<B: Buf> quic::Connection<B> for Http3Connection {
    type RecvStream = Http3Recv;
    type OpenStreams = Http3Open;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::RecvStream, ConnectionErrorIncoming>> {
        loop {
            let handle = &self.open.handle;
            let id = ready!(handle.poll_accept(Dir::Uni, cx)).map_err(|error| lost(&error))?;
            self.uni_streams += 1;
            let recv = Http3Recv::new(id, FrameLimit::uni(), handle);
            if self.uni_streams <= UNI_STREAMS {
                return Poll::Ready(Ok(recv));
            }
            // Dropped: the peer is told to stop.
        }
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, ConnectionErrorIncoming>> {
        let handle = &self.open.handle;
        let id = ready!(handle.poll_accept(Dir::Bi, cx)).map_err(|error| lost(&error))?;
        let bidi = Http3Bidi::new(id, handle, &self.open.acknowledged_ends);
        Poll::Ready(Ok(bidi.with_options(self.send_options)))
    }

    fn opener(&self) -> Self::OpenStreams {
        self.open.clone()
    }
}

impl<B: Buf> quic::OpenStreams<B> for Http3Connection {
    type BidiStream = Http3Bidi<B>;
    type SendStream = Http3Send<B>;

    fn poll_open_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, StreamErrorIncoming>> {
        self.open.poll_open_bidi(cx)
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
        self.open.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        quic::OpenStreams::<B>::close(&mut self.open, code, reason);
    }
}

impl<B: Buf> quic::OpenStreams<B> for Http3Open {
    type BidiStream = Http3Bidi<B>;
    type SendStream = Http3Send<B>;

    fn poll_open_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, StreamErrorIncoming>> {
        let id = ready!(self.handle.poll_open(Dir::Bi, cx)).map_err(|error| on_stream(lost(&error)))?;
        Poll::Ready(Ok(Http3Bidi::new(id, &self.handle, &self.acknowledged_ends)))
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
        let id = ready!(self.handle.poll_open(Dir::Uni, cx)).map_err(|error| on_stream(lost(&error)))?;
        // Settings and GOAWAY do not wait for bodies.
        self.handle.set_priority(id, 1);
        Poll::Ready(Ok(Http3Send::new(id, &self.handle, &self.acknowledged_ends)))
    }

    fn close(&mut self, code: Code, _reason: &[u8]) {
        self.handle.close(VarInt::from_u64(code.value()).unwrap_or(VarInt::MAX));
    }
}

fn lost(error: &ConnectionError) -> ConnectionErrorIncoming {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose { error_code: close.error_code.into_inner() }
        }
        ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        error => ConnectionErrorIncoming::Undefined(Arc::new(error.clone())),
    }
}

fn on_stream(connection_error: ConnectionErrorIncoming) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
}
