//! Launchers of the measuring programs, which have crates and builds of their own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Arguments that are passed on unchanged.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments of the program; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

impl Args {
    fn has_any(&self, wanted: &[&str]) -> bool {
        self.arguments.iter().any(|argument| wanted.iter().any(|wanted| argument == wanted))
    }
}

/// Replaces this process by `braid-suite`. A load generator without optimisation would be the slowest part of what it
/// measures, so it is built for release, unless it only prints or the caller wants a debug build.
pub(crate) fn bench(args: &Args) -> ExitCode {
    let is_debug = args.arguments.is_empty() || args.has_any(&["--help", "-h", "help", "--list", "--debug"]);
    launch("braid-suite", !is_debug, None, args)
}

/// Replaces this process by `braid-hostile`, built for release as its broker, unless it only prints.
pub(crate) fn hostile(args: &Args) -> ExitCode {
    launch("braid-hostile", !args.has_any(&["--help", "-h", "--list"]), None, args)
}

/// Replaces this process by `braid-torture` in the profile of this program.
pub(crate) fn torture(args: &Args) -> ExitCode {
    launch("braid-torture", !cfg!(debug_assertions), Some("torture"), args)
}

/// Replaces this process by `braid-torture` in the profile of this program, for a cluster.
pub(crate) fn torture_cluster(args: &Args) -> ExitCode {
    launch("braid-torture", !cfg!(debug_assertions), Some("torture-cluster"), args)
}

/// Replaces this process by the release build of `braid-torture`.
pub(crate) fn soak(args: &Args) -> ExitCode {
    launch("braid-torture", true, Some("soak"), args)
}

/// Replaces this process by `braid-torture` in the profile of this program, which checks a history.
pub(crate) fn history(args: &Args) -> ExitCode {
    launch("braid-torture", !cfg!(debug_assertions), Some("history"), args)
}

/// Runs a program of the workspace by cargo; returns only on failure.
fn launch(package: &str, is_release: bool, subcommand: Option<&str>, args: &Args) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", package]);
    if is_release {
        command.arg("--release");
    }
    command.arg("--").args(subcommand).args(&args.arguments);
    eprintln!("xtask: cannot start {command:?}: {}", command.exec());
    ExitCode::FAILURE
}
