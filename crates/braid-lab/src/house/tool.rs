//! The two programs of the system that the house calls.

use std::io::ErrorKind::{NotFound, PermissionDenied};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Output, Stdio};

use super::error::HouseError;
use super::namespace::Namespace;

/// A program of the system.
pub(super) struct Tool {
    name: &'static str,
    package: &'static str,
    instead: &'static str,
}

/// Devices, addresses and neighbours.
pub(super) const IP: Tool = Tool { name: "ip", package: "iproute2", instead: "" };

/// Packet rules.
pub(super) const IPTABLES: Tool = Tool {
    name: "iptables",
    package: "iptables",
    instead: ", or give the link `policer=xt:29pps/5` instead of a rule: the emulator counts in the same way",
};

/// Where system programs are when the search path of a user leaves them out.
const FOLDERS: [&str; 3] = ["", "/usr/sbin/", "/sbin/"];

impl Tool {
    /// Runs it in `namespace` and gives what it wrote. `input` is what it reads.
    ///
    /// # Errors
    /// One line when it is missing or refuses.
    pub(super) fn run(
        &self,
        namespace: &Namespace,
        arguments: &[&str],
        input: Input<'_>,
    ) -> Result<String, HouseError> {
        let output =
            namespace.run(|| self.output(arguments, input))?.map_err(|error| match error.kind() {
                NotFound => {
                    HouseError::NoTool { tool: self.name, package: self.package, instead: self.instead }
                }
                _ => HouseError::kernel(format!("run {}", self.name))(error),
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
        let command = format!("{} {command}", self.name);
        Err(HouseError::Tool { command, namespace: namespace.name().to_owned(), said })
    }

    fn output(&self, arguments: &[&str], input: Input<'_>) -> io::Result<Output> {
        let mut child = self.start(arguments, input)?;
        if let (Some(mut stdin), Input::Text(text)) = (child.stdin.take(), input) {
            // The tool may end without having read everything; its exit code tells whether that is an error.
            let _ = stdin.write_all(text.as_bytes());
        }
        child.wait_with_output()
    }

    fn start(&self, arguments: &[&str], input: Input<'_>) -> io::Result<Child> {
        for folder in FOLDERS {
            let mut command = Command::new(format!("{folder}{}", self.name));
            command.args(arguments).stdin(input.stdio()?).stdout(Stdio::piped()).stderr(Stdio::piped());
            // iptables locks a file against others who change the same namespace. There are none, and a user may not
            // write that file.
            command.env("XTABLES_LOCKFILE", "/dev/null");
            match command.spawn() {
                // A search path may hold folders that this user may not enter.
                Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => {}
                outcome => return outcome,
            }
        }
        Err(NotFound.into())
    }
}

/// The number in `Command failed -:3`, with which `ip` names a line of what it reads.
fn failed_line(line: &str) -> Option<usize> {
    line.trim().strip_prefix("Command failed -:")?.parse().ok().filter(|number| *number > 0)
}

/// Standard input of a tool.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    Nothing,
    Text(&'a str),
    /// A namespace, to be named as [`STANDARD_INPUT`].
    Namespace(&'a Namespace),
}

/// The path under which a tool finds what it has been given as [`Input::Namespace`].
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
