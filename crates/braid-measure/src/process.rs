//! Processor time, memory and device writes of processes, as the kernel counts them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

/// USER_HZ of every Linux that Debian builds: the unit of `/proc/stat`.
const TICKS_PER_SECOND: f64 = 100.0;
/// Processors in use by other processes below which the machine counts as quiet.
const QUIET: f64 = 0.1;

/// Processor time that process `pid` has used so far in user and kernel mode, over all its threads, ended ones
/// included: the process's CPU-time clock (clock_getcpuclockid(3)), exact to the nanosecond where `/proc/PID/stat`
/// counts ticks of 10 ms.
///
/// # Errors
/// No such process.
#[allow(unsafe_code, reason = "libc calls on local values; rustix and std have neither")]
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
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

/// Cumulative processor time of a broker, of this process and of the machine at one instant.
pub struct CpuReading {
    at: Instant,
    broker: Duration,
    generator: Duration,
    /// Ticks of all processors that were not idle.
    busy: u64,
    /// Ticks of the broker in user and in kernel mode.
    modes: (u64, u64),
}

/// Use of the processors between two readings; 1.0 is one core all the time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CpuShares {
    /// Time between the readings.
    pub seconds: f64,
    /// Cores that the broker used.
    pub broker: f64,
    /// Part of the broker's time in user mode, 0 to 1 (from ticks of 10 ms).
    pub broker_user_part: f64,
    /// Cores that this process used.
    pub generator: f64,
    /// Cores that all other processes used, which disturb the measurement.
    pub others: f64,
}

impl CpuShares {
    /// Processor time of the broker.
    #[must_use]
    pub fn broker_nanoseconds(&self) -> f64 {
        self.broker * self.seconds * 1e9
    }
}

impl CpuReading {
    /// Reads the processor times of the broker `pid`, of this process and of the machine.
    ///
    /// # Errors
    /// The broker has ended, or `/proc` is missing.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::of_all(&[pid])
    }

    /// Reads the processor times of a broker of several processes, of this process and of the machine.
    ///
    /// # Errors
    /// A process of the broker has ended, or `/proc` is missing.
    pub fn of_all(pids: &[u32]) -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        let (mut broker, mut modes) = (Duration::ZERO, (0, 0));
        for &pid in pids {
            let own = fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let (user, system) = mode_ticks(&own).ok_or_else(malformed)?;
            modes = (modes.0 + user, modes.1 + system);
            broker += cpu_time(pid)?;
        }
        Ok(Self {
            broker,
            generator: cpu_time(std::process::id())?,
            at: Instant::now(),
            busy: busy_ticks(&stat).ok_or_else(malformed)?,
            modes,
        })
    }

    /// Shares of the processors since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> CpuShares {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64();
        let broker = self.broker.saturating_sub(earlier.broker).as_secs_f64() / seconds;
        let generator = self.generator.saturating_sub(earlier.generator).as_secs_f64() / seconds;
        let busy = self.busy.saturating_sub(earlier.busy) as f64 / TICKS_PER_SECOND / seconds;
        let user = self.modes.0.saturating_sub(earlier.modes.0) as f64;
        let system = self.modes.1.saturating_sub(earlier.modes.1) as f64;
        CpuShares {
            seconds,
            broker,
            broker_user_part: if user + system > 0.0 { user / (user + system) } else { 0.0 },
            generator,
            others: (busy - broker - generator).max(0.0),
        }
    }
}

/// Waits until other processes use less than a tenth of one processor, but not past `deadline`. Reads half a second
/// at a time: less would be a handful of ticks.
///
/// # Errors
/// `/proc` is missing.
pub fn wait_for_quiet(deadline: Instant) -> io::Result<()> {
    while Instant::now() < deadline {
        let before = CpuReading::of(std::process::id())?;
        std::thread::sleep(Duration::from_millis(500));
        // The shares of broker and generator are both this process, whose own use is no disturbance.
        if CpuReading::of(std::process::id())?.since(&before).others < QUIET {
            break;
        }
    }
    Ok(())
}

