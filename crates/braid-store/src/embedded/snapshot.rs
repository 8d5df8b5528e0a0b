//! Snapshots: one redb read transaction over the tables, with decoded rows.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use braid_proto::decoder::Spool;
use bytes::Bytes;
use redb::{
    AccessGuard, Key, ReadOnlyTable, ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition,
    TableError, TableHandle, Value,
};

use super::codec::{self, Malformed, Payload, meta};
use super::error::ReadError;
use super::options::{CHUNK, Options, ProgressReporter, Stage};
use crate::ids::{Lsn, NextIds, SessionId};
use crate::message::{LazyMessage, StoredMessage};
use crate::session::SessionRecord;
use crate::write_set::{Inflight, QueueKey};

/// A decoded row, or [`ReadError::Row`] for one that does not decode; the rows after it can still be read.
type Row<R> = Result<R, ReadError>;

/// Number of a message that is to be read, and its answer.
pub(super) type Unread<'m> = (Lsn, &'m mut Option<StoredMessage>);

/// Owner of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// No journal was ever begun.
    Unnumbered,
    /// An import, until a store opens the tables: no existing journal belongs to them.
    Import,
    /// The store with this number, which its journal has too.
    Store(u64),
}

impl Owner {
    /// Number of an import, which no store has.
    pub(super) const IMPORT: u64 = 0;

    fn of(number: Option<u64>) -> Self {
        match number {
            None => Self::Unnumbered,
            Some(Self::IMPORT) => Self::Import,
            Some(number) => Self::Store(number),
        }
    }
}

/// State of the tables relative to the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckpointState {
    pub(super) owner: Owner,
    /// Sequence number of the last journal record that the tables contain.
    pub(super) applied: u64,
    /// True when the tables contain everything that was acknowledged.
    pub(super) is_closed: bool,
}

/// Content of the tables at one commit.
pub(super) struct Snapshot(ReadTransaction);

impl Snapshot {
    pub(super) const fn new(transaction: ReadTransaction) -> Self {
        Self(transaction)
    }

