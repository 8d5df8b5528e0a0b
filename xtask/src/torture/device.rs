//! A device that fails: `strace` answers a write or a sync of the store's file with EIO instead of the kernel.
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
        // A group is synced once or twice, and written in some dozens of pieces. Early failures meet the start.
        let (call, most) = if random.bool() { ("fdatasync", 7.5) } else { ("pwrite64", 11.0) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 2048")]
        let first = (most * random.f64()).exp2() as u32;
        Self { call, first, for_good: random.bool() }
    }

    /// As `strace` is told.
    fn rule(self) -> String {
        let Self { call, first, for_good } = self;
        format!("inject={call}:error=EIO:when={first}{}", if for_good { "+" } else { "" })
    }
}

/// The device below a data directory.
pub(super) struct Device {
    store: PathBuf,
    /// The store's file as it was at the start.
    before: PathBuf,
    calls: PathBuf,
}

impl Device {
    pub(super) fn new(home: &Path, data_dir: &Path) -> Self {
        let (before, calls) = (home.join("before.redb"), home.join("calls"));
        Self { store: data_dir.join("store.redb"), before, calls }
    }

    /// What must stand before the broker's command for its device to fail like this.
    pub(super) fn prepare(&self, failure: Failure) -> Result<Command, String> {
        fs::copy(&self.store, &self.before).map_err(|error| format!("{}: {error}", self.store.display()))?;
        let mut command = Command::new("strace");
        // The broker stays our child (-D); only these calls on this file are looked at.
        command.args(["-D", "-f", "--seccomp-bpf", "-q", "-y", "-s", "0", "-e", "signal=none"]);
        command.args(["-e", "trace=pwrite64,fdatasync,fsync,ftruncate", "-e", &failure.rule()]);
        command.arg("-P").arg(&self.store).arg("-o").arg(&self.calls);
        Ok(command)
    }

    /// Looks at what a process did that has ended, and loses a part of what it had not synced: how many blocks.
    ///
    /// # Errors
    /// It tried again, or the device has not failed at all.
    pub(super) fn settle(&self, process_id: u32, random: &mut fastrand::Rng) -> Result<u32, String> {
        let calls = Calls::parse(&self.whole_log(process_id)?);
        if let Some(call) = calls.after_failure.first() {
            return Err(format!("the device failed, and the broker went on with {call}"));
        }
        if !calls.has_failed {
            return Err("the broker ended before its device failed".to_owned());
        }
        self.lose(&calls, random).map_err(|error| format!("{}: {error}", self.store.display()))
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
    fn lose(&self, calls: &Calls, random: &mut fastrand::Rng) -> std::io::Result<u32> {
        let before = fs::File::open(&self.before)?;
        let store = fs::File::options().write(true).open(&self.store)?;
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
