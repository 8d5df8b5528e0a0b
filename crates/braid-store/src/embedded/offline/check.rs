//! Integrity check of all rows.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;

use braid_proto::packet::ClientId;

use super::super::codec::{self, meta};
use super::super::error::{OpenError, ReadError};
use super::super::options::{Options, ProgressReporter, Stage};
use super::super::snapshot::Snapshot;
use super::{InflightIds, NUMBER_LIMIT, OfflineStore, check_retained};
use crate::ids::{Lsn, NextIds, SessionId};
use crate::session::SessionRecord;
use crate::write_set::{Inflight, Phase, QueueKey};

/// Result of an integrity check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// Number of rows that were read.
    pub rows: u64,
    /// Empty for a sound store: a broker starts with it, and every reference has its target.
    pub problems: Vec<Problem>,
    /// Number of problems beyond those in `problems`.
    pub unlisted: u64,
}

/// One defect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// Its kind.
    pub damage: Damage,
    /// The rows concerned.
    pub description: String,
}

/// Kinds of damage in a file whose pages have valid checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Damage {
    /// A row that does not decode.
    Malformed,
    /// Two rows that exclude each other.
    Contradiction,
    /// A row of a session that does not exist.
    NoSession,
    /// A reference to a message that does not exist.
    NoMessage,
    /// A message without a reference.
    Unused,
    /// A number in use would be assigned again.
    Numbers,
}

impl Damage {
    /// Consequence for the clients.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Malformed => {
                "the content of the row is lost: another program wrote it, or braidmq has a defect"
            }
            Self::Contradiction => "one of two rows is wrong, and nothing says which",
            Self::NoSession => "the session is lost, and what was queued for its client with it",
            Self::NoMessage => "a message that was acknowledged is lost",
            Self::Unused => "the message takes room, and its receivers are lost",
            Self::Numbers => "new messages or sessions would take the place of those that are there",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}

/// Limit of the listed problems.
const LISTED_MAX: usize = 1000;

impl OfflineStore {
    /// Reads every row and checks all references. (Opening the store has verified every page's checksum.)
    ///
    /// Uses a few bytes of memory for each session, message and delivery in flight.
    ///
    /// # Errors
    /// [`OpenError`] when the device cannot be read. Defects of the rows are in [`Check::problems`].
    pub fn check(&self) -> Result<Check, OpenError> {
        self.compare().map_err(|error| self.open_error(error))
    }

    fn compare(&self) -> Result<Check, ReadError> {
        let snapshot = self.tables.snapshot()?;
        let rows = snapshot.all_rows()?.saturating_add(snapshot.rows(codec::CHUNK)?);
        let progress = ProgressReporter::new(&self.options, Stage::Reading, rows);
        let mut integrity = IntegrityCheck {
            snapshot: &snapshot,
            options: &self.options,
            progress,
            check: Check::default(),
            sessions: BTreeSet::new(),
            clients: BTreeSet::new(),
            references: BTreeSet::new(),
            inflight_ids: InflightIds::default(),
            last: NextIds { session: SessionId::new(0), lsn: Lsn::new(0) },
        };
        integrity.check_all()?;
        integrity.progress.end();
        Ok(integrity.check)
    }
}

struct IntegrityCheck<'a> {
    snapshot: &'a Snapshot,
    options: &'a Options,
    progress: ProgressReporter<'a>,
    check: Check,
    sessions: BTreeSet<SessionId>,
    clients: BTreeSet<ClientId>,
    references: BTreeSet<Lsn>,
    inflight_ids: InflightIds,
    /// The highest numbers in use.
    last: NextIds,
}

