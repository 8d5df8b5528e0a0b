//! What the store is told, and what waits for it.
//!
//! Only sessions that outlive their connection are told, and only their QoS 1 and 2 deliveries; retained
//! messages always are. A session that ends with its connection costs one comparison per push.
//!
//! The order that holds everywhere: a change is committed, then others see its effect, then it is durable, then
//! its acknowledgement leaves. Committing only hands over, so nobody waits for a device but the acknowledgements.

mod message_loader;
mod progress;
mod recover;
mod session_deletes;
mod sessions;
mod unshelve;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use braid_proto::message::{Delivery, Message};
use braid_proto::packet::{ClientId, QoS};
use braid_proto::session::Subscriptions;
use braid_proto::topic::TopicFilter;
use braid_store::{
    Batch, Change, Claim, Commit, Completion, Lsn, Now, SessionId, Store, StoreError, StoredDelivery,
    StoredMessage, StoredSubscription,
};
use tokio::sync::watch;

use crate::queue::policy::QueuePolicy;
pub(crate) use progress::DurableProgress;
pub use recover::Recovery;
use session_deletes::PendingSessionDeletes;

/// The broker's end of its [`Store`].
pub(crate) struct Persist {
    store: Arc<dyn Store>,
    next_lsn: AtomicU64,
    /// When the store was recovered: from then on what it had expires by the clock that never goes back.
    recovered_at: Now,
    endings: PendingSessionDeletes,
    /// Why the store refuses every change from now on, once it does.
    failure: watch::Sender<Option<StoreError>>,
}

impl Persist {
    pub(crate) fn new(store: Arc<dyn Store>, next_lsn: Lsn) -> Self {
        Self {
            store,
            next_lsn: AtomicU64::new(next_lsn.value()),
            recovered_at: now(),
            endings: PendingSessionDeletes::default(),
            failure: watch::Sender::new(None),
        }
    }

    fn next_number(&self) -> NonZeroU64 {
        // Relaxed: the number guards nothing, it is only never given twice. They begin at 1.
        NonZeroU64::new(self.next_lsn.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU64::MAX)
    }

    /// The number under which the message is or will be stored, and whether it was given just now.
    fn name(&self, message: &Message) -> (NonZeroU64, bool) {
        if let Some(number) = message.stored() {
            return (number, false);
        }
        let number = self.next_number();
        let holds = message.set_stored(number);
        (holds, holds == number)
    }

    /// Adds to `changes` what makes the message the retained one of its topic.
    pub(crate) fn retain(&self, changes: &mut Vec<Change>, message: &Arc<Message>) {
        let lsn = Lsn::new(self.name(message).0.get());
        changes.push(Change::Stored { lsn, message: StoredMessage::of(Arc::clone(message), now()) });
        changes.push(Change::Retained { message: lsn });
    }

    /// Adds to `changes` what makes a QoS 1 or 2 delivery wait for the session, by the rules of `policy`, and gives it
    /// its place there.
    ///
    /// Places ascend in the order of the calls: what goes into a mailbox in this order is recovered in it.
    pub(crate) fn queue(
        &self,
        changes: &mut Vec<Change>,
        session: SessionId,
        delivery: &mut Delivery,
        policy: &QueuePolicy,
    ) {
        if delivery.qos == QoS::AtMostOnce {
            return;
        }
        let (message, is_new) = self.name(&delivery.message);
        // A message that was named before stands too far ahead.
        let place = if is_new { message } else { self.next_number() };
        delivery.stored = Some(place);
        let (message, lsn) = (Lsn::new(message.get()), Lsn::new(place.get()));
        // A fan-out refers to one message many times over.
        let is_stored = match changes.last() {
            Some(Change::Stored { lsn, .. }) => *lsn == message,
            Some(Change::Queued { delivery, .. }) => delivery.message == message,
            _ => false,
        };
        if !is_stored {
            let stored = StoredMessage::of(Arc::clone(&delivery.message), now());
            changes.push(Change::Stored { lsn: message, message: stored });
        }
        let waits_since = policy.stored_since(delivery, now);
        let delivery = StoredDelivery::of(delivery, message, waits_since);
        changes.push(Change::Queued { session, lsn, delivery });
    }

    /// Commits changes that somebody waits for.
    pub(crate) fn commit(&self, changes: Vec<Change>) -> Commit {
        let commit = self.store.commit(changes.into_iter().collect());
        if let Completion::Done(Err(error)) = &commit {
            self.complain(error);
        }
        commit
    }