    /// `None` when nothing was ever written to the table.
    pub(super) fn table<K: Key + 'static, V: Value + 'static>(
        &self,
        table: TableDefinition<'_, K, V>,
    ) -> Result<Option<ReadOnlyTable<K, V>>, ReadError> {
        match self.0.open_table(table) {
            Ok(table) => Ok(Some(table)),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// True without any table.
    pub(super) fn is_empty(&self) -> Result<bool, ReadError> {
        Ok(self.0.list_tables()?.next().is_none() && self.0.list_multimap_tables()?.next().is_none())
    }

    /// Number of rows of the table.
    pub(super) fn rows<K: Key + 'static, V: Value + 'static>(
        &self,
        table: TableDefinition<'_, K, V>,
    ) -> Result<u64, ReadError> {
        self.table(table)?.map_or(Ok(0), |table| Ok(table.len()?))
    }

    /// Number of rows of all tables, without `meta` and chunks of payloads.
    pub(super) fn all_rows(&self) -> Result<u64, ReadError> {
        Ok(self.rows(codec::SESSION)?
            + self.rows(codec::SUBSCRIPTION)?
            + self.rows(codec::WILL)?
            + self.rows(codec::RECEIVED)?
            + self.rows(codec::QUEUE)?
            + self.rows(codec::INFLIGHT)?
            + self.rows(codec::RETAINED)?
            + self.rows(codec::MESSAGE)?)
    }

    /// A number in `meta`.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, ReadError> {
        let Some(table) = self.table(codec::META)? else { return Ok(None) };
        Ok(table.get(name)?.map(|value| value.value()))
    }

    /// The next free numbers.
    pub(super) fn next_ids(&self) -> Result<NextIds, ReadError> {
        Ok(NextIds {
            session: self.number(meta::NEXT_SESSION)?.map_or(NextIds::FIRST.session, SessionId::new),
            lsn: self.number(meta::NEXT_LSN)?.map_or(NextIds::FIRST.lsn, Lsn::new),
        })
    }

    pub(super) fn checkpoint_state(&self) -> Result<CheckpointState, ReadError> {
        Ok(CheckpointState {
            owner: Owner::of(self.number(meta::STORE)?),
            applied: self.number(meta::JOURNAL)?.unwrap_or(0),
            is_closed: self.number(meta::CLOSED)? != Some(0),
        })
    }

    pub(super) fn session(&self, session: SessionId) -> Result<SessionRecord, ReadError> {
        let key = codec::session_key(session);
        let missing = || ReadError::Row(format!("session {session} is not there").into());
        let table = self.table(codec::SESSION)?.ok_or_else(missing)?;
        let value = table.get(&key)?.ok_or_else(missing)?;
        codec::session_row(&key, value.value()).map_err(|error| ReadError::row("session", &key, error))
    }

    /// Reads the messages that have a row; large payloads are copied to the spool.
    pub(super) fn read(&self, unread: Vec<Unread<'_>>, spool: Option<&dyn Spool>) -> Result<(), ReadError> {
        let Some(rows) = self.table(codec::MESSAGE)? else { return Ok(()) };
        for (lsn, message) in unread {
            let Some(value) = rows.get(&codec::message_key(lsn))? else { continue };
            let (head, payload) = split(lsn, value.value())?;
            *message = Some(self.with_payload(lsn, head, payload, spool)?);
        }
        Ok(())
    }

    /// The message without its payload, and the payload's length in bytes.
    pub(super) fn message_head(&self, message: Lsn) -> Result<Option<(StoredMessage, usize)>, ReadError> {
        let Some(value) = self.message_row(message)? else { return Ok(None) };
        let (head, payload) = split(message, value.value())?;
        Ok(Some((head, payload.len())))
    }

    /// The encoded row of a message.
    pub(super) fn message_row(
        &self,
        message: Lsn,
    ) -> Result<Option<AccessGuard<'static, &'static [u8]>>, ReadError> {
        let Some(table) = self.table(codec::MESSAGE)? else { return Ok(None) };
        Ok(table.get(&codec::message_key(message))?)
    }

    /// Shows every row of a table in the order of its keys.
    pub(super) fn each<K: Key + 'static, V: Value + 'static, R, E: From<ReadError>>(
        &self,
        table: TableDefinition<'_, K, V>,
        decode: impl for<'a> Fn(K::SelfType<'a>, V::SelfType<'a>) -> Result<R, Malformed>,
        mut show: impl FnMut(Row<R>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(rows) = self.table(table)? else { return Ok(()) };
        for row in rows.iter().map_err(ReadError::from)? {
            let (key, value) = row.map_err(ReadError::from)?;
            let row = decode(key.value(), value.value());
            let malformed = |error| ReadError::row(table.name(), K::as_bytes(&key.value()).as_ref(), error);
            show(row.map_err(malformed))?;
        }
        Ok(())
    }

    /// Shows each message without its payload, and the payload.
    pub(super) fn each_message<E: From<ReadError>>(
        &self,
        mut show: impl FnMut(Lsn, StoredMessage, Payload<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(rows) = self.table(codec::MESSAGE)? else { return Ok(()) };
        for row in rows.iter().map_err(ReadError::from)? {
            let (key, value) = row.map_err(ReadError::from)?;
            let lsn = codec::decode_message_key(key.value());
            let (head, payload) = split(lsn, value.value())?;
            show(lsn, head, payload)?;
        }
        Ok(())
    }

    /// Shows each message with a payload that is read on demand; a large one is copied to the spool.
    pub(super) fn show_messages(
        &self,
        options: &Options,
        spool: Option<&dyn Spool>,
        show: &mut dyn FnMut(Lsn, LazyMessage<'_>),
    ) -> Result<(), ReadError> {
        let mut progress = ProgressReporter::new(options, Stage::Reading, self.rows(codec::MESSAGE)?);
        self.each_message(|lsn, head, payload| -> Result<(), ReadError> {
            progress.step(payload.len());
            let read = |head| self.with_payload(lsn, head, payload, spool).map_err(ReadError::store);
            show(lsn, LazyMessage::unread(head, payload.len(), &read));
            Ok(())
        })?;
        progress.end();
        Ok(())
    }

    /// All entries in flight: few, since each uses a packet identifier of its session.
    pub(super) fn inflight(&self) -> Result<BTreeMap<QueueKey, Inflight>, ReadError> {
        let mut all = BTreeMap::new();
        self.each(codec::INFLIGHT, codec::inflight_row, |row| -> Result<(), ReadError> {
            all.extend([row?]);
            Ok(())
        })?;
        Ok(all)
    }

    /// Shows the chunks of a payload of `length` bytes in their order, until `show` breaks.
    pub(super) fn each_chunk(
        &self,
        message: Lsn,
        length: usize,
        mut show: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let missing =
            |number| ReadError::Row(format!("part {number} of message {message} is not there").into());
        let Some(table) = self.table(codec::CHUNK)? else { return Err(missing(0)) };
        let (first, last) = (codec::chunk_key(message, 0), codec::chunk_key(message, u32::MAX));
        let (mut next, mut left) = (0, length);
        for row in table.range::<&[u8; 12]>(&first..=&last)? {
            let (key, value) = row?;
            let bytes = value.value();
            if *key.value() != codec::chunk_key(message, next) {
                return Err(missing(next));
            }
            left = left.checked_sub(bytes.len()).ok_or_else(|| {
                ReadError::Row(format!("message {message} has longer parts than it should").into())
            })?;
            next += 1;
            if show(bytes).is_break() {
                return Ok(());
            }
        }
        if left == 0 { Ok(()) } else { Err(missing(next)) }
    }

    /// Adds the payload to a message: in the spool if it is above its threshold and there is room.
    pub(super) fn with_payload(
        &self,
        lsn: Lsn,
        head: StoredMessage,
        payload: Payload<'_>,
        spool: Option<&dyn Spool>,
    ) -> Result<StoredMessage, ReadError> {
        let length = match payload {
            Payload::Inline(payload) => return Ok(head.with_copy(payload, spool)),
            Payload::Chunked(length) => length,
        };
        if let Some(spool) = spool.filter(|spool| length > spool.threshold())
            && let Some(spooled) = self.spool_chunks(lsn, length, spool)?
        {
            return Ok(head.with_payload(spooled, true));
        }
        // A damaged row may name a length that does not exist.
        let mut payload = Vec::with_capacity(length.min(CHUNK));
        self.each_chunk(lsn, length, |chunk| {
            payload.extend_from_slice(chunk);
            ControlFlow::Continue(())
        })?;
        Ok(head.with_payload(Bytes::from(payload), false))
    }

    /// Copies a chunked payload to the spool; `None` when the spool refuses it.
    fn spool_chunks(&self, lsn: Lsn, length: usize, spool: &dyn Spool) -> Result<Option<Bytes>, ReadError> {
        let Ok(mut kept) = spool.begin_reserved(length as u64) else { return Ok(None) };
        let mut is_refused = false;
        self.each_chunk(lsn, length, |chunk| {
            is_refused = kept.append(chunk).is_err();
            if is_refused { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(if is_refused { None } else { kept.finish().ok() })
    }
}

fn split(message: Lsn, value: &[u8]) -> Result<(StoredMessage, Payload<'_>), ReadError> {
    codec::split_message(value)
        .map_err(|error| ReadError::row("message", &codec::message_key(message), error))
}
