//! The numbers in `meta`: what they are at the start, and how they change with what is written.

use redb::{ReadableTable, WriteTransaction};

use super::error::{OpenError, ReadError};
use super::file::{File, Snapshot};
use super::keys::{self, FORMAT, meta};
use super::write::write;
use super::writes::Writes;
use crate::error::StoreError;
use crate::identity::{Lsn, SessionId};
use crate::recover::NextIds;

/// What the tables say of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) owner: Owner,
    /// The last record that they contain.
    pub(super) journal: u64,
    /// Whether they contain all that was acknowledged.
    pub(super) closed: bool,
}

/// Whose the tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Nobody's with a number: no journal was ever begun.
    Unnamed,
    /// An import's, until a store begins: no journal that is found is of these tables.
    Import,
    /// Of the store with this number: its journal says the same.
    Store(u64),
}

impl Owner {
    /// What stands for an import: no store has this number.
    const IMPORT: u64 = 0;

    fn of(number: Option<u64>) -> Self {
        match number {
            None => Self::Unnamed,
            Some(Self::IMPORT) => Self::Import,
            Some(number) => Self::Store(number),
        }
    }
}

/// Who begins to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// A store with a journal that has this number: from now on the tables do not have everything.
    Journaled(u64),
    /// An import.
    Import,
}

impl Snapshot {
    pub(super) fn marks(&self) -> Result<Marks, ReadError> {
        Ok(Marks {
            owner: Owner::of(self.number(meta::STORE)?),
            journal: self.number(meta::JOURNAL)?.unwrap_or(0),
            closed: self.number(meta::CLOSED)? != Some(0),
        })
    }
}

impl File {
    /// Counts this opening; nothing is granted or numbered before it is durable.
    pub(super) fn note_opening(&self, opening: Opening) -> Result<(u64, NextIds), OpenError> {
        self.count_opening(opening).map_err(|error| error.open(&self.place))
    }

    fn count_opening(&self, opening: Opening) -> Result<(u64, NextIds), ReadError> {
        let transaction = self.transaction()?;
        let numbers = {
            let mut table = transaction.open_table(keys::META)?;
            let number = |name| table.get(name).map(|value| value.map(|value| value.value()));
            let opens = number(meta::OPENS)?.unwrap_or(0).saturating_add(1);
            let next = NextIds {
                session: number(meta::NEXT_SESSION)?.map_or(NextIds::FIRST.session, SessionId::new),
                lsn: number(meta::NEXT_LSN)?.map_or(NextIds::FIRST.lsn, Lsn::new),
            };
            table.insert(meta::FORMAT, FORMAT)?;
            table.insert(meta::OPENS, opens)?;
            let (store, closed) = match opening {
                Opening::Journaled(store) => (store, 0),
                Opening::Import => (Owner::IMPORT, 1),
            };
            table.insert(meta::STORE, store)?;
            table.insert(meta::CLOSED, closed)?;
            (opens, next)
        };
        transaction.commit()?;
        Ok(numbers)
    }

    /// Gives the store a number. The tables of one that has none yet have everything.
    pub(super) fn identify(&self, store: u64) -> Result<(), ReadError> {
        let transaction = self.transaction()?;
        {
            let mut table = transaction.open_table(keys::META)?;
            table.insert(meta::FORMAT, FORMAT)?;
            table.insert(meta::STORE, store)?;
            table.insert(meta::CLOSED, 1)?;
        }
        Ok(transaction.commit()?)
    }

    /// Writes what the journal has up to the record with this number, and waits until the device has it; `closed` when
    /// that is all.
    pub(super) fn write(&self, writes: &Writes, journal: u64, closed: bool) -> Result<(), StoreError> {
        // Whatever it was: nobody knows what the device holds now.
        self.try_write(writes, journal, closed).map_err(|error| match error {
            ReadError::Redb(error) => StoreError::Failed { reason: error.to_string().into() },
            ReadError::Row(reason) => StoreError::Failed { reason },
        })
    }

    pub(super) fn try_write(&self, writes: &Writes, journal: u64, closed: bool) -> Result<(), ReadError> {
        let transaction = self.transaction()?;
        write(&transaction, writes, self.part)?;
        mark(&transaction, journal, closed)?;
        Ok(transaction.commit()?)
    }
}

fn mark(transaction: &WriteTransaction, journal: u64, closed: bool) -> Result<(), ReadError> {
    let mut table = transaction.open_table(keys::META)?;
    table.insert(meta::JOURNAL, journal)?;
    if closed {
        table.insert(meta::CLOSED, 1)?;
    }
    Ok(())
}
