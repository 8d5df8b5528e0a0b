//! Hash table of the patterns without wildcards: one lookup, independent of the number of levels.

use std::hash::BuildHasher;

use braid_proto::topic::TopicFilter;
use hashbrown::{DefaultHashBuilder, HashTable};

#[derive(Debug)]
struct Entry<V> {
    /// First filter with this pattern. Its text is shared with the session that subscribed it.
    filter: TopicFilter,
    value: V,
}

/// Entry with its hash, so that growing the table reads no entry.
#[derive(Debug)]
struct HashedEntry<V> {
    hash: u64,
    entry: Box<Entry<V>>,
}

/// Map from patterns without wildcards to `V`.
#[derive(Debug)]
pub(crate) struct ExactPatterns<V, S = DefaultHashBuilder> {
    table: HashTable<HashedEntry<V>>,
    /// Keyed hash: topics come from untrusted clients.
    hasher: S,
}

impl<V, S: BuildHasher + Default> ExactPatterns<V, S> {
    pub(crate) fn new() -> Self {
        Self { table: HashTable::new(), hasher: S::default() }
    }

    /// Number of patterns.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub(crate) fn get(&self, pattern: &str) -> Option<&V> {
        if self.table.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(pattern);
        // [MQTT-4.7.3-4] Byte by byte: no case, no normalization.
        let found = self.table.find(hash, |own| own.hash == hash && own.entry.filter.pattern() == pattern);
        found.map(|own| &own.entry.value)
    }

    pub(crate) fn get_mut(&mut self, pattern: &str) -> Option<&mut V> {
        let hash = self.hasher.hash_one(pattern);
        let found = self.table.find_mut(hash, |own| own.entry.filter.pattern() == pattern);
        found.map(|own| &mut own.entry.value)
    }

    pub(crate) fn at_or_default(&mut self, filter: &TopicFilter) -> &mut V
    where
        V: Default,
    {
        let pattern = filter.pattern();
        let hash = self.hasher.hash_one(pattern);
        let found = self
            .table
            .entry(hash, |own| own.entry.filter.pattern() == pattern, |own| own.hash)
            .or_insert_with(|| HashedEntry {
                hash,
                entry: Box::new(Entry { filter: filter.clone(), value: V::default() }),
            });
        &mut found.into_mut().entry.value
    }

    pub(crate) fn remove(&mut self, pattern: &str) -> Option<V> {
        let hash = self.hasher.hash_one(pattern);
        let found = self.table.find_entry(hash, |own| own.entry.filter.pattern() == pattern).ok()?;
        let (HashedEntry { entry, .. }, _) = found.remove();
        if self.table.is_empty() {
            *self = Self::new(); // Frees a large table.
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
