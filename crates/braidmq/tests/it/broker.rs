//! A broker process for one test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// `braidmq serve` on a port of its own; killed at the end of the test.
pub(crate) struct Broker {
    child: Child,
    pub(crate) url: String,
    _data: TempDir,
}

/// Command for a subcommand of the binary, without the password in the environment.
pub(crate) fn braidmq(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braidmq"));
    command.args(arguments).env_remove("BRAIDMQ_PASSWORD");
    command
}

impl Broker {
    /// Starts the broker; returns once it listens.
    pub(crate) fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut child = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--data-dir"])
            .arg(data.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut banner = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = banner.find(|line| line.as_ref().unwrap().contains("mqtt://")).unwrap().unwrap();
        let url = line.split_whitespace().last().unwrap().to_owned();
        // A thread reads the rest, so that the broker never writes to a closed pipe.
        std::thread::spawn(move || banner.for_each(drop));
        Self { child, url, _data: data }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
