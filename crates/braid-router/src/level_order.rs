//! Topics in the order of their levels: a level before what is below it, siblings by their bytes.

use std::borrow::Borrow;
use std::cmp::Ordering;

use braid_proto::topic::TopicName;

/// Compares level by level. Plain string order would put `a!` between `a` and `a/b`, because `!` is less
/// than `/`; U+0000 is in no topic, so `/` takes its place.
pub(crate) fn compare(left: &str, right: &str) -> Ordering {
    let rank = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
    let (left, right) = (left.as_bytes(), right.as_bytes());
    // Names share long beginnings: these are skipped by words.
    let ((left_words, _), (right_words, _)) = (left.as_chunks::<8>(), right.as_chunks::<8>());
    let same = 8 * left_words.iter().zip(right_words).take_while(|(a, b)| a == b).count();
    match left[same..].iter().zip(&right[same..]).find(|(a, b)| a != b) {
        Some((a, b)) => rank(a).cmp(&rank(b)),
        None => left.len().cmp(&right.len()),
    }
}

/// A Topic Name as key of an ordered set.
#[derive(Clone, Debug)]
pub(crate) struct ByLevels(pub(crate) TopicName);

/// What the keys are compared by. A set of [`ByLevels`] can be searched with any text through
/// `dyn LevelText`, without making a Topic Name of it first.
pub(crate) trait LevelText {
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

impl PartialEq for ByLevels {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for ByLevels {}
