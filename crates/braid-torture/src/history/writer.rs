//! Writer of histories.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

use super::FOLDER;
use super::event::{Event, Line};

/// Writer of one file.
#[derive(Debug)]
pub struct Writer {
    file: File,
}

impl Writer {
    /// Creates `dir/history/<name>.jsonl`, which must be new.
    ///
    /// # Errors
    /// One line with the folder.
    pub fn create(dir: &Path, name: &str) -> Result<Self, String> {
        let folder = dir.join(FOLDER);
        let wrong = |error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(wrong)?;
        let file = File::options().create_new(true).append(true).open(folder.join(format!("{name}.jsonl")));
        Ok(Self { file: file.map_err(wrong)? })
    }

    /// Appends an event with the time of now; each line is one write to the file.
    ///
    /// # Errors
    /// The file takes no more.
    pub fn write(&mut self, event: Event<'_>) -> Result<(), String> {
        let line = Line { t: monotonic(), event };
        let mut bytes = serde_json::to_vec(&line).map_err(|error| error.to_string())?;
        bytes.push(b'\n');
        self.file.write_all(&bytes).map_err(|error| format!("the history cannot be written: {error}"))
    }
}

/// `CLOCK_MONOTONIC`, nanoseconds.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::super::event::Phase;
    use super::*;

    #[test]
    fn the_checker_reads_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(dir.path(), "x").unwrap();
        writer.write(Event::Fault { name: "full".into(), on: "nats-b".into(), phase: Phase::Begin }).unwrap();
        writer.write(Event::End {}).unwrap();
        let text = fs::read_to_string(dir.path().join("history/x.jsonl")).unwrap();
        let line = text.lines().next().unwrap();
        assert!(line.ends_with(r#","kind":"fault","name":"full","on":"nats-b","phase":"begin"}"#), "{line}");
        let counts = check(dir.path()).unwrap().counts;
        assert_eq!((counts.events, counts.faults), (2, 1));
        assert!(Writer::create(dir.path(), "x").is_err(), "no two clients of one name");
    }
}
