use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// After so many bytes the file system is asked again how much is free.
const LOOK_EVERY: u64 = 16 << 20;

/// What part of the bytes that are to stay free nobody may take.
const RESERVE: u64 = 4;

/// What all files of a spool may take together, and have taken.
#[derive(Debug)]
pub(super) struct Room {
    most: u64,
    keep_free: u64,
    /// Files that there may be, and are: each is a map of the process, of which the system allows it so many.
    most_files: u64,
    files: AtomicU64,
    used: AtomicU64,
    /// Of that: what has its room and is not written yet, so that the file system counts it as free.
    promised: AtomicU64,
    /// Packets that there was none for.
    refused: AtomicU64,
    /// Bytes since the last look at the file system.
    unseen: AtomicU64,
    /// There was too little free at the last look, or there was none yet: the next one is due at once.
    is_short: AtomicBool,
}

impl Room {
    pub(super) const fn new(most: u64, keep_free: u64, most_files: u64) -> Self {
        Self {
            most,
            keep_free,
            most_files,
            files: AtomicU64::new(0),
            used: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            unseen: AtomicU64::new(0),
            is_short: AtomicBool::new(true),
        }
    }

    pub(super) fn used(&self) -> u64 {
        // Relaxed, here and below: the numbers say nothing about any other memory.
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// A packet is lost for want of it.
    pub(super) fn note_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes room for one more file.
    pub(super) fn add_file(&self) -> io::Result<()> {
        if self.files.fetch_add(1, Ordering::Relaxed) >= self.most_files {
            self.remove_file();
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    pub(super) fn remove_file(&self) {
        self.files.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes room for `bytes` more in `file`.
    pub(super) fn take(&self, file: &File, bytes: u64) -> io::Result<()> {
        if self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > self.most {
            self.give_back(bytes);
            return Err(ErrorKind::StorageFull.into());
        }
        self.look(file, bytes).inspect_err(|_| self.give_back(bytes))
    }

    /// The same for what cannot be refused for being too much: only so much is left free that the store, which may be on
    /// the same file system, can go on. All of it is promised.
    pub(super) fn take_reserve(&self, file: &File, bytes: u64) -> io::Result<()> {
        // First, so that of several at once each sees what the others were promised.
        let promised = self.promised.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let look = free(file).and_then(|free| {
            let is_short = free.saturating_sub(promised) < self.keep_free / RESERVE;
            if is_short { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
        });
        look.inspect_err(|_| self.keep_promise(bytes))?;
        self.used.fetch_add(bytes, Ordering::Relaxed);
        // Whoever comes next looks for himself.
        self.is_short.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// So much of what was promised is written, or will not be.
    pub(super) fn keep_promise(&self, bytes: u64) {
        self.promised.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn look(&self, file: &File, bytes: u64) -> io::Result<()> {
        let unseen = self.unseen.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if unseen < LOOK_EVERY && !self.is_short.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.unseen.store(0, Ordering::Relaxed);
        let is_short = free(file)? < self.keep_free;
        self.is_short.store(is_short, Ordering::Relaxed);
        if is_short { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// Bytes that are free where the file is.
fn free(file: &File) -> io::Result<u64> {
    let state = rustix::fs::fstatvfs(file)?;
    Ok(state.f_bavail.saturating_mul(state.f_frsize))
}
