//! Plan of a small experiment for tests.

use std::collections::BTreeMap;

use super::{Plan, Stamp};
use crate::scenario::Scenario;
use crate::testbed::WireChoice;

/// Two variants on one profile; `ping` writes a summary, `look` does not.
const SCENARIO: &str = r#"
name = "small"
title = "small"
about = "small"
duration = "2s"
quick = "1s"
ends = ["a", "b"]
[[link]]
name = "wire"
between = ["a", "b"]
[[link]]
name = "clean"
between = ["b", "a"]
[[profile]]
name = "plain"
title = "plain"
links = { wire = "delay=1ms ; t=1s delay=5ms" }
[[program]]
name = "ping"
at = "a"
run = "ping {b} {json}"
[[program]]
name = "look"
at = "b"
run = "look"
[[variant]]
name = "one"
title = "one"
[[variant]]
name = "two"
title = "two"
[[metric]]
name = "lost"
value = "link:wire:up:dropped_share"
"#;

/// Plan of that scenario in a directory that does not exist.
pub(super) fn plan() -> Plan {
    Plan {
        scenario: Scenario::parse("small.toml", SCENARIO).expect("a scenario"),
        program: "braidmq".into(),
        directory: "nowhere".into(),
        quick: false,
        variants: Vec::new(),
        profiles: Vec::new(),
        seeds: None,
        repetitions: None,
        duration: None,
        replaced: BTreeMap::new(),
        wire: WireChoice::Auto,
        lateness: None,
        again: 0,
        logs: false,
        earlier: None,
        stamp: Stamp::default(),
    }
}
