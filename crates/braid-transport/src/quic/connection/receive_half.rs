//! Receiving half of a stream: bytes that the QUIC library has, and those that were taken out of it before they are
//! read.
//!
//! The library ends a connection with more than 1,024 pieces of one stream which it cannot merge: those that fill most
//! of their packet, however small that is. It looks at 2,048, or earlier when much more is allocated than small pieces
//! need. Pieces of a stream that is not read are taken out of it in order. A stream with many large pieces behind a
//! gap is read without order from then on; with small ones it is not, as the library may lose them.

use std::task::Poll;
use std::time::Duration;

use noq_proto::StreamId;
use tokio::io::ReadBuf;
use tokio::time::Instant;

use super::reassembly::Reassembly;
use super::unread_estimate::UnreadEstimate;
use crate::quic::announced_window::announced;
use crate::quic::io::{Connection, Received};

/// Pieces from which on they are taken out of the library. As many as come with one batch are more.
const MAX_SMALL_PIECES: usize = 700;
const MAX_PIECES: usize = 1660;

/// Bytes below which a piece is small.
const SMALL: usize = 600;

/// Parts of the window that are taken at first, of which an eighth is worth credit for the peer: an unread stream of
/// full packets gets no more than it had.
const FREE_PARTS: (usize, usize) = (7, 64);

/// Gaps of a stream at most: the library looks at each of them for each piece.
const MAX_GAPS: usize = 4096;

/// Time after which a piece is not behind a gap any more.
const GAP_TIME: Duration = Duration::from_secs(10);

/// Age from which on the bytes of a gap count as lost, if one frame can have filled it and so many others that the
/// library has made pieces compact. Bytes between large pieces may be late, but not lost.
const LOST_TIME: Duration = Duration::from_secs(30);
const LOST_BLOCKS: usize = 6;

/// Result of a read.
pub(super) enum Inbound {
    Bytes {
        /// Nothing is left, and an event tells of more.
        is_drained: bool,
    },
    Finished,
    Reset(u64),
}

pub(super) struct ReceiveHalf {
    pieces: Pieces,
    reassembly: Reassembly,
    /// The library is read without order.
    is_unordered: bool,
    /// Gap that was seen last: its offset, and since when.
    gap: Option<(u64, Instant)>,
    /// End behind what was taken out.
    end: Option<Received>,
}

/// Upper estimate of the pieces that the library holds.
#[derive(Default)]
struct Pieces {
    count: usize,
    /// The last one that was taken was small.
    are_small: bool,
    /// Pieces received since the last correction.
    recent: usize,
    corrected_at: Option<Instant>,
}

impl ReceiveHalf {
    /// `pieces`: those that may have come before.
    pub(super) fn new(pieces: usize) -> Self {
        Self {
            pieces: Pieces { count: pieces, recent: pieces, ..Pieces::default() },
            reassembly: Reassembly::default(),
            is_unordered: false,
            gap: None,
            end: None,
        }
    }

