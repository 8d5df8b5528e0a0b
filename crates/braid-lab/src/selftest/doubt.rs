//! Why a number must not be believed.

use std::fmt::{self, Display};

/// Why a run, or this machine, must not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// In words.
    pub what: String,
    /// Whether the machine was too busy: another time it may not be.
    pub is_busy: bool,
}

impl Doubt {
    /// The machine is too busy.
    pub(crate) fn busy(what: impl Display) -> Self {
        Self { what: format!("{what}: the machine is too busy"), is_busy: true }
    }

    /// The same with words in front that say where.
    pub(crate) fn at(self, place: impl Display) -> Self {
        Self { what: format!("{place}{}", self.what), ..self }
    }
}

impl From<String> for Doubt {
    fn from(what: String) -> Self {
        Self { what, is_busy: false }
    }
}

impl Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
