//! Random rules, subjects and topics from few words, so that they meet.

use braid_auth::acl::{Acl, Action, Subject};
use braid_proto::topic::{TopicFilter, TopicName};
use fastrand::Rng;

pub(crate) const ACTIONS: [Action; 3] = [Action::Publish, Action::Subscribe, Action::Receive];

/// Names of users, clients, groups and listeners. Some are levels of topics, and some must never become one.
const NAMES: [&str; 8] = ["a", "b", "$s", "", "+", "#", "a/b", QUOTED];

/// Name that has to be quoted in a file.
const QUOTED: &str = "a \"b\\";

/// Levels of rules and requested filters.
const LEVELS: [&str; 4] = ["a", "b", "$s", ""];

/// Level that no rule and no requested filter has: it stands for all others.
const OTHER_LEVEL: &str = "other";

/// Maximum number of levels of rules and requested filters.
const DEPTH: usize = 3;

/// Rule as the model reads it.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) allow: bool,
    pub(crate) actions: Vec<Action>,
    pub(crate) user: Option<&'static str>,
    pub(crate) client: Option<&'static str>,
    pub(crate) group: Option<&'static str>,
    pub(crate) listener: Option<&'static str>,
    pub(crate) filter: String,
}

pub(crate) type Selector = (Option<&'static str>, &'static str, Vec<&'static str>, Option<&'static str>);

/// Runs `check` for many seeds, and prints the seed of a failure.
pub(crate) fn for_each_seed(seeds: u64, mut check: impl FnMut(&mut Rng)) {
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed with seed {}", self.0);
            }
        }
    }
    for seed in 0..seeds {
        let seed = Seed(seed);
        check(&mut Rng::with_seed(seed.0));
    }
}

fn pick<T: Copy>(rng: &mut Rng, items: &[T]) -> T {
    items[rng.usize(..items.len())]
}

/// Value in one of four cases. The empty one cannot be written as a selector.
fn selector(rng: &mut Rng) -> Option<&'static str> {
    Some(pick(rng, &NAMES)).filter(|name| !name.is_empty() && rng.u8(..4) == 0)
}

fn filter(rng: &mut Rng, extra: &[&'static str]) -> String {
    loop {
        let mut levels: Vec<_> = (0..rng.usize(1..=DEPTH))
            .map(|_| match rng.u8(..5) {
                0 => "+",
                1 if !extra.is_empty() => pick(rng, extra),
                _ => pick(rng, &LEVELS),
            })
            .collect();
        if rng.u8(..3) == 0 {
            levels.pop();
            levels.push("#");
        }
        let text = levels.join("/");
        if TopicFilter::parse(&text).is_ok() {
            return text;
        }
    }
}

pub(crate) fn requested_filter(rng: &mut Rng) -> TopicFilter {
    let pattern = filter(rng, &[]);
    let text = if rng.u8(..4) == 0 { format!("$share/group/{pattern}") } else { pattern };
    TopicFilter::parse(&text).expect("a filter")
}

pub(crate) fn rules(rng: &mut Rng) -> Vec<Rule> {
    let rule = |rng: &mut Rng| Rule {
        allow: rng.u8(..3) > 0,
        actions: match rng.u8(..3) {
            0 => vec![pick(rng, &ACTIONS)],
            1 => vec![Action::Receive, Action::Subscribe],
            _ => ACTIONS.to_vec(),
        },
        user: selector(rng),
        client: selector(rng),
        group: selector(rng),
        listener: selector(rng),
        filter: filter(rng, &["%u", "%c"]),
    };
    (0..rng.usize(1..8)).map(|_| rule(rng)).collect()
}

pub(crate) fn subject(rng: &mut Rng) -> Selector {
    let groups = (0..rng.usize(..3)).map(|_| pick(rng, &NAMES)).collect();
    let user = Some(pick(rng, &NAMES)).filter(|_| rng.u8(..4) > 0);
    (user, pick(rng, &NAMES), groups, Some(pick(rng, &NAMES)).filter(|_| rng.bool()))
}

pub(crate) fn borrow(subject: &Selector) -> Subject<'_> {
    let (user, client_id, groups, listener) = subject;
    Subject { user: *user, client_id, groups, listener: *listener }
}

/// All names of the alphabet with one level more than the longest filter.
pub(crate) fn all_names() -> Vec<TopicName> {
    let alphabet = LEVELS.iter().copied().chain([QUOTED, OTHER_LEVEL]);
    let mut texts: Vec<String> = alphabet.clone().map(str::to_owned).collect();
    let mut from = 0;
    for _ in 0..DEPTH {
        let until = texts.len();
        for position in from..until {
            texts.extend(
                alphabet.clone().map(|level| format!("{}/{level}", texts[position])).collect::<Vec<_>>(),
            );
        }
        from = until;
    }
    texts.iter().filter_map(|text| TopicName::parse(text).ok()).collect()
}

/// File of these rules, one on each line from line 1 on.
pub(crate) fn file(rng: &mut Rng, rules: &[Rule]) -> String {
    let mut text = String::new();
    for rule in rules {
        let names = rule.actions.iter().map(|action| match action {
            Action::Publish => "publish",
            Action::Subscribe => "subscribe",
            Action::Receive => "receive",
        });
        let actions =
            if rule.actions.len() == 3 { "all".to_owned() } else { names.collect::<Vec<_>>().join(",") };
        let mut words = vec![if rule.allow { "allow" } else { "deny" }.to_owned(), actions];
        let selectors = [
            ("user", rule.user),
            ("client", rule.client),
            ("group", rule.group),
            ("listener", rule.listener),
        ];
        for (kind, value) in selectors.into_iter().chain([("topic", Some(&*rule.filter))]) {
            let Some(value) = value else { continue };
            let is_quoted = value == QUOTED || rng.bool();
            let escaped = format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""));
            words.extend([kind.to_owned(), if is_quoted { escaped } else { value.to_owned() }]);
        }
        text += &format!("{}{}\n", words.join(pick(rng, &[" ", "\t", " \t "])), pick(rng, &["", " ", "\r"]));
    }
    text
}

pub(crate) fn parse(text: &str) -> Acl {
    Acl::parse(text.as_bytes(), "acl").expect(text)
}
