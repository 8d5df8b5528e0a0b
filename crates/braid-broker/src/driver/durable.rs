//! Acknowledgements that wait for the store, and what the store hears from this connection.

use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use braid_proto::packet::{PacketId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_store::{Commit, Completion, StoreError};

use super::Driver;
use super::held::Due;
use crate::session_entry::SessionEntry;

/// A commit that was not done at once, in the order of the commits.
pub(super) struct PendingCommit {
    commit: Commit,
    /// The acknowledgements that wait for it.
    due: Option<Due>,
}

impl Driver {
    /// Reads what the store has for the session, and tells the store of it before CONNACK tells the client.
    pub(super) async fn open(&mut self, entry: &SessionEntry) -> Result<(), StoreError> {
        let Some((expiry, will)) = self.server.offer() else { return Ok(()) };
        self.core.sessions.load_stored(entry).await?;
        let is_stored = expiry.outlives_connection() || entry.is_durable();
        let will = will.filter(|_| is_stored).cloned().map(Arc::new);
        self.core.sessions.open(entry, expiry, will).await
    }

    /// Notes a commit whose effects this connection acknowledges.
    pub(super) fn watch(&mut self, commit: Option<Commit>) {
        match commit {
            None | Some(Completion::Done(Ok(()))) => {}
            Some(commit) => {
                self.unsettled.push_back(PendingCommit { commit, due: None });
            }
        }
    }

    /// Lets acknowledgements go once every commit before is done.
    pub(super) fn acknowledge(&mut self, due: Due) {
        match self.unsettled.back_mut() {
            None => self.hold(due),
            Some(PendingCommit { due: Some(earlier), .. }) => earlier.join(due),
            Some(last) => last.due = Some(due),
        }
    }

    /// Lets go what is durable by now. After a commit that failed nothing is acknowledged any more.
    pub(super) fn poll_unsettled(&mut self, context: &mut Context<'_>) {
        while let Some(first) = self.unsettled.front_mut() {
            let Poll::Ready(outcome) = Pin::new(&mut first.commit).poll(context) else { return };
            let Some(PendingCommit { due, .. }) = self.unsettled.pop_front() else { return };
            match (outcome, due) {
                (Ok(()), Some(due)) => self.hold(due),
                (Ok(()), None) => {}
                (Err(error), _) => {
                    self.unsettled.clear();
                    self.fail(&error);
                    self.server.disconnect(ReasonCode::ImplementationSpecificError);
                }
            }
        }
    }

    /// PUBLISH is in the outbox of a stream, behind so many bytes.
    pub(super) fn note_sent(
        &mut self,
        place: NonZeroU64,
        qos: QoS,
        packet_id: PacketId,
        behind: (StreamKey, usize),
    ) {
        if let Some(progress) = &mut self.progress {
            progress.note_sent(place, qos, packet_id, behind);
        }
    }

    pub(super) fn note_dropped(&mut self, stored: Option<NonZeroU64>) {
        if let (Some(place), Some(progress)) = (stored, &mut self.progress) {
            progress.note_dropped(place);
        }
    }

    /// Handles bytes of a stream and notes what they mean for the store, before anything that answers them is written.
    pub(super) fn handle_bytes(&mut self, stream: StreamKey, bytes: &[u8], now: Instant) {
        self.server.handle_bytes(stream, bytes, now);
        self.note_progress();
    }

    fn note_progress(&mut self) {
        let Some(progress) = &mut self.progress else { return };
        while let Some(step) = self.server.poll_progress() {
            progress.note(step);
        }
    }

    /// Tells the store how far deliveries have come.
    pub(super) fn commit_progress(&mut self) {
        // Of what came right behind CONNECT: no byte that answers it has left yet.
        self.note_progress();
        if let Some(progress) = &mut self.progress {
            progress.commit(&self.core.persist);
        }
    }

    /// Lifts the barriers in the outbox that are durable by now. One that never will be ends the link: what is
    /// behind it must not be written, not even to say why.
    pub(super) fn poll_barriers(&mut self, context: &mut Context<'_>) {
        let Some(progress) = &mut self.progress else { return };
        if let Err(error) = progress.poll_barriers(context) {
            self.progress = None;
            self.fail(&error);
            self.end_link(None);
        }
    }

    fn fail(&self, error: &StoreError) {
        self.core.persist.complain(error);
        let client = self.entry.as_ref().map(|entry| entry.client_id.as_str());
        tracing::warn!(client, %error, "disconnected: what it waits for cannot be stored");
    }
}
