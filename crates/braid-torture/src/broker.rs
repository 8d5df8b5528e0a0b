//! The broker under test: its program, and a process that is restarted over the same data directory.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use braid_proto::reason::ReasonCode;
use rustix::process::Signal;

use crate::process::Process;

/// Exit code of a broker whose store has failed.
pub const STORE_FAILED: i32 = 74;
/// Exit code of a broker that refuses to start.
pub const REFUSED: i32 = 2;
/// Time limit of a start and of a requested end.
const LIMIT: Duration = Duration::from_secs(60);
/// Beginning of the last line that a broker prints at its start.
const READY: &str = "Stop with";
/// Beginning of the last line of a broker that ends with an error.
const LAST: &str = "braidmq: ";
/// Line of the log at a failure of the store.
const FAILED: &str = "nothing is acknowledged any more";

/// A broker across its processes.
pub struct Broker {
    binary: PathBuf,
    data_dir: PathBuf,
    /// File with the standard error of all its processes.
    pub log: PathBuf,
    /// Arguments of `serve`.
    arguments: Vec<OsString>,
    process: Process,
    /// Process ID of the last process, which may have ended.
    pub last_id: u32,
    /// Length of the log at the start of the last process.
    log_start: u64,
}

/// A process that was started and may not serve yet.
#[derive(Debug)]
pub struct Starting {
    began: Instant,
    lines: Receiver<String>,
}

/// Outcome of a start.
pub enum Start {
    /// The broker serves after this time.
    Serves(Duration),
    /// The broker ended before it served.
    Ended(ExitStatus),
}

impl Broker {
    /// A broker over `data_dir` that does not run. `listeners` are options of `serve` with ports of loopback.
    pub fn new(
        binary: &Path,
        data_dir: &Path,
        log: &Path,
        listeners: Vec<(&'static str, u16)>,
        settings: Vec<String>,
    ) -> Self {
        let mut arguments = vec!["--data-dir".into(), data_dir.into()];
        for (option, port) in listeners {
            arguments.extend([option.into(), format!("127.0.0.1:{port}").into()]);
        }
        for setting in settings {
            arguments.extend(["--set".into(), setting.into()]);
        }
        Self::with_arguments(binary, data_dir, log, arguments)
    }

    /// A broker with the configuration of a file, which names `data_dir`, that does not run.
    pub fn configured(binary: &Path, data_dir: &Path, log: &Path, file: &Path) -> Self {
        Self::with_arguments(binary, data_dir, log, vec!["--config".into(), file.into()])
    }

    fn with_arguments(binary: &Path, data_dir: &Path, log: &Path, arguments: Vec<OsString>) -> Self {
        let (binary, data_dir, log) = (binary.to_owned(), data_dir.to_owned(), log.to_owned());
        Self { binary, data_dir, log, arguments, process: Process::default(), last_id: 0, log_start: 0 }
    }

    /// Process ID of the running process, 0 without one.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Starts without waiting; returns its standard output.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn spawn(&mut self) -> Result<ChildStdout, String> {
        self.spawn_by(Command::new(&self.binary))
    }

    /// Starts by a command whose last argument so far is the program.
    fn spawn_by(&mut self, mut command: Command) -> Result<ChildStdout, String> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log: File = log.map_err(|error| format!("{}: {error}", self.log.display()))?;
        self.log_start = log.metadata().map_err(|error| error.to_string())?.len();
        command.arg("serve").args(&self.arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut process = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let output = process.stdout.take().ok_or("the broker has no output")?;
        self.last_id = process.id();
        self.process = process.into();
        Ok(output)
    }

    /// Starts and waits until it serves; returns how long that took.
    ///
    /// # Errors
    /// The broker ended, or took too long.
    pub fn start(&mut self) -> Result<Duration, String> {
        let start = self.try_start(None)?;
        self.served(&start)
    }

    /// Duration of a start.
    ///
    /// # Errors
    /// The broker has ended; the first errors of its log.
    pub fn served(&self, start: &Start) -> Result<Duration, String> {
        match start {
            Start::Serves(took) => Ok(*took),
            Start::Ended(status) => Err(format!(
                "the broker ended with {status} while starting; {}",
                errors(&self.log_of_last_process()?)
            )),
        }
    }

