//! Access control list: rules on who may publish to, subscribe to and receive which topics.
//!
//! # File format
//!
//! UTF-8 text with one rule or one group on each line, the groups first:
//!
//! ```text
//! rule      = effect actions *selector ( "topic" FILTER | "any-topic" )
//! effect    = "allow" | "deny"
//! actions   = "all" | action *( "," action )        ; no blanks around the commas
//! action    = "publish" | "subscribe" | "receive" | "prioritize"
//! selector  = "user" NAME | "client" ID | "group" NAME | "listener" TAG | "address" NETWORK
//!           | "anonymous" | "names" ( "literal" | "level" )
//! group     = "group" NAME "=" 1*USER
//! ```
//!
//! ```text
//! # Sensors write their own readings, and dashboards see all but the keys.
//! group dashboards = wall "Jane Doe"
//! allow publish topic sensors/%c/#
//! deny  all group dashboards topic sensors/+/key
//! allow subscribe,receive group dashboards topic sensors/#
//! allow all user "Jane Doe" listener internal topic #
//! allow receive,subscribe anonymous address 10.1.0.0/16 topic public/#
//! ```
//!
//! - Words are separated by spaces and tabs. A line whose first word begins with `#` is a comment. Blank lines are
//!   skipped. Every line, the last one too, ends with LF or CRLF.
//! - A name, id, tag or filter with blanks or quotes stands in double quotes. Inside of them `\"` is a quote and `\\`
//!   a backslash; without quotes a backslash is an ordinary character.
//! - A rule applies to a subject if each selector matches exactly, whatever the order of the selectors. A kind of
//!   selector stands once in a rule. A rule without selectors applies to everyone.
//! - `anonymous` selects clients without a user name. `address` selects clients of a network, written as an address
//!   with or without a prefix length; it selects no client whose address is unknown. `names` selects clients by the
//!   characters of their user name, if they have one, and of their Client Identifier: `literal` if there is no `+` and
//!   no `#`, and `level` if both are fit for any level of a topic: they are not empty, do not begin with `$`, and do
//!   not contain `+`, `#`, `/` or NUL.
//! - A group gets the users of all its lines, and of the authenticator. A rule may name a group that has no line.
//! - `prioritize` is to ask for a priority above the usual one, for messages of a topic or the deliveries of a filter.
//! - Levels `%u` and `%c` of a filter stand for the user name and the Client Identifier. A rule with such a level
//!   matches nothing for a subject whose value is absent, empty or contains `+`, `#`, `/` or NUL (CVE-2017-7650), and
//!   also if the value begins with `$` and the level is the first one. This holds for `deny` too.
//! - A filter matches as in a SUBSCRIBE (MQTT 4.7): a wildcard in the first level does not match topics that begin with
//!   `$`, so that `topic #` permits nothing below `$SYS`. `any-topic` matches every topic.
//! - The first rule that matches decides. Without one the answer is no.
//!
//! A file is accepted as a whole or not at all. A file that was cut off is refused if the cut is inside a line. If it
//! is between two lines, the rules that are left never permit what the whole file does not, because the groups are
//! complete, the first match decides, and the default is to deny.
//!
//! # Rules of one client
//!
//! A token may bring rules of its client ([`Acl::parse_own`]). They are asked before those of the broker ([`decide`],
//! [`decide_filter`]). They are the same text without groups and selectors, and their last line needs no end.

mod error;
mod index;
mod parse;
mod pattern;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::num::NonZeroUsize;

use braid_proto::topic::{TopicFilter, TopicName};
use ipnet::IpNet;

pub use error::AclError;
pub(crate) use error::{Problem, Quoted};
use index::Index;
use parse::{Content, Origin};
pub use parse::{MAX_FILE_BYTES, MAX_LINE_BYTES, MAX_RULES};
pub(crate) use parse::{lines, parse_pattern};
use pattern::{NameKind, Pattern, Relation, Substitutes};

/// First level of the topics of the broker itself. No rule permits PUBLISH to them.
pub const BROKER_LEVEL: &str = "$SYS";

/// Tests whether a topic is the broker's own.
pub fn is_broker_topic(topic: &str) -> bool {
    // The level alone too: `$SYS/#` matches it.
    topic.strip_prefix(BROKER_LEVEL).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Action of a client that a rule allows or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// PUBLISH to a topic, or a Will for it.
    Publish,
    /// SUBSCRIBE with a filter that matches a topic.
    Subscribe,
    /// Delivery of a message of a topic.
    Receive,
    /// Request for a priority above the usual one, for messages of a topic or deliveries of a filter.
    Prioritize,
}

