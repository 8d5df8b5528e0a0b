//! A failing device: `strace` answers a write or a sync of the store's files with EIO in place of the kernel.
//!
//! A failing device-mapper target would need root and a kernel that has it, FUSE a file system of its own, and the
//! broker's release binary is under test, not one with a failing backend (which the tests of `braid-store` have).
//! `strace` needs no privileges and every distribution has it. Afterwards some of the blocks that were written and not
//! synced are restored to their former contents, as by a kernel that drops pages which it could not write.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for the last line of `strace`, which follows the broker's end.
const LIMIT: Duration = Duration::from_secs(20);

/// Checks that `strace` is installed.
pub(crate) fn check() -> Result<(), String> {
    let mut command = Command::new("strace");
    let found = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => Ok(()),
        _ => Err("a dying device needs strace: apt-get install strace".to_owned()),
    }
}

/// Failure of a system call, counted for each thread from its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    /// System call.
    call: &'static str,
    /// Number of the first call that fails.
    first: u32,
    /// True if all later calls fail as well. Otherwise a second attempt would succeed.
    for_good: bool,
}

impl Failure {
    pub(crate) fn draw(random: &mut fastrand::Rng) -> Self {
        // A group commit is one write and one sync, a checkpoint some dozens of writes. Early failures meet the start.
        let (call, most) = if random.bool() { ("fdatasync", 7.5) } else { ("pwrite64", 9.0) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 512")]
        let first = (most * random.f64()).exp2() as u32;
        Self { call, first, for_good: random.bool() }
    }

    /// Option of `strace`.
    fn rule(self) -> String {
        let Self { call, first, for_good } = self;
        format!("inject={call}:error=EIO:when={first}{}", if for_good { "+" } else { "" })
    }
}

/// Files of a store.
const FILES: [&str; 2] = ["store.redb", "store.journal"];

/// Device below a data directory.
pub(crate) struct Device {
    data_dir: PathBuf,
    /// Copies of the store's files from the start.
    before: PathBuf,
    calls: PathBuf,
}

impl Device {
    pub(crate) fn new(home: &Path, data_dir: &Path) -> Self {
        Self { data_dir: data_dir.to_owned(), before: home.join("before"), calls: home.join("calls") }
    }

    /// Wrapper of the broker's command in which its device fails like this.
    pub(crate) fn prepare(&self, failure: Failure) -> Result<Command, String> {
        fs::create_dir_all(&self.before).map_err(|error| format!("{}: {error}", self.before.display()))?;
        for name in FILES {
            let copied = fs::copy(self.data_dir.join(name), self.before.join(name));
            copied.map_err(|error| format!("{name}: {error}"))?;
        }
        let mut command = Command::new("strace");
        // The broker stays a child of this process (-D); only these calls on these files are traced.
        command.args(["-D", "-f", "--seccomp-bpf", "-q", "-y", "-s", "0", "-e", "signal=none"]);
        command.args(["-e", "trace=pwrite64,fdatasync,fsync,ftruncate", "-e", &failure.rule()]);
        for name in FILES {
            command.arg("-P").arg(self.data_dir.join(name));
        }
        command.arg("-o").arg(&self.calls);
        Ok(command)
    }