    /// Starts, under the wrapper `by` if there is one, and waits until it serves or has ended.
    ///
    /// # Errors
    /// No start and no end in time.
    pub fn try_start(&mut self, by: Option<Command>) -> Result<Start, String> {
        let starting = self.begin_start(by)?;
        self.finish_start(&starting)
    }

    /// Starts, under the wrapper `by` if there is one, without waiting.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn begin_start(&mut self, by: Option<Command>) -> Result<Starting, String> {
        let began = Instant::now();
        let output = match by {
            None => self.spawn(),
            Some(mut command) => {
                command.arg(&self.binary);
                self.spawn_by(command)
            }
        };
        Ok(Starting { began, lines: follow(output?) })
    }

    /// Waits until the broker serves or has ended.
    ///
    /// # Errors
    /// No start and no end in time.
    pub fn finish_start(&mut self, starting: &Starting) -> Result<Start, String> {
        let Starting { began, lines } = starting;
        loop {
            match lines.recv_timeout(LIMIT.saturating_sub(began.elapsed())) {
                Ok(line) if line.starts_with(READY) => return Ok(Start::Serves(began.elapsed())),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Err(format!("no start within {LIMIT:?}")),
                Err(RecvTimeoutError::Disconnected) => return Ok(Start::Ended(self.wait(LIMIT)?)),
            }
        }
    }

    /// Log of the last process.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn log_of_last_process(&self) -> Result<String, String> {
        let wrong = |error| format!("{}: {error}", self.log.display());
        let mut log = File::open(&self.log).map_err(wrong)?;
        log.seek(SeekFrom::Start(self.log_start)).map_err(wrong)?;
        let mut said = String::new();
        log.read_to_string(&mut said).map_err(wrong)?;
        Ok(said)
    }

    /// Checks that none of the processes so far has panicked.
    ///
    /// # Errors
    /// The first line of the log that tells of a panic.
    pub fn check_panics(&self) -> Result<(), String> {
        let log = std::fs::read_to_string(&self.log);
        let log = log.map_err(|error| format!("{}: {error}", self.log.display()))?;
        match panic_of(&log) {
            None => Ok(()),
            Some(line) => Err(format!("{} says: {line}", self.log.display())),
        }
    }

    /// Checks an end after a failure of the disk: the exit code, and one line that contains one of the reasons `why`.
    ///
    /// # Errors
    /// Description of the fault.
    pub fn check_end(&self, status: ExitStatus, code: i32, why: &[&str]) -> Result<(), String> {
        check_log(&self.log_of_last_process()?, status.code(), code, why)
            .map_err(|wrong| format!("the broker ended with {status}: {wrong}"))
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends a signal to the running process.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    /// No end in time.
    pub fn terminate(&mut self) -> Result<ExitStatus, String> {
        self.signal(Signal::TERM);
        self.wait(LIMIT)
    }

    /// Checks that the process runs.
    ///
    /// # Errors
    /// Status of the process that has ended by itself, and the first errors of its log.
    pub fn check_running(&mut self) -> Result<(), String> {
        let Some(status) = self.wait_for(Duration::ZERO)? else { return Ok(()) };
        Err(format!("the broker ended by itself with {status}; {}", errors(&self.log_of_last_process()?)))
    }

    /// Waits for the end of the process.
    ///
    /// # Errors
    /// No end within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        self.wait_for(limit)?.ok_or_else(|| format!("the broker has not ended within {limit:?}"))
    }

    /// Waits at most `limit` for the end; `None` if the process runs on.
    ///
    /// # Errors
    /// No process runs.
    pub fn wait_for(&mut self, limit: Duration) -> Result<Option<ExitStatus>, String> {
        self.process.wait_for(limit)
    }

    /// Runs `braidmq store check` over the data directory.
    ///
    /// # Errors
    /// Description of the fault.
    pub fn check_store(&self) -> Result<(), String> {
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

/// A TCP or UDP port of loopback that was free a moment ago.
///
/// # Errors
/// Loopback has no free port.
pub fn free_port(is_udp: bool) -> Result<u16, String> {
    let local = (Ipv4Addr::LOCALHOST, 0);
    let address = if is_udp {
        UdpSocket::bind(local).and_then(|socket| socket.local_addr())
    } else {
        TcpListener::bind(local).and_then(|socket| socket.local_addr())
    };
    address.map(|address| address.port()).map_err(|error| format!("no free port on loopback: {error}"))
}

/// The given broker, or one that is built with the profile of this program.
///
/// # Errors
/// The build fails.
pub fn broker_binary(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(binary) = given {
        return Ok(binary.to_owned());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "braidmq", "--bin", "braidmq"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    if !command.status().map_err(|error| format!("cannot start cargo: {error}"))?.success() {
        return Err("braidmq cannot be built".to_owned());
    }
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    Ok(own.with_file_name("braidmq"))
}

/// Version that a binary prints.
#[must_use]
pub fn version(binary: &Path) -> String {
    let output = Command::new(binary).arg("--version").output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// Lines of the broker as they arrive. The pipe is read until its end, so that the broker never blocks on it.
fn follow(output: ChildStdout) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // The receiver is gone once the broker serves.
            let _ = sender.send(line);
        }
    });
    lines
}

