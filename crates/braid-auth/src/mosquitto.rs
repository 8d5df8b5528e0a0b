//! Import of the acl_file of mosquitto 2.
//!
//! | line | means |
//! |---|---|
//! | `topic [read\|write\|readwrite\|deny] FILTER` | of the last `user`; above it, of anonymous clients |
//! | `pattern [read\|write\|readwrite\|deny] FILTER` | of everyone, with `%u` and `%c` |
//! | `user NAME` | the `topic` lines below are of this user |
//! | `# text` | comment |
//!
//! mosquitto does not take the first match. It asks the `topic` lines of the client first, `deny` before the others,
//! and then the `pattern` lines, `deny` before the others. In this order they become rules, so that the first match
//! gives the same answers: `read` becomes `subscribe,receive`, `write` becomes `publish`, and `deny` denies
//! `publish,receive`.
//!
//! These differences are left:
//!
//! - mosquitto grants every SUBSCRIBE and asks for `read` at each delivery. Here a filter needs one rule for `read`
//!   that covers it; a `deny` inside of it does not matter, because each delivery is asked for here too.
//! - A user name or Client Identifier with `/` does not replace `%u` or `%c`, nor does one that is empty or begins with
//!   `$` in the first level. If a `pattern deny` has a placeholder, then no pattern allows anything to such clients.
//! - `%u` and `%c` have to be a whole level. The file has at least one rule, is UTF-8 and ends with a newline.
//! - Nothing permits `prioritize`.

use std::num::NonZeroUsize;

use crate::acl::{Acl, AclError, Problem, Quoted, lines, parse_pattern};

/// Line of mosquitto's file, and its rule in the format of [`acl`](crate::acl).
type Converted = (NonZeroUsize, String);

/// Line that grants or denies.
struct Entry<'a> {
    line: NonZeroUsize,
    scope: Scope<'a>,
    access: Access,
    filter: &'a str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope<'a> {
    Anonymous,
    User(&'a str),
    Pattern,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    ReadWrite,
    Deny,
}

impl Acl {
    /// Parses an acl_file of mosquitto. Decisions have its lines. `name` is its name in errors.
    ///
    /// # Errors
    /// An [`AclError`] with the first line that mosquitto does not accept or that cannot be converted, or if there is
    /// no rule at all.
    pub fn parse_mosquitto(text: &[u8], name: &str) -> Result<Self, AclError> {
        Self::from_converted(convert(text, name)?.into_iter(), name)
    }
}

/// Converts an acl_file into the format of [`acl`](crate::acl). `name` is its name in errors and comments.
///
/// # Errors
/// An [`AclError`] with the first line that mosquitto does not accept or that cannot be converted, or if there is no
/// rule at all.
pub fn import(text: &[u8], name: &str) -> Result<String, AclError> {
    let name_of_file = Quoted::from(name);
    let mut imported = format!(
        "# Rules of the acl_file {name_of_file} of mosquitto, in the order in which mosquitto asks them.\n\
         # mosquitto grants every subscription. Here a rule has to cover it: if clients subscribe to more than\n\
         # they may read, put `allow subscribe topic #` in front.\n"
    );
    for (line, rule) in convert(text, name)? {
        imported += &format!("\n# line {line}\n{rule}\n");
    }
    Ok(imported)
}

/// Converts the lines into rules, in the order in which mosquitto asks them.
fn convert(text: &[u8], name: &str) -> Result<Vec<Converted>, AclError> {
    let mut entries = Vec::new();
    let mut user = Scope::Anonymous;
    for (line, text) in lines(text, true) {
        let entry = text.and_then(|text| parse_line(text, line, &mut user));
        entries.extend(entry.map_err(|problem| AclError::new(name, line, problem))?);
    }
    if entries.is_empty() {
        return Err(AclError::new(name, NonZeroUsize::MIN, Problem::NoMosquittoRule));
    }
    entries.sort_by_key(|entry| (entry.scope == Scope::Pattern, entry.access != Access::Deny));
    let denies_names = |entry: &Entry<'_>| entry.access == Access::Deny && has_placeholder(entry.filter);
    let names = if entries.iter().any(denies_names) { "level" } else { "literal" };
    Ok(entries.iter().map(|entry| entry.convert(names)).collect())
}

/// Parses one line. A `user` line changes `user`.
fn parse_line<'a>(
    text: &'a str,
    line: NonZeroUsize,
    user: &mut Scope<'a>,
) -> Result<Option<Entry<'a>>, Problem> {
    let text = text.trim_end_matches([' ', '\t']).trim_start_matches(' ');
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    if text.contains('\t') {
        return Err(Problem::Tab);
    }
    let (word, rest) = split(text);
    let (scope, kind) = match word {
        "topic" => (*user, "topic"),
        "pattern" => (Scope::Pattern, "pattern"),
        "user" if rest.is_empty() => return Err(Problem::NoValue("user")),
        "user" => {
            *user = Scope::User(rest);
            return Ok(None);
        }
        _ => return Err(Problem::MosquittoStatement(word.into())),
    };
    let (access, filter) = parse_access(rest, kind)?;
    if scope != Scope::Pattern && has_placeholder(filter) {
        return Err(Problem::TopicPlaceholder(filter.into()));
    }
    parse_pattern(filter)?;
    Ok(Some(Entry { line, scope, access, filter }))
}

/// Splits off the first word.
fn split(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    (word, rest.trim_start_matches(' '))
}

/// Parses the words behind `topic` or `pattern`. A single one is a filter, unless it is an access: the line is cut off
/// then, although mosquitto takes it for a filter.
fn parse_access<'a>(text: &'a str, kind: &'static str) -> Result<(Access, &'a str), Problem> {
    let (word, filter) = split(text);
    let (access, name) = match word {
        "" => return Err(Problem::NoValue(kind)),
        "read" => (Access::Read, "read"),
        "write" => (Access::Write, "write"),
        "readwrite" => (Access::ReadWrite, "readwrite"),
        "deny" => (Access::Deny, "deny"),
        _ if filter.is_empty() => return Ok((Access::ReadWrite, word)),
        _ => return Err(Problem::Access(word.into())),
    };
    if filter.is_empty() { Err(Problem::NoValue(name)) } else { Ok((access, filter)) }
}

fn has_placeholder(filter: &str) -> bool {
    filter.contains("%u") || filter.contains("%c")
}

impl Entry<'_> {
    /// Rule of this line. `names` is the kind of names to which patterns allow something.
    fn convert(&self, names: &str) -> Converted {
        let actions = match self.access {
            Access::Read => "allow subscribe,receive",
            Access::Write => "allow publish",
            Access::ReadWrite => "allow publish,subscribe,receive",
            Access::Deny => "deny publish,receive",
        };
        let selector = match self.scope {
            Scope::Anonymous => " anonymous".to_owned(),
            Scope::User(user) => format!(" user {}", quoted(user)),
            Scope::Pattern if self.access == Access::Deny => String::new(),
            Scope::Pattern => format!(" names {names}"),
        };
        (self.line, format!("{actions}{selector} topic {}", quoted(self.filter)))
    }
}

/// Value as it stands in a rule.
fn quoted(value: &str) -> String {
    if value.contains([' ', '"']) {
        format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        value.to_owned()
    }
}
