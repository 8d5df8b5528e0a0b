//! What a process costs: processor time and memory, as the kernel counts them.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::kernel;

/// USER_HZ of every Linux that Debian builds: what `/proc/stat` counts in.
const TICKS_PER_SECOND: f64 = 100.0;

/// One reading of every meter.
pub(super) struct Meter {
    at: Instant,
    broker: Duration,
    generator: Duration,
    /// Ticks of all processors that were not idle.
    busy: u64,
    /// The broker's ticks in user and in kernel mode.
    modes: (u64, u64),
}

/// Who used the processors, in processors: 1.0 is one core all the time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Shares {
    /// Seconds the shares are of.
    pub(super) seconds: f64,
    pub(super) broker: f64,
    /// The part of the broker's time spent in user mode, 0 to 1 (from 10 ms ticks).
    pub(super) broker_user_part: f64,
    pub(super) generator: f64,
    /// Everything else on the machine: what disturbs the measurement.
    pub(super) others: f64,
}

impl Meter {
    /// Reads the meters of the broker `pid`, of this process and of the machine.
    ///
    /// # Errors
    /// The broker is gone, or `/proc` is not there.
    pub(super) fn read(pid: u32) -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        let own = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let unreadable = || io::Error::other("/proc is not as proc(5) says");
        Ok(Self {
            broker: kernel::cpu_time(pid)?,
            generator: kernel::cpu_time(std::process::id())?,
            at: Instant::now(),
            busy: busy_ticks(&stat).ok_or_else(unreadable)?,
            modes: mode_ticks(&own).ok_or_else(unreadable)?,
        })
    }

    /// The broker's processor time since `earlier`.
    pub(super) fn broker_since(&self, earlier: &Self) -> Duration {
        self.broker.saturating_sub(earlier.broker)
    }

    /// Who used the processors since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Shares {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64();
        let broker = self.broker_since(earlier).as_secs_f64() / seconds;
        let generator = self.generator.saturating_sub(earlier.generator).as_secs_f64() / seconds;
        let busy = self.busy.saturating_sub(earlier.busy) as f64 / TICKS_PER_SECOND / seconds;
        let user = self.modes.0.saturating_sub(earlier.modes.0) as f64;
        let system = self.modes.1.saturating_sub(earlier.modes.1) as f64;
        Shares {
            seconds,
            broker,
            broker_user_part: if user + system > 0.0 { user / (user + system) } else { 0.0 },
            generator,
            others: (busy - broker - generator).max(0.0),
        }
    }
}

/// Waits until the machine is busy with less than a tenth of one processor, but not past `deadline`. Reads half a
/// second at a time: less would be a handful of ticks.
pub(super) fn wait_for_quiet(deadline: Instant) -> io::Result<()> {
    while Instant::now() < deadline {
        let before = Meter::read(std::process::id())?;
        std::thread::sleep(Duration::from_millis(500));
        // Both the broker's and the generator's share are this process: what it uses itself is not disturbance.
        if Meter::read(std::process::id())?.since(&before).others < 0.1 {
            break;
        }
    }
    Ok(())
}

/// The ticks of `/proc/stat`'s first line that were neither idle nor waiting for a disk.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is already in user.
    let (used, rest) = (fields.get(..3)?, fields.get(5..8)?);
    Some(used.iter().chain(rest).sum())
}

/// utime and stime of `/proc/PID/stat`. The command name before them may hold anything, brackets too.
fn mode_ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Memory of one process, bytes.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
pub(super) struct Memory {
    /// Resident set.
    pub(super) rss: u64,
    /// Resident set with shared pages divided among those who share them.
    pub(super) pss: u64,
}

impl Memory {
    /// The memory of process `pid` now, from `/proc/PID/smaps_rollup`.
    ///
    /// # Errors
    /// No such process, or not ours to look at.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        Self::parse(&text).ok_or_else(|| io::Error::other("smaps_rollup is not as proc(5) says"))
    }

    fn parse(rollup: &str) -> Option<Self> {
        Some(Self { rss: bytes(rollup, "Rss:")?, pss: bytes(rollup, "Pss:")? })
    }
}

/// What a resident set is made of, bytes.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
pub(super) struct Resident {
    /// Heap and stacks: what a process holds on to.
    pub(super) anonymous: u64,
    /// Pages of mapped files, which the system takes back when it needs room.
    pub(super) file: u64,
    /// The most the two and shared memory ever were together.
    pub(super) peak: u64,
}

impl Resident {
    /// That of process `pid` now, from `/proc/PID/status`.
    ///
    /// # Errors
    /// No such process.
    pub(super) fn of(pid: u32) -> Result<Self, String> {
        let text = fs::read_to_string(format!("/proc/{pid}/status"))
            .map_err(|error| format!("the broker is gone: {error}"))?;
        Self::parse(&text).ok_or_else(|| "/proc is not as proc(5) says".to_owned())
    }

    fn parse(status: &str) -> Option<Self> {
        Some(Self {
            anonymous: bytes(status, "RssAnon:")?,
            file: bytes(status, "RssFile:")?,
            peak: bytes(status, "VmHWM:")?,
        })
    }
}

/// The line `NAME  COUNT kB` of a file of proc(5).
fn bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Bytes that process `pid` has caused to be written to a device so far, what is not written back yet included.
///
/// # Errors
/// No such process, or not ours to look at.
pub(super) fn written(pid: u32) -> Result<u64, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/io"))
        .map_err(|error| format!("cannot see what the broker writes: {error}"))?;
    written_bytes(&text).ok_or_else(|| "/proc is not as proc(5) says".to_owned())
}

fn written_bytes(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("write_bytes:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Memory, Meter, Resident, busy_ticks, mode_ticks, written_bytes};

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
    fn written_bytes_are_those_for_the_device() {
        let io = "wchar: 5\nsyscw: 1\nwrite_bytes: 8192\ncancelled_write_bytes: 4096\n";
        assert_eq!(written_bytes(io), Some(8192));
        assert_eq!(written_bytes("wchar: 5\n"), None);
    }

    #[test]
    fn own_process_can_be_read() {
        let pid = std::process::id();
        let before = Meter::read(pid).expect("own meters");
        assert!(Memory::of(pid).expect("own memory").rss > 0);
        let shares = Meter::read(pid).expect("own meters").since(&before);
        assert!(shares.seconds > 0.0 && shares.broker >= 0.0);
    }
}
