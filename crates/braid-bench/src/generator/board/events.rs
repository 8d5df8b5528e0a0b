use crate::summary::Event;

/// Most events kept: each failing client is one line.
const MOST: usize = 10_000;

/// Events in the order of time.
#[derive(Debug, Default)]
pub(super) struct Events {
    kept: Vec<Event>,
    dropped: u64,
    last: f64,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        if self.kept.len() < MOST {
            self.kept.push(event);
        } else {
            self.dropped += 1;
            self.last = event.at;
        }
    }

    pub(super) fn from(&self, number: usize) -> Vec<Event> {
        self.kept.get(number..).unwrap_or_default().to_vec()
    }

    /// All events, and the number of those that were dropped.
    pub(super) fn all(&self) -> Vec<Event> {
        let mut all = self.kept.clone();
        if self.dropped > 0 {
            all.push(Event { at: self.last, what: format!("{} more events were not kept", self.dropped) });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_keeps_its_beginning_and_its_count() {
        let mut events = Events::default();
        (0..MOST + 7).for_each(|n| events.push(Event { at: 1.0, what: n.to_string() }));
        assert_eq!(events.from(0).len(), MOST);
        assert_eq!(events.from(MOST - 1), [Event { at: 1.0, what: (MOST - 1).to_string() }]);
        assert_eq!(events.from(MOST + 1), []);
        assert_eq!(events.all().last().map(|event| event.what.as_str()), Some("7 more events were not kept"));
    }
}
