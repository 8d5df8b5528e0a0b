//! Write sets: row changes of one or more batches. Changes of the same row are merged, so that a message that was
//! stored and completed in one group is never written.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::sync::Arc;

use braid_proto::packet::{PacketId, Will};
use braid_proto::topic::{TopicFilter, TopicName};

use crate::ids::{Lsn, NextIds, SessionId};
use crate::message::{StoredDelivery, StoredMessage};
use crate::session::{SessionRecord, StoredSubscription};

/// Key of one entry of one session's queue.
pub(super) type QueueKey = (Lsn, SessionId);

/// Change of one row.
#[derive(Clone, Debug)]
pub(super) enum Write<V> {
    /// An insert: the table does not have the row, so a removal before it is written leaves nothing to do.
    New(V),
    /// An insert or update: the table may have the row.
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

/// Changes of the rows of one table.
#[derive(Debug)]
pub(super) struct Delta<K, V> {
    rows: BTreeMap<K, Write<V>>,
    /// True without a table below: removed rows are forgotten.
    is_complete: bool,
}

impl<K: Ord, V> Delta<K, V> {
    /// Adds a row that did not exist until now.
    pub(super) fn insert(&mut self, key: K, value: V) {
        match self.rows.entry(key) {
            // Removed in this write set: the table still has it.
            Entry::Occupied(mut row) => drop(row.insert(Write::Put(value))),
            Entry::Vacant(row) => drop(row.insert(Write::New(value))),
        }
    }

    /// Sets a row that may have existed.
    pub(super) fn put(&mut self, key: K, value: V) {
        match self.rows.entry(key) {
            Entry::Occupied(mut row) => {
                let is_new = matches!(row.get(), Write::New(_));
                row.insert(if is_new { Write::New(value) } else { Write::Put(value) });
            }
            Entry::Vacant(row) => drop(row.insert(Write::Put(value))),
        }
    }

    pub(super) fn remove(&mut self, key: K) {
        match self.rows.entry(key) {
            Entry::Occupied(row) if self.is_complete || matches!(row.get(), Write::New(_)) => {
                drop(row.remove())
            }
            Entry::Occupied(mut row) => drop(row.insert(Write::Remove)),
            Entry::Vacant(row) if !self.is_complete => drop(row.insert(Write::Remove)),
            Entry::Vacant(_) => {}
        }
    }

    /// Adds a change of a later group.
    pub(super) fn apply(&mut self, key: K, write: Write<V>) {
        match write {
            Write::New(value) => self.insert(key, value),
            Write::Put(value) => self.put(key, value),
            Write::Remove => self.remove(key),
        }
    }

