//! Recovery: the content of a store, shown item by item, and collected in memory.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;

use braid_proto::packet::{PacketId, Will};
use braid_proto::topic::{TopicFilter, TopicName};

use crate::ids::{Claim, Lsn, SessionId};
use crate::message::QueueEntry;
use crate::session::{SessionRecord, StoredSubscription};

/// Visitor of a store's content. A session comes before everything that belongs to it, and each item comes once.
/// The content may exceed memory, so messages are only referenced here; after the recovery each can be read with
/// [`Store::messages_of`](crate::Store::messages_of), or all in one pass with
/// [`Store::messages`](crate::Store::messages).
pub trait Recover {
    /// A session, claimed for the caller.
    fn session(&mut self, session: SessionRecord, claim: Claim);
    /// A subscription: one for each filter.
    fn subscription(&mut self, session: SessionId, filter: TopicFilter, subscription: StoredSubscription);
    /// A Will that is not published.
    fn will(&mut self, session: SessionId, will: Arc<Will>);
    /// Number of QoS 2 messages of the client with this identifier whose PUBREL has not come.
    fn received(&mut self, session: SessionId, packet_id: PacketId, exchanges: NonZeroU16);
    /// An entry of the session's queue: first those in flight, in the order in which they were last sent or released
    /// (PUBLISH and PUBREL are retransmitted in this order), then the unsent ones by ascending `lsn`. Entries of
    /// different sessions may be interleaved.
    fn queued(&mut self, session: SessionId, lsn: Lsn, entry: QueueEntry);
    /// The retained message of a topic.
    fn retained(&mut self, topic: TopicName, message: Lsn);
}

/// Everything that a recovery shows, for a caller that needs all of it before it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredState {
    /// Every session.
    pub sessions: BTreeMap<SessionId, RecoveredSession>,
    /// The retained message of each topic.
    pub retained: BTreeMap<TopicName, Lsn>,
}

/// One session with everything that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredSession {
    /// The session itself.
    pub record: SessionRecord,
    /// The claim under which it was recovered.
    pub claim: Claim,
    /// By filter.
    pub subscriptions: BTreeMap<TopicFilter, StoredSubscription>,
    /// The Will that is not published.
    pub will: Option<Arc<Will>>,
    /// Number of QoS 2 messages of the client whose PUBREL has not come, by identifier.
    pub received: BTreeMap<PacketId, NonZeroU16>,
    /// First the entries in flight, in the order of their retransmission, then the unsent ones.
    pub queue: Vec<(Lsn, QueueEntry)>,
}

impl RecoveredSession {
    /// Shows the session and everything that belongs to it.
    pub fn show(self, into: &mut dyn Recover) {
        let id = self.record.id;
        into.session(self.record, self.claim);
        self.subscriptions.into_iter().for_each(|(filter, one)| into.subscription(id, filter, one));
        self.will.into_iter().for_each(|will| into.will(id, will));
        self.received.into_iter().for_each(|(packet_id, exchanges)| into.received(id, packet_id, exchanges));
        self.queue.into_iter().for_each(|(lsn, entry)| into.queued(id, lsn, entry));
    }
}

impl RecoveredState {
    fn edit(&mut self, session: SessionId, edit: impl FnOnce(&mut RecoveredSession)) {
        let session = self.sessions.get_mut(&session);
        debug_assert!(session.is_some(), "a session comes before everything that belongs to it");
        session.map(edit);
    }
}

impl Recover for RecoveredState {
    fn session(&mut self, record: SessionRecord, claim: Claim) {
        let (subscriptions, received, queue) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let session = RecoveredSession { record, claim, subscriptions, will: None, received, queue };
        self.sessions.insert(session.record.id, session);
    }

    fn subscription(&mut self, session: SessionId, filter: TopicFilter, subscription: StoredSubscription) {
        self.edit(session, |session| {
            session.subscriptions.insert(filter, subscription);
        });
    }

    fn will(&mut self, session: SessionId, will: Arc<Will>) {
        self.edit(session, |session| session.will = Some(will));
    }

    fn received(&mut self, session: SessionId, packet_id: PacketId, exchanges: NonZeroU16) {
        self.edit(session, |session| {
            session.received.insert(packet_id, exchanges);
        });
    }

    fn queued(&mut self, session: SessionId, lsn: Lsn, entry: QueueEntry) {
        self.edit(session, |session| session.queue.push((lsn, entry)));
    }

    fn retained(&mut self, topic: TopicName, message: Lsn) {
        self.retained.insert(topic, message);
    }
}
