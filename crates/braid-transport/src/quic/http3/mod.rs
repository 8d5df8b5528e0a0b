//! QUIC connection for the `h3` crate: its transport traits on the QUIC library, behind the panic guard.

mod frame_limit;
mod stream;

use std::fmt;
use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Buf;
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming};
use noq::{ConnectionError, Endpoint, PathId, RecvStream, SendStream, VarInt};

pub use self::stream::{Http3Bidi, Http3Recv, Http3Send};

use self::frame_limit::FrameLimit;
use self::stream::SendOptions;
use super::congestion::permit_extra_packet;
use super::panic_guard::{Broken, PanicGuard, Part, SharedConnection, guarded};
use super::runtime::Failures;
use crate::transport::{Peer, canonical};

/// Unidirectional streams that a peer may open: control, two of QPACK, and some of unknown types. `h3` keeps an entry
/// for each whose type has not arrived.
const UNI_STREAMS: usize = 64;

/// Measurements of a QUIC connection on its first path. The library gives no deviation of the round-trip time and no
/// number of probe timeouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// Address of the peer, which may move; `None` of a default value.
    pub remote: Option<SocketAddr>,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Payload of the datagrams that were received, bytes.
    pub received_bytes: u64,
    /// Datagrams that were received.
    pub received_datagrams: u64,
    /// Packets that were sent.
    pub sent_packets: u64,
    /// Packets that were declared lost, without probes of the path MTU.
    pub lost_packets: u64,
    /// Events on which the congestion controller backed off.
    pub congestion_events: u64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Rate that the congestion controller estimates, bytes per second; `None` if it does not.
    pub rate: Option<u64>,
    /// Payload of a datagram that the path carries, bytes.
    pub mtu: u16,
}

