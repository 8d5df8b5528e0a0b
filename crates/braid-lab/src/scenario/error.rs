//! What a scenario can have wrong.

use thiserror::Error;

/// A scenario that cannot be used: one line with file, line and what to change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}{place}: {problem}", place = line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct ScenarioError {
    file: String,
    /// Counted from 1.
    line: Option<usize>,
    problem: String,
}

impl ScenarioError {
    pub(crate) fn new(file: &str, line: Option<usize>, problem: impl Into<String>) -> Self {
        Self { file: file.into(), line, problem: problem.into() }
    }

    pub(crate) fn of_toml(file: &str, text: &str, error: &toml::de::Error) -> Self {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map(|before| before.matches('\n').count() + 1);
        // The parser's message may have lines of its own.
        let problem = error.message().lines().map(str::trim).collect::<Vec<_>>().join("; ");
        Self::new(file, line, problem)
    }
}
