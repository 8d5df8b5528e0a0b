//! One stream of a link: its two halves.

use std::io::{self, IoSlice};
use std::task::Poll;

use braid_proto::stream::{Priority, StreamKey};
use bytes::BytesMut;
use noq_proto::{ConnectionError, Dir, Side, StreamId, VarInt};
use tokio::io::ReadBuf;

use crate::quic::codes::{self, code};
use crate::quic::io::{Connection, Received, Refused};

/// Pieces of a stream from which on they are taken out of the library, which ends a connection that has more than
/// 1,024 of one stream which it cannot merge: those that fill most of their packet, however small that is. The library
/// looks at 2,048, or earlier when much more is allocated than small pieces need. As many as come with one batch are
/// more.
const MAX_SMALL_PIECES: usize = 700;
const MAX_PIECES: usize = 1660;

/// Bytes below which a piece is small.
const SMALL: usize = 600;

/// Parts of the window that are taken at first, of which an eighth is worth credit for the peer: an unread stream of
/// full packets, some 1,800 of 1,167 bytes in 2 MiB, gets no more than it had.
const FREE_PARTS: (usize, usize) = (7, 64);

/// Least charge for a stream with bytes out of the library.
const LEAST_CHARGE: usize = 4 << 10;

/// Bytes out of the library, over all streams of a connection, at most.
pub(super) const MAX_TAKEN: usize = 16 << 20;

/// Above every data stream.
const CONTROL_PRIORITY: i32 = 1 << 16;

pub(super) struct Stream {
    id: StreamId,
    /// More may be sent.
    pub(super) is_sending: bool,
    /// More may be received.
    pub(super) is_receiving: bool,
    priority: i32,
    /// The library has that priority; it starts with 0 for every stream.
    is_priority_set: bool,
    /// Bytes written.
    pub(super) written: u64,
    /// Only the FIN is left to send.
    pub(super) is_finishing: bool,
    /// The stream is in the read queue.
    pub(super) is_queued: bool,
    pieces: Pieces,
    /// Bytes that were taken out of the library, the next ones to be read.
    taken: BytesMut,
    /// Code of a reset that was met behind them.
    reset: Option<VarInt>,
}

/// Upper estimate of the pieces of a stream that the library holds.
#[derive(Default)]
struct Pieces {
    count: usize,
    /// The last one that was taken was small.
    are_small: bool,
    /// Pieces received since a window of bytes was read, and since one more before.
    recent: [usize; 2],
    /// Bytes read of that window.
    read: usize,
}

/// Result of a read.
pub(super) enum Inbound {
    Bytes,
    Finished,
    Reset(u64),
}

/// Reason for which a write failed.
pub(super) enum WriteFailure {
    /// The stream has ended.
    Ended,
    /// STOP_SENDING, with its code.
    Stopped(VarInt),
    Lost(CloseReason),
}

/// Number of the stream in QUIC. Clients open all streams.
pub(super) fn id(key: StreamKey) -> StreamId {
    let dir = if key.is_uni() { Dir::Uni } else { Dir::Bi };
    StreamId::new(Side::Client, dir, key.index().into())
}

/// Key of a stream that a client has opened; `None` of one that a server opened, or of too many.
pub(super) fn key(id: StreamId) -> Option<StreamKey> {
    let index = u32::try_from(id.index()).ok().filter(|index| *index < StreamKey::COUNT_MAX)?;
    (id.initiator() == Side::Client).then(|| match id.dir() {
        Dir::Bi => StreamKey::bidi(index),
        Dir::Uni => StreamKey::uni(index),
    })
}

impl Stream {
    /// A stream of which this end has the sending half, the receiving half, or both.
    /// `pieces`: those that may have come before.
    pub(super) fn new(key: StreamKey, is_sending: bool, is_receiving: bool, pieces: usize) -> Self {
        Self {
            id: id(key),
            is_sending,
            is_receiving,
            priority: if key.is_control() { CONTROL_PRIORITY } else { i32::from(Priority::DEFAULT.value()) },
            is_priority_set: false,
            written: 0,
            is_finishing: false,
            is_queued: false,
            pieces: Pieces { count: pieces, recent: [pieces, 0], ..Pieces::default() },
            taken: BytesMut::new(),
            reset: None,
        }
    }

