//! Random rules, subjects and topics from few words, so that they meet.

use std::collections::BTreeSet;

use braid_auth::acl::{ACTIONS, Acl, Action, Subject};
use braid_proto::topic::{TopicFilter, TopicName};
use fastrand::Rng;

/// Names of users, clients, groups and listeners. Some are levels of topics, and some must never become one.
const NAMES: [&str; 8] = ["a", "b", "$s", "", "+", "#", "a/b", QUOTED];

/// Name that has to be quoted in a file.
const QUOTED: &str = "a, \"b\\";

/// Networks, with those of `ADDRESSES` that are in them.
const NETWORKS: [(&str, &[usize]); 5] = [
    ("10.0.0.0/8", &[0, 1, 2]),
    ("10.1.2.3", &[0]),
    ("0.0.0.0/0", &[0, 1, 2, 3]),
    ("::/0", &[4]),
    ("fd00::/64", &[4]),
];

const ADDRESSES: [&str; 5] = ["10.1.2.3", "10.9.9.9", "::ffff:10.9.9.9", "192.0.2.1", "fd00::1"];

/// Levels of rules and requested filters.
const LEVELS: [&str; 4] = ["a", "b", "$s", ""];

/// Level that no rule and no requested filter has: it stands for all others.
const OTHER_LEVEL: &str = "other";

/// Maximum number of levels of rules and requested filters.
const DEPTH: usize = 3;

/// Rule as the model reads it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rule {
    pub(crate) allow: bool,
    pub(crate) actions: Vec<Action>,
    pub(crate) user: Option<&'static str>,
    pub(crate) client: Option<&'static str>,
    pub(crate) group: Option<&'static str>,
    pub(crate) listener: Option<&'static str>,
    /// Position in `NETWORKS`.
    network: Option<usize>,
    pub(crate) is_anonymous: bool,
    pub(crate) names: Option<&'static str>,
    pub(crate) filter: String,
}

impl Rule {
    pub(crate) fn has_address_of(&self, client: &Client) -> bool {
        self.network.is_none_or(|network| client.address.is_some_and(|at| NETWORKS[network].1.contains(&at)))
    }
}

/// File as the model reads it.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    /// Groups with their users, a line each.
    pub(crate) groups: Vec<(&'static str, Vec<&'static str>)>,
    pub(crate) rules: Vec<Rule>,
}

/// Subject as the model reads it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) user: Option<&'static str>,
    pub(crate) client_id: &'static str,
    pub(crate) groups: Vec<&'static str>,
    pub(crate) listener: Option<&'static str>,
    /// Position in `ADDRESSES`.
    address: Option<usize>,
}

impl Client {
    pub(crate) fn subject(&self) -> Subject<'_> {
        let Self { user, client_id, ref groups, listener, address } = *self;
        let address = address.map(|at| ADDRESSES[at].parse().expect("an address"));
        Subject { user, client_id, groups, listener, address }
    }
}

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