fn check_log(said: &str, code: Option<i32>, expected: i32, why: &[&str]) -> Result<(), String> {
    if code != Some(expected) {
        return Err(format!("not with code {expected}; {}", errors(said)));
    }
    let last: Vec<_> = said.lines().filter(|line| line.starts_with(LAST)).collect();
    match last[..] {
        [line] if why.iter().any(|why| line.contains(why)) => {}
        _ => return Err(format!("one line must contain one of {why:?}, and the last lines are: {last:?}")),
    }
    if panic_of(said).is_some() {
        return Err(errors(said));
    }
    if expected == STORE_FAILED && !said.contains(FAILED) {
        return Err(format!("the log does not say that {FAILED}"));
    }
    Ok(())
}

/// Whether a broker says by this reason that a packet was illegal.
pub fn means_illegal_packet(reason: ReasonCode) -> bool {
    matches!(reason, ReasonCode::MalformedPacket | ReasonCode::ProtocolError)
}

/// The first line that tells of a panic.
fn panic_of(said: &str) -> Option<&str> {
    said.lines().find(|line| line.contains("panicked"))
}

/// The first lines with errors.
fn errors(said: &str) -> String {
    let tells = |line: &&str| ["ERROR", "panicked", LAST].iter().any(|word| line.contains(word));
    let lines: Vec<_> = said.lines().filter(tells).take(4).collect();
    format!("its log: {}", lines.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str =
        "ERROR the store has failed: nothing is acknowledged any more\nbraidmq: full (os error 28)\n";

    #[test]
    fn a_panic_of_any_process_is_found() {
        let home = tempfile::tempdir().unwrap();
        let log = home.path().join("log");
        let broker = Broker::new("none".as_ref(), home.path(), &log, Vec::new(), Vec::new());
        for (said, panics) in [(SAID, false), (&format!("thread 'x' panicked at a.rs\n{SAID}"), true)] {
            std::fs::write(&log, said).unwrap();
            assert_eq!(broker.check_panics().is_err(), panics, "{said}");
        }
    }

    #[test]
    fn an_end_has_its_code_and_one_line_with_the_reason() {
        assert_eq!(check_log(SAID, Some(74), 74, &["os error 28"]), Ok(()));
        assert_eq!(check_log("braidmq: full\n", Some(2), 2, &["empty", "full"]), Ok(()));
        for (said, code, expected) in [
            (SAID, Some(2), 74),
            (SAID, None, 74),
            ("ERROR nothing is acknowledged any more\n", Some(74), 74),
            ("braidmq: full (os error 28)\n", Some(74), 74),
            (&format!("{SAID}braidmq: once more\n"), Some(74), 74),
            (&format!("thread 'store' panicked at a.rs\n{SAID}"), Some(74), 74),
        ] {
            assert!(check_log(said, code, expected, &["os error 28"]).is_err(), "{code:?} {said}");
        }
    }
}
