//! Whether what a run needs is there.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::Stop;
use crate::house::{HouseError, Namespace, Program};
use crate::scenario::{Profile, Ready};

/// How often a port is tried.
const AGAIN: Duration = Duration::from_millis(50);

/// Why a program did not become ready.
#[derive(Debug, Error)]
pub(super) enum NotReady {
    #[error(transparent)]
    House(#[from] HouseError),
    #[error("stopped")]
    Stopped,
    #[error("{program} does not accept connections at port {port} after {} s", .within.as_secs())]
    Port { program: String, port: u16, within: Duration },
}

/// Waits until `program` at `end` is ready, or has ended, or the time is over, or somebody says stop.
pub(super) fn wait(
    program: &Program,
    end: &Namespace,
    ready: &Ready,
    within: Duration,
    stop: &Stop,
) -> Result<(), NotReady> {
    let begin = Instant::now();
    while begin.elapsed() < within && !stop.is_asked() {
        let is_ready = match ready {
            Ready::Line(text) => match program.wait_for(text, AGAIN) {
                Ok(_) => true,
                Err(HouseError::Silent { .. }) => false,
                Err(error) => return Err(error.into()),
            },
            Ready::Port(port) => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
                end.run(|| TcpStream::connect_timeout(&address, AGAIN).is_ok())?
            }
        };
        if is_ready {
            return Ok(());
        }
        if let Some(ended) = program.wait(AGAIN) {
            return Err(program.ended(ended).into());
        }
    }
    if stop.is_asked() {
        return Err(NotReady::Stopped);
    }
    Err(match ready {
        Ready::Line(text) => match program.wait_for(text, Duration::ZERO) {
            Ok(_) => return Ok(()),
            Err(error) => error.into(),
        },
        Ready::Port(port) => NotReady::Port { program: program.command().to_owned(), port: *port, within },
    })
}

/// What a profile needs and this machine does not have.
pub(super) fn missing(profile: &Profile) -> Option<String> {
    // The search path of users leaves out where system programs are.
    let mut commands = ["iptables", "/usr/sbin/iptables", "/sbin/iptables"].into_iter();
    let mut is_there = || {
        commands.any(|command| {
            Command::new(command).arg("--version").output().is_ok_and(|output| output.status.success())
        })
    };
    (!profile.rules.is_empty() && !is_there()).then(|| {
        "it needs the program iptables: install the package iptables, or take a profile whose link has a policer".into()
    })
}
