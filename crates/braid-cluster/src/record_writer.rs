//! Writer of the records of sessions: each on condition that the last one is that of this node.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::stream::Stream;
use braid_store::{SessionId, StoreError};
use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::commit::CommitPart;
use crate::log_writer::PATIENCE;
use crate::publish::{Outgoing, Tried, last_message, send};
use crate::record::Record;
use crate::sessions::{OwnSession, Revision, SharedMessage};
use crate::store::{NodeState, SessionEvent};

/// Writes at a time.
const RUNNING: usize = 512;

/// Time between two writes of what may be written late.
const LATE: Duration = Duration::from_secs(5);

/// Records that are written late at a time.
const LATE_AT_ONCE: usize = 2000;

/// Time after which the servers remove the record of a session that has ended.
const ENDED: Duration = Duration::from_secs(60);

/// Time between two tries.
const AGAIN: Duration = Duration::from_millis(100);

/// Writer of records.
#[derive(Clone)]
pub(crate) struct RecordWriter {
    pub(crate) state: Arc<NodeState>,
    pub(crate) client: Client,
    pub(crate) stream: Stream<()>,
    /// Messages of the log after which the record of a session is written again.
    pub(crate) record_after: u64,
}

/// Write of one record.
struct Write {
    id: SessionId,
    message: Outgoing,
    revision: Revision,
    ends: bool,
    parks: bool,
    /// Messages of shared subscriptions that are the session's alone with this record.
    claimed: Vec<SharedMessage>,
    waiters: Vec<CommitPart>,
}

/// Outcome of a write.
enum Written {
    Stored(u64),
    Lost,
    Unavailable(String),
}

impl RecordWriter {
    /// Writes records that are due until the store is gone.
    pub(crate) async fn run(self, mut due: UnboundedReceiver<SessionId>) {
        let running = Arc::new(Semaphore::new(RUNNING));
        let mut late = interval(LATE);
        late.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                id = due.recv() => {
                    let Some(id) = id else { return };
                    let Some(write) = self.begin(id) else { continue };
                    let Ok(permit) = running.clone().acquire_owned().await else { return };
                    let writer = self.clone();
                    tokio::spawn(async move {
                        writer.carry_out(write).await;
                        drop(permit);
                    });
                }
                _ = late.tick() => self.begin_late(),
            }
        }
    }

    /// Marks sessions whose progress is to be written as due, and those without any whose record is far behind the log:
    /// the log is kept from there on.
    fn begin_late(&self) {
        let log_len: u64 = self.state.positions().iter().sum();
        let mut sessions = self.state.sessions();
        let is_behind = |session: &OwnSession| {
            session.outlives_connection()
                && log_len.saturating_sub(session.write.log_len) >= self.record_after
        };
        let behind = sessions.own.iter().filter(|(_, session)| is_behind(session)).map(|(id, _)| *id);
        let behind: Vec<_> = behind.take(LATE_AT_ONCE).collect();
        behind.into_iter().for_each(|id| sessions.lazy.insert(id));
        for _ in 0..LATE_AT_ONCE {
            let Some(id) = sessions.lazy.pop() else { break };
            if let Some(session) = sessions.own.get_mut(&id) {
                session.write.is_due = true;
                self.state.note_due(id);
            }
        }
    }

    /// The write of a record that is due; `None`: there is none, or it comes later.
    fn begin(&self, id: SessionId) -> Option<Write> {
        let NodeState { layout, node, run, .. } = &*self.state;
        let positions = self.state.positions();
        let mut sessions = self.state.sessions();
        sessions.lazy.remove(id);
        let session = sessions.own.get_mut(&id)?;
        let waits = session.write.holds && session.write.appending > 0;
        if !session.write.is_due || session.write.is_running || session.is_lost || waits {
            return None;
        }
        (session.write.is_due, session.write.is_running, session.write.holds) = (false, true, false);
        session.write.number += 1;
        session.write.log_len = positions.iter().sum();
        let subject = layout.session(&session.client_id);
        let ends = session.write.ends;
        let message_id = format!("{run}.{id}.{}", session.write.number);
        let message = if ends {
            Outgoing::new(subject, Bytes::from_static(b"{}")).with_ttl(ENDED)
        } else {
            let record = session.record(layout, &positions, node, run);
            Outgoing::new(subject, record.write())
        };
        Some(Write {
            id,
            message: message.with_id(message_id),
            revision: session.revision,
            ends,
            parks: session.is_parked() && !ends,
            claimed: if ends { Vec::new() } else { session.claim_shared() },
            waiters: std::mem::take(&mut session.write.waiters),
        })
    }

    async fn carry_out(&self, write: Write) {
        let Write { id, message, revision, ends, parks, claimed, waiters } = write;
        let written = self.write(message, revision).await;
        let outcome = match &written {
            Written::Stored(_) => Ok(()),
            Written::Lost => Err(StoreError::Fenced { session: id }),
            Written::Unavailable(reason) => Err(StoreError::Unavailable { reason: reason.as_str().into() }),
        };
        let mut sessions = self.state.sessions();
        let mut is_due_again = false;
        if let Some(session) = sessions.own.get_mut(&id) {
            session.write.is_running = false;
            match written {
                Written::Stored(sequence) => session.revision = Revision::Known(sequence),
                Written::Lost | Written::Unavailable(_) => session.is_lost = true,
            }
            is_due_again = session.write.is_due && !session.is_lost;
        }
        drop(sessions);
        // Without the record the client was not sent them.
        claimed.into_iter().for_each(|message| self.state.end_shared(message, outcome.is_ok()));
        match &outcome {
            Ok(()) if ends => drop(self.state.drop_session(id)),
            Ok(()) if is_due_again => self.state.note_due(id),
            Ok(()) if parks => self.state.tell(SessionEvent::Parked(id)),
            Ok(()) => {}
            Err(StoreError::Unavailable { .. }) => self.state.tell(SessionEvent::Unavailable(id)),
            Err(_) => self.state.tell(SessionEvent::Lost(id)),
        }
        waiters.into_iter().for_each(|part| part.complete(&outcome));
    }

    async fn write(&self, message: Outgoing, revision: Revision) -> Written {
        let give_up = Instant::now() + PATIENCE;
        let mut expected = match revision {
            Revision::Known(sequence) => Some(sequence),
            Revision::Unread => None,
        };
        let (mut reason, mut is_unsure) = (String::new(), false);
        while Instant::now() < give_up {
            let sequence = match expected {
                Some(sequence) => sequence,
                None => match last_message(&self.stream, &message.subject).await {
                    Ok(found) => match found {
                        // The client has a session by now, at another node.
                        Some((payload, _)) if Record::read(&payload).is_some() => return Written::Lost,
                        found => *expected.insert(found.map_or(0, |(_, sequence)| sequence)),
                    },
                    Err(problem) => {
                        reason = problem;
                        sleep(AGAIN).await;
                        continue;
                    }
                },
            };
            match send(&self.client, message.clone().expecting(sequence)).await {
                Tried::Stored(stored) => return Written::Stored(stored.unwrap_or(sequence)),
                Tried::Refused if !is_unsure => return Written::Lost,
                // The servers may have the record by an earlier try, whose answer was lost.
                Tried::Refused => match last_message(&self.stream, &message.subject).await {
                    Ok(Some((payload, stored))) if payload == message.payload => {
                        return Written::Stored(stored);
                    }
                    Ok(_) => return Written::Lost,
                    Err(problem) => reason = problem,
                },
                Tried::Unknown(problem) => (reason, is_unsure) = (problem, true),
            }
            sleep(AGAIN).await;
        }
        Written::Unavailable(reason)
    }
}
