//! Limits and file systems of the machine under measurement.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rlimit::Resource;
use rustix::fs::{Advice, fadvise, statfs};
use serde::Serialize;

/// Magic number of ramfs in statfs(2).
const RAMFS_MAGIC: i64 = 0x8584_58f6;
/// Magic number of tmpfs in statfs(2).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Raises the limit of open files for this process and its children to `connections` and some more. The hard limit is
/// raised where that is allowed.
///
/// # Errors
/// The hard limit is lower, and this user may not raise it.
pub(crate) fn raise_open_files(connections: u32) -> Result<(), String> {
    let wanted = u64::from(connections) + 1000;
    let raise = || -> io::Result<()> {
        let (soft, hard) = Resource::NOFILE.get()?;
        if soft >= wanted { Ok(()) } else { Resource::NOFILE.set(wanted, hard.max(wanted)) }
    };
    raise().map_err(|error| {
        format!(
            "cannot raise the limit of open files to {wanted}: {error}; raise it with `ulimit -Hn` as root, or use \
             --idle-connections"
        )
    })
}

/// Drops a file from the page cache, as after a start of the machine.
///
/// # Errors
/// The file cannot be written back.
pub(crate) fn drop_page_cache(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    // Dirty pages stay in the cache.
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

/// Bytes that a user may still write to the file system of `path`.
///
/// # Errors
/// No such path.
pub(crate) fn free_bytes(path: &Path) -> Result<u64, String> {
    let stat = statfs(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(stat.f_bavail.saturating_mul(u64::try_from(stat.f_bsize).unwrap_or(0)))
}

/// The directory `named`, or `usual` beside the built programs; creates it.
///
/// # Errors
/// The directory cannot be created, or is in memory, where fsync costs nothing.
pub(crate) fn disk_directory(named: Option<&Path>, usual: &str) -> Result<PathBuf, String> {
    let directory = match named {
        Some(directory) => directory.to_owned(),
        None => {
            let own = std::env::current_exe();
            own.map_err(|error| format!("cannot find this program: {error}"))?.with_file_name(usual)
        }
    };
    let failed = |error: io::Error| format!("cannot use {}: {error}", directory.display());
    fs::create_dir_all(&directory).map_err(failed)?;
    let kind = statfs(&directory).map_err(|error| failed(error.into()))?.f_type;
    if kind == TMPFS_MAGIC || kind == RAMFS_MAGIC {
        return Err(format!("{} is in memory: name a directory on a disk with --dir", directory.display()));
    }
    directory.canonicalize().map_err(failed)
}

/// Value of a reading of the broker, which fails when it has ended.
pub(crate) fn of_broker<T>(reading: io::Result<T>) -> Result<T, String> {
    reading.map_err(|error| format!("the broker has ended: {error}"))
}

/// Writes `report` as JSON.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_json(report: &impl Serialize, file: Option<&Path>) -> Result<(), String> {
    let Some(file) = file else { return Ok(()) };
    let text = serde_json::to_string_pretty(report).map_err(|error| error.to_string())? + "\n";
    fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{disk_directory, drop_page_cache, free_bytes};

    #[test]
    fn proc_is_no_disk_with_room_and_a_missing_path_an_error() {
        assert_eq!(free_bytes(Path::new("/proc")), Ok(0));
        assert!(free_bytes(Path::new("/no/such/path")).is_err());
    }

    #[test]
    fn pages_of_a_file_are_dropped_and_its_bytes_are_not() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), b"bytes").expect("written");
        drop_page_cache(file.path()).expect("dropped");
        assert_eq!(std::fs::read(file.path()).expect("read"), b"bytes");
    }

    #[test]
    fn a_directory_in_memory_is_refused() {
        // Linux has it everywhere that glibc's shared memory works.
        let shared_memory = Path::new("/dev/shm");
        if shared_memory.is_dir() {
            let refused = disk_directory(Some(shared_memory), "unused").expect_err("in memory");
            assert!(refused.contains("--dir"), "{refused}");
        }
    }
}
