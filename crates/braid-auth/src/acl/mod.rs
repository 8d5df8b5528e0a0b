//! Access control list: rules on who may publish to, subscribe to and receive which topics.
//!
//! # File format
//!
//! UTF-8 text with one rule on each line:
//!
//! ```text
//! rule      = effect actions *selector "topic" FILTER
//! effect    = "allow" | "deny"
//! actions   = "all" | action *( "," action )        ; no blanks around the commas
//! action    = "publish" | "subscribe" | "receive"
//! selector  = "user" NAME | "client" ID | "group" NAME | "listener" TAG
//! ```
//!
//! ```text
//! # Sensors write their own readings, and dashboards see all but the keys.
//! allow publish topic sensors/%c/#
//! deny  all group dashboards topic sensors/+/key
//! allow subscribe,receive group dashboards topic sensors/#
//! allow all user "Jane Doe" listener internal topic #
//! ```
//!
//! - Words are separated by spaces and tabs. A line whose first word begins with `#` is a comment. Blank lines are
//!   skipped. Every line, the last one too, ends with LF or CRLF.
//! - A name, id, tag or filter with blanks or quotes stands in double quotes. Inside of them `\"` is a quote and `\\`
//!   a backslash; without quotes a backslash is an ordinary character.
//! - A rule applies to a subject if each selector matches exactly, whatever the order of the selectors. A kind of
//!   selector stands once in a rule. A rule without selectors applies to everyone.
//! - Levels `%u` and `%c` of a filter stand for the user name and the Client Identifier. A rule with such a level
//!   matches nothing for a subject whose value is absent, empty or contains `+`, `#`, `/` or NUL (CVE-2017-7650), and
//!   also if the value begins with `$` and the level is the first one. This holds for `deny` too.
//! - A filter matches as in a SUBSCRIBE (MQTT 4.7): a wildcard in the first level does not match topics that begin with
//!   `$`, so that `topic #` permits nothing below `$SYS`.
//! - The first rule that matches decides. Without one the answer is no.
//!
//! A file is accepted as a whole or not at all. A file that was cut off is refused if the cut is inside a line. If it
//! is between two lines, the rules that are left never permit what the whole file does not, because the first match
//! decides and the default is to deny.

mod parse;
mod pattern;

use std::collections::HashMap;
use std::num::NonZeroUsize;

use braid_proto::topic::{TopicFilter, TopicName};

pub use parse::{AclError, MAX_LINE_BYTES, MAX_RULES};
use pattern::{Pattern, Relation, Substitutes};

/// Action of a client that a rule allows or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// PUBLISH to a topic, or a Will for it.
    Publish,
    /// SUBSCRIBE with a filter that matches a topic.
    Subscribe,
    /// Delivery of a message of a topic.
    Receive,
}

/// Client that a decision is about, as authentication determined it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// User name; `None` for an anonymous client.
    pub user: Option<&'a str>,
    /// Client Identifier.
    pub client_id: &'a str,
    /// Groups of the user.
    pub groups: &'a [&'a str],
    /// Tag of the listener that accepted the connection.
    pub listener: Option<&'a str>,
}

/// Answer of an access control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// True if the action is permitted.
    pub allowed: bool,
    /// Line of the rule that decided, counted from 1; `None` if there was none, which denies.
    pub line: Option<NonZeroUsize>,
}

impl Decision {
    const DEFAULT: Self = Self { allowed: false, line: None };
}

/// Access control list.
#[derive(Debug, Default)]
pub struct Acl {
    /// In the order of the file.
    rules: Vec<Rule>,
    /// Positions in `rules` of those with a user, ascending.
    by_user: HashMap<Box<str>, Vec<usize>>,
    /// Positions of those with a client and no user, ascending.
    by_client: HashMap<Box<str>, Vec<usize>>,
    /// Positions of all others, ascending.
    others: Vec<usize>,
}

#[derive(Debug)]
struct Rule {
    line: NonZeroUsize,
    allow: bool,
    /// Indexed by [`Action`]: true if the rule is about it.
    actions: [bool; 3],
    user: Option<Box<str>>,
    client: Option<Box<str>>,
    group: Option<Box<str>>,
    listener: Option<Box<str>>,
    pattern: Pattern,
}