    pub(super) fn id(&self) -> StreamId {
        self.id
    }

    /// Both halves have ended.
    pub(super) fn is_over(&self) -> bool {
        !self.is_sending && !self.is_receiving
    }

    /// The application may write.
    pub(super) fn is_writable(&self) -> bool {
        self.is_sending && !self.is_finishing
    }

    pub(super) fn priority(&self) -> i32 {
        self.priority
    }

    /// Takes effect at once, also for bytes that were written before: the library looks at the priority each time some
    /// of the stream is in a packet. Before the first write it waits for that, since the library would allocate for a
    /// stream that may never be written.
    pub(super) fn set_priority(&mut self, connection: &mut Connection, priority: Priority) {
        let priority = i32::from(priority.value());
        self.is_priority_set &= self.priority == priority;
        self.priority = priority;
        if self.written > 0 {
            self.apply_priority(connection);
        }
    }

    fn apply_priority(&mut self, connection: &mut Connection) {
        if self.is_sending && !self.is_priority_set {
            self.is_priority_set = true;
            connection.set_priority(self.id, self.priority);
        }
    }

    pub(super) fn poll_read(
        &mut self,
        connection: &mut Connection,
        buffer: &mut ReadBuf<'_>,
        window: usize,
    ) -> Poll<Inbound> {
        if !self.is_receiving {
            return Poll::Pending;
        }
        if !self.taken.is_empty() {
            let length = self.taken.len().min(buffer.remaining());
            buffer.put_slice(&self.taken.split_to(length));
            if self.taken.is_empty() {
                self.taken = BytesMut::new();
            }
            return Poll::Ready(Inbound::Bytes);
        }
        let handle_piece = |bytes, is_whole| self.pieces.handle_read(bytes, is_whole, window);
        let read = match self.reset.take() {
            Some(code) => Poll::Ready(Received::Reset(code)),
            None => connection.read(self.id, buffer, handle_piece),
        };
        let inbound = match read {
            Poll::Pending => {
                self.pieces.handle_empty();
                return Poll::Pending;
            }
            Poll::Ready(Received::Bytes) => return Poll::Ready(Inbound::Bytes),
            Poll::Ready(Received::Finished) => Inbound::Finished,
            Poll::Ready(Received::Reset(code)) => Inbound::Reset(code.into_inner()),
        };
        self.is_receiving = false;
        Poll::Ready(inbound)
    }

    /// Counts a piece that the library has received; true if it may hold so many that they have to be taken out of it.
    pub(super) fn has_too_many_pieces(&mut self) -> bool {
        self.pieces.handle_received();
        self.pieces.count >= MAX_SMALL_PIECES && self.is_receiving && self.reset.is_none()
    }

    /// Takes pieces out of the library: as many as give the peer no credit, for a stream with that window, and those
    /// beyond the limit.
    pub(super) fn take_pieces(&mut self, connection: &mut Connection, window: usize) {
        let (parts, of) = FREE_PARTS;
        let free = window / of * parts;
        while self.taken.len() < free || self.pieces.count >= self.pieces.limit() {
            let max = free.checked_sub(self.taken.len()).filter(|max| *max > 0).unwrap_or(usize::MAX);
            match connection.read_chunk(self.id, max) {
                Poll::Ready(Ok(Some(piece))) => {
                    self.taken.extend_from_slice(&piece);
                    self.pieces.handle_read(piece.len(), piece.len() < max, window);
                }
                // The next read meets the end.
                Poll::Ready(Ok(None)) => return,
                Poll::Ready(Err(code)) => {
                    self.reset = Some(code);
                    return;
                }
                Poll::Pending => {
                    self.pieces.handle_empty();
                    return;
                }
            }
        }
    }

