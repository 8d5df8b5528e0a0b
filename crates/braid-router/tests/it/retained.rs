//! `Retained` against a map that is searched name by name.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use braid_proto::topic::TopicName;
use braid_router::{Retained, Walked};

use crate::generator::{filter, for_each_seed, levels, name, parse_filter, parse_name};

/// Matching names, which parts of any size find too.
fn found(retained: &Retained<u32>, pattern: &str) -> Vec<String> {
    let filter = parse_filter(pattern);
    let mut names = Vec::new();
    retained.matching(&filter, |name, _| names.push(name.to_string()));
    for steps in 1..5 {
        let (mut pieces, mut after) = (Vec::new(), None);
        while let Walked::Unfinished(end) = retained.walk(&filter, after.as_ref(), steps, |name, _| {
            pieces.push(name.to_string());
            ControlFlow::Continue(())
        }) {
            assert!(
                after.is_none_or(|after| levels(&after) < levels(&end)),
                "{pattern} got not beyond {end}"
            );
            after = Some(end);
        }
        assert_eq!(pieces, names, "{pattern} in pieces of {steps}");
    }
    names
}

/// [MQTT-3.3.1-5] [MQTT-3.3.1-6] The model is a map.
#[test]
fn random_operations_agree_with_the_model() {
    for_each_seed(60, |rng| {
        let mut retained = Retained::new();
        let mut model: BTreeMap<Vec<String>, (TopicName, u32)> = BTreeMap::new();
        for message in 0..300 {
            let name = name(rng);
            match rng.u8(..20) {
                0..4 => {
                    let old = model.remove(&levels(&name)).map(|(_, message)| message);
                    assert_eq!(retained.remove(&name), old, "{name}");
                }
                4 => {
                    let odd = rng.u32(2..5);
                    retained.retain(|_, message| message % odd != 0);
                    model.retain(|_, (_, message)| *message % odd != 0);
                }
                _ => {
                    let old = model.insert(levels(&name), (name.clone(), message)).map(|(_, old)| old);
                    assert_eq!(retained.insert(name.clone(), message), old, "{name}");
                }
            }
            assert_eq!(retained.get(&name), model.get(&levels(&name)).map(|(_, message)| message));
            assert_eq!((retained.len(), retained.is_empty()), (model.len(), model.is_empty()));
            let filter = filter(rng);
            let mut have = Vec::new();
            retained.matching(&filter, |name, message| have.push((name.clone(), *message)));
            let want: Vec<_> = model.values().filter(|(name, _)| filter.matches(name)).cloned().collect();
            assert_eq!(have, want, "{filter}");
        }
        let all: Vec<_> = retained.iter().map(|(name, message)| (name.clone(), *message)).collect();
        assert_eq!(all, model.into_values().collect::<Vec<_>>());
    });
}

/// [MQTT-4.7.2-1]
#[test]
fn first_level_wildcards_do_not_match_dollar_names() {
    let mut retained = Retained::new();
    for text in
        ["#!", "$SYS", "$SYS/a", "$", "$/a", "!/a", "%/a", "/a", "a"].map(|text| text.replace('#', "~"))
    {
        retained.insert(parse_name(&text), 0);
    }
    assert_eq!(found(&retained, "#"), ["/a", "!/a", "%/a", "a", "~!"]);
    assert_eq!(found(&retained, "+/a"), ["/a", "!/a", "%/a"]);
    assert_eq!(found(&retained, "$SYS/#"), ["$SYS", "$SYS/a"]);
    assert_eq!(found(&retained, "$/+"), ["$/a"]);
}

/// A level comes before those below it, and these before its longer siblings.
#[test]
fn messages_come_in_the_order_of_their_levels() {
    let mut retained = Retained::new();
    for text in ["a/b", "a!", "a", "a!/x", "a/", "aa", "a\u{1}"] {
        retained.insert(parse_name(text), 0);
    }
    let order = ["a", "a/", "a/b", "a\u{1}", "a!", "a!/x", "aa"];
    assert_eq!(found(&retained, "#"), order);
    assert_eq!(retained.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>(), order);
    assert_eq!(found(&retained, "$share/x/a/#"), ["a", "a/", "a/b"]);
}

/// `retain` visits all messages, in order.
#[test]
fn expiry_sees_every_message_once_and_in_order() {
    let mut retained = Retained::new();
    for n in (0..1_000_u32).rev() {
        retained.insert(parse_name(&format!("t/{n:04}")), n);
    }
    let mut seen = Vec::new();
    retained.retain(|_, message| {
        seen.push(*message);
        message % 100 == 0
    });
    assert_eq!(seen, (0..1_000).collect::<Vec<_>>());
    assert_eq!(retained.len(), 10);
    assert_eq!(found(&retained, "+/0100"), ["t/0100"]);
    assert_eq!(retained.remove(&parse_name("t/0101")), None);
}
