use std::collections::BTreeMap;
use std::mem;
use std::num::NonZeroU16;
use std::sync::Arc;

use braid_proto::packet::{PacketId, Will};
use braid_proto::topic::TopicFilter;

use super::Holder;
use crate::identity::{Claim, Lsn};
use crate::message::QueueEntry;
use crate::recover::Recover;
use crate::session::SessionRecord;
use crate::subscription::StoredSubscription;

/// A session with everything that belongs to it.
pub(super) struct Session {
    pub(super) record: SessionRecord,
    pub(super) claim: Claim,
    pub(super) holder: Holder,
    pub(super) will: Option<Arc<Will>>,
    pub(super) subscriptions: BTreeMap<TopicFilter, StoredSubscription>,
    pub(super) received: BTreeMap<PacketId, NonZeroU16>,
    pub(super) queue: BTreeMap<Lsn, Queued>,
}

pub(super) struct Queued {
    pub(super) entry: QueueEntry,
    /// When it was sent or released, counted over the whole store; 0 while it waits.
    pub(super) step: u64,
}

impl Queued {
    /// What was released is not sent again.
    pub(super) fn send(&mut self, packet_id: PacketId, step: u64) {
        // Any entry will do for the moment: the one that is there is moved out, not copied.
        self.entry = match mem::replace(&mut self.entry, QueueEntry::Released(packet_id)) {
            QueueEntry::Waiting(delivery) | QueueEntry::Sent(_, delivery) => {
                self.step = step;
                QueueEntry::Sent(packet_id, delivery)
            }
            released @ QueueEntry::Released(_) => released,
        };
    }
}

impl Session {
    pub(super) fn new(record: SessionRecord, claim: Claim, holder: Holder) -> Self {
        Self {
            record,
            claim,
            holder,
            will: None,
            subscriptions: BTreeMap::new(),
            received: BTreeMap::new(),
            queue: BTreeMap::new(),
        }
    }

    pub(super) fn show(&self, into: &mut dyn Recover) {
        let id = self.record.id;
        into.session(self.record.clone(), self.claim);
        for (filter, subscription) in &self.subscriptions {
            into.subscription(id, filter.clone(), *subscription);
        }
        if let Some(will) = &self.will {
            into.will(id, Arc::clone(will));
        }
        for (packet_id, exchanges) in &self.received {
            into.received(id, *packet_id, *exchanges);
        }
        let (waiting, mut sent): (Vec<_>, Vec<_>) =
            self.queue.iter().partition(|(_, queued)| matches!(queued.entry, QueueEntry::Waiting(_)));
        sent.sort_unstable_by_key(|(_, queued)| queued.step);
        for (lsn, queued) in sent.into_iter().chain(waiting) {
            into.queued(id, *lsn, queued.entry.clone());
        }
    }
}
