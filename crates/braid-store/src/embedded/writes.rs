//! What a group of batches changes in the tables, after everything that cancels out is gone: a message that was
//! stored and completed before its group was written is never written.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::sync::Arc;

use braid_proto::packet::{PacketId, Will};
use braid_proto::topic::{TopicFilter, TopicName};

use super::keys::Place;
use crate::identity::{Lsn, SessionId};
use crate::message::{StoredDelivery, StoredMessage};
use crate::recover::NextIds;
use crate::session::SessionRecord;
use crate::subscription::StoredSubscription;

/// How one row changes.
#[derive(Clone, Debug)]
pub(super) enum Write<V> {
    /// The table does not have the row: a removal before it is written leaves nothing to do.
    New(V),
    /// The table may have the row.
    Put(V),
    /// The table may have the row.
    Remove,
}

impl<V> Write<V> {
    pub(super) const fn value(&self) -> Option<&V> {
        match self {
            Self::New(value) | Self::Put(value) => Some(value),
            Self::Remove => None,
        }
    }
}

/// How the rows of one table change.
#[derive(Debug)]
pub(super) struct Delta<K, V>(BTreeMap<K, Write<V>>);

impl<K: Ord, V> Delta<K, V> {
    /// A row that was not there until now.
    pub(super) fn insert(&mut self, key: K, value: V) {
        match self.0.entry(key) {
            // Removed in this group: the table has it still.
            Entry::Occupied(mut row) => {
                row.insert(Write::Put(value));
            }
            Entry::Vacant(row) => {
                row.insert(Write::New(value));
            }
        }
    }

    /// A row that may have been there.
    pub(super) fn put(&mut self, key: K, value: V) {
        match self.0.entry(key) {
            Entry::Occupied(mut row) => {
                let new = matches!(row.get(), Write::New(_));
                row.insert(if new { Write::New(value) } else { Write::Put(value) });
            }
            Entry::Vacant(row) => {
                row.insert(Write::Put(value));
            }
        }
    }

    pub(super) fn remove(&mut self, key: K) {
        match self.0.entry(key) {
            Entry::Occupied(row) if matches!(row.get(), Write::New(_)) => {
                row.remove();
            }
            Entry::Occupied(mut row) => {
                row.insert(Write::Remove);
            }
            Entry::Vacant(row) => {
                row.insert(Write::Remove);
            }
        }
    }

    /// What a later group does to the row.
    pub(super) fn apply(&mut self, key: K, write: Write<V>) {
        match write {
            Write::New(value) => self.insert(key, value),
            Write::Put(value) => self.put(key, value),
            Write::Remove => self.remove(key),
        }
    }

