//! Readiness of programs, and requirements of profiles.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::scenario::{Profile, Ready, Variant};
use crate::testbed::{Namespace, Program, TestbedError};

/// Time that a program has to become ready.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Interval of checks.
const INTERVAL: Duration = Duration::from_millis(50);

/// Waits until `program` at `end` is ready, for at most `within`. A listener on the loopback address or on `address`
/// counts. `is_stopped` is called about twenty times per second; the result is `false` if it returned true first.
///
/// # Errors
/// The program ended, or the time is over.
pub fn wait_until_ready(
    program: &Program,
    end: &Namespace,
    address: Option<Ipv4Addr>,
    ready: &Ready,
    within: Duration,
    is_stopped: &mut dyn FnMut() -> bool,
) -> Result<bool, TestbedError> {
    let begin = Instant::now();
    while !is_stopped() {
        let is_ready = match ready {
            Ready::Line(text) => writes(program, text)?,
            Ready::Port(port) => accepts(program, end, address, *port)?,
        };
        if is_ready {
            return Ok(true);
        }
        if begin.elapsed() >= within {
            return Err(too_late(program, ready, within));
        }
    }
    Ok(false)
}

/// Whether the program has written `text`; waits a moment for it.
fn writes(program: &Program, text: &str) -> Result<bool, TestbedError> {
    match program.wait_for(text, INTERVAL) {
        Ok(_) => Ok(true),
        Err(TestbedError::Silent(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a connection is accepted; if not, returns after a moment.
fn accepts(
    program: &Program,
    end: &Namespace,
    address: Option<Ipv4Addr>,
    port: u16,
) -> Result<bool, TestbedError> {
    let connects = |ip: Ipv4Addr| TcpStream::connect_timeout(&SocketAddr::from((ip, port)), INTERVAL).is_ok();
    if end.run(|| connects(Ipv4Addr::LOCALHOST) || address.is_some_and(connects))? {
        return Ok(true);
    }
    match program.wait(INTERVAL) {
        Some(ended) => Err(program.ended(ended)),
        None => Ok(false),
    }
}

fn too_late(program: &Program, ready: &Ready, within: Duration) -> TestbedError {
    match ready {
        Ready::Port(port) => TestbedError::Silent(format!(
            "`{}` does not accept connections at port {port} after {} s",
            program.command(),
            within.as_secs_f64()
        )),
        Ready::Line(text) => program.silent(text, within),
    }
}

/// Requirement of a profile that this machine lacks.
pub(super) fn missing(profile: &Profile, has_iptables: impl FnOnce() -> bool) -> Option<String> {
    (!profile.rules.is_empty() && !has_iptables()).then(|| {
        "it needs the program iptables: install the package iptables, or take a profile whose link has a policer".into()
    })
}

/// Whether the program iptables runs here.
pub(super) fn has_iptables() -> bool {
    // PATH of users may omit the directories of system programs.
    ["iptables", "/usr/sbin/iptables", "/sbin/iptables"].into_iter().any(|command| {
        Command::new(command).arg("--version").output().is_ok_and(|output| output.status.success())
    })
}

/// Program that a variant needs and that is not installed.
pub(super) fn not_installed(variant: &Variant) -> Option<&str> {
    // PATH of users may omit the directories of system programs.
    let starts = |command: String| Command::new(command).arg("--version").output().is_ok();
    let is_there = |name: &&String| {
        ["", "/usr/sbin/", "/sbin/"].into_iter().any(|folder| starts(format!("{folder}{name}")))
    };
    variant.needs.iter().find(|name| !is_there(name)).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Profile with this TOML.
    fn profile(shape: &str) -> Profile {
        toml::from_str(&format!("name = 'p'\ntitle = 'p'\n{shape}")).expect("a profile")
    }

    #[test]
    fn a_variant_needs_all_of_its_programs() {
        let needing = |needs: &str| -> Variant {
            toml::from_str(&format!("name = 'v'\ntitle = 'v'\nneeds = {needs}")).expect("a variant")
        };
        assert_eq!(not_installed(&needing("[]")), None);
        assert_eq!(not_installed(&needing("['sh']")), None);
        assert_eq!(not_installed(&needing("['sh', 'no-such-program']")), Some("no-such-program"));
    }

    #[test]
    fn only_a_packet_rule_needs_iptables() {
        let ruled = profile("rules = { wire = '29/sec burst 5' }");
        assert!(missing(&ruled, || false).is_some_and(|problem| problem.contains("package iptables")));
        assert_eq!(missing(&ruled, || true), None);
        let policed = profile("links = { wire = 'policer=29pps/5' }");
        assert_eq!(missing(&policed, || unreachable!("not needed")), None);
    }
}
