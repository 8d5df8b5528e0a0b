//! Hash table of the patterns without wildcards: one lookup, independent of the number of levels.

use std::hash::BuildHasher;

use braid_proto::topic::TopicFilter;
use hashbrown::{DefaultHashBuilder, HashTable};

#[derive(Debug)]
struct Entry<V> {
    /// First filter with this pattern, whose text is shared with its session.
    filter: TopicFilter,
    value: V,
}

/// The hash is stored, so that growing the table touches no entry.
#[derive(Debug)]
struct Slot<V> {
    hash: u64,
    entry: Box<Entry<V>>,
}

/// Map from patterns without wildcards to `V`.
#[derive(Debug)]
pub(crate) struct ExactPatterns<V, S = DefaultHashBuilder> {
    slots: HashTable<Slot<V>>,
    /// Keyed hash: topics come from untrusted clients.
    hasher: S,
}

impl<V, S: BuildHasher + Default> ExactPatterns<V, S> {
    pub(crate) fn new() -> Self {
        Self { slots: HashTable::new(), hasher: S::default() }
    }

    /// Number of patterns.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(crate) fn get(&self, pattern: &str) -> Option<&V> {
        if self.slots.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(pattern);
        // [MQTT-4.7.3-4] Byte by byte: no case, no normalization.
        let slot = self.slots.find(hash, |slot| slot.hash == hash && slot.entry.filter.pattern() == pattern);
        slot.map(|slot| &slot.entry.value)
    }

    pub(crate) fn get_mut(&mut self, pattern: &str) -> Option<&mut V> {
        let hash = self.hasher.hash_one(pattern);
        let slot = self.slots.find_mut(hash, |slot| slot.entry.filter.pattern() == pattern);
        slot.map(|slot| &mut slot.entry.value)
    }

    pub(crate) fn at_or_default(&mut self, filter: &TopicFilter) -> &mut V
    where
        V: Default,
    {
        let pattern = filter.pattern();
        let hash = self.hasher.hash_one(pattern);
        let slot = self
            .slots
            .entry(hash, |slot| slot.entry.filter.pattern() == pattern, |slot| slot.hash)
            .or_insert_with(|| Slot {
                hash,
                entry: Box::new(Entry { filter: filter.clone(), value: V::default() }),
            });
        &mut slot.into_mut().entry.value
    }

    pub(crate) fn remove(&mut self, pattern: &str) -> Option<V> {
        let hash = self.hasher.hash_one(pattern);
        let slot = self.slots.find_entry(hash, |slot| slot.entry.filter.pattern() == pattern).ok()?;
        let (Slot { entry, .. }, _) = slot.remove();
        if self.slots.is_empty() {
            *self = Self::new(); // Frees the memory of a table that was large.
        }
        Some(entry.value)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, Hasher};

    use super::*;

    #[derive(Default)]
    struct Collide;

    impl Hasher for Collide {
        fn finish(&self) -> u64 {
            0
        }
        fn write(&mut self, _: &[u8]) {}
    }

    /// A hash collision must not lead to the topics of others.
    #[test]
    fn colliding_patterns_stay_apart() {
        let mut exact = ExactPatterns::<usize, BuildHasherDefault<Collide>>::new();
        let filters = ["a/b", "A/b", "b/a"].map(|text| TopicFilter::parse(text).expect("a filter"));
        for (value, filter) in filters.iter().enumerate() {
            *exact.at_or_default(filter) = value;
        }
        assert_eq!((exact.len(), exact.get("c")), (3, None));
        assert_eq!(exact.remove("A/b"), Some(1));
        assert_eq!(exact.remove("A/b"), None);
        assert_eq!(exact.get_mut("A/b"), None);
        assert_eq!((exact.get("a/b"), exact.get("b/a")), (Some(&0), Some(&2)));
    }
}
