//! Retained index: messages by Topic Name, and the scan for those that match a Topic Filter (MQTT 3.3.1.3).

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

use braid_proto::topic::{TopicFilter, TopicName};
use hashbrown::{Equivalent, HashMap};

/// Number of names that a scan passes one by one before it seeks: neighbours are cheap, a search is not.
const SCAN_BEFORE_SEEK: usize = 6;

/// Position of a [`Retained::walk`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a walk that is not finished goes on behind the name"]
pub enum Walked {
    /// No further name matches.
    Finished,
    /// Last name that was examined, matching or not: the next part of the walk begins behind it.
    Unfinished(TopicName),
}

/// At most one `M` per Topic Name (MQTT 3.3.1.3).
///
/// A publisher finds its message with one lookup. A Topic Filter scans the names in the order of their
/// levels and seeks past every subtree that it cannot match: `a/+/c` costs two searches for each level below
/// `a`, and `a/#` reads only matching names.
#[derive(Clone, Debug)]
pub struct Retained<M> {
    /// Keyed hash (hashbrown's default): names come from untrusted clients.
    messages: HashMap<TopicName, M>,
    /// Names of `messages`.
    order: BTreeSet<ByLevels>,
}

impl<M> Default for Retained<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> Retained<M> {
    /// Empty index.
    pub fn new() -> Self {
        Self { messages: HashMap::new(), order: BTreeSet::new() }
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Message of exactly this name.
    pub fn get(&self, name: &TopicName) -> Option<&M> {
        self.messages.get(name)
    }

    /// Inserts a message and returns the one it replaces (`[MQTT-3.3.1-5]`).
    pub fn insert(&mut self, name: TopicName, message: M) -> Option<M> {
        if let Some(old) = self.messages.get_mut(&name) {
            return Some(std::mem::replace(old, message)); // [MQTT-3.3.1-5]
        }
        self.order.insert(ByLevels(name.clone()));
        self.messages.insert(name, message)
    }

    /// Removes the message of exactly this name and returns it (`[MQTT-3.3.1-6]`).
    pub fn remove(&mut self, name: &TopicName) -> Option<M> {
        let old = self.messages.remove(name)?; // [MQTT-3.3.1-6]
        self.order.remove(&ByLevels(name.clone()));
        Some(old)
    }

    /// All messages, sorted by the levels of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&TopicName, &M)> {
        self.order.iter().filter_map(|ByLevels(name)| self.messages.get_key_value(name))
    }

    /// Removes every message for which `keep` is false, in the order of [`Retained::iter`].
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
    /// The cost is bounded by the number of messages only: for an untrusted client use [`Retained::walk`].
    pub fn matching(&self, filter: &TopicFilter, mut visit: impl FnMut(&TopicName, &M)) {
        let walked = self.walk(filter, None, usize::MAX, |name, message| {
            visit(name, message);
            ControlFlow::Continue(())
        });
        debug_assert_eq!(walked, Walked::Finished);
    }

    /// Part of [`Retained::matching`]: the names behind `after`, or all when that is `None`.
    ///
    /// Examines at most `steps` names, but at least one, whether they match or not, and searches the index at most
    /// once for each. Ends early when `visit` breaks; that message has been visited. A filter without wildcard is one
    /// lookup.
    ///
    /// Messages may change between two parts, and `after` may be gone. Each part ends behind the one before: all
    /// parts together visit no name twice, and every matching name that was there throughout once. A name that was
    /// added or removed meanwhile may or may not be visited. Added names prolong a walk only while they are added ahead
    /// of it, by `steps` for each part.
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
                // The only match, whether `visit` breaks or not.
                let _ = visit(name, message);
            }
            return Walked::Finished;
        }
        let Some(mut from) = first_position(pattern, after.map(TopicName::as_str)) else {
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
                    match match_step(pattern, name.as_str()) {
                        MatchStep::Match => {
                            let message = self.messages.get(name);
                            if message.is_some_and(|message| visit(name, message).is_break()) {
                                return Walked::Unfinished(name.clone());
                            }
                        }
                        MatchStep::Next => {}
                        MatchStep::Done => return Walked::Finished,
                        MatchStep::Seek(target) => {
                            target.write_to(name.as_str(), &mut from);
                            passed = 1;
                        }
                    }
                }
                left -= 1;
                if left == 0 {
                    return Walked::Unfinished(name.clone());
                }
                if passed > SCAN_BEFORE_SEEK {
                    continue 'search;
                }
            }
            return Walked::Finished;
        }
    }
}

/// Text for the lookup of a Topic Name: both hash and compare alike.
#[derive(Hash)]
struct Text<'a>(&'a str);

impl Equivalent<TopicName> for Text<'_> {
    fn equivalent(&self, name: &TopicName) -> bool {
        self.0 == name.as_str()
    }
}

