use braid_proto::packet::ClientId;
use braid_proto::session::SessionExpiry;
use braid_store::faults::{FailingStore, HoldingStore};
use braid_store::{Batch, Change, MemoryStore, RecoveredState, SessionId, Store, StoreError};

fn opened(store: &impl Store, number: u64) -> Batch {
    let client_id = ClientId::from(number.to_string().as_str());
    let claim = store.claim(&client_id).wait().expect("a claim is granted");
    let (session, expiry) = (SessionId::new(number), SessionExpiry::NEVER);
    [Change::Opened { session, client_id, identity: None, expiry, claim }].into_iter().collect()
}

fn sessions(store: &impl Store) -> Vec<u64> {
    let mut image = RecoveredState::default();
    store.recover(&mut image).expect("memory can be read");
    image.sessions.keys().map(|id| id.value()).collect()
}

#[test]
fn a_failing_store_fails_from_the_nth_commit_on() {
    let store = FailingStore::after(2, MemoryStore::new());
    let batches: Vec<_> = (1..=4).map(|number| opened(store.inner(), number)).collect();
    let outcomes: Vec<_> = batches.into_iter().map(|batch| store.commit(batch).wait().is_ok()).collect();
    assert_eq!(outcomes, [true, true, false, false]);
    assert_eq!(sessions(&store), [1, 2], "nothing of what failed");
    assert_eq!(sessions(store.inner()), [1, 2]);
}

#[test]
fn a_failed_store_grants_no_claim() {
    let store = FailingStore::after(0, MemoryStore::new());
    let claim = || store.claim(&"a".into()).wait();
    assert!(claim().is_ok());
    let outcome = store.commit(Batch::new()).wait();
    assert!(matches!(&outcome, Err(StoreError::Failed { .. })), "{outcome:?}");
    assert_eq!(claim().unwrap_err(), outcome.unwrap_err());
}

#[test]
fn a_holding_store_commits_released_batches_in_order() {
    let store = HoldingStore::new(MemoryStore::new());
    let mut commits: Vec<_> = (1..=3).map(|number| store.commit(opened(&store, number))).collect();
    assert_eq!((store.held(), sessions(&store)), (3, vec![]));
    assert!(commits.iter_mut().all(|commit| commit.try_take().is_none()));
    assert!(store.release());
    assert_eq!(commits[0].try_take(), Some(Ok(())));
    assert_eq!(commits[1].try_take(), None);
    assert_eq!((store.held(), sessions(&store)), (2, vec![1]));
    store.lose();
    assert_eq!(commits.pop().unwrap().wait(), Err(StoreError::Closed));
    assert_eq!(commits.pop().unwrap().wait(), Err(StoreError::Closed));
    assert!(!store.release());
    assert_eq!(sessions(store.inner()), [1]);
}

#[test]
fn a_holding_store_forwards_refusals_of_the_inner_store() {
    let store = HoldingStore::new(MemoryStore::new());
    let stale = opened(&store, 1);
    let newest = opened(&store, 1);
    let (newest, stale) = (store.commit(newest), store.commit(stale));
    while store.release() {}
    assert_eq!(newest.wait(), Ok(()));
    assert_eq!(stale.wait(), Err(StoreError::Fenced { session: SessionId::new(1) }));
}

#[test]
fn errors_name_the_remedy() {
    let lines = [
        StoreError::Fenced { session: SessionId::new(1) }.to_string(),
        StoreError::Failed { reason: "no space left".into() }.to_string(),
        StoreError::Damaged { reason: "page 3".into() }.to_string(),
    ];
    let expected = [
        "session 1 was claimed by another connection or node: end this one's part in it",
        "the store cannot write any more (no space left): stop acknowledging, mend the cause, start again",
        "the store is damaged (page 3): restore a copy or start with an empty store",
    ];
    assert_eq!(lines, expected);
}
