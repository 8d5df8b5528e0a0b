//! Entry into the namespaces of the testbed.
//!
//! One program becomes three processes: the outer one waits, the first process of the new PID namespace (`init`) adopts
//! orphans, and the inner one continues. When the outer one ends, for whatever reason, the kernel kills `init` and with
//! it everything in its namespace; namespaces and devices go with the last process.

use braid_measure::machine::sysctl;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getegid, geteuid, kill_process, pidfd_open,
    pidfd_send_signal, set_parent_process_death_signal, wait, waitpid,
};
use rustix::thread::UnshareFlags;
use std::fs;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd;

use super::error::TestbedError;
use super::sys::{self, Fork, Signals, is_ready, ready};

/// Signals that the outer process forwards.
const PASSED_ON: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
/// Signals that are blocked: the forwarded ones, and SIGCHLD for ended children.
const BLOCKED: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::CHILD];

/// Process that returned from [`enter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// The program, inside the namespaces.
    Inside,
    /// An outer process, after the program has ended. It must exit with this code: the program's exit code, or 128 plus
    /// the number of the signal that ended it.
    Ended(i32),
}

/// Moves this program into new namespaces: network, mount and PID, plus a user namespace where it would not be
/// permitted otherwise. The loopback device is up. Must be called before any thread is started.
///
/// The outer process forwards SIGINT, SIGTERM and SIGHUP to the inner one, except those that the terminal sends to
/// both. A signal to the whole process group may therefore arrive twice. The inner process is not the first of its PID
/// namespace, so signals keep their default action.
///
/// # Errors
/// One line that names the setting to change if the machine does not allow namespaces.
pub fn enter() -> Result<Entry, TestbedError> {
    if sys::has_threads() {
        return Err(TestbedError::Other(
            "this program has started threads: call testbed::enter before that".into(),
        ));
    }
    sys::notice_children();
    // Signals stay pending until a process reads them.
    sys::block(&BLOCKED).map_err(TestbedError::kernel("block signals"))?;
    let entered = isolate().and_then(|()| split());
    if !matches!(entered, Ok(Entry::Ended(_))) {
        sys::unblock(&BLOCKED).map_err(TestbedError::kernel("unblock signals"))?;
    }
    entered
}

/// `root`, or `user namespace` where this process is root only inside its user namespace.
pub fn privileges() -> &'static str {
    let whole = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    let everything = fs::read_to_string("/proc/self/uid_map").is_ok_and(whole);
    if everything { "root" } else { "user namespace" }
}

/// Creates the namespaces; children of this process start in them.
fn isolate() -> Result<(), TestbedError> {
    const OWN: UnshareFlags = UnshareFlags::NEWNET.union(UnshareFlags::NEWNS).union(UnshareFlags::NEWPID);
    let (user, group) = (geteuid(), getegid());
    let refused = |error: io::Error| refusal(&error, user.is_root(), sysctl);
    if user.is_root() {
        match sys::unshare(OWN) {
            // Root of a container may lack the capability, and still be permitted what every user is.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            outcome => return outcome.map_err(refused),
        }
    }
    sys::unshare(OWN | UnshareFlags::NEWUSER).map_err(refused)?;
    // Required before an unprivileged user may map groups; kernels before 3.19 have neither the file nor the rule.
    let _ = fs::write("/proc/self/setgroups", "deny");
    fs::write("/proc/self/uid_map", format!("0 {} 1", user.as_raw())).map_err(refused)?;
    fs::write("/proc/self/gid_map", format!("0 {} 1", group.as_raw())).map_err(refused)
}

fn split() -> Result<Entry, TestbedError> {
    let (lifeline, alive) = io::pipe().map_err(TestbedError::kernel("make a pipe"))?;
    match sys::fork().map_err(TestbedError::kernel("start the first process of the testbed"))? {
        Fork::Parent(init) => accompany(init, alive),
        Fork::Child => {
            drop(alive);
            init(lifeline)
        }
    }
}

// === The outer process ===

/// Forwards signals to `init` until it ends.
fn accompany(init: Pid, alive: PipeWriter) -> Result<Entry, TestbedError> {
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
    let code = code().map_err(TestbedError::kernel("wait for the testbed"));
    drop(alive);
    code.map(Entry::Ended)
}

/// Signal to forward; `None` for one from the terminal, which all processes have received already.
fn passed_on(arrival: &sys::Arrival) -> Option<Signal> {
    PASSED_ON.into_iter().find(|signal| signal.as_raw() == arrival.number && !arrival.by_kernel)
}

/// Exit code in the shell's convention.
fn exit_code(status: WaitStatus) -> i32 {
    status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
}

// === The first process of the namespace ===

