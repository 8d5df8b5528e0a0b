//! A broker with every transport, and running load generators.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use braid_bench::summary::{RunSummary, SCHEMA};
use serde_json::Value;
use tempfile::TempDir;

use crate::broker::braidmq;

/// Timeout of each step, exceeded only after a fault.
const PATIENCE: Duration = Duration::from_secs(60);

/// `braidmq serve`, killed at the end of its test.
pub(super) struct Server {
    child: Child,
    /// `SCHEME://HOST:PORT` of each listener.
    urls: Vec<String>,
    pub(super) directory: TempDir,
}

/// A running `braidmq bench`, killed at the end of its test.
pub(super) struct Load {
    /// `None` once a test waits for its end.
    child: Option<Child>,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

impl Server {
    pub(super) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let any = "127.0.0.1:0";
        let mut child =
            braidmq(&["serve", "--tcp", any, "--tls", any, "--ws", any, "--wss", any, "--quic", any])
                .arg("--data-dir")
                .arg(directory.path().join("data"))
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
        let mut banner = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let urls = banner
            .by_ref()
            .take_while(|line| !line.starts_with("Stop with"))
            .filter(|line| line.contains("://"))
            .map(|line| line.split_whitespace().last().unwrap().to_owned())
            .collect();
        std::thread::spawn(move || banner.for_each(drop));
        Self { child, urls, directory }
    }

    /// Kills it.
    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The port of a listener.
    pub(super) fn port(&self, scheme: &str) -> &str {
        let start = format!("{scheme}://127.0.0.1:");
        let rest = self.urls.iter().find_map(|url| url.strip_prefix(&start)).unwrap();
        rest.split('/').next().unwrap()
    }

    /// Options to connect to a listener.
    pub(super) fn find<'a>(&'a self, scheme: &str) -> Vec<&'a str> {
        let mut options = vec!["-h", "127.0.0.1", "-p", self.port(scheme)];
        options.extend(match scheme {
            "mqtts" => &["-S", "--insecure"][..],
            "ws" => &["--ws"],
            "wss" => &["--ws", "-S", "--insecure"],
            "quic" => &["--quic", "--insecure"],
            _ => &[],
        });
        options
    }

    /// The self-signed certificate.
    pub(super) fn ca(&self) -> String {
        self.directory.path().join("data/cert.pem").to_str().unwrap().to_owned()
    }

    /// A path for a file.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Command for `braidmq bench`.
pub(super) fn bench(arguments: &[&str]) -> Command {
    let mut command = braidmq(&["bench"]);
    command.args(arguments).stdin(Stdio::null()).env_remove("SSLKEYLOGFILE");
    command
}

/// Result of a run.
#[derive(Debug)]
pub(super) struct End {
    pub(super) code: Option<i32>,
    /// Standard output, without the lines that were read before.
    pub(super) lines: String,
    /// Standard error, without the lines that were read before.
    pub(super) errors: String,
}

/// Runs a command to its end.
pub(super) fn run(arguments: &[&str]) -> End {
    Load::start(arguments).end()
}

impl Load {
    pub(super) fn start(arguments: &[&str]) -> Self {
        Self::of(bench(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// A run whose output pipes are closed.
    pub(super) fn start_unheard(arguments: &[&str]) -> Self {
        let mut child = bench(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        Self::of(child)
    }

    fn of(mut child: Child) -> Self {
        let heard = child.stdout.take().map_or_else(|| channel().1, lines);
        let errors = child.stderr.take().map_or_else(|| channel().1, lines);
        Self { child: Some(child), lines: heard, errors }
    }

    /// Waits for a line on standard output.
    pub(super) fn wait_for(&self, is_it: impl Fn(&str) -> bool) -> String {
        find(&self.lines, is_it)
    }

    /// Waits for a line on standard error.
    pub(super) fn wait_for_note(&self, is_it: impl Fn(&str) -> bool) -> String {
        find(&self.errors, is_it)
    }

    /// Waits until a counter has this value, and has been printed.
    pub(super) fn wait_for_total(&self, counter: &str, total: u64) {
        let part = format!(" {counter} total={total} ");
        self.wait_for(|line| line.contains(&part));
    }

    /// Sends a signal and waits for the end.
    pub(super) fn stop(self, signal: &str) -> End {
        send(signal, &self.child.as_ref().unwrap().id().to_string());
        self.end()
    }

    /// Waits for the end.
    pub(super) fn end(mut self) -> End {
        let (lines, errors) = (rest(&self.lines), rest(&self.errors));
        let mut child = self.child.take().unwrap();
        let (id, (sender, code)) = (child.id().to_string(), channel());
        std::thread::spawn(move || sender.send(child.wait().unwrap().code()));
        let code = code.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            send("-KILL", &id);
            panic!("it does not end")
        });
        End { code, lines, errors }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // The process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn send(signal: &str, id: &str) {
    assert!(Command::new("kill").args([signal, id]).status().unwrap().success());
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(from).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    lines
}

/// The first of these lines; the previous ones are dropped.
fn find(lines: &Receiver<String>, is_it: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if is_it(&line) => return line,
            Ok(line) => seen.push(line),
            Err(error) => panic!("{error} after {seen:#?}"),
        }
    }
}

/// All lines up to the end of the program.
fn rest(lines: &Receiver<String>) -> String {
    let deadline = Instant::now() + PATIENCE;
    let mut all = String::new();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => all.extend([line.as_str(), "\n"]),
            Err(RecvTimeoutError::Disconnected) => return all,
            Err(RecvTimeoutError::Timeout) => panic!("it does not end after {all}"),
        }
    }
}

/// Content of the file of `--json`.
pub(super) fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap();
    let summary: RunSummary = serde_json::from_str(&text).unwrap();
    assert_eq!(summary.schema, SCHEMA);
    serde_json::from_str(&text).unwrap()
}

/// A counter in the file of `--json`.
pub(super) fn counter(summary: &Value, name: &str) -> u64 {
    summary["counters"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {summary:#}"))
}

/// The one topic of a summary with this name.
pub(super) fn topic<'a>(summary: &'a Value, name: &str) -> &'a Value {
    let all = summary["topics"].as_array().unwrap();
    let mut found = all.iter().filter(|topic| topic["topic"] == name);
    let topic = found.next().unwrap_or_else(|| panic!("no {name} in {summary:#}"));
    assert!(found.next().is_none(), "{name} twice in {summary:#}");
    topic
}