/// Compares level by level. Plain string order would put `a!` between `a` and `a/b`, because `!` is less
/// than `/`; `/` takes the rank of U+0000, which is in no topic.
fn compare(left: &str, right: &str) -> Ordering {
    let rank = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
    let (left, right) = (left.as_bytes(), right.as_bytes());
    // Names share long prefixes: these are compared by words.
    let ((left_words, _), (right_words, _)) = (left.as_chunks::<8>(), right.as_chunks::<8>());
    let same = 8 * left_words.iter().zip(right_words).take_while(|(a, b)| a == b).count();
    match left[same..].iter().zip(&right[same..]).find(|(a, b)| a != b) {
        Some((a, b)) => rank(a).cmp(&rank(b)),
        None => left.len().cmp(&right.len()),
    }
}

/// Topic Name as key of a set in the order of levels.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ByLevels(TopicName);

/// Key text: a set of [`ByLevels`] can be searched with any text through `dyn LevelText`, without making a Topic Name
/// of it first.
trait LevelText {
    fn text(&self) -> &str;
}

impl LevelText for ByLevels {
    fn text(&self) -> &str {
        self.0.as_str()
    }
}

impl LevelText for &str {
    fn text(&self) -> &str {
        self
    }
}

impl<'a> Borrow<dyn LevelText + 'a> for ByLevels {
    fn borrow(&self) -> &(dyn LevelText + 'a) {
        self
    }
}

impl Ord for dyn LevelText + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.text(), other.text())
    }
}

impl PartialOrd for dyn LevelText + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn LevelText + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for dyn LevelText + '_ {}

impl Ord for ByLevels {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.text(), other.text())
    }
}

impl PartialOrd for ByLevels {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Least character of a topic: it sorts behind a level and everything below it.
const LEAST_CHARACTER: char = '\u{1}';

/// Next step of a scan at the name it has reached.
enum MatchStep<'a> {
    /// The name matches.
    Match,
    /// The name does not match; the next one may.
    Next,
    /// No later name can match.
    Done,
    /// No name before this position can match.
    Seek(SeekTarget<'a>),
}

/// Position of the first `keep` bytes of the name followed by the levels `then`, or behind those bytes and all below
/// them. Always behind the name.
struct SeekTarget<'a> {
    keep: usize,
    then: Option<&'a str>,
}

impl SeekTarget<'_> {
    /// Writes the position relative to `name` into `to`.
    fn write_to(&self, name: &str, to: &mut String) {
        to.clear();
        to.push_str(&name[..self.keep]);
        match self.then {
            Some(levels) => to.push_str(levels),
            None => to.push(LEAST_CHARACTER),
        }
    }
}

/// Position at which a scan begins or continues behind `after`; no name between them can match. `None`: no later one
/// can.
///
/// The last name determines the next step, so that a walk repeats the seek it was about to make and keeps nothing but
/// the name.
fn first_position(pattern: &str, after: Option<&str>) -> Option<String> {
    let Some(after) = after else {
        return Some(literal_prefix(pattern).to_owned());
    };
    match match_step(pattern, after) {
        // In the order of levels no text is between these two.
        MatchStep::Match | MatchStep::Next => Some(format!("{after}/")),
        MatchStep::Done => None,
        MatchStep::Seek(target) => {
            let mut to = String::new();
            target.write_to(after, &mut to);
            Some(to)
        }
    }
}

/// Levels of `pattern` before its first wildcard: no match sorts before them.
fn literal_prefix(pattern: &str) -> &str {
    match pattern.find(['+', '#']) {
        // `a/#` matches `a` too.
        Some(at) => pattern[..at].strip_suffix('/').unwrap_or_default(),
        None => pattern,
    }
}

/// Step that follows from one name alone.
fn match_step<'a>(pattern: &'a str, name: &str) -> MatchStep<'a> {
    let mut wanted = 0;
    let mut had = 0;
    loop {
        // Both are at the start of a level here.
        let want = level(pattern, wanted);
        if want == "#" || want == "+" {
            if wanted == 0 && name.starts_with('$') {
                // [MQTT-4.7.2-1]
                return MatchStep::Seek(SeekTarget { keep: level(name, 0).len(), then: None });
            }
            if want == "#" {
                return MatchStep::Match;
            }
        }
        let have = level(name, had);
        if want != "+" && want != have {
            // [MQTT-4.7.3-4] Byte by byte.
            return if want.as_bytes() > have.as_bytes() {
                MatchStep::Seek(SeekTarget { keep: had, then: Some(literal_prefix(&pattern[wanted..])) })
            } else if had == 0 {
                MatchStep::Done
            } else {
                MatchStep::Seek(SeekTarget { keep: had - 1, then: None })
            };
        }
        wanted += want.len();
        had += have.len();
        match (wanted < pattern.len(), had < name.len()) {
            (true, true) => {}
            (false, false) => return MatchStep::Match,
            (true, false) if &pattern[wanted..] == "/#" => return MatchStep::Match,
            (true, false) => return MatchStep::Next,
            (false, true) => return MatchStep::Seek(SeekTarget { keep: had, then: None }),
        }
        wanted += 1;
        had += 1;
    }
}

/// Level that starts at byte `at`.
fn level(text: &str, at: usize) -> &str {
    let rest = &text[at..];
    rest.find('/').map_or(rest, |end| &rest[..end])
}
