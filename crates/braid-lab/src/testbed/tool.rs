//! Programs of the system that the testbed calls: `ip` and `iptables`.

use std::io::ErrorKind::{NotFound, PermissionDenied};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Output, Stdio};

use super::error::TestbedError;
use super::namespace::Namespace;
use super::plan::PacketRule;
use braid_emulator::PacketCount;

/// System program with its Debian package.
pub(super) struct Tool {
    name: &'static str,
    package: &'static str,
    instead: &'static str,
}

/// `ip`: devices, addresses and neighbours.
pub(super) const IP: Tool = Tool { name: "ip", package: "iproute2", instead: "" };

/// `iptables`: packet rules.
pub(super) const IPTABLES: Tool = Tool {
    name: "iptables",
    package: "iptables",
    instead: ", or give the link `policer=xt:29pps/5` instead of a rule: the emulator counts in the same way",
};

/// Directories of system programs, which a user's PATH may omit.
const FOLDERS: [&str; 3] = ["", "/usr/sbin/", "/sbin/"];

impl Tool {
    /// Runs the program in `namespace` with `input`; returns its output.
    ///
    /// # Errors
    /// One line: the program is not installed, or failed.
    pub(super) fn run(
        &self,
        namespace: &Namespace,
        arguments: &[&str],
        input: Input<'_>,
    ) -> Result<String, TestbedError> {
        let output =
            namespace.run(|| self.output(arguments, input))?.map_err(|error| match error.kind() {
                NotFound => {
                    let Self { name, package, instead } = self;
                    TestbedError::Other(format!(
                        "`{name}` is not installed: install the package {package}{instead}"
                    ))
                }
                _ => TestbedError::kernel(format!("run {}", self.name))(error),
            })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let lines =
            text.lines().map(str::trim).filter(|line| !line.is_empty() && failed_line(line).is_none());
        let mut said = lines.collect::<Vec<_>>().join("; ");
        if said.is_empty() {
            said = output.status.to_string();
        }
        let number = text.lines().find_map(failed_line);
        let command = match (input, number) {
            (Input::Text(commands), Some(number)) => {
                commands.lines().nth(number - 1).unwrap_or("").to_owned()
            }
            _ => arguments.join(" "),
        };
        let (name, namespace) = (self.name, namespace.name());
        Err(TestbedError::Tool(format!("`{name} {command}` in the namespace {namespace} failed: {said}")))
    }

    fn output(&self, arguments: &[&str], input: Input<'_>) -> io::Result<Output> {
        let mut child = self.start(arguments, input)?;
        if let (Some(mut stdin), Input::Text(text)) = (child.stdin.take(), input) {
            // The program may end before it has read everything; its exit code decides whether that is an error.
            let _ = stdin.write_all(text.as_bytes());
        }
        child.wait_with_output()
    }

    fn start(&self, arguments: &[&str], input: Input<'_>) -> io::Result<Child> {
        for folder in FOLDERS {
            let mut command = Command::new(format!("{folder}{}", self.name));
            command.args(arguments).stdin(input.stdio()?).stdout(Stdio::piped()).stderr(Stdio::piped());
            // The lock guards against concurrent changes of the namespace, which do not happen here, and an
            // unprivileged user may not write the default file.
            command.env("XTABLES_LOCKFILE", "/dev/null");
            match command.spawn() {
                // PATH may hold directories that this user may not enter.
                Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => {}
                outcome => return outcome,
            }
        }
        Err(NotFound.into())
    }
}

/// Line number in `Command failed -:3`, by which `ip -batch` names the failed command.
fn failed_line(line: &str) -> Option<usize> {
    line.trim().strip_prefix("Command failed -:")?.parse().ok().filter(|number| *number > 0)
}

/// Standard input of a system program.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    Nothing,
    Text(&'a str),
    /// Namespace, whose path is [`STANDARD_INPUT`].
    Namespace(&'a Namespace),
}

/// Path of [`Input::Namespace`] for the program.
pub(super) const STANDARD_INPUT: &str = "/proc/self/fd/0";

impl Input<'_> {
    fn stdio(self) -> io::Result<Stdio> {
        Ok(match self {
            Self::Nothing => Stdio::null(),
            Self::Text(_) => Stdio::piped(),
            Self::Namespace(namespace) => namespace.as_fd().try_clone_to_owned()?.into(),
        })
    }
}

// === Packet rules ===

/// Counters of a [`PacketRule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleCounters {
    /// Packets within the limit.
    pub accepted: PacketCount,
    /// Packets above the limit.
    pub dropped: PacketCount,
}

/// Installs `rule` for packets that arrive in `namespace` on `device`.
pub(super) fn limit(rule: PacketRule, namespace: &Namespace, device: &str) -> Result<(), TestbedError> {
    let rate = format!("{}/sec", rule.rate);
    let burst = rule.burst.to_string();
    let from = ["-A", "INPUT", "-i", device];
    let limit = ["-m", "limit", "--limit", &rate, "--limit-burst", &burst];
    let accept = [&from[..], &limit, &["-j", "ACCEPT"]].concat();
    let drop = [&from[..], &["-j", "DROP"]].concat();
    for arguments in [accept, drop] {
        IPTABLES.run(namespace, &arguments, Input::Nothing)?;
    }
    Ok(())
}

/// Reads the counters of the rule for `device`.
pub(super) fn counters(namespace: &Namespace, device: &str) -> Result<RuleCounters, TestbedError> {
    let list = IPTABLES.run(namespace, &["-L", "INPUT", "-n", "-v", "-x"], Input::Nothing)?;
    Ok(RuleCounters { accepted: tally(&list, "ACCEPT", device), dropped: tally(&list, "DROP", device) })
}

/// Counters from a line such as `  29   43500 ACCEPT  0  --  lq0r  *  0.0.0.0/0  0.0.0.0/0  limit: avg 29/sec burst 5`.
fn tally(list: &str, target: &str, device: &str) -> PacketCount {
    let row = list
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|words| words.get(2) == Some(&target) && words.contains(&device));
    let number = |place: usize| row.as_ref().and_then(|words| words.get(place)?.parse().ok()).unwrap_or(0);
    PacketCount { packets: number(0), bytes: number(1) }
}