/// Ticks in the first line of `/proc/stat` that were neither idle nor waiting for a disk.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is already in user.
    let (used, rest) = (fields.get(..3)?, fields.get(5..8)?);
    Some(used.iter().chain(rest).sum())
}

/// utime and stime of `/proc/PID/stat`. The command name before them may hold any byte, brackets too.
fn mode_ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Resident memory of one process, bytes.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
pub struct Memory {
    /// Resident set.
    pub rss: u64,
    /// Proportional set: shared pages are divided among the processes that share them.
    pub pss: u64,
}

impl Memory {
    /// Memory of process `pid` now, from `/proc/PID/smaps_rollup`.
    ///
    /// # Errors
    /// No such process, or no permission.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?).ok_or_else(malformed)
    }

    fn parse(rollup: &str) -> Option<Self> {
        Some(Self { rss: bytes(rollup, "Rss:")?, pss: bytes(rollup, "Pss:")? })
    }
}

/// Parts of the resident set of one process, bytes.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
pub struct Resident {
    /// Heap and stacks.
    pub anonymous: u64,
    /// Pages of mapped files, which the system reclaims when it needs memory.
    pub file: u64,
    /// Peak of the resident set.
    pub peak: u64,
}

impl Resident {
    /// Resident set of process `pid` now, from `/proc/PID/status`.
    ///
    /// # Errors
    /// No such process.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/status"))?).ok_or_else(malformed)
    }

    fn parse(status: &str) -> Option<Self> {
        Some(Self {
            anonymous: bytes(status, "RssAnon:")?,
            file: bytes(status, "RssFile:")?,
            peak: bytes(status, "VmHWM:")?,
        })
    }
}

/// Value of the line `NAME  COUNT kB` of a file of proc(5), in bytes.
fn bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Bytes that process `pid` has caused to be written to a device so far, dirty pages included.
///
/// # Errors
/// No such process, or no permission.
pub fn written(pid: u32) -> io::Result<u64> {
    written_bytes(&fs::read_to_string(format!("/proc/{pid}/io"))?).ok_or_else(malformed)
}

fn written_bytes(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("write_bytes:"))?.trim().parse().ok()
}

/// Number of open file descriptors of process `pid`.
///
/// # Errors
/// No such process, or no permission.
pub fn descriptors(pid: u32) -> io::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Number of mapped files below `directory` that process `pid` holds although they are deleted.
///
/// # Errors
/// No such process, or no permission.
pub fn deleted_mappings(pid: u32, directory: &Path) -> io::Result<usize> {
    let directory = directory.to_string_lossy();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    Ok(maps.lines().filter(|line| line.contains(&*directory) && line.ends_with("(deleted)")).count())
}

/// Counter of the time that one runnable thread has waited for a processor: `/proc/thread-self/schedstat`, held open.
#[derive(Debug)]
pub struct RunDelay(File);

impl RunDelay {
    /// Counter of the calling thread; `None` if the kernel has none.
    #[must_use]
    pub fn of_this_thread() -> Option<Self> {
        File::open("/proc/thread-self/schedstat").ok().and_then(Self::of)
    }

    /// Counter in `file`, in the form of `schedstat`; `None` if the kernel does not count.
    #[must_use]
    pub fn of(file: File) -> Option<Self> {
        let counter = Self(file);
        counter.read().is_some().then_some(counter)
    }

    /// Time waited so far.
    #[must_use]
    pub fn read(&self) -> Option<Duration> {
        let mut line = [0; 64];
        let length = self.0.read_at(&mut line, 0).ok()?;
        run_delay(str::from_utf8(&line[..length]).ok()?)
    }
}

/// Second number of `schedstat`, nanoseconds; `None` if the kernel does not count it, for then all three are 0.
fn run_delay(schedstat: &str) -> Option<Duration> {
    let mut numbers = schedstat.split_whitespace();
    let (_, waited, slices) = (numbers.next()?, numbers.next()?, numbers.next()?);
    (slices != "0").then_some(Duration::from_nanos(waited.parse().ok()?))
}

