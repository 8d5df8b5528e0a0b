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
        while let Some((_, link, direction, path)) = self.0.pop_if(|(at, ..)| *at <= since) {
            if let Some(running) = topology.running(&link) {
                running.change(direction, path);
            }
        }
        self.0.last().map(|(at, ..)| *at)
    }
}
