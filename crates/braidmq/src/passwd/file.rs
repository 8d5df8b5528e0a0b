//! Password file on the disk: read, and replaced at once.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use super::{Failure, complain};

/// Permissions of a file without its type.
const MODE: u32 = 0o7777;
/// Permission of everyone to read.
const READ_BY_OTHERS: u32 = 0o004;

/// Reads a password file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error| cannot("read", path, &error);
    // Opening a pipe would wait for its writer.
    let metadata = fs::metadata(path).map_err(failed)?;
    check(path, &metadata)?;
    fs::read(path).map_err(failed)
}

/// Warns if everyone can read the file.
pub(crate) fn warn_of_readers(path: &Path) {
    if fs::metadata(path).is_ok_and(|metadata| metadata.mode() & READ_BY_OTHERS != 0) {
        let name = path.display();
        complain(&format!(
            "warning: everyone on this machine can read {name} and guess passwords: run `chmod o-rwx {name}`"
        ));
    }
}

/// Password file or list of rules that no other process of this program edits at the same time.
pub(crate) struct LockedFile {
    /// As the user named it.
    name: PathBuf,
    /// Without symbolic links, so that their target is replaced.
    path: PathBuf,
    /// Locked folder. The file itself is another one after it was replaced, and a file for the lock alone would stay
    /// behind.
    folder: File,
    text: Vec<u8>,
    /// `None` if there is no file yet.
    metadata: Option<Metadata>,
}

impl LockedFile {
    /// Waits for others that edit a file of this folder, and reads the file.
    pub(crate) fn open(name: &Path) -> Result<Self, Failure> {
        let path = name.canonicalize().map_err(|error| cannot("read", name, &error))?;
        let folder = lock_folder(name, &path)?;
        let text = read(name)?;
        let metadata = fs::metadata(&path).map_err(|error| cannot("read", name, &error))?;
        Ok(Self { name: name.to_owned(), path, folder, text, metadata: Some(metadata) })
    }

    /// Does as [`Self::open`], or begins a new file.
    pub(crate) fn open_or_create(name: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| cannot("make", name, &error);
        if fs::symlink_metadata(name).is_ok() {
            return Self::open(name);
        }
        let parent = name.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file_name = name.file_name().ok_or_else(|| failed(ErrorKind::InvalidFilename.into()))?;
        let path = parent.canonicalize().map_err(failed)?.join(file_name);
        let folder = lock_folder(name, &path)?;
        // Another one may have made it in the meantime.
        if fs::symlink_metadata(name).is_ok() {
            drop(folder);
            return Self::open(name);
        }
        Ok(Self { name: name.to_owned(), path, folder, text: Vec::new(), metadata: None })
    }

    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Replaces the file at once, with the same owner and permissions; a new one is readable by its owner only.
    pub(crate) fn replace(self, text: &[u8]) -> Result<(), Failure> {
        let failed = |error: io::Error| cannot("write", &self.name, &error);
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let mut whole = tempfile::Builder::new().prefix(".braidmq-").tempfile_in(folder).map_err(failed)?;
        whole.write_all(text).map_err(failed)?;
        if let Some(metadata) = &self.metadata {
            keep_owner(&self.name, whole.as_file(), metadata)?;
            let mut permissions = metadata.permissions();
            std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, metadata.mode() & MODE);
            whole.as_file().set_permissions(permissions).map_err(failed)?;
        }
        whole.as_file().sync_all().map_err(failed)?;
        whole.persist(&self.path).map_err(|error| failed(error.error))?;
        self.folder.sync_all().map_err(failed)
    }
}

/// Gives a new file the owner and group of the old one.
fn keep_owner(name: &Path, file: &File, old: &Metadata) -> Result<(), Failure> {
    let new = file.metadata().map_err(|error| cannot("write", name, &error))?;
    if (new.uid(), new.gid()) == (old.uid(), old.gid()) {
        return Ok(());
    }
    fchown(file, Some(old.uid()), Some(old.gid())).map_err(|error| {
        let (name, uid) = (name.display(), old.uid());
        Failure::new(format!("cannot keep the owner of {name} ({error}): run this as user {uid} or as root"))
    })
}

fn lock_folder(name: &Path, path: &Path) -> Result<File, Failure> {
    let locked = File::open(path.parent().unwrap_or(Path::new("/"))).and_then(|folder| {
        folder.lock()?;
        Ok(folder)
    });
    locked.map_err(|error| cannot("lock the folder of", name, &error))
}

fn check(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    if metadata.is_file() {
        return Ok(());
    }
    Err(Failure::new(format!("{} is a folder, pipe or device: name a file", path.display())))
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot {what} {}: {error}", path.display()))
}
