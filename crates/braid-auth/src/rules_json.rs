//! Rules of one client in JSON: of a claim of its token, or of the answer of a service about it.
//!
//! [`rules_from_json`] converts them to the format of [`acl`](crate::acl). Three forms are known:
//!
//! ```json
//! ["allow publish topic sensors/%c/#", "deny all topic keys/#"]
//! ```
//!
//! ```json
//! [{"permission": "allow", "action": "subscribe", "topic": "sensors/${clientid}/#"}]
//! ```
//!
//! ```json
//! {"pub": ["sensors/1"], "sub": ["sensors/#"], "all": ["rooms/${username}"]}
//! ```
//!
//! - A text is a line of an access control list without selectors: the rules are about one client already.
//! - The forms with objects are those of EMQX. `subscribe` stands for `subscribe` and `receive`, and `pub` and `sub`
//!   are short for `publish` and `subscribe`. `${username}` and `${clientid}` become `%u` and `%c`, as whole levels.
//! - EMQX denies what the lists of the third form do not permit, so that `deny all any-topic` is their last rule.
//!   Behind the rules of the other forms the broker's rules follow.
//! - Keys that narrow a rule, such as `qos`, `retain` or `ipaddr`, and topics that begin with `eq ` are refused: a rule
//!   without them would permit more than its author meant.
//!
//! Rules are accepted as a whole or not at all.

use std::fmt::Write;

use serde_json::{Map, Value};
use thiserror::Error;

use crate::acl::{Acl, AclError, Quoted};

/// Maximum number of rules.
pub const MAX_JSON_RULES: usize = 1_000;

/// Maximum number of bytes of the rules in the format of an access control list.
pub const MAX_JSON_RULES_BYTES: usize = 64 << 10;

/// Reason why a JSON value is no list of rules: one line of text, with the number of the rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(transparent)]
pub struct RulesError(#[from] Problem);

/// Numbers of rules count from 1. An object of lists has its rules in the order `pub`, `sub`, `all`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum Problem {
    #[error("rules: neither a list of rules nor an object with the lists `pub`, `sub` and `all`")]
    NotRules,
    #[error("rules: there is no rule; leave the rules out, or write at least one")]
    NoRule,
    #[error("rules: there are more than {MAX_JSON_RULES}; replace rules by wildcards, %u or %c")]
    TooManyRules,
    #[error("rules: they are longer than {MAX_JSON_RULES_BYTES} bytes; replace rules by wildcards, %u or %c")]
    TooLong,
    #[error("rules: unknown list {0}; write `pub`, `sub` and `all`")]
    UnknownList(Quoted),
    #[error("rules: `{0}` is not a list of topics")]
    NotTopics(&'static str),
    #[error("rule:{0}: neither a text nor an object")]
    NotRule(usize),
    #[error("rule:{0}: a blank line or a comment; write a rule")]
    Blank(usize),
    #[error(
        "rule:{0}: {1} instead of `topic`; write no selectors, the rule is about its client already, \
         such as `allow publish topic a/b`"
    )]
    Selector(usize, Quoted),
    #[error(
        "rule:{0}: unsupported key {1}; write `permission`, `action` and `topic`, other conditions do not exist"
    )]
    UnknownKey(usize, Quoted),
    #[error("rule:{0}: `{1}` is missing or not a text")]
    NoText(usize, &'static str),
    #[error("rule:{0}: unknown permission {1}; write `allow` or `deny`")]
    Permission(usize, Quoted),
    #[error("rule:{0}: unknown action {1}; write `publish`, `subscribe` or `all`")]
    Action(usize, Quoted),
    #[error(
        "rule:{0}: a topic that begins with `eq ` is not supported; write a filter, `eq` is no part of it"
    )]
    Exact(usize),
    #[error("rule:{0}: a CR, LF or NUL character; write each rule on its own, and no control characters")]
    Control(usize),
    #[error(
        "rule:{0}: unsupported placeholder in {1}; write ${{username}} or ${{clientid}} as a whole level, \
         such as `a/${{clientid}}/b`"
    )]
    Placeholder(usize, Quoted),
    #[error(transparent)]
    Rule(#[from] AclError),
}

/// Converts rules in JSON to lines of an access control list, which [`Acl::parse`] accepts.
///
/// # Errors
/// A [`RulesError`] with the first rule that is malformed or cannot be expressed, or if there is no rule, more than
/// [`MAX_JSON_RULES`], or more than [`MAX_JSON_RULES_BYTES`].
pub fn rules_from_json(rules: &Value) -> Result<Box<str>, RulesError> {
    let mut lines = Lines::default();
    match rules {
        Value::Array(rules) => {
            for rule in rules {
                lines.push_rule(rule)?;
            }
        }
        Value::Object(lists) => lines.push_lists(lists)?,
        _ => return Err(Problem::NotRules.into()),
    }
    if lines.count == 0 {
        return Err(Problem::NoRule.into());
    }
    Acl::parse(lines.text.as_bytes(), "rule").map_err(Problem::Rule)?;
    Ok(lines.text.into_boxed_str())
}

