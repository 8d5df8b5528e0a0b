//! Large packets in files: a [`Spool`] on a directory.

mod map;
mod room;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_proto::decoder::{Spool, SpoolError, SpooledPacket};
use bytes::Bytes;
use memmap2::Mmap;
use thiserror::Error;

use self::room::Room;

/// What the names of our files begin and end with: nothing else is ever removed.
const NAME: (&str, &str) = ("braidmq-", ".spool");

/// Numbers the files of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// How a [`FileSpool`] works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolOptions {
    /// Packets of more bytes are spooled.
    pub threshold: usize,
    /// Bytes of all packets together.
    pub bytes: u64,
    /// Bytes that are left free on the file system.
    pub keep_free: u64,
}

/// Why a directory cannot be a spool: one line.
#[derive(Debug, Error)]
#[error(
    "large messages cannot be received in {place} ({source}): make it a directory that the broker may write to, \
         with room, or name another"
)]
pub struct SpoolOpenError {
    place: String,
    source: io::Error,
}

/// Receives large packets into files without a name, and maps them once they are whole.
///
/// A file is unlinked before anything is written to it: when its last map or descriptor goes, however the process ends,
/// so does it.
#[derive(Debug)]
pub struct FileSpool {
    directory: PathBuf,
    threshold: usize,
    room: Arc<Room>,
}

/// A file that is being written. Dropping it gives its room back.
#[derive(Debug)]
struct Receiving {
    /// `None` once it is mapped.
    file: Option<File>,
    len: usize,
    /// Bytes of room that it has.
    taken: u64,
    /// Of that: what it was promised before it is written. Only a payload that cannot be refused is promised anything.
    promised: u64,
    /// Whoever holds the payload instead says so, once for all of them.
    is_quiet: bool,
    room: Arc<Room>,
}

/// A whole packet.
struct Mapped {
    map: Mmap,
    /// Its room, which goes with it.
    _receiving: Receiving,
}

impl FileSpool {
    /// Makes the directory if it is not there, removes what a crash may have left in it, and tries whether a file can be
    /// written and mapped.
    ///
    /// # Errors
    /// What the system has against it.
    pub fn open(directory: &Path, options: SpoolOptions) -> Result<Self, SpoolOpenError> {
        let SpoolOptions { threshold, bytes, keep_free } = options;
        let room = Arc::new(Room::new(bytes, keep_free, map::most() / 2));
        let spool = Self { directory: directory.to_owned(), threshold, room };
        spool
            .prepare()
            .map_err(|source| SpoolOpenError { place: directory.display().to_string(), source })?;
        Ok(spool)
    }

    fn prepare(&self) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if is_ours(&entry.file_name().to_string_lossy()) && entry.file_type()?.is_file() {
                remove(&entry.path())?;
            }
        }
        let mut file = self.create()?;
        file.write_all(b"?")?;
        map::map(file, 1).map(drop)
    }

    /// A file that nothing is in.
    fn receive(&self, is_quiet: bool) -> io::Result<Receiving> {
        let room = self.room.clone();
        room.add_file()?;
        // From here on it gives back what it has.
        let mut receiving = Receiving { file: None, len: 0, taken: 0, promised: 0, is_quiet, room };
        receiving.file = Some(self.create()?);
        Ok(receiving)
    }

    /// A new file without a name.
    fn create(&self) -> io::Result<File> {
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let (head, tail) = NAME;
            let path = self.directory.join(format!("{head}{}-{number}{tail}", std::process::id()));
            match File::options().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => {
                    remove(&path)?;
                    return Ok(file);
                }
                // Of another process that has the same number, in a container for instance.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_ours(name: &str) -> bool {
    name.starts_with(NAME.0) && name.ends_with(NAME.1)
}

