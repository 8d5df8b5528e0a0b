//! The directory in which a broker receives large messages, seen from outside.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What the names of its files begin with, before the number of the process.
const NAME: &str = "braidmq-";
const EXTENSION: &str = "spool";
/// What is left of a process that was killed between making a file and taking its name away: no test can wait for that,
/// so we leave it. The first process of all is never a broker.
const ORPHAN: &str = "braidmq-1-0.spool";
/// A file of somebody else.
const FOREIGN: &str = "notes.txt";
/// For the last acknowledgement of a message that was delivered to be read.
const LIMIT: Duration = Duration::from_secs(20);

/// The spool of a broker under torture.
pub(super) struct Spool {
    place: PathBuf,
}

impl Spool {
    pub(super) fn new(data_dir: &Path) -> Self {
        Self { place: data_dir.join("spool") }
    }

    /// Leaves what a crash could have left, for the next start to find.
    pub(super) fn leave_orphan(&self) -> Result<(), String> {
        for name in [ORPHAN, FOREIGN] {
            let file = self.place.join(name);
            fs::write(&file, "").map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(())
    }

    /// Whether nothing is left of earlier processes, and nothing else was taken away.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check(&self, process_id: u32) -> Result<(), String> {
        let wrong = |error| format!("{}: {error}", self.place.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.place).map_err(wrong)? {
            names.push(entry.map_err(wrong)?.file_name().to_string_lossy().into_owned());
        }
        judge(&names, process_id)
    }

    /// Waits until the broker has no more messages in its spool than these.
    ///
    /// # Errors
    /// It keeps more.
    pub(super) fn wait_for_room(&self, process_id: u32, retained: usize) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let held = self.held(process_id)?;
            if held <= retained {
                return Ok(());
            }
            if began.elapsed() > LIMIT {
                let too_much =
                    format!("{held} large messages are in the spool, and {retained} can be retained");
                return Err(format!("everything was delivered: {too_much}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// How many files without a name the process has mapped.
    fn held(&self, process_id: u32) -> Result<usize, String> {
        let file = format!("/proc/{process_id}/maps");
        let maps = match fs::read_to_string(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err("the broker has ended".to_owned());
            }
            maps => maps.map_err(|error| format!("{file}: {error}"))?,
        };
        let place = self.place.to_string_lossy();
        Ok(maps.lines().filter(|line| line.contains(&*place) && line.ends_with("(deleted)")).count())
    }
}

fn judge(names: &[String], process_id: u32) -> Result<(), String> {
    if !names.iter().any(|name| name == FOREIGN) {
        return Err(format!("{FOREIGN} is gone, which is not the broker's"));
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
        let judge =
            |names: &[&str]| judge(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), 12);
        assert_eq!(judge(&[FOREIGN]), Ok(()));
        assert_eq!(judge(&[FOREIGN, "braidmq-12-7.spool"]), Ok(()));
        assert!(judge(&[]).is_err());
        for orphan in [ORPHAN, "braidmq-123-7.spool"] {
            assert!(judge(&[orphan, FOREIGN]).is_err_and(|wrong| wrong.starts_with(orphan)), "{orphan}");
        }
    }
}
