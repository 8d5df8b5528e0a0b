//! The retained messages by Topic Name, and which of them a new subscription receives.

use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

use braid_proto::topic::{TopicFilter, TopicName};
use hashbrown::{Equivalent, HashMap};

use crate::level_order::{ByLevels, LevelText, compare};
use crate::verdict::{Verdict, judge, start};

/// How many names a leap passes one by one before it searches: neighbours are cheap, a search is not.
const NEAR: usize = 6;

/// How far a [`Retained::walk`] came.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a walk that is not finished goes on behind the name"]
pub enum Walked {
    /// Nothing further matches.
    Finished,
    /// The last name that was examined, whether it matched or not: the next piece begins behind it.
    Unfinished(TopicName),
}

/// At most one `M` per Topic Name (MQTT 3.3.1.3).
///
/// A publisher finds its message with one lookup. A Topic Filter walks the names in the order of their
/// levels and leaps over every subtree that it cannot match, so `a/+/c` costs two searches per level below
/// `a`, and `a/#` reads just what it finds.
#[derive(Clone, Debug)]
pub struct Retained<M> {
    /// `hashbrown` keys it: the names come from strangers.
    messages: HashMap<TopicName, M>,
    /// The names of `messages`.
    order: BTreeSet<ByLevels>,
}

impl<M> Default for Retained<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> Retained<M> {
    /// Nothing retained.
    pub fn new() -> Self {
        Self { messages: HashMap::new(), order: BTreeSet::new() }
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether nothing is retained.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The message of exactly this name.
    pub fn get(&self, name: &TopicName) -> Option<&M> {
        self.messages.get(name)
    }

    /// Keeps a message and returns the one it replaces (`[MQTT-3.3.1-5]`).
    pub fn insert(&mut self, name: TopicName, message: M) -> Option<M> {
        if let Some(old) = self.messages.get_mut(&name) {
            return Some(std::mem::replace(old, message)); // [MQTT-3.3.1-5]
        }
        self.order.insert(ByLevels(name.clone()));
        self.messages.insert(name, message)
    }

    /// Forgets the message of exactly this name and returns it (`[MQTT-3.3.1-6]`).
    pub fn remove(&mut self, name: &TopicName) -> Option<M> {
        let old = self.messages.remove(name)?; // [MQTT-3.3.1-6]
        self.order.remove(&ByLevels(name.clone()));
        Some(old)
    }

    /// All messages, sorted by the levels of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&TopicName, &M)> {
        self.order.iter().filter_map(|ByLevels(name)| self.messages.get_key_value(name))
    }

    /// Forgets every message for which `keep` is false, in the order of [`Retained::iter`].
    pub fn retain(&mut self, mut keep: impl FnMut(&TopicName, &M) -> bool) {
        let Self { messages, order } = self;
        order.retain(|ByLevels(name)| {
            let kept = messages.get(name).is_some_and(|message| keep(name, message));
            if !kept {
                messages.remove(name);
            }
            kept
        });
        if messages.len() < messages.capacity() / 4 {
            messages.shrink_to(messages.len() * 2);
        }
    }

    /// Calls `visit` with every message that the pattern of `filter` matches, sorted by the levels of
    /// their names. A `$share/{ShareName}/` is ignored.
    ///
    /// Its cost has no bound but the number of messages: on behalf of a stranger, use [`Retained::walk`].
    pub fn matching(&self, filter: &TopicFilter, mut visit: impl FnMut(&TopicName, &M)) {
        let walked = self.walk(filter, None, usize::MAX, |name, message| {
            visit(name, message);
            ControlFlow::Continue(())
        });
        debug_assert_eq!(walked, Walked::Finished);
    }

    /// One piece of [`Retained::matching`]: what is behind `after`, or everything when that is `None`.
    ///
    /// Examines at most `steps` names (but always one, so that a walk gets on), whether they match or not,
    /// and searches the index at most once for each. Ends early when `visit` breaks; the message that it
    /// broke at has been visited. A filter without wildcard is one lookup.
    ///
    /// The messages may change between two pieces, and `after` may be gone. Each piece ends behind the one
    /// before, so that all pieces together visit no name twice, and every matching name that was there
    /// throughout once. A name that came or went meanwhile may or may not be visited. Newcomers prolong a
    /// walk only as long as they keep coming in ahead of it, `steps` for each piece.
    pub fn walk(
        &self,
        filter: &TopicFilter,
        after: Option<&TopicName>,
        steps: usize,
        mut visit: impl FnMut(&TopicName, &M) -> ControlFlow<()>,
    ) -> Walked {
        let pattern = filter.pattern();
        if !filter.has_wildcard() {
            if after.is_none_or(|after| compare(after.as_str(), pattern).is_lt())
                && let Some((name, message)) = self.messages.get_key_value(&Text(pattern))
            {
                // Whether it breaks or not: there is no other.
                let _ = visit(name, message);
            }
            return Walked::Finished;
        }
        let Some(mut from) = start(pattern, after.map(TopicName::as_str)) else {
            return Walked::Finished;
        };
        let mut left = steps.max(1);
        'search: loop {
            let start: &dyn LevelText = &from.as_str();
            let names = self.order.range::<dyn LevelText, _>((Bound::Included(start), Bound::Unbounded));
            let mut passed = 0;
            for ByLevels(name) in names {
                if passed > 0 && compare(name.as_str(), &from).is_lt() {
                    passed += 1;
                } else {
                    passed = 0;
                    match judge(pattern, name.as_str()) {
                        Verdict::Match => {
                            let message = self.messages.get(name);
                            if message.is_some_and(|message| visit(name, message).is_break()) {
                                return Walked::Unfinished(name.clone());
                            }
                        }
                        Verdict::Next => {}
                        Verdict::Done => return Walked::Finished,
                        Verdict::Leap(leap) => {
                            leap.land(name.as_str(), &mut from);
                            passed = 1;
                        }
                    }
                }
                left -= 1;
                if left == 0 {
                    return Walked::Unfinished(name.clone());
                }
                if passed > NEAR {
                    continue 'search;
                }
            }
            return Walked::Finished;
        }
    }
}

/// A text that is looked up as if it were a Topic Name: both hash and compare as the text.
#[derive(Hash)]
struct Text<'a>(&'a str);

impl Equivalent<TopicName> for Text<'_> {
    fn equivalent(&self, name: &TopicName) -> bool {
        self.0 == name.as_str()
    }
}
