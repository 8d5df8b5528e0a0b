//! Naive model of a store: lists that are searched, without counts and indexes. One store value only; the cases test
//! several.

use std::collections::BTreeMap;

use super::subject::without_claims;
use crate::change::Change;
use crate::error::StoreError;
use crate::ids::{Claim, Lsn};
use crate::message::{QueueEntry, StoredMessage};
use crate::recovery::{Recover, RecoveredSession, RecoveredState};
use crate::session::SessionRecord;

#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    /// With queues in the order of a recovery.
    pub(super) state: RecoveredState,
    pub(super) messages: BTreeMap<Lsn, StoredMessage>,
    pub(super) highest_session: u64,
    pub(super) highest_lsn: u64,
}

impl Model {
    pub(super) fn claimed(&mut self, client: &str, claim: Claim) {
        for session in self.state.sessions.values_mut() {
            if session.record.client_id.as_str() == client {
                session.claim = claim;
            }
        }
    }

    /// Adopts the claims that a recovery granted.
    pub(super) fn recovered(&mut self, state: &RecoveredState) {
        assert_eq!(without_claims(state), without_claims(&self.state));
        for (id, session) in &mut self.state.sessions {
            session.claim = state.sessions[id].claim;
        }
    }

    pub(super) fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        for (at, change) in changes.iter().enumerate() {
            let before = &changes[..at];
            let stores = |lsn| before.iter().any(|c| matches!(c, Change::Stored { lsn: s, .. } if *s == lsn));
            if let Some(message) = change.message().filter(|message| !stores(*message)) {
                return Err(StoreError::NotStored { message });
            }
            let (Some(session), Some(claim)) = (change.session(), change.claim()) else { continue };
            let own = before.iter().any(|c| {
                c.session() == Some(session) && matches!(c, Change::Opened { .. } | Change::Resumed { .. })
            });
            let newer = |other: &RecoveredSession| match change {
                _ if other.record.id == session => other.claim > claim,
                Change::Opened { client_id, .. } => {
                    other.record.client_id == *client_id && other.claim > claim
                }
                _ => false,
            };
            if !own && self.state.sessions.values().any(newer) {
                return Err(StoreError::Fenced { session });
            }
        }
        for change in changes {
            self.apply(change);
        }
        let state = &self.state;
        self.messages.retain(|lsn, _| {
            let mut queued = state.sessions.values().flat_map(|session| &session.queue);
            queued.any(|(_, entry)| entry.message() == Some(*lsn))
                || state.retained.values().any(|r| r == lsn)
        });
        Ok(())
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Opened { session, client_id, identity, expiry, claim } => {
                self.highest_session = self.highest_session.max(session.value());
                self.state.sessions.retain(|id, old| id != session && old.record.client_id != *client_id);
                let (id, client_id, expiry) = (*session, client_id.clone(), *expiry);
                let identity = identity.clone();
                self.state
                    .session(SessionRecord { id, client_id, identity, expiry, parked_at: None }, *claim);
            }
            Change::Closed { session, .. } => {
                self.state.sessions.remove(session);
            }
            Change::Stored { lsn, message } => {
                self.highest_lsn = self.highest_lsn.max(lsn.value());
                self.messages.entry(*lsn).or_insert_with(|| message.clone());
            }
            Change::Retained { message } => {
                let topic = self.messages[message].topic().clone();
                self.state.retained.insert(topic, *message);
            }
            Change::RetainCleared { topic } => {
                self.state.retained.remove(topic);
            }
            _ => self.edit(change),
        }
    }

    fn edit(&mut self, change: &Change) {
        if let Change::Queued { lsn, .. } = change {
            self.highest_lsn = self.highest_lsn.max(lsn.value());
        }
        let Some(session) = change.session().and_then(|id| self.state.sessions.get_mut(&id)) else { return };
        let RecoveredSession { record, claim: current, subscriptions, will: current_will, received, queue } =
            session;
        match change {
            Change::Resumed { identity, expiry, claim, .. } => {
                record.identity.clone_from(identity);
                (record.expiry, record.parked_at, *current) = (*expiry, None, *claim);
            }
            Change::Parked { at, expiry, .. } => (record.expiry, record.parked_at) = (*expiry, Some(*at)),
            Change::WillSet { will, .. } => *current_will = Some(will.clone()),
            Change::WillCleared { .. } => *current_will = None,
            Change::Subscribed { filter, subscription, .. } => {
                subscriptions.insert(filter.clone(), *subscription);
            }
            Change::Unsubscribed { filter, .. } => subscriptions.retain(|known, _| known != filter),
            Change::Received { packet_id, exchanges, .. } => {
                received.insert(*packet_id, *exchanges);
            }
            Change::ReceivedReleased { packet_id, .. } => received.retain(|known, _| known != packet_id),
            Change::Completed { lsn, .. } => queue.retain(|(known, _)| known != lsn),
            Change::Queued { lsn, delivery, .. } => {
                queue.retain(|(known, _)| known != lsn);
                queue.push((*lsn, QueueEntry::Waiting(delivery.clone())));
                let (mut waiting, mut sent) = split(queue);
                waiting.sort_by_key(|(lsn, _)| *lsn);
                sent.append(&mut waiting);
                *queue = sent;
            }
            Change::Sent { lsn, packet_id, .. } => step(queue, *lsn, |entry| match entry {
                QueueEntry::Waiting(delivery) | QueueEntry::Sent(_, delivery) => {
                    Some(QueueEntry::Sent(*packet_id, delivery.clone()))
                }
                QueueEntry::Released(_) => None,
            }),
            Change::Released { lsn, packet_id, .. } => {
                step(queue, *lsn, |_| Some(QueueEntry::Released(*packet_id)));
            }
            _ => unreachable!("{change:?} is not inside a session"),
        }
    }
}

type Queue = Vec<(Lsn, QueueEntry)>;

fn split(queue: &mut Queue) -> (Queue, Queue) {
    queue.drain(..).partition(|(_, entry)| matches!(entry, QueueEntry::Waiting(_)))
}

/// Moves an entry that was sent or released behind all others in flight.
fn step(queue: &mut Queue, lsn: Lsn, next: impl Fn(&QueueEntry) -> Option<QueueEntry>) {
    let Some(at) = queue.iter().position(|(known, _)| *known == lsn) else { return };
    let Some(entry) = next(&queue[at].1) else { return };
    queue.remove(at);
    let (waiting, mut sent) = split(queue);
    sent.push((lsn, entry));
    sent.extend(waiting);
    *queue = sent;
}
