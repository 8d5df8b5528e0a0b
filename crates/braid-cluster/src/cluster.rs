//! Other nodes, as the broker of this node sees them.

use std::sync::Arc;
use std::time::Duration;

use braid_broker::cluster::{Answer, Cluster, Forwarded, Publication, RemoteSession, ReplayLimits, Replayed};
use braid_proto::message::{Message, SharedMessage};
use braid_proto::packet::{ClientId, PacketId, Payload, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_store::{Change, Commit, Lsn, Now, RecoveredSession, SessionId};
use tokio::time::Instant;

use crate::commit::CommitPart;
use crate::exchanges::ExchangeUpdate;
use crate::interest::{Interest, InterestChange};
use crate::layout::Shard;
use crate::live::{LiveMessage, LiveOutlet};
use crate::log_writer::{APPEND_MESSAGES, Append, Command};
use crate::message::{LoggedMessage, largest_head};
use crate::publish::Outgoing;
use crate::reads::MessageReader;
use crate::store::{NodeState, SessionEvent};
use crate::subject::{SUBJECT_MAX, takes_client, takes_topic};
use crate::take::Taker;

/// Bytes of a message of NATS beside properties and payload.
const HEADERS: usize = 16 << 10;

/// Most bytes of a subscription in the record of a session beside its filter, and of each position at which it began.
const RECORDED_SUBSCRIPTION: usize = 64;
const RECORDED_POSITION: usize = 21;

/// Topics of the broker itself, which each node has for itself.
const BROKER_TOPICS: &str = "$SYS/";

/// Cluster on NATS.
pub(crate) struct NatsCluster {
    pub(crate) state: Arc<NodeState>,
    pub(crate) taker: Taker,
    pub(crate) reader: MessageReader,
    pub(crate) live: LiveOutlet,
    /// Largest message of NATS, bytes.
    pub(crate) max_payload: usize,
}

impl Cluster for NatsCluster {
    fn forward(&self, publication: &Publication<'_>, changes: &mut Vec<Change>) -> Forwarded {
        let own = |message: &Message| {
            publication.publisher.is_none() && message.topic.as_str().starts_with(BROKER_TOPICS)
        };
        let is_logged =
            |message: &Message| (message.qos > QoS::AtMostOnce || message.retain) && !own(message);
        let here: Vec<bool> = publication.messages.iter().map(|message| !is_logged(message)).collect();
        for (message, _) in publication.messages.iter().zip(&here).filter(|(_, is_here)| **is_here) {
            if !own(message) {
                self.spread(publication, message);
            }
        }
        if here.iter().all(|is_here| *is_here) {
            return Forwarded::Here;
        }
        let commit = append(&self.state, publication, &here, changes);
        Forwarded::Split { here, commit }
    }

    fn remove_retained(&self, topic: &TopicName, is_urgent: bool) -> Option<Commit> {
        let layout = &self.state.layout;
        let shard = layout.shard_of(topic, is_urgent);
        let removal = LoggedMessage {
            qos: QoS::AtMostOnce,
            publisher: String::new(),
            identity: None,
            is_withheld: true,
            expires_at: None,
            properties: None,
            payload: Payload::EMPTY,
        };
        let (headers, payload) = removal.write();
        let subject = layout.message(shard, true, topic);
        let messages = vec![Outgoing { subject, headers, payload }];
        let (part, commit) = CommitPart::join(1);
        let charge = self.state.appending.charge(0);
        let arrived = Instant::now();
        let append = Append { session: None, messages, exchanges: None, part, charge, arrived };
        let _ = self.state.outlets.writers[layout.index_of(shard)].send(Command::Append(append));
        Some(commit)
    }

    fn check(&self, message: &Message) -> Result<(), ReasonCode> {
        if !takes_topic(&message.topic) {
            Err(ReasonCode::TopicNameInvalid)
        } else if message.properties.as_deref().is_some_and(|properties| {
            largest_head(properties) + message.payload.len() + HEADERS > self.max_payload
        }) {
            Err(ReasonCode::ImplementationSpecificError)
        } else {
            Ok(())
        }
    }

    fn takes_filter(&self, filter: &TopicFilter) -> bool {
        let layout = &self.state.layout;
        // Others are read from the log without a subject of their own.
        !filter.is_shared() || layout.messages(Shard::Urgent, filter).len() <= SUBJECT_MAX
    }

    fn takes_subscriptions(&self, count: usize, bytes: usize) -> bool {
        fits_record(count, bytes, self.state.layout.parts(), self.max_payload)
    }

    fn takes_client(&self, client_id: &ClientId) -> bool {
        takes_client(client_id)
    }

    fn find<'a>(&'a self, client_id: &'a ClientId) -> Option<Answer<'a, Option<RemoteSession>>> {
        Some(Box::pin(self.taker.find(client_id)))
    }

    fn take(&self, found: RemoteSession, id: SessionId) -> Answer<'_, Option<RecoveredSession>> {
        Box::pin(self.taker.take(found, id))
    }

    fn replay(&self, session: SessionId, limits: ReplayLimits) -> Answer<'_, Vec<Replayed>> {
        Box::pin(self.reader.replay(session, limits))
    }

    fn forget(&self, session: SessionId) {
        drop(self.state.drop_session(session));
    }

    fn abandon(&self, session: SessionId) {
        // Its record names this node: it is given back.
        self.state.tell(SessionEvent::Unavailable(session));
    }

    fn note_interest(&self, filter: &TopicFilter, is_interested: bool) {
        let since = self.state.positions();
        let change = InterestChange { filter: filter.clone(), is_interested, since };
        let _ = self.state.outlets.interest.send(Interest::Change(Arc::new(change)));
    }

    fn is_later(&self, arrived: Lsn, known: Lsn) -> bool {
        let position = |lsn| self.state.layout.position(lsn);
        match (position(arrived), position(known)) {
            (Some((index, arrived)), Some((of_known, known))) if index == of_known => arrived > known,
            // After a change of the priority rules a topic has another shard, whose numbers begin anywhere.
            _ => true,
        }
    }

    fn has_log(&self) -> bool {
        true
    }
}

