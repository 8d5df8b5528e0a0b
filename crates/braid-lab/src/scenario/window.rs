//! Parts of a workload's time.

use serde::Deserialize;

use super::Span;

/// A part of the workload's time that is measured by itself: a value that ends in `@NAME` is of what was due in it, or of the
/// bytes and packets that came in it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Its name in values.
    pub name: String,
    /// Since the workload began.
    pub from: Span,
    /// Since the workload began, and not part of it any more.
    pub until: Span,
}

impl Window {
    /// Its beginning and end, seconds since the workload began.
    pub(crate) fn seconds(&self) -> (f64, f64) {
        (self.from.0.as_secs_f64(), self.until.0.as_secs_f64())
    }
}
