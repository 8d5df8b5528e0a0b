//! Errors of link specifications, one line each.

/// A link specification that cannot be used. Its text is one line that names the key, the value and what would be
/// right: `unknown unit "m" in delay=50m: write 50ms or 50s`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LinkError {
    message: String,
}

impl LinkError {
    /// `fault` in the words `entry` of the specification.
    pub(crate) fn new(entry: &str, fault: Fault) -> Self {
        let Fault { problem, remedy } = fault;
        Self { message: format!("{problem} in {}: {remedy}", quoted(entry)) }
    }
}

/// Fault of a value, with a valid one; the caller adds the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    problem: String,
    remedy: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.problem, self.remedy)
    }
}

impl Fault {
    pub(crate) fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: remedy.into() }
    }
}

/// `text` for an error line: nothing that could break the line, and not much of it.
pub(crate) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    shown.replace("\\\"", "\"").replace("\\'", "'")
}