impl Acl {
    /// Parses a file. `name` is its name in errors.
    ///
    /// # Errors
    /// An [`AclError`] with the first line that is no rule, or if there is no rule at all.
    pub fn parse(text: &[u8], name: &str) -> Result<Self, AclError> {
        parse::parse(text, name).map(|rules| rules.into_iter().collect())
    }

    /// Decides on one topic: the first rule of the subject and the action whose filter matches.
    pub fn decide(&self, subject: &Subject<'_>, action: Action, topic: &TopicName) -> Decision {
        let substitutes = Substitutes::new(subject);
        let levels: Vec<_> = topic.as_str().split('/').collect();
        self.applicable(subject, action)
            .find(|rule| rule.pattern.relation(&levels, &substitutes) == Relation::Covers)
            .map_or(Decision::DEFAULT, Rule::decision)
    }

    /// Decides on a SUBSCRIBE: if it is permitted, then [`Self::decide`] permits [`Action::Subscribe`] for every topic
    /// that the filter can match.
    ///
    /// A shared subscription is decided by its filter, without `$share/{ShareName}/`. Rules of the subject for
    /// `subscribe` are taken in the order of the file, and the first of these two decides:
    ///
    /// - `allow`, if its filter matches every topic that the requested filter matches
    /// - `deny`, if its filter matches some topic that the requested filter matches
    ///
    /// An `allow` that matches only a part decides nothing. The answer is therefore no, although each single topic is
    /// permitted, in these cases: where only several `allow` together match everything (`a` and `a/+/#` for `a/#`), and
    /// where an `allow` in front of a `deny` permits all that both the `deny` and the requested filter match. `/#`
    /// counts as if it matched an empty topic too. A filter without wildcards is decided as its topic.
    pub fn decide_filter(&self, subject: &Subject<'_>, filter: &TopicFilter) -> Decision {
        let substitutes = Substitutes::new(subject);
        let levels: Vec<_> = filter.pattern().split('/').collect();
        self.applicable(subject, Action::Subscribe)
            .find(|rule| match rule.pattern.relation(&levels, &substitutes) {
                Relation::Covers => true,
                Relation::Overlaps => !rule.allow,
                Relation::Disjoint => false,
            })
            .map_or(Decision::DEFAULT, Rule::decision)
    }

    /// Rules of a subject and an action, in the order of the file.
    fn applicable(&self, subject: &Subject<'_>, action: Action) -> impl Iterator<Item = &Rule> {
        let of_user = subject.user.and_then(|user| self.by_user.get(user));
        let of_client = self.by_client.get(subject.client_id);
        let positions =
            Merge([of_user.map_or(&[], Vec::as_slice), of_client.map_or(&[], Vec::as_slice), &self.others]);
        positions.map(|position| &self.rules[position]).filter(move |rule| rule.applies(subject, action))
    }
}

impl FromIterator<Rule> for Acl {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        let mut acl = Self::default();
        for (position, rule) in rules.into_iter().enumerate() {
            let positions = match (&rule.user, &rule.client) {
                (Some(user), _) => acl.by_user.entry(user.clone()).or_default(),
                (None, Some(client)) => acl.by_client.entry(client.clone()).or_default(),
                (None, None) => &mut acl.others,
            };
            positions.push(position);
            acl.rules.push(rule);
        }
        acl
    }
}

impl Rule {
    fn applies(&self, subject: &Subject<'_>, action: Action) -> bool {
        let is_selected = |selector: &Option<Box<str>>, value: Option<&str>| {
            selector.as_deref().is_none_or(|selector| value == Some(selector))
        };
        self.actions[action as usize]
            && is_selected(&self.user, subject.user)
            && is_selected(&self.client, Some(subject.client_id))
            && is_selected(&self.listener, subject.listener)
            && self.group.as_deref().is_none_or(|group| subject.groups.contains(&group))
    }

    fn decision(&self) -> Decision {
        Decision { allowed: self.allow, line: Some(self.line) }
    }
}

/// Merge of ascending positions.
struct Merge<'a>([&'a [usize]; 3]);

impl Iterator for Merge<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let shortest = self.0.iter_mut().filter(|list| !list.is_empty()).min_by_key(|list| list[0])?;
        let (first, rest) = shortest.split_first()?;
        *shortest = rest;
        Some(*first)
    }
}
