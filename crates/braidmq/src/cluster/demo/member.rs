//! Processes of the demo: NATS servers and brokers, which start again after they were killed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Prefix of variables that would change the configuration of a broker.
const OWN_VARIABLES: &str = "BRAIDMQ";

/// Time between two looks at a process that is to end.
const LOOK: Duration = Duration::from_millis(10);

/// Kind of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Server of NATS.
    Server,
    /// Node of the cluster.
    Broker,
}

impl Kind {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Server => "NATS server",
            Self::Broker => "broker",
        }
    }
}

/// Process of the demo across its restarts. Dropping it kills the process.
pub(super) struct Member {
    pub(super) kind: Kind,
    pub(super) name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    dir: PathBuf,
    state: State,
    /// Ends that were not asked for.
    pub(super) ends: u32,
}

enum State {
    Running(Child),
    /// Ended, to be started again at this time.
    Down {
        pid: u32,
        start_at: Instant,
    },
}

/// State of a process for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessStatus {
    Running {
        pid: u32,
    },
    /// Time until it starts again.
    Down {
        pid: u32,
        left: Duration,
    },
}

/// Change that [`Member::tick`] found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The process ended: for this reason.
    Ended(String),
    /// Started again.
    Started,
    /// Start that failed: for this reason.
    Failed(String),
}

impl Member {
    /// Starts a program in `dir`, with its output in `<name>.log` there.
    ///
    /// # Errors
    /// The program or the log cannot be opened.
    pub(super) fn start(
        kind: Kind,
        name: &str,
        program: &Path,
        arguments: &[&str],
        dir: &Path,
    ) -> Result<Self, String> {
        let mut member = Self {
            kind,
            name: name.to_owned(),
            program: program.to_owned(),
            arguments: arguments.iter().map(OsString::from).collect(),
            dir: dir.to_owned(),
            state: State::Down { pid: 0, start_at: Instant::now() },
            ends: 0,
        };
        member.spawn()?;
        Ok(member)
    }

    fn spawn(&mut self) -> Result<(), String> {
        let path = self.log();
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let log: File = log.map_err(|error| format!("{}: {error}", path.display()))?;
        let copy = log.try_clone().map_err(|error| format!("{}: {error}", path.display()))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.dir).stdin(Stdio::null()).stdout(copy).stderr(log);
        let own = std::env::vars_os().map(|(name, _)| name);
        for name in own.filter(|name| name.to_string_lossy().starts_with(OWN_VARIABLES)) {
            command.env_remove(name);
        }
        // Ctrl-C is for the demo, which ends the processes in order.
        command.process_group(0);
        let child = command.spawn();
        let child = child.map_err(|error| format!("{} does not start: {error}", self.program.display()))?;
        self.state = State::Running(child);
        Ok(())
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    /// Last line of its log; empty if there is none.
    pub(super) fn last_words(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log[log.len().saturating_sub(4096)..]).into_owned();
        log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
    }

    pub(super) fn status(&self, now: Instant) -> ProcessStatus {
        match &self.state {
            State::Running(child) => ProcessStatus::Running { pid: child.id() },
            State::Down { pid, start_at } => {
                ProcessStatus::Down { pid: *pid, left: start_at.saturating_duration_since(now) }
            }
        }
    }

    /// Process ID of the present or the last process.
    pub(super) fn pid(&self) -> u32 {
        match &self.state {
            State::Running(child) => child.id(),
            State::Down { pid, .. } => *pid,
        }
    }

    pub(super) const fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// Looks whether the process ended, and starts it again `pause` after its end.
    pub(super) fn tick(&mut self, now: Instant, pause: Duration) -> Option<Change> {
        match &mut self.state {
            State::Running(child) => {
                let reason = match child.try_wait() {
                    Ok(None) => return None,
                    Ok(Some(status)) => end_text(status),
                    Err(error) => error.to_string(),
                };
                self.state = State::Down { pid: child.id(), start_at: now + pause };
                self.ends += 1;
                Some(Change::Ended(reason))
            }
            State::Down { start_at, .. } if now < *start_at => None,
            State::Down { start_at, .. } => {
                *start_at = now + pause;
                Some(self.spawn().map_or_else(Change::Failed, |()| Change::Started))
            }
        }
    }

    /// Kills the process as `kill -9` does. False: none runs.
    pub(super) fn kill(&mut self) -> bool {
        match &mut self.state {
            State::Running(child) => child.kill().is_ok(),
            State::Down { .. } => false,
        }
    }

    /// Asks the process to end.
    fn terminate(&self) {
        if let State::Running(child) = &self.state {
            // The process may have ended. One that is stopped ends by `kill` only.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
    }

    fn has_ended(&mut self) -> bool {
        match &mut self.state {
            State::Running(child) => !matches!(child.try_wait(), Ok(None)),
            State::Down { .. } => true,
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let State::Running(child) = &mut self.state {
            // The process may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Ends processes in order: those that run on after `patience` are killed.
pub(super) fn end(mut members: Vec<Member>, patience: Duration) {
    members.iter().for_each(Member::terminate);
    let give_up = Instant::now() + patience;
    while Instant::now() < give_up && !members.iter_mut().all(Member::has_ended) {
        thread::sleep(LOOK);
    }
}

fn end_text(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);

    /// Waits for the next change at `now`.
    fn change(member: &mut Member, now: Instant) -> Change {
        loop {
            if let Some(change) = member.tick(now, PAUSE) {
                return change;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn a_process_that_was_killed_starts_again_after_the_pause() {
        let dir = tempfile::tempdir().unwrap();
        let script = "echo one; echo two >&2; echo; exec sleep 1000";
        let shell = Path::new("/bin/sh");
        let mut member = Member::start(Kind::Broker, "b1", shell, &["-c", script], dir.path()).unwrap();
        let (first, now) = (member.pid(), Instant::now());
        assert_eq!(
            (member.tick(now, PAUSE), member.status(now)),
            (None, ProcessStatus::Running { pid: first })
        );
        while member.last_words() != "two" {
            thread::yield_now();
        }
        assert!(member.kill());
        assert_eq!(change(&mut member, now), Change::Ended("was killed by signal 9".to_owned()));
        assert!(!member.is_running() && !member.kill() && member.ends == 1);
        let early = now + PAUSE - Duration::from_millis(1);
        assert_eq!(member.tick(early, PAUSE), None);
        assert_eq!(member.status(now), ProcessStatus::Down { pid: first, left: PAUSE });
        assert_eq!(change(&mut member, now + PAUSE), Change::Started);
        assert!(member.is_running() && member.pid() != first);
        let pid = Pid::from_raw(i32::try_from(member.pid()).unwrap()).unwrap();
        end(vec![member], PAUSE);
        assert!(rustix::process::test_kill_process(pid).is_err(), "it was waited for");
    }

    #[test]
    fn a_program_that_ends_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let shell = Path::new("/bin/sh");
        let mut member = Member::start(Kind::Server, "n1", shell, &["-c", "exit 3"], dir.path()).unwrap();
        let now = Instant::now();
        assert_eq!(change(&mut member, now), Change::Ended("ended with exit code 3".to_owned()));
        assert_eq!(member.last_words(), "");
        fs::remove_dir_all(dir.path()).unwrap();
        let Change::Failed(reason) = change(&mut member, now + PAUSE) else { panic!("no folder") };
        assert!(reason.contains("n1.log: "), "{reason}");
        assert_eq!(member.tick(now + PAUSE, PAUSE), None, "it is tried again later");
        let none = Member::start(Kind::Server, "n1", Path::new("/none"), &[], Path::new("/none"));
        assert!(none.is_err());
    }
}
