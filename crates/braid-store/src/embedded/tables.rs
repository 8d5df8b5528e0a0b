//! Tables: the redb database, opened, compacted, and written by one transaction for each checkpoint.

use std::ops::Bound;
use std::sync::Arc;

use redb::{CursorError, Database, Key, ReadableDatabase, StorageBackend, Table, Value, WriteTransaction};

use super::codec::{self, FORMAT, meta};
use super::error::{OpenError, ReadError};
use super::options::{Options, Progress, Stage};
use super::snapshot::{Owner, Snapshot};
use crate::error::StoreError;
use crate::ids::{Lsn, NextIds, SessionId};
use crate::message::StoredMessage;
use crate::write_set::{Delta, Write, WriteSet};

/// Length of the file below which it is not compacted.
const COMPACT_MIN: u64 = 16 << 20;

pub(super) struct Tables {
    database: Database,
    /// Payloads of more bytes are stored in chunks of this many.
    pub(super) chunk: usize,
    /// Path of the file, for errors.
    pub(super) path: Arc<str>,
    /// Number of snapshots that were taken.
    #[cfg(test)]
    pub(super) snapshots: std::sync::atomic::AtomicUsize,
}

impl Tables {
    /// Opens the tables on the device, or creates empty ones there. Verifies every page.
    pub(super) fn open(
        device: impl StorageBackend,
        path: &Arc<str>,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let length = device.len().map_err(|error| OpenError::of_io(path, &error))?;
        let progress = Arc::clone(&options.progress);
        let mut builder = Database::builder();
        builder.set_cache_size(options.cache);
        // Otherwise redb trusts a file that was closed in order, and panics on a damaged page of it.
        builder.set_check_integrity_on_open(true);
        builder.set_repair_callback(move |session| {
            // A fraction of 1.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100")]
            let done = (session.progress() * 100.0) as u64;
            progress(Progress { stage: Stage::Checking, done, of: 100 });
        });
        let database =
            builder.create_with_backend(device).map_err(|error| OpenError::of_database(path, error))?;
        let mut tables = Self {
            database,
            chunk: options.chunk.max(1),
            path: Arc::clone(path),
            #[cfg(test)]
            snapshots: Default::default(),
        };
        tables.check_format()?;
        tables.compact(length, options)?;
        Ok(tables)
    }

    fn check_format(&self) -> Result<(), OpenError> {
        let found =
            self.snapshot().and_then(|snapshot| Ok((snapshot.number(meta::FORMAT)?, snapshot.is_empty()?)));
        match found.map_err(|error| error.open(&self.path))? {
            (Some(found), _) if found > FORMAT => {
                Err(OpenError::Newer { path: Arc::clone(&self.path), found })
            }
            (Some(1..=FORMAT), _) | (None, true) => Ok(()),
            (Some(found), _) => Err(OpenError::damaged(&self.path, format!("there is no format {found}"))),
            (None, false) => Err(OpenError::Foreign(Arc::clone(&self.path))),
        }
    }

    /// Returns space to the file system when more than half of the file is free.
    fn compact(&mut self, length: u64, options: &Options) -> Result<(), OpenError> {
        if length < COMPACT_MIN || self.used()? > length / 2 {
            return Ok(());
        }
        let report = |done| (options.progress)(Progress { stage: Stage::Compacting, done, of: 1 });
        report(0);
        self.database.compact().map_err(|error| OpenError::of_redb(&self.path, error.into()))?;
        report(1);
        Ok(())
    }

    /// Bytes of the allocated pages.
    pub(super) fn used(&self) -> Result<u64, OpenError> {
        let failed = |error: redb::Error| OpenError::of_redb(&self.path, error);
        let transaction = self.database.begin_write().map_err(|error| failed(error.into()))?;
        let stats = transaction.stats().map_err(|error| failed(error.into()))?;
        transaction.abort().map_err(|error| failed(error.into()))?;
        Ok(stats.allocated_pages().saturating_mul(stats.page_size() as u64))
    }

    /// A transaction of the caller's, for an import.
    pub(super) fn transaction(&self) -> Result<WriteTransaction, ReadError> {
        Ok(self.database.begin_write()?)
    }