impl PathStats {
    /// The measurements of a path, without the address.
    fn of(stats: noq::PathStats) -> Self {
        Self {
            remote: None,
            srtt: stats.rtt,
            received_bytes: stats.udp_rx.bytes,
            received_datagrams: stats.udp_rx.datagrams,
            sent_packets: stats.sent_packets,
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
    connection: Weak<SharedConnection>,
    acknowledged_ends: Arc<AtomicBool>,
}

impl PathProbe {
    /// The measurements now.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn sample(&self) -> io::Result<PathStats> {
        self.read(|handle| {
            let remote = handle.path(PathId::ZERO)?.remote_address().ok();
            Some(PathStats {
                remote: remote.map(canonical),
                ..PathStats::of(handle.path_stats(PathId::ZERO)?)
            })
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
        self.read(|handle| {
            let is_silent = permit_extra_packet(handle.congestion_state(PathId::ZERO)?, now);
            let is_probed = is_silent || is_lossy(&PathStats::of(handle.path_stats(PathId::ZERO)?));
            Some(is_probed && handle.path(PathId::ZERO)?.ping().is_ok())
        })
    }

    /// Reads from the connection, if it is open.
    fn read<T>(&self, read: impl Fn(&noq::Connection) -> Option<T>) -> io::Result<T> {
        let closed = || io::Error::from(io::ErrorKind::NotConnected);
        let connection = self.connection.upgrade().ok_or_else(closed)?;
        guarded(|| read(connection.handle()?))?.ok_or_else(closed)
    }
}

impl fmt::Debug for PathProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathProbe").finish_non_exhaustive()
    }
}

type Opening<T> = PanicGuard<dyn Future<Output = Result<T, ConnectionError>> + Send>;

/// Established QUIC connection, of either end, to be served or used by `h3`.
pub struct Http3Connection {
    open: Http3Open,
    accepting_bidi: Option<Opening<(SendStream, RecvStream)>>,
    accepting_uni: Option<Opening<RecvStream>>,
    /// Resolves when the library has panicked in this connection.
    failed: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    uni_streams: usize,
    send_options: SendOptions,
    peer: Peer,
    /// The endpoint of a client.
    _endpoint: Option<Part<Endpoint>>,
}

impl Http3Connection {
    pub(super) fn new(
        connection: noq::Connection,
        peer: Peer,
        endpoint: Option<Endpoint>,
        failures: Failures,
    ) -> Self {
        let shared = SharedConnection::new(connection);
        Self {
            _endpoint: endpoint.map(|endpoint| Part::new(endpoint, &shared)),
            failed: Box::pin(failed(Arc::clone(&shared), failures)),
            open: Http3Open { shared, acknowledged_ends: Arc::default(), bidi: None, uni: None },
            accepting_bidi: None,
            accepting_uni: None,
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

    /// Measurements of the path.
    #[must_use]
    pub fn probe(&self) -> PathProbe {
        PathProbe {
            connection: Arc::downgrade(&self.open.shared),
            acknowledged_ends: Arc::clone(&self.open.acknowledged_ends),
        }
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Result<(), ConnectionErrorIncoming> {
        match self.failed.as_mut().poll(cx) {
            Poll::Ready(()) => Err(broken()),
            Poll::Pending => Ok(()),
        }
    }
}

impl fmt::Debug for Http3Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http3Connection").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Resolves when a task of the library has panicked, and it was that of this connection.
async fn failed(connection: Arc<SharedConnection>, mut failures: Failures) {
    loop {
        if failures.changed().await.is_err() {
            return pending().await;
        }
        if !connection.is_sound() {
            return;
        }
    }
}

/// Opens streams on a connection.
pub struct Http3Open {
    shared: Arc<SharedConnection>,
    /// See [`PathProbe::wait_for_acknowledgements`].
    acknowledged_ends: Arc<AtomicBool>,
    bidi: Option<Opening<(SendStream, RecvStream)>>,
    uni: Option<Opening<SendStream>>,
}

impl Clone for Http3Open {
    fn clone(&self) -> Self {
        let acknowledged_ends = Arc::clone(&self.acknowledged_ends);
        Self { shared: Arc::clone(&self.shared), acknowledged_ends, bidi: None, uni: None }
    }
}

impl fmt::Debug for Http3Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http3Open").finish_non_exhaustive()
    }
}

/// Polls the future in `slot`, which `call` makes of the connection if there is none.
fn poll_slot<T, F>(
    slot: &mut Option<Opening<T>>,
    shared: &Arc<SharedConnection>,
    cx: &mut Context<'_>,
    call: fn(Arc<SharedConnection>) -> F,
) -> Poll<Result<T, ConnectionErrorIncoming>>
where
    F: Future<Output = Result<T, ConnectionError>> + Send + 'static,
{
    let future = slot.get_or_insert_with(|| PanicGuard::of(Box::pin(call(Arc::clone(shared)))));
    let outcome = ready!(Pin::new(future).poll(cx));
    *slot = None;
    Poll::Ready(outcome.map_err(|Broken| broken())?.map_err(|error| lost(&error)))
}

/// Calls an asynchronous method of the connection in a future that owns it.
macro_rules! on_connection {
    ($method:ident) => {
        |shared: Arc<SharedConnection>| async move {
            match shared.handle() {
                Some(connection) => connection.$method().await,
                None => Err(ConnectionError::LocallyClosed),
            }
        }
    };
}

impl<B: Buf> quic::Connection<B> for Http3Connection {
    type RecvStream = Http3Recv;
    type OpenStreams = Http3Open;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::RecvStream, ConnectionErrorIncoming>> {
        self.poll_failed(cx)?;
        loop {
            let shared = &self.open.shared;
            let recv = ready!(poll_slot(&mut self.accepting_uni, shared, cx, on_connection!(accept_uni)))?;
            self.uni_streams += 1;
            let recv = Http3Recv::new(recv, FrameLimit::uni(), shared);
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
        self.poll_failed(cx)?;
        let shared = &self.open.shared;
        let streams = ready!(poll_slot(&mut self.accepting_bidi, shared, cx, on_connection!(accept_bi)))?;
        let bidi = Http3Bidi::new(streams, shared, &self.open.acknowledged_ends);
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
        let streams = ready!(poll_slot(&mut self.bidi, &self.shared, cx, on_connection!(open_bi)));
        let streams = streams.map_err(on_stream)?;
        Poll::Ready(Ok(Http3Bidi::new(streams, &self.shared, &self.acknowledged_ends)))
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
        let send = ready!(poll_slot(&mut self.uni, &self.shared, cx, on_connection!(open_uni)));
        let send = send.map_err(on_stream)?;
        // Settings and GOAWAY do not wait for bodies.
        let _ = guarded(|| send.set_priority(1));
        Poll::Ready(Ok(Http3Send::new(send, &self.shared, &self.acknowledged_ends)))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        let code = VarInt::from_u64(code.value()).unwrap_or(VarInt::MAX);
        let _ = guarded(|| self.shared.handle().map(|connection| connection.close(code, reason)));
    }
}

fn broken() -> ConnectionErrorIncoming {
    ConnectionErrorIncoming::InternalError(io::Error::from(Broken).to_string())
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
