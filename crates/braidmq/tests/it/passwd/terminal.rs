//! Passwords that are typed on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use super::{add, result, verify};

/// Terminal with a command in its foreground.
struct Terminal {
    master: File,
    command: Child,
    shown: String,
}

impl Terminal {
    fn start(arguments: &[&str], file: &Path) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let terminal = open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_braidmq"), "passwd"]);
        command.args(&arguments[..1]).arg(file).args(&arguments[1..]).env_remove("BRAIDMQ_PASSWORD");
        command.stdin(terminal).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { command: command.spawn().unwrap(), master: master.into(), shown: String::new() }
    }

    /// Waits for the prompt, and until the terminal shows nothing of what is typed.
    fn type_after(&mut self, prompt: &str, text: &str) {
        let mut byte = [0];
        while !self.shown.ends_with(prompt) {
            self.master.read_exact(&mut byte).unwrap();
            self.shown.push(char::from(byte[0]));
        }
        while self.shows_input() {
            std::thread::yield_now();
        }
        self.master.write_all(text.as_bytes()).unwrap();
    }

    fn shows_input(&self) -> bool {
        tcgetattr(&self.master).unwrap().local_modes.contains(LocalModes::ECHO)
    }

    /// Waits for the end, after which the terminal is as before and has not shown the secret.
    fn end(mut self, secret: &str) -> Output {
        let status = self.command.wait().unwrap();
        assert!(self.shows_input());
        let mut rest = Vec::new();
        // A terminal that no process has open any more ends with an error.
        let _ = self.master.read_to_end(&mut rest);
        self.shown.push_str(&String::from_utf8_lossy(&rest));
        assert!(!self.shown.contains(secret), "{}", self.shown);
        let mut output = Output { status, stdout: Vec::new(), stderr: Vec::new() };
        self.command.stdout.unwrap().read_to_end(&mut output.stdout).unwrap();
        self.command.stderr.unwrap().read_to_end(&mut output.stderr).unwrap();
        output
    }
}

#[test]
fn a_new_password_is_typed_twice_and_not_shown() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    let mut terminal = Terminal::start(&["add", "alice"], &file);
    terminal.type_after("Password for alice: ", "pencil\n");
    terminal.type_after("The same again: ", "pencil\n");
    let (code, _, errors) = result(&terminal.end("pencil"));
    assert_eq!((code, &*errors), (0, ""));
    assert_eq!(verify(&file, "alice", "pencil"), 0);

    let mut terminal = Terminal::start(&["add", "alice"], &file);
    terminal.type_after("Password for alice: ", "paper\n");
    terminal.type_after("The same again: ", "papers\n");
    let expected = "braidmq: the two passwords differ: do it again\n".to_owned();
    assert_eq!(result(&terminal.end("paper")), (2, String::new(), expected));
    assert_eq!(verify(&file, "alice", "pencil"), 0);

    let mut terminal = Terminal::start(&["verify", "alice"], &file);
    terminal.type_after("Password of alice: ", "pencil\n");
    assert_eq!(result(&terminal.end("pencil")).0, 0);
}

/// Whatever ends it, the terminal shows again what is typed: `end` checks it.
#[test]
fn control_characters_end_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    add(&file, "alice", "pencil");
    let interrupted = "interrupted: nothing was done";
    let refused =
        "the typed line is too long or contains a control character: use others, or pass --password-file";
    let long = "x".repeat(5000) + "\n";
    let cases = [
        ("pap\x03", interrupted),
        ("pap\x1C", interrupted),
        ("\x04", interrupted),
        ("pap\x1A\n", refused),
        (&long, refused),
    ];
    for (typed, expected) in cases {
        let mut terminal = Terminal::start(&["add", "bob"], &file);
        terminal.type_after("Password for bob: ", typed);
        let expected = format!("braidmq: {expected}\n");
        assert_eq!(result(&terminal.end("pap")), (2, String::new(), expected), "{}", typed.escape_debug());
    }
    assert_eq!(verify(&file, "bob", "pap"), 1);
}

/// Ctrl-U erases the line, backspace a character, and Ctrl-D ends no line that has begun.
#[test]
fn a_typed_line_can_be_edited() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("users");
    add(&file, "alice", "pencil");
    let mut terminal = Terminal::start(&["verify", "alice"], &file);
    terminal.type_after("Password of alice: ", "x\x15pen\x04cik\x7Fl\n");
    assert_eq!(result(&terminal.end("pencil")).0, 0);
}

#[test]
fn without_a_terminal_the_other_ways_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("setsid");
    command.args(["--wait", env!("CARGO_BIN_EXE_braidmq"), "passwd", "add"]);
    command.arg(directory.path().join("users")).arg("alice").env_remove("BRAIDMQ_PASSWORD");
    let (code, _, errors) = result(&command.stdin(Stdio::null()).output().unwrap());
    assert_eq!((code, errors.lines().count()), (2, 1), "{errors}");
    assert!(errors.ends_with("pass --stdin or --password-file, or set BRAIDMQ_PASSWORD\n"), "{errors}");
}
