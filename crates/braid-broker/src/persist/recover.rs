//! Recovery of sessions, queues and retained messages from the store, when a broker starts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::{NonZeroU16, NonZeroU64};
use std::sync::Arc;
use std::time::SystemTime;

use braid_auth::identity::Identity;
use braid_auth::publisher::Publisher;
use braid_proto::decoder::Spool;
use braid_proto::message::{MemoryAccount, Message, SharedMessage};
use braid_proto::packet::{PacketId, Will};
use braid_proto::session::{Phase, Session};
use braid_proto::topic::{TopicFilter, TopicName};
use braid_store::{
    Change, Claim, LazyMessage, Lsn, NextIds, Now, QueueEntry, Recover, SessionId, SessionRecord, Store,
    StoreError, StoredMessage, StoredSubscription,
};

use super::Persist;
use crate::memory::Memory;
use crate::queue::stored::{Known, Source, StoredEntry};
use crate::queue::usage::cost;
use crate::retained::{RetainedMessage, RetainedMessages};

/// Sessions and messages between two reports of progress.
const REPORT_EVERY: u64 = 1 << 12;

/// Counts of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Sessions, all of them disconnected.
    pub sessions: u64,
    /// QoS 1 and 2 messages that are queued for them or were in flight, counted once for each session.
    pub queued: u64,
    /// Retained messages.
    pub retained: u64,
}

/// Recovered state of a store.
pub(crate) struct Recovered {
    pub(crate) next: NextIds,
    pub(crate) recovery: Recovery,
    pub(crate) sessions: Vec<RecoveredSession>,
    /// Expired ones included.
    pub(crate) retained: Vec<RetainedMessage>,
}

/// Recovered session.
pub(crate) struct RecoveredSession {
    pub(crate) record: SessionRecord,
    /// Identity of its client; `None` in a session of an older store.
    pub(crate) identity: Option<Identity>,
    pub(crate) claim: Claim,
    pub(crate) session: Session,
    pub(crate) will: Option<Arc<Will>>,
    /// Its queue, in order.
    pub(crate) waiting: Vec<StoredEntry>,
}

/// Reads everything but the messages that can stay in the store, and reports to `progress` now and then. Blocks.
pub(crate) fn recover(
    store: &dyn Store,
    now: Now,
    loader: &mut MessageLoader,
    mut progress: impl FnMut(Recovery),
) -> Result<Recovered, StoreError> {
    let mut shown = Shown::new(now.system);
    let next = store.recover(&mut shown)?;
    let messages = Messages::read(store, now, &shown.wanted, loader)?;
    let (mut sessions, mut retained) = (Vec::with_capacity(shown.sessions.len()), Vec::new());
    let (mut recovery, mut told) = (Recovery::default(), 0);
    let mut tell = |recovery: Recovery| {
        let read = recovery.sessions + recovery.queued + recovery.retained;
        if read >= told + REPORT_EVERY {
            told = read;
            progress(recovery);
        }
    };
    for (_, shown) in shown.sessions {
        recovery.sessions += 1;
        recovery.queued += (shown.waiting.len() + shown.inflight.len()) as u64;
        sessions.push(revive(shown, &messages)?);
        tell(recovery);
    }
    for lsn in shown.retained {
        let (message, publisher) = (messages.of(lsn)?, messages.publishers.get(&lsn).cloned());
        retained.push(RetainedMessage::stored(message, publisher));
        recovery.retained += 1;
        tell(recovery);
    }
    Ok(Recovered { next, recovery, sessions, retained })
}

