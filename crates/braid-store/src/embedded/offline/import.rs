use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Take};
use std::mem;
use std::sync::Arc;

use braid_proto::stream::Priority;
use braid_proto::topic::TopicName;
use redb::{ReadableTable, WriteTransaction};

use super::super::error::ReadError;
use super::super::index::Index;
use super::super::keys::{self, FORMAT};
use super::super::marks::Opening;
use super::super::options::{Stage, Teller};
use super::super::write::write;
use super::super::writes::{Inflight, Phase, Write, Writes};
use super::record::{self, Record, Step, Time, Wrong};
use super::sound::{self, Identifiers};
use super::{BEYOND, OfflineStore, OpenError, TransferError};
use crate::identity::{Claim, Lsn, SessionId};
use crate::message::{StoredDelivery, StoredMessage};
use crate::recover::NextIds;
use crate::subscription::StoredSubscription;

/// Records that are brought into the tables at once ...
const CHUNK: u64 = 4096;
/// ... unless their payloads together have so many bytes before.
const CHUNK_BYTES: usize = 16 << 20;
/// No record is longer: the largest message that MQTT has, with every byte as `\u0000`, and room for its properties.
const LINE: u64 = 2 << 30;

impl OfflineStore {
    /// Reads what [`export`](Self::export) wrote into this store, which must be empty. All of it is there
    /// afterwards, or nothing. How many records there were.
    ///
    /// What it remembers is what a broker would: some bytes for each session, queue entry and message, no payloads.
    ///
    /// # Errors
    /// Every [`TransferError`].
    pub fn import(&self, from: &mut dyn Read) -> Result<u64, TransferError> {
        if !self.is_empty()? {
            return Err(TransferError::NotEmpty { place: Arc::clone(&self.file.place) });
        }
        self.file.note_opening(Opening::Import)?;
        let transaction = self.file.transaction().map_err(|error| self.open_error(error))?;
        let mut teller = Teller::new(&self.options, Stage::Importing, 0);
        let mut import = Import::new(&transaction, self.file.part);
        let mut lines = BufReader::with_capacity(1 << 16, from).take(LINE);
        let mut text = Vec::new();
        let mut line = 0;
        while !import.ended {
            line += 1;
            read_line(&mut lines, &mut text, line)?;
            import.line(&text).map_err(|refusal| refusal.at(line, &self.file.place))?;
            teller.step_over(text.len());
        }
        import.end().map_err(|refusal| refusal.at(line, &self.file.place))?;
        transaction.commit().map_err(|error| self.open_error(error.into()))?;
        Ok(line)
    }

    pub(super) fn is_empty(&self) -> Result<bool, OpenError> {
        let rows =
            self.file.snapshot().and_then(|snapshot| Ok((snapshot.all_rows()?, snapshot.rows(keys::PART)?)));
        Ok(rows.map_err(|error| self.open_error(error))? == (0, 0))
    }
}

fn read_line(
    lines: &mut Take<BufReader<&mut dyn Read>>,
    text: &mut Vec<u8>,
    line: u64,
) -> Result<(), TransferError> {
    let wrong = |reason: Wrong| TransferError::Line { line, reason: reason.into() };
    // What is no text at all may have no line in many gigabytes.
    match lines.fill_buf()?.first() {
        None => return Err(wrong("the end is missing")),
        Some(b'{') => {}
        Some(_) => return Err(wrong("there is no JSON object")),
    }
    text.clear();
    lines.read_until(b'\n', text)?;
    if lines.limit() == 0 {
        return Err(wrong("the line is too long"));
    }
    lines.set_limit(LINE);
    Ok(())
}

enum Refusal {
    Wrong(Arc<str>),
    Newer(u64),
    Store(ReadError),
}

impl Refusal {
    fn at(self, line: u64, place: &Arc<str>) -> TransferError {
        match self {
            Self::Wrong(reason) => TransferError::Line { line, reason },
            Self::Newer(found) => TransferError::Newer { found, known: FORMAT },
            Self::Store(error) => error.open(place).into(),
        }
    }
}

impl From<Wrong> for Refusal {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong.into())
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        Self::Store(error)
    }
}

