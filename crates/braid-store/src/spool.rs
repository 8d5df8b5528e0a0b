//! Large packets in files: a [`Spool`] on a directory.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_proto::decoder::{Spool, SpoolError, SpooledPacket};
use bytes::Bytes;
use memmap2::{Mmap, MmapOptions};
use thiserror::Error;

use crate::private;

pub use crate::private::{Exposed, exposed};

/// Prefix and suffix of the spool's file names: no other file is ever removed.
const NAME: (&str, &str) = ("braidmq-", ".spool");

/// Bytes after which the free space of the file system is read again.
const FREE_SPACE_INTERVAL: u64 = 16 << 20;

/// The last 1/4 of `keep_free` is left to the store, which may be on the same file system.
const RESERVE_DIVISOR: u64 = 4;

/// Incomplete packets without a connection, each of which has an open file.
const KEPT_MAX: u64 = 256;

/// Limits of a [`FileSpool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolOptions {
    /// Packets of more bytes are spooled.
    pub threshold: usize,
    /// Bytes of all packets together.
    pub bytes: u64,
    /// Bytes that are left free on the file system.
    pub keep_free: u64,
}

/// Refusal of a directory for the spool: one line.
#[derive(Debug, Error)]
#[error(
    "large messages cannot be received in {path} ({source}): make it a directory that the broker may write to, \
         with room, or name another"
)]
pub struct SpoolOpenError {
    path: String,
    source: io::Error,
}

/// Receives large packets into files without a name, and maps them once they are complete.
///
/// A file is unlinked before anything is written to it, so it goes with its last map or descriptor, even if the
/// process is killed.
#[derive(Debug)]
pub struct FileSpool {
    directory: PathBuf,
    threshold: usize,
    quota: Arc<Quota>,
}

impl FileSpool {
    /// Makes the directory if it does not exist, removes files that a crash may have left in it, and checks that a file
    /// can be written and mapped.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(directory: &Path, options: SpoolOptions) -> Result<Self, SpoolOpenError> {
        let SpoolOptions { threshold, bytes, keep_free } = options;
        let quota = Arc::new(Quota::new(bytes, keep_free, map_count_limit() / 2));
        let spool = Self { directory: directory.to_owned(), threshold, quota };
        let opened = spool.prepare();
        opened.map_err(|source| SpoolOpenError { path: directory.display().to_string(), source })?;
        Ok(spool)
    }

    fn prepare(&self) -> io::Result<()> {
        private::create_directory(&self.directory)?;
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(NAME.0) && name.ends_with(NAME.1) && entry.file_type()?.is_file() {
                remove(&entry.path())?;
            }
        }
        let mut file = self.create()?;
        file.write_all(b"?")?;
        map(file, 1).map(drop)
    }

    /// A writer of an empty file. A `quiet` one does not report its failures: its caller does, once for many.
    fn writer(&self, is_quiet: bool) -> io::Result<SpoolWriter> {
        let quota = self.quota.clone();
        quota.add_file()?;
        // From here on its drop returns the quota.
        let mut writer =
            SpoolWriter { file: None, len: 0, taken: 0, reserved: 0, is_quiet, is_kept: false, quota };
        writer.file = Some(self.create()?);
        Ok(writer)
    }

    /// A new file without a name.
    fn create(&self) -> io::Result<File> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
            let (prefix, suffix) = NAME;
            let path = self.directory.join(format!("{prefix}{}-{number}{suffix}", std::process::id()));
            match private::options().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => {
                    remove(&path)?;
                    return Ok(file);
                }
                // Another process has the same id, in a container for instance.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Removes a file, which another broker with the same directory may have removed already.
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
        let writer = self.writer(false).map_err(|error| self.quota.report(&error))?;
        Ok(Box::new(writer))
    }

    fn begin_reserved(&self, length: u64) -> Result<Box<dyn SpooledPacket>, SpoolError> {
        let mut writer = self.writer(true).map_err(|error| spool_error(&error))?;
        writer.reserve(length).map_err(|error| spool_error(&error))?;
        Ok(Box::new(writer))
    }

    fn used(&self) -> u64 {
        self.quota.used.load(Ordering::Relaxed)
    }

    fn refused(&self) -> u64 {
        self.quota.refused.load(Ordering::Relaxed)
    }
}

/// Writer of one packet's file. Dropping it returns its quota.
#[derive(Debug)]
struct SpoolWriter {
    /// `None` once it is mapped.
    file: Option<File>,
    /// Bytes that are written.
    len: usize,
    /// Bytes of quota that it holds.
    taken: u64,
    /// Part of `taken` that is reserved and not written. Only a payload that cannot be refused has a reservation.
    reserved: u64,
    is_quiet: bool,
    /// Whether it is one of [`Quota::kept`].
    is_kept: bool,
    quota: Arc<Quota>,
}

