//! Runner of one script of `peers/`, with a time limit.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::Kind;
use super::install::MSQUIC_RELAY;
use super::tally::Tally;
use crate::signal;

/// Paths of a run.
pub(super) struct Places<'a> {
    /// The workspace.
    pub(super) root: &'a Path,
    /// Directory of installed programs and of the brokers' data.
    pub(super) home: &'a Path,
    /// `braidmq`.
    pub(super) binary: &'a Path,
}

/// A script with its time limit. Each case in it has a limit of its own.
pub(super) struct Suite {
    pub(super) script: &'static str,
    pub(super) limit: Duration,
    /// Brokers that have what its cases need.
    pub(super) brokers: &'static [Kind],
}

impl Suite {
    /// Runs the script to its end or its limit. `environment`: that of all brokers.
    pub(super) fn run(&self, places: &Places<'_>, environment: &[(String, String)], only: &str) -> Tally {
        let mut tally = Tally::default();
        let script = places.root.join("peers").join(self.script);
        let mut command = if self.script.ends_with(".mjs") {
            Command::new("node")
        } else {
            let mut python = Command::new(places.home.join("venv/bin/python"));
            python.arg("-B");
            python
        };
        command
            .arg(script)
            .env("PEERS_ONLY", only)
            .env("PEERS_NODE_MODULES", places.home.join("node_modules"))
            .env("PEERS_BINARY", places.binary)
            .env("PEERS_MSQUIC_RELAY", places.home.join(MSQUIC_RELAY))
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // At its limit the script ends with the clients that it has started.
            .process_group(0);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                tally.fail(self.script, &format!("cannot start {command:?}: {error}"));
                return tally;
            }
        };
        let finished = child.stdout.take().is_some_and(|stdout| self.count(&lines_of(stdout), &mut tally));
        if !finished {
            signal::kill_group(child.id());
            tally.fail(self.script, &format!("not finished within {:?}", self.limit));
        }
        match child.wait() {
            Ok(status) => self.check_end(status, only, &mut tally),
            Err(error) => tally.fail(self.script, &format!("cannot wait for it: {error}")),
        }
        tally
    }

    /// Adds a failure for an exit code of failure without a failed case, and for a success without any case, unless
    /// only some are wanted.
    fn check_end(&self, status: ExitStatus, only: &str, tally: &mut Tally) {
        if !status.success() && tally.failed == 0 {
            tally.fail(self.script, &format!("{status} without a failed case"));
        }
        if tally.is_empty() && only.is_empty() {
            tally.fail(self.script, "it ran no case");
        }
    }

    /// Counts lines until the script closes its output; false when the limit came first.
    fn count(&self, lines: &Receiver<String>, tally: &mut Tally) -> bool {
        let deadline = Instant::now() + self.limit;
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => tally.take(&line),
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }
}

/// Lines of a process, read by a thread of its own.
fn lines_of(source: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut source = BufReader::new(source);
        let mut line = Vec::new();
        while source.read_until(b'\n', &mut line).is_ok_and(|size| size > 0) {
            // The receiver ends at the suite's limit; the output is read on, so that the script is not blocked.
            let _ = sender.send(String::from_utf8_lossy(&line).trim_end().to_owned());
            line.clear();
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn an_end_without_the_case_that_explains_it_is_a_failure() {
        const SUITE: Suite = Suite { script: "run_x.py", limit: Duration::ZERO, brokers: &[] };
        // Exit code, cases wanted, lines of cases, failures.
        for (code, only, lines, failed) in [
            (0, "", &["ok a (1 ms)"][..], 0),
            (0, "", &["known a: b"], 0),
            (0, "", &[], 1),
            (0, "", &["nothing of a case"], 1),
            (0, "x", &[], 0),
            (1, "", &["FAIL a: b"], 1),
            (1, "", &["ok a (1 ms)"], 1),
            (1, "x", &[], 1),
            (1, "", &[], 1),
        ] {
            let mut tally = Tally::default();
            lines.iter().for_each(|line| tally.take(line));
            SUITE.check_end(ExitStatus::from_raw(code << 8), only, &mut tally);
            assert_eq!(tally.failed, failed, "{code} {only:?} {lines:?}");
        }
    }
}