impl NatsCluster {
    /// Passes a message of QoS 0 on to the subscribers of other nodes.
    fn spread(&self, publication: &Publication<'_>, message: &SharedMessage) {
        self.live.send(LiveMessage {
            is_urgent: (publication.is_urgent)(&message.topic),
            topic: message.topic.clone(),
            logged: logged(
                message,
                publication.publisher.map(|(client, _)| client),
                None,
                self.state.clock.now(),
            ),
        });
    }
}

/// Tests whether the subscriptions of a session fit into its record, with as much beside them.
const fn fits_record(count: usize, bytes: usize, shards: usize, max_payload: usize) -> bool {
    let each = RECORDED_SUBSCRIPTION + RECORDED_POSITION * shards;
    bytes.saturating_add(count.saturating_mul(each)) <= max_payload / 2
}

/// Hands messages to the writers of their shards. `None`: all of them are dropped, and nothing is to be waited for.
fn append(
    state: &NodeState,
    publication: &Publication<'_>,
    here: &[bool],
    changes: &mut Vec<Change>,
) -> Option<Commit> {
    let layout = &state.layout;
    let messages = publication.messages;
    let mut opened = opened(messages, changes).into_iter();
    let mut retained_by = publication.retained_by.iter();
    // Batches of each shard, in their order.
    let mut shards: Vec<Vec<(Vec<Outgoing>, ExchangeUpdate)>> = Vec::new();
    shards.resize_with(layout.parts(), Default::default);
    let now = state.clock.now();
    let mut sessions = state.sessions();
    let mut own = publication.publisher.and_then(|(_, id)| sessions.own.get_mut(&id));
    for (message, _) in messages.iter().zip(here).filter(|(_, is_here)| !**is_here) {
        // Publishers of QoS 1 and 2 wait for their acknowledgements.
        if message.qos == QoS::AtMostOnce && state.appending.is_full() {
            retained_by.next();
            continue;
        }
        let identity = if message.retain { retained_by.next().cloned().flatten() } else { None };
        let shard = layout.shard_of(&message.topic, (publication.is_urgent)(&message.topic));
        let index = layout.index_of(shard);
        let logged =
            logged(message, publication.publisher.map(|(client, _)| client), identity.as_deref(), now);
        let subject = layout.message(shard, message.retain, &message.topic);
        let (headers, payload) = logged.write();
        let mut outgoing = Outgoing { subject, headers, payload };
        if let Some(at) = logged.expires_at {
            outgoing = outgoing.expiring(at, now.system);
        }
        let shard = &mut shards[index];
        if shard.last().is_none_or(|(outgoings, _)| outgoings.len() >= APPEND_MESSAGES) {
            shard.push(Default::default());
        }
        let Some((outgoings, update)) = shard.last_mut() else { continue };
        outgoings.push(outgoing);
        if message.qos == QoS::ExactlyOnce
            && let Some(packet_id) = opened.next()
            && let Some(session) = own.as_deref_mut().filter(|session| session.outlives_connection())
        {
            session.open_exchange(packet_id, index);
            update.opened.push(packet_id);
        }
    }
    let parts = shards.iter().map(Vec::len).sum();
    if let Some(session) = own {
        session.write.appending += parts;
    }
    drop(sessions);
    if parts == 0 {
        return None;
    }
    let (part, commit) = CommitPart::join(parts);
    let (session, arrived) = (publication.publisher.map(|(_, id)| id), Instant::now());
    for (writer, batches) in state.outlets.writers.iter().zip(shards) {
        for (messages, update) in batches {
            let is_once = !update.opened.is_empty();
            let client = publication.publisher.map(|(client, _)| client.clone()).filter(|_| is_once);
            let exchanges = client.map(|client| (client, update));
            let bytes = messages.iter().map(|one| one.payload.len() + one.subject.len()).sum();
            let charge = state.appending.charge(bytes);
            let append = Append { session, messages, exchanges, part: part.clone(), charge, arrived };
            let _ = writer.send(Command::Append(append));
        }
    }
    Some(commit)
}

