//! `Retained::walk` in parts, while messages come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Retained, Walked};
use fastrand::Rng;

use crate::generator::{filter, for_each_seed, levels, name, parse_filter, parse_name};

/// Retained messages and the model: a map that is searched name by name.
#[derive(Default)]
struct Pair {
    retained: Retained<u32>,
    model: BTreeMap<Vec<String>, (TopicName, u32)>,
}

impl Pair {
    fn insert(&mut self, name: &TopicName, message: u32) {
        self.retained.insert(name.clone(), message);
        self.model.insert(levels(name), (name.clone(), message));
    }

    fn remove(&mut self, name: &TopicName) {
        self.retained.remove(name);
        self.model.remove(&levels(name));
    }

    /// Mostly known names, so that messages are replaced and the walk's own position vanishes.
    fn mutate(&mut self, rng: &mut Rng) -> Option<TopicName> {
        let known = match self.model.len() {
            0 => None,
            len => self.model.values().nth(rng.usize(..len)).map(|(name, _)| name.clone()),
        };
        match (rng.u8(..3), known) {
            (0, Some(name)) => {
                self.remove(&name);
                Some(name)
            }
            (1, Some(name)) => {
                self.insert(&name, rng.u32(..));
                None
            }
            _ => {
                self.insert(&name(rng), rng.u32(..));
                None
            }
        }
    }
}

/// Number of names between two positions, without `after` and with `end`.
fn examined(names: &[TopicName], after: Option<&TopicName>, end: &TopicName) -> usize {
    let at = |name| names.iter().position(|other| other == name).expect("a name");
    at(end) + 1 - after.map_or(0, |after| at(after) + 1)
}

/// Ends of the unfinished parts of a walk in which nothing matches.
fn ends(retained: &Retained<()>, filter: &TopicFilter, steps: usize) -> Vec<TopicName> {
    let mut ends: Vec<TopicName> = Vec::new();
    while let Walked::Unfinished(end) =
        retained.walk(filter, ends.last(), steps, |name, ()| unreachable!("{name} does not match"))
    {
        assert!(ends.last().is_none_or(|last| levels(last) < levels(&end)), "{end} is not ahead");
        ends.push(end);
    }
    ends
}