impl IntegrityCheck<'_> {
    fn check_all(&mut self) -> Result<(), ReadError> {
        let snapshot = self.snapshot;
        snapshot.each(codec::SESSION, codec::session_row, |row| {
            self.read(row, 0, |check, record| {
                check.session(&record);
                Ok(())
            })
        })?;
        snapshot.each(codec::SUBSCRIPTION, codec::subscription_row, |row| {
            self.read(row, 0, |check, (session, ..)| check.belongs_to(session, "a subscription"))
        })?;
        snapshot.each(codec::WILL, codec::will_row, |row| {
            self.read(row, 0, |check, (session, _)| check.belongs_to(session, "a Will"))
        })?;
        snapshot.each(codec::RECEIVED, codec::received_row, |row| {
            self.read(row, 0, |check, (session, ..)| check.belongs_to(session, "a received identifier"))
        })?;
        snapshot.each(codec::QUEUE, codec::queue_row, |row| {
            self.read(row, 0, |check, (key, delivery)| check.queued(key, delivery.message))
        })?;
        snapshot.each(codec::INFLIGHT, codec::inflight_row, |row| {
            self.read(row, 0, |check, (key, inflight)| check.inflight(key, inflight))
        })?;
        snapshot.each(codec::RETAINED, codec::retained_row, |row| {
            self.read(row, 0, |check, (topic, message)| check.retained(topic.as_str(), message))
        })?;
        let mut chunked = BTreeSet::new();
        snapshot.each(codec::MESSAGE, codec::message_len_row, |row| {
            let size = row.as_ref().map_or(0, |(_, length, _)| *length);
            self.read(row, size, |check, (lsn, length, is_chunked)| {
                check.message(lsn);
                if is_chunked {
                    chunked.insert(lsn);
                    check.chunks(lsn, length)?;
                }
                Ok(())
            })
        })?;
        let chunk_row = |key: &[u8; 12], _: &[u8]| codec::decode_chunk_key(key);
        snapshot.each(codec::CHUNK, chunk_row, |row| {
            self.read(row, 0, |check, (lsn, _)| {
                // Once for each message, which may have hundreds.
                if chunked.insert(lsn) {
                    let text = format!("there are parts of message {lsn}, which has none or is not there");
                    check.problem(Damage::Unused, text);
                }
                Ok(())
            })
        })?;
        self.numbers()
    }

    /// Checks a row that decodes; one that does not is a problem, and the check continues.
    fn read<R>(
        &mut self,
        row: Result<R, ReadError>,
        size: usize,
        check: impl FnOnce(&mut Self, R) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        self.check.rows += 1;
        self.progress.step(size);
        match row {
            Ok(row) => check(self, row),
            Err(ReadError::Row(reason)) => {
                self.problem(Damage::Malformed, reason.to_string());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn problem(&mut self, damage: Damage, description: String) {
        if self.check.problems.len() < LISTED_MAX {
            self.check.problems.push(Problem { damage, description });
        } else {
            self.check.unlisted += 1;
        }
    }

    fn session(&mut self, record: &SessionRecord) {
        self.check_number(record.id.value(), "a session");
        self.last.session = self.last.session.max(record.id);
        self.sessions.insert(record.id);
        if let Some(Err(reason)) = record.identity.as_deref().map(self.options.check_identity) {
            let text = format!("the identity of session {}: {reason}", record.id);
            self.problem(Damage::Malformed, text);
        }
        if !self.clients.insert(record.client_id.clone()) {
            let text =
                format!("client {:?} has session {} and another", record.client_id.as_str(), record.id);
            self.problem(Damage::Contradiction, text);
        }
    }

    fn check_number(&mut self, number: u64, what: &str) {
        if number == 0 {
            self.problem(Damage::Malformed, format!("{what} has the number 0, which no broker gives"));
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "one signature for all rows")]
    fn belongs_to(&mut self, session: SessionId, what: &str) -> Result<(), ReadError> {
        if !self.sessions.contains(&session) {
            self.problem(Damage::NoSession, format!("session {session} has {what} and is not there"));
        }
        Ok(())
    }

    fn queued(&mut self, (lsn, session): QueueKey, message: Lsn) -> Result<(), ReadError> {
        self.last.lsn = self.last.lsn.max(lsn);
        self.check_number(lsn.value(), "an entry of a queue");
        self.belongs_to(session, "a queue")?;
        self.references.insert(message);
        if self.snapshot.message_row(message)?.is_none() {
            let text = format!("entry {lsn} of session {session}: message {message} is not there");
            self.problem(Damage::NoMessage, text);
        }
        Ok(())
    }

    fn inflight(&mut self, key: QueueKey, inflight: Inflight) -> Result<(), ReadError> {
        let (lsn, session) = key;
        let entry = |text: String| format!("entry {lsn} of session {session} {text}");
        self.last.lsn = self.last.lsn.max(lsn);
        self.check_number(lsn.value().min(inflight.step), "an entry in flight");
        self.belongs_to(session, "an entry in flight")?;
        if inflight.step >= NUMBER_LIMIT {
            self.problem(Damage::Numbers, entry(format!("was sent as number {}", inflight.step)));
        }
        if !self.inflight_ids.insert((session, inflight.packet_id)) {
            let text = format!("uses the packet identifier {} of another", inflight.packet_id);
            self.problem(Damage::Contradiction, entry(text));
        }
        let is_queued = match self.snapshot.table(codec::QUEUE)? {
            Some(queue) => queue.get(&codec::queue_key(key))?.is_some(),
            None => false,
        };
        match inflight.phase {
            Phase::Sent if !is_queued => {
                self.problem(Damage::Contradiction, entry("was sent and is not queued".into()));
            }
            Phase::Released if is_queued => {
                self.problem(Damage::Contradiction, entry("was released and is queued".into()));
            }
            Phase::Sent | Phase::Released => {}
        }
        Ok(())
    }

    fn retained(&mut self, topic: &str, message: Lsn) -> Result<(), ReadError> {
        self.references.insert(message);
        let (damage, text) = match self.snapshot.message_head(message) {
            Ok(Some((head, payload))) if head.topic().as_str() == topic => {
                let publisher = head.publisher().map(|publisher| (self.options.check_publisher)(publisher));
                match (check_retained(&head, payload), publisher) {
                    (Err(invalid), _) => (Damage::Contradiction, format!("message {message}: {invalid}")),
                    (Ok(()), Some(Err(reason))) => {
                        (Damage::Malformed, format!("message {message} with a publisher: {reason}"))
                    }
                    _ => return Ok(()),
                }
            }
            Ok(Some((head, _))) => (Damage::Contradiction, format!("a message of {}", head.topic())),
            Ok(None) => (Damage::NoMessage, format!("message {message}, which is not there")),
            // Reported where the message itself is read.
            Err(ReadError::Row(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.problem(damage, format!("{topic} retains {text}"));
        Ok(())
    }

    fn chunks(&mut self, message: Lsn, length: usize) -> Result<(), ReadError> {
        match self.snapshot.each_chunk(message, length, |_| ControlFlow::Continue(())) {
            Err(ReadError::Row(reason)) => {
                self.problem(Damage::NoMessage, reason.to_string());
                Ok(())
            }
            read => read,
        }
    }

    fn message(&mut self, lsn: Lsn) {
        self.check_number(lsn.value(), "a message");
        self.last.lsn = self.last.lsn.max(lsn);
        if !self.references.contains(&lsn) {
            self.problem(Damage::Unused, format!("nothing refers to message {lsn}"));
        }
    }

    fn numbers(&mut self) -> Result<(), ReadError> {
        let NextIds { session, lsn } = self.last;
        for (name, what, last) in
            [(meta::NEXT_SESSION, "session", session.value()), (meta::NEXT_LSN, "message", lsn.value())]
        {
            let next = self.snapshot.number(name)?.unwrap_or(1);
            if next >= NUMBER_LIMIT {
                self.problem(Damage::Numbers, format!("the next {what} would be {next}"));
            } else if next <= last {
                let text = format!("{what} {last} is there, and the next one would be {next}");
                self.problem(Damage::Numbers, text);
            }
        }
        Ok(())
    }
}
