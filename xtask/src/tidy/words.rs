//! Words: beginnings of comment lines, and words and type names that are no terms of the field.

use proc_macro2::{TokenStream, TokenTree};

use super::Violation;
use crate::source::Source;
use crate::tree::{TextFile, Tree};

/// Beginnings of comment lines that make a riddle of what a thing is.
const BEGINNINGS: &[&str] =
    &["How", "It", "Nobody", "Of", "So", "Somebody", "The same", "What", "Who", "Whoever", "Whom", "Whose"];

/// Beginnings of first doc lines that make half a sentence of them; later lines may begin so.
const FIRST_BEGINNINGS: &[&str] =
    &["Not", "That", "Their", "There", "These", "They", "This", "Until", "When", "Where", "Why"];

/// Most columns of a comment line.
const COMMENT_WIDTH: usize = 120;

/// Words that are no terms of the field, as they stand alone or in a name, and what to say instead. Inflected forms
/// count too.
const DENIED: &[(&str, &str)] = &[
    ("absence", "disconnect epoch"),
    ("anybody", "any client, any caller ..."),
    ("backlog", "pending queue"),
    ("bell", "waker"),
    ("company", "group-commit hint"),
    ("deaf", "not reading, or ignoring losses"),
    ("episode", "log throttle"),
    ("everybody", "all clients, all callers ..."),
    ("farewell", "close"),
    ("forgive", "reset"),
    ("forsake", "detach"),
    ("goodbye", "close"),
    ("hoarder", "largest or oldest holder"),
    ("house", "testbed"),
    ("hub", "the component: in-memory listener, registry, dispatcher"),
    ("inbox", "egress queue, or receive queue"),
    ("judge", "match, estimate or decide"),
    ("judgement", "estimate or decision"),
    ("keeper", "wake-up task"),
    ("leap", "seek target"),
    ("mailbox", "session queue"),
    ("mute", "stop sending"),
    ("nobody", "no publisher, no subscriber, no caller ..."),
    ("owe", "pending"),
    ("pile", "evictable queue"),
    ("pulse", "RTT estimator"),
    ("rhythm", "period"),
    ("shelf", "stored queue"),
    ("shelve", "store"),
    ("shy", "rate margin"),
    ("somebody", "a publisher, a peer, a caller ..."),
    ("stillest", "longest idle"),
    ("stranger", "a client before its CONNECT"),
    ("teller", "memory account"),
    ("toll", "memory reservation"),
    ("unsettled", "pending commit"),
    ("unshelve", "load"),
    ("vitals", "health"),
    ("whereabouts", "path"),
    ("whoever", "the component: publisher, subscriber, connection, caller, peer"),
];

/// Words that no name of a type holds, the folder in which they are denied, and what to say instead. In sentences they
/// are ordinary words.
const DENIED_IN_TYPES: &[(&str, &str, &str)] = &[
    ("arrivals", "crates/braid-broker/", "message loader"),
    ("audience", "crates/braid-router/", "subscribers of a pattern"),
    ("board", "crates/", "health state, counters"),
    ("due", "crates/", "pending acknowledgements, deadlines"),
    ("endings", "crates/braid-broker/", "pending session deletes"),
    ("holder", "crates/", "session owner"),
    ("life", "crates/", "stream lifecycle"),
    ("resting", "crates/braid-broker/", "offline charge"),
    ("slot", "crates/braid-broker/", "session entry"),
];

/// Files that must hold the words to speak about them.
const ABOUT_WORDS: &[&str] = &["docs/glossary.md", "xtask/src/tidy/words.rs"];

/// Comments that begin as a description of the thing, and words of the field in code and documents.
pub(super) fn check(tree: &Tree, sources: &[Source<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| !ABOUT_WORDS.contains(&file.path.as_str())) {
        if file.path.ends_with(".rs") {
            violations.extend(beginnings(file));
            violations.extend(wide(file));
        }
        if file.path.ends_with(".rs") || file.path.ends_with(".md") {
            violations.extend(denied(file));
        }
    }
    violations.extend(sources.iter().flat_map(denied_types));
    violations
}

fn beginnings(file: &TextFile) -> impl Iterator<Item = Violation> {
    let mut is_after_doc = false;
    file.text.lines().enumerate().filter_map(move |(at, line)| {
        let is_doc = line.trim_start().starts_with("///") || line.starts_with("//!");
        let is_later = std::mem::replace(&mut is_after_doc, is_doc);
        let text = comment(line)?;
        let begins = |word: &&&str| {
            text.strip_prefix(**word).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        };
        let of_first_lines = if is_doc && !is_later { FIRST_BEGINNINGS } else { &[] };
        let word = BEGINNINGS.iter().chain(of_first_lines).find(begins)?;
        let problem = format!("a comment line begins with `{word}`");
        let remedy = "say what the thing is or does: a noun phrase, or a verb in the third person";
        Some(Violation::new(&file.path, at + 1, "comment-beginning", problem, remedy))
    })
}

