//! Persistence: the changes that the store is told of, and the order in which they are.
//!
//! Only sessions that outlive their connection are stored, and of them only the QoS 1 and 2 deliveries; retained
//! messages always are. A session that ends with its connection costs one comparison per push.
//!
//! Durable before visible: a change is committed, then others see its effect, then it is durable, then its
//! acknowledgement leaves. A commit hands over to the store, so only acknowledgements wait for a device.

mod progress;
mod recover;

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use braid_proto::message::{Delivery, Message, SharedMessage};
use braid_proto::packet::{ClientId, QoS};
use braid_proto::session::Subscriptions;
use braid_proto::topic::TopicFilter;
use braid_store::{
    Batch, Change, Claim, Commit, Completion, Lsn, Now, SessionId, Store, StoreError, StoredDelivery,
    StoredMessage, StoredSubscription,
};
use tokio::sync::watch;

use crate::clock;
use crate::lock_order::{Ordered, Rank};
use crate::queue::policy::QueuePolicy;
pub(crate) use progress::DurableProgress;
pub use recover::Recovery;
pub(crate) use recover::{MessageLoader, RecoveredSession, recover, taken};

/// Number of pending session deletes from which on completed ones are purged.
const PURGE_FROM: usize = 1024;

/// Client of the [`Store`].
pub(crate) struct Persist {
    store: Arc<dyn Store>,
    next_lsn: AtomicU64,
    /// Time of the recovery: messages that the store had then expire by the monotonic clock since.
    pub(crate) recovered_at: Now,
    session_deletes: PendingSessionDeletes,
    /// Failure after which the store refuses every change.
    failure: watch::Sender<Option<StoreError>>,
}

impl Persist {
    pub(crate) fn new(store: Arc<dyn Store>, next_lsn: Lsn) -> Self {
        Self {
            recovered_at: now(&*store),
            store,
            next_lsn: AtomicU64::new(next_lsn.value()),
            session_deletes: PendingSessionDeletes::default(),
            failure: watch::Sender::new(None),
        }
    }

    /// The present time on both clocks.
    pub(crate) fn now(&self) -> Now {
        now(&*self.store)
    }

    fn next_number(&self) -> NonZeroU64 {
        // Relaxed: the number guards no memory, and is only never given twice. Numbers begin at 1.
        NonZeroU64::new(self.next_lsn.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU64::MAX)
    }

    /// Gives no number up to `lsn` any more: a session that comes from another node may have numbers of that node in
    /// its queue.
    fn skip_to(&self, lsn: Lsn) {
        self.next_lsn.fetch_max(lsn.value().saturating_add(1), Ordering::Relaxed);
    }

    /// The sequence number under which the message is or will be stored, and whether it is new.
    fn name(&self, message: &Message) -> (NonZeroU64, bool) {
        if let Some(number) = message.lsn() {
            return (number, false);
        }
        let number = self.next_number();
        let holds = message.set_lsn(number);
        (holds, holds == number)
    }

    /// Adds to `changes` those that make the message the retained one of its topic, with its publisher if it is known.
    pub(crate) fn retain(
        &self,
        changes: &mut Vec<Change>,
        message: &SharedMessage,
        publisher: Option<Arc<str>>,
    ) {
        let lsn = Lsn::new(self.name(message).0.get());
        let message = StoredMessage::of(SharedMessage::clone(message), self.now()).with_publisher(publisher);
        changes.push(Change::Stored { lsn, message });
        changes.push(Change::Retained { message: lsn });
    }

