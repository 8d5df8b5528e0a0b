//! Sessions that are at other nodes, or move there.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, SystemTime};

use braid_auth::identity::Identity;
use braid_proto::packet::{ClientId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Subscription, Subscriptions};
use braid_router::{Match, Overlap, route};
use braid_store::{SessionId, StoreError, StoredDelivery};
use tokio::time::{Instant, timeout_at};

use super::{CLAIM_TIMEOUT, SessionManager, busy, take_by};
use crate::auth::shortened;
use crate::cluster::{RemoteSession, ReplayLimits, Replayed};
use crate::persist::{self, MessageLoader};
use crate::queue::session_queue::Signal;
use crate::queue::stored::StoredEntry;
use crate::queue::usage::QueueLimits;
use crate::registry::{SessionEntry, SessionOwner};
use crate::timers::{ExpiredTimer, TimerKind};

/// Session that was taken over from another node, or from none.
struct TakenSession {
    entry: Arc<SessionEntry>,
    subscriptions: Subscriptions,
    /// Time at which its client lost its connection.
    parked_at: SystemTime,
}

impl SessionManager {
    /// The session of a client, which is taken over from another node if this one does not have it. The caller has the
    /// turn of the client. `permits`: whether it may have the session of an identity.
    ///
    /// # Errors
    /// The Reason Code for the CONNACK.
    pub(super) async fn find(
        &self,
        client_id: &ClientId,
        permits: impl Fn(Option<&Identity>) -> bool,
    ) -> Result<Option<Arc<SessionEntry>>, ReasonCode> {
        if let Some(entry) = self.registry.find(client_id) {
            return Ok(Some(entry));
        }
        let Some(found) = self.find_elsewhere(client_id).await? else { return Ok(None) };
        let identity = found.identity.as_deref().and_then(|text| Identity::decode(text).ok());
        if !permits(identity.as_ref()) {
            return Err(ReasonCode::NotAuthorized);
        }
        let Some(TakenSession { entry, subscriptions, .. }) = self.take_from_elsewhere(found).await? else {
            return Ok(None);
        };
        if let Err(error) = self.replay(&entry, &subscriptions).await {
            self.lose(entry.id(), ReasonCode::ServerBusy);
            self.routing.cluster().abandon(entry.id());
            return Err(unavailable(client_id, &error));
        }
        Ok(Some(entry))
    }

    /// The session of a client that this node does not have.
    pub(super) async fn find_elsewhere(
        &self,
        client_id: &ClientId,
    ) -> Result<Option<RemoteSession>, ReasonCode> {
        let Some(search) = self.routing.cluster().find(client_id) else { return Ok(None) };
        // Until then the record of a session that ends here says that this node has it.
        self.ended(client_id).await?;
        search.await.map_err(|error| unavailable(client_id, &error))
    }

    /// Takes a session over from another node, and carries out its timers that are due: it may have ended with them.
    async fn take_from_elsewhere(&self, found: RemoteSession) -> Result<Option<TakenSession>, ReasonCode> {
        let (id, now) = (self.registry.next_session(), self.persist.now());
        let taken = async {
            let Some(recovered) = self.routing.cluster().take(found, id).await? else { return Ok(None) };
            let mut loader = MessageLoader::new(self.spool.as_ref(), &self.memory);
            let retained = self.dispatcher.retained();
            let taken = persist::taken(&self.persist, retained, recovered, now, &mut loader).await;
            taken.map(Some).inspect_err(|_| self.routing.cluster().abandon(id))
        };
        let taken: Result<_, StoreError> = taken.await;
        let taken = taken.inspect_err(|error| self.persist.complain(error));
        let Some(session) = taken.map_err(|_| ReasonCode::ServerUnavailable)? else { return Ok(None) };
        let subscriptions = session.session.subscriptions.clone();
        let will_due_in = session.will.as_deref().map(|will| session.record.will_due_in(will, now.system));
        let ends_in = session.record.expires_in(now.system);
        // A session whose node died had a connection until then.
        let parked_at = session.record.parked_at.unwrap_or(now.system);
        let entry = self.restore_session(session, now);
        let is_due = |after: Option<Duration>| after == Some(Duration::ZERO);
        let kind = if is_due(ends_in) { TimerKind::SessionEnd } else { TimerKind::Will };
        if is_due(ends_in) || is_due(will_due_in) {
            let disconnect_epoch = entry.disconnect_epoch();
            let timer = ExpiredTimer { kind, disconnect_epoch, entry: Arc::downgrade(&entry) };
            if self.handle_due(&timer).is_some() {
                return Ok(None);
            }
        }
        Ok(Some(TakenSession { entry, subscriptions, parked_at }))
    }

