//! Decisions against a model that tries every rule, and every topic of a small alphabet.

use std::num::NonZeroUsize;

use braid_auth::acl::{self, ACTIONS, Acl, Action, Decision};
use braid_proto::topic::{TopicFilter, TopicName};
use fastrand::Rng;

use crate::generator::{
    Client, List, Rule, all_names, client, file, for_each_seed, list, own_list, parse, requested_filter,
    short_list,
};

/// Filter of a rule for a client; `None` if it matches nothing.
fn substituted(rule: &Rule, client: &Client) -> Option<TopicFilter> {
    let mut levels = Vec::new();
    for (depth, level) in rule.filter.split('/').enumerate() {
        let value = match level {
            "%u" => client.user?,
            "%c" => client.client_id,
            _ => {
                levels.push(level);
                continue;
            }
        };
        if !is_level(value) || depth == 0 && value.starts_with('$') {
            return None;
        }
        levels.push(value);
    }
    Some(TopicFilter::parse(&levels.join("/")).expect("a filter"))
}

fn is_level(value: &str) -> bool {
    !value.is_empty() && !value.contains(['+', '#', '/'])
}

fn has_names(client: &Client, kind: &str) -> bool {
    let mut names = [Some(client.client_id), client.user].into_iter().flatten();
    match kind {
        "literal" => names.all(|name| !name.contains('+') && !name.contains('#')),
        "level" => names.all(|name| is_level(name) && !name.starts_with('$')),
        _ => unreachable!("no kind"),
    }
}

/// Filters of the rules that apply, with what they answer.
fn applicable(list: &List, client: &Client, action: Action) -> Vec<(TopicFilter, Decision)> {
    let is_member = |group: &str| {
        let has_user = |users: &[&str]| client.user.is_some_and(|user| users.contains(&user));
        client.groups.contains(&group)
            || list.groups.iter().any(|(name, users)| *name == group && has_user(users))
    };
    let mut found = Vec::new();
    for (position, rule) in list.rules.iter().enumerate() {
        let applies = rule.actions.contains(&action)
            && (rule.user.is_none() || rule.user == client.user)
            && (rule.client.is_none() || rule.client == Some(client.client_id))
            && (rule.listener.is_none() || rule.listener == client.listener)
            && rule.group.is_none_or(is_member)
            && rule.has_address_of(client)
            && !(rule.is_anonymous && client.user.is_some())
            && rule.names.is_none_or(|kind| has_names(client, kind));
        if let Some(filter) = substituted(rule, client).filter(|_| applies) {
            let line = NonZeroUsize::new(list.groups.len() + position + 1);
            found.push((filter, Decision { allowed: rule.allow, line, list: 0 }));
        }
    }
    found
}

const DEFAULT: Decision = Decision { allowed: false, line: None, list: 0 };

fn first_match(rules: &[(TopicFilter, Decision)], topic: &TopicName) -> Decision {
    rules.iter().find(|(filter, _)| filter.matches(topic)).map_or(DEFAULT, |(_, decision)| *decision)
}

/// First decision on a filter, with "covers" and "overlaps" by enumeration.
fn first_cover(rules: &[(TopicFilter, Decision)], filter: &TopicFilter, names: &[TopicName]) -> Decision {
    let matched: Vec<_> = names.iter().filter(|name| filter.matches(name)).collect();
    let found = rules.iter().find(|(rule, decision)| {
        if decision.allowed {
            matched.iter().all(|name| rule.matches(name))
        } else {
            matched.iter().any(|name| rule.matches(name))
        }
    });
    found.map_or(DEFAULT, |(_, decision)| *decision)
}

/// The parent of `/#` is no topic, because it is empty, and yet counts as one.
fn has_empty_parent(list: &List) -> bool {
    list.rules.iter().any(|rule| rule.filter == "/#")
}

