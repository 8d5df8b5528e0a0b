//! Normative statements of the standards.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::tree::Tree;

/// The longest summary, in characters; the full text is in the standard.
pub(super) const SUMMARY_LIMIT: usize = 120;

/// The least share of MQTT's enforced statements that tests must show, in percent.
const TESTED_SHARE: usize = 95;

/// A standard and its statements.
pub(super) struct Standard {
    pub(super) edition: Edition,
    pub(super) statements: Vec<Statement>,
}

/// Identity of a standard, and the coverage that it requires.
#[derive(Clone, Copy)]
pub(super) struct Edition {
    pub(super) name: &'static str,
    /// The file its statements stand in.
    pub(super) file: &'static str,
    /// The file its exceptions stand in.
    pub(super) exceptions: &'static str,
    /// Prefix of the tags of this standard.
    pub(super) tag_prefix: &'static str,
    pub(super) tested: Tested,
}

/// Share of the enforced statements that tests have to show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tested {
    /// Share in percent.
    Share(usize),
    /// Each statement. An exception may excuse a test as well.
    Each,
}

/// Party that a statement binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Binds {
    Server,
    Client,
    Both,
    /// Nothing that code could enforce.
    None,
    /// The party that the statement itself names, as our own statements do.
    #[serde(skip)]
    Worded,
}

impl Binds {
    /// Prefix of the summary in a list.
    pub(super) const fn prefix(self) -> &'static str {
        match self {
            Self::Server => "server: ",
            Self::Client => "client: ",
            Self::Both => "both: ",
            Self::None => "none: ",
            Self::Worded => "",
        }
    }
}

/// One normative statement, in our own words.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Statement {
    /// Number in the standard, such as `MQTT-3.3.2-2` or `BQ-31`.
    pub(super) id: String,
    pub(super) binds: Binds,
    pub(super) summary: String,
    #[serde(default)]
    pub(super) same_as: SameAs,
    /// Reason for which the statement is not enforced, or not tested where a test is required.
    pub(super) exception: Option<String>,
}

/// The statements of 5.0 that together mean the same as one of 3.1.1.
#[derive(Default, Deserialize)]
#[serde(untagged)]
pub(super) enum SameAs {
    #[default]
    Nothing,
    One(String),
    All(Vec<String>),
}

impl SameAs {
    pub(super) fn ids(&self) -> &[String] {
        match self {
            Self::Nothing => &[],
            Self::One(id) => std::slice::from_ref(id),
            Self::All(ids) => ids,
        }
    }
}

/// Reads 5.0 and 3.1.1, in this order.
///
/// # Errors
/// One line that names the file and the fault in it.
pub(super) fn read(tree: &Tree) -> Result<[Standard; 2], String> {
    let five = standard(tree, "MQTT 5.0", "docs/spec/mqtt-5.0.toml", "MQTT-")?;
    let three = standard(tree, "MQTT 3.1.1", "docs/spec/mqtt-3.1.1.toml", "MQTT3-")?;
    let known: BTreeSet<&str> = five.statements.iter().map(|statement| statement.id.as_str()).collect();
    for statement in &three.statements {
        if let Some(id) = statement.same_as.ids().iter().find(|id| !known.contains(id.as_str())) {
            return Err(format!(
                "{}: {} is the same as {id}, which 5.0 does not have",
                three.edition.file, statement.id
            ));
        }
    }
    if let Some(statement) = five.statements.iter().find(|statement| !statement.same_as.ids().is_empty()) {
        return Err(format!(
            "{}: {} has `same_as`, which belongs into 3.1.1's file",
            five.edition.file, statement.id
        ));
    }
    Ok([five, three])
}

fn standard(
    tree: &Tree,
    name: &'static str,
    file: &'static str,
    tag_prefix: &'static str,
) -> Result<Standard, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        statement: Vec<Statement>,
    }
    let text = tree.file(file).ok_or(format!("{file} is missing"))?;
    let File { statement: statements } =
        toml::from_str(&text.text).map_err(|error| format!("{file}: {error}"))?;
    let mut seen = BTreeSet::new();
    for statement in &statements {
        let Statement { id, summary, exception, .. } = statement;
        if !is_id(id) {
            return Err(format!("{file}: `{id}` is no statement's number; write it like MQTT-3.3.2-2"));
        }
        if !seen.insert(id) {
            return Err(format!("{file}: {id} is listed twice"));
        }
        if summary.is_empty() || summary.chars().count() > SUMMARY_LIMIT {
            return Err(format!("{file}: the summary of {id} must have 1 to {SUMMARY_LIMIT} characters"));
        }
        if exception.as_ref().is_some_and(|reason| reason.trim().is_empty()) {
            return Err(format!("{file}: the exception of {id} has no reason"));
        }
    }
    let edition = Edition { name, file, exceptions: file, tag_prefix, tested: Tested::Share(TESTED_SHARE) };
    Ok(Standard { edition, statements })
}

/// Whether the text is `MQTT-`, three numbers with dots, a dash and a number.
fn is_id(id: &str) -> bool {
    let Some((section, number)) = id.strip_prefix("MQTT-").and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number(number) && section.split('.').count() == 3 && section.split('.').all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(five: &str, three: &str) -> String {
        let tree = Tree::of(&[("docs/spec/mqtt-5.0.toml", five), ("docs/spec/mqtt-3.1.1.toml", three)]);
        read(&tree).err().unwrap()
    }

    fn statement(id: &str, more: &str) -> String {
        format!("[[statement]]\nid = \"{id}\"\nbinds = \"both\"\nsummary = \"Some.\"\n{more}\n")
    }

    #[test]
    fn each_mistake_is_one_clear_line() {
        let good = statement("MQTT-1.1.1-1", "");
        assert_eq!(
            error(&statement("MQTT-1.1-1", ""), &good),
            "docs/spec/mqtt-5.0.toml: `MQTT-1.1-1` is no statement's number; write it like MQTT-3.3.2-2"
        );
        assert_eq!(
            error(&format!("{good}{good}"), &good),
            "docs/spec/mqtt-5.0.toml: MQTT-1.1.1-1 is listed twice"
        );
        let long = good.replace("Some.", &"x".repeat(121));
        assert!(error(&long, &good).contains("the summary of MQTT-1.1.1-1 must have 1 to 120 characters"));
        assert!(error(&statement("MQTT-1.1.1-1", "exception = \"\""), &good).ends_with("has no reason"));
        assert!(
            error(&good, &statement("MQTT-1.1.1-2", "same_as = \"MQTT-9.9.9-9\""))
                .contains("same as MQTT-9.9.9-9")
        );
        assert!(
            error(&statement("MQTT-1.1.1-2", "same_as = \"MQTT-1.1.1-2\""), &good).contains("has `same_as`")
        );
        assert!(
            error(&statement("MQTT-1.1.1-2", "reason = \"x\""), &good).contains("unknown field `reason`")
        );
    }

    #[test]
    fn a_missing_file_is_named() {
        assert_eq!(read(&Tree::default()).err().unwrap(), "docs/spec/mqtt-5.0.toml is missing");
    }
}
