//! The brokers under test: their programs, their configurations for the same task, and their processes.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tempfile::TempDir;

use super::Tuning;
use super::load::session::connect;

/// Time limit until a broker accepts a client.
const START: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Braidmq,
    Mosquitto,
    Rumqttd,
}

/// A broker that can be started. A report has its name, version and configuration.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Broker {
    #[serde(skip)]
    kind: Kind,
    #[serde(skip)]
    program: PathBuf,
    /// Name in the report, unique in a run.
    pub(crate) label: String,
    /// Version that the program prints.
    pub(crate) version: String,
    /// Description of its configuration.
    pub(crate) settings: String,
    #[serde(skip)]
    arguments: Vec<String>,
    #[serde(skip)]
    inflight: u32,
    #[serde(skip)]
    persistence: bool,
    /// Program, with its arguments, that runs the broker; empty for none.
    #[serde(skip)]
    wrapper: Vec<String>,
}

/// A running broker. Dropping it ends the process, and removes its directory unless the caller owns that.
pub(crate) struct Running {
    child: Child,
    directory: PathBuf,
    /// Removes the directory when it is dropped.
    _own: Option<TempDir>,
    /// Address of its TCP listener.
    pub(crate) address: SocketAddr,
    /// Time from its start until it accepted a client.
    pub(crate) started_in: Duration,
}

impl Kind {
    fn parse(name: &str) -> Result<Self, String> {
        match name {
            "braidmq" => Ok(Self::Braidmq),
            "mosquitto" => Ok(Self::Mosquitto),
            "rumqttd" => Ok(Self::Rumqttd),
            _ => Err(format!("no broker is called `{name}`; there are braidmq, mosquitto, rumqttd")),
        }
    }

    /// Path of the program, or an error that tells how to install it.
    fn find(self, tuning: &Tuning) -> Result<PathBuf, String> {
        match self {
            Self::Braidmq => build_braidmq(tuning.has_symbols),
            Self::Mosquitto => installed("mosquitto", "apt-get install mosquitto"),
            Self::Rumqttd => installed("rumqttd", "cargo install rumqttd"),
        }
    }
}

/// Program on the path, or the command that installs it.
///
/// # Errors
/// The program is not there.
pub(crate) fn installed(name: &str, install: &str) -> Result<PathBuf, String> {
    on_path(name).ok_or_else(|| format!("{name} is not installed: `{install}`"))
}

/// Path of a program on the PATH, or where Debian and cargo put programs.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cargo = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo/bin"));
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]).chain(cargo);
    places.map(|place| place.join(name)).find(|program| program.is_file())
}

/// Builds braidmq, beside this program in the profile of this program. `has_symbols` takes the profile `symbols`, since
/// the release is stripped.
fn build_braidmq(has_symbols: bool) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--package", "braidmq"]);
    if has_symbols {
        command.args(["--profile", "symbols"]);
    } else if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(_) => return Err(format!("{command:?} failed")),
        Err(error) => return Err(format!("cannot start cargo: {error}")),
    }
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut program = own.with_file_name("braidmq");
    if has_symbols {
        // target/release/braid-suite
        let target = own.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        program = target.join("symbols/braidmq");
    }
    if program.is_file() { Ok(program) } else { Err(format!("{} was not built", program.display())) }
}

/// Brokers named `NAME` or `NAME=PROGRAM`, or the usual ones when none is named.
///
/// # Errors
/// An unknown name, or a missing program.
pub(crate) fn select(names: &[String], tuning: &Tuning) -> Result<Vec<Broker>, String> {
    let mut names = names.to_vec();
    if names.is_empty() {
        names.push("braidmq".to_owned());
        names.extend(on_path("rumqttd").map(|_| "rumqttd".to_owned()));
        names.push("mosquitto".to_owned());
    }
    let mut brokers: Vec<Broker> = Vec::new();
    for name in &names {
        let mut broker = Broker::locate(name, tuning)?;
        let same = brokers.iter().filter(|other| other.kind == broker.kind).count();
        if same > 0 {
            broker.label = format!("{}#{}", broker.label, same + 1);
        }
        brokers.push(broker);
    }
    Ok(brokers)
}