    /// Charge for bytes that were taken out of the library.
    pub(super) fn taken(&self) -> usize {
        if self.taken.is_empty() { 0 } else { self.taken.len().max(LEAST_CHARGE) }
    }

    /// Writes as much of `slices` as is taken now, at most `max` bytes. Pending: an event tells of room.
    pub(super) fn poll_write(
        &mut self,
        connection: &mut Connection,
        slices: &[IoSlice<'_>],
        max: usize,
    ) -> Poll<Result<usize, WriteFailure>> {
        self.apply_priority(connection);
        if !self.is_sending {
            return Poll::Ready(Err(WriteFailure::Ended));
        }
        connection.write(self.id, slices, max).map(|outcome| match outcome {
            Ok(written) => {
                self.written += written as u64;
                Ok(written)
            }
            Err(Refused::Stopped(code)) => Err(WriteFailure::Stopped(code)),
            Err(Refused::Closed) => Err(WriteFailure::Ended),
            Err(Refused::Lost(error)) => Err(WriteFailure::Lost(CloseReason::Connection(error))),
        })
    }

    /// Sends RESET_STREAM, if the half is open.
    pub(super) fn reset(&mut self, connection: &mut Connection, code: VarInt) {
        if std::mem::take(&mut self.is_sending) {
            connection.reset(self.id, code);
        }
    }

    /// Sends STOP_SENDING, if the half is open.
    pub(super) fn stop(&mut self, connection: &mut Connection, code: VarInt) {
        if std::mem::take(&mut self.is_receiving) {
            connection.stop(self.id, code);
        }
    }

    /// Sends FIN now.
    pub(super) fn finish(&mut self, connection: &mut Connection) {
        if std::mem::take(&mut self.is_sending) {
            let _ = connection.finish(self.id);
        }
    }
}

impl Pieces {
    fn handle_received(&mut self) {
        self.count += 1;
        self.recent[0] += 1;
    }

    /// Counts bytes that were read, of a whole piece or a part of one. Duplicates and pieces that the library has
    /// merged are not told: but what came before a window of bytes was read is not there any more.
    fn handle_read(&mut self, bytes: usize, is_whole: bool, window: usize) {
        if is_whole {
            self.count = self.count.saturating_sub(1);
            self.are_small = bytes < SMALL;
        }
        self.read += bytes;
        if self.read >= window {
            self.count = self.count.min(self.recent[0] + self.recent[1]);
            (self.recent, self.read) = ([0, self.recent[0]], 0);
        }
    }

    /// Everything was read.
    fn handle_empty(&mut self) {
        self.count = 0;
    }

    fn limit(&self) -> usize {
        if self.are_small { MAX_SMALL_PIECES } else { MAX_PIECES }
    }
}

/// Reason for which a link has ended.
#[derive(Clone, Debug, thiserror::Error)]
pub(in crate::quic) enum CloseReason {
    #[error("the QUIC connection is lost: {0}")]
    Connection(ConnectionError),
    #[error("the server rejected the early data")]
    EarlyDataRejected,
    #[error("the peer reset the control stream with code {0:#x}")]
    ControlReset(u64),
    #[error("the peer stopped the control stream with code {0:#x}")]
    ControlStopped(u64),
}

impl CloseReason {
    /// Many clients close the connection without finishing the control stream first: that is its end as well.
    pub(super) fn is_in_order(&self) -> bool {
        matches!(self, Self::Connection(ConnectionError::ApplicationClosed(close))
            if close.error_code == code(codes::CLOSE_NORMAL))
    }
}

impl From<CloseReason> for io::Error {
    fn from(reason: CloseReason) -> Self {
        let kind = match &reason {
            CloseReason::Connection(ConnectionError::TimedOut) => io::ErrorKind::TimedOut,
            CloseReason::Connection(ConnectionError::LocallyClosed) => io::ErrorKind::ConnectionAborted,
            _ => io::ErrorKind::ConnectionReset,
        };
        Self::new(kind, reason)
    }
}