    /// Queues the messages of the log that a session of another node had not got. Messages that came since it is routed
    /// to are behind them.
    async fn replay(
        &self,
        entry: &Arc<SessionEntry>,
        subscriptions: &Subscriptions,
    ) -> Result<(), StoreError> {
        let policy = &self.queues.policy;
        let QueueLimits { messages, bytes } = policy.limits;
        let limits = ReplayLimits { messages, bytes };
        let replayed = self.routing.cluster().replay(entry.id(), limits).await?;
        let now = self.persist.now();
        let mut loader = MessageLoader::new(self.spool.as_ref(), &self.memory);
        let (mut changes, mut waiting, mut deliveries) = (Vec::new(), Vec::new(), Vec::new());
        for Replayed { lsn, message, publisher, filters } in replayed {
            let message = loader.live(lsn, message, now);
            let priority = self.routing.priority_of(&message.topic); // [BQ-52]
            let matches = filters.iter().flat_map(|filter| subscriptions.of(filter)).map(|subscription| {
                let priority = subscription.priority.or(priority);
                Match { key: entry.key, subscription: Subscription { priority, ..*subscription } }
            });
            let publisher = publisher.filter(|client| *client == entry.client_id).map(|_| entry.key);
            route(&message, publisher, &matches.collect::<Vec<_>>(), Overlap::Merge, &mut deliveries);
            for mut delivery in deliveries.drain(..) {
                delivery.queue_lsn = message.lsn();
                self.persist.queue(&mut changes, entry.id(), &mut delivery, policy);
                if delivery.qos > QoS::AtMostOnce {
                    let enqueued_at = policy.stored_since(&delivery, || now);
                    let stored = StoredDelivery::of(&delivery, lsn, enqueued_at);
                    let mut one = StoredEntry::new(lsn, stored, now.system);
                    one.set_message(message.clone());
                    waiting.push(one);
                }
            }
        }
        loader.log_unspooled();
        self.persist.commit(changes).await?;
        self.queues.set_stored(entry, waiting, now.instant, &self.persist);
        Ok(())
    }

    /// Releases the session of a client for another node, when the store has all of it. False: it is not here.
    ///
    /// # Errors
    /// The connection does not release it, or the store does not take it.
    pub(crate) async fn give_away(&self, client_id: &ClientId) -> Result<bool, ReasonCode> {
        let deadline = Instant::now() + CLAIM_TIMEOUT;
        let Ok(_turn) = timeout_at(deadline, self.registry.claim_turn(client_id)).await else {
            return Err(busy(client_id));
        };
        let Some(entry) = self.registry.find(client_id) else {
            // Its end may be on the way to the store.
            return self.ended(client_id).await.map(|()| false);
        };
        let stand_in = self.registry.next_connection();
        let Some(released) = take_by(&entry, Signal::TakeOver, stand_in, deadline).await? else {
            // The end of a session that does not outlive its connection.
            return self.ended(client_id).await.map(|()| true);
        };
        let commit = self.begin_offline(&entry, &released, self.note_disconnected(&entry));
        *entry.owner() = SessionOwner::Parked(Box::new(released));
        if let Some(commit) = commit {
            commit.await.map_err(|_| ReasonCode::ServerUnavailable)?;
        }
        Ok(true)
    }

