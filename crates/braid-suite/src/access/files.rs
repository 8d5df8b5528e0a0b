//! Files of access control: users, rules, and the configuration that names them.

use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Password of every user that connects.
pub(super) const PASSWORD: &[u8] = b"password";

/// Hash of [`PASSWORD`] that costs a broker little, so that many users connect at once.
const QUICK: &str = "$7$101$YnJhaWRtcS1zYWx0$8DcBhBueHfY+6YUioYSYU+uoGRu2aV/Sa2Bfz7rAuqla6qujWfjfzMnzP7Tid9qP8Ggbnz1jNI0/OT8QR4midg==";

/// Hash in the form that `braidmq passwd` writes, of users that do not connect.
const USUAL: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Name of a user.
pub(super) fn user(number: u32) -> String {
    format!("user{number}")
}

/// Password file with these users; those below `connecting` and from `added` on have [`PASSWORD`].
pub(super) fn users(numbers: Range<u32>, connecting: u32, added: u32) -> String {
    let mut text = String::new();
    for number in numbers {
        let hash = if number < connecting || number >= added { QUICK } else { USUAL };
        let _ = writeln!(text, "{}:{hash}", user(number));
    }
    text
}

/// List of `count` rules, the last of which permits the topics of the load. Half of the others are about users, a
/// quarter about another tree of topics, and a quarter deny topics beside those of the load.
pub(super) fn rules(first: u32, count: u32) -> String {
    let mut text = String::new();
    for number in first..first + count - 1 {
        let _ = match number % 4 {
            0 => writeln!(text, "deny all topic private/{number}/+/key"),
            1 => writeln!(text, "deny all topic bench/+/secret/{number}"),
            _ => writeln!(text, "allow all user {} topic home/{number}/#", user(number)),
        };
    }
    text + "allow all topic bench/#\n"
}

/// Writes a file.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Writes a configuration beside a list of rules; with `passwords`, users need one.
///
/// # Errors
/// The file cannot be written.
pub(super) fn configuration(acl: &Path, passwords: Option<&Path>) -> Result<PathBuf, String> {
    // A load without users connects too.
    let mut text = format!("allow_anonymous = true\n[acl]\nfile = {:?}\n", acl.display().to_string());
    if let Some(file) = passwords {
        let file = file.display().to_string();
        let _ = write!(text, "[[authenticator]]\nkind = \"password\"\nfile = {file:?}\n");
    }
    let path = acl.with_extension("toml");
    write(&path, &text)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_as_many_lines_as_users_and_rules() {
        assert_eq!(users(3..10, 5, 9).lines().filter(|line| line.contains(":$7$")).count(), 3);
        assert_eq!(users(3..10, 5, 9).lines().count(), 7);
        assert_eq!(rules(7, 1000).lines().count(), 1000);
        assert!(rules(7, 1000).ends_with("\nallow all topic bench/#\n"));
    }
}
