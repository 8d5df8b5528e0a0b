//! System calls without a safe binding, and waits for descriptors.
#![expect(unsafe_code, reason = "fork, unshare, signal masks, signalfd, wait4, interface flags and ethtool")]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::ptr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{Pid, Signal};
use rustix::thread::UnshareFlags;

use crate::wire::sys::{self as wire, check};

// === Processes ===

/// Side of a fork.
pub(super) enum Fork {
    Parent(Pid),
    Child,
}

/// Whether this process has more than one thread.
pub(super) fn has_threads() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() > 1)
}

/// Forks this process.
///
/// # Errors
/// The process has more than one thread: locks that others hold would stay locked in the child.
pub(super) fn fork() -> io::Result<Fork> {
    if has_threads() {
        return Err(io::Error::other("this program has started threads"));
    }
    // SAFETY: with a single thread no lock is held by another, so that the child may go on with everything.
    let id = check(unsafe { libc::fork() })?;
    let id = i32::try_from(id).map_err(io::Error::other)?;
    Ok(Pid::from_raw(id).map_or(Fork::Child, Fork::Parent))
}

/// Moves the calling thread, or process where the kind demands it, into new namespaces of the kinds `flags`.
pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: what is unsafe is to leave the descriptor table, and no caller does so.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// Reaps the child `id` once it has ended; returns its status and its user and system time.
///
/// Its `ru_maxrss` is not used: it includes the memory of the parent before `exec`.
pub(super) fn wait_with_time(id: Pid) -> io::Result<(ExitStatus, Duration)> {
    let mut status = 0;
    // SAFETY: `rusage` is plain numbers, for which all zeros is a value.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    loop {
        // SAFETY: both pointers are to values of their own that live until the call is over.
        match check(unsafe { libc::wait4(id.as_raw_nonzero().get(), &raw mut status, 0, &raw mut usage) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    Ok((ExitStatus::from_raw(status), duration(usage.ru_utime) + duration(usage.ru_stime)))
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
        + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

// === Signals ===

fn signal_set(signals: &[Signal]) -> libc::sigset_t {
    // SAFETY: `sigset_t` is plain bits, for which all zeros is a value, and these calls only write it.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, signal.as_raw());
        }
        set
    }
}

fn mask(how: libc::c_int, signals: &[Signal]) -> io::Result<()> {
    let set = signal_set(signals);
    // SAFETY: the set lives until the call is over, and the old one is not asked for.
    match unsafe { libc::pthread_sigmask(how, &raw const set, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Blocks signals.
pub(super) fn block(signals: &[Signal]) -> io::Result<()> {
    mask(libc::SIG_BLOCK, signals)
}

/// Unblocks signals.
pub(super) fn unblock(signals: &[Signal]) -> io::Result<()> {
    mask(libc::SIG_UNBLOCK, signals)
}

/// Restores the default action of SIGCHLD: a parent may have set it to ignore, which discards exit codes of children.
pub(super) fn notice_children() {
    // SAFETY: the default action runs no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Restores the default action of SIGINT for `command`: background jobs of a shell inherit it as ignored.
pub(super) fn make_interruptible(command: &mut Command) {
    let reset = || {
        // SAFETY: the default action runs no code of ours.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: between fork and exec `reset` only calls signal, which is async-signal-safe.
    unsafe { command.pre_exec(reset) };
}

/// Signalfd: blocked signals are read from it.
pub(super) struct Signals(OwnedFd);

/// Received signal.
pub(super) struct Arrival {
    pub(super) number: i32,
    /// Whether the kernel sent it, as a terminal does to its whole foreground process group.
    pub(super) by_kernel: bool,
}

impl Signals {
    /// Opens a descriptor for `signals`, which must be blocked.
    pub(super) fn open(signals: &[Signal]) -> io::Result<Self> {
        let set = signal_set(signals);
        // SAFETY: the set lives until the call is over.
        let fd = check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) })?;
        let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made the descriptor, and it has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits for the next signal.
    pub(super) fn next(&self) -> io::Result<Arrival> {
        // SAFETY: the record is plain numbers, for which all zeros is a value.
        let mut record: libc::signalfd_siginfo = unsafe { mem::zeroed() };
        let size = size_of_val(&record);
        loop {
            // SAFETY: the kernel writes at most `size` bytes, which is the size of the record.
            let read = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut record).cast(), size) };
            let Err(error) = usize::try_from(read).map_err(|_| io::Error::last_os_error()) else { break };
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let number = i32::try_from(record.ssi_signo).map_err(io::Error::other)?;
        Ok(Arrival { number, by_kernel: record.ssi_code == libc::SI_KERNEL })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

// === Descriptors ===

/// Waits until a descriptor is readable or closed by its peer; returns which are.
pub(super) fn ready<const N: usize>(descriptors: [BorrowedFd<'_>; N]) -> io::Result<[bool; N]> {
    loop {
        match look(&descriptors, None) {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// Variant of [`ready`] that waits at most `most`; all may be `false` then.
pub(super) fn ready_within<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    most: Duration,
) -> io::Result<[bool; N]> {
    let most = Timespec::try_from(most).map_err(io::Error::other)?;
    match look(&descriptors, Some(&most)) {
        Err(Errno::INTR) => Ok([false; N]),
        outcome => Ok(outcome?),
    }
}

/// Whether `descriptor` is readable now, or closed by its peer.
pub(super) fn is_ready(descriptor: BorrowedFd<'_>) -> io::Result<bool> {
    const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    let [ready] = look(&[descriptor], Some(&AT_ONCE))?;
    Ok(ready)
}

fn look<const N: usize>(
    descriptors: &[BorrowedFd<'_>; N],
    timeout: Option<&Timespec>,
) -> Result<[bool; N], Errno> {
    let mut asked = descriptors.each_ref().map(|descriptor| PollFd::new(descriptor, PollFlags::IN));
    poll(&mut asked, timeout)?;
    Ok(asked.map(|one| !one.revents().is_empty()))
}

// === Devices ===

/// Request for `device` in the namespace of the calling thread.
fn request(device: &str) -> io::Result<libc::ifreq> {
    let name = wire::ifname(device).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(wire::request(&name))
}

/// Brings `device` up.
pub(super) fn raise(device: &str) -> io::Result<()> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut request = request(device)?;
    // SAFETY: both calls read and write one `ifreq`, which lives until they are over; the first sets the flags.
    unsafe {
        check(libc::ioctl(any.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request))?;
        request.ifr_ifru.ifru_flags |= libc::c_short::try_from(libc::IFF_UP).map_err(io::Error::other)?;
        check(libc::ioctl(any.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request))?;
    }
    Ok(())
}

// linux/ethtool.h, which libc does not have.
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;

/// # Safety
/// `words` must begin with an ethtool command and be as long as what the kernel reads and writes for it.
unsafe fn ethtool(device: &str, words: &mut [u32]) -> io::Result<()> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut request = request(device)?;
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: one `ifreq` that points at `words`, both of which live until the call is over.
    check(unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) })?;
    Ok(())
}

/// Names of the kernel's device features, by number.
pub(super) fn feature_names(device: &str) -> io::Result<Vec<String>> {
    // struct ethtool_sset_info: command, reserved, a mask of 64 bits, a count for each set bit.
    let [low, high] =
        if cfg!(target_endian = "little") { [1 << ETH_SS_FEATURES, 0] } else { [0, 1 << ETH_SS_FEATURES] };
    let mut count = [ETHTOOL_GSSET_INFO, 0, low, high, 0];
    // SAFETY: the mask has one bit, so that one count is written.
    unsafe { ethtool(device, &mut count) }?;
    let names = usize::try_from(count[4]).map_err(io::Error::other)?;
    // struct ethtool_gstrings: command, set, count, the names.
    let mut words = vec![0; 3 + names * (ETH_GSTRING_LEN / size_of::<u32>())];
    words[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count[4]]);
    // SAFETY: there is room for as many names as the kernel has just counted; it does not get more while it runs.
    unsafe { ethtool(device, &mut words) }?;
    let bytes: Vec<u8> = words[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let name = |bytes: &[u8]| {
        let text: Vec<u8> = bytes.iter().copied().take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&text).into_owned()
    };
    Ok(bytes.chunks(ETH_GSTRING_LEN).map(name).collect())
}

/// Whether each of the first `features` features of `device` is enabled.
pub(super) fn features_on(device: &str, features: usize) -> io::Result<Vec<bool>> {
    /// available, requested, active, never changed
    const BLOCK: usize = 4;
    let blocks = features.div_ceil(32);
    let mut words = vec![0; 2 + blocks * BLOCK];
    words[..2].copy_from_slice(&[ETHTOOL_GFEATURES, u32::try_from(blocks).map_err(io::Error::other)?]);
    // SAFETY: the kernel writes at most as many blocks as the second word says.
    unsafe { ethtool(device, &mut words) }?;
    Ok((0..features).map(|feature| words[2 + feature / 32 * BLOCK + 2] >> (feature % 32) & 1 == 1).collect())
}

/// Disables the features of `device` that `unwanted` marks; fixed ones stay.
pub(super) fn switch_off(device: &str, unwanted: &[bool]) -> io::Result<()> {
    /// valid, requested
    const BLOCK: usize = 2;
    let blocks = unwanted.len().div_ceil(32);
    let mut words = vec![0; 2 + blocks * BLOCK];
    words[..2].copy_from_slice(&[ETHTOOL_SFEATURES, u32::try_from(blocks).map_err(io::Error::other)?]);
    for (feature, _) in unwanted.iter().enumerate().filter(|(_, unwanted)| **unwanted) {
        words[2 + feature / 32 * BLOCK] |= 1 << (feature % 32);
    }
    // SAFETY: the kernel reads as many blocks as the second word says.
    unsafe { ethtool(device, &mut words) }
}
