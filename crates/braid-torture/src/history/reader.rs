//! Reader of the files of a history, merged by time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::FOLDER;
use super::event::{Event, Line};

/// Files of `DIR/history`, read line by line.
pub(super) struct Reader {
    files: Vec<Source>,
}

/// Completeness of a file after the last line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    /// The last line is cut off.
    pub(super) is_cut: bool,
    /// The last line is `end`.
    pub(super) has_end: bool,
}

struct Source {
    path: PathBuf,
    input: BufReader<File>,
    /// Current line, with its number from 1 and its time.
    text: Vec<u8>,
    number: u64,
    t: u64,
    ending: Ending,
}

/// The one field that the merge needs.
#[derive(Deserialize)]
struct Time {
    t: u64,
}

impl Reader {
    /// Opens all `*.jsonl` of `dir/history`.
    ///
    /// # Errors
    /// One line that names the folder or file.
    pub(super) fn open(dir: &Path) -> Result<Self, String> {
        let folder = dir.join(FOLDER);
        let cannot = |error| format!("cannot read {}: {error}", folder.display());
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                paths.push(path);
            }
        }
        if paths.is_empty() {
            return Err(format!("no history: {} has no file *.jsonl", folder.display()));
        }
        paths.sort();
        let files = paths.into_iter().map(Source::open).collect::<Result<_, _>>()?;
        Ok(Self { files })
    }

    /// Calls `handle` with the number of the file for each event, in the order of time; events of one time in the order
    /// of files. Returns the ending of each file.
    ///
    /// # Errors
    /// The first line that is malformed or that `handle` refuses, with its file and number.
    pub(super) fn merge(
        mut self,
        mut handle: impl FnMut(usize, &Line<'_>) -> Result<(), String>,
    ) -> Result<Vec<Ending>, String> {
        let mut heap = BinaryHeap::new();
        for (index, file) in self.files.iter_mut().enumerate() {
            if file.advance()? {
                heap.push(Reverse((file.t, index)));
            }
        }
        while let Some(Reverse((_, index))) = heap.pop() {
            let Some(file) = self.files.get_mut(index) else { continue };
            let line = serde_json::from_slice(&file.text).map_err(|error| file.wrong(error))?;
            handle(index, &line).map_err(|reason| file.wrong(reason))?;
            file.ending.has_end = matches!(line.event, Event::End {});
            if file.advance()? {
                heap.push(Reverse((file.t, index)));
            }
        }
        Ok(self.files.iter().map(|file| file.ending).collect())
    }
}

impl Source {
    fn open(path: PathBuf) -> Result<Self, String> {
        let input = File::open(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let ending = Ending { is_cut: false, has_end: false };
        Ok(Self { path, input: BufReader::new(input), text: Vec::new(), number: 0, t: 0, ending })
    }

    fn wrong(&self, reason: impl std::fmt::Display) -> String {
        format!("{}:{}: {reason}", self.path.display(), self.number)
    }

    /// Reads the next line; false at the end of the file.
    fn advance(&mut self) -> Result<bool, String> {
        self.text.clear();
        self.number += 1;
        let read = self.input.read_until(b'\n', &mut self.text);
        if read.map_err(|error| self.wrong(error))? == 0 {
            return Ok(false);
        }
        let is_last = self.text.pop_if(|byte| *byte == b'\n').is_none();
        let time = match serde_json::from_slice::<Time>(&self.text) {
            // Without its newline a line may be cut off, but not if it is a whole object.
            Err(error) if is_last && (error.is_eof() || std::str::from_utf8(&self.text).is_err()) => {
                self.ending = Ending { is_cut: true, has_end: false };
                return Ok(false);
            }
            parsed => parsed.map_err(|error| self.wrong(error))?,
        };
        if self.ending.has_end {
            return Err(self.wrong("an event after `end`, which must be the last line of its file"));
        }
        if time.t < self.t {
            return Err(self.wrong(format!(
                "t goes back from {} to {}: write lines in the order of time",
                self.t, time.t
            )));
        }
        self.t = time.t;
        Ok(true)
    }
}
