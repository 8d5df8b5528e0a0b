use std::collections::BTreeSet;

use crate::summary::Event;

/// Most kinds of events of one run.
const MOST: usize = 16;

/// Events besides the counters, each kind once: where one connection fails, many do.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    told: BTreeSet<String>,
    events: Vec<Event>,
}

impl Remarks {
    /// `at`: seconds since the start of the run.
    pub(super) fn note(&mut self, at: f64, what: &str) {
        if self.told.len() < MOST && self.told.insert(what.to_owned()) {
            self.events.push(Event { at, what: what.to_owned() });
        }
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.events.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_once_and_only_so_many() {
        let mut remarks = Remarks::default();
        for number in 0..100 {
            remarks.note(1.0, "refused");
            remarks.note(2.0, &number.to_string());
        }
        let events = remarks.events();
        assert_eq!((events.len(), &*events[0].what, events[0].at), (MOST, "refused", 1.0));
    }
}
