//! The broker under torture: a process that is started again where it was.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::Transport;
use crate::signal;

/// For a start, and for an end that somebody asked for.
const LIMIT: Duration = Duration::from_secs(60);
/// How the last line begins that a broker says when it has started.
const READY: &str = "Stop with";
/// Readers who are away for long must find everything.
const SETTINGS: [&str; 2] = ["limits.queued_messages=10000000", "limits.queued_bytes=2000000000"];

/// What stays when the process ends.
pub(super) struct Broker {
    binary: PathBuf,
    data_dir: PathBuf,
    log: PathBuf,
    ports: Vec<(Transport, u16)>,
    process: Option<Child>,
}

impl Broker {
    /// One that keeps what it has in `data_dir`; it does not run.
    pub(super) fn new(binary: &Path, data_dir: &Path, ports: Vec<(Transport, u16)>) -> Self {
        let log = data_dir.with_extension("log");
        Self { binary: binary.to_owned(), data_dir: data_dir.to_owned(), log, ports, process: None }
    }

    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    pub(super) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The number of the running process, 0 without one.
    pub(super) fn id(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    /// Starts and does not wait; what it prints.
    ///
    /// # Errors
    /// The system does not start it.
    pub(super) fn spawn(&mut self) -> Result<ChildStdout, String> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log: File = log.map_err(|error| format!("{}: {error}", self.log.display()))?;
        let mut command = Command::new(&self.binary);
        command.arg("serve").arg("--data-dir").arg(&self.data_dir);
        for (transport, port) in &self.ports {
            command.arg(transport.listener()).arg(format!("127.0.0.1:{port}"));
        }
        for setting in SETTINGS {
            command.args(["--set", setting]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut process = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let output = process.stdout.take().ok_or("the broker has no output")?;
        self.process = Some(process);
        Ok(output)
    }

    /// Starts, waits until it serves, and tells how long that took.
    ///
    /// # Errors
    /// It ended, or took too long.
    pub(super) fn start(&mut self) -> Result<Duration, String> {
        let began = Instant::now();
        let lines = follow(self.spawn()?);
        loop {
            match lines.recv_timeout(LIMIT.saturating_sub(began.elapsed())) {
                Ok(line) if line.starts_with(READY) => return Ok(began.elapsed()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Err(format!("no start within {LIMIT:?}")),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.wait(LIMIT)?;
                    return Err(format!("the broker ended with {status} while starting"));
                }
            }
        }
    }

    /// Kills it, whatever it is doing.
    pub(super) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Asks it to end, and waits for that.
    ///
    /// # Errors
    /// It takes too long.
    pub(super) fn terminate(&mut self) -> Result<ExitStatus, String> {
        signal::terminate(self.id());
        self.wait(LIMIT)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It goes on.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let process = self.process.as_mut().ok_or("the broker does not run")?;
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = process.try_wait().map_err(|error| error.to_string())? {
                self.process = None;
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(format!("the broker has not ended within {limit:?}"));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether `braidmq store check` finds nothing wrong with what it left.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check_store(&self) -> Result<(), String> {
        let mut command = Command::new(&self.binary);
        let output = command.args(["store", "check", "--data-dir"]).arg(&self.data_dir).output();
        let output = output.map_err(|error| format!("cannot start {command:?}: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        Err(format!("store check: {}", String::from_utf8_lossy(&said).trim_end()))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The lines of a broker as they come; it can always write more.
fn follow(output: ChildStdout) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // Nobody listens any more once it serves.
            let _ = sender.send(line);
        }
    });
    lines
}
