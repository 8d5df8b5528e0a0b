//! The life of a session in the store's words, and its return after a restart.

use std::sync::Arc;
use std::time::SystemTime;

use braid_proto::codec::Spool;
use braid_proto::packet::Will;
use braid_proto::session::SessionExpiry;
use braid_store::{Change, Now, Store, StoreError};
use tokio::time::Instant;

use super::message_loader::MessageLoader;
use super::recover::{Recovered, RecoveredSession, Recovery, recover};
use crate::auth::Authenticate;
use crate::config::BrokerConfig;
use crate::core::Core;
use crate::expiry;
use crate::memory::Memory;
use crate::session_entry::{Parked, SessionEntry, SessionKey, SessionOwner};

impl Core {
    /// A core that goes on where the last one over this store was.
    pub(crate) fn recover(
        config: BrokerConfig,
        authenticate: Box<dyn Authenticate>,
        store: Arc<dyn Store>,
        spool: Option<Arc<dyn Spool>>,
        progress: impl FnMut(Recovery),
    ) -> Result<(Self, Recovery), StoreError> {
        let now = super::now();
        let memory = Arc::new(Memory::new(&config.limits));
        let mut arrivals = MessageLoader::new(spool.as_ref(), &memory);
        let recovered = recover(&*store, now, &mut arrivals, progress)?;
        arrivals.tell();
        let recovery = recovered.recovery;
        let core = Self::new(config, authenticate, store, spool, recovered.next, memory);
        core.revive(recovered, now);
        Ok((core, recovery))
    }

    fn revive(&self, recovered: Recovered, now: Now) {
        let Recovered { sessions, retained, next: _, recovery: _ } = recovered;
        self.retained.restore(retained);
        // A clock that is behind, as on a machine that has not asked for the time yet, must not be written down: once it
        // is right, the client would have been away for as long as the clock was behind.
        let is_ahead =
            |session: &RecoveredSession| session.record.parked_at.is_some_and(|at| at > now.system);
        let is_clock_behind = sessions.iter().any(is_ahead);
        if is_clock_behind {
            self.queues.policy.distrust_clock();
        }
        for session in sessions {
            self.revive_session(session, now, is_clock_behind);
        }
        // What fell due while no broker ran comes before anybody connects.
        expiry::carry_out_due(self, Instant::from_std(now.instant));
    }

    fn revive_session(&self, recovered: RecoveredSession, now: Now, is_clock_behind: bool) {
        let RecoveredSession { record, claim, mut session, will, waiting } = recovered;
        let key = SessionKey(record.id.value());
        // Of no connection: the session is parked before anybody sees it.
        let entry =
            Arc::new(SessionEntry::new(key, record.client_id.clone(), self.registry.next_connection()));
        entry.set_durable(claim);
        entry.set_stored_will(will.is_some());
        // The store does not know the client's version. Both are allowed, and this is one copy.
        entry.set_merges(true);
        session.outbound.rest();
        self.queues.set_stored(&entry, waiting, now.instant, &self.persist);
        self.with_router(|router| {
            for (filter, subscription) in session.subscriptions.iter() {
                router.subscribe(key, filter, *subscription);
            }
        });
        if record.parked_at.is_none() && !is_clock_behind {
            // It was connected when its broker ended. Its clocks begin to run now, and must not begin anew at the next
            // start.
            let at = now.system;
            let parked = Change::Parked { session: record.id, at, expiry: record.expiry, claim };
            self.persist.commit_late([parked]);
        }
        let will_due_in = will.as_deref().map(|will| record.will_due_in(will, now.system));
        self.begin_offline(&entry, will_due_in, record.expires_in(now.system));
        let will = will.map(Arc::unwrap_or_clone);
        *entry.owner() =
            SessionOwner::Parked(Box::new(Parked { session, will, pending_retained: Vec::new() }));
        self.registry.insert(&entry);
    }

    /// Tells the store that the session has a connection; done when that is durable. A session that ends with its
    /// connection is not the store's business [MQTT-3.1.2-23], but the end of the one before is.
    pub(crate) async fn open(
        &self,
        entry: &SessionEntry,
        expiry: SessionExpiry,
        will: Option<Arc<Will>>,
    ) -> Result<(), StoreError> {
        let is_known = entry.is_durable();
        if !is_known && !expiry.outlives_connection() {
            return self.persist.ended(&entry.client_id).await; // [MQTT-3.1.2-4]
        }
        // Whoever held the session before has told the store the last of it: from here on that would be fenced.
        let claim = self.persist.claim(&entry.client_id).await?;
        let session = entry.id();
        let mut changes = vec![if is_known {
            Change::Resumed { session, expiry, claim }
        } else {
            Change::Opened { session, client_id: entry.client_id.clone(), expiry, claim }
        }];
        let has_will = will.is_some();
        match will {
            Some(will) => changes.push(Change::WillSet { session, will }),
            // Whatever became of the change that should have cleared it.
            None if is_known => changes.push(Change::WillCleared { session }),
            None => {}
        }
        self.persist.commit(changes).await.inspect_err(|error| self.persist.complain(error))?;
        entry.set_stored_will(has_will);
        entry.set_durable(claim);
        Ok(())
    }

    /// Tells the store that the connection has ended and the session has not.
    pub(crate) fn persist_parked(&self, entry: &SessionEntry, expiry: SessionExpiry, keeps_will: bool) {
        if !entry.is_durable() {
            return;
        }
        let (session, claim, at) = (entry.id(), entry.claim(), SystemTime::now());
        let parked = Change::Parked { session, at, expiry, claim };
        if keeps_will || !entry.has_stored_will() {
            return self.persist.commit_late([parked]);
        }
        entry.set_stored_will(false);
        self.persist.commit_unwatched(vec![parked, Change::WillCleared { session }]);
    }
}
