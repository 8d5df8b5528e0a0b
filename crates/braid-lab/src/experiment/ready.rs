//! Whether what a run needs is there.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::house::{HouseError, Namespace, Program};
use crate::scenario::{Profile, Ready};

/// A program has so long to become ready.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked at.
const AGAIN: Duration = Duration::from_millis(50);

/// Why a program did not become ready.
#[derive(Debug, Error)]
pub enum NotReady {
    /// It has ended, or was silent for too long.
    #[error(transparent)]
    House(#[from] HouseError),
    /// Somebody said stop.
    #[error("stopped")]
    Stopped,
    /// Nobody listens.
    #[error("`{command}` does not accept connections at port {port} after {} s", within.as_secs_f64())]
    Port {
        /// Its command line.
        command: String,
        /// Where it should have listened.
        port: u16,
        /// How long it had.
        within: Duration,
    },
}

/// Waits until `program` at `end` is ready, for at most `within`. Who listens on the loopback device of the end or on
/// `address` counts as listening. `is_stopped` is asked some twenty times a second.
///
/// # Errors
/// It has ended, its time is over, or somebody said stop.
pub fn wait_until_ready(
    program: &Program,
    end: &Namespace,
    address: Option<Ipv4Addr>,
    ready: &Ready,
    within: Duration,
    is_stopped: &mut dyn FnMut() -> bool,
) -> Result<(), NotReady> {
    let begin = Instant::now();
    while !is_stopped() {
        let is_ready = match ready {
            Ready::Line(text) => writes(program, text)?,
            Ready::Port(port) => accepts(program, end, address, *port)?,
        };
        if is_ready {
            return Ok(());
        }
        if begin.elapsed() >= within {
            return Err(too_late(program, ready, within));
        }
    }
    Err(NotReady::Stopped)
}

/// Whether it has written `text`, or does so in a moment.
fn writes(program: &Program, text: &str) -> Result<bool, HouseError> {
    match program.wait_for(text, AGAIN) {
        Ok(_) => Ok(true),
        Err(HouseError::Silent { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether it accepts connections. If not, returns after a moment.
fn accepts(
    program: &Program,
    end: &Namespace,
    address: Option<Ipv4Addr>,
    port: u16,
) -> Result<bool, HouseError> {
    let connects = |ip: Ipv4Addr| TcpStream::connect_timeout(&SocketAddr::from((ip, port)), AGAIN).is_ok();
    if end.run(|| connects(Ipv4Addr::LOCALHOST) || address.is_some_and(connects))? {
        return Ok(true);
    }
    match program.wait(AGAIN) {
        Some(ended) => Err(program.ended(ended)),
        None => Ok(false),
    }
}

fn too_late(program: &Program, ready: &Ready, within: Duration) -> NotReady {
    match ready {
        Ready::Port(port) => NotReady::Port { command: program.command().to_owned(), port: *port, within },
        Ready::Line(text) => program.silent(text, within).into(),
    }
}

/// What a profile needs and this machine does not have.
pub(super) fn missing(profile: &Profile, has_iptables: impl FnOnce() -> bool) -> Option<String> {
    (!profile.rules.is_empty() && !has_iptables()).then(|| {
        "it needs the program iptables: install the package iptables, or take a profile whose link has a policer".into()
    })
}

/// Whether the program iptables runs here.
pub(super) fn has_iptables() -> bool {
    // The search path of users leaves out where system programs are.
    ["iptables", "/usr/sbin/iptables", "/sbin/iptables"].into_iter().any(|command| {
        Command::new(command).arg("--version").output().is_ok_and(|output| output.status.success())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A profile of one link between two ends.
    fn profile(shape: &str) -> Profile {
        toml::from_str(&format!("name = 'p'\ntitle = 'p'\n{shape}")).expect("a profile")
    }

    #[test]
    fn only_a_rule_of_the_kernel_needs_its_program() {
        let ruled = profile("rules = { wire = '29/sec burst 5' }");
        assert!(missing(&ruled, || false).is_some_and(|problem| problem.contains("package iptables")));
        assert_eq!(missing(&ruled, || true), None);
        let policed = profile("links = { wire = 'policer=29pps/5' }");
        assert_eq!(missing(&policed, || unreachable!("nobody asks for it")), None);
    }
}
