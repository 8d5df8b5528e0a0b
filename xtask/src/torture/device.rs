//! A device that fails: `strace` answers a write or a sync of the store's files with EIO instead of the kernel.
//!
//! Why so: a device-mapper target that fails needs root and a kernel that has it, a FUSE its own file system, and the
//! broker's binary is the one to be tried, not one with a failing backend in it (which `braid-store`'s tests are for).
//! `strace` needs no privileges and comes with every distribution. What it cannot do is done afterwards: what the
//! broker had written and not synced when the device failed is partly put back to what was there before, as a kernel
//! does that drops pages which it could not write.

mod calls;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use calls::{BLOCK, Calls};

/// `strace` writes its last line soon after the broker's end.
const LIMIT: Duration = Duration::from_secs(20);

/// Whether the program is there that this needs.
pub(super) fn check() -> Result<(), String> {
    let mut command = Command::new("strace");
    let found = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => Ok(()),
        _ => Err("a dying device needs strace: apt-get install strace".to_owned()),
    }
}

/// What fails, counted for each thread from its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    /// The system call.
    call: &'static str,
    /// Of these, the first that fails.
    first: u32,
    /// All that follow fail as well. Otherwise only this one does, and who tried again would be told that all is well.
    for_good: bool,
}

impl Failure {
    pub(super) fn draw(random: &mut fastrand::Rng) -> Self {
        // A group is one write and one sync, what the tables get some dozens of writes. Early failures meet the start.
        let (call, most) = if random.bool() { ("fdatasync", 7.5) } else { ("pwrite64", 9.0) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 512")]
        let first = (most * random.f64()).exp2() as u32;
        Self { call, first, for_good: random.bool() }
    }

    /// As `strace` is told.
    fn rule(self) -> String {
        let Self { call, first, for_good } = self;
        format!("inject={call}:error=EIO:when={first}{}", if for_good { "+" } else { "" })
    }
}

/// The files of a store.
const FILES: [&str; 2] = ["store.redb", "store.journal"];

/// The device below a data directory.
pub(super) struct Device {
    data_dir: PathBuf,
    /// Where the store's files are as they were at the start.
    before: PathBuf,
    calls: PathBuf,
}

impl Device {
    pub(super) fn new(home: &Path, data_dir: &Path) -> Self {
        Self { data_dir: data_dir.to_owned(), before: home.join("before"), calls: home.join("calls") }
    }

    /// What must stand before the broker's command for its device to fail like this.
    pub(super) fn prepare(&self, failure: Failure) -> Result<Command, String> {
        fs::create_dir_all(&self.before).map_err(|error| format!("{}: {error}", self.before.display()))?;
        for name in FILES {
            let copied = fs::copy(self.data_dir.join(name), self.before.join(name));
            copied.map_err(|error| format!("{name}: {error}"))?;
        }
        let mut command = Command::new("strace");
        // The broker stays our child (-D); only these calls on these files are looked at.
        command.args(["-D", "-f", "--seccomp-bpf", "-q", "-y", "-s", "0", "-e", "signal=none"]);
        command.args(["-e", "trace=pwrite64,fdatasync,fsync,ftruncate", "-e", &failure.rule()]);
        for name in FILES {
            command.arg("-P").arg(self.data_dir.join(name));
        }
        command.arg("-o").arg(&self.calls);
        Ok(command)
    }

    /// Looks at what a process did that has ended, and loses a part of what it had not synced: how many blocks.
    ///
    /// # Errors
    /// It tried again, or the device has not failed at all.
    pub(super) fn settle(&self, process_id: u32, random: &mut fastrand::Rng) -> Result<u32, String> {
        let log = self.whole_log(process_id)?;
        let of_files = FILES.map(|name| (name, Calls::parse(&log, name)));
        // What the other thread has begun it may end; the file that failed is touched no more.
        if let Some(call) = of_files.iter().find_map(|(_, calls)| calls.after_failure.first()) {
            return Err(format!("the device failed, and the broker went on with {call}"));
        }
        if !of_files.iter().any(|(_, calls)| calls.has_failed) {
            return Err("the broker ended before its device failed".to_owned());
        }
        let lost = of_files
            .iter()
            .map(|(name, calls)| self.lose(name, calls, random).map_err(|error| format!("{name}: {error}")));
        lost.sum()
    }

    /// Everything that `strace` says of the process.
    fn whole_log(&self, process_id: u32) -> Result<String, String> {
        let process_id = process_id.to_string();
        // Its number is followed by as many blanks as align the columns.
        let is_last = |line: &str| {
            line.split_once(' ')
                .is_some_and(|(id, rest)| id == process_id && rest.trim_start().starts_with("+++"))
        };
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            let text = fs::read_to_string(&self.calls).map_err(|error| format!("strace: {error}"))?;
            if text.lines().any(is_last) {
                return Ok(text);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err("strace does not say how the broker ended".to_owned())
    }

    /// Puts half of the blocks back that were written since the last sync and whose content before that is known; how many.
    fn lose(&self, name: &str, calls: &Calls, random: &mut fastrand::Rng) -> std::io::Result<u32> {
        let before = fs::File::open(self.before.join(name))?;
        let store = fs::File::options().write(true).open(self.data_dir.join(name))?;
        let mut lost = 0;
        for block in calls.unsynced.difference(&calls.synced).filter(|_| random.bool()) {
            // What was not there yet is zero.
            let mut content = [0; BLOCK];
            let mut filled = 0;
            while filled < BLOCK {
                match before.read_at(&mut content[filled..], block * BLOCK as u64 + filled as u64)? {
                    0 => break,
                    read => filled += read,
                }
            }
            store.write_all_at(&content, block * BLOCK as u64)?;
            lost += 1;
        }
        Ok(lost)
    }
}
