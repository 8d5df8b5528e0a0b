//! The process that uses the broker and knows what was promised: `braid-bench`'s example `torture`.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;

use super::Transport;

/// What it knows by now.
#[derive(Deserialize)]
pub(super) struct Report {
    /// By its names, for the result.
    pub(super) counts: serde_json::Map<String, serde_json::Value>,
    /// Promises that were broken.
    pub(super) faults: u64,
    /// The first of them in words.
    pub(super) told: Vec<String>,
}

impl Report {
    pub(super) fn count(&self, name: &str) -> u64 {
        self.counts.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0)
    }

    /// PUBACK and PUBCOMP.
    pub(super) fn acknowledged(&self) -> u64 {
        self.count("puback") + self.count("pubcomp")
    }
}

/// The running process; dropping it ends it.
pub(super) struct Oracle {
    process: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Oracle {
    pub(super) fn start(
        program: &Path,
        ports: &[(Transport, u16)],
        certificate: &Path,
        seed: u64,
        options: &[String],
    ) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.arg("--ca").arg(certificate).args(["--seed", &seed.to_string()]).args(options);
        for (transport, port) in ports {
            command.arg(format!("--{}", transport.scheme())).arg(port.to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (input, output) = input.zip(output).ok_or("the oracle has no input or no output")?;
        Ok(Self { process, input, lines: BufReader::new(output).lines() })
    }

    /// Tells it something that it does not answer.
    pub(super) fn tell(&mut self, command: &str) -> Result<(), String> {
        writeln!(self.input, "{command}").map_err(|error| format!("the oracle has ended: {error}"))
    }

    /// Lets it send, and waits until something is acknowledged.
    pub(super) fn load(&mut self) -> Result<(), String> {
        match self.ask("load")?.as_str() {
            "loaded" => Ok(()),
            other => Err(format!("the oracle said {other:?}")),
        }
    }

    /// Waits until all has come that was promised, to everybody if it is the last time.
    pub(super) fn check(&mut self, everybody: bool) -> Result<Report, String> {
        let line = self.ask(if everybody { "check all" } else { "check" })?;
        serde_json::from_str(&line).map_err(|error| format!("the oracle said {line:?}: {error}"))
    }

    fn ask(&mut self, command: &str) -> Result<String, String> {
        self.tell(command)?;
        match self.lines.next() {
            Some(line) => line.map_err(|error| error.to_string()),
            None => Err("the oracle ended before its time; what it said is above".to_owned()),
        }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        // It keeps nothing. An error means that it has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
