//! Checks of the directory in which a broker spools large messages.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use braid_measure::process::deleted_mappings;

/// Prefix of the names of spool files, before the process ID.
const NAME: &str = "braidmq-";
const EXTENSION: &str = "spool";
/// File of a process that was killed between creating and unlinking it. The chance is too small to wait for, so the
/// test leaves one; process 1 is never a broker.
const ORPHAN: &str = "braidmq-1-0.spool";
/// A file of another program.
const FOREIGN: &str = "notes.txt";
/// Time limit until the broker has read the last acknowledgement.
const LIMIT: Duration = Duration::from_secs(20);

/// Spool directory of the broker under test.
pub(crate) struct Spool {
    directory: PathBuf,
}

impl Spool {
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self { directory: data_dir.join("spool") }
    }

    /// Leaves a file of a crashed broker and a foreign file for the next start to find.
    pub(crate) fn leave_orphan(&self) -> Result<(), String> {
        for name in [ORPHAN, FOREIGN] {
            let file = self.directory.join(name);
            fs::write(&file, "").map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(())
    }

    /// Checks that no file of an earlier process is left and no foreign file was removed.
    ///
    /// # Errors
    /// Description of the fault.
    pub(crate) fn check(&self, process_id: u32) -> Result<(), String> {
        let wrong = |error| format!("{}: {error}", self.directory.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(wrong)? {
            names.push(entry.map_err(wrong)?.file_name().to_string_lossy().into_owned());
        }
        check_names(&names, process_id)
    }

    /// Waits until the broker holds at most this many messages in its spool.
    ///
    /// # Errors
    /// More messages after the time limit.
    pub(crate) fn wait_for_room(&self, process_id: u32, retained: usize) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let held = self.held(process_id)?;
            if held <= retained {
                return Ok(());
            }
            if began.elapsed() > LIMIT {
                let too_much =
                    format!("{held} large messages are in the spool, and {retained} can be retained");
                return Err(format!("every message was delivered, but {too_much}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Number of unlinked spool files that the process has mapped.
    fn held(&self, process_id: u32) -> Result<usize, String> {
        deleted_mappings(process_id, &self.directory).map_err(|error| match error.kind() {
            ErrorKind::NotFound => "the broker has ended".to_owned(),
            _ => format!("/proc/{process_id}/maps: {error}"),
        })
    }
}

fn check_names(names: &[String], process_id: u32) -> Result<(), String> {
    if !names.iter().any(|name| name == FOREIGN) {
        return Err(format!("{FOREIGN} is gone, which another program owns"));
    }
    let own = format!("{NAME}{process_id}-");
    let is_orphan =
        |name: &&String| name.starts_with(NAME) && name.ends_with(EXTENSION) && !name.starts_with(&own);
    match names.iter().find(is_orphan) {
        Some(orphan) => Err(format!("{orphan} is still in the spool")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_running_process_may_have_files_and_others_keep_theirs() {
        let check = |names: &[&str]| {
            check_names(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), 12)
        };
        assert_eq!(check(&[FOREIGN]), Ok(()));
        assert_eq!(check(&[FOREIGN, "braidmq-12-7.spool"]), Ok(()));
        assert!(check(&[]).is_err());
        for orphan in [ORPHAN, "braidmq-123-7.spool"] {
            assert!(check(&[orphan, FOREIGN]).is_err_and(|wrong| wrong.starts_with(orphan)), "{orphan}");
        }
    }
}
