//! What the store hears of deliveries on their way, and what may not be written before it has.

use std::collections::VecDeque;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::task::{Context, Poll};

use braid_proto::connection::Progress;
use braid_proto::packet::{PacketId, QoS};
use braid_proto::stream::StreamKey;
use braid_store::{Change, Commit, Completion, SessionId, StoreError};

use super::{Persist, lsn};

/// How many bytes wait on each stream that has some.
pub(crate) type Unwritten = Vec<(StreamKey, usize)>;

/// How far the deliveries of a durable session are, on its present connection.
///
/// Most of it may be late. But a QoS 2 PUBLISH must not be on the wire before its identifier is durable, nor a
/// PUBREL before its PUBREC is: a crash in between would deliver the message twice. They are in the outbox
/// already, so the outbox is written only up to where they begin until their commit is done.
pub(crate) struct DurableProgress {
    session: SessionId,
    changes: Vec<Change>,
    /// Something among `changes` must be durable before the bytes behind it leave.
    is_urgent: bool,
    /// Bytes that were written on each stream while this watched.
    written: Vec<(StreamKey, u64)>,
    barriers: VecDeque<Barrier>,
}

/// From which byte on each stream waits for a commit; a stream that is not named had written nothing.
struct Barrier {
    from: Vec<(StreamKey, u64)>,
    commit: Commit,
}

fn find(positions: &[(StreamKey, u64)], stream: StreamKey) -> u64 {
    positions.iter().find(|(key, _)| *key == stream).map_or(0, |(_, at)| *at)
}

fn add(positions: &mut Vec<(StreamKey, u64)>, stream: StreamKey, bytes: usize) {
    match positions.iter_mut().find(|(key, _)| *key == stream) {
        Some((_, at)) => *at += bytes as u64,
        None => positions.push((stream, bytes as u64)),
    }
}

impl DurableProgress {
    pub(crate) fn new(session: SessionId) -> Self {
        Self {
            session,
            changes: Vec::new(),
            is_urgent: false,
            written: Vec::new(),
            barriers: VecDeque::new(),
        }
    }

    /// PUBLISH is in the outbox.
    pub(crate) fn note_sent(&mut self, place: NonZeroU64, qos: QoS, packet_id: PacketId) {
        self.is_urgent |= qos == QoS::ExactlyOnce;
        self.changes.push(Change::Sent { session: self.session, lsn: lsn(place), packet_id });
    }

    /// The delivery was dropped instead of being sent.
    pub(crate) fn note_dropped(&mut self, place: NonZeroU64) {
        self.note(Progress::Completed(place));
    }

    pub(crate) fn note(&mut self, progress: Progress) {
        let session = self.session;
        self.changes.push(match progress {
            Progress::Released(place, packet_id) => {
                self.is_urgent = true;
                Change::Released { session, lsn: lsn(place), packet_id }
            }
            Progress::Completed(place) => Change::Completed { session, lsn: lsn(place) },
        });
    }

    /// Commits what was noted. `unwritten`: how many bytes of each outbox may leave whatever becomes of it.
    pub(crate) fn commit(&mut self, persist: &Persist, unwritten: &Unwritten) {
        if self.changes.is_empty() {
            return;
        }
        let changes = std::mem::take(&mut self.changes);
        if !std::mem::take(&mut self.is_urgent) {
            return persist.commit_late(changes);
        }
        let commit = persist.commit(changes);
        if !matches!(commit, Completion::Done(Ok(()))) {
            let mut from = self.written.clone();
            unwritten.iter().for_each(|(stream, bytes)| add(&mut from, *stream, *bytes));
            self.barriers.push_back(Barrier { from, commit });
        }
    }

    /// Lifts the barriers whose commits are done.
    ///
    /// # Errors
    /// A commit failed: what stands behind its barrier must never be written.
    pub(crate) fn poll_barriers(&mut self, context: &mut Context<'_>) -> Result<(), StoreError> {
        while let Some(barrier) = self.barriers.front_mut() {
            match Pin::new(&mut barrier.commit).poll(context) {
                Poll::Pending => break,
                Poll::Ready(outcome) => {
                    outcome?;
                    self.barriers.pop_front();
                }
            }
        }
        Ok(())
    }

    /// How many bytes of a stream may be written now; `None` for all there are.
    pub(crate) fn writable(&self, stream: StreamKey) -> Option<usize> {
        let from = find(&self.barriers.front()?.from, stream);
        Some(usize::try_from(from.saturating_sub(find(&self.written, stream))).unwrap_or(usize::MAX))
    }

    pub(crate) fn note_written(&mut self, stream: StreamKey, bytes: usize) {
        add(&mut self.written, stream, bytes);
    }

    /// A stream has ended.
    pub(crate) fn forget(&mut self, stream: StreamKey) {
        self.written.retain(|(key, _)| *key != stream);
    }
}
