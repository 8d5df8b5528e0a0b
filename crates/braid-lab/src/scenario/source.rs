//! Scenario files: those built into the program, inheritance by `like`, errors with file and line.

use serde::Deserialize;
use thiserror::Error;

use super::Scenario;

/// Built-in scenario.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// Name.
    pub name: &'static str,
    /// File in the repository, for errors.
    pub file: &'static str,
    /// TOML text.
    pub text: &'static str,
}

macro_rules! builtins {
    ($($name:literal),* $(,)?) => {
        &[$(Builtin {
            name: $name,
            file: concat!("lab/scenarios/", $name, ".toml"),
            text: include_str!(concat!("../../../../lab/scenarios/", $name, ".toml")),
        }),*]
    };
}

/// All built-in scenarios, in the order of the documentation.
pub fn builtin() -> &'static [Builtin] {
    builtins![
        "hol",
        "hol-down",
        "hol-shaper",
        "hol-4g",
        "hol-sat",
        "gate",
        "gate-down",
        "real-links",
        "neighbours",
        "foreign",
        "zenoh",
        "one-or-ten",
        "adaptive",
        "resume-large",
        "h1-or-h3",
        "h1-or-h3-symmetric",
        "autoquic",
        "connect-latency",
        "zero-rtt",
        "storm",
        "migrate",
        "multipath",
        "weak-network",
        "interop-cells"
    ]
}

impl Builtin {
    /// Built-in scenario of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        builtin().iter().find(|one| one.name == name)
    }
}

// === Errors ===

/// Invalid scenario: one line with file, line and what to change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ScenarioError(String);

impl ScenarioError {
    /// `line` counts from 1.
    pub(crate) fn new(file: &str, line: Option<usize>, problem: &str) -> Self {
        let line = line.map(|line| format!(":{line}")).unwrap_or_default();
        Self(format!("{file}{line}: {problem}"))
    }

    pub(crate) fn of_toml(file: &str, text: &str, error: &toml::de::Error) -> Self {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map(|before| before.matches('\n').count() + 1);
        Self::new(file, line, &message(error))
    }
}

impl ScenarioError {
    /// Problem of a name, which it has in quotation marks; the name usually occurs in the text.
    pub(crate) fn of_name(file: &str, text: &str, problem: &str) -> Self {
        let placeholder = problem.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        let placeholder = placeholder.and_then(|(name, _)| line_of(text, &format!("{{{name}}}")));
        let mut quoted = problem.split('"').skip(1).step_by(2).filter(|word| !word.is_empty());
        let of_word = |word| line_of(text, &format!("\"{word}\"")).or_else(|| line_of_word(text, word));
        Self::new(file, placeholder.or_else(|| quoted.find_map(of_word)), problem)
    }
}

/// Message of the parser on one line.
fn message(error: &toml::de::Error) -> String {
    error.message().lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

// === Inheritance ===

/// Key that names the base scenario.
const LIKE: &str = "like";
/// Limit of nested inheritance.
const DEPTH: usize = 4;

pub(super) fn parse(file: &str, text: &str) -> Result<Scenario, ScenarioError> {
    let mut table = read(file, text)?;
    if !table.contains_key(LIKE) {
        // Parsed from the text, so that errors have a line.
        return toml::from_str(text).map_err(|error| ScenarioError::of_toml(file, text, &error));
    }
    for _ in 0..DEPTH {
        let Some(base) = table.remove(LIKE) else { break };
        let base = base.as_str().and_then(Builtin::named).ok_or_else(|| {
            let names: Vec<&str> = builtin().iter().map(|one| one.name).collect();
            let problem = format!("like = {base}: it names one of {}", names.join(", "));
            ScenarioError::new(file, line_of(text, LIKE), &problem)
        })?;
        let mut merged = read(base.file, base.text)?;
        merged.extend(table);
        table = merged;
    }
    Scenario::deserialize(table).map_err(|error| {
        let problem = message(&error);
        // Merged keys have no position; the wrong word usually occurs in the text.
        let line = problem.split('`').nth(1).and_then(|word| line_of(text, word));
        ScenarioError::new(file, line, &problem)
    })
}

fn read(file: &str, text: &str) -> Result<toml::Table, ScenarioError> {
    toml::from_str(text).map_err(|error| ScenarioError::of_toml(file, text, &error))
}

/// First line that contains `word` not as a part of another one, from 1.
fn line_of_word(text: &str, word: &str) -> Option<usize> {
    let is_part = |letter: char| letter.is_alphanumeric() || "-_.".contains(letter);
    let has_word = |line: &str| {
        line.match_indices(word)
            .any(|(at, _)| !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part))
    };
    text.lines().position(has_word).map(|line| line + 1)
}

/// First line that contains `word`, from 1.
fn line_of(text: &str, word: &str) -> Option<usize> {
    text.lines().position(|line| line.contains(word)).map(|line| line + 1)
}
