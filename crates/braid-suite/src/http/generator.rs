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
    pub(super) fn cost(
        &self,
        program: Program,
        servers: &Servers,
        server: Server,
        load: &Load,
        clients: (u32, u32),
        requests: u64,
    ) -> Result<f64, String> {
        let read = || of_broker(cpu_time(servers.pid(server)));
        let connects = u64::from(clients.0);
        let url = servers.url(server, load.is_tls);
        let before = read()?;
        self.run(program, load, clients, connects, &url)?;
        let connected = read()?;
        self.run(program, load, clients, requests, &url)?;
        let after = read()?;
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let spent = us(after.saturating_sub(connected)) - us(connected.saturating_sub(before));
        Ok(spent / requests.saturating_sub(connects).max(1) as f64)
    }

    /// Instructions of a request in the server in user mode, counted by callgrind, likewise.
    pub(super) fn instructions(
        &self,
        program: Program,
        servers: &Servers,
        server: Server,
        load: &Load,
        clients: (u32, u32),
        requests: u64,
    ) -> Result<f64, String> {
        let connects = u64::from(clients.0);
        let url = servers.url(server, load.is_tls);
        let count = |requests| {
            control("--zero", servers.pid(server))?;
            self.run(program, load, clients, requests, &url)?;
            control("--dump", servers.pid(server))?;
            sum(&newest_dump(&servers.counts(server))?)
        };
        let connected = count(connects)?;
        Ok((count(requests)? - connected) / (requests - connects) as f64)
    }

    fn run(
        &self,
        program: Program,
        load: &Load,
        (clients, in_flight): (u32, u32),
        requests: u64,
        url: &str,
    ) -> Result<(), String> {
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