    /// Waits until the store has the end of a session of a client, if one is on the way and no other node has the
    /// session.
    async fn ended(&self, client_id: &ClientId) -> Result<(), ReasonCode> {
        match self.persist.ended(client_id).await {
            Ok(()) | Err(StoreError::Fenced { .. }) => Ok(()),
            Err(_) => Err(ReasonCode::ServerUnavailable),
        }
    }

    /// Takes the session of a client without a connection, carries out its timers that are due, and gives it back.
    /// False: it has ended with that, or is not as it was `found`.
    ///
    /// # Errors
    /// The session cannot be taken, or the store does not take it back.
    pub(crate) async fn adopt(&self, client_id: &ClientId, found: RemoteSession) -> Result<bool, ReasonCode> {
        let _turn = self.registry.claim_turn(client_id).await;
        // A session of this node has a connection, or goes back by itself. One that is lost does neither.
        if let Some(entry) = self.registry.find(client_id) {
            return Ok(!entry.is_lost());
        }
        self.ended(client_id).await?;
        let Some(TakenSession { entry, parked_at, .. }) = self.take_from_elsewhere(found).await? else {
            return self.ended(client_id).await.map(|()| false);
        };
        let commit = match &*entry.owner() {
            SessionOwner::Parked(released) => self.begin_offline(&entry, released, parked_at),
            SessionOwner::Connection(..) | SessionOwner::Ended => None,
        };
        let stored = match commit {
            Some(commit) => commit.await,
            None => Ok(()),
        };
        // Before the turn ends: its messages are not queued here, so that a claim must take it from the store.
        self.forget_parked(&entry);
        match &stored {
            Ok(()) => self.routing.cluster().forget(entry.id()),
            Err(_) => self.routing.cluster().abandon(entry.id()),
        }
        stored.map(|()| true).map_err(|_| ReasonCode::ServerUnavailable)
    }

    /// Forgets a session without a connection, which the store has whole. False: it has a connection.
    pub(crate) async fn forget(&self, id: SessionId) -> bool {
        let Some(entry) = self.registry.find_by_id(id) else { return true };
        let _turn = self.registry.claim_turn(&entry.client_id).await;
        self.forget_parked(&entry)
    }

    /// Forgets a session of whose client the caller has the turn. False: it has a connection.
    fn forget_parked(&self, entry: &Arc<SessionEntry>) -> bool {
        let parked = {
            let mut owner = entry.owner();
            match std::mem::replace(&mut *owner, SessionOwner::Ended) {
                SessionOwner::Parked(parked) => parked,
                SessionOwner::Ended => return true,
                connected @ SessionOwner::Connection(..) => {
                    *owner = connected;
                    return false;
                }
            }
        };
        self.discard(entry, &parked.session);
        true
    }

    /// Ends the part of this node in a session that another node has by now.
    pub(crate) fn lose(&self, id: SessionId, reason: ReasonCode) {
        let Some(entry) = self.registry.find_by_id(id) else { return };
        entry.set_lost();
        let parked = {
            let mut owner = entry.owner();
            match std::mem::replace(&mut *owner, SessionOwner::Ended) {
                SessionOwner::Parked(parked) => parked,
                other => {
                    *owner = other;
                    drop(owner);
                    let waker = entry.queue.signal(Signal::Close(reason));
                    return waker.into_iter().for_each(Waker::wake);
                }
            }
        };
        self.discard(&entry, &parked.session);
    }
}

