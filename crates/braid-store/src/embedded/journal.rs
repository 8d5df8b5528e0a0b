//! The journal: what was acknowledged and is not in the tables yet. A group is one record, appended with one write and one
//! sync; the space is there from the beginning, so neither changes anything but the blocks themselves.
//!
//! A record is begun only once the one before is durable, and its place is used again only once the tables have
//! it. So of what the tables do not have, only the last record can be a part, which nobody was told of: any other
//! that is missing was acknowledged.

use std::io;
use std::path::Path;
use std::sync::Arc;

use redb::StorageBackend;

use super::error::OpenError;
use super::file::{self, File};
use super::keys::journal::{self, BLOCK, FirstBlock, Header};
use super::marks::Owner;

/// A device that may be a journal's, and its name.
pub(super) struct Candidate {
    device: Box<dyn StorageBackend>,
    pub(super) name: Arc<str>,
}

/// Ready to be appended to.
pub(super) struct Journal {
    device: Box<dyn StorageBackend>,
    header: Header,
}

impl Candidate {
    /// The journal in the directory; without `create`, only if there is one.
    pub(super) fn in_directory(directory: &Path, create: bool) -> Result<Option<Self>, OpenError> {
        let found = file::journal_device(directory, create)?;
        Ok(found.map(|(device, name)| Self { device: Box::new(device), name }))
    }

    pub(super) fn on(device: impl StorageBackend) -> Self {
        Self { device: Box::new(device), name: Arc::from("<journal>") }
    }

    pub(super) fn first_block(&self) -> Result<FirstBlock, OpenError> {
        let first = self.read(0, BLOCK).map_err(|error| self.failed(&error))?;
        Ok(journal::decode_header(&first))
    }

    /// Whether all is there that the header promises.
    pub(super) fn is_whole(&self, header: Header) -> Result<bool, OpenError> {
        let length = self.device.len().map_err(|error| self.failed(&error))?;
        Ok(length >= half_begin(header, 2))
    }

    /// One of the two halves.
    pub(super) fn half(&self, header: Header, which: u64) -> Result<Vec<u8>, OpenError> {
        let half = usize::try_from(half_bytes(header)).unwrap_or(usize::MAX);
        self.read(half_begin(header, which), half).map_err(|error| self.failed(&error))
    }

    /// As much of it as there is.
    fn read(&self, from: u64, most: usize) -> io::Result<Vec<u8>> {
        let there = self.device.len()?.saturating_sub(from);
        let mut bytes = vec![0; usize::try_from(there).map_or(most, |there| there.min(most))];
        self.device.read(from, &mut bytes)?;
        Ok(bytes)
    }

    fn failed(&self, error: &io::Error) -> OpenError {
        OpenError::of_io(&self.name, error)
    }

    /// Makes it the journal of the store, whose tables have all that was in it: with two halves that have so many bytes together.
    /// Until the tables say that it is theirs ([`Opening::Journaled`](super::marks::Opening)) it is not asked.
    pub(super) fn adopt(self, file: &File, bytes: usize) -> Result<Journal, OpenError> {
        let marks = file.snapshot().and_then(|snapshot| snapshot.marks());
        let known = marks.map_err(|error| error.open(&file.place))?.owner;
        let found = self.first_block()?;
        let store = self.number(known, found).map_err(|error| self.failed(&error))?;
        // What is there may be another store's, as long as this one has no number; a blank one may be this store's only
        // once it has.
        if known == Owner::Unnamed {
            file.identify(store).map_err(|error| error.open(&file.place))?;
        }
        let header = Header { store, half: (bytes / 2 / BLOCK).max(1) as u64 };
        // It may have been cut off while nobody needed it.
        let is_laid_out = matches!(found, FirstBlock::Header(Header { half, .. }) if half == header.half)
            && self.is_whole(header)?;
        let made = if is_laid_out { self.put(header) } else { self.lay_out(header) };
        made.map_err(|error| self.failed(&error))?;
        Ok(Journal { device: self.device, header })
    }

    /// The store's number from now on. What came after a copy of the tables was made is in the journal under another one,
    /// and so never follows what comes after the copy was put back.
    fn number(&self, known: Owner, found: FirstBlock) -> io::Result<u64> {
        let random = random()?;
        Ok(match (known, found) {
            // An import takes the place of the store that was there: a copy of that may be put back as well.
            (Owner::Import, FirstBlock::Header(before)) => journal::later(before.store, random),
            (Owner::Unnamed | Owner::Import, _) => random,
            (Owner::Store(before), _) => journal::later(before, random),
        })
    }

    /// Zeros take the space, which a hole in a file would not; and a block that was written once is written again without a
    /// change of anything else. One block at a time: the system keeps what is written at once in one piece of memory,
    /// and counts all of it as written whenever a block of it is.
    fn lay_out(&self, header: Header) -> io::Result<()> {
        let length = half_begin(header, 2);
        self.device.set_len(length)?;
        for at in (0..length).step_by(BLOCK) {
            self.device.write(at, &[0; BLOCK])?;
        }
        self.device.sync_data()?;
        // Not before: it promises all that follows it.
        self.put(header)
    }

    fn put(&self, header: Header) -> io::Result<()> {
        self.device.write(0, &journal::encode_header(header))?;
        self.device.sync_data()
    }
}

impl Journal {
    /// Blocks that a record may have.
    pub(super) const fn half(&self) -> u64 {
        self.header.half
    }

    pub(super) const fn store(&self) -> u64 {
        self.header.store
    }

    /// Writes a record at this block of a half and waits until the device has it.
    pub(super) fn append(&self, half: u64, block: u64, record: &[u8]) -> io::Result<()> {
        self.device.write(half_begin(self.header, half) + block * BLOCK as u64, record)?;
        self.device.sync_data()
    }
}

const fn half_bytes(header: Header) -> u64 {
    header.half.saturating_mul(BLOCK as u64)
}

const fn half_begin(header: Header, which: u64) -> u64 {
    (BLOCK as u64).saturating_add(half_bytes(header).saturating_mul(which))
}

/// A number that nobody has guessed: a payload that looks like a record is none.
fn random() -> io::Result<u64> {
    let number = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(number.max(1))
}
