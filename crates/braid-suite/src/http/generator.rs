//! Runs of the load generators.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use braid_measure::process::cpu_time;

use super::servers::{PAGE, Server, Servers};
use crate::brokers::installed;
use crate::callgrind::{control, newest_dump, sum};
use crate::system::of_broker;

/// Program that puts load on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Braidmq,
    H2load,
}

/// Version of HTTP.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) title: &'static str,
    pub(super) is_tls: bool,
    /// Options of both programs.
    pub(super) options: &'static [&'static str],
}

/// Measurement of the requests of one load generator to one server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurement<'a> {
    pub(super) program: Program,
    pub(super) server: Server,
    pub(super) load: &'a Load,
    /// Connections, and requests in flight on each.
    pub(super) clients: (u32, u32),
    pub(super) requests: u64,
}

/// Load generators.
pub(super) struct Generator {
    braidmq: PathBuf,
}

impl Generator {
    pub(super) fn new(braidmq: &Path) -> Self {
        Self { braidmq: braidmq.to_owned() }
    }

    /// Processor time of a request in the server, microseconds, without that of the connections: they are made in a
    /// run of their own, with one request each.
    pub(super) fn cost(&self, servers: &Servers, measurement: &Measurement<'_>) -> Result<f64, String> {
        let Measurement { server, requests, clients: (connects, _), .. } = *measurement;
        let connects = u64::from(connects);
        let read = || of_broker(cpu_time(servers.pid(server)));
        let before = read()?;
        self.run(servers, measurement, connects)?;
        let connected = read()?;
        self.run(servers, measurement, requests)?;
        let after = read()?;
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let spent = us(after.saturating_sub(connected)) - us(connected.saturating_sub(before));
        Ok(spent / requests.saturating_sub(connects).max(1) as f64)
    }

    /// Instructions of a request in the server in user mode, counted by callgrind, likewise.
    pub(super) fn instructions(
        &self,
        servers: &Servers,
        measurement: &Measurement<'_>,
    ) -> Result<f64, String> {
        let Measurement { server, requests, clients: (connects, _), .. } = *measurement;
        let connects = u64::from(connects);
        let count = |requests| {
            control("--zero", servers.pid(server))?;
            self.run(servers, measurement, requests)?;
            control("--dump", servers.pid(server))?;
            sum(&newest_dump(&servers.counts(server))?)
        };
        let connected = count(connects)?;
        Ok((count(requests)? - connected) / (requests - connects) as f64)
    }

    /// Runs the program once with so many requests.
    fn run(&self, servers: &Servers, measurement: &Measurement<'_>, requests: u64) -> Result<(), String> {
        let Measurement { program, server, load, clients: (clients, in_flight), .. } = *measurement;
        let url = servers.url(server, load.is_tls);
        let mut command = match program {
            Program::Braidmq => {
                let mut command = Command::new(&self.braidmq);
                command.args(["bench", "http", "--expect-bytes", &PAGE.to_string()]);
                command
            }
            Program::H2load => Command::new(installed("h2load", "apt-get install nghttp2-client")?),
        };
        command.args(["-t", "1", "-n", &requests.to_string(), "-c", &clients.to_string()]);
        command.args(["-m", &in_flight.to_string()]).args(load.options).arg(url);
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if is_whole(&text, requests, program == Program::Braidmq) {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("{command:?} did not succeed with all requests: {text}{errors}"))
    }
}

/// True if the lines of h2load tell that all requests succeeded, with the right bodies where they were compared.
fn is_whole(text: &str, requests: u64, is_compared: bool) -> bool {
    let counts = format!(
        "requests: {requests} total, {requests} started, {requests} done, {requests} succeeded, 0 failed, 0 errored, 0 timeout"
    );
    let bodies = format!("wrong bodies    : 0 of {requests}");
    let has = |expected: &str| text.lines().any(|line| line == expected);
    has(&counts) && (!is_compared || has(&bodies))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_with_a_failure_are_refused() {
        let text = |succeeded: u64, wrong: u64| {
            format!(
                "requests: 5 total, 5 started, 5 done, {succeeded} succeeded, 0 failed, 0 errored, 0 timeout\n\
                 wrong bodies    : {wrong} of 5\n"
            )
        };
        assert!(is_whole(&text(5, 0), 5, true));
        assert!(!is_whole(&text(4, 0), 5, true));
        assert!(!is_whole(&text(5, 0), 6, true));
        assert!(!is_whole(&text(5, 1), 5, true));
        assert!(is_whole(text(5, 0).lines().next().unwrap_or_default(), 5, false));
    }
}
