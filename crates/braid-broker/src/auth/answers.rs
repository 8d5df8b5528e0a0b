//! Cache of the authorizer's answers to one connection.

use std::hash::{BuildHasher, RandomState};

use braid_proto::topic::TopicName;
use siphasher::sip128::SipHasher13;

/// Answers of a set.
const WAYS: usize = 4;

/// Sets of the first table: 16 answers, 256 bytes.
const MIN_SETS: usize = 4;

/// Sets of the largest table: 8,192 answers, 128 KiB. A power of two, like every number of sets.
const MAX_SETS: usize = 2048;

/// Bit of an entry that is the answer.
const ANSWER: u128 = 1;

/// Bit of an entry that tells the direction.
const DIRECTION: u32 = 1;

/// Bit of every entry, which tells it from an unused one.
const USED: u128 = 1 << 2;

/// Bits of a hash that the key of an entry has: 125.
const HASH: u128 = !0b111;

/// Direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Publish,
    Receive,
}

/// Keyed hash of topics, of one broker.
///
/// Entries of the cache stand for their topics, so that two topics with one hash would have one answer. SipHash under a
/// random key is a pseudorandom function: a client that does not know the key finds no such topics, and 2^40 questions
/// to a full cache meet a wrong entry with a probability of 2^-82.
pub(super) struct TopicHasher(SipHasher13);

impl TopicHasher {
    /// Hash under a random key.
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        Self(SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1)))
    }

    fn key(&self, direction: Direction, topic: &TopicName) -> u128 {
        let hash = self.0.hash(topic.as_str().as_bytes()).as_u128();
        hash & HASH | USED | (direction as u128) << DIRECTION
    }
}

/// Cache of answers by direction and topic: a set-associative table of hashes, in which an entry has a place in two
/// sets.
///
/// The table is doubled when both sets of a new entry are full, up to [`MAX_SETS`]; then a random one of their entries
/// gives way, so that of more topics in turn than there is room for some are found nevertheless.
#[derive(Default)]
pub(super) struct AnswerCache {
    /// Latest answer of each direction: most topics follow themselves, and decoders give them one allocation.
    latest: [Option<(TopicName, bool)>; 2],
    /// Empty until the first answer.
    sets: Vec<[u128; WAYS]>,
    /// State of a linear congruential generator, which chooses the entries that give way.
    random: u64,
}

impl AnswerCache {
    /// The cached answer, or the one of `ask`, which is cached.
    pub(super) fn answer(
        &mut self,
        hasher: &TopicHasher,
        direction: Direction,
        topic: &TopicName,
        ask: impl FnOnce() -> bool,
    ) -> bool {
        if let Some((latest, answer)) = &self.latest[direction as usize]
            && latest.same_allocation(topic)
        {
            return *answer;
        }
        let key = hasher.key(direction, topic);
        let answer = self.find(key).unwrap_or_else(|| {
            let answer = ask();
            self.insert(key | if answer { ANSWER } else { 0 });
            answer
        });
        self.latest[direction as usize] = Some((topic.clone(), answer));
        answer
    }

    /// Sets of an entry: the lower bits of each half of the hash.
    #[expect(clippy::cast_possible_truncation, reason = "bits are chosen")]
    fn sets_of(&self, entry: u128) -> [usize; 2] {
        let mask = self.sets.len().wrapping_sub(1);
        [(entry >> 3) as usize & mask, (entry >> 64) as usize & mask]
    }

    fn find(&self, key: u128) -> Option<bool> {
        // Loops are faster than flattened iterators.
        for set in self.sets_of(key) {
            for entry in self.sets.get(set)? {
                if entry & !ANSWER == key {
                    return Some(entry & ANSWER != 0);
                }
            }
        }
        None
    }

    fn insert(&mut self, entry: u128) {
        while !self.place(entry) {
            if self.sets.len() == MAX_SETS {
                return self.replace(entry);
            }
            self.grow();
        }
    }