/// Logs a session that cannot be looked for; returns the Reason Code of its CONNACK.
fn unavailable(client_id: &ClientId, error: &StoreError) -> ReasonCode {
    let client = shortened(client_id.as_str());
    tracing::warn!(client, %error, "refused: its session cannot be looked for");
    ReasonCode::ServerUnavailable
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use braid_proto::connection::{Cause, End};
    use braid_proto::packet::Will;
    use braid_proto::session::SessionExpiry;
    use braid_proto::topic::TopicName;
    use braid_store::Completion;

    use super::*;
    use crate::auth::ClientAccess;
    use crate::config::BrokerConfig;
    use crate::core::Core;

    fn delayed(delay: u32) -> Will {
        Will {
            topic: TopicName::parse("will").expect("a topic"),
            payload: "x".into(),
            qos: QoS::AtMostOnce,
            retain: true,
            delay,
            properties: None,
        }
    }

    // Until then other nodes find the record of the session, and cannot claim it: its last write is on the way.
    #[tokio::test]
    async fn a_session_is_released_when_its_end_is_durable() {
        let core = Core::in_memory(BrokerConfig::default());
        let client_id = ClientId::from("client");
        assert_eq!(core.sessions.give_away(&client_id).await, Ok(false), "never here");
        let (completer, commit) = Completion::pending();
        core.persist.note_end(&client_id, commit);
        let mut release = pin!(core.sessions.give_away(&client_id));
        poll_fn(|context| {
            assert!(release.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        completer.complete(Ok(()));
        assert_eq!(release.await, Ok(false));
    }

    // Another node may have published it already, and the client may be there.
    #[tokio::test]
    async fn a_will_is_left_to_the_node_that_claims_the_session_where_that_may_be_another() {
        let core = Core::in_memory(BrokerConfig::default());
        for (number, owns) in [(0, false), (1, true)] {
            let connection = core.sessions.registry.next_connection();
            let (client_id, access) = (ClientId::from(if owns { "a" } else { "b" }), ClientAccess::default());
            let claim = core.sessions.claim(&client_id, &access, false, connection).await.expect("a session");
            let end = End { cause: Cause::Lost, session: Some(claim.session), will: Some(delayed(0)) };
            core.sessions.release(&claim.entry, connection, end, VecDeque::new(), Vec::new(), owns);
            assert_eq!(core.retained.len(), number, "{owns}");
            assert_eq!(claim.entry.is_lost(), !owns);
            assert!(core.sessions.registry.find(&client_id).is_none());
        }
    }

    // As in a cluster whose servers do not take the record of the session.
    #[tokio::test(start_paused = true)]
    async fn a_session_that_is_here_still_ends_by_its_time_and_so_does_the_delay_of_its_will() {
        let core = Core::in_memory(BrokerConfig::default());
        let (client_id, access) = (ClientId::from("client"), ClientAccess::default());
        for (waits, is_present, is_published) in [
            (&[0, 9][..], true, false),
            (&[0, 10], true, true),
            (&[0, 60], false, true),
            // Claimed in between by a connection that is not accepted.
            (&[0, 5, 5], true, true),
            (&[0, 30, 30], false, true),
        ] {
            let mut found = None;
            for wait in waits {
                tokio::time::advance(Duration::from_secs(*wait)).await;
                let (connection, is_first) = (core.sessions.registry.next_connection(), *wait == 0);
                let claim = core.sessions.claim(&client_id, &access, is_first, connection).await;
                let mut claim = claim.expect("a session");
                found = Some((claim.present, claim.will.is_some()));
                claim.session.expiry = SessionExpiry::from_secs(60);
                let will = if is_first { Some(delayed(10)) } else { claim.will };
                let end = End { cause: Cause::Lost, session: Some(claim.session), will };
                core.sessions.release(&claim.entry, connection, end, VecDeque::new(), Vec::new(), true);
                if is_first {
                    let mut retaining = core.retained.change(&core.persist);
                    retaining.remove(&delayed(10).topic);
                    drop(retaining.commit());
                }
            }
            assert_eq!(found, Some((is_present, is_present && !is_published)), "{waits:?}");
            assert_eq!(core.retained.len(), usize::from(is_published), "{waits:?}");
        }
    }
}