pub(crate) fn filter(rng: &mut Rng, extra: &[&'static str]) -> String {
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

/// List that is long enough for branches of the index in one of three cases, half of these without selectors, so that
/// many rules have the same first levels.
pub(crate) fn list(rng: &mut Rng) -> List {
    if rng.u8(..3) > 0 {
        return short_list(rng);
    }
    let rules = (0..rng.usize(20..80)).map(|_| rule(rng)).collect();
    let list = List { groups: groups(rng), rules };
    if rng.bool() { list } else { List { rules: list.rules.into_iter().map(bare).collect(), ..list } }
}

pub(crate) fn short_list(rng: &mut Rng) -> List {
    List { groups: groups(rng), rules: (0..rng.usize(1..8)).map(|_| rule(rng)).collect() }
}

/// Rules without selectors.
pub(crate) fn own_list(rng: &mut Rng) -> List {
    let rules = short_list(rng).rules.into_iter();
    List { groups: Vec::new(), rules: rules.map(bare).collect() }
}

fn bare(Rule { allow, actions, filter, .. }: Rule) -> Rule {
    Rule { allow, actions, filter, ..Rule::default() }
}

fn groups(rng: &mut Rng) -> Vec<(&'static str, Vec<&'static str>)> {
    let name =
        |rng: &mut Rng| NAMES.into_iter().filter(|name| !name.is_empty()).nth(rng.usize(..7)).expect("seven");
    (0..rng.usize(..3)).map(|_| (name(rng), (0..rng.usize(1..4)).map(|_| name(rng)).collect())).collect()
}

fn rule(rng: &mut Rng) -> Rule {
    let user = selector(rng);
    Rule {
        allow: rng.u8(..3) > 0,
        actions: match rng.u8(..3) {
            0 => vec![pick(rng, &ACTIONS)],
            1 => vec![Action::Receive, Action::Subscribe],
            _ => ACTIONS.to_vec(),
        },
        user,
        client: selector(rng),
        group: selector(rng),
        listener: selector(rng),
        network: Some(rng.usize(..NETWORKS.len())).filter(|_| rng.u8(..4) == 0),
        is_anonymous: user.is_none() && rng.u8(..4) == 0,
        names: Some(pick(rng, &["literal", "level"])).filter(|_| rng.u8(..4) == 0),
        filter: filter(rng, &["%u", "%c"]),
    }
}

pub(crate) fn client(rng: &mut Rng) -> Client {
    Client {
        groups: (0..rng.usize(..3)).map(|_| pick(rng, &NAMES)).collect(),
        user: Some(pick(rng, &NAMES)).filter(|_| rng.u8(..4) > 0),
        client_id: pick(rng, &NAMES),
        listener: Some(pick(rng, &NAMES)).filter(|_| rng.bool()),
        address: Some(rng.usize(..ADDRESSES.len())).filter(|_| rng.u8(..4) > 0),
    }
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

/// File of this list, with its groups and rules one on each line from line 1 on.
pub(crate) fn file(rng: &mut Rng, list: &List) -> String {
    let mut text = String::new();
    for (name, users) in &list.groups {
        let users: BTreeSet<_> = users.iter().map(|user| quoted(rng, user)).collect();
        let users = users.into_iter().collect::<Vec<_>>();
        let words = [&["group".to_owned(), quoted(rng, name), "=".to_owned()], &*users].concat();
        text += &line(rng, &words);
    }
    for rule in &list.rules {
        let names = rule.actions.iter().map(|action| action.name());
        let actions = match rule.actions.len() {
            4 => "all".to_owned(),
            _ => names.collect::<Vec<_>>().join(","),
        };
        let mut words = vec![if rule.allow { "allow" } else { "deny" }.to_owned(), actions];
        words.extend(rule.is_anonymous.then(|| "anonymous".to_owned()));
        let selectors = [
            ("user", rule.user),
            ("client", rule.client),
            ("group", rule.group),
            ("listener", rule.listener),
            ("address", rule.network.map(|network| NETWORKS[network].0)),
            ("names", rule.names),
            ("topic", Some(&*rule.filter)),
        ];
        for (kind, value) in selectors {
            if let Some(value) = value {
                words.extend([kind.to_owned(), quoted(rng, value)]);
            }
        }
        text += &line(rng, &words);
    }
    text
}

/// Value as the file has it, in quotes if it must be, and at random.
fn quoted(rng: &mut Rng, value: &str) -> String {
    if value == QUOTED || rng.bool() {
        format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        value.to_owned()
    }
}

fn line(rng: &mut Rng, words: &[String]) -> String {
    format!("{}{}\n", words.join(pick(rng, &[" ", "\t", " \t "])), pick(rng, &["", " ", "\r"]))
}

pub(crate) fn parse(text: &str) -> Acl {
    Acl::parse(text.as_bytes(), "acl").expect(text)
}