/// Packet identifiers of the exchanges that begin with the messages: the last changes, which are removed.
fn opened(messages: &[SharedMessage], changes: &mut Vec<Change>) -> Vec<PacketId> {
    let count = messages.iter().filter(|message| message.qos == QoS::ExactlyOnce).count();
    let begin = changes.len().saturating_sub(count);
    let is_whole = changes.len() >= count
        && changes[begin..].iter().all(|change| matches!(change, Change::Received { .. }));
    if !is_whole {
        return Vec::new();
    }
    let packet_id = |change| match change {
        Change::Received { packet_id, .. } => Some(packet_id),
        _ => None,
    };
    changes.split_off(begin).into_iter().filter_map(packet_id).collect()
}

fn logged(
    message: &Message,
    publisher: Option<&ClientId>,
    identity: Option<&str>,
    now: Now,
) -> LoggedMessage {
    let left = message.expires_at.map(|at| at.saturating_duration_since(now.instant));
    let expires_at = left.and_then(|left: Duration| now.system.checked_add(left));
    LoggedMessage {
        qos: message.qos,
        publisher: publisher.map_or_else(String::new, |client| client.as_str().to_owned()),
        identity: identity.map(str::to_owned),
        is_withheld: false,
        expires_at,
        properties: message.properties.clone(),
        payload: message.payload.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use braid_proto::session::Subscription;
    use braid_proto::stream::Priority;
    use braid_proto::topic::TopicName;
    use braid_store::StoredSubscription;

    use super::*;
    use crate::record::{Record, RecordedSubscription};
    use crate::store::tests::{Fixture, fixture};

    #[test]
    fn subscriptions_that_are_taken_fit_into_the_record_of_their_session() {
        let filter = TopicFilter::parse(&"x".repeat(30)).unwrap();
        let (max_payload, shards) = (1 << 20, 3);
        let most = (1..).take_while(|count| fits_record(*count, count * 30, shards, max_payload)).count();
        let subscription = StoredSubscription {
            id: std::num::NonZeroU32::new(268_435_455),
            priority: Some(Priority::new(u16::MAX)),
            ..StoredSubscription::of(&Subscription { qos: QoS::ExactlyOnce, ..Subscription::default() })
        };
        let one = RecordedSubscription::of(&filter, &subscription, &vec![u64::MAX; shards]);
        let record = Record { subscriptions: vec![one; most], ..Record::default() };
        assert!((max_payload / 3..=max_payload / 2).contains(&record.write().len()), "{most}");
        assert!(!fits_record(1, max_payload / 2, shards, max_payload));
    }

    // A commit without parts would fail, and the broker stops when its store does.
    #[test]
    fn a_retained_message_that_is_dropped_has_no_commit() {
        let Fixture { store, mut writers, .. } = fixture();
        let state = &store.0;
        let client = ClientId::from("c");
        let appended = |qos: &[QoS]| {
            let topic = || TopicName::parse("t").unwrap();
            let messages: Vec<_> =
                qos.iter().map(|qos| SharedMessage::new(Message::new(topic(), "x", *qos, true))).collect();
            let publication = Publication {
                publisher: Some((&client, SessionId::new(1))),
                messages: &messages,
                retained_by: &vec![None; messages.len()],
                is_urgent: &|_| false,
            };
            append(state, &publication, &vec![false; messages.len()], &mut Vec::new())
        };
        assert!(appended(&[QoS::AtMostOnce]).is_some_and(|mut commit| commit.try_take().is_none()));
        let _charge = state.appending.charge(usize::MAX / 2);
        assert!(appended(&[QoS::AtMostOnce, QoS::AtMostOnce]).is_none());
        let both = appended(&[QoS::AtMostOnce, QoS::AtLeastOnce]);
        assert!(both.is_some_and(|mut commit| commit.try_take().is_none()));
        let appends: usize =
            writers.iter_mut().map(|writer| std::iter::from_fn(|| writer.try_recv().ok()).count()).sum();
        assert_eq!(appends, 2);
    }

    #[test]
    fn exchanges_belong_to_the_last_changes() {
        let message = |qos| SharedMessage::new(Message::new(TopicName::parse("t").unwrap(), "x", qos, false));
        let (session, id) = (SessionId::new(1), |value| PacketId::new(value).unwrap());
        let received = |value| Change::Received { session, packet_id: id(value), exchanges: NonZeroU16::MIN };
        let released = Change::ReceivedReleased { session, packet_id: id(9) };
        let messages = [message(QoS::ExactlyOnce), message(QoS::AtLeastOnce), message(QoS::ExactlyOnce)];
        let mut changes = vec![received(1), released.clone(), received(2), received(3)];
        assert_eq!(opened(&messages, &mut changes), [id(2), id(3)]);
        assert_eq!(changes.len(), 2, "the release of another stream's exchange stays");
        // A session whose progress is not recorded has no changes.
        let mut changes = vec![released];
        assert!(opened(&messages, &mut changes).is_empty() && changes.len() == 1);
    }
}
