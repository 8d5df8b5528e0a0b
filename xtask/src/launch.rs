//! Launchers of the measuring programs, which have crates and builds of their own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
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

/// Builds a program of the workspace, and replaces this process by it; returns only on failure.
fn launch(package: &str, is_release: bool, subcommand: Option<&str>, args: &Args) -> ExitCode {
    // With the broker beside it, the program takes the libraries that the tests were built with, feature by feature. A
    // release has only what its program needs.
    let packages = [package, "braidmq"];
    let program = match build(if is_release { &packages[..1] } else { &packages }, is_release) {
        Ok(folder) => folder.join(package),
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut command = Command::new(program);
    without_package(&mut command).args(subcommand).args(&args.arguments);
    eprintln!("xtask: cannot start {command:?}: {}", command.exec());
    ExitCode::FAILURE
}

/// Builds packages of the workspace, and returns the folder of their programs.
pub(crate) fn build(packages: &[&str], is_release: bool) -> Result<PathBuf, String> {
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    without_package(&mut build).arg("build");
    for package in packages {
        build.args(["--package", package]);
    }
    if is_release {
        build.arg("--release");
    }
    let status = build.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    if !status.success() {
        return Err(format!("{build:?} failed"));
    }
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let target = own.parent().and_then(Path::parent).unwrap_or(Path::new("target"));
    Ok(target.join(if is_release { "release" } else { "debug" }))
}

/// Removes the variables with which cargo names the package that it runs: the build script of `ring` reads them, and
/// each change would build again all that uses it.
fn without_package(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"CARGO_PKG_")
            || name.as_encoded_bytes().starts_with(b"CARGO_MANIFEST_")
        {
            command.env_remove(name);
        }
    }
    command
}