impl SpoolWriter {
    fn reserve(&mut self, length: u64) -> io::Result<()> {
        let Some(file) = &self.file else { return Err(ErrorKind::NotFound.into()) };
        self.quota.reserve(file, length)?;
        (self.taken, self.reserved) = (length, length);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(ErrorKind::NotFound.into()) };
        let missing = (self.len as u64 + bytes.len() as u64).saturating_sub(self.taken);
        if missing > 0 {
            self.quota.take(file, missing)?;
            self.taken += missing;
        }
        self.len += bytes.len();
        file.write_all(bytes)?;
        let written = self.reserved.min(bytes.len() as u64);
        self.reserved -= written;
        self.quota.end_reservation(written);
        Ok(())
    }

    fn end_keeping(&mut self) {
        if std::mem::take(&mut self.is_kept) {
            self.quota.kept.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn error(&self, error: &io::Error) -> SpoolError {
        if self.is_quiet { spool_error(error) } else { self.quota.report(error) }
    }
}

impl SpooledPacket for SpoolWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<(), SpoolError> {
        self.write(bytes).map_err(|error| self.error(&error))
    }

    fn keep(&mut self) -> bool {
        self.is_kept = self.is_kept || self.quota.keep();
        self.is_kept
    }

    fn finish(mut self: Box<Self>) -> Result<Bytes, SpoolError> {
        self.end_keeping();
        let mapped = match self.file.take() {
            Some(file) => map(file, self.len),
            None => Err(ErrorKind::NotFound.into()),
        };
        let map = mapped.map_err(|error| self.error(&error))?;
        Ok(Bytes::from_owner(MappedPacket { map, _writer: *self }))
    }
}

impl Drop for SpoolWriter {
    fn drop(&mut self) {
        self.end_keeping();
        self.quota.end_reservation(self.reserved);
        self.quota.give_back(self.taken);
        self.quota.remove_file();
    }
}

/// A complete packet.
struct MappedPacket {
    map: Mmap,
    /// Holds the packet's quota until the map goes.
    _writer: SpoolWriter,
}

impl AsRef<[u8]> for MappedPacket {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

/// Limit of the memory maps of this process, of files and of memory; Linux's default where the system does not say.
fn map_count_limit() -> u64 {
    const DEFAULT: u64 = 65_530;
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT)
}

/// Maps the first `len` bytes of a file that has no name, and takes the file over.
#[expect(unsafe_code, reason = "memmap2 needs a guarantee about the file that no type can give")]
fn map(file: File, len: usize) -> io::Result<Mmap> {
    // SAFETY: the bytes behind a map must not change and the file must not get shorter. This process alone opened it
    // and unlinked it before anything was written, so no other process can reach it; we own the only descriptor, whose
    // last write is done, and close it here.
    let map = unsafe { MmapOptions::new().len(len).map(&file) };
    drop(file);
    map
}

fn spool_error(error: &io::Error) -> SpoolError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => SpoolError::Full,
        kind => SpoolError::Failed(kind),
    }
}

/// Limits and usage of all files of a spool. Relaxed atomics throughout: no number guards any other memory.
#[derive(Debug, Default)]
struct Quota {
    /// Limit of `used`, in bytes.
    limit: u64,
    keep_free: u64,
    /// Limit of `files`: each is a memory map of the process.
    files_limit: u64,
    files: AtomicU64,
    used: AtomicU64,
    /// Bytes of `used` that are reserved and not written, which the file system therefore counts as free.
    reserved: AtomicU64,
    /// Incomplete packets that are kept without a connection.
    kept: AtomicU64,
    /// Packets that were refused because the spool is full.
    refused: AtomicU64,
    /// Bytes taken since the free space was last read.
    since_check: AtomicU64,
    /// The last check found too little free space, or there was none yet: the next take checks.
    is_low: AtomicBool,
}

impl Quota {
    fn new(limit: u64, keep_free: u64, files_limit: u64) -> Self {
        Self { limit, keep_free, files_limit, is_low: AtomicBool::new(true), ..Self::default() }
    }

    /// Counts a refusal for want of space, whose log line is the spool monitor's; logs any other error.
    fn report(&self, error: &io::Error) -> SpoolError {
        let reason = spool_error(error);
        if reason == SpoolError::Full {
            self.refused.fetch_add(1, Ordering::Relaxed);
        } else {
            tracing::warn!(%error, "a large message cannot be received");
        }
        reason
    }