/// Session that this node has taken over, with the messages that are in flight. A retained message may be older than
/// the log: then it is the one that is `retained` still.
///
/// # Errors
/// The store cannot be read.
pub(crate) async fn taken(
    persist: &Persist,
    retained: &RetainedMessages,
    mut recovered: braid_store::RecoveredSession,
    now: Now,
    loader: &mut MessageLoader,
) -> Result<RecoveredSession, StoreError> {
    let id = recovered.record.id;
    recovered.queue.iter().map(|(lsn, _)| *lsn).max().into_iter().for_each(|last| persist.skip_to(last));
    let wanted: Vec<_> = recovered.queue.iter().filter_map(|(_, entry)| entry.message()).collect();
    let read = persist.read(wanted.clone(), now, loader).await?;
    let mut wanted: HashMap<_, _> =
        wanted.into_iter().zip(read).filter_map(|(lsn, message)| Some((lsn, message?))).collect();
    let deliveries = recovered.queue.iter().filter_map(|(_, entry)| entry.delivery());
    let missing = deliveries.filter(|one| one.retain && !wanted.contains_key(&one.message));
    // All that are retained are looked at for these.
    let sought: HashSet<_> = missing.map(|one| one.message).collect();
    if !sought.is_empty() {
        wanted.extend(retained.find(&sought));
    }
    let is_there = |entry: &QueueEntry| entry.message().is_none_or(|lsn| wanted.contains_key(&lsn));
    let mut gone = Vec::new();
    recovered.queue.retain(|(lsn, entry)| {
        let is_kept = is_there(entry);
        gone.extend((!is_kept).then_some(Change::Completed { session: id, lsn: *lsn }));
        is_kept
    });
    if !gone.is_empty() {
        tracing::warn!(
            client = recovered.record.client_id.as_str(),
            messages = gone.len(),
            "messages in flight are not in the log any more"
        );
        persist.commit_late(gone);
    }
    let mut shown = Shown::new(now.system);
    recovered.show(&mut shown);
    let messages = Messages { wanted, publishers: HashMap::new(), others: Vec::new() };
    let missing = || StoreError::Damaged { reason: format!("session {id} has no record").into() };
    revive(shown.sessions.remove(&id).ok_or_else(missing)?, &messages)
}

/// Recovered state before the messages are read.
struct Shown {
    /// Wall clock.
    now: SystemTime,
    sessions: BTreeMap<SessionId, ShownSession>,
    retained: Vec<Lsn>,
    /// Messages to load into memory: in flight, retained, or queued for several sessions.
    wanted: HashSet<Lsn>,
}

struct ShownSession {
    record: SessionRecord,
    claim: Claim,
    session: Session,
    will: Option<Arc<Will>>,
    /// In flight, in the order in which they are sent again.
    inflight: Vec<(Lsn, PacketId, Option<StoredEntry>)>,
    waiting: Vec<StoredEntry>,
}

impl Shown {
    fn new(now: SystemTime) -> Self {
        Self { now, sessions: BTreeMap::new(), retained: Vec::new(), wanted: HashSet::new() }
    }

    fn edit(&mut self, session: SessionId, edit: impl FnOnce(&mut ShownSession)) {
        let session = self.sessions.get_mut(&session);
        debug_assert!(session.is_some(), "a session comes before everything that belongs to it");
        session.map(edit);
    }
}

impl Recover for Shown {
    fn session(&mut self, record: SessionRecord, claim: Claim) {
        let session = Session::new(record.client_id.clone(), record.expiry);
        let (inflight, waiting) = (Vec::new(), Vec::new());
        let shown = ShownSession { record, claim, session, will: None, inflight, waiting };
        self.sessions.insert(shown.record.id, shown);
    }

    fn subscription(&mut self, session: SessionId, filter: TopicFilter, subscription: StoredSubscription) {
        self.edit(session, |shown| {
            shown.session.subscriptions.insert(filter, subscription.live());
        });
    }

    fn will(&mut self, session: SessionId, will: Arc<Will>) {
        self.edit(session, |shown| shown.will = Some(will));
    }

    fn received(&mut self, session: SessionId, packet_id: PacketId, exchanges: NonZeroU16) {
        // Their streams have ended: on the next connection any stream may continue them. [BQ-21]
        self.edit(session, |shown| shown.session.inbound.restore(packet_id, exchanges));
    }

