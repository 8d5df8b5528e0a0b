//! Runs tests inside the testbed: as the current user, and also as an unprivileged user if that is root.

use std::env;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, kill_process, pidfd_open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tempfile::TempDir;

/// Variable with the name of the test that runs inside.
const MARK: &str = "BRAID_LAB_INSIDE";
/// Longer than every event here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// User that runs a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum User {
    /// User that runs the tests.
    Same,
    /// Unprivileged user.
    Unprivileged,
}

/// All users that this process can become.
pub(crate) fn users() -> Vec<User> {
    if geteuid().is_root() { vec![User::Same, User::Unprivileged] } else { vec![User::Same] }
}

/// Entry into the testbed for a user. The programs are in a directory that all users may execute.
pub(crate) struct Entrance {
    who: User,
    folder: TempDir,
}

impl Entrance {
    pub(crate) fn new(who: User) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let tests = env::current_exe().unwrap();
        let entry = tests.parent().unwrap().with_file_name("examples").join("testbed_entry");
        assert!(
            entry.exists(),
            "cargo build --package braid-lab --example testbed_entry, or test the whole package"
        );
        for (from, to) in [(&tests, "tests"), (&entry, "entry")] {
            let to = folder.path().join(to);
            if fs::hard_link(from, &to).is_err() {
                fs::copy(from, &to).unwrap();
            }
        }
        Self { who, folder }
    }

    fn program(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Command that runs `program` as the user.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("env");
        // Background jobs of a shell ignore some of them.
        command.arg("--default-signal=INT,HUP,TERM");
        if self.who == User::Unprivileged {
            command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        }
        command.arg(program.as_ref());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Entry; the arguments that follow are the command to run inside.
    pub(crate) fn entry(&self) -> Command {
        self.command(self.program("entry"))
    }

    /// Runs a shell script outside, with `$ENTRY` as the entry.
    pub(crate) fn script_outside(&self, script: &str) -> Command {
        let mut command = self.command("sh");
        command.args(["-c", script]).env("ENTRY", self.program("entry"));
        command
    }

    /// Runs a shell script inside.
    pub(crate) fn script(&self, script: &str) -> Command {
        let mut command = self.entry();
        command.args(["sh", "-c", script]);
        command
    }

    /// Runs the test `name` inside, after the shell commands `first`.
    pub(crate) fn test(&self, name: &str, first: &str) -> Command {
        let run = format!("{first} exec \"$@\"");
        let mut command = self.script(&run);
        command.arg("sh").arg(self.program("tests"));
        command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(MARK, name);
        command
    }
}

/// True inside the testbed, where the test `name` continues. Otherwise runs it there as every user, and returns false.
pub(crate) fn inside(name: &str) -> bool {
    inside_after(name, "")
}

/// Variant of [`inside`] that runs shell commands first.
pub(crate) fn inside_after(name: &str, first: &str) -> bool {
    if is_inside(name) {
        return true;
    }
    for who in users() {
        run_test(who, name, first);
    }
    false
}

/// Whether this process runs inside the testbed.
pub(crate) fn is_inside(name: &str) -> bool {
    env::var(MARK).is_ok_and(|inside| inside == name)
}

