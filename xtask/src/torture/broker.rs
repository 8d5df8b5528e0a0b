//! The broker under torture: a process that is started again where it was.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::Transport;
use crate::signal;

/// The exit code of a broker whose store has failed.
pub(super) const STORE_FAILED: i32 = 74;
/// That of one which does not start until somebody changes something.
pub(super) const REFUSED: i32 = 2;
/// For a start, and for an end that somebody asked for.
const LIMIT: Duration = Duration::from_secs(60);
/// How the last line begins that a broker says when it has started.
const READY: &str = "Stop with";
/// How the line begins that a broker says last when it does not end in order.
const LAST: &str = "braidmq: ";
/// What the log says when nothing is acknowledged any more.
const FAILED: &str = "nothing is acknowledged any more";

/// What stays when the process ends.
pub(super) struct Broker {
    binary: PathBuf,
    data_dir: PathBuf,
    log: PathBuf,
    ports: Vec<(Transport, u16)>,
    settings: Vec<String>,
    process: Option<Child>,
    last_id: u32,
    /// Where in the log the last process began.
    log_start: u64,
}

/// What came of a start.
pub(super) enum Start {
    /// It serves after so long.
    Serves(Duration),
    Ended(ExitStatus),
}

impl Broker {
    /// One that keeps what it has in `data_dir`; it does not run.
    pub(super) fn new(
        binary: &Path,
        data_dir: &Path,
        log: &Path,
        ports: Vec<(Transport, u16)>,
        settings: Vec<String>,
    ) -> Self {
        let (binary, data_dir, log) = (binary.to_owned(), data_dir.to_owned(), log.to_owned());
        Self { binary, data_dir, log, ports, settings, process: None, last_id: 0, log_start: 0 }
    }

    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// The number of the running process, 0 without one.
    pub(super) fn id(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    /// The number of the process that was started last: for what was written of it, since it may have ended.
    pub(super) fn last_id(&self) -> u32 {
        self.last_id
    }

    /// Starts and does not wait; what it prints.
    ///
    /// # Errors
    /// The system does not start it.
    pub(super) fn spawn(&mut self) -> Result<ChildStdout, String> {
        self.spawn_by(Command::new(&self.binary))
    }

    /// The same with a command that ends with the program.
    fn spawn_by(&mut self, mut command: Command) -> Result<ChildStdout, String> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log: File = log.map_err(|error| format!("{}: {error}", self.log.display()))?;
        self.log_start = log.metadata().map_err(|error| error.to_string())?.len();
        command.arg("serve").arg("--data-dir").arg(&self.data_dir);
        for (transport, port) in &self.ports {
            command.arg(transport.listener()).arg(format!("127.0.0.1:{port}"));
        }
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut process = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let output = process.stdout.take().ok_or("the broker has no output")?;
        self.last_id = process.id();
        self.process = Some(process);
        Ok(output)
    }

    /// Starts, waits until it serves, and tells how long that took.
    ///
    /// # Errors
    /// It ended, or took too long.
    pub(super) fn start(&mut self) -> Result<Duration, String> {
        match self.try_start(None)? {
            Start::Serves(took) => Ok(took),
            Start::Ended(status) => {
                Err(format!("the broker ended with {status} while starting; {}", gist(&self.said()?)))
            }
        }
    }

    /// Starts, behind another program if there is one, and waits until it serves or has ended.
    ///
    /// # Errors
    /// It took too long.
    pub(super) fn try_start(&mut self, by: Option<Command>) -> Result<Start, String> {
        let began = Instant::now();
        let output = match by {
            None => self.spawn(),
            Some(mut command) => {
                command.arg(&self.binary);
                self.spawn_by(command)
            }
        };
        let lines = follow(output?);
        loop {
            match lines.recv_timeout(LIMIT.saturating_sub(began.elapsed())) {
                Ok(line) if line.starts_with(READY) => return Ok(Start::Serves(began.elapsed())),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Err(format!("no start within {LIMIT:?}")),
                Err(RecvTimeoutError::Disconnected) => return Ok(Start::Ended(self.wait(LIMIT)?)),
            }
        }
    }

    /// What the last process has said.
    fn said(&self) -> Result<String, String> {
        let wrong = |error| format!("{}: {error}", self.log.display());
        let mut log = File::open(&self.log).map_err(wrong)?;
        log.seek(SeekFrom::Start(self.log_start)).map_err(wrong)?;
        let mut said = String::new();
        log.read_to_string(&mut said).map_err(wrong)?;
        Ok(said)
    }

    /// Whether it ended as it must when its disk does not serve it any more: with this code, and one line that says why in
    /// one of these ways.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check_end(&self, status: ExitStatus, code: i32, why: &[&str]) -> Result<(), String> {
        judge_end(&self.said()?, status.code(), code, why)
            .map_err(|wrong| format!("the broker ended with {status}: {wrong}"))
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
        self.wait_for(limit)?.ok_or_else(|| format!("the broker has not ended within {limit:?}"))
    }

    /// Waits for its end at most so long; `None` if it goes on.
    ///
    /// # Errors
    /// It does not run.
    pub(super) fn wait_for(&mut self, limit: Duration) -> Result<Option<ExitStatus>, String> {
        let process = self.process.as_mut().ok_or("the broker does not run")?;
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = process.try_wait().map_err(|error| error.to_string())? {
                self.process = None;
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
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

fn judge_end(said: &str, code: Option<i32>, expected: i32, why: &[&str]) -> Result<(), String> {
    if code != Some(expected) {
        return Err(format!("not with code {expected}; {}", gist(said)));
    }
    let last: Vec<_> = said.lines().filter(|line| line.starts_with(LAST)).collect();
    match last[..] {
        [line] if why.iter().any(|why| line.contains(why)) => {}
        _ => return Err(format!("one line must tell of {why:?}, and it said: {last:?}")),
    }
    if said.contains("panicked") {
        return Err(gist(said));
    }
    if expected == STORE_FAILED && !said.contains(FAILED) {
        return Err(format!("the log does not say that {FAILED}"));
    }
    Ok(())
}

/// The lines that say what went wrong, the first of them.
fn gist(said: &str) -> String {
    let tells = |line: &&str| ["ERROR", "panicked", LAST].iter().any(|word| line.contains(word));
    let lines: Vec<_> = said.lines().filter(tells).take(4).collect();
    format!("it said: {}", lines.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str =
        "ERROR the store has failed: nothing is acknowledged any more\nbraidmq: full (os error 28)\n";

    #[test]
    fn an_end_has_its_code_and_one_line_that_says_why() {
        assert_eq!(judge_end(SAID, Some(74), 74, &["os error 28"]), Ok(()));
        assert_eq!(judge_end("braidmq: full\n", Some(2), 2, &["empty", "full"]), Ok(()));
        for (said, code, expected) in [
            (SAID, Some(2), 74),
            (SAID, None, 74),
            ("ERROR nothing is acknowledged any more\n", Some(74), 74),
            ("braidmq: full (os error 28)\n", Some(74), 74),
            (&format!("{SAID}braidmq: once more\n"), Some(74), 74),
            (&format!("thread 'store' panicked at a.rs\n{SAID}"), Some(74), 74),
        ] {
            assert!(judge_end(said, code, expected, &["os error 28"]).is_err(), "{code:?} {said}");
        }
    }
}
