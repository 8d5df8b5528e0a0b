use crate::change::Change;

/// Changes that are applied together, in their order, or not at all. What one turn of a connection's driver
/// causes is one batch; the store makes many batches durable at once, and each has its own outcome.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    changes: Vec<Change>,
    lazy: bool,
}

impl Batch {
    /// An empty batch that somebody waits for.
    pub const fn new() -> Self {
        Self { changes: Vec::new(), lazy: false }
    }

    /// An empty batch that nobody waits for: the store may keep it back for a while, so that it becomes
    /// durable together with others, at no cost of its own. Its commit is done when it is durable, some time
    /// later even if nothing else is committed. Only for changes that say they may be late.
    pub const fn lazy() -> Self {
        Self { changes: Vec::new(), lazy: true }
    }

    /// Adds a change behind the others.
    pub fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// The changes in their order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Whether nobody waits for it.
    pub const fn is_lazy(&self) -> bool {
        self.lazy
    }

    /// Whether nothing is in it. Committing an empty batch is done at once.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

impl Extend<Change> for Batch {
    fn extend<I: IntoIterator<Item = Change>>(&mut self, changes: I) {
        self.changes.extend(changes);
    }
}

impl FromIterator<Change> for Batch {
    fn from_iter<I: IntoIterator<Item = Change>>(changes: I) -> Self {
        Self { changes: changes.into_iter().collect(), lazy: false }
    }
}

impl IntoIterator for Batch {
    type Item = Change;
    type IntoIter = std::vec::IntoIter<Change>;

    fn into_iter(self) -> Self::IntoIter {
        self.changes.into_iter()
    }
}
