//! Sessions of other nodes: found, released by their node, and claimed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::jetstream::stream::Stream;
use async_nats::{Client, Request};
use braid_broker::cluster::RemoteSession;
use braid_proto::packet::{ClientId, PacketId};
use braid_store::{RecoveredSession, SessionId, StoreError};
use tokio::time::{Instant, sleep};

use crate::calls::{Call, Reply};
use crate::exchanges::{Exchanges, Last};
use crate::layout::LEASE;
use crate::log_writer::Command;
use crate::name::Name;
use crate::nodes::{NodeRecord, RENEW};
use crate::publish::{Outgoing, Tried, last_message, next_message, send};
use crate::record::Record;
use crate::sessions::OwnSession;
use crate::store::{NodeState, SessionEvent};

/// Time for a node to release a session.
const RELEASE: Duration = Duration::from_secs(2);

/// Time for which a node that NATS knows no connection of has not renewed its lease, after which it is gone: a live one
/// renews within, and is only hidden, as by a route between servers that is made anew.
const GONE: Duration = RENEW.saturating_add(Duration::from_millis(1500));

/// Time between two calls to a node that does not release the session.
const CALL_AGAIN: Duration = Duration::from_millis(300);

/// Time for this node to deliver what the session has got elsewhere, and between two looks at the log and at itself.
const CATCH_UP: Duration = Duration::from_secs(10);
const CATCH_UP_LOOK: Duration = Duration::from_millis(500);
const BEHIND: Duration = Duration::from_millis(5);

/// Tries to claim a session, or to reach the servers.
const TRIES: u32 = 10;

/// Time between two tries.
const AGAIN: Duration = Duration::from_millis(100);

/// Taker of sessions.
#[derive(Clone)]
pub(crate) struct Taker {
    pub(crate) state: Arc<NodeState>,
    pub(crate) client: Client,
    pub(crate) sessions: Stream<()>,
    pub(crate) nodes: Stream<()>,
    /// Streams of the shards, by index.
    pub(crate) streams: Vec<Stream<()>>,
}

/// Silence of a node of which NATS knows no connection.
#[derive(Default)]
struct Silence {
    /// Last renewal of its lease, and the time since which it has been the last.
    since: Option<(u64, Instant)>,
}

impl Silence {
    /// Notes a call for which NATS knows no connection: true if the node is gone.
    fn note(&mut self, renewal: u64, now: Instant) -> bool {
        match self.since {
            Some((last, since)) if last == renewal => now.saturating_duration_since(since) >= GONE,
            _ => {
                self.since = Some((renewal, now));
                false
            }
        }
    }

    /// Notes that NATS knows a connection of it.
    const fn end(&mut self) {
        self.since = None;
    }
}

/// Record that was found.
struct FoundRecord {
    client_id: ClientId,
    record: Record,
    revision: u64,
    /// The session is taken as it was found or not at all.
    is_exact: bool,
}

impl FoundRecord {
    fn session(self) -> RemoteSession {
        RemoteSession { identity: self.record.identity.as_deref().map(Arc::from), state: Box::new(self) }
    }

    fn exact_session(self) -> RemoteSession {
        Self { is_exact: true, ..self }.session()
    }

    /// Whether the record names this process.
    fn is_own(&self, NodeState { node, run, .. }: &NodeState) -> bool {
        self.record.is_of(node, run)
    }
}

impl Taker {
    /// Looks for the record of a client.
    pub(crate) async fn find(&self, client_id: &ClientId) -> Result<Option<RemoteSession>, StoreError> {
        Ok(self.read(client_id).await?.map(FoundRecord::session))
    }

    /// Looks for a session without a connection: `None` too if a live node has it, or if no node has it and it is not
    /// due. It is not taken if it has changed since, as when its client returns.
    pub(crate) async fn find_absent(
        &self,
        client_id: &ClientId,
        is_due: impl Fn(&Record) -> bool,
    ) -> Result<Option<RemoteSession>, StoreError> {
        let Some(found) = self.read(client_id).await? else { return Ok(None) };
        let is_absent = match &found.record.owner {
            Some(owner) => self.renewal(owner, &found.record.run).await?.is_none(),
            None => is_due(&found.record),
        };
        Ok(is_absent.then(|| found.exact_session()))
    }

    /// Looks for a session whose record names this process. It is not taken if it has changed since.
    pub(crate) async fn find_own(&self, client_id: &ClientId) -> Result<Option<RemoteSession>, StoreError> {
        let found = self.read(client_id).await?.filter(|found| found.is_own(&self.state));
        Ok(found.map(FoundRecord::exact_session))
    }

    /// Last renewal of the lease of a process of a node, whose sessions are its own for as long; `None`: it has none.
    async fn renewal(&self, node: &str, run: &str) -> Result<Option<u64>, StoreError> {
        let Ok(name) = node.parse::<Name>() else { return Ok(None) };
        let subject = self.state.layout.node(&name);
        let lease = self.patiently(|| last_message(&self.nodes, &subject)).await?;
        let is_its = |payload: &[u8]| {
            serde_json::from_slice::<NodeRecord>(payload).is_ok_and(|record| record.run == run)
        };
        Ok(lease.filter(|(payload, _)| is_its(payload)).map(|(_, sequence)| sequence))
    }

