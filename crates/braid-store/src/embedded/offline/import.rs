//! Import of an export, into an empty store or in place of an existing one.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Take};
use std::mem;
use std::path::Path;
use std::sync::Arc;

use braid_proto::session::SessionExpiry;
use braid_proto::stream::Priority;
use braid_proto::topic::TopicName;
use redb::{ReadableTable, StorageBackend, WriteTransaction};

use super::super::codec::{self, FORMAT};
use super::super::error::{OpenError, ReadError};
use super::super::files;
use super::super::journal::JournalFile;
use super::super::options::{Options, ProgressReporter, Stage};
use super::super::snapshot::Owner;
use super::super::tables::write;
use super::record::{self, Invalid, Record, Step, Time};
use super::{InflightIds, NUMBER_LIMIT, OfflineStore, TransferError, check_retained};
use crate::ids::{Claim, Lsn, NextIds, SessionId};
use crate::index::Index;
use crate::message::{StoredDelivery, StoredMessage};
use crate::session::{SessionRecord, StoredSubscription};
use crate::write_set::{Inflight, Phase, QueueKey, Write, WriteSet};

/// Number of records that are written to the tables at once.
const BATCH_RECORDS: u64 = 4096;
/// Bytes of lines after which fewer records are written.
const BATCH_BYTES: usize = 16 << 20;
/// Longest line in bytes: MQTT's largest message with every byte as `\u0000`, and room for its properties.
const LINE_MAX: u64 = 2 << 30;

impl OfflineStore {
    /// Reads an [`export`](Self::export) into this store, which must be empty, atomically. Returns the number of
    /// records.
    ///
    /// Uses as much memory as a broker's index: some bytes for each session, queue entry and message, no payloads.
    ///
    /// # Errors
    /// Every [`TransferError`].
    pub fn import(&self, from: &mut dyn Read) -> Result<u64, TransferError> {
        if !self.is_empty()? {
            return Err(TransferError::NotEmpty { path: Arc::clone(&self.tables.path) });
        }
        let opened = self.tables.count_opening(Owner::IMPORT).and_then(|_| self.tables.transaction());
        let transaction = opened.map_err(|error| self.open_error(error))?;
        let mut progress = ProgressReporter::new(&self.options, Stage::Importing, 0);
        let mut import = Import::new(&transaction, self.tables.chunk, &self.options);
        let mut lines = BufReader::with_capacity(1 << 16, from).take(LINE_MAX);
        let mut text = Vec::new();
        let mut line = 0;
        while !import.ended {
            line += 1;
            read_line(&mut lines, &mut text, line)?;
            import.line(&text).map_err(|error| error.at(line, &self.tables.path))?;
            progress.step(text.len());
        }
        import.end().map_err(|error| error.at(line, &self.tables.path))?;
        transaction.commit().map_err(|error| self.open_error(error.into()))?;
        Ok(line)
    }

    fn is_empty(&self) -> Result<bool, OpenError> {
        let snapshot = self.tables.snapshot();
        let rows = snapshot.and_then(|snapshot| Ok(snapshot.all_rows()? + snapshot.rows(codec::CHUNK)?));
        Ok(rows.map_err(|error| self.open_error(error))? == 0)
    }

    /// Creates the data directory's store from an [`export`](Self::export). The new tables are written beside the
    /// existing ones and replace them when they are complete and durable; if anything fails before, nothing is changed.
    /// Returns the number of records.
    ///
    /// # Errors
    /// Every [`TransferError`].
    pub fn restore(
        directory: &Path,
        existing: Existing,
        from: &mut dyn Read,
        options: Options,
    ) -> Result<u64, TransferError> {
        let existed = files::exists(directory);
        // Until the end, so that no broker opens the store that is about to be replaced.
        let lock = Self::lock(directory, existing, &options)?;
        let restored = Self::restore_beside(directory, from, options);
        if restored.is_err() {
            files::discard(directory, !existed);
        }
        let records = restored?;
        files::sync_directory(directory)?;
        drop(lock);
        Ok(records)
    }

