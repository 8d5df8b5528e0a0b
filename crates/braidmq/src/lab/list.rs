//! `braidmq lab list`.

use std::io::{Write, stdout};
use std::process::ExitCode;

use braid_lab::scenario::{Scenario, builtin};

use super::Refusal;

/// List the scenarios that come with the program
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print the TOML of this one instead, to start a scenario of your own from
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Refusal> {
    if let Some(name) = &args.name {
        let one = builtin().iter().find(|one| one.name == name).ok_or_else(|| unknown(name))?;
        // Standard output may be closed, here and below.
        let _ = stdout().lock().write_all(one.text.as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    let width = builtin().iter().map(|one| one.name.len()).max().unwrap_or(0);
    let mut out = stdout().lock();
    for one in builtin() {
        let scenario = Scenario::parse(one.file, one.text)?;
        let _ = writeln!(out, "{:width$}  {}", scenario.name, scenario.title);
    }
    let _ = writeln!(
        out,
        "\nbraidmq lab run NAME --quick takes a short look; without --quick it takes its full time."
    );
    Ok(ExitCode::SUCCESS)
}

/// Largest edit distance of a suggestion.
const TYPOS: usize = 2;

/// Message for a scenario that does not exist.
pub(crate) fn unknown(name: &str) -> String {
    let names: Vec<&str> = builtin().iter().map(|one| one.name).collect();
    let distance = |one: &str| strsim::damerau_levenshtein(one, name);
    let near = names.iter().min_by_key(|one| distance(one)).filter(|one| distance(one) <= TYPOS);
    let hint = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
    let file = match name.contains(['/', '.']) {
        true => format!("lab list prints built-in scenarios; run a file with: braidmq lab run {name}"),
        false => format!("a file is given by its path (./{name}.toml)"),
    };
    format!("there is no scenario {name:?}{hint} ({}); {file}", names.join(", "))
}
