//! Builds every fuzz target and runs each for a bounded time; a crash fails the chore and keeps its input.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::tree;

/// One file for each target.
const TARGETS: &str = "fuzz/fuzz_targets";
/// One folder for each target, with the inputs that are kept and that `cargo test` replays.
const KEPT: &str = "fuzz/corpus";
/// One folder for each target, with what the fuzzer finds new: it goes on from there the next time.
const FOUND: &str = "target/fuzz-corpus";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds that each target runs.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Only this target (repeatable).
    #[arg(long = "target", value_name = "NAME")]
    targets: Vec<String>,
}

/// Runs the targets. True when each ran its time, false when one found something.
///
/// # Errors
/// Nothing could run.
pub(crate) fn run(args: &Args) -> Result<bool, String> {
    let outcomes = fuzz(&tree::root(), args)?;
    println!("\nfuzz: {} targets, {} s each", outcomes.len(), args.seconds);
    for outcome in &outcomes {
        let verdict = if outcome.clean { "clean" } else { "FAILED: see fuzz/artifacts, then add a test" };
        println!("  {:<24} {:>5} s  {verdict}", outcome.target, outcome.took.as_secs());
    }
    Ok(outcomes.iter().all(|outcome| outcome.clean))
}

struct Outcome {
    target: String,
    took: Duration,
    clean: bool,
}

fn fuzz(root: &Path, args: &Args) -> Result<Vec<Outcome>, String> {
    let targets = chosen(&listed(root)?, &args.targets)?;
    if !answers(Command::new("cargo").args(["+nightly", "--version"])) {
        return Err("the fuzz targets need a nightly compiler: rustup toolchain install nightly".into());
    }
    if !answers(Command::new("cargo").args(["fuzz", "--version"])) {
        println!("fuzz: cargo-fuzz is not installed: cargo install cargo-fuzz --locked");
        let install = ["install", "cargo-fuzz", "--locked"];
        succeed(Command::new("cargo").args(install), "cargo install cargo-fuzz")?;
    }
    println!("fuzz: building {}", targets.join(", "));
    for target in &targets {
        let mut build = Command::new("cargo");
        build.current_dir(root).args(["+nightly", "fuzz", "build", target]);
        succeed(&mut build, &format!("building the fuzz target {target}"))?;
    }
    let mut outcomes = Vec::new();
    for target in targets {
        println!("fuzz: {target} for {} s", args.seconds);
        let begin = Instant::now();
        let corpora = corpora(root, &target)?;
        let mut run = Command::new("cargo");
        run.current_dir(root).args(["+nightly", "fuzz", "run", &target]).args(corpora).arg("--");
        run.arg(format!("-max_total_time={}", args.seconds)).arg("-print_final_stats=1");
        let status = run.status().map_err(|error| format!("cannot run cargo: {error}"))?;
        outcomes.push(Outcome { target, took: begin.elapsed(), clean: status.success() });
    }
    Ok(outcomes)
}

/// The names of the targets, sorted.
fn listed(root: &Path) -> Result<Vec<String>, String> {
    let entries =
        std::fs::read_dir(root.join(TARGETS)).map_err(|error| format!("cannot list {TARGETS}: {error}"))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned))
        .collect();
    names.sort();
    if names.is_empty() { Err(format!("{TARGETS} holds no target")) } else { Ok(names) }
}

fn chosen(listed: &[String], wanted: &[String]) -> Result<Vec<String>, String> {
    if let Some(unknown) = wanted.iter().find(|name| !listed.contains(name)) {
        return Err(format!("there is no fuzz target {unknown}; there are {}", listed.join(", ")));
    }
    Ok(if wanted.is_empty() { listed.to_vec() } else { wanted.to_vec() })
}

/// The folders a target reads its inputs from; libFuzzer adds what it finds to the first.
fn corpora(root: &Path, target: &str) -> Result<Vec<String>, String> {
    let found = format!("{FOUND}/{target}");
    std::fs::create_dir_all(root.join(&found)).map_err(|error| format!("cannot make {found}: {error}"))?;
    let kept = format!("{KEPT}/{target}");
    let has_kept = root.join(&kept).is_dir();
    Ok(if has_kept { vec![found, kept] } else { vec![found] })
}

fn answers(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn succeed(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed with {status}")),
        Err(error) => Err(format!("{what} failed: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_sources_in_the_folder() {
        let root = tempfile::tempdir().unwrap();
        assert!(listed(root.path()).unwrap_err().starts_with("cannot list fuzz/fuzz_targets: "));
        std::fs::create_dir_all(root.path().join(TARGETS)).unwrap();
        assert_eq!(listed(root.path()).unwrap_err(), "fuzz/fuzz_targets holds no target");
        for name in ["session.rs", "decode.rs", "notes.md"] {
            std::fs::write(root.path().join(TARGETS).join(name), "").unwrap();
        }
        assert_eq!(listed(root.path()).unwrap(), ["decode", "session"]);
    }

    #[test]
    fn findings_are_kept_apart_from_the_corpus() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(corpora(root.path(), "decode").unwrap(), ["target/fuzz-corpus/decode"]);
        assert!(root.path().join("target/fuzz-corpus/decode").is_dir());
        std::fs::create_dir_all(root.path().join("fuzz/corpus/decode")).unwrap();
        let both = ["target/fuzz-corpus/decode", "fuzz/corpus/decode"];
        assert_eq!(corpora(root.path(), "decode").unwrap(), both);
    }

    #[test]
    fn an_unknown_target_is_told_with_those_there_are() {
        let listed = ["decode".to_owned(), "session".to_owned()];
        assert_eq!(chosen(&listed, &[]).unwrap(), listed);
        assert_eq!(chosen(&listed, &["session".into()]).unwrap(), ["session"]);
        let error = chosen(&listed, &["matching".into()]).unwrap_err();
        assert_eq!(error, "there is no fuzz target matching; there are decode, session");
    }
}
