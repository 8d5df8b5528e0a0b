//! Parser of the file format, which the module above documents.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::mem::replace;
use std::net::IpAddr;
use std::num::NonZeroUsize;

use braid_proto::topic::TopicFilter;
use ipnet::IpNet;

use super::error::{AclError, Problem};
use super::pattern::{NameKind, Pattern};
use super::{ACTIONS, Rule, Selectors};
use crate::text_line::{check_beginning, read_line};

/// Maximum length of a file.
pub const MAX_FILE_BYTES: usize = 64 << 20;

/// Maximum length of a line, without its end.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// Maximum number of rules of a list.
pub const MAX_RULES: usize = 100_000;

const BLANKS: [char; 2] = [' ', '\t'];

/// Origin of a text with rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// File of the broker: its end may be missing.
    File,
    /// Rules of one client, from something whole, such as a signed token.
    Client,
}

/// Content of a text with rules.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// In the order of the text.
    pub(super) rules: Vec<Rule>,
    /// Groups by user.
    pub(super) memberships: HashMap<Box<str>, BTreeSet<Box<str>>>,
}

/// Line that is neither blank nor a comment.
enum Statement {
    Rule(Rule),
    Group { name: Box<str>, users: Vec<Box<str>> },
}

pub(super) fn parse(text: &[u8], name: &str, origin: Origin) -> Result<Content, AclError> {
    let mut content = Content::default();
    for (line, text) in lines(text, origin == Origin::File) {
        text.and_then(|text| parse_line(text, line, origin))
            .and_then(|statement| content.add(statement))
            .map_err(|problem| AclError::new(name, line, problem))?;
    }
    content.complete(name)
}

impl Content {
    fn add(&mut self, statement: Option<Statement>) -> Result<(), Problem> {
        match statement {
            None => {}
            Some(Statement::Group { .. }) if !self.rules.is_empty() => return Err(Problem::LateGroup),
            Some(Statement::Group { name, users }) => {
                for user in users {
                    self.memberships.entry(user).or_default().insert(name.clone());
                }
            }
            Some(Statement::Rule(rule)) => self.add_rule(rule)?,
        }
        Ok(())
    }

    pub(super) fn add_rule(&mut self, rule: Rule) -> Result<(), Problem> {
        if self.rules.len() == MAX_RULES {
            return Err(Problem::TooManyRules);
        }
        self.rules.push(rule);
        Ok(())
    }

    pub(super) fn complete(self, name: &str) -> Result<Self, AclError> {
        if self.rules.is_empty() {
            return Err(AclError::new(name, NonZeroUsize::MIN, Problem::NoRule));
        }
        Ok(self)
    }
}

/// Lines of a file without their ends. If `must_end`, the last one needs an end.
pub(crate) fn lines(
    text: &[u8],
    must_end: bool,
) -> impl Iterator<Item = (NonZeroUsize, Result<&str, Problem>)> {
    let problem = if text.len() > MAX_FILE_BYTES {
        Some(Problem::FileTooLarge)
    } else {
        check_beginning(text).err().map(Problem::from)
    };
    let text = if problem.is_some() { &text[..0] } else { text };
    let lines = text
        .split_inclusive(|byte| *byte == b'\n')
        .map(move |line| Ok(read_line(line, MAX_LINE_BYTES, must_end)?));
    let numbers = (1..).filter_map(NonZeroUsize::new);
    numbers.zip(problem.map(Err).into_iter().chain(lines))
}

/// Parses one line; `None` for a comment or a blank line.
fn parse_line(text: &str, line: NonZeroUsize, origin: Origin) -> Result<Option<Statement>, Problem> {
    let text = text.trim_matches(BLANKS);
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    let Some(group) = text.strip_prefix("group").filter(|rest| rest.is_empty() || rest.starts_with(BLANKS))
    else {
        return parse_rule(text, line, origin).map(|rule| Some(Statement::Rule(rule)));
    };
    if origin == Origin::Client {
        return Err(Problem::Foreign("group"));
    }
    parse_group(Words(group.trim_start_matches(BLANKS))).map(Some)
}