/// What serde says, without its line: that is always the first. It cites the record, line feeds and all.
fn not_a_record(error: &serde_json::Error) -> Refusal {
    let text = error.to_string().replace(char::is_control, "?");
    let what = text.split_once(" at line ").map_or(&*text, |(what, _)| what);
    let at = if error.column() == 0 { String::new() } else { format!(" at column {}", error.column()) };
    Refusal::Wrong(format!("{what}{at}").into())
}

fn retained_topic(head: &StoredMessage, payload: usize) -> Result<TopicName, Wrong> {
    sound::retained(head, payload).map(|()| head.topic().clone())
}

/// Records on their way into one transaction.
struct Import<'t> {
    transaction: &'t WriteTransaction,
    /// Payloads that are longer are in parts.
    part: usize,
    writes: Writes,
    /// Who owns what, so that nothing comes in that belongs to nobody.
    index: Index,
    messages: BTreeSet<Lsn>,
    identifiers: Identifiers,
    next: NextIds,
    records: u64,
    /// Bytes of the lines whose records are in `writes`.
    bytes: usize,
    ended: bool,
}

impl<'t> Import<'t> {
    fn new(transaction: &'t WriteTransaction, part: usize) -> Self {
        Self {
            transaction,
            part,
            writes: Writes::default(),
            index: Index::new(Claim::new(0), NextIds::FIRST),
            messages: BTreeSet::new(),
            identifiers: Identifiers::default(),
            next: NextIds::FIRST,
            records: 0,
            bytes: 0,
            ended: false,
        }
    }