    fn add_file(&self) -> io::Result<()> {
        if self.files.fetch_add(1, Ordering::Relaxed) >= self.files_limit {
            self.remove_file();
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Counts an incomplete packet that is kept without a connection. False: there are too many, or packets of clients
    /// that are connected need the room.
    fn keep(&self) -> bool {
        let has_room =
            self.used.load(Ordering::Relaxed) <= self.limit / 2 && !self.is_low.load(Ordering::Relaxed);
        if has_room && self.kept.fetch_add(1, Ordering::Relaxed) < KEPT_MAX {
            return true;
        }
        if has_room {
            self.kept.fetch_sub(1, Ordering::Relaxed);
        }
        false
    }

    fn remove_file(&self) {
        self.files.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes `bytes` more for `file`.
    fn take(&self, file: &File, bytes: u64) -> io::Result<()> {
        if self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > self.limit {
            self.give_back(bytes);
            return Err(ErrorKind::StorageFull.into());
        }
        self.check_free_space(file, bytes).inspect_err(|_| self.give_back(bytes))
    }

    /// Takes and reserves `bytes` for a payload that is already acknowledged: the limit does not apply, and it may use
    /// the free space down to a quarter of `keep_free`, which is left to the store.
    fn reserve(&self, file: &File, bytes: u64) -> io::Result<()> {
        // First, so that of several at once each sees the reservations of the others.
        let reserved = self.reserved.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let checked = free_space(file).and_then(|free| {
            let is_low = free.saturating_sub(reserved) < self.keep_free / RESERVE_DIVISOR;
            if is_low { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
        });
        checked.inspect_err(|_| self.end_reservation(bytes))?;
        self.used.fetch_add(bytes, Ordering::Relaxed);
        // The next take checks the free space.
        self.is_low.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the reservation of bytes that are written, or never will be.
    fn end_reservation(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn check_free_space(&self, file: &File, bytes: u64) -> io::Result<()> {
        let since_check = self.since_check.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if since_check < FREE_SPACE_INTERVAL && !self.is_low.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.since_check.store(0, Ordering::Relaxed);
        // Reserved bytes will be written: a message that was promised its space must find it.
        let free = free_space(file)?.saturating_sub(self.reserved.load(Ordering::Relaxed));
        let is_low = free < self.keep_free;
        self.is_low.store(is_low, Ordering::Relaxed);
        if is_low { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// Free bytes of the file's file system.
fn free_space(file: &File) -> io::Result<u64> {
    let state = rustix::fs::fstatvfs(file)?;
    Ok(state.f_bavail.saturating_mul(state.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that opens the file before it is unlinked could read it later.
    #[cfg(unix)]
    #[test]
    fn a_file_is_private_from_its_creation() {
        use std::os::unix::fs::PermissionsExt;

        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("spool");
        let options = SpoolOptions { threshold: 0, bytes: 1 << 20, keep_free: 0 };
        let spool = FileSpool::open(&directory, options).unwrap();
        let mode = |metadata: fs::Metadata| metadata.permissions().mode() & 0o777;
        assert_eq!(mode(fs::metadata(&directory).unwrap()), 0o700);
        assert_eq!(mode(spool.create().unwrap().metadata().unwrap()), 0o600);
    }

    /// Each has an open file, and takes room from the clients that are connected.
    #[test]
    fn the_number_of_incomplete_packets_without_a_connection_is_limited() {
        let directory = tempfile::tempdir().unwrap();
        let options = SpoolOptions { threshold: 0, bytes: 1000, keep_free: 0 };
        let spool = FileSpool::open(directory.path(), options).unwrap();
        let mut all: Vec<_> = (0..=KEPT_MAX).map(|_| spool.begin().unwrap()).collect();
        all.iter_mut().for_each(|packet| packet.append(b"?").unwrap());
        let mut last = all.pop().unwrap();
        assert!(all.iter_mut().all(|packet| packet.keep() && packet.keep()) && !last.keep());
        drop(all.pop());
        assert!(last.keep());
        assert!(all.pop().unwrap().finish().is_ok());
        assert!(all[0].keep() && spool.quota.kept.load(Ordering::Relaxed) == KEPT_MAX - 1);
        let mut large = spool.begin().unwrap();
        large.append(&[0; 600]).unwrap();
        assert!(!large.keep(), "more than half of the spool is used");
    }

    /// Beyond the limit of maps the system would refuse memory of any kind to the process.
    #[test]
    fn the_number_of_files_is_limited() {
        let directory = tempfile::tempdir().unwrap();
        let quota = Arc::new(Quota::new(1 << 20, 0, 2));
        let spool = FileSpool { directory: directory.path().to_owned(), threshold: 0, quota };
        let mut whole = spool.begin().unwrap();
        whole.append(b"whole").unwrap();
        let whole = whole.finish().unwrap();
        let kept = spool.begin_reserved(4).unwrap();
        assert_eq!(spool.begin().map(drop), Err(SpoolError::Full));
        assert_eq!((spool.begin_reserved(4).map(drop), spool.refused()), (Err(SpoolError::Full), 1));
        drop(kept);
        let other = spool.begin().unwrap();
        drop(whole);
        spool.begin().unwrap();
        fs::remove_dir_all(directory.path()).unwrap();
        assert_eq!(spool.begin().map(drop), Err(SpoolError::Failed(ErrorKind::NotFound)));
        drop(other);
        fs::create_dir(directory.path()).unwrap();
        let both = (spool.begin(), spool.begin());
        assert!(both.0.is_ok() && both.1.is_ok(), "failed writers returned their quota");
    }
}
