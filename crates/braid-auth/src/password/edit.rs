//! Edited copies of a password file: other lines stay byte for byte.

use thiserror::Error;

use super::parse::{Entry, check_scram, parse};
use super::{PasswordFileError, PasswordHash, UserError, check_user};

/// File with an added or replaced user.
#[derive(Clone, PartialEq, Eq)]
pub struct Upserted {
    /// New text of the file.
    pub text: Vec<u8>,
    /// True if the user was there before.
    pub replaced: bool,
}

/// Reason why a file was not edited.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EditError {
    /// The file is malformed.
    #[error(transparent)]
    File(#[from] PasswordFileError),
    /// The name cannot stand in a password file.
    #[error(transparent)]
    User(#[from] UserError),
}

/// Replaces the hash of a user in its line, or adds a line at the end. `name` is the name of the file in errors.
///
/// The file may be without users. The new line ends as the replaced one or the one before.
///
/// # Errors
/// The file is malformed, or the name cannot stand in it.
pub fn upsert(text: &[u8], name: &str, user: &str, hash: &PasswordHash) -> Result<Upserted, EditError> {
    check_user(user, false)?;
    check_scram(user, hash)?;
    let entries = parse(text, name)?;
    let found = find(&entries, user);
    let span = found.map_or(text.len()..text.len(), |entry| entry.span.clone());
    let end = if text[..span.end].ends_with(b"\r\n") { "\r\n" } else { "\n" };
    let line = format!("{user}:{}{end}", hash.to_text());
    let text = [&text[..span.start], line.as_bytes(), &text[span.end..]].concat();
    Ok(Upserted { text, replaced: found.is_some() })
}

/// Removes the line of a user; `None` if the file has no such user. The new text may be without users, which
/// [`PasswordFile::parse`](super::PasswordFile::parse) refuses. `name` is the name of the file in errors.
///
/// # Errors
/// The file is malformed.
pub fn remove(text: &[u8], name: &str, user: &str) -> Result<Option<Vec<u8>>, PasswordFileError> {
    let entries = parse(text, name)?;
    let removed =
        find(&entries, user).map(|Entry { span, .. }| [&text[..span.start], &text[span.end..]].concat());
    Ok(removed)
}

fn find<'a, 'b>(entries: &'b [Entry<'a>], user: &str) -> Option<&'b Entry<'a>> {
    entries.iter().find(|entry| entry.user == user)
}