#[test]
fn parts_of_a_walk_visit_unchanged_names_once() {
    let (mut pieces, mut vanished) = (0, 0);
    for_each_seed(400, |rng| {
        let mut pair = Pair::default();
        for message in 0..rng.u32(..150) {
            pair.insert(&name(rng), message);
        }
        let filter = filter(rng);
        let mut stays: BTreeSet<_> = pair.model.values().map(|(name, _)| levels(name)).collect();
        stays.retain(|levels| filter.matches(&parse_name(&levels.join("/"))));
        let mut visited: Vec<Vec<String>> = Vec::new();
        let mut after = None;
        loop {
            let (steps, room) = (rng.usize(..10), rng.usize(1..10));
            let before = visited.len();
            let walked = pair.retained.walk(&filter, after.as_ref(), steps, |name, message| {
                assert!(filter.matches(name), "{filter} does not match {name}");
                assert_eq!(pair.model.get(&levels(name)), Some(&(name.clone(), *message)));
                visited.push(levels(name));
                if visited.len() - before == room {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            assert!(visited.len() - before <= room.min(steps.max(1)), "{filter}");
            let Walked::Unfinished(end) = walked else { break };
            assert!(pair.model.contains_key(&levels(&end)), "{end} was examined");
            assert!(after.is_none_or(|after| levels(&after) < levels(&end)), "{filter} got not beyond {end}");
            for _ in 0..rng.usize(..4) {
                if let Some(gone) = pair.mutate(rng) {
                    stays.remove(&levels(&gone));
                }
            }
            if rng.u8(..4) == 0 {
                pair.remove(&end);
                stays.remove(&levels(&end));
                vanished += 1;
            }
            pieces += 1;
            after = Some(end);
        }
        assert!(visited.is_sorted_by(|a, b| a < b), "{filter}: {visited:?}");
        let seen: BTreeSet<_> = visited.into_iter().collect();
        let missed: Vec<_> = stays.difference(&seen).collect();
        assert!(missed.is_empty(), "{filter}: {missed:?}");
    });
    assert!(pieces > 1_000 && vanished > 250, "{pieces} {vanished}");
}

/// A walk can continue behind any name, also an unknown one.
#[test]
fn a_walk_begins_strictly_behind_any_name() {
    for_each_seed(2_000, |rng| {
        let mut pair = Pair::default();
        for message in 0..40 {
            pair.insert(&name(rng), message);
        }
        let (filter, after) = (filter(rng), name(rng));
        let mut have = Vec::new();
        let walked = pair.retained.walk(&filter, Some(&after), usize::MAX, |name, message| {
            have.push((name.clone(), *message));
            ControlFlow::Continue(())
        });
        assert_eq!(walked, Walked::Finished);
        let behind = pair.model.range(levels(&after)..).map(|(_, entry)| entry);
        let want: Vec<_> =
            behind.filter(|(name, _)| *name != after && filter.matches(name)).cloned().collect();
        assert_eq!(have, want, "{filter} behind {after}");
    });
}

/// The work of a part is bounded although nothing matches, and no part wastes its steps.
#[test]
fn a_part_without_a_match_ends_after_its_steps() {
    let mut retained = Retained::new();
    for n in 0..2_000 {
        retained.insert(parse_name(&format!("{:02}/{n:04}/a/x", n / 100)), ());
    }
    let names: Vec<_> = retained.iter().map(|(name, ())| name.clone()).collect();
    let filter = parse_filter("+/+/+/nothing");
    for steps in [1, 7, 100, 1_999] {
        let ends = ends(&retained, &filter, steps);
        let mut after = None;
        for end in &ends {
            assert_eq!(examined(&names, after, end), steps);
            after = Some(end);
        }
        assert_eq!(ends.len(), names.len() / steps);
    }
    assert_eq!(ends(&retained, &filter, 2_001), []);
    assert_eq!(ends(&retained, &filter, 0).len(), names.len(), "a walk always gets on");
}

/// Names that a seek passes one by one cost a step each too.
#[test]
fn passed_names_count_as_examined() {
    let mut retained = Retained::new();
    for n in 0..100 {
        retained.insert(parse_name(&format!("{:02}/{}", n / 4, n % 4)), ());
    }
    let names: Vec<_> = retained.iter().map(|(name, ())| name.clone()).collect();
    for steps in 1..=names.len() {
        let walked = retained.walk(&parse_filter("+/9"), None, steps, |_, ()| ControlFlow::Continue(()));
        assert_eq!(walked, Walked::Unfinished(names[steps - 1].clone()));
    }
}

/// The seek that a part was about to make is made by the next one: 100 subtrees of 100 names cost two steps
/// each, in parts of any size.
#[test]
fn short_parts_seek_as_far_as_long_ones() {
    let mut retained = Retained::new();
    for n in 0..10_000 {
        retained.insert(parse_name(&format!("{:02}/{:02}", n / 100, n % 100)), ());
    }
    let filter = parse_filter("+/50x");
    assert_eq!(ends(&retained, &filter, 1).len(), 200);
    // Longer parts may pass a few neighbours before they search.
    let long = ends(&retained, &filter, 100).len();
    assert!((2..=20).contains(&long), "{long}");
}

#[test]
fn a_filter_without_wildcard_is_one_lookup() {
    let mut retained = Retained::new();
    for text in ["a", "a/b", "a/c", "b"] {
        retained.insert(parse_name(text), ());
    }
    for (after, want) in [(None, 1), (Some("a"), 1), (Some("a/b"), 0), (Some("a/b/c"), 0), (Some("zz"), 0)] {
        for text in ["a/b", "$share/x/a/b"] {
            let mut visits = 0;
            let walked = retained.walk(&parse_filter(text), after.map(parse_name).as_ref(), 1, |_, ()| {
                visits += 1;
                ControlFlow::Break(())
            });
            assert_eq!((walked, visits), (Walked::Finished, want), "{text} behind {after:?}");
        }
    }
}

#[test]
fn a_break_counts_the_message_as_visited() {
    let mut retained = Retained::new();
    for text in ["a/1", "a/2", "a/3"] {
        retained.insert(parse_name(text), ());
    }
    let mut visited: Vec<String> = Vec::new();
    let mut after = None;
    for _ in 0..3 {
        let walked = retained.walk(&parse_filter("a/#"), after.as_ref(), usize::MAX, |name, ()| {
            visited.push(name.to_string());
            ControlFlow::Break(())
        });
        let last = visited.last().map(|text| parse_name(text));
        assert_eq!(Some(walked), last.clone().map(Walked::Unfinished));
        after = last;
    }
    assert_eq!(visited, ["a/1", "a/2", "a/3"]);
}
