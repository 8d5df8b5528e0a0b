//! Links that change while a workload lasts.
//!
//! The emulator's own timelines begin when the network is built, seconds before the workload does: programs have to
//! start first. So links are built as they are at first, and changed from here at the workload's times.

use std::time::Duration;

use crate::emulator::{Direction, LinkSpec, PathSpec, Timeline};
use crate::house::Topology;
use crate::scenario::Profile;

/// A link as it is at first.
pub(super) fn start(link: &LinkSpec) -> LinkSpec {
    let first = |timeline: &Timeline| Timeline::from(timeline.start.clone());
    LinkSpec { seed: link.seed, up: first(&link.up), down: first(&link.down) }
}

/// The changes of all links of a profile, the next one last.
#[derive(Debug)]
pub(super) struct Changes(Vec<(Duration, String, Direction, PathSpec)>);

impl Changes {
    pub(super) fn new(profile: &Profile) -> Self {
        let mut all = Vec::new();
        for (link, shape) in &profile.links {
            for direction in [Direction::Up, Direction::Down] {
                let changes = &shape.timeline(direction).changes;
                all.extend(
                    changes.iter().map(|change| (change.at, link.clone(), direction, change.path.clone())),
                );
            }
        }
        all.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
        Self(all)
    }

    /// Applies those whose time has come. Returns the time of the next one.
    pub(super) fn apply(&mut self, since: Duration, topology: &Topology) -> Option<Duration> {
        while let Some((link, direction, path)) = self.take_due(since) {
            if let Some(running) = topology.running(&link) {
                running.change(direction, path);
            }
        }
        self.0.last().map(|(at, ..)| *at)
    }

    /// The next one, if its time has come.
    fn take_due(&mut self, since: Duration) -> Option<(String, Direction, PathSpec)> {
        let (_, link, direction, path) = self.0.pop_if(|(at, ..)| *at <= since)?;
        Some((link, direction, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_built_as_it_is_at_first() {
        let link: LinkSpec = "seed=7 delay=10ms / up: loss=1% ; t=3s up: loss=2%".parse().expect("a link");
        let first = start(&link);
        assert_eq!(first, "seed=7 delay=10ms / up: loss=1%".parse().expect("a link"));
        assert_eq!(start(&first), first);
    }

    #[test]
    fn changes_of_all_links_come_in_the_order_of_time_and_not_before() {
        let profile = r#"
            name = "p"
            title = "p"
            links = { one = "delay=1ms ; t=5s up: delay=2ms ; t=9s up: delay=3ms", two = "; t=7s down: loss=5%" }
        "#;
        let mut changes = Changes::new(&toml::from_str(profile).expect("a profile"));
        let seconds = Duration::from_secs;
        let mut due = |at| {
            let taken = changes.take_due(seconds(at));
            taken.map(|(link, direction, path)| (link, direction, path.delay))
        };
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(due(4), None);
        assert_eq!(due(5), Some(("one".to_owned(), Direction::Up, ms(2))));
        assert_eq!(due(6), None);
        assert_eq!(due(100), Some(("two".to_owned(), Direction::Down, None)), "the earlier one first");
        assert_eq!(due(100), Some(("one".to_owned(), Direction::Up, ms(3))));
        assert_eq!(due(100), None);
    }
}
