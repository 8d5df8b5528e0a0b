//! Exemptions from the rules, each with its reason.

use serde::Deserialize;

use super::Violation;
use crate::tree::Tree;

/// File with the exemptions.
pub(super) const FILE: &str = "xtask/tidy.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    exempt: Vec<Exemption>,
}

/// Rule that one file, or one folder whose path ends in `/`, may break, with the reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exemption {
    path: String,
    rule: String,
    reason: String,
}

/// Reads the exemptions of a tree; a tree without the file has none.
///
/// # Errors
/// One line when the file is no valid list of exemptions.
pub(super) fn read(tree: &Tree) -> Result<Vec<Exemption>, String> {
    let Some(file) = tree.file(FILE) else { return Ok(Vec::new()) };
    let file: File = toml::from_str(&file.text).map_err(|error| format!("{FILE}: {error}"))?;
    Ok(file.exempt)
}

/// Removes exempt violations, and adds one for each exemption without reason or effect.
pub(super) fn apply(exemptions: &[Exemption], violations: Vec<Violation>) -> Vec<Violation> {
    let covers = |exemption: &Exemption, violation: &Violation| {
        let is_inside = exemption.path.ends_with('/') && violation.path.starts_with(&exemption.path);
        (is_inside || exemption.path == violation.path) && exemption.rule == violation.rule
    };
    let complaint = |exemption: &Exemption, problem: &str, remedy: &str| {
        let problem = format!("`{}` for {} {problem}", exemption.rule, exemption.path);
        Violation::new(FILE, 0, "exemption", problem, remedy)
    };
    let mut left = Vec::new();
    for exemption in exemptions {
        if exemption.reason.trim().is_empty() {
            left.push(complaint(exemption, "has no reason", "say why it cannot be otherwise"));
        }
        if !violations.iter().any(|violation| covers(exemption, violation)) {
            left.push(complaint(exemption, "exempts nothing", "remove it"));
        }
    }
    left.extend(
        violations
            .into_iter()
            .filter(|violation| !exemptions.iter().any(|exemption| covers(exemption, violation))),
    );
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation(path: &str, rule: &'static str) -> Violation {
        Violation { path: path.into(), line: 1, rule, problem: String::new(), remedy: String::new() }
    }

    fn left(file: &str, violations: Vec<Violation>) -> Vec<(String, String)> {
        let tree = Tree::of(&[(FILE, file)]);
        let left = apply(&read(&tree).unwrap(), violations);
        left.into_iter().map(|violation| (violation.rule.to_owned(), violation.problem)).collect()
    }

    #[test]
    fn an_exemption_covers_one_rule_in_one_file() {
        let file = "[[exempt]]\npath = \"a.rs\"\nrule = \"file-size\"\nreason = \"a table\"\n";
        let found = vec![
            violation("a.rs", "file-size"),
            violation("a.rs", "exports"),
            violation("b.rs", "file-size"),
        ];
        assert_eq!(
            left(file, found),
            [("exports".into(), String::new()), ("file-size".into(), String::new())]
        );
    }

    #[test]
    fn an_exemption_of_a_folder_covers_its_files() {
        let file = "[[exempt]]\npath = \"a/\"\nrule = \"file-size\"\nreason = \"tables\"\n";
        let found = vec![violation("a/b.rs", "file-size"), violation("ab.rs", "file-size")];
        assert_eq!(left(file, found), [("file-size".into(), String::new())]);
    }

    #[test]
    fn an_exemption_without_need_or_reason_is_a_violation() {
        let file = "[[exempt]]\npath = \"a.rs\"\nrule = \"file-size\"\nreason = \" \"\n";
        let problem = |text: &str| ("exemption".to_owned(), format!("`file-size` for a.rs {text}"));
        assert_eq!(left(file, vec![violation("a.rs", "file-size")]), [problem("has no reason")]);
        assert_eq!(left(&file.replace("\" \"", "\"so\""), vec![]), [problem("exempts nothing")]);
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let tree = Tree::of(&[(FILE, "[[exempt]]\npath = \"a\"\nrule = \"b\"\nreason = \"c\"\nline = 3\n")]);
        let error = read(&tree).map(|_| ()).unwrap_err();
        assert!(error.starts_with("xtask/tidy.toml: ") && error.contains("line"), "{error}");
    }
}
