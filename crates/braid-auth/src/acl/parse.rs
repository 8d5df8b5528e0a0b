//! Parser of the file format, which the module above documents.

use std::borrow::Cow;
use std::mem::replace;
use std::num::NonZeroUsize;

use braid_proto::topic::{TopicError, TopicFilter};
use thiserror::Error;

use super::pattern::Pattern;
use super::{Action, Rule};

/// Maximum length of a line, without its end.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// Maximum number of rules of a list.
pub const MAX_RULES: usize = 100_000;

/// Maximum number of characters of the file that an error repeats.
const MAX_QUOTED: usize = 40;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
const BLANKS: [char; 2] = [' ', '\t'];

/// Reason why a file is no access control list: one line of text, with the name of the file and the line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}:{line}: {problem}")]
pub struct AclError {
    name: String,
    line: NonZeroUsize,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum Problem {
    #[error("the file begins with a byte order mark; save it as UTF-8 without one")]
    ByteOrderMark,
    #[error("there is no rule; write at least one (`deny all topic #` permits nothing)")]
    NoRule,
    #[error(
        "there are more than {MAX_RULES} rules; replace rules for single names by groups, wildcards, %u or %c"
    )]
    TooManyRules,
    #[error(
        "the last line has no end, so that the file may be cut off; complete it and end it with a newline"
    )]
    Unended,
    #[error("the line is longer than {MAX_LINE_BYTES} bytes; shorten it")]
    LineTooLong,
    #[error("the line is not UTF-8; save the file as UTF-8")]
    NotUtf8,
    #[error("the line contains a NUL byte; save the file as plain text")]
    Null,
    #[error("the line contains a CR that is not before its LF; end lines with LF or CRLF")]
    CarriageReturn,
    #[error("unknown word {0}; begin the rule with `allow` or `deny`")]
    Effect(Quoted),
    #[error("no action; write `all`, or some of `publish,subscribe,receive`, and then `topic FILTER`")]
    NoAction,
    #[error("unknown action {0}; write `all`, or some of `publish,subscribe,receive` without blanks")]
    Action(Quoted),
    #[error("the action {0} stands twice; write it once")]
    RepeatedAction(Quoted),
    #[error(
        "unknown word {0}; write `user NAME`, `client ID`, `group NAME`, `listener TAG` or `topic FILTER`"
    )]
    Selector(Quoted),
    #[error("`{0}` stands twice; write a rule for each value")]
    RepeatedSelector(&'static str),
    #[error("nothing follows `{0}`; write a value")]
    NoValue(&'static str),
    #[error("the value of `{0}` is empty; write at least one character")]
    EmptyValue(&'static str),
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
struct Quoted(String);

impl From<&str> for Quoted {
    fn from(text: &str) -> Self {
        let mut short: String = text.chars().take(MAX_QUOTED).flat_map(char::escape_debug).collect();
        if text.chars().nth(MAX_QUOTED).is_some() {
            short.push_str("...");
        }
        Self(short)
    }
}

pub(super) fn parse(text: &[u8], name: &str) -> Result<Vec<Rule>, AclError> {
    let mut line = NonZeroUsize::MIN;
    let mut rules = Vec::new();
    let error = |line, problem| AclError { name: name.to_owned(), line, problem };
    if text.starts_with(BYTE_ORDER_MARK) {
        return Err(error(line, Problem::ByteOrderMark));
    }
    for bytes in text.split_inclusive(|byte| *byte == b'\n') {
        if let Some(rule) = parse_line(bytes, line).map_err(|problem| error(line, problem))? {
            if rules.len() == MAX_RULES {
                return Err(error(line, Problem::TooManyRules));
            }
            rules.push(rule);
        }
        line = line.saturating_add(1);
    }
    if rules.is_empty() { Err(error(NonZeroUsize::MIN, Problem::NoRule)) } else { Ok(rules) }
}

/// Parses one line with its end; `None` for a comment or a blank line.
fn parse_line(bytes: &[u8], line: NonZeroUsize) -> Result<Option<Rule>, Problem> {
    let ended = bytes.strip_suffix(b"\n");
    let bytes = ended.map_or(bytes, |bytes| bytes.strip_suffix(b"\r").unwrap_or(bytes));
    if bytes.len() > MAX_LINE_BYTES {
        return Err(Problem::LineTooLong);
    }
    let text = str::from_utf8(bytes).map_err(|_| Problem::NotUtf8)?;
    if text.contains('\0') {
        return Err(Problem::Null);
    }
    if text.contains('\r') {
        return Err(Problem::CarriageReturn);
    }
    if ended.is_none() {
        return Err(Problem::Unended);
    }
    let text = text.trim_matches(BLANKS);
    if text.is_empty() || text.starts_with('#') { Ok(None) } else { parse_rule(text, line).map(Some) }
}

fn parse_rule(text: &str, line: NonZeroUsize) -> Result<Rule, Problem> {
    let mut words = Words(text);
    let allow = match words.keyword().unwrap_or_default() {
        "allow" => true,
        "deny" => false,
        word => return Err(Problem::Effect(word.into())),
    };
    let actions = parse_actions(words.keyword().ok_or(Problem::NoAction)?)?;
    let (mut user, mut client, mut group, mut listener) = (None, None, None, None);
    loop {
        let (selector, kind) = match words.keyword().ok_or(Problem::NoTopic)? {
            "user" => (&mut user, "user"),
            "client" => (&mut client, "client"),
            "group" => (&mut group, "group"),
            "listener" => (&mut listener, "listener"),
            "topic" => break,
            word => return Err(Problem::Selector(word.into())),
        };
        let value = words.value(kind)?;
        if selector.replace(value.into()).is_some() {
            return Err(Problem::RepeatedSelector(kind));
        }
    }
    let pattern = parse_pattern(&words.value("topic")?)?;
    if let Some(word) = words.keyword() {
        return Err(Problem::Trailing(word.into()));
    }
    Ok(Rule { line, allow, actions, user, client, group, listener, pattern })
}

fn parse_actions(word: &str) -> Result<[bool; 3], Problem> {
    if word == "all" {
        return Ok([true; 3]);
    }
    let mut actions = [false; 3];
    for name in word.split(',') {
        let action = match name {
            "publish" => Action::Publish,
            "subscribe" => Action::Subscribe,
            "receive" => Action::Receive,
            _ => return Err(Problem::Action(name.into())),
        };
        if replace(&mut actions[action as usize], true) {
            return Err(Problem::RepeatedAction(name.into()));
        }
    }
    Ok(actions)
}

fn parse_pattern(text: &str) -> Result<Pattern, Problem> {
    let filter = TopicFilter::parse(text).map_err(|error| Problem::Filter(text.into(), error))?;
    if filter.is_shared() {
        return Err(Problem::SharedFilter(text.into()));
    }
    let is_part = |level: &str| level.len() > 2 && (level.contains("%u") || level.contains("%c"));
    if text.split('/').any(is_part) {
        return Err(Problem::Placeholder(text.into()));
    }
    Ok(Pattern::new(text))
}

/// Words of a line, without blanks in front of the next word or at the end.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    /// Takes the text up to the next blank.
    fn keyword(&mut self) -> Option<&'a str> {
        let (word, rest) = self.0.split_once(BLANKS).unwrap_or((self.0, ""));
        self.0 = rest.trim_start_matches(BLANKS);
        Some(word).filter(|word| !word.is_empty())
    }

    /// Takes a value that follows the word `kind`, in quotes or not.
    fn value(&mut self, kind: &'static str) -> Result<Cow<'a, str>, Problem> {
        let value: Cow<'a, str> = match self.0.strip_prefix('"') {
            Some(quoted) => self.quoted(quoted)?.into(),
            None => {
                let word = self.keyword().ok_or(Problem::NoValue(kind))?;
                if word.contains('"') {
                    return Err(Problem::InnerQuote(word.into()));
                }
                word.into()
            }
        };
        if value.is_empty() { Err(Problem::EmptyValue(kind)) } else { Ok(value) }
    }

    /// Takes a value in quotes; `text` begins behind the first one.
    fn quoted(&mut self, text: &'a str) -> Result<String, Problem> {
        let mut value = String::new();
        let mut characters = text.chars();
        loop {
            match characters.next().ok_or(Problem::OpenQuote)? {
                '"' => break,
                '\\' => match characters.next().ok_or(Problem::OpenQuote)? {
                    escaped @ ('"' | '\\') => value.push(escaped),
                    _ => return Err(Problem::Escape),
                },
                character => value.push(character),
            }
        }
        let rest = characters.as_str();
        self.0 = rest.trim_start_matches(BLANKS);
        if rest.is_empty() || rest.starts_with(BLANKS) { Ok(value) } else { Err(Problem::ClosedTwice) }
    }
}
