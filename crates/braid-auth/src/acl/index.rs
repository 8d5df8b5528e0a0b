//! Index of rules by user, client, group, and the levels of their filters.
//!
//! A search asks only the rules that may match, and finds the first of those that do. The rules of one user, client or
//! group, and those of all others, are each a trie of levels. A branch with few rules is a list of them.

use hashbrown::HashMap;

use super::pattern::{Level, Substitutes};
use super::{Rule, Subject};

/// Number of rules up to which a list is as fast as a branch.
const MAX_LIST: usize = 8;

/// Position that stands for no rule.
const NONE: usize = usize::MAX;

/// Positions of rules.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Those with a user.
    by_user: HashMap<Box<str>, Node>,
    /// Those with a client and no user.
    by_client: HashMap<Box<str>, Node>,
    /// Those with a group, and without user and client.
    by_group: HashMap<Box<str>, Node>,
    others: Node,
}

/// Rules whose filters have the same first levels.
#[derive(Debug)]
enum Node {
    /// Positions, ascending.
    List(Vec<usize>),
    Branch(Box<Branch>),
}

#[derive(Debug)]
struct Branch {
    /// Lowest position.
    first: usize,
    /// Every `deny` of the branch, ascending.
    denies: Vec<usize>,
    /// Filters that end here, ascending.
    ended: Vec<usize>,
    /// Filters that end with `#` here, and those of any topic, ascending.
    rest: Vec<usize>,
    /// By the next level.
    literals: HashMap<Box<str>, Node>,
    /// `+`.
    one: Node,
    /// `%u`.
    user: Node,
    /// `%c`.
    client: Node,
}

impl Index {
    pub(super) fn new(rules: &[Rule]) -> Self {
        type Positions<'a> = HashMap<&'a str, Vec<usize>>;
        let [mut by_user, mut by_client, mut by_group] =
            [Positions::new(), Positions::new(), Positions::new()];
        let mut others = Vec::new();
        for (position, rule) in rules.iter().enumerate() {
            let selectors = &rule.selectors;
            let positions = match (&selectors.user, &selectors.client, &selectors.group) {
                (Some(user), _, _) => by_user.entry(user).or_default(),
                (None, Some(client), _) => by_client.entry(client).or_default(),
                (None, None, Some(group)) => by_group.entry(group).or_default(),
                (None, None, None) => &mut others,
            };
            positions.push(position);
        }
        let nodes = |positions: Positions<'_>| {
            positions.into_iter().map(|(name, list)| (name.into(), Node::new(list, 0, rules))).collect()
        };
        Self {
            by_user: nodes(by_user),
            by_client: nodes(by_client),
            by_group: nodes(by_group),
            others: Node::new(others, 0, rules),
        }
    }

    /// Finds the first rule for which `decides` is true, without asking it about rules that select another subject, or
    /// whose filter cannot match anything that `levels` match. `groups` are those of the subject.
    pub(super) fn first<'a>(
        &self,
        subject: &Subject<'_>,
        groups: impl Iterator<Item = &'a str>,
        levels: &[&str],
        substitutes: &Substitutes<'_>,
        decides: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut search = Search { levels, substitutes, decides, found: NONE };
        let of_user = subject.user.and_then(|user| self.by_user.get(user));
        let of_client = self.by_client.get(subject.client_id);
        let of_groups = groups.filter_map(|group| self.by_group.get(group));
        for node in of_user.into_iter().chain(of_client).chain(of_groups).chain([&self.others]) {
            search.visit(node, 0, Coverage::Full);
        }
        Some(search.found).filter(|found| *found != NONE)
    }
}

impl Default for Node {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl Node {
    /// Node of ascending positions whose filters have the same first `depth` levels.
    fn new(positions: Vec<usize>, depth: usize, rules: &[Rule]) -> Self {
        if positions.len() <= MAX_LIST {
            return Self::List(positions);
        }
        let first = positions.first().copied().unwrap_or(NONE);
        let denies = positions.iter().copied().filter(|position| !rules[*position].allow).collect();
        let (mut ended, mut rest, mut literals) = (Vec::new(), Vec::new(), HashMap::<_, Vec<_>>::new());
        let (mut one, mut user, mut client) = (Vec::new(), Vec::new(), Vec::new());
        for position in positions {
            let positions = match rules[position].pattern.levels().get(depth) {
                None => &mut ended,
                Some(Level::Rest | Level::Any) => &mut rest,
                Some(Level::Literal(literal)) => literals.entry(&**literal).or_default(),
                Some(Level::One) => &mut one,
                Some(Level::User) => &mut user,
                Some(Level::Client) => &mut client,
            };
            positions.push(position);
        }
        let node = |positions| Self::new(positions, depth + 1, rules);
        let literals =
            literals.into_iter().map(|(level, positions)| (level.into(), node(positions))).collect();
        let (one, user, client) = (node(one), node(user), node(client));
        Self::Branch(Box::new(Branch { first, denies, ended, rest, literals, one, user, client }))
    }
}

/// Part of the requested topics that filters of a node can match.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Coverage {
    /// All of them, as far as the levels above tell.
    Full,
    /// Some of them, so that only a `deny` can decide.
    Partial,
}

/// Search for the first rule that decides.
struct Search<'a, F> {
    levels: &'a [&'a str],
    substitutes: &'a Substitutes<'a>,
    decides: F,
    /// Lowest position so far.
    found: usize,
}

impl<F: Fn(usize) -> bool> Search<'_, F> {
    fn visit(&mut self, node: &Node, depth: usize, coverage: Coverage) {
        match node {
            Node::List(positions) => self.scan(positions),
            Node::Branch(branch) => self.descend(branch, depth, coverage),
        }
    }

    fn scan(&mut self, positions: &[usize]) {
        let mut earlier = positions.iter().copied().take_while(|position| *position < self.found);
        if let Some(position) = earlier.find(|position| (self.decides)(*position)) {
            self.found = position;
        }
    }

    fn descend(&mut self, branch: &Branch, depth: usize, coverage: Coverage) {
        let first_deny = branch.denies.first().copied().unwrap_or(NONE);
        let first = if coverage == Coverage::Full { branch.first } else { first_deny };
        if first >= self.found {
            return;
        }
        self.scan(&branch.rest);
        match self.levels.get(depth).copied() {
            None => self.scan(&branch.ended),
            Some("#") => self.scan(&branch.denies),
            Some("+") => {
                self.visit(&branch.one, depth + 1, coverage);
                if first_deny < self.found {
                    for child in branch.literals.values().chain([&branch.user, &branch.client]) {
                        self.visit(child, depth + 1, Coverage::Partial);
                    }
                }
            }
            Some(level) => {
                for child in branch.literals.get(level).into_iter().chain([&branch.one]) {
                    self.visit(child, depth + 1, coverage);
                }
                for (substitute, child) in
                    [(self.substitutes.user, &branch.user), (self.substitutes.client, &branch.client)]
                {
                    if substitute == Some(level) {
                        self.visit(child, depth + 1, coverage);
                    }
                }
            }
        }
    }
}