    fn queued(&mut self, session: SessionId, lsn: Lsn, entry: QueueEntry) {
        if let QueueEntry::Sent(_, delivery) | QueueEntry::Waiting(delivery) = &entry {
            // The first delivery of a message has the number of the message, each further one another. A delivery of a
            // shared subscription may go to another member when its session ends, which must not wait for the store.
            let is_only = lsn == delivery.message && delivery.shared.is_none();
            if !is_only || matches!(entry, QueueEntry::Sent(..)) {
                self.wanted.insert(delivery.message);
            }
        }
        let now = self.now;
        self.edit(session, |shown| match entry {
            QueueEntry::Waiting(delivery) => shown.waiting.push(StoredEntry::new(lsn, delivery, now)),
            QueueEntry::Sent(packet_id, delivery) => {
                shown.inflight.push((lsn, packet_id, Some(StoredEntry::new(lsn, delivery, now))));
            }
            QueueEntry::Released(packet_id) => shown.inflight.push((lsn, packet_id, None)),
        });
    }

    fn retained(&mut self, _topic: TopicName, message: Lsn) {
        self.wanted.insert(message);
        self.retained.push(message);
    }
}

fn revive(shown: ShownSession, messages: &Messages) -> Result<RecoveredSession, StoreError> {
    let ShownSession { record, claim, mut session, will, inflight, mut waiting } = shown;
    for (lsn, packet_id, sent) in inflight {
        let phase = match sent {
            Some(mut sent) => match messages.resolve(&mut sent)? {
                Some(message) => Phase::Sent(sent.into_delivery(message)),
                None => return Err(missing(lsn)),
            },
            None => Phase::Released(NonZeroU64::new(lsn.value())),
        };
        if !session.outbound.restore(packet_id, phase) {
            let reason = format!("session {} uses the packet identifier {packet_id} twice", record.id);
            return Err(StoreError::Damaged { reason: reason.into() });
        }
    }
    for one in &mut waiting {
        messages.resolve(one)?;
    }
    let identity = record.identity.as_deref().map(Identity::decode).transpose();
    let identity = identity.map_err(|error| {
        let reason = format!("session {}: {error}", record.id);
        StoreError::Damaged { reason: reason.into() }
    })?;
    Ok(RecoveredSession { record, identity, claim, session, will, waiting })
}

/// Stored messages, each once however many deliveries refer to it.
struct Messages {
    /// Messages loaded into memory.
    wanted: HashMap<Lsn, SharedMessage>,
    /// Publishers of retained messages.
    publishers: HashMap<Lsn, Arc<Publisher>>,
    /// Terms of each of the others, by ascending number.
    others: Vec<(Lsn, Known)>,
}

impl Messages {
    /// Reads all messages in one pass.
    fn read(
        store: &dyn Store,
        now: Now,
        wanted: &HashSet<Lsn>,
        loader: &mut MessageLoader,
    ) -> Result<Self, StoreError> {
        let (mut read, mut others, mut failure) = (HashMap::new(), Vec::new(), None);
        let mut publishers = Publishers::default();
        store.messages(&mut |lsn, unread: LazyMessage<'_>| {
            if !wanted.contains(&lsn) {
                others.push((lsn, known_of(&unread, now)));
                return;
            }
            if failure.is_some() {
                return;
            }
            let message = unread.read().and_then(|message| {
                publishers.note(lsn, &message)?;
                Ok(message)
            });
            match message {
                Ok(message) => drop(read.insert(lsn, loader.live(lsn, message, now))),
                Err(error) => failure = Some(error),
            }
        })?;
        failure.map_or(Ok(Self { wanted: read, publishers: publishers.of, others }), Err)
    }

    fn of(&self, lsn: Lsn) -> Result<SharedMessage, StoreError> {
        self.wanted.get(&lsn).cloned().ok_or_else(|| missing(lsn))
    }

    /// Completes a queue entry with its message, or with the terms of one that stays in the store. Returns the message
    /// if it is in memory.
    fn resolve(&self, entry: &mut StoredEntry) -> Result<Option<SharedMessage>, StoreError> {
        let Source::Store { lsn, .. } = *entry.source() else { return Ok(None) };
        if let Some(message) = self.wanted.get(&lsn) {
            entry.set_message(message.clone());
            return Ok(Some(message.clone()));
        }
        let at = self.others.binary_search_by_key(&lsn, |(lsn, _)| *lsn).map_err(|_| missing(lsn))?;
        entry.set_known(self.others[at].1);
        Ok(None)
    }
}

/// Publishers of retained messages, each once however many messages it has.
#[derive(Default)]
struct Publishers {
    of: HashMap<Lsn, Arc<Publisher>>,
    shared: HashMap<Arc<str>, Arc<Publisher>>,
}

