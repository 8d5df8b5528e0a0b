//! Child processes of a run, which end with it however it ends: at its end, by a panic, by SIGINT or by SIGTERM.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

/// Lines of a log that an error shows.
const LAST_LINES: usize = 3;

/// Handle of all child processes. The processes are killed when the last handle outside of the signal handler is
/// dropped.
#[derive(Default)]
pub(super) struct Processes(Arc<Mutex<Children>>);

#[derive(Default)]
struct Children {
    running: Vec<Running>,
    /// Directory that is removed with them.
    home: Option<PathBuf>,
}

struct Running {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Processes {
    /// Kills all processes and ends this program when it gets SIGINT or SIGTERM.
    ///
    /// # Errors
    /// The signals cannot be caught.
    pub(super) fn end_by_signals(&self) -> Result<(), String> {
        let failed = |error: io::Error| format!("cannot catch signals: {error}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let entered = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        drop(entered);
        let children = Arc::clone(&self.0);
        thread::spawn(move || {
            let code = runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => 130,
                    _ = terminate.recv() => 143,
                }
            });
            // The lock is held to the end, so that no process starts meanwhile.
            let mut children = lock(&children);
            children.kill_all();
            eprintln!("bench: ended by a signal");
            std::process::exit(code);
        });
        Ok(())
    }

    /// Removes this directory, too, when a signal ends the program.
    pub(super) fn own_directory(&self, home: &Path) {
        lock(&self.0).home = Some(home.to_owned());
    }

    /// Starts a process that writes its output to `log`.
    ///
    /// # Errors
    /// The program cannot be started, or the log not be written.
    pub(super) fn start(&self, name: &str, command: &mut Command, log: &Path) -> Result<(), String> {
        let failed = |error: io::Error| format!("cannot start {name}: {error}");
        let mut children = lock(&self.0);
        let output = File::options().create(true).append(true).open(log).map_err(failed)?;
        command.stdin(Stdio::null()).stdout(output.try_clone().map_err(failed)?).stderr(output);
        let child = command.spawn().map_err(failed)?;
        children.running.push(Running { name: name.to_owned(), child, log: log.to_owned() });
        Ok(())
    }

    /// Process ID of a running process.
    ///
    /// # Errors
    /// No process of this name runs.
    pub(super) fn id(&self, name: &str) -> Result<u32, String> {
        let children = lock(&self.0);
        let found = children.running.iter().find(|running| running.name == name);
        found.map(|running| running.child.id()).ok_or_else(|| format!("{name} does not run"))
    }

    /// Kills a process, if it runs.
    pub(super) fn kill(&self, name: &str) {
        let mut children = lock(&self.0);
        if let Some(at) = children.running.iter().position(|running| running.name == name) {
            children.running.swap_remove(at).kill();
        }
    }

    /// Checks that every process runs.
    ///
    /// # Errors
    /// The first process that has ended, with the end of its log.
    pub(super) fn check(&self) -> Result<(), String> {
        for Running { name, child, log } in &mut lock(&self.0).running {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(format!("{name} has ended with {status}; its log: {}", last_lines(log)));
            }
        }
        Ok(())
    }

    /// End of the log of a process.
    pub(super) fn last_lines(&self, name: &str) -> String {
        let children = lock(&self.0);
        let found = children.running.iter().find(|running| running.name == name);
        found.map_or_else(String::new, |running| last_lines(&running.log))
    }

    /// Kills all processes.
    pub(super) fn kill_all(&self) {
        lock(&self.0).running.drain(..).for_each(Running::kill);
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill_all();
    }
}

impl Children {
    fn kill_all(&mut self) {
        self.running.drain(..).for_each(Running::kill);
        if let Some(home) = self.home.take() {
            // The directory may be gone already.
            let _ = fs::remove_dir_all(home);
        }
    }
}

impl Running {
    fn kill(mut self) {
        // Both fail for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lock(children: &Mutex<Children>) -> MutexGuard<'_, Children> {
    children.lock().unwrap_or_else(PoisonError::into_inner)
}

fn last_lines(log: &Path) -> String {
    let log = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&log);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::Processes;

    #[test]
    fn a_dropped_handle_ends_its_processes() {
        let directory = tempfile::tempdir().expect("a directory");
        let processes = Processes::default();
        let start =
            |name| processes.start(name, Command::new("sleep").arg("600"), &directory.path().join(name));
        start("one").expect("starts");
        start("two").expect("starts");
        let [one, two] = ["one", "two"].map(|name| processes.id(name).expect("runs"));
        let runs = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();
        assert!(processes.check().is_ok() && runs(one) && runs(two));
        processes.kill("one");
        assert!(processes.id("one").is_err() && !runs(one) && runs(two));
        drop(processes);
        assert!(!runs(two));
    }

    #[test]
    fn a_process_that_ended_is_an_error_with_its_last_words() {
        let directory = tempfile::tempdir().expect("a directory");
        let processes = Processes::default();
        let mut command = Command::new("sh");
        command.args(["-c", "echo last words; exit 3"]);
        processes.start("short", &mut command, &directory.path().join("log")).expect("starts");
        let reason = loop {
            if let Err(reason) = processes.check() {
                break reason;
            }
            std::thread::yield_now();
        };
        assert!(reason.starts_with("short has ended with exit status: 3; its log: last words"), "{reason}");
    }
}
