//! Cost of a decision by the kind of rules, and of reading a file: `cargo run --release -p braid-auth --example
//! decision_cost`.

use std::hint::black_box;
use std::time::Instant;

use braid_auth::acl::{Acl, Action, Subject};
use braid_proto::topic::{TopicFilter, TopicName};

/// Decisions that are timed together.
const DECISIONS: usize = 20_000;

fn main() {
    println!("{:<44} {:>8} {:>12} {:>12} {:>12}", "rules", "count", "PUBLISH", "SUBSCRIBE +", "SUBSCRIBE #");
    for count in [1_000, 10_000] {
        for (name, rule) in KINDS {
            let text: String = (0..count).map(rule).collect();
            let acl = Acl::parse(text.as_bytes(), "acl").expect("a list");
            let times = [
                nanoseconds(count, |subject, number| {
                    let topic = TopicName::parse(&format!("site{number}/{number}/data")).expect("a name");
                    acl.decide(subject, Action::Publish, &topic).allowed
                }),
                nanoseconds(count, |subject, number| {
                    subscribe(&acl, subject, &format!("site{number}/+/data"))
                }),
                nanoseconds(count, |subject, _| subscribe(&acl, subject, "#")),
            ];
            println!("{name:<44} {count:>8} {:>9} ns {:>9} ns {:>9} ns", times[0], times[1], times[2]);
        }
    }
    let text: String = (0..10_000)
        .map(|number| {
            format!(
                "allow publish user user{number} topic a/{number}/#\ndeny all user user{number} topic b\n"
            )
        })
        .collect();
    let start = Instant::now();
    let rules = black_box(Acl::parse(text.as_bytes(), "acl").expect("a list")).rules();
    println!("{rules} rules of 10000 users are read in {} ms", start.elapsed().as_millis());
}

/// Kind of rules: its name, and the rule with a number.
type Kind = (&'static str, fn(usize) -> String);

const KINDS: [Kind; 6] = [
    ("of one user each", |number| format!("allow all user user{number} topic site{number}/#\n")),
    ("all of one user", |number| format!("allow all user user topic site{number}/#\n")),
    ("of one group each", |number| format!("allow all group group{number} topic site{number}/#\n")),
    ("of everyone, literal first level", |number| format!("allow all topic site{number}/+/data\n")),
    ("of everyone, wildcard in the first level", |number| format!("allow all topic +/{number}/data\n")),
    ("of everyone, deny and allow in turn", |number| {
        format!("{} all topic site{number}/%u/#\n", if number.is_multiple_of(2) { "deny" } else { "allow" })
    }),
];

fn subscribe(acl: &Acl, subject: &Subject<'_>, filter: &str) -> bool {
    acl.decide_filter(subject, Action::Subscribe, &TopicFilter::parse(filter).expect("a filter")).allowed
}

/// Nanoseconds of one decision, with the parsing of its topic.
fn nanoseconds(count: usize, decide: impl Fn(&Subject<'_>, usize) -> bool) -> u128 {
    let start = Instant::now();
    for decision in 0..DECISIONS {
        let number = decision * 7919 % count;
        let user = if number.is_multiple_of(2) { "user".to_owned() } else { format!("user{number}") };
        let group = format!("group{number}");
        let subject =
            Subject { user: Some(&user), client_id: "c", groups: &[&group], listener: None, address: None };
        black_box(decide(&subject, number));
    }
    start.elapsed().as_nanos() / DECISIONS as u128
}
