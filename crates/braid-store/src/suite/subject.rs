use std::collections::BTreeSet;

use super::Fixture;
use super::example;
use crate::batch::Batch;
use crate::change::Change;
use crate::error::StoreError;
use crate::identity::{Claim, Lsn, SessionId};
use crate::image::Image;
use crate::message::{QueueEntry, StoredMessage};
use crate::recover::NextIds;
use crate::store::Store;
use crate::unread::Unread;

/// The store under trial.
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

    pub(super) fn doom(&mut self, calls: u64) {
        self.fixture.doom(calls);
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
        self.store().message(Lsn::new(message)).wait().expect("messages can be read")
    }

    pub(super) fn recover(&self) -> (Image, NextIds) {
        let mut image = Image::default();
        let next = self.store().recover(&mut image).expect("the store can be recovered");
        self.check_messages(&image);
        (image, next)
    }

    /// One pass over all messages shows those that are referred to, and nothing else than reading each of them.
    fn check_messages(&self, image: &Image) {
        let mut shown = Vec::new();
        let show = &mut |lsn, unread: Unread<'_>| {
            let (topic, length) = (unread.head().topic().clone(), unread.payload_len());
            let message = unread.read().expect("messages can be read");
            assert_eq!((&topic, length), (message.topic(), message.payload().len()));
            shown.push((lsn, message));
        };
        assert_eq!(self.store().messages(show), Ok(()));
        let queues = image.sessions.values().flat_map(|session| &session.queue);
        let queued = queues.filter_map(|(_, entry)| entry.message());
        let referred: BTreeSet<_> = queued.chain(image.retained.values().copied()).collect();
        let numbers: Vec<_> = shown.iter().map(|(lsn, _)| *lsn).collect();
        assert_eq!(numbers, referred.into_iter().collect::<Vec<_>>());
        for (lsn, message) in shown {
            assert_eq!(self.message(lsn.value()), Some(message));
        }
    }

    /// What the store holds, which must be the same after it was closed and opened again.
    pub(super) fn image(&mut self) -> Image {
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

    /// The queue of a session as (lsn, packet id, letter of its phase).
    pub(super) fn queue(&mut self, session: u64) -> Vec<(u64, u16, char)> {
        let image = self.image();
        let queue = &image.sessions[&SessionId::new(session)].queue;
        let phase = |entry: &QueueEntry| match entry {
            QueueEntry::Waiting(_) => (0, 'w'),
            QueueEntry::Sent(id, _) => (id.value(), 's'),
            QueueEntry::Released(id) => (id.value(), 'r'),
        };
        queue.iter().map(|(lsn, entry)| (lsn.value(), phase(entry).0, phase(entry).1)).collect()
    }
}

/// Claims are the store's own numbers: nothing else compares them.
pub(super) fn without_claims(image: &Image) -> Image {
    let mut image = image.clone();
    for session in image.sessions.values_mut() {
        session.claim = Claim::new(0);
    }
    image
}