    /// Adds to `changes` those that queue a QoS 1 or 2 delivery for the session, and sets its sequence number.
    ///
    /// The numbers ascend in the order of the calls: deliveries that are pushed in this order are recovered in it. A
    /// delivery that has a number of the log keeps it.
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
        // The number of a message that was stored before would sort the delivery too far ahead.
        let fresh = || if is_new { message } else { self.next_number() };
        let queue_lsn = delivery.queue_lsn.unwrap_or_else(fresh);
        delivery.queue_lsn = Some(queue_lsn);
        let (message, lsn) = (Lsn::new(message.get()), Lsn::new(queue_lsn.get()));
        // A fan-out refers to one message many times.
        let is_stored = match changes.last() {
            Some(Change::Stored { lsn, .. }) => *lsn == message,
            Some(Change::Queued { delivery, .. }) => delivery.message == message,
            _ => false,
        };
        if !is_stored {
            let stored = StoredMessage::of(SharedMessage::clone(&delivery.message), self.now());
            changes.push(Change::Stored { lsn: message, message: stored });
        }
        let enqueued_at = policy.stored_since(delivery, || self.now());
        let delivery = StoredDelivery::of(delivery, message, enqueued_at);
        changes.push(Change::Queued { session, lsn, delivery });
    }

    /// Commits changes, for a caller that waits for them.
    pub(crate) fn commit(&self, changes: Vec<Change>) -> Commit {
        let commit = self.hand_over(changes.into_iter().collect());
        if let Completion::Done(Err(error)) = &commit {
            self.complain(error);
        }
        commit
    }

    /// Commits changes without waiting for them, in the next group.
    pub(crate) fn commit_unwatched(&self, changes: Vec<Change>) {
        if !changes.is_empty() {
            drop(self.commit(changes));
        }
    }

    /// Commits changes with any later group: a crash may lose them.
    pub(crate) fn commit_late(&self, changes: impl IntoIterator<Item = Change>) {
        let mut batch = Batch::lazy();
        batch.extend(changes);
        if batch.is_empty() {
            return;
        }
        if let Completion::Done(Err(error)) = self.hand_over(batch) {
            self.complain(&error);
        }
    }

    fn hand_over(&self, batch: Batch) -> Commit {
        let _store = Ordered::acquire(Rank::Store, || &());
        self.store.commit(batch)
    }

    /// Records that a session of the client ends with this commit.
    pub(crate) fn note_end(&self, client_id: &ClientId, commit: Commit) {
        self.session_deletes.note(client_id, commit);
    }

    /// Waits until the end of the client's last session is durable.
    pub(crate) async fn ended(&self, client_id: &ClientId) -> Result<(), StoreError> {
        match self.session_deletes.take(client_id) {
            Some(commit) => commit.await.inspect_err(|error| self.complain(error)),
            None => Ok(()),
        }
    }

    /// Claims the client's session in the store.
    pub(crate) async fn claim(&self, client_id: &ClientId) -> Result<Claim, StoreError> {
        let claim = self.store.claim(client_id).await;
        if let Err(error) = &claim {
            self.complain(error);
        }
        claim
    }

    /// Logs an error. A session that another connection has claimed is no failure.
    pub(crate) fn complain(&self, error: &StoreError) {
        match error {
            StoreError::Fenced { session } => {
                tracing::debug!(%session, "the session has another owner by now")
            }
            StoreError::Unavailable { .. } => tracing::debug!(%error, "not stored"),
            StoreError::Failed { .. } | StoreError::Closed => self.fail(error),
            error => tracing::error!(%error, "not stored"),
        }
    }

    /// Records that the store has failed. It refuses every change from then on, and the log has one line for all.
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

    /// Reads stored messages; `None` for each that nothing refers to any more. Runs on a thread that may block.
    pub(crate) async fn read(
        &self,
        lsns: Vec<Lsn>,
        now: Now,
        loader: &mut MessageLoader,
    ) -> Result<Vec<Option<SharedMessage>>, StoreError> {
        if lsns.is_empty() {
            return Ok(Vec::new());
        }
        let (store, numbers) = (self.store.clone(), lsns.clone());
        let read = tokio::task::spawn_blocking(move || store.messages_of(&numbers))
            .await
            .map_err(|error| StoreError::Failed { reason: format!("reading it panicked: {error}").into() })?;
        let read = read.await.inspect_err(|error| self.complain(error))?;
        let live = |(lsn, stored)| Some(loader.live(lsn, stored?, now));
        Ok(lsns.into_iter().zip(read).map(live).collect())
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Failure of the store; `None` while it works.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        self.failure.borrow().clone()
    }

    /// Channel of the failure, which does not keep the store alive.
    pub(crate) fn watch_failure(&self) -> watch::Receiver<Option<StoreError>> {
        self.failure.subscribe()
    }

    /// Waits until the store fails.
    pub(crate) async fn failed(&self) {
        // The sender lives as long as `self`: waiting cannot fail.
        let _ = self.failure.subscribe().wait_for(Option::is_some).await;
    }
}

