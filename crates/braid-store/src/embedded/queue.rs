use std::collections::VecDeque;
use std::mem;

use crate::identity::{Claim, Lsn};
use crate::session::SessionRecord;

/// A session and what is queued for it, as short as it can be: a million entries are in memory at once.
pub(super) struct Session {
    pub(super) record: SessionRecord,
    pub(super) claim: Claim,
    /// By ascending lsn.
    pub(super) queue: VecDeque<Slot>,
}

#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) lsn: Lsn,
    pub(super) entry: Entry,
}

#[derive(Clone, Copy)]
pub(super) enum Entry {
    Waiting(Lsn),
    Sent(Lsn),
    Released,
}

impl Entry {
    pub(super) const fn message(self) -> Option<Lsn> {
        match self {
            Self::Waiting(message) | Self::Sent(message) => Some(message),
            Self::Released => None,
        }
    }
}

impl Session {
    pub(super) const fn new(record: SessionRecord, claim: Claim) -> Self {
        Self { record, claim, queue: VecDeque::new() }
    }

    /// Where the entry is, or where it would be.
    fn find(&self, lsn: Lsn) -> Result<usize, usize> {
        // Mostly the newest is added and the oldest taken away.
        match (self.queue.front(), self.queue.back()) {
            (_, Some(last)) if last.lsn < lsn => Err(self.queue.len()),
            (Some(first), _) if first.lsn == lsn => Ok(0),
            _ => self.queue.binary_search_by_key(&lsn, |slot| slot.lsn),
        }
    }

    /// Puts the entry at its place; what was there before.
    pub(super) fn set(&mut self, lsn: Lsn, entry: Entry) -> Option<Entry> {
        match self.find(lsn) {
            Ok(at) => self.queue.get_mut(at).map(|slot| mem::replace(&mut slot.entry, entry)),
            Err(at) => {
                self.queue.insert(at, Slot { lsn, entry });
                None
            }
        }
    }

    pub(super) fn slot(&mut self, lsn: Lsn) -> Option<&mut Slot> {
        self.find(lsn).ok().and_then(|at| self.queue.get_mut(at))
    }

    pub(super) fn take(&mut self, lsn: Lsn) -> Option<Entry> {
        let slot = self.find(lsn).ok().and_then(|at| self.queue.remove(at))?;
        if self.queue.is_empty() {
            // A queue that was long once does not keep its memory.
            self.queue = VecDeque::new();
        }
        Some(slot.entry)
    }
}