impl Publishers {
    fn note(&mut self, lsn: Lsn, message: &StoredMessage) -> Result<(), StoreError> {
        let Some(text) = message.publisher() else { return Ok(()) };
        let publisher = match self.shared.get(text) {
            Some(publisher) => publisher.clone(),
            None => {
                let publisher = Publisher::decode(text.clone()).map_err(|error| {
                    let reason = format!("the publisher of message {lsn}: {error}");
                    StoreError::Damaged { reason: reason.into() }
                })?;
                self.shared.entry(text.clone()).or_insert(Arc::new(publisher)).clone()
            }
        };
        self.of.insert(lsn, publisher);
        Ok(())
    }
}

fn missing(lsn: Lsn) -> StoreError {
    let reason = format!("message {lsn} is referred to and not there");
    StoreError::Damaged { reason: reason.into() }
}

/// Terms of a message that is not read.
fn known_of(unread: &LazyMessage<'_>, now: Now) -> Known {
    let head = unread.head();
    let cost = cost(head.topic(), head.properties(), unread.payload_len());
    Known::new(cost, head.time_left(now))
}

/// Turns stored messages into live ones: shares topics, accounts for memory.
#[derive(Debug)]
pub(crate) struct MessageLoader {
    /// A queue of a thousand messages has a handful of topics, which share their names as live messages do.
    topics: HashSet<TopicName>,
    /// Payload size above which a message is large, and belongs into the spool.
    large_from: Option<usize>,
    /// Large messages that are in the heap instead, and their bytes.
    unspooled: (u64, u64),
    memory: Arc<Memory>,
    account: Arc<dyn MemoryAccount>,
}

impl MessageLoader {
    /// A loader that accounts in `memory`; large messages belong into `spool`, if there is one.
    pub(crate) fn new(spool: Option<&Arc<dyn Spool>>, memory: &Arc<Memory>) -> Self {
        let (memory, account) = (memory.clone(), memory.account());
        let large_from = spool.map(|spool| spool.threshold());
        Self { topics: HashSet::new(), large_from, unspooled: (0, 0), memory, account }
    }

    /// The live message of a stored one.
    pub(crate) fn live(&mut self, lsn: Lsn, stored: StoredMessage, now: Now) -> SharedMessage {
        let mut message = stored.live(now);
        drop(stored);
        // A message that the store shares was charged before.
        if let Some(message) = SharedMessage::get_mut(&mut message) {
            self.share_topic(message);
            self.note_unspooled(message);
            self.memory.charge_one(&self.account, message);
        }
        if let Some(number) = NonZeroU64::new(lsn.value()) {
            message.set_lsn(number);
        }
        message
    }

    fn share_topic(&mut self, message: &mut Message) {
        match self.topics.get(&message.topic) {
            Some(topic) => message.topic = topic.clone(),
            None => {
                self.topics.insert(message.topic.clone());
            }
        }
    }

    fn note_unspooled(&mut self, message: &Message) {
        let bytes = message.payload.len();
        if !message.is_spooled() && self.large_from.is_some_and(|from| bytes > from) {
            self.unspooled = (self.unspooled.0 + 1, self.unspooled.1 + bytes as u64);
        }
    }

