//! Signals to child processes that have not been reaped.

use rustix::process::{Pid, Signal, kill_process};

/// Sends SIGTERM.
pub(crate) fn terminate(process_id: u32) {
    send(process_id, Signal::TERM);
}

/// Sends SIGKILL.
pub(crate) fn kill(process_id: u32) {
    send(process_id, Signal::KILL);
}

fn send(process_id: u32, signal: Signal) {
    let process = i32::try_from(process_id).ok().and_then(Pid::from_raw);
    // The process may have ended.
    let _ = process.map(|process| kill_process(process, signal));
}