/// Parses the words behind `group`.
fn parse_group(mut words: Words<'_>) -> Result<Statement, Problem> {
    let name = words.value("group")?.into();
    if words.keyword() != Some("=") {
        return Err(Problem::NoMembers);
    }
    let mut users = Vec::new();
    loop {
        let is_quoted = words.0.starts_with('"');
        let user = words.value("=")?;
        if !is_quoted && user.contains(',') {
            return Err(Problem::Comma((&*user).into()));
        }
        users.push(user.into());
        if words.0.is_empty() {
            return Ok(Statement::Group { name, users });
        }
    }
}

/// Parses one rule, without blanks at both sides.
pub(super) fn parse_rule(text: &str, line: NonZeroUsize, origin: Origin) -> Result<Rule, Problem> {
    let mut words = Words(text);
    let allow = match words.keyword().unwrap_or_default() {
        "allow" => true,
        "deny" => false,
        word => return Err(Problem::Statement(word.into())),
    };
    let actions = parse_actions(words.keyword().ok_or(Problem::NoAction)?)?;
    let (selectors, has_filter) = parse_selectors(&mut words, origin)?;
    let pattern = if has_filter { parse_pattern(&words.value("topic")?)? } else { Pattern::any() };
    if let Some(word) = words.keyword() {
        return Err(Problem::Trailing(word.into()));
    }
    Ok(Rule { line, allow, actions, selectors, pattern })
}

fn parse_actions(word: &str) -> Result<[bool; ACTIONS.len()], Problem> {
    if word == "all" {
        return Ok([true; ACTIONS.len()]);
    }
    let mut actions = [false; ACTIONS.len()];
    for name in word.split(',') {
        let action = ACTIONS.iter().find(|action| action.name() == name);
        let action = *action.ok_or_else(|| Problem::Action(name.into()))?;
        if replace(&mut actions[action as usize], true) {
            return Err(Problem::RepeatedAction(name.into()));
        }
    }
    Ok(actions)
}

/// Takes the selectors and the word `topic`, which a filter follows, or `any-topic`, which is false.
fn parse_selectors(words: &mut Words<'_>, origin: Origin) -> Result<(Selectors, bool), Problem> {
    let mut selectors = Selectors::default();
    let has_filter = loop {
        let kind = match words.keyword().ok_or(Problem::NoTopic)? {
            "user" => "user",
            "client" => "client",
            "group" => "group",
            "listener" => "listener",
            "address" => "address",
            "anonymous" => "anonymous",
            "names" => "names",
            "topic" => break true,
            "any-topic" => break false,
            word => return Err(Problem::Selector(word.into())),
        };
        if origin == Origin::Client {
            return Err(Problem::Foreign(kind));
        }
        let text = |words: &mut Words<'_>, field: &mut Option<Box<str>>| -> Result<bool, Problem> {
            Ok(field.replace(words.value(kind)?.into()).is_some())
        };
        let is_repeated = match kind {
            "user" => text(words, &mut selectors.user)?,
            "client" => text(words, &mut selectors.client)?,
            "group" => text(words, &mut selectors.group)?,
            "listener" => text(words, &mut selectors.listener)?,
            "address" => selectors.network.replace(parse_network(&words.value(kind)?)?).is_some(),
            "names" => selectors.names.replace(parse_name_kind(&words.value(kind)?)?).is_some(),
            _ => replace(&mut selectors.is_anonymous, true),
        };
        if is_repeated {
            return Err(Problem::RepeatedSelector(kind));
        }
    };
    if selectors.is_anonymous && selectors.user.is_some() {
        return Err(Problem::AnonymousUser);
    }
    Ok((selectors, has_filter))
}

fn parse_name_kind(word: &str) -> Result<NameKind, Problem> {
    match word {
        "literal" => Ok(NameKind::Literal),
        "level" => Ok(NameKind::Level),
        _ => Err(Problem::NameKind(word.into())),
    }
}

fn parse_network(text: &str) -> Result<IpNet, Problem> {
    let network = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse().map_err(|_| Problem::Network(text.into()))?,
    };
    if matches!(network, IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some()) {
        return Err(Problem::MappedNetwork(text.into()));
    }
    if network.trunc() != network {
        return Err(Problem::HostBits(text.into(), network.trunc().to_string()));
    }
    Ok(network)
}

pub(crate) fn parse_pattern(text: &str) -> Result<Pattern, Problem> {
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
