//! Progress of the deliveries of a durable session, and the write barriers until it is durable.

use std::collections::VecDeque;
use std::future::Future;
use std::num::{NonZeroU16, NonZeroU64};
use std::pin::Pin;
use std::task::{Context, Poll};

use braid_proto::connection::Progress;
use braid_proto::packet::{PacketId, QoS};
use braid_proto::session::Inbound;
use braid_proto::stream::StreamKey;
use braid_store::{Change, Commit, Completion, SessionId, StoreError};
use hashbrown::HashMap;

use super::{Persist, lsn};

/// Progress of the deliveries of a durable session on its present connection.
///
/// Most changes may be committed late. But a QoS 2 PUBLISH must not be on the wire before its identifier is durable,
/// nor a PUBREL before its PUBREC is: a crash in between would deliver the message twice. They are in the outbox
/// already, so the outbox is written only up to their first byte until their commit is done.
pub(crate) struct DurableProgress {
    session: SessionId,
    changes: Vec<Change>,
    /// For a stream, the first byte that waits until `changes` are durable.
    urgent: Vec<(StreamKey, u64)>,
    /// Bytes written on each stream since this value exists, in the order of the streams.
    written: Vec<(StreamKey, u64)>,
    barriers: VecDeque<Barrier>,
    /// Open QoS 2 exchanges of the client by identifier, as many as the store was told of. The session may have more,
    /// of which the store must be told in the order of the messages.
    exchanges: HashMap<PacketId, NonZeroU16>,
}

/// Write barrier: for some streams, the first byte that waits for a commit. Other streams do not wait. [BQ-55]
struct Barrier {
    from: Vec<(StreamKey, u64)>,
    commit: Commit,
}

/// Counts one more exchange; returns the number.
fn add(exchanges: &mut HashMap<PacketId, NonZeroU16>, packet_id: PacketId) -> NonZeroU16 {
    // Each has a stream of its own: the count never saturates.
    let more = |count: &mut NonZeroU16| *count = count.saturating_add(1);
    *exchanges.entry(packet_id).and_modify(more).or_insert(NonZeroU16::MIN)
}

impl DurableProgress {
    /// Progress of a session with the exchanges that `inbound` has.
    pub(crate) fn new(session: SessionId, inbound: &Inbound) -> Self {
        let mut exchanges = HashMap::new();
        for (packet_id, count) in inbound.exchanges() {
            for _ in 0..count {
                add(&mut exchanges, packet_id);
            }
        }
        Self {
            exchanges,
            session,
            changes: Vec::new(),
            urgent: Vec::new(),
            written: Vec::new(),
            barriers: VecDeque::new(),
        }
    }

    /// Records a PUBLISH in the outbox of a stream, behind `unwritten` bytes.
    pub(crate) fn note_sent(
        &mut self,
        queue_lsn: NonZeroU64,
        qos: QoS,
        packet_id: PacketId,
        (stream, unwritten): (StreamKey, usize),
    ) {
        if qos == QoS::ExactlyOnce {
            self.hold(stream, unwritten);
        }
        self.changes.push(Change::Sent { session: self.session, lsn: lsn(queue_lsn), packet_id });
    }

    /// Records a received QoS 2 PUBLISH, whose change is committed with its message.
    pub(crate) fn receive(&mut self, packet_id: PacketId) -> Change {
        let exchanges = add(&mut self.exchanges, packet_id);
        Change::Received { session: self.session, packet_id, exchanges }
    }

    /// Records a PUBREL. `None`: the store does not know the exchange.
    pub(crate) fn release(&mut self, packet_id: PacketId) -> Option<Change> {
        let session = self.session;
        let count = self.exchanges.get_mut(&packet_id)?;
        Some(match NonZeroU16::new(count.get() - 1) {
            Some(exchanges) => {
                *count = exchanges;
                Change::Received { session, packet_id, exchanges }
            }
            None => {
                self.exchanges.remove(&packet_id);
                Change::ReceivedReleased { session, packet_id }
            }
        })
    }

    /// Records the effect of an acknowledgement.
    pub(crate) fn note(&mut self, progress: Progress) {
        match progress {
            Progress::Released { queue_lsn, packet_id, behind: (stream, unwritten) } => {
                self.hold(stream, unwritten);
                self.changes.push(Change::Released { session: self.session, lsn: lsn(queue_lsn), packet_id });
            }
            Progress::Completed(queue_lsn) => self.note_completed(queue_lsn),
        }
    }

    /// Records a delivery that is acknowledged, or was dropped instead of being sent.
    pub(crate) fn note_completed(&mut self, queue_lsn: NonZeroU64) {
        self.changes.push(Change::Completed { session: self.session, lsn: lsn(queue_lsn) });
    }

    /// Holds back the bytes of a stream from here on, or from where they are held back already.
    fn hold(&mut self, stream: StreamKey, unwritten: usize) {
        let at = self.written_on(stream) + unwritten as u64;
        match self.urgent.iter_mut().find(|(key, _)| *key == stream) {
            Some((_, from)) => *from = at.min(*from),
            None => self.urgent.push((stream, at)),
        }
    }

    /// Commits the recorded changes.
    pub(crate) fn commit(&mut self, persist: &Persist) {
        if self.changes.is_empty() {
            return;
        }
        let changes = std::mem::take(&mut self.changes);
        if self.urgent.is_empty() {
            return persist.commit_late(changes);
        }
        let from = std::mem::take(&mut self.urgent);
        let commit = persist.commit(changes);
        if !matches!(commit, Completion::Done(Ok(()))) {
            self.barriers.push_back(Barrier { from, commit });
        }
    }

    /// Lifts the barriers whose commits are done.
    ///
    /// # Errors
    /// A commit failed: the bytes behind its barrier must never be written.
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

    /// Number of bytes of a stream that may be written now; `None` for all.
    ///
    /// Bytes of a stream that `has_ended` may be in the outbox of the control stream by now, at an unknown position:
    /// all of that outbox waits then. [BQ-42]
    pub(crate) fn writable(&self, stream: StreamKey, has_ended: impl Fn(StreamKey) -> bool) -> Option<usize> {
        let named = self.barriers.iter().flat_map(|barrier| &barrier.from);
        let mut first = None;
        for (key, from) in named {
            if *key == stream {
                first = Some(first.map_or(*from, |first: u64| first.min(*from)));
            } else if stream.is_control() && has_ended(*key) {
                return Some(0);
            }
        }
        let room = first?.saturating_sub(self.written_on(stream));
        Some(usize::try_from(room).unwrap_or(usize::MAX))
    }

    fn written_on(&self, stream: StreamKey) -> u64 {
        self.written.binary_search_by_key(&stream, |(key, _)| *key).map_or(0, |at| self.written[at].1)
    }

    pub(crate) fn note_written(&mut self, stream: StreamKey, bytes: usize) {
        match self.written.binary_search_by_key(&stream, |(key, _)| *key) {
            Ok(at) => self.written[at].1 += bytes as u64,
            Err(at) => self.written.insert(at, (stream, bytes as u64)),
        }
    }

    /// Forgets a stream that has ended.
    pub(crate) fn forget(&mut self, stream: StreamKey) {
        self.written.retain(|(key, _)| *key != stream);
    }
}
