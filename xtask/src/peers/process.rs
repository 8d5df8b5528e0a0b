//! Process under test: started with a log, watched, stopped by SIGTERM.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::tally::Tally;
use crate::signal;

/// Time limit until the process ends after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Interval of checks whether a process has ended, or is ready.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A running process. Dropped without [`Process::stop`], it is killed.
pub(super) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the program with its output in `log`.
    pub(super) fn start(mut command: Command, log: PathBuf) -> Result<Self, String> {
        let output = File::create(&log).and_then(|output| Ok((output.try_clone()?, output)));
        let (stdout, stderr) = output.map_err(|error| format!("{}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let child = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        Ok(Self { child, log })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything that it has printed.
    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// Exit status, if it has ended.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.exit_status().map(|status| format!("ended with {status}"))
    }

    fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until `is_ready`.
    ///
    /// # Errors
    /// One line that names the log: the process has ended, or the time limit came first.
    pub(super) fn wait_until(
        &mut self,
        what: &str,
        limit: Duration,
        is_ready: impl Fn() -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        while !is_ready() {
            if let Some(end) = self.ended() {
                return Err(format!("a process {end} while starting; its log is {}", self.log.display()));
            }
            if Instant::now() >= deadline {
                return Err(format!("{what} after {limit:?}; the log is {}", self.log.display()));
            }
            thread::sleep(CHECK_INTERVAL);
        }
        Ok(())
    }

    /// SIGTERM, a bounded wait, and the verdict on the exit code and on the log. `case`: the name of a verdict.
    pub(super) fn stop(mut self, case: impl Fn(&str) -> String, tally: &mut Tally) {
        let started = Instant::now();
        signal::terminate(self.id());
        let mut exited = self.exit_status();
        while exited.is_none() && started.elapsed() < STOP_LIMIT {
            thread::sleep(CHECK_INTERVAL);
            exited = self.exit_status();
        }
        let clean_exit = case("clean-exit");
        match exited {
            Some(status) if status.success() => tally.pass(&clean_exit, started.elapsed()),
            Some(status) => tally.fail(&clean_exit, &format!("{status} after SIGTERM, wanted 0")),
            None => tally.fail(&clean_exit, &format!("still running {STOP_LIMIT:?} after SIGTERM")),
        }
        let log = fs::read(&self.log).unwrap_or_default();
        let never_panics = case("never-panics");
        match String::from_utf8_lossy(&log).lines().find(|line| line.contains("panicked at")) {
            Some(line) => tally.fail(&never_panics, line),
            None => tally.pass(&never_panics, Duration::ZERO),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
