//! Decisions that documents and advisories name.

use braid_auth::acl::{Action, Subject};
use braid_proto::topic::{TopicFilter, TopicName};

use crate::generator::parse;

const BOB: Subject<'_> =
    Subject { user: Some("bob"), client_id: "c1", groups: &[], listener: None, address: None };

fn permits(text: &str, subject: Subject<'_>, topic: &str) -> bool {
    parse(text).decide(&subject, Action::Publish, &TopicName::parse(topic).expect("a name")).allowed
}

fn grants(text: &str, filter: &str) -> (bool, Option<usize>) {
    let decision =
        parse(text).decide_filter(&BOB, Action::Subscribe, &TopicFilter::parse(filter).expect("a filter"));
    (decision.allowed, decision.line.map(usize::from))
}

/// CVE-2017-7650: a client named `+` or `#` had the rights of all others.
#[test]
fn a_name_with_wildcards_or_levels_is_never_a_level() {
    let rules = "allow all topic home/%u/#\nallow all topic device/%c\n";
    let subject = |name| Subject { user: Some(name), client_id: name, ..BOB };
    assert!(permits(rules, subject("bob"), "home/bob/lamp") && permits(rules, subject("bob"), "device/bob"));
    for name in ["+", "#", "bob/lamp", "/", "", "bo\0b", "bob+", "bob#"] {
        for topic in ["home/bob/lamp", "home/bob", "device/bob", "home/", "device/", "home//lamp"] {
            assert!(!permits(rules, subject(name), topic), "{name:?} {topic}");
        }
    }
    assert!(!permits(rules, Subject { user: None, ..BOB }, "home/bob/lamp"));
}

#[test]
fn a_name_with_a_dollar_does_not_reach_the_topics_of_the_broker() {
    let rules = "allow all topic %u/#\n";
    assert!(permits(rules, BOB, "bob/broker"));
    assert!(!permits(rules, Subject { user: Some("$SYS"), ..BOB }, "$SYS/broker"));
    assert!(permits("allow all topic home/%u\n", Subject { user: Some("$SYS"), ..BOB }, "home/$SYS"));
}

#[test]
fn topics_with_a_dollar_need_a_rule_that_names_it() {
    assert_eq!(grants("allow all topic #\n", "$SYS/#"), (false, None));
    assert_eq!(grants("allow all topic #\nallow all topic $SYS/#\n", "$SYS/+"), (true, Some(2)));
    assert_eq!(grants("deny all topic $SYS/#\nallow all topic #\n", "#"), (true, Some(2)));
}

#[test]
fn shared_subscriptions_are_decided_by_their_filter() {
    let rules = "allow subscribe topic jobs/+\n";
    assert_eq!(grants(rules, "$share/workers/jobs/+"), (true, Some(1)));
    assert_eq!(grants(rules, "$share/workers/jobs/#"), (false, None));
    assert_eq!(grants("allow subscribe topic #\n", "$share/workers/$SYS/#"), (false, None));
}

/// Each pair of cases is named in the documentation of `decide_filter`.
#[test]
fn overlapping_rules_deny_what_no_single_rule_covers() {
    assert_eq!(grants("deny all topic a/key\nallow all topic a/#\n", "a/+"), (false, Some(1)));
    assert_eq!(grants("allow all topic a/#\ndeny all topic a/key\n", "a/+"), (true, Some(1)));
    assert_eq!(grants("allow all topic a\nallow all topic a/+/#\n", "a/#"), (false, None));
    let shadowed = "allow all topic a/b/#\ndeny all topic a/b/c\nallow all topic a/#\n";
    assert_eq!(grants(shadowed, "a/#"), (false, Some(2)));
    assert_eq!(grants("allow all topic +/#\n", "#"), (true, Some(1)));
}

#[test]
fn the_example_of_the_documentation_is_a_list() {
    let source = include_str!("../../src/acl/mod.rs");
    let lines = source
        .lines()
        .skip_while(|line| !line.contains("# Sensors"))
        .take_while(|line| !line.contains("```"));
    let text: String = lines.map(|line| format!("{}\n", line.trim_start_matches("//! "))).collect();
    let acl = parse(&text);
    let decide = |subject: &Subject<'_>, topic| {
        acl.decide(subject, Action::Receive, &TopicName::parse(topic).expect("a name")).line.map(usize::from)
    };
    let wall = Subject { user: Some("wall"), ..BOB };
    assert_eq!(decide(&wall, "sensors/c1/key"), Some(4));
    assert_eq!(decide(&wall, "sensors/c1/heat"), Some(5));
    assert_eq!(decide(&Subject { groups: &["dashboards"], ..BOB }, "sensors/c1/heat"), Some(5));
    assert_eq!(decide(&BOB, "sensors/c1/heat"), None);
    let jane = Subject { user: Some("Jane Doe"), listener: Some("internal"), ..BOB };
    assert_eq!(decide(&jane, "x"), Some(6));
    let guest = Subject { user: None, address: Some("10.1.255.3".parse().expect("an address")), ..BOB };
    assert_eq!(decide(&guest, "public/x"), Some(7));
}

/// Lists of the page, and what it says about the first one.
#[test]
fn the_lists_of_the_page_are_lists() {
    let page = include_str!("../../../../docs/permissions.md");
    let blocks: Vec<_> =
        page.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 5);
    blocks.iter().for_each(|block| drop(parse(block)));
    let wall = Subject { user: Some("wall"), ..BOB };
    let grants = |text: &str, filter| {
        parse(text)
            .decide_filter(&wall, Action::Subscribe, &TopicFilter::parse(filter).expect("a filter"))
            .allowed
    };
    assert!(grants(blocks[0], "devices/+/heat") && !grants(blocks[0], "devices/#"));
    assert!(grants(&blocks[0].replace("deny  all", "deny publish,receive"), "devices/#"));
}
