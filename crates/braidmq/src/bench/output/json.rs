//! File of `--json`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use serde::Serialize;

use crate::bench::Failure;

/// The file of `--json`, which is written at once or not at all.
#[derive(Debug)]
pub(in crate::bench) struct JsonFile {
    path: PathBuf,
}

impl JsonFile {
    /// Makes sure that the file can be written when the run ends. It is not touched.
    ///
    /// # Errors
    /// [`Failure::Json`]: there is no such directory, or it cannot be written to.
    pub(in crate::bench) fn prepare(path: PathBuf) -> Result<Self, Failure> {
        let file = Self { path };
        let checked = match fs::metadata(&file.path) {
            Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => Ok(()),
            _ => File::create(file.part()).and_then(|_| fs::remove_file(file.part())),
        };
        checked.map_err(|source| Failure::Json { path: file.path.clone(), source })?;
        Ok(file)
    }

    /// Writes `value` beside the file and renames it, so that no reader sees half of it.
    ///
    /// # Errors
    /// [`Failure::Json`].
    pub(in crate::bench) fn write(&self, value: &impl Serialize) -> Result<(), Failure> {
        self.replace(value).map_err(|source| Failure::Json { path: self.path.clone(), source })
    }

    fn replace(&self, value: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(value)?;
        text.push(b'\n');
        // A path that is no file, such as /dev/stdout or a pipe, must not be replaced by one.
        if fs::metadata(&self.path).is_ok_and(|found| !found.is_file()) {
            return File::options().write(true).open(&self.path)?.write_all(&text);
        }
        let part = self.part();
        let written = fs::write(&part, &text).and_then(|()| fs::rename(&part, &self.path));
        if written.is_err() {
            // The error that counts is the one that is returned.
            let _ = fs::remove_file(&part);
        }
        written
    }

    /// A name beside the file that no other run has.
    fn part(&self) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        self.path.with_file_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_and_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.json");
        fs::write(&path, "old").unwrap();
        let file = JsonFile::prepare(path.clone()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        file.write(&[1]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[\n  1\n]\n");
        let names: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["out.json"]);
    }

    #[test]
    fn an_unwritable_file_is_refused_before_the_run() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path().to_owned(), directory.path().join("none/out.json")] {
            let error = JsonFile::prepare(path.clone()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("cannot write --json {}: ", path.display())), "{error}");
        }
    }

    #[test]
    fn a_device_stays_what_it_is() {
        let file = JsonFile::prepare(PathBuf::from("/dev/null")).unwrap();
        file.write(&[1]).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