/// Commits that end sessions, by client. A CONNACK without a session waits for that of its client: after a crash the
/// session would be there again.
///
/// Most are never waited for: whenever the map has doubled, completed ones are purged.
#[derive(Debug, Default)]
struct PendingSessionDeletes(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    commits: HashMap<ClientId, Commit>,
    /// Commits that the last purge left.
    purged: usize,
}

impl PendingSessionDeletes {
    /// Records the commit that ends a session of the client. Those before are durable when it is.
    fn note(&self, client_id: &ClientId, commit: Commit) {
        if matches!(commit, Completion::Done(Ok(()))) {
            return;
        }
        let mut pending = self.lock();
        pending.commits.insert(client_id.clone(), commit);
        if pending.commits.len() >= PURGE_FROM.max(2 * pending.purged) {
            pending.commits.retain(|_, commit| commit.try_take().is_none());
            pending.purged = pending.commits.len();
        }
    }

    /// The commit that must be durable before the client is told that it has no session.
    fn take(&self, client_id: &ClientId) -> Option<Commit> {
        self.lock().commits.remove(client_id)
    }

    fn lock(&self) -> Ordered<MutexGuard<'_, Pending>> {
        // Poison is ignored: each use is one call of the map. Without an entry a client is told too early.
        Ordered::acquire(Rank::Leaf, || self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The present time on both clocks, as the store has them.
pub(crate) fn now(store: &dyn Store) -> Now {
    Now { instant: clock::now(), system: store.wall_clock() }
}

/// Sequence number of a queued delivery.
fn lsn(queue_lsn: NonZeroU64) -> Lsn {
    Lsn::new(queue_lsn.get())
}

/// Completion of the deliveries with these sequence numbers.
pub(crate) fn completed(
    session: SessionId,
    queue_lsns: impl IntoIterator<Item = NonZeroU64>,
) -> impl Iterator<Item = Change> {
    queue_lsns.into_iter().map(move |queue_lsn| Change::Completed { session, lsn: lsn(queue_lsn) })
}

/// Changes for ended subscriptions with these filters. The store knows no streams: it gets a subscription that another
/// stream has with the filter, or none. `left` are the session's subscriptions; `None` when none of them can have such
/// a filter.
pub(crate) fn ended_subscriptions(
    session: SessionId,
    left: Option<&Subscriptions>,
    filters: Vec<TopicFilter>,
) -> Vec<Change> {
    let filters: BTreeSet<_> = filters.into_iter().collect();
    let change = |filter: TopicFilter| match left.and_then(|left| left.of(&filter).last()) {
        Some(subscription) => {
            let subscription = StoredSubscription::of(subscription);
            Change::Subscribed { session, filter, subscription, since: None }
        }
        None => Change::Unsubscribed { session, filter },
    };
    filters.into_iter().map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durable_session_deletes_are_purged() {
        let deletes = PendingSessionDeletes::default();
        let mut held = Vec::new();
        for number in 0..10_000 {
            let (completer, commit) = Completion::pending();
            deletes.note(&ClientId::from(number.to_string().as_str()), commit);
            if number % 10 == 0 { held.push(completer) } else { completer.complete(Ok(())) }
        }
        assert!(deletes.lock().commits.len() < 3000);
        assert!(deletes.take(&ClientId::from("10")).is_some(), "not yet durable");
    }
}
