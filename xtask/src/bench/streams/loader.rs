//! The process that puts load on the broker: `braid-bench`'s example `load`.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::super::kernel::cpu_time;
use super::super::usage::Meter;

/// The program.
pub(super) struct Loader {
    pub(super) program: PathBuf,
}

/// Where the broker is for it.
pub(super) struct Reached {
    pub(super) scheme: &'static str,
    pub(super) port: u16,
    pub(super) ca: PathBuf,
}

/// What the program says at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Said {
    pub(super) delivered: u64,
    pub(super) latency_ms: Percentiles,
    /// How late the generator itself was; nothing when it is not paced.
    lateness_ms: Percentiles,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Percentiles {
    pub(super) p50: Option<f64>,
    pub(super) p90: Option<f64>,
    pub(super) p99: Option<f64>,
    max: Option<f64>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Flowed {
    #[serde(flatten)]
    pub(super) said: Said,
    /// Processor time of the broker for each message delivered, nanoseconds.
    pub(super) broker_ns_per_message: f64,
    seconds: f64,
    /// Cores that the load used.
    pub(super) load_cores: f64,
    /// Cores that everything else on the machine used, but for broker and load.
    pub(super) other_cores: f64,
}

impl Flowed {
    pub(super) fn rate(&self) -> f64 {
        self.said.delivered as f64 / self.seconds
    }
}

/// Connections that are open and idle.
pub(super) struct Open {
    child: Loading,
}

impl Loader {
    /// Builds it; it lies below this program, which is a release build of the same workspace.
    pub(super) fn build() -> Result<Self, String> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--quiet", "--release", "--package", "braid-bench", "--example", "load"])
            .status();
        if !built.map_err(|error| format!("cannot start cargo: {error}"))?.success() {
            return Err("`cargo build --release -p braid-bench --example load` failed".to_owned());
        }
        let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let program = own.parent().unwrap_or(Path::new(".")).join("examples/load");
        Ok(Self { program })
    }

    pub(super) fn pairs(
        &self,
        broker: &Reached,
        streams: u16,
        qos: u8,
        rate: Option<u32>,
        seconds: f64,
        pid: u32,
    ) -> Result<Flowed, String> {
        let mut command = self.command(broker);
        command.args(["pairs", "--streams", &streams.to_string(), "--qos", &qos.to_string()]);
        command.args(["--seconds", &seconds.to_string()]);
        command.args(rate.map(|rate| format!("--rate={rate}")));
        let mut child = Loading::spawn(command)?;
        let loading = child.process.id();
        let meter = || {
            let read = Meter::read(pid).and_then(|meter| Ok((meter, cpu_time(loading)?)));
            read.map_err(|error| format!("the broker or its load is gone: {error}"))
        };
        child.await_line("begin")?;
        let (begin, load_begin) = meter()?;
        child.await_line("end")?;
        let (end, load_end) = meter()?;
        let said = child.line()?;
        let said: Said = serde_json::from_str(&said).map_err(|error| format!("{error} in {said}"))?;
        let used = end.broker_since(&begin).as_secs_f64() * 1e9;
        let broker_ns_per_message = used / said.delivered.max(1) as f64;
        let shares = end.since(&begin);
        let load_cores = load_end.saturating_sub(load_begin).as_secs_f64() / shares.seconds;
        // This process is neither, and idle.
        let other_cores = (shares.others - load_cores).max(0.0);
        Ok(Flowed { said, broker_ns_per_message, seconds: shares.seconds, load_cores, other_cores })
    }

    pub(super) fn idle(&self, broker: &Reached, connections: u32) -> Result<Open, String> {
        let mut command = self.command(broker);
        command.args(["idle", "--connections", &connections.to_string()]);
        let mut child = Loading::spawn(command)?;
        child.await_line("open")?;
        Ok(Open { child })
    }

    fn command(&self, broker: &Reached) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--scheme", broker.scheme, "--port", &broker.port.to_string(), "--ca"]);
        command.arg(&broker.ca);
        command
    }
}

impl Open {
    /// Ends them, if they were open until now.
    ///
    /// # Errors
    /// The load ended by itself.
    pub(super) fn close(mut self) -> Result<(), String> {
        match self.child.process.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("the idle connections ended: {status}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A started load; dropping it ends the process.
struct Loading {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Loading {
    fn spawn(mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let output = process.stdout.take().ok_or("no output")?;
        Ok(Self { process, lines: BufReader::new(output).lines() })
    }

    fn line(&mut self) -> Result<String, String> {
        match self.lines.next() {
            Some(line) => line.map_err(|error| error.to_string()),
            None => Err("the load ended before its time; what it said is above".to_owned()),
        }
    }

    fn await_line(&mut self, wanted: &str) -> Result<(), String> {
        let line = self.line()?;
        if line == wanted { Ok(()) } else { Err(format!("the load said {line:?} instead of {wanted:?}")) }
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        // It keeps nothing. An error means that it has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
