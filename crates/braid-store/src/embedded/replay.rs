//! What a crash left in the journal is brought into the tables, before anybody reads them.

use std::mem;

use super::error::{OpenError, ReadError};
use super::file::File;
use super::journal::Candidate;
use super::keys;
use super::keys::journal::{FirstBlock, Header, find_records, is_same};
use super::marks::{Marks, Owner};
use super::options::{Options, Stage, Teller};
use super::writes::Writes;

/// Groups are brought into the tables together until they have so many bytes.
const CHUNK: usize = 16 << 20;

/// Brings the tables to where the journal is; afterwards they have everything.
pub(super) fn replay(file: &File, journal: Option<&Candidate>, options: &Options) -> Result<(), OpenError> {
    let marks = file.snapshot().and_then(|snapshot| snapshot.marks());
    let marks = marks.map_err(|error| error.open(&file.place))?;
    let mut last = marks.journal;
    if let Some((journal, header)) = own(file, marks, journal)? {
        last = Replay::new(file, journal, header, marks.journal).run(options)?;
    }
    if marks.closed {
        return Ok(());
    }
    file.try_write(&Writes::default(), last, true).map_err(|error| error.open(&file.place))
}

/// The journal of these tables, if it may have something that they do not.
fn own<'a>(
    file: &File,
    marks: Marks,
    candidate: Option<&'a Candidate>,
) -> Result<Option<(&'a Candidate, Header)>, OpenError> {
    let missing = || OpenError::JournalMissing { place: file.place.clone() };
    let Some(journal) = candidate else { return if marks.closed { Ok(None) } else { Err(missing()) } };
    let of_another = || OpenError::JournalOfAnother { place: journal.name.clone() };
    let damaged = |reason: &str| OpenError::journal_damaged(&journal.name, reason);
    // An import has taken the place of the store that the journal is of.
    if marks.owner == Owner::Import {
        return Ok(None);
    }
    match journal.first_block()? {
        FirstBlock::Blank if marks.closed => Ok(None),
        FirstBlock::Blank => Err(missing()),
        FirstBlock::Foreign => Err(of_another()),
        // Begun, and not to its end.
        FirstBlock::Damaged if marks.closed => Ok(None),
        FirstBlock::Damaged => Err(damaged("its header is not whole")),
        FirstBlock::Newer(found) => Err(OpenError::Newer { place: journal.name.clone(), found }),
        // Whatever is there came after these tables were copied, and they were put back.
        FirstBlock::Header(header)
            if marks.closed && matches!(marks.owner, Owner::Store(store) if is_same(store, header.store)) =>
        {
            Ok(None)
        }
        FirstBlock::Header(header) if marks.owner == Owner::Store(header.store) => {
            if !journal.is_whole(header)? {
                return Err(damaged("it ends too early"));
            }
            Ok(Some((journal, header)))
        }
        FirstBlock::Header(_) => Err(of_another()),
    }
}

struct Replay<'a> {
    file: &'a File,
    journal: &'a Candidate,
    header: Header,
    /// The last record that the tables have.
    last: u64,
    writes: Writes,
    /// Of the groups in `writes`.
    bytes: usize,
    /// The last record that is in `writes`.
    read: u64,
}

impl<'a> Replay<'a> {
    fn new(file: &'a File, journal: &'a Candidate, header: Header, last: u64) -> Self {
        Self { file, journal, header, last, writes: Writes::default(), bytes: 0, read: last }
    }

    /// The last record that there is.
    fn run(mut self, options: &Options) -> Result<u64, OpenError> {
        let halves = [self.journal.half(self.header, 0)?, self.journal.half(self.header, 1)?];
        let mut records: Vec<_> = halves
            .iter()
            .flat_map(|half| {
                let found = find_records(half, self.header.store, self.last);
                found.into_iter().map(|found| (found.sequence, &half[found.group]))
            })
            .collect();
        records.sort_unstable_by_key(|(sequence, _)| *sequence);
        if records.is_empty() {
            return Ok(self.last);
        }
        // Before any of them is in the tables: what is refused stays as it was.
        for (expected, (sequence, _)) in (self.last + 1..).zip(&records) {
            if *sequence != expected {
                return Err(self.damaged(&format!(
                    "record {expected} is damaged or lost, and record {sequence} is there"
                )));
            }
        }
        let mut teller = Teller::new(options, Stage::Replaying, records.len() as u64);
        for (sequence, group) in records {
            self.take(sequence, group)?;
            teller.step_over(group.len());
        }
        self.flush()?;
        teller.end();
        Ok(self.last)
    }

    fn take(&mut self, sequence: u64, group: &[u8]) -> Result<(), OpenError> {
        let writes = keys::decode_group(group).map_err(|keys::Malformed(what)| {
            self.damaged(&format!("record {sequence}: {what} was expected"))
        })?;
        self.writes.merge(&writes);
        (self.read, self.bytes) = (sequence, self.bytes + group.len());
        if self.bytes >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), OpenError> {
        if self.read == self.last {
            return Ok(());
        }
        let (writes, file) = (mem::take(&mut self.writes), self.file);
        file.try_write(&writes, self.read, false).map_err(|error: ReadError| error.open(&file.place))?;
        (self.last, self.bytes) = (self.read, 0);
        Ok(())
    }

    fn damaged(&self, reason: &str) -> OpenError {
        OpenError::journal_damaged(&self.journal.name, reason)
    }
}
