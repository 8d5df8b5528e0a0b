//! A path that changes with time.

use std::time::Duration;

use super::error::{Fault, LinkError};
use super::key::{Key, NONE};
use super::path::PathSpec;

/// Specification of a direction at the start, with its later changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Timeline {
    /// From time 0.
    pub start: PathSpec,
    /// Later, in rising order of time.
    pub changes: Vec<Change>,
}

/// From `at` on, `path` holds in place of what was before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Since the start of the link.
    pub at: Duration,
    /// The whole path, not only what differs.
    pub path: PathSpec,
}

impl From<PathSpec> for Timeline {
    fn from(start: PathSpec) -> Self {
        Self { start, changes: Vec::new() }
    }
}

impl Timeline {
    /// The specification at `at`.
    pub fn at(&self, at: Duration) -> &PathSpec {
        self.changes.iter().rev().find(|change| change.at <= at).map_or(&self.start, |change| &change.path)
    }

    /// Lets `path` hold from `at` on, which is later than all changes so far; no change is no entry.
    pub(crate) fn push(&mut self, at: Duration, path: PathSpec) {
        if *self.at(at) != path {
            self.changes.push(Change { at, path });
        }
    }

    /// Changes at `at`, as `key=value` words.
    pub(crate) fn difference(&self, at: Duration) -> Vec<String> {
        let empty = PathSpec::default();
        let before = if at.is_zero() { &empty } else { self.at(at - Duration::from_nanos(1)) };
        let word = |key: &Key| {
            let (old, new) = (key.text(before), key.text(self.at(at)));
            (old != new).then(|| format!("{}={}", key.name(), new.as_deref().unwrap_or(NONE)))
        };
        Key::ALL.iter().filter_map(word).collect()
    }
}

impl PathSpec {
    /// Refuses what would silently do nothing.
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        let entry = |key: Key| format!("{}={}", key.name(), key.text(self).unwrap_or_default());
        let lacking = |key: Key, problem: &str, remedy: &str| {
            Err(LinkError::new(&entry(key), Fault::new(problem, remedy)))
        };
        if self.jitter.is_some() && self.delay.is_none() {
            return lacking(Key::Jitter, "jitter without delay", "add for example delay=50ms");
        }
        if self.distribution.is_some() && self.jitter.is_none() {
            return lacking(Key::Dist, "a distribution without jitter", "add for example jitter=10ms");
        }
        if self.reorder.is_some() && self.delay.is_none() && self.rate.is_none() {
            return lacking(Key::Reorder, "nothing to overtake", "add for example delay=50ms");
        }
        Ok(())
    }
}
