//! Simulated disk: only synced writes survive a power failure for sure, and calls can fail.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// Unit of atomic writes, in bytes.
const SECTOR: usize = 512;

/// The disk with the two files of a store; it outlives the stores opened on it. A clone is the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    tables: Contents,
    journal: Contents,
    fault: Option<Fault>,
    /// Syncs of this file block until they are released.
    held: Option<Which>,
    holding: u64,
    /// Number of openings: a store from before a power failure no longer reaches the disk.
    era: u64,
}

#[derive(Debug, Default)]
struct Contents {
    synced: Vec<u8>,
    /// Including all writes since the last sync.
    current: Vec<u8>,
    unsynced: Vec<Unsynced>,
    syncs: u64,
    /// Syncs after a failed call: a store must not retry after an error.
    syncs_after_fault: u64,
    failed: bool,
}

/// One of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Tables,
    Journal,
}

#[derive(Debug)]
enum Unsynced {
    Write(usize, Vec<u8>),
    Length(usize),
}

/// Fault of the calls that change the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// Number of calls that still succeed.
    pub(crate) after: u64,
    /// Error of the failing call.
    pub(crate) kind: io::ErrorKind,
    /// True if all later calls fail too, as after a power failure.
    pub(crate) forever: bool,
}

impl Disk {
    pub(crate) fn holding(tables: Vec<u8>, journal: Vec<u8>) -> Self {
        let disk = Self::default();
        let contents =
            |bytes: Vec<u8>| Contents { current: bytes.clone(), synced: bytes, ..Contents::default() };
        (disk.lock().tables, disk.lock().journal) = (contents(tables), contents(journal));
        disk
    }

    /// A device for a store's tables; earlier devices lose the disk.
    pub(crate) fn device(&self) -> Device {
        let mut state = self.lock();
        state.era += 1;
        Device { disk: self.clone(), era: state.era, which: Which::Tables }
    }

    /// The journal's device that belongs to the last tables' device.
    pub(crate) fn journal(&self) -> Device {
        Device { disk: self.clone(), era: self.lock().era, which: Which::Journal }
    }

    pub(crate) fn fail(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    /// Number of syncs of the journal.
    pub(crate) fn syncs(&self) -> u64 {
        self.lock().journal.syncs
    }

    pub(crate) fn syncs_of_tables(&self) -> u64 {
        self.lock().tables.syncs
    }

    /// Number of syncs of a file after a failed call.
    pub(crate) fn syncs_after_fault(&self) -> u64 {
        let state = self.lock();
        state.tables.syncs_after_fault + state.journal.syncs_after_fault
    }

    /// Ends the fault and resets its counters.
    pub(crate) fn mend(&self) {
        let mut state = self.lock();
        state.fault = None;
        let State { tables, journal, .. } = &mut *state;
        for file in [tables, journal] {
            (file.failed, file.syncs_after_fault) = (false, 0);
        }
    }

    /// Blocks every sync of the journal until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.lock().held = Some(Which::Journal);
    }

    /// Blocks every sync of the tables until [`release`](Self::release).
    pub(crate) fn hold_tables(&self) {
        self.lock().held = Some(Which::Tables);
    }

    pub(crate) fn release(&self) {
        self.lock().held = None;
        self.0.1.notify_all();
    }

    /// Waits until a sync is blocked.
    pub(crate) fn wait_for_sync(&self) {
        let mut state = self.lock();
        while state.holding == 0 {
            state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The file of the tables.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.lock().tables.current.clone()
    }

    pub(crate) fn journal_bytes(&self) -> Vec<u8> {
        self.lock().journal.current.clone()
    }

    /// Simulates a power failure: of the unsynced writes some are lost, some torn, and the others reordered.
    pub(crate) fn crash(&self, rng: &mut fastrand::Rng) {
        let mut state = self.lock();
        state.era += 1;
        state.fault = None;
        // Some power failures lose nearly everything, some nearly nothing.
        let kept = rng.f64();
        state.tables.crash(kept, rng);
        state.journal.crash(kept, rng);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contents {
    fn crash(&mut self, kept: f64, rng: &mut fastrand::Rng) {
        let mut unsynced = std::mem::take(&mut self.unsynced);
        let mut bytes = std::mem::take(&mut self.synced);
        rng.shuffle(&mut unsynced);
        // The greatest possible length; truncated at the end.
        let mut length = bytes.len();
        for change in &unsynced {
            match change {
                Unsynced::Length(to) if rng.f64() < kept => length = *to,
                Unsynced::Length(_) => {}
                Unsynced::Write(at, data) => {
                    for (sector, part) in data.chunks(SECTOR).enumerate() {
                        if rng.f64() < kept {
                            put(&mut bytes, at + sector * SECTOR, part);
                        }
                    }
                }
            }
        }
        bytes.resize(length, 0);
        self.current.clone_from(&bytes);
        self.synced = bytes;
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    if bytes.len() < at + data.len() {
        bytes.resize(at + data.len(), 0);
    }
    bytes[at..at + data.len()].copy_from_slice(data);
}

/// One opening of a file of a [`Disk`].
#[derive(Debug)]
pub(crate) struct Device {
    disk: Disk,
    era: u64,
    which: Which,
}

impl State {
    const fn file(&mut self, which: Which) -> &mut Contents {
        match which {
            Which::Tables => &mut self.tables,
            Which::Journal => &mut self.journal,
        }
    }
}

impl Device {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.lock();
        if state.era == self.era { Ok(state) } else { Err(io::Error::other("the power is gone")) }
    }

    /// State for calls that change the disk, which can fail.
    fn change(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state()?;
        if let Some(fault) = &mut state.fault {
            let kind = fault.kind;
            match fault.after.checked_sub(1) {
                Some(after) => fault.after = after,
                None => {
                    if !fault.forever {
                        state.fault = None;
                    }
                    state.file(self.which).failed = true;
                    return Err(kind.into());
                }
            }
        }
        Ok(state)
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("disks of tests fit into memory")
}

impl StorageBackend for Device {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state()?.file(self.which).current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = index(offset);
        let mut state = self.state()?;
        let part = state.file(self.which).current.get(at..at + out.len());
        out.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.change()?;
        let file = state.file(self.which);
        file.current.resize(index(len), 0);
        file.unsynced.push(Unsynced::Length(index(len)));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.change()?;
        while state.held == Some(self.which) {
            state.holding += 1;
            self.disk.0.1.notify_all();
            state = self.disk.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.holding -= 1;
        }
        let file = state.file(self.which);
        file.syncs += 1;
        file.syncs_after_fault += u64::from(file.failed);
        // Applies the few unsynced writes instead of copying the file, which may be long.
        for change in std::mem::take(&mut file.unsynced) {
            match change {
                Unsynced::Write(at, data) => put(&mut file.synced, at, &data),
                Unsynced::Length(length) => file.synced.resize(length, 0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.change()?;
        let file = state.file(self.which);
        put(&mut file.current, index(offset), data);
        file.unsynced.push(Unsynced::Write(index(offset), data.to_vec()));
        Ok(())
    }
}