/// Two brokers that share a directory may both remove a file.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Spool for FileSpool {
    fn threshold(&self) -> usize {
        self.threshold
    }

    fn begin(&self) -> Result<Box<dyn SpooledPacket>, SpoolError> {
        let receiving = self.receive(false).map_err(|error| refused(&self.room, &error))?;
        Ok(Box::new(receiving))
    }

    fn keep(&self, length: u64) -> Result<Box<dyn SpooledPacket>, SpoolError> {
        let mut receiving = self.receive(true).map_err(|error| reason(&error))?;
        receiving.promise(length).map_err(|error| reason(&error))?;
        Ok(Box::new(receiving))
    }

    fn used(&self) -> u64 {
        self.room.used()
    }

    fn refused(&self) -> u64 {
        self.room.refused()
    }
}

impl Receiving {
    fn promise(&mut self, length: u64) -> io::Result<()> {
        let Some(file) = &self.file else { return Err(ErrorKind::NotFound.into()) };
        self.room.take_reserve(file, length)?;
        (self.taken, self.promised) = (length, length);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(ErrorKind::NotFound.into()) };
        let missing = (self.len as u64 + bytes.len() as u64).saturating_sub(self.taken);
        if missing > 0 {
            self.room.take(file, missing)?;
            self.taken += missing;
        }
        self.len += bytes.len();
        file.write_all(bytes)?;
        let kept = self.promised.min(bytes.len() as u64);
        self.promised -= kept;
        self.room.keep_promise(kept);
        Ok(())
    }

    fn refused(&self, error: &io::Error) -> SpoolError {
        if self.is_quiet { reason(error) } else { refused(&self.room, error) }
    }
}

impl SpooledPacket for Receiving {
    fn append(&mut self, bytes: &[u8]) -> Result<(), SpoolError> {
        self.write(bytes).map_err(|error| self.refused(&error))
    }

    fn finish(mut self: Box<Self>) -> Result<Bytes, SpoolError> {
        let mapped = match self.file.take() {
            Some(file) => map::map(file, self.len),
            None => Err(ErrorKind::NotFound.into()),
        };
        let map = mapped.map_err(|error| self.refused(&error))?;
        Ok(Bytes::from_owner(Mapped { map, _receiving: *self }))
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.room.keep_promise(self.promised);
        self.room.give_back(self.taken);
        self.room.remove_file();
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

/// Want of room is counted, and told by whoever asks how much there is of it.
fn refused(room: &Room, error: &io::Error) -> SpoolError {
    let reason = reason(error);
    if reason == SpoolError::Full {
        room.note_refused();
    } else {
        tracing::warn!(%error, "a large message cannot be received");
    }
    reason
}

fn reason(error: &io::Error) -> SpoolError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => SpoolError::Full,
        kind => SpoolError::Failed(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Past what the system allows a process to map, it would refuse memory of any kind.
    #[test]
    fn there_are_only_so_many_files() {
        let directory = tempfile::tempdir().unwrap();
        let room = Arc::new(Room::new(1 << 20, 0, 2));
        let spool = FileSpool { directory: directory.path().to_owned(), threshold: 0, room };
        let mut whole = spool.begin().unwrap();
        whole.append(b"whole").unwrap();
        let whole = whole.finish().unwrap();
        let kept = spool.keep(4).unwrap();
        assert_eq!(spool.begin().map(drop), Err(SpoolError::Full));
        assert_eq!((spool.keep(4).map(drop), spool.refused()), (Err(SpoolError::Full), 1));
        drop(kept);
        let other = spool.begin().unwrap();
        drop(whole);
        spool.begin().unwrap();
        fs::remove_dir_all(directory.path()).unwrap();
        assert_eq!(spool.begin().map(drop), Err(SpoolError::Failed(ErrorKind::NotFound)));
        drop(other);
        fs::create_dir(directory.path()).unwrap();
        let both = (spool.begin(), spool.begin());
        assert!(both.0.is_ok() && both.1.is_ok(), "whoever failed left nothing behind");
    }
}
