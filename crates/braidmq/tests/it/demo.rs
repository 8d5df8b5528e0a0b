//! `braidmq cluster demo` from outside.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::broker::braidmq;

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.peers/bin/nats-server");

fn demo(arguments: &[&str]) -> Command {
    let mut command = braidmq(&["cluster", "demo"]);
    // A configuration for brokers is none of the demo's.
    command.args(arguments).env("BRAIDMQ_CONFIG", "/none");
    command
}

/// Running demo, and the lines that it printed.
struct Demo {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    seen: Vec<String>,
}

impl Demo {
    fn start(mut command: Command) -> Self {
        command.args(["--port", "0", "--nats-server", SERVER]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, seen: Vec::new() }
    }

    /// Reads up to the line that fits.
    fn until(&mut self, fits: impl Fn(&str) -> bool) -> String {
        let Self { lines, seen, .. } = self;
        let found = lines.map(Result::unwrap).find(|line| {
            seen.push(line.clone());
            fits(line)
        });
        assert!(found.is_some(), "the output ended: {}", seen.join("\n"));
        found.unwrap()
    }

    /// Reads up to the line with a text.
    fn until_text(&mut self, text: &str) -> String {
        self.until(|line| line.contains(text))
    }

    /// Reads to a line with acknowledged messages.
    fn until_acknowledged(&mut self) -> String {
        self.until(|line| line.contains(", acknowledged ") && !line.contains(", acknowledged 0,"))
    }

    /// Process IDs of all processes, from the lines at the start: servers, then brokers.
    fn pids(&mut self) -> Vec<Pid> {
        let names = ["server n1", "server n2", "server n3", "broker b1", "broker b2", "broker b3"];
        names.map(|name| pid(&self.until_text(&format!("{name}: pid ")))).to_vec()
    }

    fn end(mut self) -> (Option<i32>, String) {
        self.seen.extend(self.lines.by_ref().map(Result::unwrap));
        let text = self.seen.join("\n");
        (self.child.wait().unwrap().code(), text)
    }
}

fn pid(line: &str) -> Pid {
    let digits =
        line.split("pid ").nth(1).unwrap().split(|char: char| !char.is_ascii_digit()).next().unwrap();
    Pid::from_raw(digits.parse().unwrap()).unwrap()
}

#[test]
fn nothing_is_lost_when_a_broker_and_a_server_are_killed() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("demo");
    let mut command = demo(&["--seconds", "30", "--restart-after", "3", "--dir"]);
    command.arg(&dir);
    let mut demo = Demo::start(command);
    let mut pids = demo.pids();
    demo.until_acknowledged();
    kill_process(pids[0], Signal::KILL).unwrap();
    demo.until_text("NATS server n1 (pid ");
    pids[0] = pid(&demo.until_text("NATS server n1 started again, pid "));
    // The node of a client.
    let line = demo.until(|line| line.contains("connections: b1 "));
    let broker = (1..=3)
        .find(|broker| line.contains(&format!("b{broker} 1")) || line.contains(&format!("b{broker} 2")));
    let broker = broker.unwrap();
    kill_process(pids[2 + broker], Signal::KILL).unwrap();
    demo.until_text(&format!(
        "broker b{broker} (pid {}) was killed by signal 9; it starts again in 3 s",
        pids[2 + broker]
    ));
    pids[2 + broker] = pid(&demo.until_text(&format!("broker b{broker} started again, pid ")));
    let (code, text) = demo.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.ends_with("\nnothing that was acknowledged was lost"), "{text}");
    assert!(text.contains(&format!("; processes that died: n1 (once), b{broker} (once)\n")), "{text}");
    assert!(text.contains(": connected again after ") && !text.contains("GONE"), "{text}");
    assert!(pids.into_iter().all(|pid| test_kill_process(pid).is_err()), "all processes are gone");
    for file in ["n1.log", "b3.log", "b1.toml"] {
        assert!(dir.join(file).exists(), "the directory is kept: {file}");
    }
}

#[test]
fn a_signal_ends_everything() {
    let home = tempfile::tempdir().unwrap();
    let interrupt = |demo: &Demo| kill_process(Pid::from_child(&demo.child), Signal::INT).unwrap();
    let start = || {
        let mut command = demo(&[]);
        command.env("TMPDIR", home.path());
        Demo::start(command)
    };
    let mut early = start();
    early.until_text("starting three NATS servers");
    interrupt(&early);
    assert_eq!(early.end().0, Some(0));
    let mut demo = start();
    let pids = demo.pids();
    demo.until_acknowledged();
    interrupt(&demo);
    let (code, text) = demo.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.ends_with("\nnothing that was acknowledged was lost"), "{text}");
    assert!(pids.into_iter().all(|pid| test_kill_process(pid).is_err()), "all processes are gone");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "the temporary directories are removed");
}

#[test]
fn a_start_that_cannot_be_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let folder = dir.path().display().to_string();
    for (arguments, expected) in [
        (&[][..], "the demo needs nats-server 2.15.2 or later, and there is none in PATH"),
        (&["--nats-server", "/none"], "--nats-server /none: "),
        (&["--nats-server", "/bin/sh"], "--nats-server /bin/sh: is no nats-server"),
        (&["--nats-server", SERVER, "--dir", &folder], "is not empty: name a new directory"),
        (&["--nats-server", SERVER, "--port", &port], "name another port by --port"),
        (&["--rate", "0"], "0 is not in 1..=1000"),
    ] {
        let mut command = demo(arguments);
        let output = command.current_dir(dir.path()).env("PATH", "").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected) && output.stdout.is_empty(), "{said}");
        let lines = said.lines().filter(|line| !line.trim().is_empty()).count();
        assert!(lines == 1 || said.starts_with("error: "), "{said}");
    }
    assert!(Path::new(SERVER).exists(), "run `make nats-server`");
}