/// Runs a test inside and returns its output.
pub(crate) fn run_test(who: User, name: &str, first: &str) -> String {
    let output = Entrance::new(who).test(name, first).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let passed = output.status.success() && out.contains("test result: ok. 1 passed");
    assert!(passed, "{name} as {who:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// Process whose output is read; killed when dropped.
pub(crate) struct Running {
    child: Child,
    /// Reading end of a pipe, or the controlling side of a terminal.
    out: File,
    unread: String,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let out = OwnedFd::from(child.stdout.take().unwrap()).into();
        Self { child, out, unread: String::new() }
    }

    /// Starts a command as session leader, with a terminal.
    pub(crate) fn on_terminal(command: &Command) -> Self {
        let (keyboard, screen) = terminal();
        let mut setsid = Command::new("setsid");
        setsid.arg("--ctty").arg(command.get_program()).args(command.get_args());
        setsid.stdin(screen.try_clone().unwrap()).stdout(screen.try_clone().unwrap()).stderr(screen);
        Self { child: setsid.spawn().unwrap(), out: keyboard, unread: String::new() }
    }

    /// Writes to its terminal.
    pub(crate) fn press(&mut self, keys: &[u8]) {
        self.out.write_all(keys).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads until a line contains `wanted`, and returns it.
    pub(crate) fn read_until(&mut self, wanted: &str) -> String {
        let mut chunk = [0; 4096];
        loop {
            while let Some(end) = self.unread.find('\n') {
                let line: String = self.unread.drain(..=end).collect();
                if line.contains(wanted) {
                    return line.trim().to_owned();
                }
            }
            assert!(is_ready(&self.out, PATIENCE), "it has not written {wanted:?}: {}", self.unread);
            let read = self.out.read(&mut chunk).unwrap();
            assert_ne!(read, 0, "it ended before {wanted:?}: {}", self.unread);
            self.unread += &String::from_utf8_lossy(&chunk[..read]);
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        signal_process(self.pid(), signal);
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for_end(&[open(self.pid())]);
        self.child.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Terminal: the controlling side, and that of the program.
fn terminal() -> (File, File) {
    let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&keyboard).unwrap();
    unlockpt(&keyboard).unwrap();
    let name = ptsname(&keyboard, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    (keyboard.into(), rustix::fs::open(name, flags, Mode::empty()).unwrap().into())
}

/// Exit code in the shell's convention.
pub(crate) fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(id.try_into().unwrap()).unwrap()
}

pub(crate) fn signal_process(id: u32, signal: Signal) {
    kill_process(pid(id), signal).unwrap();
}

/// Descriptor that becomes readable when the process ends.
pub(crate) fn open(id: u32) -> OwnedFd {
    pidfd_open(pid(id), PidfdFlags::empty()).unwrap()
}

/// Waits until every process has ended.
pub(crate) fn wait_for_end(processes: &[impl AsFd]) {
    let deadline = Instant::now() + PATIENCE;
    for process in processes {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(is_ready(process, left), "a process is still alive");
    }
}

fn is_ready(descriptor: &impl AsFd, within: Duration) -> bool {
    let timeout = Timespec::try_from(within).unwrap();
    poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

/// Processes of this machine.
pub(crate) fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).collect()
}

/// Field of `/proc/ID/status`.
pub(crate) fn status_field(id: u32, field: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.map(|value| value.trim().to_owned())
}

/// Children of `parent`.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let is_child = |id: &u32| status_field(*id, "PPid").is_some_and(|own| own == parent.to_string());
    processes().into_iter().filter(is_child).collect()
}

/// Namespace of a process by kind, as `net:[4026531840]`.
pub(crate) fn namespace(id: u32, kind: &str) -> Option<String> {
    let link = fs::read_link(format!("/proc/{id}/ns/{kind}")).ok()?;
    Some(link.to_string_lossy().into_owned())
}

/// Processes that are in one of `namespaces` or hold it open; zombies do not count.
pub(crate) fn holders(namespaces: &[String]) -> Vec<u32> {
    let holds = |id: &u32| {
        let kinds = ["net", "pid", "mnt", "user"].iter().filter_map(|kind| namespace(*id, kind));
        let files = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().filter_map(Result::ok);
        let open =
            files.filter_map(|file| Some(fs::read_link(file.path()).ok()?.to_string_lossy().into_owned()));
        kinds.chain(open).any(|held| namespaces.contains(&held))
    };
    let lives = |id: &u32| status_field(*id, "State").is_some_and(|state| !state.starts_with(['Z', 'X']));
    processes().into_iter().filter(|id| lives(id) && holds(id)).collect()
}