    pub(super) fn snapshot(&self) -> Result<Snapshot, ReadError> {
        #[cfg(test)]
        self.snapshots.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Snapshot::new(self.database.begin_read()?))
    }

    /// Counts this opening durably, before any claim or number is granted. Returns the count and the next free numbers.
    /// `store` is the number of the journal, which from now on may have records that the tables do not, or
    /// [`Owner::IMPORT`].
    pub(super) fn count_opening(&self, store: u64) -> Result<(u64, NextIds), ReadError> {
        let before = self.snapshot()?;
        let (opens, next) = (before.number(meta::OPENS)?.unwrap_or(0).saturating_add(1), before.next_ids()?);
        // An open snapshot would keep the pages of the former numbers.
        drop(before);
        let transaction = self.transaction()?;
        let closed = u64::from(store == Owner::IMPORT);
        let numbers =
            [(meta::FORMAT, FORMAT), (meta::OPENS, opens), (meta::STORE, store), (meta::CLOSED, closed)];
        put_numbers(&transaction, &numbers)?;
        transaction.commit()?;
        Ok((opens, next))
    }

    /// Gives a number to tables that have none, and so have everything.
    pub(super) fn set_number(&self, store: u64) -> Result<(), ReadError> {
        let transaction = self.transaction()?;
        put_numbers(&transaction, &[(meta::FORMAT, FORMAT), (meta::STORE, store), (meta::CLOSED, 1)])?;
        Ok(transaction.commit()?)
    }

    /// Applies the changes of all journal records up to `sequence` durably; `closed` when the tables then have
    /// everything. After an error the content of the device is unknown.
    pub(super) fn apply(&self, writes: &WriteSet, sequence: u64, closed: bool) -> Result<(), StoreError> {
        self.try_apply(writes, sequence, closed).map_err(|error| match error {
            ReadError::Redb(error) => StoreError::Failed { reason: error.to_string().into() },
            ReadError::Row(reason) => StoreError::Failed { reason },
        })
    }

    pub(super) fn try_apply(&self, writes: &WriteSet, sequence: u64, closed: bool) -> Result<(), ReadError> {
        let transaction = self.transaction()?;
        write(&transaction, writes, self.chunk)?;
        let numbers = [(meta::JOURNAL, sequence), (meta::CLOSED, 1)];
        put_numbers(&transaction, if closed { &numbers } else { &numbers[..1] })?;
        Ok(transaction.commit()?)
    }
}

/// Sets numbers in `meta`.
fn put_numbers(transaction: &WriteTransaction, numbers: &[(&str, u64)]) -> Result<(), ReadError> {
    let mut table = transaction.open_table(codec::META)?;
    for (name, number) in numbers {
        table.insert(name, number)?;
    }
    Ok(())
}

/// Writes the changes into the tables: each table in the order of its keys, and only tables with a change. Payloads of
/// more than `chunk` bytes are stored in chunks.
pub(super) fn write(
    transaction: &WriteTransaction,
    writes: &WriteSet,
    chunk: usize,
) -> Result<(), ReadError> {
    write_sessions(transaction, writes)?;
    if let Some(next) = writes.next {
        let numbers = [(meta::NEXT_SESSION, next.session.value()), (meta::NEXT_LSN, next.lsn.value())];
        put_numbers(transaction, &numbers)?;
    }
    if !writes.messages.is_empty() {
        let mut removed = Vec::new();
        write_ordered(
            &mut transaction.open_table(codec::MESSAGE)?,
            &writes.messages,
            |lsn| codec::message_key(*lsn),
            |_, message, value| codec::encode_message_up_to(value, message, chunk),
            |lsn, value| removed.extend(codec::is_chunked(value).then_some(*lsn)),
        )?;
        write_chunks(transaction, &writes.messages, chunk, removed)?;
    }
    if !writes.queue.is_empty() {
        write_ordered(
            &mut transaction.open_table(codec::QUEUE)?,
            &writes.queue,
            |key| codec::queue_key(*key),
            |key, delivery, value| codec::encode_delivery(value, *key, delivery),
            |_, _| {},
        )?;
    }
    if !writes.inflight.is_empty() {
        let mut table = transaction.open_table(codec::INFLIGHT)?;
        for (key, write) in writes.inflight.iter() {
            let value = write.value().map(|inflight| codec::encode_inflight(*inflight));
            set(&mut table, &codec::queue_key(*key), value.as_ref())?;
        }
    }
    if !writes.retained.is_empty() {
        let mut table = transaction.open_table(codec::RETAINED)?;
        for (topic, write) in writes.retained.iter() {
            let value = write.value().map(|message| codec::message_key(*message));
            set(&mut table, topic.as_str().as_bytes(), value.as_ref())?;
        }
    }
    Ok(())
}

fn write_sessions(transaction: &WriteTransaction, writes: &WriteSet) -> Result<(), ReadError> {
    let mut buffer = Vec::new();
    for session in &writes.closed {
        remove_session_rows(transaction, *session)?;
    }
    if !writes.sessions.is_empty() {
        let mut table = transaction.open_table(codec::SESSION)?;
        for (session, write) in writes.sessions.iter() {
            let value = write.value().map(|record| codec::encode_session(&mut buffer, record));
            set(&mut table, &codec::session_key(*session), value.map(|()| &*buffer))?;
            buffer.clear();
        }
    }
    for (session, rows) in &writes.session_rows {
        if let Some(will) = &rows.will {
            let value = will.value().map(|will| codec::encode_will(&mut buffer, will));
            let mut table = transaction.open_table(codec::WILL)?;
            set(&mut table, &codec::session_key(*session), value.map(|()| &*buffer))?;
            buffer.clear();
        }
        if !rows.subscriptions.is_empty() {
            let mut table = transaction.open_table(codec::SUBSCRIPTION)?;
            for (filter, write) in rows.subscriptions.iter() {
                let value = write.value().map(|value| codec::encode_subscription(&mut buffer, value));
                let key = codec::subscription_key(*session, filter);
                set(&mut table, &*key, value.map(|()| &*buffer))?;
                buffer.clear();
            }
        }
        if !rows.received.is_empty() {
            let mut table = transaction.open_table(codec::RECEIVED)?;
            for (packet_id, write) in rows.received.iter() {
                let value = write.value().map(|exchanges| exchanges.get().to_be_bytes());
                set(&mut table, &codec::received_key(*session, packet_id.value()), value.as_ref())?;
            }
        }
    }
    Ok(())
}

