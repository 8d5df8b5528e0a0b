//! Decisions against a model that tries every rule, and every topic of a small alphabet.

use std::num::NonZeroUsize;

use braid_auth::acl::{Acl, Action, Decision, Subject};
use braid_proto::topic::{TopicFilter, TopicName};
use fastrand::Rng;

use crate::generator::{
    ACTIONS, Rule, all_names, borrow, file, for_each_seed, parse, requested_filter, rules, subject,
};

/// Filter of a rule for a subject; `None` if it matches nothing.
fn substituted(rule: &Rule, subject: &Subject<'_>) -> Option<TopicFilter> {
    let mut levels = Vec::new();
    for (depth, level) in rule.filter.split('/').enumerate() {
        let value = match level {
            "%u" => subject.user?,
            "%c" => subject.client_id,
            _ => {
                levels.push(level);
                continue;
            }
        };
        if value.is_empty() || value.contains(['+', '#', '/']) || depth == 0 && value.starts_with('$') {
            return None;
        }
        levels.push(value);
    }
    Some(TopicFilter::parse(&levels.join("/")).expect("a filter"))
}

/// Filters of the rules that apply, with what they answer.
fn applicable(rules: &[Rule], subject: &Subject<'_>, action: Action) -> Vec<(TopicFilter, Decision)> {
    let mut found = Vec::new();
    for (position, rule) in rules.iter().enumerate() {
        let applies = rule.actions.contains(&action)
            && (rule.user.is_none() || rule.user == subject.user)
            && (rule.client.is_none() || rule.client == Some(subject.client_id))
            && (rule.listener.is_none() || rule.listener == subject.listener)
            && rule.group.is_none_or(|group| subject.groups.contains(&group));
        if let Some(filter) = substituted(rule, subject).filter(|_| applies) {
            found.push((filter, Decision { allowed: rule.allow, line: NonZeroUsize::new(position + 1) }));
        }
    }
    found
}

const DEFAULT: Decision = Decision { allowed: false, line: None };

fn first_match(rules: &[(TopicFilter, Decision)], topic: &TopicName) -> Decision {
    rules.iter().find(|(filter, _)| filter.matches(topic)).map_or(DEFAULT, |(_, decision)| *decision)
}

#[test]
fn decisions_on_topics_agree_with_a_model() {
    let names = all_names();
    for_each_seed(100, |rng| {
        let rules = rules(rng);
        let text = file(rng, &rules);
        let acl = parse(&text);
        for _ in 0..4 {
            let subject = subject(rng);
            let subject = borrow(&subject);
            for action in ACTIONS {
                let applicable = applicable(&rules, &subject, action);
                for name in &names {
                    let expected = first_match(&applicable, name);
                    assert_eq!(
                        acl.decide(&subject, action, name),
                        expected,
                        "{subject:?} {action:?} {name}\n{text}"
                    );
                }
            }
        }
    });
}

/// Rule 4 of the advisories: a wildcard must not reach what the rules deny.
#[test]
fn a_granted_filter_matches_permitted_topics_only() {
    let names = all_names();
    let mut granted = 0;
    for_each_seed(2000, |rng| {
        let text = random_file(rng);
        let acl = parse(&text);
        for _ in 0..10 {
            let (subject, filter) = (subject(rng), requested_filter(rng));
            let subject = borrow(&subject);
            if !acl.decide_filter(&subject, &filter).allowed {
                continue;
            }
            granted += u32::from(filter.has_wildcard());
            for name in names.iter().filter(|name| filter.matches(name)) {
                let decision = acl.decide(&subject, Action::Subscribe, name);
                assert!(decision.allowed, "{subject:?} {filter} {name} {decision:?}\n{text}");
            }
        }
    });
    assert!(granted > 500, "only {granted} filters with wildcards were granted");
}

/// The definition of `decide_filter`, with "covers" and "overlaps" by enumeration.
#[test]
fn decisions_on_filters_are_those_that_the_documentation_defines() {
    let names = all_names();
    for_each_seed(2000, |rng| {
        let rules = rules(rng);
        let text = file(rng, &rules);
        let acl = parse(&text);
        for _ in 0..5 {
            let (subject, filter) = (subject(rng), requested_filter(rng));
            let subject = borrow(&subject);
            // The parent of `/#` is no topic, because it is empty, and yet counts as one.
            if filter.pattern() == "/#" || rules.iter().any(|rule| rule.filter == "/#") {
                continue;
            }
            let matched: Vec<_> = names.iter().filter(|name| filter.matches(name)).collect();
            let expected =
                applicable(&rules, &subject, Action::Subscribe).into_iter().find(|(rule, decision)| {
                    if decision.allowed {
                        matched.iter().all(|name| rule.matches(name))
                    } else {
                        matched.iter().any(|name| rule.matches(name))
                    }
                });
            let expected = expected.map_or(DEFAULT, |(_, decision)| decision);
            assert_eq!(acl.decide_filter(&subject, &filter), expected, "{subject:?} {filter}\n{text}");
        }
    });
}

/// File of random rules.
fn random_file(rng: &mut Rng) -> String {
    let rules = rules(rng);
    file(rng, &rules)
}

#[test]
fn a_filter_without_wildcards_is_decided_as_its_topic() {
    let names = all_names();
    for_each_seed(100, |rng| {
        let text = random_file(rng);
        let (acl, subject) = (parse(&text), subject(rng));
        let subject = borrow(&subject);
        for name in &names {
            let filter = TopicFilter::parse(name.as_str()).unwrap();
            let expected = acl.decide(&subject, Action::Subscribe, name);
            assert_eq!(acl.decide_filter(&subject, &filter), expected, "{subject:?} {name}\n{text}");
        }
    });
}

/// Rule 5 of the advisories: a damaged file fails closed.
#[test]
fn a_file_that_was_cut_permits_nothing_more() {
    let names = all_names();
    for_each_seed(15, |rng| {
        let text = random_file(rng);
        let whole = parse(&text);
        let subjects: Vec<_> = (0..4).map(|_| subject(rng)).collect();
        let filters: Vec<_> = (0..10).map(|_| requested_filter(rng)).collect();
        for end in 0..text.len() {
            let Ok(cut) = Acl::parse(&text.as_bytes()[..end], "acl") else { continue };
            assert!(text[..end].ends_with('\n'), "cut inside a line");
            for subject in subjects.iter().map(borrow) {
                for (name, action) in names.iter().flat_map(|name| ACTIONS.map(|action| (name, action))) {
                    let is_more = cut.decide(&subject, action, name).allowed
                        && !whole.decide(&subject, action, name).allowed;
                    assert!(!is_more, "{subject:?} {action:?} {name} at {end}\n{text}");
                }
                for filter in &filters {
                    let is_more = cut.decide_filter(&subject, filter).allowed
                        && !whole.decide_filter(&subject, filter).allowed;
                    assert!(!is_more, "{subject:?} {filter} at {end}\n{text}");
                }
            }
        }
    });
}
