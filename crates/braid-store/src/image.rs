use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;

use braid_proto::packet::{PacketId, Will};
use braid_proto::topic::{TopicFilter, TopicName};

use crate::identity::{Claim, Lsn, SessionId};
use crate::message::QueueEntry;
use crate::recover::Recover;
use crate::session::SessionRecord;
use crate::subscription::StoredSubscription;

/// Everything a store holds but the messages, for a broker that wants it all before it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Every session.
    pub sessions: BTreeMap<SessionId, SessionImage>,
    /// The message that each topic retains.
    pub retained: BTreeMap<TopicName, Lsn>,
}

/// One session with everything that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionImage {
    /// The session itself.
    pub record: SessionRecord,
    /// The claim under which it was recovered.
    pub claim: Claim,
    /// By filter.
    pub subscriptions: BTreeMap<TopicFilter, StoredSubscription>,
    /// The Will that is not yet published.
    pub will: Option<Arc<Will>>,
    /// QoS 2 messages of the client whose PUBREL has not come: how many have an identifier.
    pub received: BTreeMap<PacketId, NonZeroU16>,
    /// First those on their way, in the order in which they are sent again, then those that wait.
    pub queue: Vec<(Lsn, QueueEntry)>,
}

impl Image {
    fn edit(&mut self, session: SessionId, edit: impl FnOnce(&mut SessionImage)) {
        let session = self.sessions.get_mut(&session);
        debug_assert!(session.is_some(), "a session comes before everything that belongs to it");
        session.map(edit);
    }
}

impl Recover for Image {
    fn session(&mut self, record: SessionRecord, claim: Claim) {
        let image = SessionImage {
            record,
            claim,
            subscriptions: BTreeMap::new(),
            will: None,
            received: BTreeMap::new(),
            queue: Vec::new(),
        };
        self.sessions.insert(image.record.id, image);
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