#[test]
fn decisions_on_topics_agree_with_a_model() {
    let names = all_names();
    for_each_seed(100, |rng| {
        let list = list(rng);
        let text = file(rng, &list);
        let acl = parse(&text);
        assert_eq!(acl.rules(), list.rules.len());
        for _ in 0..4 {
            let client = client(rng);
            let subject = client.subject();
            for action in ACTIONS {
                let applicable = applicable(&list, &client, action);
                for name in &names {
                    let expected = first_match(&applicable, name);
                    let decision = acl.decide(&subject, action, name);
                    assert_eq!(decision, expected, "{subject:?} {action:?} {name}\n{text}");
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
            let (client, filter, action) = (client(rng), requested_filter(rng), ACTIONS[rng.usize(..4)]);
            let subject = client.subject();
            if !acl.decide_filter(&subject, action, &filter).allowed {
                continue;
            }
            granted += u32::from(filter.has_wildcard());
            for name in names.iter().filter(|name| filter.matches(name)) {
                let decision = acl.decide(&subject, action, name);
                assert!(decision.allowed, "{subject:?} {action:?} {filter} {name} {decision:?}\n{text}");
            }
        }
    });
    assert!(granted > 500, "only {granted} filters with wildcards were granted");
}

/// The definition of `decide_filter`.
#[test]
fn decisions_on_filters_are_those_that_the_documentation_defines() {
    let names = all_names();
    for_each_seed(2000, |rng| {
        let list = list(rng);
        let text = file(rng, &list);
        let acl = parse(&text);
        for _ in 0..5 {
            let (client, filter, action) = (client(rng), requested_filter(rng), ACTIONS[rng.usize(..4)]);
            if filter.pattern() == "/#" || has_empty_parent(&list) {
                continue;
            }
            let subject = client.subject();
            let expected = first_cover(&applicable(&list, &client, action), &filter, &names);
            let decision = acl.decide_filter(&subject, action, &filter);
            assert_eq!(decision, expected, "{subject:?} {action:?} {filter}\n{text}");
        }
    });
}

/// Several lists decide as one with the rules of all of them.
#[test]
fn own_rules_come_before_those_of_the_file() {
    let names = all_names();
    let mut decided = [0, 0];
    for_each_seed(1000, |rng| {
        let lists = [own_list(rng), list(rng)];
        let texts = lists.each_ref().map(|list| file(rng, list));
        let own = Acl::parse_own(texts[0].trim_end().as_bytes(), "own").expect(&texts[0]);
        let file = parse(&texts[1]);
        let client = client(rng);
        let (subject, action) = (client.subject(), ACTIONS[rng.usize(..4)]);
        let mut rules = Vec::new();
        for (position, list) in lists.iter().enumerate() {
            let found = applicable(list, &client, action).into_iter();
            rules.extend(found.map(|(filter, decision)| (filter, Decision { list: position, ..decision })));
        }
        for _ in 0..20 {
            let name = &names[rng.usize(..names.len())];
            let decision = acl::decide(&[&own, &file], &subject, action, name);
            assert_eq!(decision, first_match(&rules, name), "{subject:?} {action:?} {name}\n{texts:?}");
            decided[decision.list] += u32::from(decision.line.is_some());
        }
        let filter = requested_filter(rng);
        if filter.pattern() != "/#" && !lists.iter().any(has_empty_parent) {
            let decision = acl::decide_filter(&[&own, &file], &subject, action, &filter);
            assert_eq!(decision, first_cover(&rules, &filter, &names), "{subject:?} {filter}\n{texts:?}");
        }
    });
    assert!(decided.into_iter().all(|count| count > 500), "{decided:?}");
}

/// File of a few random rules.
fn random_file(rng: &mut Rng) -> String {
    let list = short_list(rng);
    file(rng, &list)
}

#[test]
fn a_filter_without_wildcards_is_decided_as_its_topic() {
    let names = all_names();
    for_each_seed(100, |rng| {
        let text = random_file(rng);
        let (acl, client) = (parse(&text), client(rng));
        let subject = client.subject();
        for name in &names {
            let filter = TopicFilter::parse(name.as_str()).unwrap();
            let expected = acl.decide(&subject, Action::Subscribe, name);
            let decision = acl.decide_filter(&subject, Action::Subscribe, &filter);
            assert_eq!(decision, expected, "{subject:?} {name}\n{text}");
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
        let clients: Vec<_> = (0..4).map(|_| client(rng)).collect();
        let filters: Vec<_> = (0..10).map(|_| requested_filter(rng)).collect();
        for end in 0..text.len() {
            let Ok(cut) = Acl::parse(&text.as_bytes()[..end], "acl") else { continue };
            assert!(text[..end].ends_with('\n'), "cut inside a line");
            for subject in clients.iter().map(Client::subject) {
                for (name, action) in names.iter().flat_map(|name| ACTIONS.map(|action| (name, action))) {
                    let is_more = cut.decide(&subject, action, name).allowed
                        && !whole.decide(&subject, action, name).allowed;
                    assert!(!is_more, "{subject:?} {action:?} {name} at {end}\n{text}");
                }
                for filter in &filters {
                    let is_more = cut.decide_filter(&subject, Action::Subscribe, filter).allowed
                        && !whole.decide_filter(&subject, Action::Subscribe, filter).allowed;
                    assert!(!is_more, "{subject:?} {filter} at {end}\n{text}");
                }
            }
        }
    });
}