impl Broker {
    fn locate(name: &str, tuning: &Tuning) -> Result<Self, String> {
        let (label, program) = name.split_once('=').map_or((name, None), |(label, path)| (label, Some(path)));
        let kind = Kind::parse(label)?;
        let program = match program {
            Some(program) if Path::new(program).is_file() => program.into(),
            Some(program) => return Err(format!("{program} is not there")),
            None => kind.find(tuning)?,
        };
        let settings = match kind {
            Kind::Braidmq => format!("serve --tcp {}", tuning.braidmq_arg.join(" ")),
            Kind::Mosquitto => format!(
                "max_queued_messages 0, max_inflight_messages {}, persistence false, log_type none, set_tcp_nodelay true",
                tuning.mosquitto_inflight
            ),
            Kind::Rumqttd => "max_inflight_count 100, max_outgoing_packet_count 200 (as shipped)".to_owned(),
        };
        Ok(Self {
            version: version(kind, &program),
            kind,
            program,
            label: label.to_owned(),
            settings,
            arguments: tuning.braidmq_arg.clone(),
            inflight: tuning.mosquitto_inflight,
            persistence: false,
            wrapper: Vec::new(),
        })
    }

    /// Same program under another label, with more arguments for `braidmq serve`.
    pub(crate) fn variant(&self, label: &str, arguments: &[&str]) -> Self {
        let mut variant = self.clone();
        label.clone_into(&mut variant.label);
        variant.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        variant.settings = format!("serve --tcp {}", variant.arguments.join(" "));
        variant
    }

    /// Same broker, run by another program, as by valgrind.
    pub(crate) fn wrapped(&self, wrapper: Vec<String>) -> Self {
        Self { wrapper, ..self.clone() }
    }

    /// mosquitto with persistence: it writes sessions and queues every 30 minutes and when it stops.
    pub(crate) fn persistent(&self) -> Self {
        let settings = self.settings.replace("persistence false", "persistence true");
        Self { persistence: true, settings, ..self.clone() }
    }

    /// A broker of this kind that is never started.
    #[cfg(test)]
    pub(crate) fn named(kind: &str) -> Self {
        Self {
            kind: Kind::parse(kind).expect("a known kind"),
            program: PathBuf::new(),
            label: kind.to_owned(),
            version: String::new(),
            settings: String::new(),
            arguments: Vec::new(),
            inflight: 0,
            persistence: false,
            wrapper: Vec::new(),
        }
    }

    /// Its program.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// True for this project's broker.
    pub(crate) fn is_braidmq(&self) -> bool {
        self.kind == Kind::Braidmq
    }

    /// True for the broker that the aims refer to.
    pub(crate) fn is_mosquitto(&self) -> bool {
        self.kind == Kind::Mosquitto
    }

    /// Starts a process on a free loopback port and waits until it accepts a client.
    ///
    /// # Errors
    /// No start; the text has its last lines.
    pub(crate) fn start(&self) -> Result<Running, String> {
        self.start_in(&std::env::temp_dir())
    }

    /// Starts with a temporary directory below `parent`, and waits until it accepts a client.
    ///
    /// # Errors
    /// No start; the text has its last lines.
    pub(crate) fn start_in(&self, parent: &Path) -> Result<Running, String> {
        let own = TempDir::with_prefix_in("braidmq-bench-", parent)
            .map_err(|error| format!("cannot make a directory in {}: {error}", parent.display()))?;
        let mut running = self.start_at(own.path())?;
        running._own = Some(own);
        Ok(running)
    }