    /// What a later group does to the rows of this table.
    fn merge(&mut self, later: &Self)
    where
        K: Clone,
        V: Clone,
    {
        for (key, write) in &later.0 {
            self.apply(key.clone(), write.clone());
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<&Write<V>> {
        self.0.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &Write<V>)> {
        self.0.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K, V> Default for Delta<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

/// What belongs to one session and is neither looked up nor counted: written without knowing what was there.
#[derive(Debug, Default)]
pub(super) struct Belongings {
    pub(super) will: Option<Write<Arc<Will>>>,
    pub(super) subscriptions: Delta<TopicFilter, StoredSubscription>,
    pub(super) received: Delta<PacketId, NonZeroU16>,
}

/// How far an entry of a queue is that does not wait any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Sent,
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inflight {
    pub(super) phase: Phase,
    pub(super) packet_id: PacketId,
    /// When it was sent or released, counted over the whole store.
    pub(super) step: u64,
}

/// What one transaction writes.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// Everything that the tables have of these sessions goes first.
    pub(super) closed: BTreeSet<SessionId>,
    pub(super) sessions: Delta<SessionId, SessionRecord>,
    pub(super) belongings: BTreeMap<SessionId, Belongings>,
    pub(super) messages: Delta<Lsn, StoredMessage>,
    pub(super) queue: Delta<Place, StoredDelivery>,
    pub(super) inflight: Delta<Place, Inflight>,
    pub(super) retained: Delta<TopicName, Lsn>,
    /// Numbers from which a later life of the store goes on.
    pub(super) next: Option<NextIds>,
}

impl Writes {
    pub(super) fn is_empty(&self) -> bool {
        let Self { closed, sessions, belongings, messages, queue, inflight, retained, next } = self;
        closed.is_empty()
            && sessions.is_empty()
            && belongings.is_empty()
            && messages.is_empty()
            && queue.is_empty()
            && inflight.is_empty()
            && retained.is_empty()
            && next.is_none()
    }

    /// The session with everything that belongs to it but its queue, which its owner takes apart.
    pub(super) fn close(&mut self, session: SessionId) {
        let written = !matches!(self.sessions.get(&session), Some(Write::New(_)));
        self.sessions.remove(session);
        self.belongings.remove(&session);
        if written {
            self.closed.insert(session);
        }
    }

    /// What a later group changes, in the rows of this one: both can be written in one transaction then.
    pub(super) fn merge(&mut self, later: &Self) {
        let Self { closed, sessions, belongings, messages, queue, inflight, retained, next } = later;
        for session in closed {
            self.close(*session);
        }
        for (session, write) in sessions.iter() {
            // Closing has removed it, or left nothing to remove.
            if !matches!(write, Write::Remove) {
                self.sessions.apply(*session, write.clone());
            }
        }
        for (session, later) in belongings {
            let belongings = self.belongings(*session);
            if let Some(will) = &later.will {
                belongings.will = Some(will.clone());
            }
            belongings.subscriptions.merge(&later.subscriptions);
            belongings.received.merge(&later.received);
        }
        self.messages.merge(messages);
        self.queue.merge(queue);
        self.inflight.merge(inflight);
        self.retained.merge(retained);
        self.next = next.or(self.next);
    }

    pub(super) fn belongings(&mut self, session: SessionId) -> &mut Belongings {
        self.belongings.entry(session).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(delta: &Delta<u8, char>) -> Vec<(u8, Option<char>)> {
        delta.iter().map(|(key, write)| (*key, write.value().copied())).collect()
    }

    #[test]
    fn what_was_not_written_leaves_nothing_to_remove() {
        let mut delta = Delta::default();
        delta.insert(1, 'a');
        delta.put(1, 'b');
        assert_eq!(rows(&delta), [(1, Some('b'))]);
        delta.remove(1);
        assert_eq!(rows(&delta), []);
    }

    #[test]
    fn what_may_be_written_is_removed_whatever_came_between() {
        let mut delta = Delta::default();
        delta.remove(1);
        delta.insert(1, 'a');
        delta.remove(1);
        delta.put(2, 'b');
        delta.remove(2);
        assert_eq!(rows(&delta), [(1, None), (2, None)]);
    }

    #[test]
    fn what_a_later_group_takes_back_is_written_by_none() {
        let mut earlier = Delta::default();
        earlier.insert(1, 'a');
        earlier.put(2, 'b');
        earlier.remove(3);
        let mut later = Delta::default();
        later.remove(1);
        later.remove(2);
        later.insert(3, 'c');
        later.insert(4, 'd');
        earlier.merge(&later);
        assert_eq!(rows(&earlier), [(2, None), (3, Some('c')), (4, Some('d'))]);
        assert!(matches!(earlier.get(&3), Some(Write::Put(_))), "the table has the row of before");
        assert!(matches!(earlier.get(&4), Some(Write::New(_))));
    }

    fn record() -> SessionRecord {
        SessionRecord {
            id: SessionId::new(1),
            client_id: "a".into(),
            expiry: braid_proto::session::SessionExpiry::NEVER,
            parked_at: None,
        }
    }

    #[test]
    fn a_session_that_a_later_group_closes_takes_what_is_its_along() {
        let record = record();
        let opened = || {
            let mut writes = Writes::default();
            writes.sessions.insert(record.id, record.clone());
            writes.belongings(record.id).will = Some(Write::Remove);
            writes
        };
        let mut closed = Writes::default();
        closed.close(record.id);
        let mut both = opened();
        both.merge(&closed);
        assert!(both.is_empty(), "it was never written");
        // Closed, opened again and closed: what the tables have from before goes.
        let mut all = Writes::default();
        for later in [&closed, &opened(), &closed] {
            all.merge(later);
        }
        assert!(all.closed.contains(&record.id) && all.belongings.is_empty());
        assert!(matches!(all.sessions.get(&record.id), Some(Write::Remove)));
        all.merge(&opened());
        assert!(matches!(all.sessions.get(&record.id), Some(Write::Put(_))) && !all.belongings.is_empty());
    }

    #[test]
    fn a_session_that_was_never_written_is_not_looked_for() {
        let mut writes = Writes::default();
        let record = record();
        writes.sessions.insert(record.id, record.clone());
        writes.belongings(record.id).will = Some(Write::Remove);
        writes.close(record.id);
        assert!(writes.is_empty());
        writes.close(record.id);
        writes.sessions.insert(record.id, record.clone());
        assert!(matches!(writes.sessions.get(&record.id), Some(Write::Put(_))));
        assert!(writes.closed.contains(&record.id));
    }
}
