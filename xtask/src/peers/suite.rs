//! One script of `peers/`: run, bounded, its lines passed on and counted.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::broker::Broker;
use crate::signal;

/// A script, and how long it may take as a whole (each case in it has its own bound).
pub(super) struct Suite {
    pub(super) script: &'static str,
    pub(super) limit: Duration,
}

/// What the lines said. A known difference is a case that a foreign broker fails by its own bug.
#[derive(Default)]
pub(super) struct Tally {
    passed: usize,
    pub(super) failed: usize,
    known: usize,
}

impl Tally {
    /// Whether no case has run yet.
    pub(super) fn is_empty(&self) -> bool {
        self.passed + self.failed + self.known == 0
    }

    /// Prints and counts a passed case of our own.
    pub(super) fn pass(&mut self, name: &str, elapsed: Duration) {
        self.take(&format!("ok {name} ({} ms)", elapsed.as_millis()));
    }

    /// Prints and counts a failed case of our own.
    pub(super) fn fail(&mut self, name: &str, reason: &str) {
        self.take(&format!("FAIL {name}: {reason}"));
    }

    fn take(&mut self, line: &str) {
        println!("{line}");
        match line.split_once(' ') {
            Some(("ok", _)) => self.passed += 1,
            Some(("FAIL", _)) => self.failed += 1,
            Some(("known", _)) => self.known += 1,
            _ => {}
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)?;
        if self.known > 0 {
            write!(formatter, ", {} known differences of the broker", self.known)?;
        }
        Ok(())
    }
}

impl Suite {
    /// Whether the suite speaks QUIC.
    pub(super) fn needs_quic(&self) -> bool {
        matches!(self.script, "run_quic.py" | "run_streams.py")
    }

    /// Runs the script to its end or to its limit. A script that fails without saying which case is a failure.
    pub(super) fn run(&self, root: &Path, home: &Path, brokers: &[Broker], only: &str, tally: &mut Tally) {
        let script = root.join("peers").join(self.script);
        let mut command = if self.script.ends_with(".mjs") {
            Command::new("node")
        } else {
            let mut python = Command::new(home.join("venv/bin/python"));
            python.arg("-B");
            python
        };
        command.arg(script).env("PEERS_ONLY", only).env("PEERS_NODE_MODULES", home.join("node_modules"));
        command
            .envs(brokers.iter().flat_map(Broker::environment))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return tally.fail(self.script, &format!("cannot start {command:?}: {error}")),
        };
        let failed_before = tally.failed;
        let finished = child.stdout.take().is_some_and(|stdout| self.count(&lines_of(stdout), tally));
        if !finished {
            signal::kill(child.id());
            tally.fail(self.script, &format!("not finished within {:?}", self.limit));
        }
        match child.wait() {
            Ok(status) if !status.success() && tally.failed == failed_before => {
                tally.fail(self.script, &format!("{status} without a failed case"));
            }
            Ok(_) => {}
            Err(error) => tally.fail(self.script, &format!("cannot wait for it: {error}")),
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

fn lines_of(source: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut source = BufReader::new(source);
        let mut line = Vec::new();
        while source.read_until(b'\n', &mut line).is_ok_and(|size| size > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if sender.send(text).is_err() {
                return;
            }
        }
    });
    lines
}
