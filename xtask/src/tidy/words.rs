use super::Violation;
use crate::tree::{TextFile, Tree};

/// Beginnings of comment lines that make a riddle of what a thing is.
const BEGINNINGS: &[&str] =
    &["How", "It", "Nobody", "Of", "So", "Somebody", "The same", "What", "Who", "Whoever", "Whom", "Whose"];

/// Words that are no terms of the field, as they stand alone or in a name, and what to say instead.
const DENIED: &[(&str, &str)] = &[
    ("backlog", "pending queue"),
    ("bells", "wakers"),
    ("episode", "log throttle"),
    ("farewell", "close"),
    ("forsake", "detach"),
    ("goodbye", "close"),
    ("hoarder", "largest or oldest holder"),
    ("mailbox", "session queue"),
    ("nobody", "no publisher, no subscriber, no caller ..."),
    ("pile", "evictable queue"),
    ("pulse", "RTT estimator"),
    ("shelf", "stored queue"),
    ("shelve", "store"),
    ("shelved", "stored"),
    ("somebody", "a publisher, a peer, a caller ..."),
    ("stillest", "longest idle"),
    ("stranger", "a client before its CONNECT"),
    ("teller", "memory account"),
    ("toll", "memory reservation"),
    ("unshelve", "load"),
    ("vitals", "health"),
    ("whereabouts", "path"),
    ("whoever", "the component: publisher, subscriber, connection, caller, peer"),
];

/// Files that must hold the words to speak about them.
const ABOUT_WORDS: &[&str] = &["docs/glossary.md", "xtask/src/tidy/words.rs"];

/// Comments that begin as a description of the thing, and words of the field in code and documents.
pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| !ABOUT_WORDS.contains(&file.path.as_str())) {
        if file.path.ends_with(".rs") {
            violations.extend(beginnings(file));
        }
        if file.path.ends_with(".rs") || file.path.ends_with(".md") {
            violations.extend(denied(file));
        }
    }
    violations
}

fn beginnings(file: &TextFile) -> impl Iterator<Item = Violation> {
    file.text.lines().enumerate().filter_map(|(at, line)| {
        let text = comment(line)?;
        let begins = |word: &&&str| {
            text.strip_prefix(**word).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        };
        let word = BEGINNINGS.iter().find(begins)?;
        let problem = format!("a comment line begins with `{word}`");
        let remedy = "say what the thing is or does: a noun phrase, or a verb in the third person";
        Some(Violation::new(&file.path, at + 1, "comment-beginning", problem, remedy))
    })
}

/// The text of a line that is a comment only.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text).trim_start())
}

fn denied(file: &TextFile) -> impl Iterator<Item = Violation> {
    file.text.lines().enumerate().flat_map(move |(at, line)| {
        words(line).filter_map(move |word| {
            let (word, instead) = DENIED.iter().find(|(denied, _)| *denied == word)?;
            let problem = format!("`{word}` is no term of the field");
            Some(Violation::new(&file.path, at + 1, "denied-word", problem, format!("say {instead}")))
        })
    })
}

/// The words of a line in lower case; `SessionQueue` and `session_queue` are two words each.
fn words(line: &str) -> impl Iterator<Item = String> {
    line.split(|letter: char| !letter.is_alphabetic()).flat_map(|run| {
        let mut words: Vec<String> = Vec::new();
        let mut after_lower = false;
        for letter in run.chars() {
            if words.is_empty() || (after_lower && letter.is_uppercase()) {
                words.push(String::new());
            }
            after_lower = letter.is_lowercase();
            if let Some(word) = words.last_mut() {
                word.extend(letter.to_lowercase());
            }
        }
        words
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let tree = Tree::of(&[(path, text)]);
        check(&tree).into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    #[test]
    fn a_comment_begins_with_the_thing() {
        let path = "crates/a/src/x.rs";
        for text in ["//! What it is.", "/// Whom it is for.", "    // It is late.", "/// The same for QUIC."]
        {
            assert_eq!(rules(path, text), [(1, "comment-beginning")], "{text}");
        }
        for text in [
            "/// Whole packets.",
            "// Itself.",
            "/// Queue of one session.",
            "fn what() {} // What",
            "/// Software",
        ] {
            assert_eq!(rules(path, text), [], "{text}");
        }
        assert_eq!(rules("docs/a.md", "What it is."), []);
    }

    #[test]
    fn names_and_sentences_are_of_the_field() {
        let rule = [(1, "denied-word")];
        for text in
            ["struct StoredShelf;", "fn unshelve_all() {}", "// for whoever waits", "let s = \"Nobody\";"]
        {
            assert_eq!(rules("crates/a/src/x.rs", text), rule, "{text}");
        }
        assert_eq!(rules("docs/a.md", "the mailbox of a session"), rule);
        for text in ["struct Compiled;", "// a compile", "fn impulse() {}", "fn bookshelfs() {}"] {
            assert_eq!(rules("crates/a/src/x.rs", text), [], "{text}");
        }
        assert_eq!(rules("docs/glossary.md", "not mailbox: session queue"), []);
        assert_eq!(rules("vectors/a.txt", "mailbox"), []);
    }
}
