//! One stream of a link: its two halves.

use std::io::{self, IoSlice};
use std::task::Poll;

use braid_proto::stream::{Priority, StreamKey};
use noq_proto::{ConnectionError, Dir, FinishError, Side, StreamId, VarInt};
use tokio::io::ReadBuf;
use tokio::time::Instant;

use super::receive_half::{Inbound, ReceiveHalf};
use super::unread_estimate::UnreadEstimate;
use crate::quic::codes::{self, code};
use crate::quic::io::{Connection, Refused};

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
    /// The stream is among those with too many pieces.
    pub(super) is_crowded: bool,
    receive: ReceiveHalf,
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
            is_crowded: false,
            receive: ReceiveHalf::new(pieces),
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
    ) -> Poll<Inbound> {
        if !self.is_receiving {
            return Poll::Pending;
        }
        let inbound = self.receive.poll_read(connection, self.id, buffer);
        if let Poll::Ready(Inbound::Finished | Inbound::Reset(_)) = inbound {
            self.is_receiving = false;
            self.receive.clear();
        }
        inbound
    }

    /// Counts a piece that the library has received; true if it may hold so many that they have to be taken out of it.
    pub(super) fn has_too_many_pieces(&mut self) -> bool {
        self.is_receiving && self.receive.has_too_many_pieces()
    }

    /// Takes pieces out of the library. `unread`: of the connection. False if there are more gaps than may be.
    pub(super) fn take_pieces(&mut self, connection: &mut Connection, unread: &UnreadEstimate) -> bool {
        self.receive.take_pieces(connection, self.id, unread)
    }

    /// True if bytes that the peer does not send again are missing.
    pub(super) fn has_lost_bytes(&mut self, now: Instant) -> bool {
        self.is_receiving && self.receive.has_lost_bytes(now)
    }

    /// Bytes that the peer may have unread, where the library has a window of so many.
    pub(super) fn window(&self, window: u64) -> u64 {
        self.receive.window(window)
    }

    /// Bytes that were taken out of the library, with what it takes to hold them.
    pub(super) fn held(&self) -> usize {
        self.receive.held()
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
            self.receive.clear();
            connection.stop(self.id, code);
        }
    }

    /// Sends FIN now; RESET_STREAM if the peer has stopped the half, which the library would keep otherwise.
    pub(super) fn finish(&mut self, connection: &mut Connection) {
        if std::mem::take(&mut self.is_sending)
            && let Err(FinishError::Stopped(code)) = connection.finish(self.id)
        {
            connection.reset(self.id, code);
        }
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
