//! Signals to a process that we started and have not yet reaped.

/// SIGTERM.
pub(crate) fn terminate(process_id: u32) {
    send(process_id, libc::SIGTERM);
}

/// SIGKILL.
pub(crate) fn kill(process_id: u32) {
    send(process_id, libc::SIGKILL);
}

/// SIGSTOP.
pub(crate) fn stop(process_id: u32) {
    send(process_id, libc::SIGSTOP);
}

/// SIGCONT.
pub(crate) fn go_on(process_id: u32) {
    send(process_id, libc::SIGCONT);
}

#[allow(unsafe_code, reason = "the standard library sends SIGKILL only; kill(2) has no memory to get wrong")]
fn send(process_id: u32, signal: i32) {
    let Ok(process_id) = libc::pid_t::try_from(process_id) else { return };
    // SAFETY: kill takes two integers; the process is our child, so the id names nobody else.
    unsafe { libc::kill(process_id, signal) };
}
