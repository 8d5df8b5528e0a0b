//! The patterns without wildcards: one lookup, however many levels.

use std::hash::BuildHasher;

use braid_proto::topic::TopicFilter;
use hashbrown::{DefaultHashBuilder, HashTable};

#[derive(Debug)]
struct Entry<V> {
    /// The first filter with this pattern; shares its text with the session that brought it.
    filter: TopicFilter,
    value: V,
}

/// The hash is kept, so that growing the table touches no entry.
#[derive(Debug)]
struct Slot<V> {
    hash: u64,
    entry: Box<Entry<V>>,
}

/// A map from patterns without wildcards to `V`.
#[derive(Debug)]
pub(crate) struct Exact<V, S = DefaultHashBuilder> {
    slots: HashTable<Slot<V>>,
    /// Keyed: the topics come from strangers.
    hasher: S,
}

impl<V, S: BuildHasher + Default> Exact<V, S> {
    pub(crate) fn new() -> Self {
        Self { slots: HashTable::new(), hasher: S::default() }
    }

    /// The number of patterns.
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
            *self = Self::new(); // Gives the memory of a crowd back when it has gone.
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

    /// Whoever finds a collision reads nobody else's topics.
    #[test]
    fn colliding_patterns_stay_apart() {
        let mut exact = Exact::<usize, BuildHasherDefault<Collide>>::new();
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
