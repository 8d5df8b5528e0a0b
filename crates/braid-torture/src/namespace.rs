//! Namespaces of Linux for this program, by `unshare` of util-linux.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

/// Option that says that this process is in the namespaces.
const INSIDE: &str = "--inside";
/// Settings that permit user namespaces, for refusals.
const PERMIT: &str = "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or \
                      kernel.apparmor_restrict_unprivileged_userns=0), or be root";

/// Restarts this program in a namespace where it may mount; returns only on failure, with the reason.
pub(crate) fn enter_mounts() -> String {
    let probe = "mount -t tmpfs torture /mnt";
    let Some(mut command) = unshare(&["-Urm", "-m"], &[], probe) else {
        return format!(
            "a full disk needs `unshare -Urm` and `mount` of util-linux, and this machine refuses them: {PERMIT}"
        );
    };
    match again(&mut command, &[]) {
        Ok(command) => format!("cannot start {command:?}: {}", command.exec()),
        Err(reason) => reason,
    }
}

/// Runs this program once more, with `arguments` behind its own, in namespaces for networks, mounts and processes,
/// until it ends. The kernel ends everything inside with it, and it ends when this process does: see
/// [`end_with_caller`].
///
/// # Errors
/// The machine permits no namespaces.
pub(crate) fn run_in_networks(arguments: &[OsString]) -> Result<ExitStatus, String> {
    // The death of `unshare` kills the program inside.
    let more = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let probe = "ip link add probe type bridge";
    let Some(mut command) = unshare(&["-Urnm", "-nm"], &more, probe) else {
        return Err(format!(
            "a testbed of several nodes needs `unshare` of util-linux and `ip` of iproute2, and this machine refuses \
             them: {PERMIT}"
        ));
    };
    let command = again(&mut command, arguments)?.stdin(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    let lifeline = child.stdin.take();
    let status = child.wait().map_err(|error| format!("cannot wait for {command:?}: {error}"));
    drop(lifeline);
    status
}

/// Ends this process when the one outside has ended, by whatever signal: its end of standard input is closed then. The
/// first process of a PID namespace ignores the signals of a terminal.
pub(crate) fn end_with_caller() -> Result<(), String> {
    let wait = || {
        // An error is an end as well.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(130);
    };
    let thread = std::thread::Builder::new().name("lifeline".to_owned()).spawn(wait);
    thread.map(drop).map_err(|error| format!("no thread for the lifeline: {error}"))
}

/// `unshare` with the first of `choices` that this machine permits, and `more`. Root in a container may lack user
/// namespaces, and other users cannot do without.
fn unshare(choices: &[&str], more: &[&str], probe: &str) -> Option<Command> {
    let command = |flags: &&str| {
        let mut command = Command::new("unshare");
        command.arg(flags).args(more);
        command
    };
    let is_allowed = |flags: &&&str| {
        let mut command = command(flags);
        command.args(probe.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    choices.iter().find(is_allowed).map(command)
}

/// Appends this program with its arguments and `more`.
fn again<'a>(command: &'a mut Command, more: &[OsString]) -> Result<&'a mut Command, String> {
    let own: PathBuf =
        std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    Ok(command.arg(own).args(std::env::args_os().skip(1)).args(more).arg(INSIDE))
}
