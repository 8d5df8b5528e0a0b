//! A disk that can be filled: a small file system in memory, which only this program and its children see.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Much more than a broker keeps in some rounds: the ballast takes what is left of it, and gives it back.
const SIZE: &str = "size=256m,mode=700";
/// So much must be left of it, or nobody gets a large message through even without the ballast. What waits for readers who
/// are away, and with it the store's file, grows from round to round.
const LEAST: u64 = 24 << 20;
/// The ballast grows by so much at a time.
const PIECE: usize = 1 << 20;

/// Starts this program again where it may mount something; returns only when that fails, with the reason.
pub(super) fn enter_house() -> String {
    // Root of a container may have lost the first, and everybody else never had the second.
    let Some(flags) = ["-Urm", "-m"].into_iter().find(|flags| is_allowed(flags)) else {
        return "a full disk needs `unshare -Urm` and `mount` of util-linux, and this machine refuses them: allow user \
                namespaces (sysctl kernel.unprivileged_userns_clone=1, or \
                kernel.apparmor_restrict_unprivileged_userns=0), or be root"
            .to_owned();
    };
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return format!("cannot find this program: {error}"),
    };
    let mut command = Command::new("unshare");
    command.arg(flags).arg(own).args(std::env::args_os().skip(1)).arg("--inside");
    format!("cannot start {command:?}: {}", command.exec())
}

/// Whether a file system can be mounted after `unshare` with these flags.
fn is_allowed(flags: &str) -> bool {
    let mut command = Command::new("unshare");
    command.args([flags, "mount", "-t", "tmpfs", "torture", "/mnt"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The mounted file system; it goes with the last process that sees it.
pub(super) struct Disk {
    place: PathBuf,
}

impl Disk {
    pub(super) fn mount(place: &Path) -> Result<Self, String> {
        fs::create_dir_all(place).map_err(|error| format!("{}: {error}", place.display()))?;
        let mut command = Command::new("mount");
        let status = command.args(["-t", "tmpfs", "-o", SIZE, "torture"]).arg(place).status();
        match status {
            Ok(status) if status.success() => Ok(Self { place: place.to_owned() }),
            Ok(status) => Err(format!("{command:?} ended with {status}")),
            Err(error) => Err(format!("cannot start {command:?}: {error}")),
        }
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.place.join("data")
    }

    fn ballast(&self) -> PathBuf {
        self.place.join("ballast")
    }

    /// Takes all the room, and gives so many bytes of it back.
    pub(super) fn fill(&self, left: u64) -> Result<(), String> {
        let wrong = |error| format!("the ballast: {error}");
        let mut file = File::create(self.ballast()).map_err(wrong)?;
        let piece = vec![0; PIECE];
        let mut size = 0_u64;
        loop {
            match file.write(&piece) {
                Ok(written) => size += written as u64,
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => return Err(wrong(error)),
            }
        }
        if size < LEAST {
            return Err(format!(
                "the store left only {} MiB of the disk in memory ({SIZE}) before anything was wrong with it: ask for fewer \
                 rounds of `full` at once, for example --kind full:10,full:10",
                size >> 20
            ));
        }
        file.set_len(size.saturating_sub(left)).map_err(wrong)
    }

    /// Gives all of it back.
    pub(super) fn clear(&self) -> Result<(), String> {
        fs::remove_file(self.ballast()).map_err(|error| format!("the ballast: {error}"))
    }

    /// Copies the broker's store to where it stays.
    pub(super) fn rescue(&self, to: &Path) -> Result<(), String> {
        for name in ["store.redb", "store.journal"] {
            fs::copy(self.data_dir().join(name), to.join(name))
                .map_err(|error| format!("{name} cannot be copied to {}: {error}", to.display()))?;
        }
        Ok(())
    }
}
