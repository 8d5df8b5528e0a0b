//! Which writes are urgent: those that the gate keeps room for.
//!
//! Something is urgent compared with something else, so there has to be a lower priority in use. Of several priorities the
//! highest that has been written with lately is urgent, and what lies below it is bulk, whatever lies below that in turn.
//! And whoever writes more than the connection takes is bulk with any priority: no reserve would be left otherwise.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use tokio::time::Instant;

/// A priority counts as used for so long.
const LATELY: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Urgency {
    classes: BTreeMap<i32, Class>,
}

#[derive(Clone, Copy, Default)]
struct Class {
    written: Option<Instant>,
    /// A write has found no room.
    refused: Option<Instant>,
}

impl Urgency {
    /// Something was written on a data stream with this priority; whether it is urgent.
    pub(super) fn wrote(&mut self, priority: i32, now: Instant) -> bool {
        let class = self.classes.entry(priority).or_default();
        class.written = Some(now);
        let is_bulk = is_lately(class.refused, now);
        let above = (Bound::Excluded(priority), Bound::Unbounded);
        let mut higher = self.classes.range(above);
        !is_bulk && !higher.any(|(_, class)| is_lately(class.written, now) && !is_lately(class.refused, now))
    }

    /// A write on a data stream with this priority found no room; whether what was written before was urgent
    /// until then.
    pub(super) fn refused(&mut self, priority: i32, now: Instant) -> bool {
        let class = self.classes.entry(priority).or_default();
        let refused = class.refused.replace(now);
        is_lately(class.written, now) && !is_lately(refused, now)
    }
}

fn is_lately(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now.saturating_duration_since(at) < LATELY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALARMS: i32 = 200;
    const MEDIA: i32 = 100;

    #[test]
    fn the_highest_priority_of_late_is_urgent() {
        let mut urgency = Urgency::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(urgency.wrote(MEDIA, at(0)), "nothing is above it");
        assert!(urgency.wrote(ALARMS, at(1)));
        assert!(!urgency.wrote(MEDIA, at(1)));
        assert!(!urgency.wrote(MEDIA, at(30)));
        assert!(urgency.wrote(MEDIA, at(31)), "no alarm for long");
        assert!(urgency.wrote(ALARMS, at(32)));
    }

    #[test]
    fn who_writes_more_than_there_is_room_for_is_bulk() {
        let mut urgency = Urgency::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(urgency.wrote(MEDIA, at(0)));
        assert!(urgency.refused(MEDIA, at(1)), "for the first time");
        assert!(!urgency.wrote(MEDIA, at(2)));
        assert!(!urgency.refused(MEDIA, at(20)));
        assert!(!urgency.wrote(MEDIA, at(49)));
        assert!(urgency.wrote(MEDIA, at(50)));
        assert!(urgency.wrote(ALARMS, at(50)) && urgency.refused(ALARMS, at(50)));
        assert!(urgency.wrote(MEDIA, at(51)), "what is above it is bulk");
    }
}
