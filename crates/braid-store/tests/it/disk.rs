//! A disk of which only what was synced survives a power failure for sure, and whose calls can fail.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// What a device writes at once, or not at all.
const SECTOR: usize = 512;

/// The disk itself: it outlives the stores that are opened on it. Cloning names the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    synced: Vec<u8>,
    /// With everything that was written since.
    current: Vec<u8>,
    unsynced: Vec<Unsynced>,
    syncs: u64,
    fault: Option<Fault>,
    /// Syncs after a call failed: an error of a device must be its last word.
    syncs_after_fault: u64,
    failed: bool,
    /// Syncs wait until they are let go.
    held: bool,
    holding: u64,
    /// Counts the openings: a store that was left behind by a power failure reaches the disk no more.
    era: u64,
}

#[derive(Debug)]
enum Unsynced {
    Write(usize, Vec<u8>),
    Length(usize),
}

/// What happens at a call that changes the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// How many such calls still succeed.
    pub(crate) after: u64,
    /// What the call says.
    pub(crate) kind: io::ErrorKind,
    /// Whether all that follow fail as well, as after a power failure.
    pub(crate) forever: bool,
}

impl Disk {
    pub(crate) fn holding(bytes: Vec<u8>) -> Self {
        let disk = Self::default();
        disk.lock().current.clone_from(&bytes);
        disk.lock().synced = bytes;
        disk
    }

    /// A device to open a store on; those before lose the disk.
    pub(crate) fn device(&self) -> Device {
        let mut state = self.lock();
        state.era += 1;
        Device { disk: self.clone(), era: state.era }
    }

    pub(crate) fn fail(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    /// How often it was synced.
    pub(crate) fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// How often it was synced after a call failed.
    pub(crate) fn syncs_after_fault(&self) -> u64 {
        self.lock().syncs_after_fault
    }

    /// The device works again, and what failed is forgotten.
    pub(crate) fn mend(&self) {
        let mut state = self.lock();
        (state.fault, state.failed, state.syncs_after_fault) = (None, false, 0);
    }

    /// Lets every sync wait, until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.lock().held = true;
    }

    pub(crate) fn release(&self) {
        self.lock().held = false;
        self.0.1.notify_all();
    }

    /// Waits until a sync waits.
    pub(crate) fn wait_for_sync(&self) {
        let mut state = self.lock();
        while state.holding == 0 {
            state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.lock().current.clone()
    }

    /// Takes the power away: of what was not synced, some writes are lost, some are torn, and the rest arrived in
    /// another order.
    pub(crate) fn crash(&self, rng: &mut fastrand::Rng) {
        let mut state = self.lock();
        state.era += 1;
        state.fault = None;
        let mut unsynced = std::mem::take(&mut state.unsynced);
        let mut bytes = std::mem::take(&mut state.synced);
        // Some crashes lose nearly everything, some nearly nothing.
        let kept = rng.f64();
        rng.shuffle(&mut unsynced);
        // The longest that the file may have become; it is cut at the end.
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
        state.current.clone_from(&bytes);
        state.synced = bytes;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    if bytes.len() < at + data.len() {
        bytes.resize(at + data.len(), 0);
    }
    bytes[at..at + data.len()].copy_from_slice(data);
}

/// One opening of a [`Disk`].
#[derive(Debug)]
pub(crate) struct Device {
    disk: Disk,
    era: u64,
}

impl Device {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.lock();
        if state.era == self.era { Ok(state) } else { Err(io::Error::other("the power is gone")) }
    }

    /// For calls that change the disk: these can fail.
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
                    state.failed = true;
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
        Ok(self.state()?.current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state()?;
        let at = index(offset);
        let part = state.current.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(part);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.change()?;
        state.current.resize(index(len), 0);
        state.unsynced.push(Unsynced::Length(index(len)));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut guard = self.change()?;
        guard.holding += 1;
        self.disk.0.1.notify_all();
        while guard.held {
            guard = self.disk.0.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        let state = &mut *guard;
        state.holding -= 1;
        state.syncs += 1;
        state.syncs_after_fault += u64::from(state.failed);
        // What is unsynced is little; the file may be long.
        for change in std::mem::take(&mut state.unsynced) {
            match change {
                Unsynced::Write(at, data) => put(&mut state.synced, at, &data),
                Unsynced::Length(length) => state.synced.resize(length, 0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.change()?;
        put(&mut state.current, index(offset), data);
        state.unsynced.push(Unsynced::Write(index(offset), data.to_vec()));
        Ok(())
    }
}