/// Every action.
pub const ACTIONS: [Action; 4] = [Action::Publish, Action::Subscribe, Action::Receive, Action::Prioritize];

impl Action {
    /// Word of the file format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
            Self::Receive => "receive",
            Self::Prioritize => "prioritize",
        }
    }
}

/// Client that a decision is about, as authentication determined it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// User name; `None` for an anonymous client.
    pub user: Option<&'a str>,
    /// Client Identifier.
    pub client_id: &'a str,
    /// Groups of the user, beside those that the list defines.
    pub groups: &'a [&'a str],
    /// Tag of the listener that accepted the connection.
    pub listener: Option<&'a str>,
    /// IP address of the client; an IPv4 address in IPv6 counts as IPv4.
    pub address: Option<IpAddr>,
}

/// Answer of access control lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// True if the action is permitted.
    pub allowed: bool,
    /// Line of the rule that decided, counted from 1; `None` if there was none, which denies.
    pub line: Option<NonZeroUsize>,
    /// Position of the list with this rule among those that were asked; 0 without a rule.
    pub list: usize,
}

impl Decision {
    const DEFAULT: Self = Self { allowed: false, line: None, list: 0 };
}

/// Access control list.
#[derive(Debug)]
pub struct Acl {
    /// In the order of the file.
    rules: Vec<Rule>,
    index: Index,
    /// Groups by user.
    memberships: HashMap<Box<str>, BTreeSet<Box<str>>>,
}

#[derive(Debug)]
struct Rule {
    line: NonZeroUsize,
    allow: bool,
    /// Indexed by [`Action`]: true if the rule is about it.
    actions: [bool; ACTIONS.len()],
    selectors: Selectors,
    pattern: Pattern,
}

/// Selection of the subjects of a rule.
#[derive(Debug, Default)]
struct Selectors {
    user: Option<Box<str>>,
    client: Option<Box<str>>,
    group: Option<Box<str>>,
    listener: Option<Box<str>>,
    network: Option<IpNet>,
    is_anonymous: bool,
    names: Option<NameKind>,
}

/// Decides on one topic by several lists as by one: the rules of each list come before those of the next one.
pub fn decide(lists: &[&Acl], subject: &Subject<'_>, action: Action, topic: &TopicName) -> Decision {
    first_decision(lists, |list| list.decide(subject, action, topic))
}

/// Decides on a Topic Filter by several lists as by one: the rules of each list come before those of the next one.
pub fn decide_filter(
    lists: &[&Acl],
    subject: &Subject<'_>,
    action: Action,
    filter: &TopicFilter,
) -> Decision {
    first_decision(lists, |list| list.decide_filter(subject, action, filter))
}

fn first_decision(lists: &[&Acl], decide: impl Fn(&Acl) -> Decision) -> Decision {
    let mut decisions = lists.iter().enumerate().map(|(list, acl)| Decision { list, ..decide(acl) });
    decisions.find(|decision| decision.line.is_some()).unwrap_or(Decision::DEFAULT)
}

impl Acl {
    /// Parses a file. `name` is its name in errors.
    ///
    /// # Errors
    /// An [`AclError`] with the first line that is no rule and no group, or if there is no rule at all.
    pub fn parse(text: &[u8], name: &str) -> Result<Self, AclError> {
        parse::parse(text, name, Origin::File).map(Self::new)
    }

    /// Parses the rules of one client, for instance of a token. `name` is the name of the text in errors.
    ///
    /// # Errors
    /// As of [`Self::parse`], and if there is a group or a selector: the rules apply to that client alone.
    pub fn parse_own(text: &[u8], name: &str) -> Result<Self, AclError> {
        parse::parse(text, name, Origin::Client).map(Self::new)
    }

    /// Parses rules that were converted from another file, in the order in which they are asked. `name` is the name of
    /// that file, whose lines the rules keep.
    pub(crate) fn from_converted(
        rules: impl Iterator<Item = (NonZeroUsize, String)>,
        name: &str,
    ) -> Result<Self, AclError> {
        let mut content = Content::default();
        for (line, rule) in rules {
            parse::parse_rule(&rule, line, Origin::File)
                .and_then(|rule| content.add_rule(rule))
                .map_err(|problem| AclError::new(name, line, problem))?;
        }
        content.complete(name).map(Self::new)
    }

    fn new(content: Content) -> Self {
        let Content { rules, memberships } = content;
        Self { index: Index::new(&rules), rules, memberships }
    }

