//! The few calls to the kernel that no library of the workspace wraps. Nothing else here is unsafe.
#![allow(unsafe_code, reason = "plain libc calls on local values; rustix and std offer none of them")]

use std::io;
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

#[cfg(test)]
mod tests {
    use super::cpu_time;

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