    /// Logs the large messages that are not in the spool.
    pub(crate) fn log_unspooled(&self) {
        let (messages, bytes) = self.unspooled;
        if messages > 0 {
            tracing::warn!(messages, bytes, "large messages are in memory: the spool has no room for them");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use braid_proto::packet::{ClientId, MessageProperties, QoS};
    use braid_proto::session::SessionExpiry;
    use braid_proto::topic::TopicName;
    use braid_store::{MemoryStore, StoredDelivery};

    use super::*;
    use crate::queue::usage::QueueLimits;

    fn taken_session(queue: Vec<(Lsn, QueueEntry)>) -> braid_store::RecoveredSession {
        braid_store::RecoveredSession {
            record: SessionRecord {
                id: SessionId::new(1),
                client_id: ClientId::from("c"),
                identity: None,
                expiry: SessionExpiry::NEVER,
                parked_at: None,
            },
            claim: Claim::new(1),
            subscriptions: BTreeMap::new(),
            will: None,
            received: BTreeMap::new(),
            queue,
        }
    }

    fn loader() -> MessageLoader {
        MessageLoader::new(None, &Arc::new(Memory::new(&crate::config::LimitsConfig::default())))
    }

    fn retained() -> RetainedMessages {
        let memory = Memory::new(&crate::config::LimitsConfig::default());
        RetainedMessages::new(QueueLimits { messages: 10, bytes: 1 << 20 }, Arc::new(memory))
    }

    // A cluster trims the log, and what is retained stays.
    #[tokio::test]
    async fn a_retained_message_in_flight_that_the_store_has_not_is_sent_again() {
        let (persist, retained) = (Persist::new(Arc::new(MemoryStore::new()), Lsn::new(100)), retained());
        let message = |topic: &str, lsn| {
            let topic = TopicName::parse(topic).unwrap();
            let message = Message::new(topic, "x", QoS::AtLeastOnce, true);
            message.set_lsn(NonZeroU64::new(lsn).unwrap());
            RetainedMessage::stored(SharedMessage::new(message), None)
        };
        retained.restore([message("a", 7), message("b", 9)]);
        let sent = |number: u64, message, id: u16| {
            let delivery =
                StoredDelivery { retain: true, ..StoredDelivery::new(Lsn::new(message), QoS::AtLeastOnce) };
            (Lsn::new(number), QueueEntry::Sent(PacketId::new(id).unwrap(), delivery))
        };
        // Another one has replaced the second.
        let session = taken_session(vec![sent(101, 7, 1), sent(102, 8, 2)]);
        let session = taken(&persist, &retained, session, persist.now(), &mut loader()).await.unwrap();
        let topic = |id| match session.session.outbound.get(PacketId::new(id).unwrap()) {
            Some(Phase::Sent(delivery)) => Some(delivery.message.topic.to_string()),
            _ => None,
        };
        assert_eq!((topic(1), topic(2)), (Some("a".to_owned()), None));
    }

    // A message may be younger than the node that takes its session.
    #[tokio::test]
    async fn messages_of_a_session_that_was_taken_expire_from_then_on() {
        const HOUR: Duration = Duration::from_secs(3600);
        let persist = Persist::new(Arc::new(MemoryStore::new()), Lsn::new(100));
        let before = persist.recovered_at;
        let now = Now { instant: before.instant + HOUR * 2, system: before.system + HOUR * 2 };
        let properties = MessageProperties { message_expiry: Some(3600), ..MessageProperties::default() };
        let (topic, lsn) = (TopicName::parse("t").unwrap(), Lsn::new(7));
        let (properties, expires_at) = (Some(Box::new(properties)), Some(now.system + HOUR / 2));
        let message = StoredMessage::from_parts(topic, "x", QoS::AtLeastOnce, true, properties, expires_at);
        let stored = vec![Change::Stored { lsn, message }, Change::Retained { message: lsn }];
        persist.commit(stored).await.unwrap();
        let entry = QueueEntry::Waiting(StoredDelivery::new(lsn, QoS::AtLeastOnce));
        let session = taken(&persist, &retained(), taken_session([(lsn, entry)].into()), now, &mut loader())
            .await
            .unwrap();
        let delivery = session.waiting.into_iter().next().unwrap();
        let Source::Here(message) = delivery.source() else { panic!("it was read") };
        assert_eq!(message.message().expires_at, Some(now.instant + HOUR / 2));
    }

    // The node before numbered copies as this one does: the next copy must not take the place of one in flight.
    #[tokio::test]
    async fn numbers_of_a_session_that_was_taken_are_not_given_again() {
        let persist = Persist::new(Arc::new(MemoryStore::new()), Lsn::new(100));
        let queue = [(102, PacketId::FIRST), (7, PacketId::FIRST.next())]
            .map(|(lsn, packet_id)| (Lsn::new(lsn), QueueEntry::Released(packet_id)));
        let session = taken_session(queue.into());
        taken(&persist, &retained(), session, persist.now(), &mut loader()).await.expect("no store is asked");
        assert_eq!(persist.next_number().get(), 103);
    }
}
