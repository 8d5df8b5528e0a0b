//! The way into the house.
//!
//! Three processes are one program then: the outer one waits, the first process of the new PID namespace (`init`)
//! takes in orphans, and the inner one goes on. When the outer one ends, however it ends, the kernel kills `init`, and
//! with it everything in its namespace; namespaces and devices go with the last process.

use std::fs;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getegid, geteuid, kill_process, pidfd_open,
    pidfd_send_signal, set_parent_process_death_signal, wait, waitpid,
};
use rustix::thread::UnshareFlags;

use super::error::HouseError;
use super::ready::{is_ready, ready};
use super::refusal::{refusal, sysctl};
use super::sys::{self, Fork, Signals};

/// Signals that the outer process passes on.
const PASSED_ON: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
/// Those, and the one that tells of ended children.
const BLOCKED: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::CHILD];

/// Who returns from [`enter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// The program, inside the house.
    Inside,
    /// A process around it, after the program has ended: it exits with this code, which is that of the program, or 128
    /// and the number of the signal that ended it.
    Ended(i32),
}

/// Moves this program into new namespaces: network, mount and PID, and a user namespace in which it is root if it may
/// not make those otherwise. The loopback device is up. To be called first of all, before a thread is started.
///
/// SIGINT, SIGTERM and SIGHUP that the outer process receives reach the inner one, but for those of the terminal,
/// which sends its own to both. Who signals a whole process group does so too: such a signal may come twice. The inner process is not the first of its PID namespace, so that signals have their default action.
///
/// # Errors
/// One line that names the setting if the machine does not allow it.
pub fn enter() -> Result<Entry, HouseError> {
    if sys::has_threads() {
        return Err(HouseError::Threads);
    }
    sys::notice_children();
    // Signals wait until somebody is there to take them.
    sys::block(&BLOCKED).map_err(HouseError::kernel("block signals"))?;
    let entered = isolate().and_then(|()| split());
    if !matches!(entered, Ok(Entry::Ended(_))) {
        sys::unblock(&BLOCKED).map_err(HouseError::kernel("unblock signals"))?;
    }
    entered
}

/// `root`, or `user namespace` where this process is root of that alone.
pub fn privileges() -> &'static str {
    let whole = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    let everything = fs::read_to_string("/proc/self/uid_map").is_ok_and(whole);
    if everything { "root" } else { "user namespace" }
}

/// Makes the namespaces; children of this process start in them.
fn isolate() -> Result<(), HouseError> {
    const OWN: UnshareFlags = UnshareFlags::NEWNET.union(UnshareFlags::NEWNS).union(UnshareFlags::NEWPID);
    let (user, group) = (geteuid(), getegid());
    let refused = |error: io::Error| refusal(&error, user.is_root(), sysctl);
    if user.is_root() {
        match sys::unshare(OWN) {
            // Root of a container has lost the right to do so, and may have that of every user.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            outcome => return outcome.map_err(refused),
        }
    }
    sys::unshare(OWN | UnshareFlags::NEWUSER).map_err(refused)?;
    // Without this an unprivileged user may not map groups. Kernels before 3.19 have no such file and no such rule.
    let _ = fs::write("/proc/self/setgroups", "deny");
    fs::write("/proc/self/uid_map", format!("0 {} 1", user.as_raw())).map_err(refused)?;
    fs::write("/proc/self/gid_map", format!("0 {} 1", group.as_raw())).map_err(refused)
}

fn split() -> Result<Entry, HouseError> {
    let (lifeline, alive) = io::pipe().map_err(HouseError::kernel("make a pipe"))?;
    match sys::fork().map_err(HouseError::kernel("start the first process of the house"))? {
        Fork::Parent(init) => accompany(init, alive),
        Fork::Child => {
            drop(alive);
            init(lifeline)
        }
    }
}

// === The outer process ===

/// Passes signals on to `init` until it has ended.
fn accompany(init: Pid, alive: PipeWriter) -> Result<Entry, HouseError> {
    let code = || -> io::Result<i32> {
        let ended = pidfd_open(init, PidfdFlags::empty())?;
        let signals = Signals::open(&PASSED_ON)?;
        while let [false, _] = ready([ended.as_fd(), signals.as_fd()])? {
            if let Some(signal) = passed_on(&signals.next()?) {
                pidfd_send_signal(&ended, signal)?;
            }
        }
        let (_, status) = waitpid(Some(init), WaitOptions::empty())?.ok_or(Errno::CHILD)?;
        Ok(exit_code(status))
    };
    let code = code().map_err(HouseError::kernel("wait for the house"));
    drop(alive);
    code.map(Entry::Ended)
}

/// The signal to pass on: none that the terminal sends, since the others have it already.
fn passed_on(arrival: &sys::Arrival) -> Option<Signal> {
    PASSED_ON.into_iter().find(|signal| signal.as_raw() == arrival.number && !arrival.by_kernel)
}

/// As a shell counts.
fn exit_code(status: WaitStatus) -> i32 {
    status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
}

// === The first process of the namespace ===

fn init(lifeline: PipeReader) -> Result<Entry, HouseError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| HouseError::kernel("bind the house to its caller")(error.into()))?;
    // If the outer process has died before that, its end of the pipe is closed.
    if is_ready(lifeline.as_fd()).map_err(HouseError::kernel("look at a pipe"))? {
        return Ok(Entry::Ended(128 + Signal::KILL.as_raw()));
    }
    drop(lifeline);
    // A convenience for programs that look at /proc, refused in many containers. Nothing of ours depends on it.
    let _ = mount_proc();
    sys::raise("lo").map_err(HouseError::kernel("bring the loopback device up"))?;
    match sys::fork().map_err(HouseError::kernel("start the inner process of the house"))? {
        Fork::Child => Ok(Entry::Inside),
        Fork::Parent(inner) => {
            let code = take_in_orphans(inner).map_err(HouseError::kernel("wait for the inner process"))?;
            Ok(Entry::Ended(code))
        }
    }
}

/// Mounts the /proc of this PID namespace where nobody outside sees it.
fn mount_proc() -> io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", "/proc", "proc", flags, None)?)
}

/// Waits for every process that has lost its parent, until `inner` has ended.
fn take_in_orphans(inner: Pid) -> io::Result<i32> {
    let signals = Signals::open(&BLOCKED)?;
    loop {
        while let Some((ended, status)) = wait(WaitOptions::NOHANG)? {
            if ended == inner {
                return Ok(exit_code(status));
            }
        }
        if let Some(signal) = passed_on(&signals.next()?) {
            kill_process(inner, signal)?;
        }
    }
}
