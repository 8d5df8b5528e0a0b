//! Files of the store in its data directory: names, creation, locking, replacement.

use std::fs;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use redb::StorageBackend;
use redb::backends::FileBackend;

use super::error::{OpenError, path_text};
use crate::private;

/// The tables.
const TABLES: &str = "store.redb";
/// Tables that are to replace them.
const NEW_TABLES: &str = "store.redb.new";
/// The journal of the write-ahead log.
const JOURNAL: &str = "store.journal";

/// Opens the tables' file in the directory; creates both if they do not exist.
pub(super) fn tables_device(directory: &Path) -> Result<(FileBackend, Arc<str>, FileId), OpenError> {
    let path = path_text(directory);
    let missing: Vec<_> = directory.ancestors().take_while(|path| !path.exists()).collect();
    private::create_directory(directory).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            OpenError::Directory { path: Arc::clone(&path), reason: error.to_string().into() }
        }
        _ => OpenError::of_io(&path, &error),
    })?;
    // Names of new directories, up to the first one that was there.
    for parent in missing.iter().filter_map(|path| path.parent()) {
        sync_directory(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
    }
    let opened = open_device(directory, TABLES, true)?;
    sync_directory(directory)?;
    Ok(opened)
}

/// Identity of an open file of tables.
pub(super) struct FileId(Option<(u64, u64)>);

impl FileId {
    fn of(metadata: &fs::Metadata) -> Self {
        #[cfg(unix)]
        let id = {
            use std::os::unix::fs::MetadataExt;
            Some((metadata.dev(), metadata.ino()))
        };
        #[cfg(not(unix))]
        let id = None;
        Self(id)
    }

    /// Checks, once the file is locked, that it still has the tables' name: an import may have replaced it between
    /// opening and locking, and nothing that it takes would ever be found.
    ///
    /// # Errors
    /// The store is in use.
    pub(super) fn check(&self, directory: &Path, path: &Arc<str>) -> Result<(), OpenError> {
        let present = directory.join(TABLES).metadata().ok().and_then(|metadata| Self::of(&metadata).0);
        if self.0 == present { Ok(()) } else { Err(OpenError::InUse(Arc::clone(path))) }
    }
}

/// True when the tables' name exists, as a store's file or anything else.
pub(super) fn exists(directory: &Path) -> bool {
    directory.join(TABLES).symlink_metadata().is_ok()
}

/// Bytes of the tables and the journal.
pub(super) fn size(directory: &Path) -> u64 {
    let files = [TABLES, JOURNAL].map(|name| directory.join(name).metadata());
    files.into_iter().flatten().map(|file| file.len()).sum()
}

/// Locks a file, which need not be a store, against other processes and against opening it in this one.
pub(super) fn lock(device: &FileBackend, path: &Arc<str>) -> Result<(), OpenError> {
    match device.try_lock_range(Bound::Unbounded, Bound::Unbounded) {
        Ok(true) => Ok(()),
        Ok(false) => Err(OpenError::InUse(Arc::clone(path))),
        Err(error) => Err(OpenError::Device { path: Arc::clone(path), reason: error.to_string().into() }),
    }
}

/// Creates an empty file beside the tables; [`replace_tables`] puts it in their place.
pub(super) fn new_device(directory: &Path) -> Result<(FileBackend, Arc<str>), OpenError> {
    let (device, path, _) = open_device(directory, NEW_TABLES, true)?;
    // An import that was interrupted may have left it.
    device.set_len(0).map_err(|error| OpenError::of_io(&path, &error))?;
    Ok((device, path))
}

/// Replaces the tables by the new file atomically: a power failure leaves one of them, complete. The new one is certain
/// to be left after [`sync_directory`].
pub(super) fn replace_tables(directory: &Path) -> Result<(), OpenError> {
    let path = directory.join(TABLES);
    fs::rename(directory.join(NEW_TABLES), &path).map_err(|error| OpenError::of_io(&path_text(&path), &error))
}

