use std::num::NonZeroU16;
use std::sync::Arc;

use braid_proto::packet::{PacketId, Will};
use braid_proto::topic::{TopicFilter, TopicName};

use crate::identity::{Claim, Lsn, SessionId};
use crate::message::QueueEntry;
use crate::session::SessionRecord;
use crate::subscription::StoredSubscription;

/// Takes what a store holds, piece by piece. A session comes before everything that belongs to it; nothing
/// comes twice. What a store holds may be more than fits in memory at once, so messages are named here and
/// read when they are needed, not before recovery is over: each with [`Store::message`](crate::Store::message), or all
/// in one pass with [`Store::messages`](crate::Store::messages).
pub trait Recover {
    /// A session, claimed for whoever recovers.
    fn session(&mut self, session: SessionRecord, claim: Claim);
    /// A subscription: one for each filter.
    fn subscription(&mut self, session: SessionId, filter: TopicFilter, subscription: StoredSubscription);
    /// The Will that is not yet published.
    fn will(&mut self, session: SessionId, will: Arc<Will>);
    /// So many QoS 2 messages of the client with this identifier whose PUBREL has not come.
    fn received(&mut self, session: SessionId, packet_id: PacketId, exchanges: NonZeroU16);
    /// An entry of the session's queue: first those on their way, in the order in which they were sent or
    /// released, whichever came last (PUBLISH and PUBREL are sent again in this order), then those that wait,
    /// by ascending `lsn`. Sessions may take turns.
    fn queued(&mut self, session: SessionId, lsn: Lsn, entry: QueueEntry);
    /// The retained message of a topic.
    fn retained(&mut self, topic: TopicName, message: Lsn);
}

/// Where counting goes on: greater than every number under which a committed change ever opened a session,
/// stored a message or queued an entry, whatever became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextIds {
    /// The next session's.
    pub session: SessionId,
    /// The next message's or queue entry's.
    pub lsn: Lsn,
}

impl NextIds {
    /// Those of an empty store.
    pub const FIRST: Self = Self { session: SessionId::new(1), lsn: Lsn::new(1) };
}
