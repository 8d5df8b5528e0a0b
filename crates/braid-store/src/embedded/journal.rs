//! Journal: the file of the write-ahead log. A group is one record, appended with one write and one fsync; the space is
//! allocated from the beginning, so neither changes any metadata of the file system.
//!
//! A record is begun only when the one before is durable, and its blocks are reused only when the tables have it. So of
//! the records that the tables do not have, only the last one can be torn, and it was not acknowledged: any other that
//! is missing was.

use std::io;
use std::path::Path;
use std::sync::Arc;

use redb::StorageBackend;

use super::codec::journal::{self, BLOCK, FirstBlock, Header};
use super::error::OpenError;
use super::files;
use super::snapshot::Owner;
use super::tables::Tables;

/// Device that may hold a journal, with its path.
pub(super) struct JournalFile {
    device: Box<dyn StorageBackend>,
    pub(super) path: Arc<str>,
}

/// A journal that is ready for appending.
pub(super) struct Journal {
    device: Box<dyn StorageBackend>,
    header: Header,
}

impl JournalFile {
    /// Opens the journal in the directory; without `create`, only if it exists.
    pub(super) fn in_directory(directory: &Path, create: bool) -> Result<Option<Self>, OpenError> {
        let found = files::journal_device(directory, create)?;
        Ok(found.map(|(device, path)| Self { device: Box::new(device), path }))
    }

    pub(super) fn on(device: impl StorageBackend) -> Self {
        Self { device: Box::new(device), path: Arc::from("<journal>") }
    }

    pub(super) fn first_block(&self) -> Result<FirstBlock, OpenError> {
        let first = self.read(0, BLOCK).map_err(|error| self.failed(&error))?;
        Ok(journal::decode_header(&first))
    }

    /// True when the file is as long as the header says.
    pub(super) fn is_complete(&self, header: Header) -> Result<bool, OpenError> {
        let length = self.device.len().map_err(|error| self.failed(&error))?;
        Ok(length >= segment_begin(header, 2))
    }

    /// Reads one of the two segments.
    pub(super) fn segment(&self, header: Header, number: u64) -> Result<Vec<u8>, OpenError> {
        let length = usize::try_from(segment_len(header)).unwrap_or(usize::MAX);
        self.read(segment_begin(header, number), length).map_err(|error| self.failed(&error))
    }

    /// Reads up to `length` bytes.
    fn read(&self, from: u64, length: usize) -> io::Result<Vec<u8>> {
        let available = self.device.len()?.saturating_sub(from);
        let mut bytes = vec![0; usize::try_from(available).map_or(length, |available| available.min(length))];
        self.device.read(from, &mut bytes)?;
        Ok(bytes)
    }

    fn failed(&self, error: &io::Error) -> OpenError {
        OpenError::of_io(&self.path, error)
    }

    /// Makes it the journal of the tables, which have everything that was in it, with two segments of `bytes` together.
    /// Until the tables record its number ([`Tables::count_opening`]) a recovery ignores it.
    pub(super) fn adopt(self, tables: &Tables, bytes: usize) -> Result<Journal, OpenError> {
        let state = tables.snapshot().and_then(|snapshot| snapshot.checkpoint_state());
        let known = state.map_err(|error| error.open(&tables.path))?.owner;
        let found = self.first_block()?;
        let store = next_number(known, found).map_err(|error| self.failed(&error))?;
        // While this store has no number the journal may be another store's; a blank one can be this store's only once
        // it has a number.
        if known == Owner::Unnumbered {
            tables.set_number(store).map_err(|error| error.open(&tables.path))?;
        }
        let header = Header { store, blocks: (bytes / 2 / BLOCK).max(1) as u64 };
        // A file of the right header may have been truncated while the tables had everything.
        let is_allocated = matches!(found, FirstBlock::Header(Header { blocks, .. }) if blocks == header.blocks)
            && self.is_complete(header)?;
        let written = if is_allocated { self.write_header(header) } else { self.allocate(header) };
        written.map_err(|error| self.failed(&error))?;
        Ok(Journal { device: self.device, header })
    }

    /// Writes zeros: they allocate the space, which a hole in a file would not, and later writes of the blocks change
    /// no metadata. One block at a time: the system caches each write as one piece of memory, and writes all of it back
    /// whenever one block of it changes.
    fn allocate(&self, header: Header) -> io::Result<()> {
        let length = segment_begin(header, 2);
        self.device.set_len(length)?;
        for at in (0..length).step_by(BLOCK) {
            self.device.write(at, &[0; BLOCK])?;
        }
        self.device.sync_data()?;
        // Last, since a header says that the space is allocated.
        self.write_header(header)
    }

    fn write_header(&self, header: Header) -> io::Result<()> {
        self.device.write(0, &journal::encode_header(header))?;
        self.device.sync_data()
    }
}

impl Journal {
    /// Blocks of one segment, the limit of a record.
    pub(super) const fn segment_blocks(&self) -> u64 {
        self.header.blocks
    }

    pub(super) const fn store(&self) -> u64 {
        self.header.store
    }

    /// Writes a record at a block of a segment, with fsync.
    pub(super) fn append(&self, segment: u64, block: u64, record: &[u8]) -> io::Result<()> {
        self.device.write(segment_begin(self.header, segment) + block * BLOCK as u64, record)?;
        self.device.sync_data()
    }
}

const fn segment_len(header: Header) -> u64 {
    header.blocks.saturating_mul(BLOCK as u64)
}

const fn segment_begin(header: Header, number: u64) -> u64 {
    (BLOCK as u64).saturating_add(segment_len(header).saturating_mul(number))
}

/// The store's number from now on. Records from after a copy of the tables was made have another number, so they are
/// never replayed onto the copy. Random, so that no payload can imitate a record.
fn next_number(known: Owner, found: FirstBlock) -> io::Result<u64> {
    let random = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?.max(1);
    Ok(match (known, found) {
        // An import replaces the store that was there, of which a copy may be put back as well.
        (Owner::Import, FirstBlock::Header(before)) => journal::later(before.store, random),
        (Owner::Unnumbered | Owner::Import, _) => random,
        (Owner::Store(before), _) => journal::later(before, random),
    })
}
