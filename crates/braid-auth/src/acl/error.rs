//! Reasons why a file is no access control list.

use std::num::NonZeroUsize;

use braid_proto::topic::TopicError;
use thiserror::Error;

use super::parse::{MAX_FILE_BYTES, MAX_RULES};
use crate::text_line::LineProblem;

/// Maximum number of characters of the file that an error repeats.
const MAX_QUOTED: usize = 40;

/// Reason why a file is no access control list: one line of text, with the name of the file and the line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}:{line}: {problem}")]
pub struct AclError {
    name: String,
    line: NonZeroUsize,
    problem: Problem,
}

impl AclError {
    pub(crate) fn new(name: &str, line: NonZeroUsize, problem: Problem) -> Self {
        Self { name: name.to_owned(), line, problem }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Problem {
    #[error("the file is larger than {MAX_FILE_BYTES} bytes; remove rules, or replace them by groups")]
    FileTooLarge,
    #[error(transparent)]
    Line(#[from] LineProblem),
    #[error("there is no rule; write at least one (`deny all any-topic` permits nothing)")]
    NoRule,
    #[error(
        "there are more than {MAX_RULES} rules; replace rules for single names by groups, wildcards, %u or %c"
    )]
    TooManyRules,
    #[error("unknown word {0}; begin the line with `allow`, `deny` or `group`")]
    Statement(Quoted),
    #[error(
        "no action; write `all`, or some of `publish,subscribe,receive,prioritize`, and then `topic FILTER`"
    )]
    NoAction,
    #[error(
        "unknown action {0}; write `all`, or some of `publish,subscribe,receive,prioritize` without blanks"
    )]
    Action(Quoted),
    #[error("the action {0} stands twice; write it once")]
    RepeatedAction(Quoted),
    #[error(
        "unknown word {0}; write `user NAME`, `client ID`, `group NAME`, `listener TAG`, `address NETWORK`, \
         `anonymous`, `names KIND`, `topic FILTER` or `any-topic`"
    )]
    Selector(Quoted),
    #[error("`{0}` stands twice; write a rule for each value")]
    RepeatedSelector(&'static str),
    #[error("`user` and `anonymous` exclude each other; remove one of them")]
    AnonymousUser,
    #[error("nothing follows `{0}`; write a value")]
    NoValue(&'static str),
    #[error("the value of `{0}` is empty; write at least one character")]
    EmptyValue(&'static str),
    #[error("unknown kind of names {0}; write `literal` or `level`")]
    NameKind(Quoted),
    #[error("{0} is no network; write an address with or without a prefix length, such as `10.0.0.0/8`")]
    Network(Quoted),
    #[error("the network {0} has bits behind its prefix; write `{1}`, or a longer prefix")]
    HostBits(Quoted, String),
    #[error("the network {0} is IPv4 in IPv6; write it as IPv4, such as `10.0.0.0/8`")]
    MappedNetwork(Quoted),
    #[error("no topic; end the rule with `topic FILTER`")]
    NoTopic,
    #[error("invalid filter {0}: {1}; write a topic filter of MQTT")]
    Filter(Quoted, TopicError),
    #[error("the filter {0} is a shared subscription; write it without `$share/NAME/`")]
    SharedFilter(Quoted),
    #[error("%u or %c is a part of a level of {0}; write it as a whole level, such as `a/%u/b`")]
    Placeholder(Quoted),
    #[error(
        "unexpected {0} behind the filter; quote a filter with blanks, write a comment on a line of its own"
    )]
    Trailing(Quoted),
    #[error("no `=` behind the name of the group; write `group NAME = USER USER`")]
    NoMembers,
    #[error("the name {0} contains a comma; separate users by blanks, or quote the name")]
    Comma(Quoted),
    #[error("the group stands below a rule; move it above the first rule, so that no cut file lacks it")]
    LateGroup,
    #[error("`{0}` in the rules of one client, which apply to it alone; remove it")]
    Foreign(&'static str),
    #[error("there is no rule; write at least one (`topic deny #` permits nothing)")]
    NoMosquittoRule,
    #[error("the line contains a tab, which mosquitto takes for a part of a word; write spaces")]
    Tab,
    #[error("unknown word {0}; begin the line with `topic`, `pattern` or `user`")]
    MosquittoStatement(Quoted),
    #[error("unknown access {0}; write `read`, `write`, `readwrite` or `deny` in front of the filter")]
    Access(Quoted),
    #[error(
        "mosquitto takes %u and %c of a `topic` line literally: {0}; write `pattern`, or remove the line"
    )]
    TopicPlaceholder(Quoted),
    #[error("the quote is not closed; write `\"` at the end of the value")]
    OpenQuote,
    #[error("a quote inside of {0}; quote the whole value, and write `\\\"` for a quote in it")]
    InnerQuote(Quoted),
    #[error("no blank behind a closing quote; write one, or `\\\"` for a quote in the value")]
    ClosedTwice,
    #[error("unknown escape in quotes; write `\\\"` for a quote and `\\\\` for a backslash")]
    Escape,
}

/// Text of the file as an error repeats it: short, and without control characters.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}`")]
pub(crate) struct Quoted(String);

impl From<&str> for Quoted {
    fn from(text: &str) -> Self {
        let mut short: String = text.chars().take(MAX_QUOTED).flat_map(char::escape_debug).collect();
        if text.chars().nth(MAX_QUOTED).is_some() {
            short.push_str("...");
        }
        Self(short)
    }
}
