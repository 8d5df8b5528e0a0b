//! Scenarios that differ from another one in a few keys.

use serde::Deserialize;

use super::{Builtin, Scenario, ScenarioError, builtin};

/// The key that names the other one.
const LIKE: &str = "like";
/// Scenarios like one that is like another, and so on: so many at most.
const DEPTH: usize = 4;

pub(super) fn parse(file: &str, text: &str) -> Result<Scenario, ScenarioError> {
    let mut table = read(file, text)?;
    if !table.contains_key(LIKE) {
        // Read from the text, errors know their line.
        return toml::from_str(text).map_err(|error| ScenarioError::of_toml(file, text, &error));
    }
    for _ in 0..DEPTH {
        let Some(base) = table.remove(LIKE) else { break };
        let base = base.as_str().and_then(Builtin::named).ok_or_else(|| {
            let names: Vec<&str> = builtin().iter().map(|one| one.name).collect();
            let problem = format!("like = {base}: it names one of {}", names.join(", "));
            ScenarioError::new(file, line_of(text, LIKE), problem)
        })?;
        let mut merged = read(base.file, base.text)?;
        merged.extend(table);
        table = merged;
    }
    Scenario::deserialize(table).map_err(|error| {
        let problem = error.message().lines().map(str::trim).collect::<Vec<_>>().join("; ");
        // Merged keys have no place in a text, but the word that is wrong mostly has.
        let line = problem.split('`').nth(1).and_then(|word| line_of(text, word));
        ScenarioError::new(file, line, problem)
    })
}

fn read(file: &str, text: &str) -> Result<toml::Table, ScenarioError> {
    toml::from_str(text).map_err(|error| ScenarioError::of_toml(file, text, &error))
}

/// The first line with `word`, counted from 1.
fn line_of(text: &str, word: &str) -> Option<usize> {
    text.lines().position(|line| line.contains(word)).map(|line| line + 1)
}
