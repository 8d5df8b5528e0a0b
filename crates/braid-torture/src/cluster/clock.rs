//! Wall clock of a broker that can jump. libfaketime, preloaded into the process, reads the distance from a file.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder with a folder of libraries for each architecture, as Debian has it.
const LIBRARIES: &str = "/usr/lib";
/// Place of the library in such a folder.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";
/// Folder in which the library leaves files of each process that is killed.
const SHARED: &str = "/dev/shm";

/// Wall clock of one process after the other.
#[derive(Debug)]
pub(crate) struct WallClock {
    library: PathBuf,
    file: PathBuf,
}

impl WallClock {
    /// A clock that is right, with its distance in `file`.
    pub(crate) fn new(file: PathBuf) -> Result<Self, String> {
        let clock = Self { library: library(Path::new(LIBRARIES))?, file };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets the distance from the true time, seconds. The process notices within a second.
    pub(crate) fn set(&self, seconds: i64) -> Result<(), String> {
        // The library may read at any time.
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n"))
            .and_then(|()| fs::rename(&new, &self.file))
            .map_err(|error| format!("{}: {error}", self.file.display()))
    }

    /// Tests whether a process has the clock: a library that does not fit is left out with no more than a warning.
    pub(crate) fn is_of(&self, process: u32) -> bool {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        let library = self.library.canonicalize().unwrap_or_default();
        maps.lines().any(|line| line.ends_with(&*library.to_string_lossy()))
    }

    /// Gives the clock to the processes of a command. Their monotonic clock does not jump.
    pub(crate) fn preload(&self, command: &mut Command) {
        let (file, library) = (OsString::from(&self.file), OsString::from(&self.library));
        command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", file);
        command.env("FAKETIME_CACHE_DURATION", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
}

/// Hides the shared memory of this machine from this process and its children, so that nothing stays in it.
pub(crate) fn mount_shared_memory() -> Result<(), String> {
    crate::disk::mount_tmpfs(Path::new(SHARED))
}

/// The library for this architecture.
fn library(libraries: &Path) -> Result<PathBuf, String> {
    let folders = fs::read_dir(libraries).into_iter().flatten().flatten();
    let is_own = |name: OsString| name.to_string_lossy().starts_with(std::env::consts::ARCH);
    let own = folders.filter(|folder| is_own(folder.file_name()));
    let mut found = own.map(|folder| folder.path().join(LIBRARY)).filter(|library| library.is_file());
    found.next().ok_or_else(|| {
        format!("clocks need {}/*/{LIBRARY}: install the package faketime", libraries.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_the_clock_is_late_or_early() {
        let dir = tempfile::tempdir().unwrap();
        let clock = WallClock::new(dir.path().join("clock")).unwrap();
        let told = || {
            let mut command = Command::new("date");
            clock.preload(command.arg("+%s"));
            String::from_utf8(command.output().unwrap().stdout).unwrap().trim().parse::<i64>().unwrap()
        };
        assert!(!clock.is_of(std::process::id()));
        for distance in [0, 7_200, -7_200] {
            clock.set(distance).unwrap();
            let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs().cast_signed();
            assert!((0..60).contains(&(told() - now - distance)), "{distance}");
        }
    }

    #[test]
    fn a_machine_without_the_library_is_told_its_package() {
        let dir = tempfile::tempdir().unwrap();
        let refused = library(dir.path()).unwrap_err();
        assert!(refused.ends_with("install the package faketime"), "{refused}");
    }
}
