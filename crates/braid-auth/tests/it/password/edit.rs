//! Edited copies of password files, against a model.

use braid_auth::password::{EditError, PasswordFile, PasswordHash, check_user, remove, upsert};
use fastrand::Rng;

use super::{HASHES, PBKDF2, SCRAM, file};
use crate::generator::for_each_seed;

const NAMES: [&str; 6] = ["a", "b", "ab", "a b", "\u{e9}", "#"];

/// Line of the model: text with its end, and the user in it.
type Line = (String, Option<&'static str>);

fn random_line(rng: &mut Rng, used: &[Line]) -> Line {
    let end = if rng.bool() { "\r\n" } else { "\n" };
    let user = NAMES[rng.usize(..NAMES.len() - 1)];
    match rng.u8(..4) {
        0 => (format!("# {user}:x{end}"), None),
        1 => (format!(" \t{end}"), None),
        _ if used.iter().any(|(_, name)| *name == Some(user)) => (end.to_owned(), None),
        _ => (format!("{user}:{}{end}", HASHES[rng.usize(..HASHES.len())]), Some(user)),
    }
}

fn text(lines: &[Line]) -> String {
    lines.iter().map(|(text, _)| &**text).collect()
}

#[test]
fn edits_agree_with_a_model() {
    for_each_seed(300, |rng| {
        let mut lines: Vec<Line> = Vec::new();
        for _ in 0..rng.usize(..6) {
            lines.push(random_line(rng, &lines));
        }
        for _ in 0..8 {
            let before = text(&lines);
            let user = NAMES[rng.usize(..NAMES.len() - 1)];
            let position = lines.iter().position(|(_, name)| *name == Some(user));
            if rng.bool() {
                let hash = HASHES[rng.usize(..HASHES.len())];
                let parsed = PasswordHash::parse(hash).expect("a hash");
                let edited = upsert(before.as_bytes(), "file", user, &parsed).expect("an edit");
                let model = position.or(lines.len().checked_sub(1)).map(|at| lines[at].0.ends_with("\r\n"));
                let end = if model == Some(true) { "\r\n" } else { "\n" };
                let line = (format!("{user}:{hash}{end}"), Some(user));
                assert_eq!(edited.replaced, position.is_some());
                match position {
                    Some(position) => lines[position] = line,
                    None => lines.push(line),
                }
                assert_eq!(String::from_utf8(edited.text).expect("text"), text(&lines), "{before}");
            } else {
                let edited = remove(before.as_bytes(), "file", user).expect("an edit");
                assert_eq!(edited.is_some(), position.is_some());
                if let (Some(position), Some(edited)) = (position, edited) {
                    lines.remove(position);
                    assert_eq!(String::from_utf8(edited).expect("text"), text(&lines), "{before}");
                }
            }
            let users: Vec<_> = lines.iter().filter_map(|(_, user)| *user).collect();
            match PasswordFile::parse(text(&lines).as_bytes(), "file") {
                Ok(file) => assert_eq!(file.users().map(|(user, _)| user).collect::<Vec<_>>(), users),
                Err(_) => assert!(users.is_empty()),
            }
        }
    });
}

#[test]
fn a_malformed_file_is_not_edited() {
    let hash = PasswordHash::parse(PBKDF2).expect("a hash");
    let malformed = format!("{}z:hunter2\n", file(&HASHES, "\n"));
    let expected = PasswordFile::parse(malformed.as_bytes(), "file").expect_err("malformed");
    assert_eq!(
        upsert(malformed.as_bytes(), "file", "u0", &hash).err(),
        Some(EditError::File(expected.clone()))
    );
    assert_eq!(remove(malformed.as_bytes(), "file", "u0"), Err(expected));
    assert!(upsert(b"# cut", "file", "a", &hash).is_err(), "the new line would become a part of the comment");
}

#[test]
fn names_that_would_break_the_file_are_refused() {
    let hash = PasswordHash::parse(PBKDF2).expect("a hash");
    let long = "x".repeat(65_536);
    for name in ["", "a:b", "#a", "a\nb", "a\0", " a", "a ", "\u{feff}a", "\u{85}", &long] {
        let error = upsert(b"", "file", name, &hash).err().expect(name);
        assert!(matches!(error, EditError::User(_)) && error.to_string().lines().count() == 1, "{error}");
        assert!(check_user(name, false).is_err());
    }
    let colon = check_user("a:b", false).expect_err("a colon").to_string();
    assert_eq!(
        colon,
        "the user name `a:b` contains `:`, which ends the name in the file; choose another one"
    );
    let name = "\u{2168}";
    assert!(upsert(b"", "file", name, &hash).is_ok() && check_user(name, false).is_ok());
    let scram = PasswordHash::parse(SCRAM).expect("a hash");
    assert!(upsert(b"", "file", name, &scram).is_err() && check_user(name, true).is_err());
}