    /// Starts over the data in `directory`, which stays, and waits until it accepts a client.
    ///
    /// # Errors
    /// No start; the text has its last lines.
    pub(crate) fn start_at(&self, directory: &Path) -> Result<Running, String> {
        let failed = |error: std::io::Error| format!("cannot start {}: {error}", self.label);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        drop(listener);
        let log = fs::File::create(directory.join("log")).map_err(failed)?;
        let mut command = self.command(address, directory).map_err(failed)?;
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        let began = Instant::now();
        let child = command.spawn().map_err(failed)?;
        let directory = directory.to_owned();
        let mut running = Running { child, directory, _own: None, address, started_in: Duration::ZERO };
        running.ready().map_err(|reason| format!("{} did not start: {reason}", self.label))?;
        running.started_in = began.elapsed();
        Ok(running)
    }

    fn command(&self, address: SocketAddr, directory: &Path) -> std::io::Result<Command> {
        let mut command = match self.wrapper.split_first() {
            Some((wrapper, arguments)) => {
                let mut command = Command::new(wrapper);
                command.args(arguments).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        let file = directory.join("config");
        match self.kind {
            Kind::Braidmq => {
                command
                    .args(["serve", "--tcp", &address.to_string(), "--data-dir"])
                    .arg(directory.join("data"));
                command.args(&self.arguments);
            }
            Kind::Mosquitto => {
                let persistence = self.persistence.then_some(directory);
                fs::write(&file, mosquitto_config(address.port(), self.inflight, persistence))?;
                command.arg("-c").arg(file);
            }
            Kind::Rumqttd => {
                let file = file.with_extension("toml");
                fs::write(&file, rumqttd_config(address.port()))?;
                command.args(["--quiet", "--config"]).arg(file);
            }
        }
        Ok(command)
    }
}

/// Configuration without log and queue limits, and without a disk unless there is a directory for it. `user root` keeps
/// the files readable when root starts it.
fn mosquitto_config(port: u16, inflight: u32, persistence: Option<&Path>) -> String {
    let persistence = persistence.map_or("persistence false".to_owned(), |directory| {
        format!("persistence true\npersistence_location {}/", directory.display())
    });
    format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n{persistence}\nlog_type none\n\
         log_dest none\nconnection_messages false\nset_tcp_nodelay true\nmax_connections -1\n\
         max_queued_messages 0\nmax_inflight_messages {inflight}\n"
    )
}

/// Configuration of `rumqttd generate-config` with one listener and room for the idle case.
fn rumqttd_config(port: u16) -> String {
    format!(
        "id = 0\n[router]\nid = 0\nmax_connections = 20010\nmax_outgoing_packet_count = 200\n\
         max_segment_size = 104857600\nmax_segment_count = 10\n[v4.1]\nname = \"v4-1\"\n\
         listen = \"127.0.0.1:{port}\"\nnext_connection_delay_ms = 0\n[v4.1.connections]\n\
         connection_timeout_ms = 60000\nmax_payload_size = 20480\nmax_inflight_count = 100\n\
         dynamic_filters = true\n"
    )
}

fn version(kind: Kind, program: &Path) -> String {
    // mosquitto has no --version: the first line of its help names it, with exit code 3.
    let flag = if kind == Kind::Mosquitto { "-h" } else { "--version" };
    let output = Command::new(program).arg(flag).stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("version unknown").trim().to_owned()
}

impl Running {
    /// Process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Data directory of braidmq, which holds its certificate.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// File with the broker's output.
    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Sends a signal to the broker.
    ///
    /// # Errors
    /// The broker has ended.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), String> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).map_err(|error| format!("cannot signal the broker: {error}"))
    }

    /// Ends the broker in order and waits for its end.
    ///
    /// # Errors
    /// The broker has ended before, or ends with a failure.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.signal(Signal::TERM)?;
        let status = self.child.wait().map_err(|error| format!("cannot wait for the broker: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("{status}; its log: {}", self.last_words())) }
    }

    fn ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("{status}; its log: {}", self.last_words()));
            }
            match connect(self.address, "bench-ready") {
                Ok(_) => return Ok(()),
                Err(reason) if Instant::now() > deadline => return Err(reason),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Last lines of the broker's output.
    pub(crate) fn last_words(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(3)..].join(" | ")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