    /// Locks the existing tables, or creates them to lock them.
    fn lock(directory: &Path, existing: Existing, options: &Options) -> Result<Box<dyn Send>, TransferError> {
        let (device, path, id) = files::tables_device(directory)?;
        let length = device.len().map_err(|error| OpenError::of_io(&path, &error))?;
        if existing == Existing::Replace || length == 0 {
            files::lock(&device, &path)?;
            id.check(directory, &path)?;
            return Ok(Box::new(device));
        }
        let journal = || {
            id.check(directory, &path)?;
            JournalFile::in_directory(directory, false)
        };
        let store = Self::over(device, &path, journal, options.clone())?;
        if store.is_empty()? { Ok(Box::new(store)) } else { Err(TransferError::NotEmpty { path }) }
    }

    fn restore_beside(directory: &Path, from: &mut dyn Read, options: Options) -> Result<u64, TransferError> {
        let (device, path) = files::new_device(directory)?;
        // The first broker that opens it begins its journal; an existing one is not read.
        let store = Self::over(device, &path, || Ok(None), options)?;
        let records = store.import(from)?;
        // Closing writes, too.
        drop(store);
        files::replace_tables(directory)?;
        Ok(records)
    }
}

/// Treatment of a store that exists in the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Refuses the import unless the store is empty.
    Keep,
    /// Replaces the store once the new one is complete, even if it is damaged or not a store.
    Replace,
}

fn read_line(
    lines: &mut Take<BufReader<&mut dyn Read>>,
    text: &mut Vec<u8>,
    line: u64,
) -> Result<(), TransferError> {
    let invalid = |reason: Invalid| TransferError::Line { line, reason: reason.into() };
    // A file that is not text may have no line feed in many gigabytes.
    match lines.fill_buf()?.first() {
        None => return Err(invalid("the end is missing")),
        Some(b'{') => {}
        Some(_) => return Err(invalid("there is no JSON object")),
    }
    text.clear();
    lines.read_until(b'\n', text)?;
    if lines.limit() == 0 {
        return Err(invalid("the line is too long"));
    }
    lines.set_limit(LINE_MAX);
    Ok(())
}

enum ImportError {
    Invalid(Arc<str>),
    Newer(u64),
    Store(ReadError),
}

impl ImportError {
    fn at(self, line: u64, path: &Arc<str>) -> TransferError {
        match self {
            Self::Invalid(reason) => TransferError::Line { line, reason },
            Self::Newer(found) => TransferError::Newer { found, known: FORMAT },
            Self::Store(error) => error.open(path).into(),
        }
    }
}

impl From<Invalid> for ImportError {
    fn from(reason: Invalid) -> Self {
        Self::Invalid(reason.into())
    }
}

impl From<ReadError> for ImportError {
    fn from(error: ReadError) -> Self {
        Self::Store(error)
    }
}

/// serde's error without its line number, which is always 1. It quotes the record, so control characters are replaced.
fn not_a_record(error: &serde_json::Error) -> ImportError {
    let text = error.to_string().replace(char::is_control, "?");
    let what = text.split_once(" at line ").map_or(&*text, |(what, _)| what);
    let at = if error.column() == 0 { String::new() } else { format!(" at column {}", error.column()) };
    ImportError::Invalid(format!("{what}{at}").into())
}

/// Error of a text that no broker could read. It may quote the text, so control characters are replaced.
fn not_valid(what: &str, checked: Result<(), String>) -> Result<(), ImportError> {
    checked.map_err(|reason| {
        ImportError::Invalid(format!("{what}: {reason}").replace(char::is_control, "?").into())
    })
}

fn ensure(is_valid: bool, reason: Invalid) -> Result<(), ImportError> {
    if is_valid { Ok(()) } else { Err(reason.into()) }
}

fn retained_topic(head: &StoredMessage, payload: usize) -> Result<TopicName, Invalid> {
    check_retained(head, payload).map(|()| head.topic().clone())
}

/// Import of records in one transaction.
struct Import<'t> {
    transaction: &'t WriteTransaction,
    /// Payloads of more bytes are stored in chunks of this many.
    chunk: usize,
    options: &'t Options,
    writes: WriteSet,
    /// Sessions and queues so far, to refuse records without their session or twice.
    index: Index,
    messages: BTreeSet<Lsn>,
    inflight_ids: InflightIds,
    next: NextIds,
    records: u64,
    /// Bytes of the lines of the records in `writes`.
    bytes: usize,
    ended: bool,
}

