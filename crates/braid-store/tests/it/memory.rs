use std::sync::Arc;

use braid_proto::message::{Message, SharedMessage};
use braid_proto::packet::{ClientId, QoS};
use braid_proto::session::SessionExpiry;
use braid_proto::topic::TopicName;
use braid_store::suite::{self, Fixture};
use braid_store::{Change, Commit, Completion, Lsn, MemoryStore, NextIds, RecoveredState, SessionId, Store};
use braid_store::{Now, StoredMessage};
use bytes::Bytes;

#[derive(Default)]
struct InMemory(MemoryStore);

impl Fixture for InMemory {
    fn open(&mut self) -> Box<dyn Store> {
        self.0 = MemoryStore::new();
        Box::new(self.0.reopen())
    }

    fn reopen(&mut self, _closed: Box<dyn Store>) -> Box<dyn Store> {
        Box::new(self.0.reopen())
    }

    fn beside(&mut self) -> Option<Box<dyn Store>> {
        Some(Box::new(self.0.reopen()))
    }
}

#[test]
fn memory_passes_the_suite() {
    suite::run(&mut InMemory::default(), 0);
}

#[test]
fn memory_agrees_with_the_model() {
    for seed in 0..300 {
        suite::run_random(&mut InMemory::default(), seed);
    }
}

#[test]
fn memory_loses_nothing() {
    for seed in 0..100 {
        suite::run_crashes(&mut InMemory::default(), seed);
    }
}

#[test]
fn a_commit_in_memory_is_done_when_it_returns() {
    let commit: Commit = MemoryStore::new().commit([].into_iter().collect());
    assert!(matches!(commit, Completion::Done(Ok(()))));
}

#[test]
fn an_empty_store_counts_from_one() {
    assert_eq!(MemoryStore::new().recover(&mut RecoveredState::default()), Ok(NextIds::FIRST));
    assert_eq!((NextIds::FIRST.session.value(), NextIds::FIRST.lsn.value()), (1, 1));
}

#[test]
fn a_message_is_shared_with_the_live_one() {
    let store = MemoryStore::new();
    let topic = TopicName::parse("t").unwrap();
    let live = SharedMessage::new(Message::new(topic, Bytes::from_static(b"payload"), QoS::AtMostOnce, true));
    let now = Now { instant: std::time::Instant::now(), system: std::time::SystemTime::UNIX_EPOCH };
    let lsn = Lsn::new(1);
    let message = StoredMessage::of(SharedMessage::clone(&live), now);
    let changes = [Change::Stored { lsn, message }, Change::Retained { message: lsn }];
    store.commit(changes.into_iter().collect()).wait().unwrap();
    assert_eq!(SharedMessage::count(&live), 2);
    let again = store.messages_of(&[lsn]).wait().unwrap().remove(0).unwrap().live(now);
    assert!(SharedMessage::ptr_eq(&again, &live));
}

#[test]
fn a_store_behind_a_pointer_is_a_store() {
    fn open(store: &impl Store) {
        let client_id = ClientId::from("a");
        let claim = store.claim(&client_id).wait().unwrap();
        let (session, expiry) = (SessionId::new(4), SessionExpiry::NEVER);
        let opened = Change::Opened { session, client_id, identity: None, expiry, claim };
        store.commit([opened].into_iter().collect()).wait().unwrap();
    }
    let store = Arc::new(MemoryStore::new());
    let shared: Arc<dyn Store> = Arc::<MemoryStore>::clone(&store);
    open(&shared);
    let mut image = RecoveredState::default();
    let next = store.recover(&mut image).unwrap();
    assert_eq!(next.session, SessionId::new(5));
    assert_eq!(image.sessions.len(), 1);
    assert_eq!(store.messages_of(&[Lsn::new(1)]).wait(), Ok(vec![None]));
}