    /// Adds the changes of a later group.
    fn merge(&mut self, later: &Self)
    where
        K: Clone,
        V: Clone,
    {
        for (key, write) in &later.rows {
            self.apply(key.clone(), write.clone());
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<&Write<V>> {
        self.rows.get(key)
    }

    /// Rows that are not removed.
    pub(super) fn values(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows.iter().filter_map(|(key, write)| Some((key, write.value()?)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &Write<V>)> {
        self.rows.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl<K, V> Default for Delta<K, V> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), is_complete: false }
    }
}

/// Rows of one session that the index does not have: written without knowledge of the former rows.
#[derive(Debug, Default)]
pub(super) struct SessionRows {
    pub(super) will: Option<Write<Arc<Will>>>,
    pub(super) subscriptions: Delta<TopicFilter, StoredSubscription>,
    pub(super) received: Delta<PacketId, NonZeroU16>,
}

/// State of a queue entry in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Sent,
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inflight {
    pub(super) phase: Phase,
    pub(super) packet_id: PacketId,
    /// Order of sending and releasing, over the whole store.
    pub(super) step: u64,
}

/// Changes of all tables, written in one transaction.
#[derive(Debug, Default)]
pub(super) struct WriteSet {
    /// Sessions of which all rows are removed before the other changes.
    pub(super) closed: BTreeSet<SessionId>,
    pub(super) sessions: Delta<SessionId, SessionRecord>,
    pub(super) session_rows: BTreeMap<SessionId, SessionRows>,
    pub(super) messages: Delta<Lsn, StoredMessage>,
    pub(super) queue: Delta<QueueKey, StoredDelivery>,
    pub(super) inflight: Delta<QueueKey, Inflight>,
    pub(super) retained: Delta<TopicName, Lsn>,
    /// Next free numbers after a restart.
    pub(super) next: Option<NextIds>,
    /// True without tables below, as in every [`Delta`].
    pub(super) is_complete: bool,
}

impl WriteSet {
    /// An empty set without tables below, which holds all rows itself.
    pub(super) fn complete() -> Self {
        let mut set = Self { is_complete: true, ..Self::default() };
        (set.sessions.is_complete, set.messages.is_complete, set.retained.is_complete) = (true, true, true);
        (set.queue.is_complete, set.inflight.is_complete) = (true, true);
        set
    }

    pub(super) fn is_empty(&self) -> bool {
        let Self { closed, sessions, session_rows, messages, queue, inflight, retained, next, .. } = self;
        closed.is_empty()
            && sessions.is_empty()
            && session_rows.is_empty()
            && messages.is_empty()
            && queue.is_empty()
            && inflight.is_empty()
            && retained.is_empty()
            && next.is_none()
    }

    /// Removes the session and its rows, except those of its queue, which the index removes one by one.
    pub(super) fn close(&mut self, session: SessionId) {
        let is_written = !matches!(self.sessions.get(&session), Some(Write::New(_)));
        self.sessions.remove(session);
        self.session_rows.remove(&session);
        if is_written {
            self.closed.insert(session);
        }
    }

    /// Adds the changes of a later group, so that both are written in one transaction.
    pub(super) fn merge(&mut self, later: &Self) {
        let Self { closed, sessions, session_rows, messages, queue, inflight, retained, next, .. } = later;
        for session in closed {
            self.close(*session);
        }
        for (session, write) in sessions.iter() {
            // The loop above has removed it, or there was nothing to remove.
            if !matches!(write, Write::Remove) {
                self.sessions.apply(*session, write.clone());
            }
        }
        for (session, later) in session_rows {
            let rows = self.session_rows(*session);
            if let Some(will) = &later.will {
                rows.will = Some(will.clone());
            }
            rows.subscriptions.merge(&later.subscriptions);
            rows.received.merge(&later.received);
        }
        self.messages.merge(messages);
        self.queue.merge(queue);
        self.inflight.merge(inflight);
        self.retained.merge(retained);
        self.next = next.or(self.next);
    }

    pub(super) fn session_rows(&mut self, session: SessionId) -> &mut SessionRows {
        let is_complete = self.is_complete;
        self.session_rows.entry(session).or_insert_with(|| {
            let mut rows = SessionRows::default();
            (rows.subscriptions.is_complete, rows.received.is_complete) = (is_complete, is_complete);
            rows
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(delta: &Delta<u8, char>) -> Vec<(u8, Option<char>)> {
        delta.iter().map(|(key, write)| (*key, write.value().copied())).collect()
    }

    #[test]
    fn removing_a_new_row_leaves_no_change() {
        let mut delta = Delta::default();
        delta.insert(1, 'a');
        delta.put(1, 'b');
        assert_eq!(rows(&delta), [(1, Some('b'))]);
        delta.remove(1);
        assert_eq!(rows(&delta), []);
    }

    #[test]
    fn a_row_that_may_exist_is_removed_after_any_changes() {
        let mut delta = Delta::default();
        delta.remove(1);
        delta.insert(1, 'a');
        delta.remove(1);
        delta.put(2, 'b');
        delta.remove(2);
        assert_eq!(rows(&delta), [(1, None), (2, None)]);
    }

    #[test]
    fn merging_cancels_rows_that_a_later_group_removes() {
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
        assert!(matches!(earlier.get(&3), Some(Write::Put(_))), "the table has the former row");
        assert!(matches!(earlier.get(&4), Some(Write::New(_))));
    }

    fn record() -> SessionRecord {
        SessionRecord {
            identity: None,
            id: SessionId::new(1),
            client_id: "a".into(),
            expiry: braid_proto::session::SessionExpiry::NEVER,
            parked_at: None,
        }
    }

    #[test]
    fn merging_a_closed_session_removes_its_rows() {
        let record = record();
        let opened = || {
            let mut writes = WriteSet::default();
            writes.sessions.insert(record.id, record.clone());
            writes.session_rows(record.id).will = Some(Write::Remove);
            writes
        };
        let mut closed = WriteSet::default();
        closed.close(record.id);
        let mut both = opened();
        both.merge(&closed);
        assert!(both.is_empty(), "it was never written");
        // Closed, opened again and closed: the former rows in the tables are removed.
        let mut all = WriteSet::default();
        for later in [&closed, &opened(), &closed] {
            all.merge(later);
        }
        assert!(all.closed.contains(&record.id) && all.session_rows.is_empty());
        assert!(matches!(all.sessions.get(&record.id), Some(Write::Remove)));
        all.merge(&opened());
        assert!(matches!(all.sessions.get(&record.id), Some(Write::Put(_))) && !all.session_rows.is_empty());
    }

    #[test]
    fn closing_a_new_session_removes_no_rows_from_the_tables() {
        let mut writes = WriteSet::default();
        let record = record();
        writes.sessions.insert(record.id, record.clone());
        writes.session_rows(record.id).will = Some(Write::Remove);
        writes.close(record.id);
        assert!(writes.is_empty());
        writes.close(record.id);
        writes.sessions.insert(record.id, record.clone());
        assert!(matches!(writes.sessions.get(&record.id), Some(Write::Put(_))));
        assert!(writes.closed.contains(&record.id));
    }
}