/// Lines of an access control list, one for each rule.
#[derive(Default)]
struct Lines {
    text: String,
    count: usize,
}

impl Lines {
    /// Number of the next rule.
    fn next(&self) -> usize {
        self.count + 1
    }

    fn push_rule(&mut self, rule: &Value) -> Result<(), Problem> {
        match rule {
            Value::String(line) => self.push_line(line),
            Value::Object(rule) => self.push_object(rule),
            _ => Err(Problem::NotRule(self.next())),
        }
    }

    /// Adds a line of an access control list. The parser of those checks all but what it permits in a file only.
    fn push_line(&mut self, line: &str) -> Result<(), Problem> {
        let number = self.next();
        self.check_characters(line)?;
        if line.contains("${") {
            return Err(Problem::Placeholder(number, line.into()));
        }
        let mut words = line.split([' ', '\t']).filter(|word| !word.is_empty());
        if words.next().is_none_or(|word| word.starts_with('#')) {
            return Err(Problem::Blank(number));
        }
        // Behind the effect and the actions; the parser takes no selector behind `topic`.
        if let Some(word) = words.nth(1).filter(|word| !matches!(*word, "topic" | "any-topic")) {
            return Err(Problem::Selector(number, word.into()));
        }
        self.push(format_args!("{line}"))
    }

    fn push_object(&mut self, rule: &Map<String, Value>) -> Result<(), Problem> {
        let number = self.next();
        let is_unknown = |key: &&String| !matches!(key.as_str(), "permission" | "action" | "topic");
        if let Some(key) = rule.keys().find(is_unknown) {
            return Err(Problem::UnknownKey(number, key.as_str().into()));
        }
        let text = |key| rule.get(key).and_then(Value::as_str).ok_or(Problem::NoText(number, key));
        let permission = match text("permission")? {
            permission @ ("allow" | "deny") => permission,
            other => return Err(Problem::Permission(number, other.into())),
        };
        let actions = match text("action")? {
            "publish" | "pub" => "publish",
            "subscribe" | "sub" => "subscribe,receive",
            "all" => "all",
            other => return Err(Problem::Action(number, other.into())),
        };
        self.push_filter(permission, actions, text("topic")?)
    }

    fn push_lists(&mut self, lists: &Map<String, Value>) -> Result<(), Problem> {
        let is_unknown = |key: &&String| !matches!(key.as_str(), "pub" | "sub" | "all");
        if let Some(key) = lists.keys().find(is_unknown) {
            return Err(Problem::UnknownList(key.as_str().into()));
        }
        for (key, actions) in [("pub", "publish"), ("sub", "subscribe,receive"), ("all", "all")] {
            let Some(topics) = lists.get(key) else { continue };
            for topic in topics.as_array().ok_or(Problem::NotTopics(key))? {
                self.push_filter("allow", actions, topic.as_str().ok_or(Problem::NotTopics(key))?)?;
            }
        }
        if self.count > 0 { self.push(format_args!("deny all any-topic")) } else { Ok(()) }
    }

    fn push_filter(&mut self, permission: &str, actions: &str, topic: &str) -> Result<(), Problem> {
        let number = self.next();
        self.check_characters(topic)?;
        if topic.starts_with("eq ") {
            return Err(Problem::Exact(number));
        }
        let level = |level| match level {
            "${username}" => "%u",
            "${clientid}" => "%c",
            other => other,
        };
        let filter = topic.split('/').map(level).collect::<Vec<_>>().join("/");
        if filter.contains("${") {
            return Err(Problem::Placeholder(number, topic.into()));
        }
        let quoted = filter.replace('\\', "\\\\").replace('"', "\\\"");
        self.push(format_args!("{permission} {actions} topic \"{quoted}\""))
    }

    /// Refuses characters that would end a line or that no line may have.
    fn check_characters(&self, text: &str) -> Result<(), Problem> {
        if text.contains(['\r', '\n', '\0']) { Err(Problem::Control(self.next())) } else { Ok(()) }
    }

    fn push(&mut self, line: std::fmt::Arguments<'_>) -> Result<(), Problem> {
        if self.count == MAX_JSON_RULES {
            return Err(Problem::TooManyRules);
        }
        // Writing to a String does not fail.
        let _ = writeln!(self.text, "{line}");
        self.count += 1;
        if self.text.len() > MAX_JSON_RULES_BYTES { Err(Problem::TooLong) } else { Ok(()) }
    }
}
