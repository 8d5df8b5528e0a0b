//! Parser of the file format, which the module above documents.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Range;

use thiserror::Error;

use super::{HashError, PasswordHash};
use crate::scram::prepare_user;
use crate::text_line::{LineProblem, check_beginning, read_line};

/// Maximum length of a user name, as in MQTT.
pub const MAX_USER_BYTES: usize = 65_535;

/// Maximum length of a line, without its end: a user name, a colon and a hash.
pub const MAX_LINE_BYTES: usize = 65 << 10;

/// Maximum number of users of a file.
pub const MAX_USERS: usize = 1_000_000;

/// Maximum number of characters of a user name that an error repeats.
const MAX_QUOTED: usize = 40;

const BLANKS: [char; 2] = [' ', '\t'];

/// Reason why a file is no password file: one line of text, with the name of the file and the line, without passwords
/// and hashes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}:{line}: {problem}")]
pub struct PasswordFileError {
    name: String,
    line: NonZeroUsize,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum Problem {
    #[error(transparent)]
    Line(#[from] LineProblem),
    #[error("there is no user; add one with `braidmq passwd add`")]
    NoUser,
    #[error("there are more than {MAX_USERS} users; use another way to authenticate them, such as tokens")]
    TooManyUsers,
    #[error("no `:`; write `USER:HASH`, or add the user with `braidmq passwd add`")]
    NoColon,
    #[error(transparent)]
    User(#[from] UserError),
    #[error("user {0}: {1}")]
    Hash(Quoted, HashError),
    #[error("the user {0} is in line {1} too; remove one of both lines")]
    Duplicate(Quoted, NonZeroUsize),
}

/// Reason why a name cannot stand in a password file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct UserError(UserProblem);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum UserProblem {
    #[error("the user name is empty; write at least one character")]
    Empty,
    #[error("the user name is longer than {MAX_USER_BYTES} bytes, which MQTT cannot transport; shorten it")]
    TooLong,
    #[error("the user name {0} contains a control character; remove it")]
    Control(Quoted),
    #[error("the user name {0} begins or ends with a blank; remove it")]
    Blank(Quoted),
    #[error("the user name {0} contains `:`, which ends the name in the file; choose another one")]
    Colon(Quoted),
    #[error("the user name {0} begins with `#`, as comments do; choose another one")]
    Comment(Quoted),
    #[error("the user name {0} begins with a byte order mark; remove it")]
    ByteOrderMark(Quoted),
    #[error(
        "the user {0} cannot use SCRAM, because SASLprep changes or prohibits the name; choose another one, or hash the \
         password by argon2id"
    )]
    Unprepared(Quoted),
}

/// Name as an error repeats it: short, and without control characters.
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

impl PasswordFileError {
    pub(super) fn no_user(name: &str) -> Self {
        Self { name: name.to_owned(), line: NonZeroUsize::MIN, problem: Problem::NoUser }
    }
}

/// Line with a user.
pub(super) struct Entry<'a> {
    /// Bytes of the file, with the end of the line.
    pub(super) span: Range<usize>,
    pub(super) user: &'a str,
    pub(super) hash: PasswordHash,
}

/// Parses a file, which may be empty.
pub(super) fn parse<'a>(text: &'a [u8], name: &str) -> Result<Vec<Entry<'a>>, PasswordFileError> {
    let mut line = NonZeroUsize::MIN;
    let mut start = 0;
    let mut entries = Vec::new();
    let mut lines = HashMap::new();
    let error = |line, problem| PasswordFileError { name: name.to_owned(), line, problem };
    check_beginning(text).map_err(|problem| error(line, problem.into()))?;
    for bytes in text.split_inclusive(|byte| *byte == b'\n') {
        let span = start..start + bytes.len();
        start = span.end;
        if let Some((user, hash)) = parse_line(bytes).map_err(|problem| error(line, problem))? {
            if entries.len() == MAX_USERS {
                return Err(error(line, Problem::TooManyUsers));
            }
            if let Some(first) = lines.insert(user, line) {
                return Err(error(line, Problem::Duplicate(user.into(), first)));
            }
            entries.push(Entry { span, user, hash });
        }
        line = line.saturating_add(1);
    }
    Ok(entries)
}

/// Parses one line with its end; `None` for a comment or a blank line.
fn parse_line(bytes: &[u8]) -> Result<Option<(&str, PasswordHash)>, Problem> {
    let text = read_line(bytes, MAX_LINE_BYTES, true)?;
    if text.starts_with('#') || text.trim_matches(BLANKS).is_empty() {
        return Ok(None);
    }
    let (user, hash) = text.split_once(':').ok_or(Problem::NoColon)?;
    check_name(user)?;
    let hash = PasswordHash::parse(hash).map_err(|error| Problem::Hash(user.into(), error))?;
    check_scram(user, &hash)?;
    Ok(Some((user, hash)))
}

/// Checks whether a name can stand in a password file, with a hash of any kind or with a SCRAM credential.
///
/// # Errors
/// The name is empty, too long, contains `:` or control characters, has blanks at its ends, or begins with `#` or a
/// byte order mark. With a SCRAM credential: SASLprep changes or prohibits it.
pub fn check_user(user: &str, with_scram: bool) -> Result<(), UserError> {
    check_name(user)?;
    if with_scram { check_prepared(user) } else { Ok(()) }
}

fn check_name(user: &str) -> Result<(), UserError> {
    let quoted = || Quoted::from(user);
    let problem = if user.is_empty() {
        UserProblem::Empty
    } else if user.len() > MAX_USER_BYTES {
        UserProblem::TooLong
    } else if user.contains(':') {
        UserProblem::Colon(quoted())
    } else if user.contains(char::is_control) {
        UserProblem::Control(quoted())
    } else if user.starts_with(' ') || user.ends_with(' ') {
        UserProblem::Blank(quoted())
    } else if user.starts_with('#') {
        UserProblem::Comment(quoted())
    } else if user.starts_with('\u{feff}') {
        UserProblem::ByteOrderMark(quoted())
    } else {
        return Ok(());
    };
    Err(UserError(problem))
}

pub(super) fn check_scram(user: &str, hash: &PasswordHash) -> Result<(), UserError> {
    if hash.scram().is_some() { check_prepared(user) } else { Ok(()) }
}

fn check_prepared(user: &str) -> Result<(), UserError> {
    let is_prepared = prepare_user(user).is_some_and(|prepared| prepared == user);
    if is_prepared { Ok(()) } else { Err(UserError(UserProblem::Unprepared(user.into()))) }
}
