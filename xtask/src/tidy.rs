//! Checks of sizes, names, words, imports and documents, as a command and as an ordinary test.
//!
//! Every rule is a function from the parsed tree to its violations. Exemptions, with their reasons, are in one file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::source::{self, Source};
use crate::tree::{self, Tree};

mod cycle;
mod dependency;
mod document;
mod exempt;
mod mention;
mod name;
mod owner;
mod size;
mod text;
mod words;

/// Folders of the Rust sources that the rules apply to.
const SOURCES: &[&str] = &["crates/", "xtask/"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Root of another repository to check.
    #[arg(long, hide = true)]
    root: Option<PathBuf>,
}

/// One place that breaks one rule. Printed as `path:line: problem; remedy (rule)`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    pub(crate) path: String,
    /// Line from 1; 0 for the whole file or folder.
    pub(crate) line: usize,
    pub(crate) rule: &'static str,
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

impl Violation {
    fn new(
        path: impl Into<String>,
        line: usize,
        rule: &'static str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { path: path.into(), line, rule, problem: problem.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {} ({})", self.path, self.line.max(1), self.problem, self.remedy, self.rule)
    }
}

/// Prints every violation and a summary. True without violations.
///
/// # Errors
/// The tree could not be read.
pub(crate) fn run(args: &Args) -> Result<bool, String> {
    let report = check(&args.root.clone().unwrap_or_else(tree::root))?;
    for violation in &report.violations {
        println!("{violation}");
    }
    print!("{}", report.summary);
    Ok(report.violations.is_empty())
}

struct Report {
    violations: Vec<Violation>,
    summary: String,
}

fn check(root: &Path) -> Result<Report, String> {
    let tree = Tree::read(root)?;
    let exemptions = exempt::read(&tree)?;
    let (sources, unparsed) = source::parse(&tree, SOURCES);
    let mut violations: Vec<_> = unparsed
        .into_iter()
        .map(|failed| {
            let problem = format!("does not parse as Rust: {}", failed.message);
            Violation::new(failed.path, failed.line, "syntax", problem, "make it compile")
        })
        .collect();
    violations.extend(size::check(&sources));
    violations.extend(document::check(&sources));
    violations.extend(name::check(&sources));
    violations.extend(dependency::check(&tree, &sources));
    violations.extend(text::check(&tree, &sources));
    violations.extend(cycle::check(&sources));
    violations.extend(owner::check(&sources));
    violations.extend(words::check(&tree, &sources));
    let mut violations = exempt::apply(&exemptions, violations);
    violations.sort();
    let summary = summarise(&sources, violations.len(), exemptions.len());
    Ok(Report { violations, summary })
}

/// Report of test lines : code lines, per crate and in all.
fn summarise(sources: &[Source<'_>], violations: usize, exemptions: usize) -> String {
    let mut by_crate: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for source in sources {
        let (code, test) = source.line_counts();
        for key in [source.crate_folder(), "all"] {
            let sum = by_crate.entry(key).or_default();
            *sum = (sum.0 + code, sum.1 + test);
        }
    }
    let mut out = String::from("test lines : code lines (0.4 to 0.9 is the aim)\n");
    for (folder, (code, test)) in by_crate {
        let hundredths = (test * 100).checked_div(code).unwrap_or(0);
        let remark = if (40..=90).contains(&hundredths) { "" } else { "  outside the aim" };
        let ratio = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        out.push_str(&format!("  {folder:<24} {test:>6} : {code:<6} = {ratio}{remark}\n"));
    }
    out.push_str(&format!("files: {}; violations: {violations}; exemptions: {exemptions}\n", sources.len(),));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let report = check(&tree::root()).unwrap();
        let lines: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{} violations:\n{}", lines.len(), lines.join("\n"));
    }

    #[test]
    fn the_ratio_is_reported_for_each_crate() {
        let text = "fn a() {}\nfn b() {}\n#[cfg(test)]\nmod tests {}\n";
        let tree = Tree::of(&[("crates/a/src/lib.rs", text), ("crates/b/src/lib.rs", "fn a() {}\n")]);
        let (sources, _) = source::parse(&tree, SOURCES);
        let summary = summarise(&sources, 0, 0);
        assert!(
            summary.contains("crates/a                      2 : 2      = 1.00  outside the aim\n"),
            "{summary}"
        );
        assert!(
            summary.contains("crates/b                      0 : 1      = 0.00  outside the aim\n"),
            "{summary}"
        );
        assert!(summary.contains("all                           2 : 3      = 0.66\n"), "{summary}");
    }
}