fn malformed() -> io::Error {
    io::Error::other("/proc is not as proc(5) describes it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_idle_and_waiting_out() {
        let stat = "cpu  1 20 300 4000 50000 600000 7000000 80000000 9 9\ncpu0 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(87_600_321));
        assert_eq!(busy_ticks("intr 5"), None);
    }

    #[test]
    fn modes_are_found_behind_any_command_name() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 111 222 0 0 20 0 1 0\n";
        assert_eq!(mode_ticks(stat), Some((111, 222)));
    }

    #[test]
    fn memory_is_read_in_bytes() {
        let rollup =
            "55d0-7ffe ---p 0 00:00 0 [rollup]\nRss:    2048 kB\nPss:     100 kB\nPss_Dirty:  1 kB\n";
        assert_eq!(Memory::parse(rollup), Some(Memory { rss: 2 << 20, pss: 100 << 10 }));
        assert_eq!(Memory::parse("Rss: 1 kB\n"), None);
    }

    #[test]
    fn resident_set_is_read_in_its_parts() {
        let status = "VmHWM:\t    3072 kB\nVmRSS:\t 9 kB\nRssAnon:\t    1024 kB\nRssFile:\t    2048 kB\n";
        let expected = Resident { anonymous: 1 << 20, file: 2 << 20, peak: 3 << 20 };
        assert_eq!(Resident::parse(status), Some(expected));
        assert_eq!(Resident::parse("VmHWM: 1 kB\n"), None);
    }

    #[test]
    fn peak_memory_is_parsed_or_absent() {
        let peak = |status| bytes(status, "VmHWM:");
        assert_eq!(peak("Name:\tx\nVmHWM:\t    1234 kB\nVmRSS:\t 9 kB\n"), Some(1234 * 1024));
        for text in ["", "Name:\tx\n", "VmHWM:\n", "VmHWM:\t-1 kB\n"] {
            assert_eq!(peak(text), None, "{text:?}");
        }
    }

    #[test]
    fn parses_the_line_and_nothing_else() {
        let anonymous = |status| bytes(status, "RssAnon:");
        let status = "VmRSS:\t  9 kB\nRssAnon:\t    1234 kB\nRssFile:\t 5 kB\n";
        assert_eq!(anonymous(status), Some(1234 * 1024));
        assert_eq!(anonymous("RssAnon:\t 12\n"), None);
        assert_eq!(anonymous(""), None);
    }

    #[test]
    fn written_bytes_are_those_for_the_device() {
        let io = "wchar: 5\nsyscw: 1\nwrite_bytes: 8192\ncancelled_write_bytes: 4096\n";
        assert_eq!(written_bytes(io), Some(8192));
        assert_eq!(written_bytes("wchar: 5\n"), None);
    }

    #[test]
    fn run_delay_is_the_second_number_unless_the_kernel_does_not_count() {
        assert_eq!(run_delay("123 4567 8\n"), Some(Duration::from_nanos(4567)));
        assert_eq!([run_delay("0 0 0\n"), run_delay("1 2\n"), run_delay("1 x 1\n")], [None; 3]);
    }

    #[test]
    fn own_process_can_be_read() {
        let pid = std::process::id();
        let before = CpuReading::of(pid).expect("own processor time");
        assert!(Memory::of(pid).expect("own memory").rss > 0);
        assert!(descriptors(pid).expect("own descriptors") > 2);
        let shares = CpuReading::of(pid).expect("own processor time").since(&before);
        assert!(shares.seconds > 0.0 && shares.broker >= 0.0);
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
    fn several_processes_are_one_broker() {
        let pid = std::process::id();
        let (one, two) = (CpuReading::of(pid), CpuReading::of_all(&[pid, pid]));
        let (one, two) = (one.expect("own processor time"), two.expect("own processor time"));
        assert!(two.broker >= 2 * one.broker && two.modes.0 >= 2 * one.modes.0);
        assert!(CpuReading::of_all(&[pid, 5_000_000]).is_err());
    }

    #[test]
    fn unknown_process_is_an_error() {
        assert!(cpu_time(u32::MAX).is_err());
        assert!(descriptors(u32::MAX).is_err());
        // Above the largest pid_max there is, 2^22.
        assert!(cpu_time(5_000_000).is_err());
    }
}
