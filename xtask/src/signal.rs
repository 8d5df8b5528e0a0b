//! SIGTERM to child processes.

use rustix::process::{Pid, Signal, kill_process};

/// Sends SIGTERM to a process that has not been reaped.
pub(crate) fn terminate(process_id: u32) {
    let process = i32::try_from(process_id).ok().and_then(Pid::from_raw);
    // The process may have ended.
    let _ = process.map(|process| kill_process(process, Signal::TERM));
}
