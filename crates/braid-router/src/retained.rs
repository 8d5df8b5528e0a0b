//! The retained messages by Topic Name, and which of them a new subscription receives.

use std::collections::BTreeSet;
use std::ops::Bound;

use braid_proto::topic::{TopicFilter, TopicName};
use hashbrown::{Equivalent, HashMap};

use crate::level_order::{ByLevels, LevelText, compare};

/// The least character a topic can have: behind a level and everything below it.
const JUST_BEHIND: char = '\u{1}';

/// How many names a leap passes one by one before it searches: neighbours are cheap, a search is not.
const NEAR: usize = 6;

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
    pub fn matching(&self, filter: &TopicFilter, mut visit: impl FnMut(&TopicName, &M)) {
        let pattern = filter.pattern();
        if !filter.has_wildcard() {
            if let Some((name, message)) = self.messages.get_key_value(&Text(pattern)) {
                visit(name, message);
            }
            return;
        }
        let mut from = literal_prefix(pattern).to_owned();
        'search: loop {
            let start: &dyn LevelText = &from.as_str();
            let names = self.order.range::<dyn LevelText, _>((Bound::Included(start), Bound::Unbounded));
            let mut passed = 0;
            for ByLevels(name) in names {
                if passed > 0 && compare(name.as_str(), &from).is_lt() {
                    passed += 1;
                    if passed > NEAR {
                        continue 'search;
                    }
                    continue;
                }
                passed = 0;
                match judge(pattern, name.as_str()) {
                    Verdict::Match => {
                        if let Some(message) = self.messages.get(name) {
                            visit(name, message);
                        }
                    }
                    Verdict::Next => {}
                    Verdict::Done => return,
                    Verdict::Leap { keep, then } => {
                        from.clear();
                        from.push_str(&name.as_str()[..keep]);
                        match then {
                            Some(levels) => from.push_str(levels),
                            None => from.push(JUST_BEHIND),
                        }
                        passed = 1;
                    }
                }
            }
            return;
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

/// What a walk in the order of levels does with the name it has reached.
enum Verdict<'a> {
    /// It matches.
    Match,
    /// It does not, but the next one may.
    Next,
    /// Nothing that follows can match.
    Done,
    /// Nothing before this can match: the first `keep` bytes of the name followed by these levels, or
    /// whatever is just behind those bytes and all below them.
    Leap { keep: usize, then: Option<&'a str> },
}

/// The levels of `pattern` before its first wildcard: no match comes before them.
fn literal_prefix(pattern: &str) -> &str {
    match pattern.find(['+', '#']) {
        // `a/#` matches `a` as well.
        Some(at) => pattern[..at].strip_suffix('/').unwrap_or_default(),
        None => pattern,
    }
}

fn judge<'a>(pattern: &'a str, name: &str) -> Verdict<'a> {
    let mut wanted = 0;
    let mut had = 0;
    loop {
        // Both are at the start of a level here.
        let want = level(pattern, wanted);
        if want == "#" || want == "+" {
            if wanted == 0 && name.starts_with('$') {
                // [MQTT-4.7.2-1]
                return Verdict::Leap { keep: level(name, 0).len(), then: None };
            }
            if want == "#" {
                return Verdict::Match;
            }
        }
        let have = level(name, had);
        if want != "+" && want != have {
            // [MQTT-4.7.3-4] Byte by byte.
            return if want.as_bytes() > have.as_bytes() {
                Verdict::Leap { keep: had, then: Some(literal_prefix(&pattern[wanted..])) }
            } else if had == 0 {
                Verdict::Done
            } else {
                Verdict::Leap { keep: had - 1, then: None }
            };
        }
        wanted += want.len();
        had += have.len();
        match (wanted < pattern.len(), had < name.len()) {
            (true, true) => {}
            (false, false) => return Verdict::Match,
            (true, false) if &pattern[wanted..] == "/#" => return Verdict::Match,
            (true, false) => return Verdict::Next,
            (false, true) => return Verdict::Leap { keep: had, then: None },
        }
        wanted += 1;
        had += 1;
    }
}

/// The level that starts at byte `at`.
fn level(text: &str, at: usize) -> &str {
    let rest = &text[at..];
    rest.find('/').map_or(rest, |end| &rest[..end])
}
