//! Sessions whose records may be written late.

use std::collections::{HashSet, VecDeque};

use braid_store::SessionId;

/// Sessions in turn, each once.
#[derive(Default)]
pub(crate) struct Lazy {
    members: HashSet<SessionId>,
    /// In their order, and some that are no members any more.
    order: VecDeque<SessionId>,
}

impl Lazy {
    pub(crate) fn insert(&mut self, id: SessionId) {
        if self.members.insert(id) {
            self.order.push_back(id);
        }
    }

    pub(crate) fn remove(&mut self, id: SessionId) {
        self.members.remove(&id);
        if self.members.is_empty() {
            self.order.clear();
        }
    }

    /// The session that waits for longest.
    pub(crate) fn pop(&mut self) -> Option<SessionId> {
        let members = &mut self.members;
        std::iter::from_fn(|| self.order.pop_front()).find(|id| members.remove(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_written_late_in_turn() {
        let (mut lazy, id) = (Lazy::default(), SessionId::new);
        for number in [3, 1, 2, 1] {
            lazy.insert(id(number));
        }
        lazy.remove(id(1));
        assert_eq!(lazy.pop(), Some(id(3)));
        lazy.insert(id(1));
        lazy.insert(id(3));
        let rest: Vec<_> = std::iter::from_fn(|| lazy.pop()).collect();
        assert!(
            rest.iter().filter(|one| **one == id(1)).count() == 1 && rest.last() == Some(&id(3)),
            "{rest:?}"
        );
        assert_eq!(rest.len(), 3);
    }
}
