//! Which priorities hold room of the send window.

use std::collections::BTreeMap;

use braid_proto::stream::StreamKey;
use rustc_hash::FxHashMap;

/// The data streams on which something was written and that have not ended, by priority: a write that
/// finds no room asks for those below it, and must not look at every stream for that.
#[derive(Default)]
pub(super) struct ActivePriorities {
    priorities: FxHashMap<StreamKey, i32>,
    /// Streams of each priority; never 0.
    counts: BTreeMap<i32, usize>,
}

impl ActivePriorities {
    /// Something was written on the stream for the first time.
    pub(super) fn insert(&mut self, key: StreamKey, priority: i32) {
        self.forget(key);
        self.priorities.insert(key, priority);
        *self.counts.entry(priority).or_default() += 1;
    }

    /// The stream has another priority, if it is one of these.
    pub(super) fn set_priority(&mut self, key: StreamKey, priority: i32) {
        if self.priorities.get(&key).is_some_and(|before| *before != priority) {
            self.insert(key, priority);
        }
    }

    /// Its sending half has ended.
    pub(super) fn forget(&mut self, key: StreamKey) {
        let Some(priority) = self.priorities.remove(&key) else { return };
        if let Some(count) = self.counts.get_mut(&priority) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&priority);
            }
        }
    }

    /// How many different priorities below this one there are.
    pub(super) fn lower(&self, priority: i32) -> usize {
        self.counts.range(..priority).count()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.priorities.len() + self.counts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_priority_counts_once_and_as_long_as_a_stream_has_it() {
        let [one, two, three] = [1, 2, 3].map(StreamKey::bidi);
        let mut active_priorities = ActivePriorities::default();
        for (key, priority) in [(one, 5), (two, 5), (three, 7)] {
            active_priorities.insert(key, priority);
        }
        assert_eq!([5, 6, 7, 8].map(|priority| active_priorities.lower(priority)), [0, 1, 1, 2]);
        active_priorities.set_priority(two, 6);
        assert_eq!([5, 6, 7, 8].map(|priority| active_priorities.lower(priority)), [0, 1, 2, 3]);
        active_priorities.forget(one);
        active_priorities.set_priority(one, 1);
        assert_eq!([5, 6, 7, 8].map(|priority| active_priorities.lower(priority)), [0, 0, 1, 2]);
        active_priorities.forget(two);
        active_priorities.forget(three);
        assert_eq!(active_priorities.len(), 0);
    }
}