    /// Number of rules.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Number of groups that the list defines.
    pub fn groups(&self) -> usize {
        self.memberships.values().flatten().collect::<BTreeSet<_>>().len()
    }

    /// Decides on one topic: the first rule of the subject and the action whose filter matches.
    pub fn decide(&self, subject: &Subject<'_>, action: Action, topic: &TopicName) -> Decision {
        self.first_match(subject, action, topic.as_str())
    }

    /// Decides on a Topic Filter, for [`Action::Subscribe`] and [`Action::Prioritize`]: if it is permitted, then
    /// [`Self::decide`] permits the action for every topic that the filter can match.
    ///
    /// A shared subscription is decided by its filter, without `$share/{ShareName}/`. Rules of the subject and the
    /// action are taken in the order of the file, and the first of these two decides:
    ///
    /// - `allow`, if its filter matches every topic that the requested filter matches
    /// - `deny`, if its filter matches some topic that the requested filter matches
    ///
    /// An `allow` that matches only a part decides nothing. The answer is therefore no, although each single topic is
    /// permitted, in these cases: where only several `allow` together match everything (`a` and `a/+/#` for `a/#`), and
    /// where an `allow` in front of a `deny` permits all that both the `deny` and the requested filter match. `/#`
    /// counts as if it matched an empty topic too. A filter without wildcards is decided as its topic.
    pub fn decide_filter(&self, subject: &Subject<'_>, action: Action, filter: &TopicFilter) -> Decision {
        self.first_match(subject, action, filter.pattern())
    }

    /// Tests whether the rule that decides on a topic is a `deny` with the user or Client Identifier of the subject as
    /// its selector.
    pub fn is_denied_by_name(&self, subject: &Subject<'_>, action: Action, topic: &TopicName) -> bool {
        let rule = self.first_rule(subject, action, topic.as_str());
        rule.is_some_and(|rule| {
            !rule.allow && (rule.selectors.user.is_some() || rule.selectors.client.is_some())
        })
    }

    /// Decides on a Topic Name, or the pattern of a Topic Filter.
    fn first_match(&self, subject: &Subject<'_>, action: Action, topic: &str) -> Decision {
        self.first_rule(subject, action, topic).map_or(Decision::DEFAULT, |rule| Decision {
            allowed: rule.allow,
            line: Some(rule.line),
            list: 0,
        })
    }

    fn first_rule(&self, subject: &Subject<'_>, action: Action, topic: &str) -> Option<&Rule> {
        let substitutes = Substitutes::new(subject);
        let levels: Vec<_> = topic.split('/').collect();
        let assigned = subject.user.and_then(|user| self.memberships.get(user));
        let decides = |position: usize| {
            let rule = &self.rules[position];
            rule.applies(subject, assigned, action)
                && match rule.pattern.relation(&levels, &substitutes) {
                    Relation::Covers => true,
                    Relation::Overlaps => !rule.allow,
                    Relation::Disjoint => false,
                }
        };
        let groups = subject.groups.iter().copied().chain(assigned.into_iter().flatten().map(AsRef::as_ref));
        let found = self.index.first(subject, groups, &levels, &substitutes, decides);
        found.map(|position| &self.rules[position])
    }
}

impl Rule {
    /// Tests whether the rule is about an action of a subject, to which the list assigns groups.
    fn applies(&self, subject: &Subject<'_>, assigned: Option<&BTreeSet<Box<str>>>, action: Action) -> bool {
        self.actions[action as usize] && self.selectors.match_subject(subject, assigned)
    }
}

impl Selectors {
    fn match_subject(&self, subject: &Subject<'_>, assigned: Option<&BTreeSet<Box<str>>>) -> bool {
        let is_selected = |selector: &Option<Box<str>>, value: Option<&str>| {
            selector.as_deref().is_none_or(|selector| value == Some(selector))
        };
        let is_member = |group| {
            subject.groups.contains(&group) || assigned.is_some_and(|assigned| assigned.contains(group))
        };
        let is_inside =
            |network: IpNet| subject.address.is_some_and(|address| network.contains(&address.to_canonical()));
        is_selected(&self.user, subject.user)
            && is_selected(&self.client, Some(subject.client_id))
            && is_selected(&self.listener, subject.listener)
            && self.group.as_deref().is_none_or(is_member)
            && self.network.is_none_or(is_inside)
            && (!self.is_anonymous || subject.user.is_none())
            && self.names.is_none_or(|kind| {
                kind.is_met(subject.client_id) && subject.user.is_none_or(|user| kind.is_met(user))
            })
    }
}