    fn line(&mut self, text: &[u8]) -> Result<(), Refusal> {
        let record: Record = serde_json::from_slice(text).map_err(|error| not_a_record(&error))?;
        if self.records == 0 && !matches!(record, Record::Store { .. }) {
            return Err("the first record must be that of the store".into());
        }
        self.take(record)?;
        self.records += 1;
        self.bytes += text.len();
        if self.records.is_multiple_of(CHUNK) || self.bytes >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Refusal> {
        self.bytes = 0;
        Ok(write(self.transaction, &mem::take(&mut self.writes), self.part)?)
    }

    fn take(&mut self, record: Record) -> Result<(), Refusal> {
        let numbers = record.numbers();
        if numbers.as_ref().is_some_and(|numbers| *numbers.end() >= BEYOND) {
            return Err("a number is out of range".into());
        }
        if numbers.is_some_and(|numbers| *numbers.start() == 0) {
            return Err("numbers begin at 1".into());
        }
        match record {
            Record::Store { .. } if self.records > 0 => Err("the store is there twice".into()),
            Record::Store { format, .. } if format > FORMAT => Err(Refusal::Newer(format)),
            Record::Store { format: 0, .. } => Err("there is no format 0".into()),
            Record::Store { next_session, next_lsn, .. } => {
                self.count(SessionId::new(next_session), Lsn::new(next_lsn));
                Ok(())
            }
            Record::Message { lsn, content } => {
                let lsn = Lsn::new(lsn);
                self.writes.messages.insert(lsn, content.message()?);
                self.count(NextIds::FIRST.session, lsn.next());
                if self.messages.insert(lsn) { Ok(()) } else { Err("the message is there twice".into()) }
            }
            Record::Retained { message } => self.retained(Lsn::new(message)),
            Record::End { records } => {
                self.ended = true;
                if records == self.records { Ok(()) } else { Err("records are missing".into()) }
            }
            Record::Queued { .. } | Record::Released { .. } => self.entry(record),
            record => self.belonging(record),
        }
    }

    /// Sessions and what belongs to them, but for their queues.
    fn belonging(&mut self, record: Record) -> Result<(), Refusal> {
        match record {
            Record::Session { session, client_id, expiry, parked_at } => {
                let session = record::session(session, &client_id, expiry, parked_at)?;
                self.count(session.id.next(), NextIds::FIRST.lsn);
                self.writes.sessions.insert(session.id, session.clone());
                if self.index.load_session(session) {
                    Ok(())
                } else {
                    Err("the session or its client is there twice".into())
                }
            }
            Record::Will { session, delay, content } => {
                let session = self.known(session)?;
                self.writes.belongings(session).will = Some(Write::Put(content.will(delay)?));
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
                let session = self.known(session)?;
                let subscription = StoredSubscription {
                    qos: record::qos(qos)?,
                    no_local,
                    retain_as_published,
                    retain_handling: record::retain_handling(retain_handling)?,
                    id: id.map(record::subscription_id).transpose()?,
                    priority: priority.map(Priority::new),
                };
                let filter = record::filter(&filter)?;
                self.writes.belongings(session).subscriptions.put(filter, subscription);
                Ok(())
            }
            Record::Received { session, packet_id, exchanges } => {
                let session = self.known(session)?;
                self.writes.belongings(session).received.put(record::packet_id(packet_id)?, exchanges);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Entries of queues.
    fn entry(&mut self, record: Record) -> Result<(), Refusal> {
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
                waits_since,
                sent,
            } => {
                let (place, message) = ((Lsn::new(lsn), self.known(session)?), Lsn::new(message));
                if !self.messages.contains(&message) {
                    return Err("its message is not there".into());
                }
                let delivery = StoredDelivery {
                    message,
                    qos: record::queued_qos(qos)?,
                    retain,
                    subscription_ids: record::subscription_ids(subscription_ids)?,
                    priority: Priority::new(priority),
                    shared: shared.map(|text| record::filter(&text).map(Arc::new)).transpose()?,
                    waits_since: waits_since.map(Time::time).transpose()?,
                };
                if !self.index.load_queued(place, message) {
                    return Err("the entry is there twice".into());
                }
                self.count(NextIds::FIRST.session, place.0.next());
                self.writes.queue.insert(place, delivery);
                sent.map_or(Ok(()), |step| self.step(place, Phase::Sent, step))
            }
            Record::Released { session, lsn, step } => {
                let place = (Lsn::new(lsn), self.known(session)?);
                self.count(NextIds::FIRST.session, place.0.next());
                self.step(place, Phase::Released, step)
            }
            _ => Ok(()),
        }
    }

    fn step(&mut self, place: (Lsn, SessionId), phase: Phase, step: Step) -> Result<(), Refusal> {
        let inflight = Inflight { phase, packet_id: record::packet_id(step.packet_id)?, step: step.step };
        if !self.index.load_inflight(place, inflight) {
            return Err("the entry is there twice".into());
        }
        if !self.identifiers.take(place.1, inflight.packet_id) {
            return Err("the session uses the packet identifier for another message".into());
        }
        self.writes.inflight.insert(place, inflight);
        Ok(())
    }

    fn retained(&mut self, message: Lsn) -> Result<(), Refusal> {
        let topic = match self.writes.messages.get(&message).and_then(Write::value) {
            Some(stored) => retained_topic(stored, stored.payload().len())?,
            None => self.stored_topic(message)?,
        };
        if !self.index.load_retained(topic.clone(), message) {
            return Err("the topic has a retained message already".into());
        }
        self.writes.retained.insert(topic, message);
        Ok(())
    }

    /// The topic of a message that is in the table already.
    fn stored_topic(&self, message: Lsn) -> Result<TopicName, Refusal> {
        let table = self.transaction.open_table(keys::MESSAGE).map_err(ReadError::from)?;
        let key = keys::message_key(message);
        let row = table.get(&key).map_err(ReadError::from)?;
        let row = row.ok_or("its message is not there")?;
        let split = keys::split_message(row.value());
        let (head, payload) = split.map_err(|error| ReadError::row("message", &key, error))?;
        Ok(retained_topic(&head, payload.len())?)
    }

    fn known(&self, session: u64) -> Result<SessionId, Wrong> {
        let session = SessionId::new(session);
        if self.index.knows(session) { Ok(session) } else { Err("its session is not there") }
    }

    fn count(&mut self, session: SessionId, lsn: Lsn) {
        self.next = NextIds { session: self.next.session.max(session), lsn: self.next.lsn.max(lsn) };
    }

    fn end(mut self) -> Result<(), Refusal> {
        if self.index.references().len() != self.messages.len() {
            return Err("there are messages that nobody refers to".into());
        }
        self.writes.next = Some(self.next);
        self.flush()
    }
}
