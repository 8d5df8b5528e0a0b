//! A disk that can be filled: a small file system in memory, in a mount namespace of this process and its children.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Size, much more than is stored in some rounds; a ballast file occupies the rest.
const SIZE: &str = "size=256m,mode=700";
/// Least free bytes without the ballast, which large messages need. The queues of offline subscribers, and with them
/// the store's file, grow from round to round.
const LEAST: u64 = 24 << 20;
/// Bytes by which the ballast grows at a time.
const PIECE: usize = 1 << 20;

/// The mounted file system; the kernel removes it with the last process in its namespace.
pub(crate) struct Disk {
    mount_point: PathBuf,
}

impl Disk {
    pub(crate) fn mount(mount_point: &Path) -> Result<Self, String> {
        fs::create_dir_all(mount_point).map_err(|error| format!("{}: {error}", mount_point.display()))?;
        mount_tmpfs(mount_point)?;
        Ok(Self { mount_point: mount_point.to_owned() })
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.mount_point.join("data")
    }

    fn ballast(&self) -> PathBuf {
        self.mount_point.join("ballast")
    }

    /// Fills the disk except for `left` bytes.
    pub(crate) fn fill(&self, left: u64) -> Result<(), String> {
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
                "the store left only {} MiB of the disk in memory ({SIZE}) before the ballast was written: ask for fewer \
                 rounds of `full` at once: torture --kind full:10,full:10, or torture-cluster --rounds-per-cluster 10",
                size >> 20
            ));
        }
        file.set_len(size.saturating_sub(left)).map_err(wrong)
    }

    /// Removes the ballast.
    pub(crate) fn clear(&self) -> Result<(), String> {
        fs::remove_file(self.ballast()).map_err(|error| format!("the ballast: {error}"))
    }

    /// Copies the broker's store to a directory outside.
    pub(crate) fn rescue(&self, to: &Path) -> Result<(), String> {
        for name in ["store.redb", "store.journal"] {
            fs::copy(self.data_dir().join(name), to.join(name))
                .map_err(|error| format!("{name} cannot be copied to {}: {error}", to.display()))?;
        }
        Ok(())
    }
}

/// Mounts a small file system in memory.
pub(crate) fn mount_tmpfs(mount_point: &Path) -> Result<(), String> {
    let mut command = Command::new("mount");
    let status = command.args(["-t", "tmpfs", "-o", SIZE, "torture"]).arg(mount_point).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("cannot start {command:?}: {error}")),
    }
}