    /// Commits changes that nobody waits for, but that should not be late.
    pub(crate) fn commit_unwatched(&self, changes: Vec<Change>) {
        if !changes.is_empty() {
            drop(self.commit(changes));
        }
    }

    /// Commits changes that may be late.
    pub(crate) fn commit_late(&self, changes: impl IntoIterator<Item = Change>) {
        let mut batch = Batch::lazy();
        batch.extend(changes);
        if batch.is_empty() {
            return;
        }
        if let Completion::Done(Err(error)) = self.store.commit(batch) {
            self.complain(&error);
        }
    }

    /// Notes that a session of the client ends with this commit.
    pub(crate) fn note_end(&self, client_id: &ClientId, commit: Commit) {
        self.endings.note(client_id, commit);
    }

    /// Waits until no crash brings back a session of the client that has ended.
    pub(crate) async fn ended(&self, client_id: &ClientId) -> Result<(), StoreError> {
        match self.endings.take(client_id) {
            Some(commit) => commit.await.inspect_err(|error| self.complain(error)),
            None => Ok(()),
        }
    }

    /// The right to change the client's session.
    pub(crate) async fn claim(&self, client_id: &ClientId) -> Result<Claim, StoreError> {
        let claim = self.store.claim(client_id).await;
        if let Err(error) = &claim {
            self.complain(error);
        }
        claim
    }

    /// Says what went wrong. Whoever lost a session to another connection is no failure.
    pub(crate) fn complain(&self, error: &StoreError) {
        match error {
            StoreError::Fenced { session } => {
                tracing::debug!(%session, "the session has another owner by now")
            }
            StoreError::Failed { .. } | StoreError::Closed => self.fail(error),
            error => tracing::error!(%error, "not stored"),
        }
    }

    /// The store takes nothing any more. It refuses every change: one line in the log says so, not one for each.
    pub(crate) fn fail(&self, error: &StoreError) {
        let is_first = self.failure.send_if_modified(|failure| {
            let is_first = failure.is_none();
            failure.get_or_insert_with(|| error.clone());
            is_first
        });
        if is_first {
            tracing::error!(%error, "the store has failed: nothing is acknowledged any more, the broker stops");
        } else {
            tracing::debug!(%error, "not stored");
        }
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Why the store failed; `None` while all is well.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        self.failure.borrow().clone()
    }

    /// The same for whoever asks again and again, without keeping the store.
    pub(crate) fn watch_failure(&self) -> watch::Receiver<Option<StoreError>> {
        self.failure.subscribe()
    }

    /// Waits until the store fails.
    pub(crate) async fn failed(&self) {
        // The sender lives as long as `self`: waiting cannot fail.
        let _ = self.failure.subscribe().wait_for(Option::is_some).await;
    }
}

/// This moment on both clocks.
pub(crate) fn now() -> Now {
    Now { instant: tokio::time::Instant::now().into_std(), system: SystemTime::now() }
}

/// A place in a queue in the store's words.
fn lsn(place: NonZeroU64) -> Lsn {
    Lsn::new(place.get())
}

/// The deliveries at these places are over.
pub(crate) fn completed(
    session: SessionId,
    places: impl IntoIterator<Item = NonZeroU64>,
) -> impl Iterator<Item = Change> {
    places.into_iter().map(move |place| Change::Completed { session, lsn: lsn(place) })
}

/// A subscription with each of these filters has ended: the store, which knows no streams, is told of what another
/// stream has of it, or that nothing is left. `left` are the session's subscriptions; `None` when none of them
/// can have such a filter.
pub(crate) fn ended_subscriptions(
    session: SessionId,
    left: Option<&Subscriptions>,
    filters: Vec<TopicFilter>,
) -> Vec<Change> {
    let filters: BTreeSet<_> = filters.into_iter().collect();
    let left = left.into_iter().flat_map(Subscriptions::iter).filter(|(filter, _)| filters.contains(filter));
    let left: BTreeMap<_, _> = left.collect();
    let change = |filter: &TopicFilter| match left.get(filter) {
        Some(subscription) => {
            let subscription = StoredSubscription::of(subscription);
            Change::Subscribed { session, filter: filter.clone(), subscription }
        }
        None => Change::Unsubscribed { session, filter: filter.clone() },
    };
    filters.iter().map(change).collect()
}