fn remove_session_rows(transaction: &WriteTransaction, session: SessionId) -> Result<(), ReadError> {
    transaction.open_table(codec::WILL)?.remove(&codec::session_key(session))?;
    let (from, to) = (codec::session_key(session), codec::session_key(session.next()));
    let mut table = transaction.open_table(codec::SUBSCRIPTION)?;
    if session.next() == session {
        table.retain_in(&from[..].., |_, _| false)?;
    } else {
        table.retain_in(&from[..]..&to[..], |_, _| false)?;
    }
    let (first, last) = (codec::received_key(session, 0), codec::received_key(session, u16::MAX));
    transaction.open_table(codec::RECEIVED)?.retain_in::<&[u8; 10], _>(&first..=&last, |_, _| false)?;
    Ok(())
}

fn set<'v, K: Key + 'static, V: Value + 'static>(
    table: &mut Table<'_, K, V>,
    key: K::SelfType<'_>,
    value: Option<V::SelfType<'v>>,
) -> Result<(), ReadError> {
    match value {
        Some(value) => table.insert(key, value).map(drop)?,
        None => table.remove(key).map(drop)?,
    }
    Ok(())
}

/// Writes a table whose new rows are mostly consecutive and behind all others. `replaced` gets the former values of
/// updated and removed rows.
fn write_ordered<K: Ord, V, const N: usize>(
    table: &mut Table<'_, &'static [u8; N], &'static [u8]>,
    delta: &Delta<K, V>,
    key: impl Fn(&K) -> [u8; N],
    encode: impl Fn(&K, &V, &mut Vec<u8>),
    mut replaced: impl FnMut(&K, &[u8]),
) -> Result<(), ReadError> {
    let mut value = Vec::new();
    let mut inserts = Vec::new();
    for (row, write) in delta.iter() {
        let former = match write {
            Write::New(new) => {
                inserts.push((row, new));
                continue;
            }
            Write::Put(new) => {
                value.clear();
                encode(row, new, &mut value);
                table.insert(&key(row), &*value)?
            }
            Write::Remove => table.remove(&key(row))?,
        };
        if let Some(former) = former {
            replaced(row, former.value());
        }
    }
    let mut inserts = inserts.into_iter().peekable();
    // A cursor descends to its page once for a run of consecutive rows. A row of an earlier group whose number was
    // taken later may stand between them and ends the run.
    while let Some((first, new)) = inserts.next() {
        value.clear();
        encode(first, new, &mut value);
        table.insert(&key(first), &*value)?;
        let mut cursor = table.lower_bound_mut(Bound::Excluded(&key(first)))?;
        while let Some((row, new)) = inserts.peek() {
            value.clear();
            encode(row, new, &mut value);
            match cursor.insert_before(&key(row), &*value) {
                Ok(()) => drop(inserts.next()),
                Err(CursorError::UnorderedKey) => break,
                Err(error) => return Err(ReadError::Redb(error.into())),
            }
        }
        cursor.close()?;
    }
    Ok(())
}

/// Removes the chunks of messages whose rows were removed or replaced, and writes those of large new payloads, so that
/// neither a transaction nor a reader has a large payload as a whole in memory.
fn write_chunks(
    transaction: &WriteTransaction,
    messages: &Delta<Lsn, StoredMessage>,
    chunk: usize,
    removed: Vec<Lsn>,
) -> Result<(), ReadError> {
    let stored = messages.iter().filter_map(|(lsn, write)| Some((*lsn, write.value()?)));
    let mut stored = stored.filter(|(_, message)| message.payload().len() > chunk).peekable();
    if removed.is_empty() && stored.peek().is_none() {
        return Ok(());
    }
    let mut table = transaction.open_table(codec::CHUNK)?;
    for lsn in removed {
        let (first, last) = (codec::chunk_key(lsn, 0), codec::chunk_key(lsn, u32::MAX));
        table.retain_in::<&[u8; 12], _>(&first..=&last, |_, _| false)?;
    }
    for (lsn, message) in stored {
        for (number, bytes) in (0..).zip(message.payload().chunks(chunk)) {
            table.insert(&codec::chunk_key(lsn, number), bytes)?;
        }
    }
    Ok(())
}
