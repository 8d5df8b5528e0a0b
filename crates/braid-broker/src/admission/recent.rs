//! Bounded map that forgets the entries that were used least recently.

use std::hash::Hash;

use hashbrown::HashMap;

/// Map of two generations: an entry that is used belongs to the newer one, and the older one is dropped when the newer
/// one is full. It keeps at least the latest `generation` entries, and at most twice as many.
#[derive(Debug)]
pub(super) struct RecentMap<K, V> {
    newer: HashMap<K, V>,
    older: HashMap<K, V>,
    generation: usize,
}

impl<K: Copy + Eq + Hash, V> RecentMap<K, V> {
    pub(super) fn new(generation: usize) -> Self {
        Self { newer: HashMap::new(), older: HashMap::new(), generation }
    }

    /// The value of a key, without use.
    pub(super) fn peek(&self, key: K) -> Option<&V> {
        self.newer.get(&key).or_else(|| self.older.get(&key))
    }

    /// Uses the value of a key; a new one if there is none.
    pub(super) fn touch(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        if !self.newer.contains_key(&key) && self.newer.len() >= self.generation {
            self.older = std::mem::take(&mut self.newer);
        }
        let older = &mut self.older;
        self.newer.entry(key).or_insert_with(|| older.remove(&key).unwrap_or_else(new))
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, key: K) {
        self.newer.remove(&key);
        self.older.remove(&key);
    }

    /// Removes the entries for which `keep` is false.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&V) -> bool) {
        for map in [&mut self.newer, &mut self.older] {
            map.retain(|_, value| keep(value));
            map.shrink_to(map.len() * 2);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.newer.len() + self.older.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the latest keys in the order of use.
    #[test]
    fn keeps_the_latest_generation_and_at_most_two() {
        const GENERATION: usize = 8;
        let mut rng = fastrand::Rng::with_seed(1);
        let mut map = RecentMap::new(GENERATION);
        let mut by_use: Vec<u8> = Vec::new();
        for _ in 0..20_000 {
            let key = rng.u8(..40);
            match rng.u8(..20) {
                0 => {
                    map.remove(key);
                    by_use.retain(|used| *used != key);
                    assert_eq!(map.peek(key), None);
                }
                1 => {
                    map.retain(|value| *value != key);
                    by_use.retain(|used| *used != key);
                }
                _ => {
                    let is_recent = by_use.contains(&key);
                    let mut is_new = false;
                    assert_eq!(
                        *map.touch(key, || {
                            is_new = true;
                            key
                        }),
                        key
                    );
                    assert!(!(is_recent && is_new), "{key} was among the latest");
                    by_use.retain(|used| *used != key);
                    by_use.push(key);
                    by_use.drain(..by_use.len().saturating_sub(GENERATION));
                }
            }
            assert!(map.len() <= 2 * GENERATION, "{}", map.len());
            assert!(by_use.iter().all(|used| map.peek(*used) == Some(used)));
        }
    }
}
