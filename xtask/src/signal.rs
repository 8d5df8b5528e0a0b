//! Signals to child processes.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Sends SIGTERM to a process that has not been reaped.
pub(crate) fn terminate(process_id: u32) {
    // The process may have ended.
    let _ = pid(process_id).map(|process| kill_process(process, Signal::TERM));
}

/// Sends SIGKILL to the process group of a process that leads it and has not been reaped.
pub(crate) fn kill_group(leader: u32) {
    // All of its processes may have ended.
    let _ = pid(leader).map(|leader| kill_process_group(leader, Signal::KILL));
}

fn pid(process_id: u32) -> Option<Pid> {
    i32::try_from(process_id).ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_group_ends_with_the_children_of_its_leader() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo begun; wait"]).process_group(0).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        output.read_exact(&mut [0; 6]).unwrap();
        kill_group(child.id());
        // The pipe ends when no process has it any more.
        assert_eq!(output.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert!(!child.wait().unwrap().success());
    }
}
