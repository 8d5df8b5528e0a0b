//! What the cells find.

use std::collections::BTreeMap;
use std::time::Duration;

use super::doubt::Doubt;
use super::validity::{lateness_bound, validity};
use crate::house::LinkEnd;

/// Figures by name, the unit last, and why not to trust the machine.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) refused: Vec<Doubt>,
    pub(super) figures: BTreeMap<String, f64>,
    /// Borne in place of the [`lateness_bound`].
    pub(super) lateness: Option<Duration>,
}

impl Findings {
    pub(super) fn figure(&mut self, name: &str, value: f64) {
        self.figures.insert(name.to_owned(), value);
    }

    pub(super) fn refuse(&mut self, doubt: impl Into<Doubt>) {
        self.refused.push(doubt.into());
    }

    /// Refuses unless a fact holds.
    pub(super) fn expect(&mut self, holds: bool, reason: impl FnOnce() -> String) {
        if !holds {
            self.refuse(reason());
        }
    }

    /// How late packets of a link with `delay` may be.
    pub(super) fn bound(&self, delay: Duration) -> Duration {
        self.lateness.unwrap_or_else(|| lateness_bound(delay))
    }

    /// Refuses what the links say of themselves.
    pub(super) fn judge(&mut self, links: &[LinkEnd], delay: Duration) {
        for link in links {
            let doubts = validity(&link.stopped, self.bound(delay));
            self.refused.extend(doubts.into_iter().map(|doubt| doubt.at(format_args!("{} ", link.name))));
        }
    }
}