    /// Inserts an entry into the emptier one of its sets; false if both are full.
    fn place(&mut self, entry: u128) -> bool {
        let unused = |set: &usize| {
            self.sets.get(*set).map_or(0, |set| set.iter().filter(|entry| **entry == 0).count())
        };
        let [first, second] = self.sets_of(entry);
        let set = if unused(&first) >= unused(&second) { first } else { second };
        let place = self.sets.get_mut(set).and_then(|set| set.iter_mut().find(|entry| **entry == 0));
        place.map(|place| *place = entry).is_some()
    }

    fn grow(&mut self) {
        let sets = vec![[0; WAYS]; (2 * self.sets.len()).max(MIN_SETS)];
        for entry in std::mem::replace(&mut self.sets, sets).into_iter().flatten() {
            // One without a place is asked about again.
            let _ = entry == 0 || self.place(entry);
        }
    }

    /// Replaces a random entry of the sets of this one.
    fn replace(&mut self, entry: u128) {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The highest bits are the best.
        let random = (self.random >> 61) as usize;
        let set = self.sets_of(entry)[random / WAYS];
        self.sets[set][random % WAYS] = entry;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const PLACES: usize = WAYS * MAX_SETS;

    fn hasher() -> TopicHasher {
        TopicHasher(SipHasher13::new_with_keys(1, 2))
    }

    fn topic(number: usize) -> TopicName {
        TopicName::parse(&format!("topic/{number}")).unwrap()
    }

    /// Questions that are asked about so many topics, in the third of three rounds.
    fn asked_again(cache: &mut AnswerCache, topics: usize) -> usize {
        let mut asked = 0;
        for round in 0..3 {
            for number in 0..topics {
                let is_even = number % 2 == 0;
                let answer = cache.answer(&hasher(), Direction::Receive, &topic(number), || {
                    asked += usize::from(round == 2);
                    is_even
                });
                assert_eq!(answer, is_even);
            }
        }
        asked
    }

    /// Topics in turn, with the largest number that is asked about again and the largest table.
    #[test]
    fn the_table_grows_with_the_topics_up_to_its_bound() {
        for (topics, most_asked, most_places) in [
            (1, 0, 16),
            (8, 0, 16),
            (128, 0, 256),
            (1024, 0, 2048),
            (4096, 0, PLACES),
            (PLACES - PLACES / 8, PLACES / 20, PLACES),
            (PLACES + PLACES / 8, PLACES / 2, PLACES),
            (2 * PLACES, 2 * PLACES - PLACES / 4, PLACES),
        ] {
            let mut cache = AnswerCache::default();
            let asked = asked_again(&mut cache, topics);
            assert!(asked <= most_asked, "{topics} topics: {asked}");
            let places = WAYS * cache.sets.len();
            assert!(places <= most_places, "{topics} topics: {places}");
        }
        assert_eq!(AnswerCache::default().sets.capacity(), 0, "an idle connection has no table");
    }

    /// Random questions of both directions, against the answers of a map that drops nothing.
    #[test]
    fn answers_are_those_that_were_asked_for() {
        let mut random = fastrand::Rng::with_seed(1);
        for topics in [2, 20, 3 * PLACES] {
            let (mut cache, mut model) = (AnswerCache::default(), HashMap::new());
            for _ in 0..4 * topics {
                let direction = if random.bool() { Direction::Publish } else { Direction::Receive };
                let number = random.usize(..topics);
                let expected = *model.entry((direction as usize, number)).or_insert_with(|| random.bool());
                let answer = cache.answer(&hasher(), direction, &topic(number), || expected);
                assert_eq!(answer, expected, "{direction:?} {number}");
            }
            assert!(cache.sets.len() <= MAX_SETS);
        }
    }

    #[test]
    fn hashes_depend_on_the_key_and_every_byte() {
        let key = |hasher: &TopicHasher, text: &str| {
            hasher.key(Direction::Publish, &TopicName::parse(text).unwrap()) & HASH
        };
        let long = "x".repeat(65_535);
        let first = hasher();
        for (text, other) in [("a", "b"), ("a", "aa"), ("12345678", "12345679"), (&long, &long[1..])] {
            assert_ne!(key(&first, text), key(&first, other));
            assert_ne!(key(&first, text), key(&TopicHasher::new(), text));
        }
        assert_ne!(key(&TopicHasher::new(), "a"), key(&TopicHasher::new(), "a"));
    }
}
