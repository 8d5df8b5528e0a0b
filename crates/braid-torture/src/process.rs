//! A program under test as a child process, which ends with its handle.

use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time between two looks at a process that is to end.
const LOOK: Duration = Duration::from_millis(5);

/// A child process, or none. Dropping it kills the process.
#[derive(Debug, Default)]
pub struct Process(Option<Child>);

impl Process {
    /// Process ID of the running process, 0 without one.
    pub fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            // The process may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends a signal to the running process.
    pub fn signal(&self, signal: Signal) {
        let process = self.0.as_ref().map(Pid::from_child);
        // The process may have ended.
        let _ = process.map(|process| kill_process(process, signal));
    }

    /// Waits at most `limit` for the end; `None` if the process runs on.
    ///
    /// # Errors
    /// No process runs.
    pub fn wait_for(&mut self, limit: Duration) -> Result<Option<ExitStatus>, String> {
        let child = self.0.as_mut().ok_or("the process does not run")?;
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                self.0 = None;
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
    }
}

impl From<Child> for Process {
    fn from(child: Child) -> Self {
        Self(Some(child))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
