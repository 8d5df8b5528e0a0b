//! Access to the store under test.

use std::collections::BTreeSet;

use super::Fixture;
use super::example;
use crate::change::{Batch, Change};
use crate::error::StoreError;
use crate::ids::{Claim, Lsn, NextIds, SessionId};
use crate::message::{LazyMessage, QueueEntry, StoredMessage};
use crate::recovery::RecoveredState;
use crate::store::Store;

/// The store under test.
pub(super) struct Subject<'a> {
    fixture: &'a mut dyn Fixture,
    /// `None` only while it is reopened.
    store: Option<Box<dyn Store>>,
}

impl<'a> Subject<'a> {
    pub(super) fn new(fixture: &'a mut dyn Fixture) -> Self {
        let store = Some(fixture.open());
        Self { fixture, store }
    }

    pub(super) fn store(&self) -> &dyn Store {
        self.store.as_deref().expect("a store is open")
    }

    pub(super) fn reopen(&mut self) {
        let store = self.store.take().expect("a store is open");
        self.store = Some(self.fixture.reopen(store));
    }

    pub(super) fn crash(&mut self, seed: u64) {
        let store = self.store.take().expect("a store is open");
        self.store = Some(self.fixture.crash(store, seed));
    }

    pub(super) fn fail_after(&mut self, calls: u64) {
        self.fixture.fail_after(calls);
    }

    pub(super) fn is_asynchronous(&self) -> bool {
        self.fixture.is_asynchronous()
    }

    pub(super) fn beside(&mut self) -> Option<Box<dyn Store>> {
        self.fixture.beside()
    }

    pub(super) fn try_commit(&self, changes: &[Change]) -> Result<(), StoreError> {
        self.store().commit(changes.iter().cloned().collect()).wait()
    }

    pub(super) fn commit(&self, changes: &[Change]) {
        assert_eq!(self.try_commit(changes), Ok(()), "{changes:?}");
    }

    pub(super) fn commit_lazily(&self, changes: &[Change]) {
        let mut batch = Batch::lazy();
        batch.extend(changes.iter().cloned());
        assert_eq!(self.store().commit(batch).wait(), Ok(()), "{changes:?}");
    }

    pub(super) fn claim(&self, client: &str) -> Claim {
        self.store().claim(&client.into()).wait().expect("a claim is granted")
    }

    /// Opens a session that never expires.
    pub(super) fn open(&self, session: u64, client: &str) -> Claim {
        let claim = self.claim(client);
        self.commit(&[example::opened(session, client, claim)]);
        claim
    }

    pub(super) fn message(&self, message: u64) -> Option<StoredMessage> {
        self.messages_of(&[message]).remove(0)
    }

    /// Reads messages at once; one answer for each number.
    pub(super) fn messages_of(&self, messages: &[u64]) -> Vec<Option<StoredMessage>> {
        let lsns: Vec<_> = messages.iter().copied().map(Lsn::new).collect();
        let read = self.store().messages_of(&lsns).wait().expect("messages can be read");
        assert_eq!(read.len(), lsns.len(), "one answer for each number");
        read
    }

    pub(super) fn recover(&self) -> (RecoveredState, NextIds) {
        let mut state = RecoveredState::default();
        let next = self.store().recover(&mut state).expect("the store can be recovered");
        self.check_messages(&state);
        (state, next)
    }

    /// Checks that one pass over all messages shows the referenced ones, equal to reading each of them.
    fn check_messages(&self, state: &RecoveredState) {
        let mut shown = Vec::new();
        let show = &mut |lsn, unread: LazyMessage<'_>| {
            let (topic, length) = (unread.head().topic().clone(), unread.payload_len());
            let message = unread.read().expect("messages can be read");
            assert_eq!((&topic, length), (message.topic(), message.payload().len()));
            shown.push((lsn, message));
        };
        assert_eq!(self.store().messages(show), Ok(()));
        let queues = state.sessions.values().flat_map(|session| &session.queue);
        let queued = queues.filter_map(|(_, entry)| entry.message());
        let referred: BTreeSet<_> = queued.chain(state.retained.values().copied()).collect();
        let numbers: Vec<_> = shown.iter().map(|(lsn, _)| *lsn).collect();
        assert_eq!(numbers, referred.into_iter().collect::<Vec<_>>());
        for (lsn, message) in shown {
            assert_eq!(self.message(lsn.value()), Some(message));
        }
    }

    /// Content of the store, which must be the same after it was closed and opened again.
    pub(super) fn state(&mut self) -> RecoveredState {
        let (before, next_before) = self.recover();
        self.reopen();
        let (after, next_after) = self.recover();
        assert_eq!(without_claims(&after), without_claims(&before), "after reopening");
        assert!(next_after.lsn >= next_before.lsn && next_after.session >= next_before.session);
        for (id, session) in &before.sessions {
            assert!(after.sessions[id].claim >= session.claim, "claims never go back");
        }
        after
    }

    /// A session's queue as (lsn, packet id, first letter of the state).
    pub(super) fn queue(&mut self, session: u64) -> Vec<(u64, u16, char)> {
        let state = self.state();
        let queue = &state.sessions[&SessionId::new(session)].queue;
        let phase = |entry: &QueueEntry| match entry {
            QueueEntry::Waiting(_) => (0, 'w'),
            QueueEntry::Sent(id, _) => (id.value(), 's'),
            QueueEntry::Released(id) => (id.value(), 'r'),
        };
        queue.iter().map(|(lsn, entry)| (lsn.value(), phase(entry).0, phase(entry).1)).collect()
    }
}

/// The state without claims, which may differ between stores.
pub(super) fn without_claims(state: &RecoveredState) -> RecoveredState {
    let mut state = state.clone();
    for session in state.sessions.values_mut() {
        session.claim = Claim::new(0);
    }
    state
}