    /// Record of a client, from the leader of the stream.
    async fn read(&self, client_id: &ClientId) -> Result<Option<FoundRecord>, StoreError> {
        let subject = self.state.layout.session(client_id);
        let last = self.patiently(|| last_message(&self.sessions, &subject)).await?;
        let found = last.and_then(|(payload, revision)| Some((Record::read(&payload)?, revision)));
        let client_id = client_id.clone();
        Ok(found.map(|(record, revision)| FoundRecord { client_id, record, revision, is_exact: false }))
    }

    async fn patiently<T, F: Future<Output = Result<T, String>>>(
        &self,
        call: impl Fn() -> F,
    ) -> Result<T, StoreError> {
        let mut reason = "no majority of the NATS servers answers".to_owned();
        // A client that is refused at once tries another node.
        let tries = if self.state.is_reachable.load(Ordering::Relaxed) { TRIES } else { 0 };
        for _ in 0..tries {
            match call().await {
                Ok(value) => return Ok(value),
                Err(problem) => reason = problem,
            }
            sleep(AGAIN).await;
        }
        Err(StoreError::Unavailable { reason: reason.into() })
    }

    /// Claims a session. `None`: it has ended, or is not as it was found.
    pub(crate) async fn take(
        &self,
        found: RemoteSession,
        id: SessionId,
    ) -> Result<Option<RecoveredSession>, StoreError> {
        let Ok(found) = found.state.downcast::<FoundRecord>() else { return Ok(None) };
        let mut found = *found;
        for _ in 0..TRIES {
            if !found.is_exact
                && !found.is_own(&self.state)
                && let Some(owner) = &found.record.owner
            {
                let (owner, run) = (owner.clone(), found.record.run.clone());
                self.release(&owner, &found).await?;
                match self.read(&found.client_id).await? {
                    Some(again) => found = again,
                    None => return Ok(None),
                }
                // Another node has claimed it meanwhile, and delivers until it is asked in its turn.
                if found.record.owner.as_ref().is_some_and(|now| *now != owner || found.record.run != run) {
                    continue;
                }
            }
            self.catch_up(&found.record).await?;
            let client_id = found.client_id.clone();
            let unclaimed = |_: &StoreError| self.state.tell(SessionEvent::Unclaimed(client_id));
            match self.claim(&found, id).await {
                Ok(Some(revision)) => {
                    let adopted = self.adopt(found, id, revision).await;
                    return adopted.map(Some).inspect_err(unclaimed);
                }
                Ok(None) if found.is_exact => return Ok(None),
                Ok(None) => {}
                Err(error) => return Err(error).inspect_err(unclaimed),
            }
            let refused = found.revision;
            match self.read(&found.client_id).await? {
                Some(again) => found = again,
                None => return Ok(None),
            }
            if found.revision == refused {
                // A write that is on its way: the servers refuse others until they show it.
                sleep(AGAIN).await;
            }
        }
        Err(StoreError::Unavailable { reason: "other nodes claim the session again and again".into() })
    }

