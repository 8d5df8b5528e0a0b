//! Copyright notices and licences of the crates in the binary, which their licences demand of its distributors.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::output;

/// Beginnings of the names of files with notices, in capitals.
const NOTICES: &[&str] = &["COPYING", "COPYRIGHT", "LICENCE", "LICENSE", "NOTICE"];

/// Subset of the output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    authors: Vec<String>,
    manifest_path: PathBuf,
    /// Registry of the package; `None` for those of this repository.
    source: Option<String>,
}

/// Name, version, licence, authors and notices of each crate that the binary is linked from, sorted by name.
///
/// # Errors
/// cargo failed, or a file could not be read.
pub(super) fn text(root: &Path) -> Result<String, String> {
    let tree = ["tree", "--package", "braidmq", "--edges", "normal,no-proc-macro", "--prefix", "none"];
    let tree = output(Command::new("cargo").current_dir(root).args(tree).args(["--format", "{p}"]))?;
    let metadata = ["metadata", "--format-version", "1", "--locked"];
    let metadata = output(Command::new("cargo").current_dir(root).args(metadata))?;
    let mut metadata: Metadata =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let linked = linked(&tree);
    metadata.packages.retain(|package| {
        package.source.is_some() && linked.contains(&(package.name.as_str(), package.version.as_str()))
    });
    metadata.packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    let mut out = String::from("Crates of other projects in the binary of BraidMQ.\n");
    for package in &metadata.packages {
        let licence = package.license.as_deref().unwrap_or("see below");
        let _ = write!(out, "\n=== {} {}: {licence}\n", package.name, package.version);
        // Some crates have no notice, or a broken link to one.
        if !package.authors.is_empty() {
            let _ = writeln!(out, "Authors: {}", package.authors.join(", "));
        }
        for file in notices(package.manifest_path.parent().unwrap_or(root))? {
            let bytes = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            let _ = write!(out, "\n{}\n", String::from_utf8_lossy(&bytes).trim_end());
        }
    }
    Ok(out)
}

/// Names and versions in lines such as `bytes v1.12.0` and `braidmq v0.1.0 (/path) (*)`.
fn linked(tree: &str) -> BTreeSet<(&str, &str)> {
    tree.lines()
        .filter_map(|line| line.split(' ').next().zip(line.split(' ').nth(1)?.strip_prefix('v')))
        .collect()
}

/// Files with notices in the folder of a crate, sorted.
fn notices(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error| format!("cannot list {}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && NOTICES.iter().any(|beginning| name.starts_with(beginning)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;

    #[test]
    fn crates_of_the_binary_are_listed_with_their_notices() {
        let text = text(&tree::root()).unwrap();
        let section = |name: &str| {
            let rest = text.split_once(&format!("\n=== {name} ")).map(|(_, rest)| rest);
            rest.map(|rest| rest.split("\n=== ").next().unwrap_or(rest))
        };
        assert!(section("rustls").expect("rustls is linked").contains("Permission is hereby granted"));
        assert!(section("bytes").expect("bytes is linked").contains("Copyright (c) 2018 Carl Lerche"));
        // Its file with the notice is a broken link.
        assert!(section("plotters").expect("plotters is linked").contains("Authors: Hao Hou"));
        for absent in ["braid-proto", "serde_derive", "proptest"] {
            assert!(section(absent).is_none(), "{absent} is ours, or not linked");
        }
    }

    #[test]
    fn lines_of_cargo_tree_are_names_and_versions() {
        let tree = "braidmq v0.1.0 (/a b/c)\nbytes v1.12.0\nbytes v1.12.0 (*)\n\nring v0.17.14\n";
        let expected = [("braidmq", "0.1.0"), ("bytes", "1.12.0"), ("ring", "0.17.14")];
        assert_eq!(linked(tree).into_iter().collect::<Vec<_>>(), expected);
    }
}