fn init(lifeline: PipeReader) -> Result<Entry, TestbedError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| TestbedError::kernel("bind the testbed to its caller")(error.into()))?;
    // A closed pipe: the outer process died before the death signal was set.
    if is_ready(lifeline.as_fd()).map_err(TestbedError::kernel("look at a pipe"))? {
        return Ok(Entry::Ended(128 + Signal::KILL.as_raw()));
    }
    drop(lifeline);
    // For programs that read /proc; many containers refuse it, and nothing here depends on it.
    let _ = mount_proc();
    sys::raise("lo").map_err(TestbedError::kernel("bring the loopback device up"))?;
    match sys::fork().map_err(TestbedError::kernel("start the inner process of the testbed"))? {
        Fork::Child => Ok(Entry::Inside),
        Fork::Parent(inner) => {
            let code = reap_orphans(inner).map_err(TestbedError::kernel("wait for the inner process"))?;
            Ok(Entry::Ended(code))
        }
    }
}

/// Mounts the /proc of this PID namespace, invisible outside.
fn mount_proc() -> io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", "/proc", "proc", flags, None)?)
}

/// Reaps orphaned processes until `inner` ends; returns its exit code.
fn reap_orphans(inner: Pid) -> io::Result<i32> {
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

// === Refusals ===

/// Sysctls that limit the number of namespaces, by kind.
const LIMITS: [&str; 4] = [
    "user.max_user_namespaces",
    "user.max_net_namespaces",
    "user.max_mnt_namespaces",
    "user.max_pid_namespaces",
];

/// Error for a failed `unshare` or user mapping, with the setting to change. `knob` reads a sysctl by name.
fn refusal(error: &io::Error, is_root: bool, knob: impl Fn(&str) -> Option<String>) -> TestbedError {
    let is = |name: &str, value: &str| knob(name).is_some_and(|now| now.trim() == value);
    let instead = if is_root { "" } else { ", or run this command with sudo" };
    let permit = |name: &str, value: &str, who: &str| {
        format!("{who} does not permit namespaces: sudo sysctl -w {name}={value}{instead}")
    };
    let none_left = || LIMITS.iter().find(|limit| is(limit, "0"));
    TestbedError::Other(match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EUSERS | libc::EPERM | libc::EACCES) if none_left().is_some() => {
            let limit = none_left().unwrap_or(&LIMITS[0]);
            permit(limit, "10000", "this machine")
        }
        Some(libc::EPERM | libc::EACCES) if is("kernel.unprivileged_userns_clone", "0") => {
            permit("kernel.unprivileged_userns_clone", "1", "this kernel")
        }
        Some(libc::EPERM | libc::EACCES) if is("kernel.apparmor_restrict_unprivileged_userns", "1") => {
            permit("kernel.apparmor_restrict_unprivileged_userns", "0", "AppArmor")
        }
        Some(libc::EPERM | libc::EACCES) => {
            format!(
                "namespaces are not permitted here, as in most containers: start the container with --privileged{instead}"
            )
        }
        Some(libc::ENOSPC | libc::EUSERS) => format!(
            "too many namespaces, or nested too deep: raise {} or {}, or end programs that hold some",
            LIMITS[0], LIMITS[1]
        ),
        Some(libc::EINVAL) => {
            "this kernel has no user, network or PID namespaces (CONFIG_USER_NS, CONFIG_NET_NS, \
             CONFIG_PID_NS): use another"
                .into()
        }
        _ => format!("cannot create namespaces: {error}{instead}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(errno: i32, knobs: &[(&str, &str)]) -> String {
        let knob =
            |name: &str| knobs.iter().find(|(own, _)| *own == name).map(|(_, value)| format!("{value}\n"));
        refusal(&io::Error::from_raw_os_error(errno), false, knob).to_string()
    }

    #[test]
    fn the_refusal_names_the_sysctl_that_caused_it() {
        let debian = [("kernel.unprivileged_userns_clone", "0"), ("user.max_user_namespaces", "96365")];
        assert_eq!(
            said(libc::EPERM, &debian),
            "this kernel does not permit namespaces: sudo sysctl -w kernel.unprivileged_userns_clone=1, \
             or run this command with sudo"
        );
        let ubuntu = [
            ("kernel.unprivileged_userns_clone", "1"),
            ("kernel.apparmor_restrict_unprivileged_userns", "1"),
        ];
        assert!(said(libc::EPERM, &ubuntu).contains("kernel.apparmor_restrict_unprivileged_userns=0"));
        let hardened = [("user.max_user_namespaces", "0")];
        assert!(said(libc::ENOSPC, &hardened).contains("user.max_user_namespaces=10000"));
        assert!(
            said(libc::ENOSPC, &[("user.max_net_namespaces", "0")]).contains("user.max_net_namespaces=10000")
        );
    }

    #[test]
    fn root_gets_no_advice_to_use_sudo() {
        let line = refusal(&io::Error::from_raw_os_error(libc::EPERM), true, |_| None).to_string();
        assert!(line.ends_with("--privileged"), "{line}");
    }

    #[test]
    fn without_such_a_sysctl_the_refusal_names_other_causes() {
        assert!(said(libc::EPERM, &[]).contains("container"));
        assert!(said(libc::ENOSPC, &[("user.max_user_namespaces", "5")]).contains("nested"));
        assert!(said(libc::EINVAL, &[]).contains("CONFIG_USER_NS"));
        for errno in [libc::EPERM, libc::ENOSPC, libc::EINVAL, libc::ENOMEM] {
            let line = said(errno, &[]);
            assert!(!line.contains('\n'), "{line}");
        }
    }
}
