//! A broker of the binary for one test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// `braidmq serve` on a port of its own; ends with the test.
pub(crate) struct Broker {
    child: Child,
    pub(crate) url: String,
    _data: TempDir,
}

/// The binary with a subcommand, without the environment's password.
pub(crate) fn braidmq(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braidmq"));
    command.args(arguments).env_remove("BRAIDMQ_PASSWORD");
    command
}

impl Broker {
    /// Starts and returns once it listens.
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
        // Reads on, so that the broker never writes into a closed pipe.
        std::thread::spawn(move || banner.for_each(drop));
        Self { child, url, _data: data }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