    /// Asks a node to release a session, until it has, or may not deliver to its client any more: it has no lease, or
    /// NATS knows no connection of it while it does not renew the lease in time.
    async fn release(&self, owner: &str, found: &FoundRecord) -> Result<(), StoreError> {
        let Ok(name) = owner.parse::<Name>() else { return Ok(()) };
        let client = found.client_id.as_str();
        let call = Call::Release { client: client.to_owned() };
        let give_up = Instant::now() + LEASE + RELEASE;
        let mut silence = Silence::default();
        while Instant::now() < give_up {
            let Some(renewal) = self.renewal(owner, &found.record.run).await? else {
                tracing::info!(client, node = %name, "taken from a node without a lease");
                return Ok(());
            };
            let request = Request::new().payload(call.write()).timeout(Some(RELEASE));
            match self.client.send_request(self.state.layout.calls(&name), request).await {
                Ok(answer) if Reply::read(&answer.payload).is_some_and(|reply| reply.is_done) => {
                    return Ok(());
                }
                Ok(_) => {
                    tracing::debug!(client, node = %name, "it cannot release the session");
                    silence.end();
                }
                Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                    if silence.note(renewal, Instant::now()) {
                        tracing::info!(client, node = %name, "taken from a node that is gone");
                        return Ok(());
                    }
                }
                Err(error) => {
                    tracing::debug!(client, node = %name, %error, "it does not answer");
                    silence.end();
                }
            }
            sleep(CALL_AGAIN).await;
        }
        Err(StoreError::Unavailable {
            reason: format!("the node {owner} does not release the session").into(),
        })
    }

    /// Waits until this node has delivered everything that the session has got elsewhere: from the log it would get
    /// that once more.
    async fn catch_up(&self, record: &Record) -> Result<(), StoreError> {
        let layout = &self.state.layout;
        let give_up = Instant::now() + CATCH_UP;
        for (index, target) in record.positions(layout).into_iter().enumerate() {
            let position = &self.state.positions[index];
            let mut look_at = Instant::now() + CATCH_UP_LOOK;
            while position.completed() < target {
                if Instant::now() >= give_up {
                    return Err(StoreError::Unavailable { reason: "this node is behind the log".into() });
                }
                sleep(BEHIND).await;
                // Messages that have expired are not there any more.
                if Instant::now() >= look_at {
                    look_at = Instant::now() + CATCH_UP_LOOK;
                    let subject = layout.all_messages(layout.shard_at(index));
                    let next = position.completed() + 1;
                    if next_message(&self.streams[index], &subject, next)
                        .await
                        .is_ok_and(|next| next.is_none())
                    {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes this node into the record. `None`: another node was faster.
    async fn claim(&self, found: &FoundRecord, id: SessionId) -> Result<Option<u64>, StoreError> {
        let NodeState { layout, node, run, .. } = &*self.state;
        let record = Record {
            owner: Some(node.clone()),
            run: run.to_string(),
            is_clean: false,
            ..found.record.clone()
        };
        let message = Outgoing::new(layout.session(&found.client_id), record.write())
            .expecting(found.revision)
            .with_id(format!("{run}.{id}.t{}", found.revision));
        self.append(&message).await
    }

    /// Appends a message with a condition: its sequence number. `None`: the condition does not hold.
    async fn append(&self, message: &Outgoing) -> Result<Option<u64>, StoreError> {
        let tried = self.patiently(|| async {
            match send(&self.client, message.clone()).await {
                Tried::Unknown(reason) => Err(reason),
                tried => Ok(tried),
            }
        });
        Ok(if let Tried::Stored(sequence) = tried.await? { sequence } else { None })
    }

    /// Makes a claimed session one of this node. Exchanges of QoS 2 that its last node may still be writing are fenced.
    async fn adopt(
        &self,
        found: FoundRecord,
        id: SessionId,
        revision: u64,
    ) -> Result<RecoveredSession, StoreError> {
        let NodeState { layout, run, outlets, .. } = &*self.state;
        let FoundRecord { client_id, record, .. } = found;
        let mut received: BTreeMap<PacketId, Vec<usize>> = BTreeMap::new();
        for index in 0..layout.parts() {
            let subject = layout.exchanges(layout.shard_at(index), &client_id);
            let last = self.patiently(|| last_message(&self.streams[index], &subject)).await?;
            let last = last.as_ref().map(|(payload, sequence)| (&payload[..], *sequence));
            let mut exchanges = Exchanges::read(client_id.clone(), subject, last);
            if last.is_none() {
                // The record was removed with the log before it, or there was none.
                let of_shard = record.received.iter().filter(|(_, _, shard)| *shard == index);
                exchanges.restore(of_shard.map(|(id, count, _)| (*id, *count)));
            }
            if !record.is_clean {
                exchanges = self.fence(index, exchanges, run).await?;
            }
            for (packet_id, count) in exchanges.open() {
                received.entry(packet_id).or_default().extend((0..count).map(|_| index));
            }
            let _ = outlets.writers[index].send(Command::Adopt(id, exchanges));
        }
        let claim = self.state.next_claim();
        let session = OwnSession::taken(layout, client_id, &record, revision, received, claim);
        let recovered = session.recovered(id);
        self.state.sessions().insert(id, session);
        Ok(recovered)
    }

    /// Writes the exchanges of a client again: everything that its last node writes from now on is refused.
    async fn fence(
        &self,
        index: usize,
        mut exchanges: Exchanges,
        run: &str,
    ) -> Result<Exchanges, StoreError> {
        for number in 0..TRIES {
            let message =
                exchanges.outgoing(run).with_id(format!("{run}.f{}.{number}.{:x}", index, fastrand::u64(..)));
            if let Some(sequence) = self.append(&message).await? {
                exchanges.set_last(Last::Known(sequence));
                return Ok(exchanges);
            }
            // The last node was faster: its messages are in the log.
            let subject = exchanges.subject().to_owned();
            let last = self.patiently(|| last_message(&self.streams[index], &subject)).await?;
            let last = last.as_ref().map(|(payload, sequence)| (&payload[..], *sequence));
            exchanges = Exchanges::read(exchanges.client.clone(), subject, last);
        }
        Err(StoreError::Unavailable { reason: "the exchanges of the client change again and again".into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_renews_its_lease_is_not_gone() {
        let (mut silence, began) = (Silence::default(), Instant::now());
        let at = |ms| began + Duration::from_millis(ms);
        // Its route is away for long, and it renews every second.
        let mut calls = (0..100).map(|call| call * 300);
        assert!(calls.all(|ms| !silence.note(ms / 1000, at(ms))));
        // One that is dead.
        silence.end();
        let gone = (0..100).map(|call| call * 300).find(|ms| silence.note(9, at(*ms)));
        assert_eq!(gone, Some(2700));
        // An answer in between shows that it is not.
        silence.end();
        assert!(!silence.note(9, at(2500)) && !silence.note(9, at(4900)));
        silence.end();
        assert!(!silence.note(9, at(5000)) && !silence.note(9, at(7400)) && silence.note(9, at(7500)));
    }
}