    /// Checks the calls of an ended process and restores some of the blocks that were not synced; returns their number.
    ///
    /// # Errors
    /// The broker used the file after its failure, or the device has not failed.
    pub(crate) fn lose_unsynced(&self, process_id: u32, random: &mut fastrand::Rng) -> Result<u32, String> {
        let log = self.whole_log(process_id)?;
        let of_files = FILES.map(|name| (name, Calls::parse(&log, name)));
        // The other file may still be in use; the failed one must not.
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

    /// Output of `strace` about the process.
    fn whole_log(&self, process_id: u32) -> Result<String, String> {
        let process_id = process_id.to_string();
        // Blanks behind the process ID align the columns.
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

    /// Restores half of the blocks that were written since the last sync and not before; returns their number.
    fn lose(&self, name: &str, calls: &Calls, random: &mut fastrand::Rng) -> std::io::Result<u32> {
        let before = fs::File::open(self.before.join(name))?;
        let store = fs::File::options().write(true).open(self.data_dir.join(name))?;
        let mut lost = 0;
        for block in calls.unsynced.difference(&calls.synced).filter(|_| random.bool()) {
            // Blocks behind the former end are zero.
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

/// Bytes that a device writes atomically.
pub(crate) const BLOCK: usize = 4096;

/// Calls on a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    /// Blocks written and synced.
    pub(crate) synced: BTreeSet<u64>,
    /// Blocks written since the last sync.
    pub(crate) unsynced: BTreeSet<u64>,
    pub(crate) has_failed: bool,
    /// Writes and syncs after the failure.
    pub(crate) after_failure: Vec<String>,
}

impl Calls {
    /// Parses lines like `12 pwrite64(3</store.redb>, ""..., 100, 200) = 100` about the file of this name.
    pub(crate) fn parse(log: &str, name: &str) -> Self {
        let mut calls = Self::default();
        let file = format!("/{name}>");
        // Threads whose last call is about the file: a line that completes a call does not name the file.
        let mut threads = BTreeSet::new();
        for line in log.lines() {
            let Some((thread, call)) = line.split_once(' ') else { continue };
            let call = call.trim_start();
            if call.starts_with("+++") || call.starts_with("---") {
                continue;
            }
            if !call.starts_with("<... ") {
                if call.contains(&file) {
                    threads.insert(thread);
                } else {
                    threads.remove(thread);
                }
            }
            if !threads.contains(thread) {
                continue;
            }
            if calls.has_failed {
                calls.after_failure.push(call.to_owned());
            } else if call.ends_with("(INJECTED)") {
                calls.has_failed = true;
            } else {
                calls.note(call);
            }
        }
        calls
    }

    fn note(&mut self, call: &str) {
        if let Some(blocks) = written(call) {
            self.unsynced.extend(blocks);
        }
        // `fdatasync(..)`, or `<... fdatasync resumed>)` in the line that completes the call.
        let is_sync = call.trim_start_matches("<... ").trim_start_matches('f').trim_start_matches("data");
        if is_sync.starts_with("sync") && call.ends_with("= 0") {
            self.synced.append(&mut self.unsynced);
        }
    }
}

/// Blocks that a call writes; `None` for other calls.
fn written(call: &str) -> Option<impl Iterator<Item = u64>> {
    let (_, rest) = call.strip_prefix("pwrite64(")?.split_once(">, ")?;
    let (arguments, _) = rest.split_once(')').or_else(|| rest.split_once(" <unfinished"))?;
    let mut numbers = arguments.rsplit(", ");
    let offset: u64 = numbers.next()?.parse().ok()?;
    let length: u64 = numbers.next()?.parse().ok()?;
    let block = BLOCK as u64;
    Some(offset / block..(offset + length).div_ceil(block))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_written_since_the_last_sync_are_unsynced() {
        let calls = Calls::parse(
            concat!(
                "7 pwrite64(3</a.redb>, \"\"..., 8192, 4096) = 8192\n",
                "7 fdatasync(3</a.redb>)             = 0\n",
                "7 ftruncate(3</a.redb>, 90000) = 0\n",
                "7 pwrite64(3</a.redb>, \"\"..., 320, 0) = 320\n",
                "7 pwrite64(3</a.redb>, \"\"..., 2, 8191) = 2\n",
                "7 fdatasync(3</a.redb>) = -1 EIO (Input/output error) (INJECTED)\n",
                "7 +++ exited with 74 +++\n",
            ),
            "a.redb",
        );
        assert_eq!(calls.synced, [1, 2].into());
        assert_eq!(calls.unsynced, [0, 1, 2].into());
        assert!(calls.has_failed && calls.after_failure.is_empty(), "{calls:?}");
    }

    #[test]
    fn calls_after_the_failure_are_listed() {
        let calls = Calls::parse(
            concat!(
                "7 pwrite64(3</a.redb>, \"\"..., 8, 0) = -1 EIO (Input/output error) (INJECTED)\n",
                "9 fdatasync(3</a.redb>) = 0\n",
            ),
            "a.redb",
        );
        assert_eq!(calls.after_failure, ["fdatasync(3</a.redb>) = 0"]);
        assert!(calls.unsynced.is_empty());
    }

    #[test]
    fn a_sync_that_did_not_return_has_synced_nothing() {
        let calls = Calls::parse(
            concat!(
                "7 pwrite64(3</a.redb>, \"\"..., 8, 0 <unfinished ...>\n",
                "7 fdatasync(3</a.redb> <unfinished ...>\n",
            ),
            "a.redb",
        );
        assert_eq!((calls.synced, calls.unsynced), ([].into(), [0].into()));
    }

    #[test]
    fn calls_on_other_files_do_not_count() {
        let log = concat!(
            "7 pwrite64(3</a.redb>, \"\"..., 8, 0) = 8\n",
            "8 fdatasync(4</b.redb> <unfinished ...>\n",
            "7 pwrite64(3</a.redb>, \"\"..., 8, 0) = -1 EIO (Input/output error) (INJECTED)\n",
            "8 <... fdatasync resumed>) = 0\n",
        );
        let (calls, other) = (Calls::parse(log, "a.redb"), Calls::parse(log, "b.redb"));
        assert!(calls.has_failed && calls.after_failure.is_empty() && calls.synced.is_empty(), "{calls:?}");
        assert_eq!(other, Calls::default());
    }

    #[test]
    fn a_sync_may_end_in_a_later_line() {
        let calls = Calls::parse(
            concat!(
                "7 pwrite64(3</a.redb>, \"\"..., 8, 0) = 8\n",
                "7 fdatasync(3</a.redb> <unfinished ...>\n",
                "7 <... fdatasync resumed>) = 0\n",
            ),
            "a.redb",
        );
        assert_eq!((calls.synced, calls.unsynced), ([0].into(), [].into()));
    }
}