impl<'t> Import<'t> {
    fn new(transaction: &'t WriteTransaction, chunk: usize, options: &'t Options) -> Self {
        Self {
            transaction,
            chunk,
            options,
            writes: WriteSet::default(),
            index: Index::new(Claim::new(0), NextIds::FIRST),
            messages: BTreeSet::new(),
            inflight_ids: InflightIds::default(),
            next: NextIds::FIRST,
            records: 0,
            bytes: 0,
            ended: false,
        }
    }

    fn line(&mut self, text: &[u8]) -> Result<(), ImportError> {
        let record: Record = serde_json::from_slice(text).map_err(|error| not_a_record(&error))?;
        if self.records == 0 && !matches!(record, Record::Store { .. }) {
            return Err("the first record must be that of the store".into());
        }
        self.add(record)?;
        self.records += 1;
        self.bytes += text.len();
        if self.records.is_multiple_of(BATCH_RECORDS) || self.bytes >= BATCH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ImportError> {
        self.bytes = 0;
        Ok(write(self.transaction, &mem::take(&mut self.writes), self.chunk)?)
    }

    fn add(&mut self, record: Record) -> Result<(), ImportError> {
        let numbers = record.numbers();
        if numbers.as_ref().is_some_and(|numbers| *numbers.end() >= NUMBER_LIMIT) {
            return Err("a number is out of range".into());
        }
        if numbers.is_some_and(|numbers| *numbers.start() == 0) {
            return Err("numbers begin at 1".into());
        }
        match record {
            Record::Store { .. } if self.records > 0 => Err("the store is there twice".into()),
            Record::Store { format, .. } if format > FORMAT => Err(ImportError::Newer(format)),
            Record::Store { format: 0, .. } => Err("there is no format 0".into()),
            Record::Store { next_session, next_lsn, .. } => {
                self.count(SessionId::new(next_session), Lsn::new(next_lsn));
                Ok(())
            }
            Record::Message { lsn, content } => {
                let (lsn, message) = (Lsn::new(lsn), content.message()?);
                if let Some(publisher) = message.publisher() {
                    not_valid("the publisher", (self.options.check_publisher)(publisher))?;
                }
                self.writes.messages.insert(lsn, message);
                self.count(NextIds::FIRST.session, lsn.next());
                ensure(self.messages.insert(lsn), "the message is there twice")
            }
            Record::Retained { message } => self.retained(Lsn::new(message)),
            Record::End { records } => {
                self.ended = true;
                ensure(records == self.records, "records are missing")
            }
            Record::Queued { .. } | Record::Released { .. } => self.add_entry(record),
            record => self.add_session(record),
        }
    }

    /// Adds a session, or a row of one outside of its queue.
    fn add_session(&mut self, record: Record) -> Result<(), ImportError> {
        match record {
            Record::Session { session, client_id, identity, expiry, parked_at } => {
                let (id, client_id) = (SessionId::new(session), client_id.as_ref().into());
                let parked_at = parked_at.map(Time::time).transpose()?;
                let expiry = SessionExpiry::from_secs(expiry);
                if let Some(identity) = &identity {
                    not_valid("the identity", (self.options.check_identity)(identity))?;
                }
                let identity = identity.map(Into::into);
                let session = SessionRecord { id, client_id, identity, expiry, parked_at };
                self.count(session.id.next(), NextIds::FIRST.lsn);
                self.writes.sessions.insert(session.id, session.clone());
                let is_new = self.index.load_session(session);
                ensure(is_new, "the session or its client is there twice")
            }
            Record::Will { session, delay, content } => {
                let session = self.session(session)?;
                self.writes.session_rows(session).will =
                    Some(Write::Put(Arc::new(content.message()?.to_will(delay))));
                Ok(())
            }
            Record::Subscription {
                session,
                filter,
                qos,
                no_local,
                retain_as_published,
                retain_handling,
                id,
                priority,
            } => {
                let session = self.session(session)?;
                let subscription = StoredSubscription {
                    qos: record::qos(qos)?,
                    no_local,
                    retain_as_published,
                    retain_handling: record::retain_handling(retain_handling)?,
                    id: id.map(record::subscription_id).transpose()?,
                    priority: priority.map(Priority::new),
                };
                let filter = record::filter(&filter)?;
                self.writes.session_rows(session).subscriptions.put(filter, subscription);
                Ok(())
            }
            Record::Received { session, packet_id, exchanges } => {
                let session = self.session(session)?;
                self.writes.session_rows(session).received.put(record::packet_id(packet_id)?, exchanges);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Adds a queue entry.
    fn add_entry(&mut self, record: Record) -> Result<(), ImportError> {
        match record {
            Record::Queued {
                session,
                lsn,
                message,
                qos,
                retain,
                subscription_ids,
                priority,
                shared,
                enqueued_at,
                sent,
            } => {
                let (key, message) = ((Lsn::new(lsn), self.session(session)?), Lsn::new(message));
                ensure(self.messages.contains(&message), "its message is not there")?;
                let delivery = StoredDelivery {
                    message,
                    qos: record::queued_qos(qos)?,
                    retain,
                    subscription_ids: record::subscription_ids(subscription_ids)?,
                    priority: Priority::new(priority),
                    shared: shared.map(|text| record::filter(&text).map(Arc::new)).transpose()?,
                    enqueued_at: enqueued_at.map(Time::time).transpose()?,
                };
                ensure(self.index.load_queued(key, message), "the entry is there twice")?;
                self.count(NextIds::FIRST.session, key.0.next());
                self.writes.queue.insert(key, delivery);
                sent.map_or(Ok(()), |step| self.step(key, Phase::Sent, step))
            }
            Record::Released { session, lsn, step } => {
                let key = (Lsn::new(lsn), self.session(session)?);
                self.count(NextIds::FIRST.session, key.0.next());
                self.step(key, Phase::Released, step)
            }
            _ => Ok(()),
        }
    }

    fn step(&mut self, key: QueueKey, phase: Phase, step: Step) -> Result<(), ImportError> {
        let inflight = Inflight { phase, packet_id: record::packet_id(step.packet_id)?, step: step.step };
        ensure(self.index.load_inflight(key, inflight), "the entry is there twice")?;
        ensure(
            self.inflight_ids.insert((key.1, inflight.packet_id)),
            "the session uses the packet identifier for another message",
        )?;
        self.writes.inflight.insert(key, inflight);
        Ok(())
    }

    fn retained(&mut self, message: Lsn) -> Result<(), ImportError> {
        let topic = match self.writes.messages.get(&message).and_then(Write::value) {
            Some(stored) => retained_topic(stored, stored.payload().len())?,
            None => self.stored_topic(message)?,
        };
        ensure(self.index.load_retained(topic.clone(), message), "the topic has a retained message already")?;
        self.writes.retained.insert(topic, message);
        Ok(())
    }

    /// Topic of a message that is already written to the table.
    fn stored_topic(&self, message: Lsn) -> Result<TopicName, ImportError> {
        let table = self.transaction.open_table(codec::MESSAGE).map_err(ReadError::from)?;
        let key = codec::message_key(message);
        let row = table.get(&key).map_err(ReadError::from)?;
        let row = row.ok_or("its message is not there")?;
        let split = codec::split_message(row.value());
        let (head, payload) = split.map_err(|error| ReadError::row("message", &key, error))?;
        Ok(retained_topic(&head, payload.len())?)
    }

    /// The session, if its record came before.
    fn session(&self, session: u64) -> Result<SessionId, Invalid> {
        let session = SessionId::new(session);
        if self.index.has_session(session) { Ok(session) } else { Err("its session is not there") }
    }

    fn count(&mut self, session: SessionId, lsn: Lsn) {
        self.next = NextIds { session: self.next.session.max(session), lsn: self.next.lsn.max(lsn) };
    }

    fn end(mut self) -> Result<(), ImportError> {
        if self.index.references().len() != self.messages.len() {
            return Err("there are messages without a reference".into());
        }
        self.writes.next = Some(self.next);
        self.flush()
    }
}