    pub(super) fn poll_read(
        &mut self,
        connection: &mut Connection,
        id: StreamId,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Inbound> {
        if self.reassembly.read(buffer) {
            return Poll::Ready(Inbound::Bytes { is_drained: false });
        }
        let before = buffer.filled().len();
        let received = match self.end {
            Some(end) => Poll::Ready(end),
            None if self.is_unordered => Poll::Pending,
            None => connection.read(id, buffer, |bytes, is_whole| self.pieces.handle_read(bytes, is_whole)),
        };
        match received {
            Poll::Pending => {
                self.pieces.handle_blocked();
                Poll::Pending
            }
            Poll::Ready(Received::Bytes { is_drained }) => {
                self.reassembly.skip(buffer.filled().len() - before);
                if is_drained {
                    self.pieces.handle_blocked();
                }
                Poll::Ready(Inbound::Bytes { is_drained })
            }
            Poll::Ready(Received::Finished) => Poll::Ready(Inbound::Finished),
            Poll::Ready(Received::Reset(code)) => Poll::Ready(Inbound::Reset(code.into_inner())),
        }
    }

    /// Counts a piece that the library has received; true if it may hold so many that they have to be taken out of it.
    pub(super) fn has_too_many_pieces(&mut self) -> bool {
        self.pieces.handle_received();
        self.is_unordered || self.pieces.count >= MAX_SMALL_PIECES && self.end.is_none()
    }

    /// Takes pieces out of the library: as many as give the peer no credit, and those beyond the limit. `unread`: of
    /// the connection. False if there are more gaps than may be.
    pub(super) fn take_pieces(
        &mut self,
        connection: &mut Connection,
        id: StreamId,
        unread: &UnreadEstimate,
    ) -> bool {
        if !self.is_unordered && self.take_ordered(connection, id, unread) {
            self.is_unordered = true;
            connection.read_unordered(id);
        }
        if self.is_unordered {
            self.take_unordered(connection, id);
        }
        self.reassembly.runs() <= MAX_GAPS
    }

    /// True if there are too many large pieces behind a gap.
    fn take_ordered(&mut self, connection: &mut Connection, id: StreamId, unread: &UnreadEstimate) -> bool {
        let (parts, of) = FREE_PARTS;
        let free = unread.stream_window() / of * parts;
        while self.reassembly.held() < free || self.pieces.count >= self.pieces.limit() {
            let max = free.checked_sub(self.reassembly.held()).filter(|max| *max > 0).unwrap_or(usize::MAX);
            match connection.read_chunk(id, max) {
                Poll::Ready(Ok(Some(piece))) => {
                    self.reassembly.append(&piece);
                    self.pieces.handle_read(piece.len(), piece.len() < max);
                }
                // The next read meets the end.
                Poll::Ready(Ok(None)) => return false,
                Poll::Ready(Err(code)) => {
                    self.end = Some(Received::Reset(code));
                    return false;
                }
                Poll::Pending => {
                    self.pieces.handle_blocked();
                    return self.pieces.count >= MAX_PIECES
                        && unread.received(&connection.stats()) >= (self.pieces.count * SMALL) as u64;
                }
            }
        }
        false
    }

    fn take_unordered(&mut self, connection: &mut Connection, id: StreamId) {
        let Self { reassembly, .. } = self;
        let end = connection.take_pieces(id, |piece| reassembly.insert(piece.offset, &piece.bytes));
        if let Poll::Ready(end) = end {
            self.end = Some(end);
        }
    }

    /// True if bytes that the peer does not send again are missing, as the library has lost them.
    pub(super) fn has_lost_bytes(&mut self, now: Instant) -> bool {
        let gap = self.reassembly.gap().filter(|_| self.is_unordered && self.end.is_none());
        if self.gap.map(|(offset, _)| offset) != gap {
            self.gap = gap.map(|offset| (offset, now));
        }
        self.gap.is_some_and(|(_, since)| now - since >= LOST_TIME)
            && self.reassembly.blocks_of_frame() >= LOST_BLOCKS
    }

    /// Bytes that the peer may have unread on this stream: it was told of more when it had read an eighth of the
    /// window.
    pub(super) fn window(&self, window: u64) -> u64 {
        let taken = self.reassembly.next() + self.reassembly.held() as u64;
        if taken < window / 8 { announced(window) } else { window }
    }

    /// Bytes that were taken out of the library, with what it takes to hold them.
    pub(super) fn held(&self) -> usize {
        self.reassembly.held()
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.reassembly.clear();
    }
}

impl Pieces {
    fn handle_received(&mut self) {
        self.count += 1;
        self.recent += 1;
    }

    /// Counts bytes that were read, of a whole piece or a part of one.
    fn handle_read(&mut self, bytes: usize, is_whole: bool) {
        if is_whole {
            self.count = self.count.saturating_sub(1);
            self.are_small = bytes < SMALL;
        }
    }

    /// Pieces that are left are behind a gap. Duplicates, and pieces that the library has merged, are not told; but the
    /// pieces that came long ago were read.
    fn handle_blocked(&mut self) {
        if self.count < MAX_SMALL_PIECES / 2 {
            return;
        }
        let now = Instant::now();
        if self.corrected_at.is_none_or(|at| now - at >= GAP_TIME) {
            self.count = self.count.min(self.recent);
            (self.recent, self.corrected_at) = (0, Some(now));
        }
    }

    fn limit(&self) -> usize {
        if self.are_small { MAX_SMALL_PIECES } else { MAX_PIECES }
    }
}
