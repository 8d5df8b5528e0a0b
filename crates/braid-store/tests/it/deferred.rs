//! Conformance suite on a store that answers from another thread: no case expects an answer at once.

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use braid_proto::packet::ClientId;
use braid_store::suite::{self, Fixture};
use braid_store::{
    Batch, Claim, Commit, Completer, Completion, LazyMessage, Lsn, MemoryStore, NextIds, Recover, Store,
    StoreError, StoredMessage,
};

enum Request {
    Commit(Batch, Completer<()>),
    Claim(ClientId, Completer<Claim>),
    Messages(Vec<Lsn>, Completer<Vec<Option<StoredMessage>>>),
}

/// One writer thread over a store in memory.
struct Deferred {
    inner: Arc<MemoryStore>,
    requests: Option<mpsc::Sender<Request>>,
    writer: Option<JoinHandle<()>>,
}

impl Deferred {
    fn over(inner: MemoryStore) -> Self {
        let inner = Arc::new(inner);
        let (requests, queue) = mpsc::channel();
        let store = Arc::clone(&inner);
        let writer = thread::spawn(move || {
            for request in queue {
                match request {
                    Request::Commit(batch, completer) => completer.complete(store.commit(batch).wait()),
                    Request::Claim(client, completer) => completer.complete(store.claim(&client).wait()),
                    Request::Messages(lsns, completer) => {
                        completer.complete(store.messages_of(&lsns).wait());
                    }
                }
            }
        });
        Self { inner, requests: Some(requests), writer: Some(writer) }
    }

    fn request<T>(&self, request: impl FnOnce(Completer<T>) -> Request) -> Completion<T> {
        let (completer, completion) = Completion::pending();
        self.requests
            .as_ref()
            .and_then(|requests| requests.send(request(completer)).ok())
            .expect("it is open");
        completion
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(writer) = self.writer.take() {
            writer.join().expect("the writer ends with its queue");
        }
    }
}

impl Store for Deferred {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        self.inner.recover(into)
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        self.request(|completer| Request::Claim(client_id.clone(), completer))
    }

    fn commit(&self, batch: Batch) -> Commit {
        self.request(|completer| Request::Commit(batch, completer))
    }

    fn messages_of(&self, lsns: &[Lsn]) -> Completion<Vec<Option<StoredMessage>>> {
        self.request(|completer| Request::Messages(lsns.to_vec(), completer))
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError> {
        self.inner.messages(show)
    }
}

#[derive(Default)]
struct Behind(MemoryStore);

impl Fixture for Behind {
    fn open(&mut self) -> Box<dyn Store> {
        self.0 = MemoryStore::new();
        Box::new(Deferred::over(self.0.reopen()))
    }

    fn reopen(&mut self, store: Box<dyn Store>) -> Box<dyn Store> {
        drop(store);
        Box::new(Deferred::over(self.0.reopen()))
    }
}

#[test]
fn a_store_that_answers_later_passes_the_suite() {
    suite::run(&mut Behind::default(), 5);
}