/// Comment lines that rustfmt leaves too wide. Tables and URLs cannot be wrapped.
fn wide(file: &TextFile) -> impl Iterator<Item = Violation> {
    file.text.lines().enumerate().filter_map(|(at, line)| {
        let text = comment(line)?;
        let columns = line.chars().count();
        if columns <= COMMENT_WIDTH || text.starts_with('|') || text.contains("://") {
            return None;
        }
        let problem = format!("a comment line has {columns} columns, the limit is {COMMENT_WIDTH}");
        Some(Violation::new(&file.path, at + 1, "comment-width", problem, "wrap it"))
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
            let (_, instead) = DENIED.iter().find(|(denied, _)| is_form_of(&word, denied))?;
            let problem = format!("`{word}` is no term of the field");
            Some(Violation::new(&file.path, at + 1, "denied-word", problem, format!("say {instead}")))
        })
    })
}

/// Tests whether `word` is `base`, its plural, or a form of the verb `base`.
fn is_form_of(word: &str, base: &str) -> bool {
    let (stem, endings): (_, &[&str]) = if let Some(stem) = base.strip_suffix('e') {
        (stem, &["e", "es", "ed", "ing"])
    } else if let Some(stem) = base.strip_suffix('y') {
        (stem, &["y", "ies"])
    } else {
        (base, &["", "s", "es", "ed", "ing"])
    };
    word.strip_prefix(stem).is_some_and(|ending| endings.contains(&ending))
}

fn denied_types(source: &Source<'_>) -> Vec<Violation> {
    let mut names = Vec::new();
    if let Ok(tokens) = source.text.parse() {
        type_names(tokens, &mut names);
    }
    let mut violations = Vec::new();
    for (line, name) in names {
        let denied = words(&name).find_map(|word| {
            DENIED_IN_TYPES
                .iter()
                .find(|(denied, folder, _)| *denied == word && source.path.starts_with(folder))
        });
        if let Some((word, _, instead)) = denied {
            let problem = format!("`{word}` in `{name}` is no term of the field");
            violations.push(Violation::new(
                source.path,
                line,
                "denied-type",
                problem,
                format!("say {instead}"),
            ));
        }
    }
    violations
}

/// Names in CamelCase, which are types and variants, with their lines. Comments and strings hold none.
fn type_names(tokens: TokenStream, names: &mut Vec<(usize, String)>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => type_names(group.stream(), names),
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                if name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase) {
                    names.push((ident.span().start().line, name));
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
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
    use crate::source::parse;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let tree = Tree::of(&[(path, text)]);
        let (sources, _) = parse(&tree, &["crates/"]);
        check(&tree, &sources).into_iter().map(|violation| (violation.line, violation.rule)).collect()
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
    fn a_first_doc_line_is_no_half_sentence() {
        let path = "crates/a/src/x.rs";
        let rule = [(1, "comment-beginning")];
        for text in ["//! That it works.", "    /// When it is due.\n    /// Queue.", "/// Not sent."] {
            assert_eq!(rules(path, text), rule, "{text}");
        }
        assert_eq!(rules(path, "/// Queue.\nfn a() {}\n/// Why."), [(3, "comment-beginning")]);
        for text in ["/// Queue.\n/// That is all.", "// When it is full:", "/// Whenever.", "/// Nothing."] {
            assert_eq!(rules(path, text), [], "{text}");
        }
    }

    #[test]
    fn a_comment_line_has_at_most_120_columns() {
        let path = "crates/a/src/x.rs";
        let comment = |columns: usize| format!("    /// {}", "é".repeat(columns - 8));
        assert_eq!(rules(path, &comment(120)), []);
        assert_eq!(rules(path, &comment(121)), [(1, "comment-width")]);
        let code = format!("let a = 1; // {}", "a".repeat(120));
        let table = format!("//! | {} |", "a".repeat(120));
        let url = format!("// <https://example.org/{}>", "a".repeat(120));
        for text in [code, table, url] {
            assert_eq!(rules(path, &text), [], "{text}");
        }
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

    #[test]
    fn inflected_forms_are_denied() {
        for text in [
            "// nobody's packet",
            "fn mailboxes() {}",
            "struct Judges;",
            "// it is judged",
            "let judging = 1;",
            "// still owed",
            "const OWES: u8 = 1;",
            "// two hubs",
            "// all inboxes",
        ] {
            assert_eq!(rules("crates/a/src/x.rs", text), [(1, "denied-word")], "{text}");
        }
        for text in ["struct Owner;", "// allowed", "fn bellow() {}", "// judicial", "// a shyer one"] {
            assert_eq!(rules("crates/a/src/x.rs", text), [], "{text}");
        }
    }

    #[test]
    fn some_words_are_denied_in_names_of_types_only() {
        let rule = [(1, "denied-type")];
        for text in ["struct Board;", "enum A { DueTimers }", "fn a(of: HolderView) {}", "a! { Life }"] {
            assert_eq!(rules("crates/a/src/x.rs", text), rule, "{text}");
        }
        for text in ["fn next_due() {}", "// Due at once", "const LIFE: u8 = 1;", "struct Lifetime;"] {
            assert_eq!(rules("crates/a/src/x.rs", text), [], "{text}");
        }
        assert_eq!(rules("crates/braid-broker/src/x.rs", "struct Slot;"), rule);
        assert_eq!(rules("crates/braid-store/src/x.rs", "struct Slot;"), []);
    }
}