/// Removes the new file, and the tables too if they were created only to be locked.
pub(super) fn discard(directory: &Path, tables_too: bool) {
    // A file that cannot be removed is empty, or is overwritten the next time.
    let _ = fs::remove_file(directory.join(NEW_TABLES));
    if tables_too {
        let _ = fs::remove_file(directory.join(TABLES));
    }
}

/// Makes the names of new files durable.
pub(super) fn sync_directory(directory: &Path) -> Result<(), OpenError> {
    let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| OpenError::of_io(&path_text(directory), &error))
}

/// Opens the tables' file in the directory, which must exist.
pub(super) fn existing_device(directory: &Path) -> Result<(FileBackend, Arc<str>, FileId), OpenError> {
    open_device(directory, TABLES, false)
}

/// Opens the journal in the directory; without `create`, only if it exists. The lock of the tables' file covers it.
pub(super) fn journal_device(
    directory: &Path,
    create: bool,
) -> Result<Option<(FileBackend, Arc<str>)>, OpenError> {
    if !create && directory.join(JOURNAL).symlink_metadata().is_err() {
        return Ok(None);
    }
    let (device, path, _) = open_device(directory, JOURNAL, create)?;
    if create {
        sync_directory(directory)?;
    }
    Ok(Some((device, path)))
}

fn open_device(
    directory: &Path,
    name: &str,
    create: bool,
) -> Result<(FileBackend, Arc<str>, FileId), OpenError> {
    let file_path = directory.join(name);
    let mut options = private::options();
    options.read(true).write(true).create(create).truncate(false);
    let path = path_text(&file_path);
    if let Some(what) = other_kind(&file_path) {
        return Err(OpenError::NotAFile { path, what });
    }
    let file = options.open(&file_path).map_err(|error| match error.kind() {
        io::ErrorKind::NotADirectory => OpenError::of_io(&path_text(directory), &error),
        // The directory exists and takes no files, as a part of /proc.
        io::ErrorKind::NotFound if create => {
            OpenError::Directory { path: path_text(directory), reason: "no file can be made in it".into() }
        }
        _ => OpenError::of_io(&path, &error),
    })?;
    let id = FileId::of(&file.metadata().map_err(|error| OpenError::of_io(&path, &error))?);
    advise(&file, name == JOURNAL);
    let backend = FileBackend::new(file).map_err(|error| OpenError::of_database(&path, error))?;
    Ok((backend, path, id))
}

/// Drops the file's clean pages from the page cache, as far as the system does that, so that reads come from the
/// device: after a failed fsync some file systems keep pages as if they were written, and verifying those would prove
/// nothing. Dirty pages stay.
///
/// A journal is read without read-ahead: the system would cache that in large pieces, each of which is written back
/// whenever one block of it changes.
#[cfg(target_os = "linux")]
fn advise(file: &fs::File, is_journal: bool) {
    use rustix::fs::{Advice, fadvise};

    // Only advice: a system may refuse it.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
    if is_journal {
        let _ = fadvise(file, 0, None, Advice::Random);
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_: &fs::File, _: bool) {}

/// Kind of anything at the path that is neither a file nor a link to one; `None` for those and for nothing.
fn other_kind(path: &Path) -> Option<&'static str> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => None,
        Ok(found) if found.is_dir() => Some("a directory"),
        Ok(_) => Some("not a regular file"),
        Err(error) if error.kind() != io::ErrorKind::NotFound => None,
        Err(_) => path.symlink_metadata().is_ok().then_some("a link to nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_were_replaced_before_they_were_locked_are_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("a/b");
        let (_device, path, id) = tables_device(&inner).unwrap();
        assert!(id.check(&inner, &path).is_ok());
        new_device(&inner).unwrap();
        replace_tables(&inner).unwrap();
        assert!(matches!(id.check(&inner, &path), Err(OpenError::InUse(_))));
        discard(&inner, true);
        assert!(matches!(id.check(&inner, &path), Err(OpenError::InUse(_))));
    }
}
