//! The few calls to the kernel that no library of the workspace wraps. Nothing else here is unsafe.
#![allow(unsafe_code, reason = "plain libc calls on local values; rustix and std offer none of them")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Raises this process's soft limit of open files to at least `wanted` (and the hard limit too, where that is
/// allowed). Children started later inherit it.
///
/// # Errors
/// The kernel refused, which means the hard limit is lower and this is not root.
pub(super) fn raise_open_files(wanted: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid, writable rlimit for the length of the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if limit.rlim_cur >= wanted {
        return Ok(());
    }
    limit.rlim_cur = wanted;
    limit.rlim_max = limit.rlim_max.max(wanted);
    // SAFETY: `limit` is a valid rlimit; the kernel only reads it.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The processor time a process has used so far, in user and kernel mode, over all its threads, dead ones
/// included: the process's CPU-time clock (clock_getcpuclockid(3)), exact to the nanosecond where
/// `/proc/PID/stat` counts ticks of 10 ms.
///
/// # Errors
/// No such process.
pub(super) fn cpu_time(pid: u32) -> io::Result<Duration> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is a valid, writable clockid_t for the length of the call.
    let code = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, writable timespec for the length of the call.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(time.tv_sec).map_err(io::Error::other)?;
    let nanoseconds = u32::try_from(time.tv_nsec).map_err(io::Error::other)?;
    Ok(Duration::new(seconds, nanoseconds))
}

/// Lets this thread's sleeps end on time instead of up to 50 us later, which is the kernel's default.
pub(super) fn sleep_exactly() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches only the calling thread. A refusal only costs
    // precision, which the report shows as late sends.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Sets the nice value of this thread and of the threads and processes it starts from now on.
///
/// # Errors
/// Below 0 takes root.
pub(super) fn nice(value: i32) -> io::Result<()> {
    // SAFETY: setpriority takes three integers and touches only the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, value) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Takes a file out of the page cache, as it is after the machine has started.
///
/// # Errors
/// The file cannot be written back.
pub(super) fn forget_pages(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    // Only pages that are written back can be forgotten.
    file.sync_all()?;
    // SAFETY: posix_fadvise takes integers; the file is open for the length of the call.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// A file system, as statfs(2) tells of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSystem {
    /// It is in memory: tmpfs or ramfs.
    pub(super) in_memory: bool,
    /// Bytes that a user may still write.
    pub(super) free: u64,
}

/// The file system that holds `path`.
///
/// # Errors
/// There is no such path.
pub(super) fn file_system(path: &Path) -> io::Result<FileSystem> {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all zeros is a valid statfs.
    let mut told: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends with a zero and `told` is a valid, writable statfs, both for the length of the call.
    if unsafe { libc::statfs(path.as_ptr(), &raw mut told) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let block = u64::try_from(told.f_bsize).map_err(io::Error::other)?;
    Ok(FileSystem {
        in_memory: told.f_type == libc::TMPFS_MAGIC || told.f_type == RAMFS_MAGIC,
        free: told.f_bavail.saturating_mul(block),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{cpu_time, file_system, forget_pages};

    #[test]
    fn proc_is_no_disk_with_room_and_a_missing_path_an_error() {
        assert_eq!(file_system(Path::new("/proc")).expect("mounted").free, 0);
        assert!(file_system(Path::new("/no/such/path")).is_err());
    }

    #[test]
    fn pages_of_a_file_are_forgotten_and_its_bytes_are_not() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), b"bytes").expect("written");
        forget_pages(file.path()).expect("forgotten");
        assert_eq!(std::fs::read(file.path()).expect("read"), b"bytes");
    }

    #[test]
    fn own_processor_time_grows_with_work() {
        let pid = std::process::id();
        let before = cpu_time(pid).expect("own clock");
        let mut sum = 0_u64;
        for number in 0..2_000_000_u64 {
            sum = std::hint::black_box(sum.wrapping_add(number));
        }
        assert!(cpu_time(pid).expect("own clock") > before, "{sum}");
    }

    #[test]
    fn unknown_process_is_an_error() {
        assert!(cpu_time(u32::MAX).is_err());
        // Above the largest pid_max there is, 2^22.
        assert!(cpu_time(5_000_000).is_err());
    }
}
