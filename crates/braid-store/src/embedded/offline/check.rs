use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;

use braid_proto::packet::ClientId;

use super::super::error::{OpenError, ReadError};
use super::super::file::Snapshot;
use super::super::keys::{self, Place, meta};
use super::super::options::{Stage, Teller};
use super::super::writes::{Inflight, Phase};
use super::sound::{self, Identifiers};
use super::{BEYOND, OfflineStore};
use crate::identity::{Lsn, SessionId};
use crate::recover::NextIds;
use crate::session::SessionRecord;

/// What was looked at, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// Rows that were read.
    pub rows: u64,
    /// Empty when all is well: a broker starts with it, and all that it refers to is there.
    pub problems: Vec<Problem>,
    /// How many problems there are beyond those in `problems`.
    pub untold: u64,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// Of which kind it is.
    pub damage: Damage,
    /// Where.
    pub place: String,
}

/// The kinds of damage that can be in a file whose pages have the right checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Damage {
    /// A row that is not as its table's rows are.
    Malformed,
    /// Two rows that cannot both be.
    Contradiction,
    /// Something belongs to a session that is not there.
    NoSession,
    /// Something refers to a message that is not there.
    NoMessage,
    /// A message to which nothing refers.
    Unused,
    /// A number that is in use would be given again, now or soon.
    Numbers,
}

impl Damage {
    /// What it means for the clients.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Malformed => {
                "what the row held is lost: something other than braidmq wrote it, or a fault of braidmq"
            }
            Self::Contradiction => "one of two rows is wrong, and nothing says which",
            Self::NoSession => "the session is lost, and what was queued for its client with it",
            Self::NoMessage => "a message that was acknowledged is lost",
            Self::Unused => "the message takes room; for whom it was is lost",
            Self::Numbers => "new messages or sessions would take the place of those that are there",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

/// The rest is only counted.
const PROBLEMS: usize = 1000;

impl OfflineStore {
    /// Reads every row and compares what refers to what. Opening the store compared every page with its checksum.
    ///
    /// What it remembers is a few bytes for each session, each message and each delivery on its way.
    ///
    /// # Errors
    /// [`OpenError`] when the device cannot be read. What is read and makes no sense is in [`Check::problems`].
    pub fn check(&self) -> Result<Check, OpenError> {
        self.compare().map_err(|error| self.open_error(error))
    }

    fn compare(&self) -> Result<Check, ReadError> {
        let snapshot = self.file.snapshot()?;
        let rows = snapshot.all_rows()?.saturating_add(snapshot.rows(keys::PART)?);
        let teller = Teller::new(&self.options, Stage::Reading, rows);
        let mut comparison = Comparison {
            snapshot: &snapshot,
            teller,
            check: Check::default(),
            sessions: BTreeSet::new(),
            clients: BTreeSet::new(),
            references: BTreeSet::new(),
            identifiers: Identifiers::default(),
            last: NextIds { session: SessionId::new(0), lsn: Lsn::new(0) },
        };
        comparison.all()?;
        comparison.teller.end();
        Ok(comparison.check)
    }
}

struct Comparison<'a> {
    snapshot: &'a Snapshot,
    teller: Teller<'a>,
    check: Check,
    sessions: BTreeSet<SessionId>,
    clients: BTreeSet<ClientId>,
    references: BTreeSet<Lsn>,
    identifiers: Identifiers,
    /// The highest numbers in use.
    last: NextIds,
}

impl Comparison<'_> {
    fn all(&mut self) -> Result<(), ReadError> {
        let snapshot = self.snapshot;
        snapshot.each_session(|row| self.read(row, 0).map(|row| self.session(row)))?;
        snapshot.each_subscription(|row| {
            let row = self.read(row, 0)?;
            self.belongs(row.map(|(session, ..)| session), "a subscription");
            Ok::<_, ReadError>(())
        })?;
        snapshot.each_will(|row| {
            let row = self.read(row, 0)?;
            self.belongs(row.map(|(session, _)| session), "a Will");
            Ok::<_, ReadError>(())
        })?;
        snapshot.each_received(|row| {
            let row = self.read(row, 0)?;
            self.belongs(row.map(|(session, ..)| session), "a received identifier");
            Ok::<_, ReadError>(())
        })?;
        snapshot.each_queued(|row| match self.read(row, 0)? {
            Some((place, delivery)) => self.queued(place, delivery.message),
            None => Ok(()),
        })?;
        snapshot.each_inflight(|row| match self.read(row, 0)? {
            Some((place, inflight)) => self.inflight(place, inflight),
            None => Ok(()),
        })?;
        snapshot.each_retained(|row| match self.read(row, 0)? {
            Some((topic, message)) => self.retained(topic.as_str(), message),
            None => Ok(()),
        })?;
        let mut in_parts = BTreeSet::new();
        snapshot.each_message_length(|row| {
            let size = row.as_ref().map_or(0, |(_, length, _)| *length);
            if let Some((lsn, length, is_in_parts)) = self.read(row, size)? {
                self.message(lsn);
                if is_in_parts {
                    in_parts.insert(lsn);
                    self.parts(lsn, length)?;
                }
            }
            Ok::<_, ReadError>(())
        })?;
        snapshot.each_part_key(|row| {
            let Some((lsn, _)) = self.read(row, 0)? else { return Ok(()) };
            // Once for each message, which may have hundreds.
            if in_parts.insert(lsn) {
                let place = format!("there are parts of message {lsn}, which has none or is not there");
                self.problem(Damage::Unused, place);
            }
            Ok::<_, ReadError>(())
        })?;
        self.numbers()
    }

    /// A row that makes no sense is a problem, and no reason to stop.
    fn read<R>(&mut self, row: Result<R, ReadError>, size: usize) -> Result<Option<R>, ReadError> {
        self.check.rows += 1;
        self.teller.step_over(size);
        match row {
            Ok(row) => Ok(Some(row)),
            Err(ReadError::Row(place)) => {
                self.problem(Damage::Malformed, place.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn problem(&mut self, damage: Damage, place: String) {
        if self.check.problems.len() < PROBLEMS {
            self.check.problems.push(Problem { damage, place });
        } else {
            self.check.untold += 1;
        }
    }

    fn session(&mut self, record: Option<SessionRecord>) {
        let Some(record) = record else { return };
        self.counted(record.id.value(), "a session");
        self.last.session = self.last.session.max(record.id);
        self.sessions.insert(record.id);
        if !self.clients.insert(record.client_id.clone()) {
            let place =
                format!("client {:?} has session {} and another", record.client_id.as_str(), record.id);
            self.problem(Damage::Contradiction, place);
        }
    }

    fn counted(&mut self, number: u64, what: &str) {
        if number == 0 {
            self.problem(Damage::Malformed, format!("{what} has the number 0, which no broker gives"));
        }
    }

    fn belongs(&mut self, session: Option<SessionId>, what: &str) {
        let Some(session) = session else { return };
        if !self.sessions.contains(&session) {
            self.problem(Damage::NoSession, format!("session {session} has {what} and is not there"));
        }
    }

    fn queued(&mut self, (lsn, session): Place, message: Lsn) -> Result<(), ReadError> {
        self.last.lsn = self.last.lsn.max(lsn);
        self.counted(lsn.value(), "an entry of a queue");
        self.belongs(Some(session), "a queue");
        self.references.insert(message);
        if self.snapshot.message_row(message)?.is_none() {
            let place = format!("entry {lsn} of session {session}: message {message} is not there");
            self.problem(Damage::NoMessage, place);
        }
        Ok(())
    }

    fn inflight(&mut self, place: Place, inflight: Inflight) -> Result<(), ReadError> {
        let (lsn, session) = place;
        self.last.lsn = self.last.lsn.max(lsn);
        self.counted(lsn.value().min(inflight.step), "something on its way");
        self.belongs(Some(session), "something on its way");
        if inflight.step >= BEYOND {
            let place = format!("entry {lsn} of session {session} was sent as number {}", inflight.step);
            self.problem(Damage::Numbers, place);
        }
        if !self.identifiers.take(session, inflight.packet_id) {
            let place = format!(
                "entry {lsn} of session {session} uses the packet identifier {} of another",
                inflight.packet_id
            );
            self.problem(Damage::Contradiction, place);
        }
        let waits = match self.snapshot.table(keys::QUEUE)? {
            Some(queue) => queue.get(&keys::place_key(place))?.is_some(),
            None => false,
        };
        match inflight.phase {
            Phase::Sent if !waits => {
                let place = format!("entry {lsn} of session {session} was sent and is not queued");
                self.problem(Damage::Contradiction, place);
            }
            Phase::Released if waits => {
                let place = format!("entry {lsn} of session {session} was released and is queued");
                self.problem(Damage::Contradiction, place);
            }
            Phase::Sent | Phase::Released => {}
        }
        Ok(())
    }

    fn retained(&mut self, topic: &str, message: Lsn) -> Result<(), ReadError> {
        self.references.insert(message);
        match self.snapshot.message_head(message) {
            Ok(Some((head, payload))) if head.topic().as_str() == topic => {
                if let Err(wrong) = sound::retained(&head, payload) {
                    self.problem(
                        Damage::Contradiction,
                        format!("{topic} retains message {message}: {wrong}"),
                    );
                }
            }
            Ok(Some((head, _))) => {
                let place = format!("{topic} retains a message of {}", head.topic());
                self.problem(Damage::Contradiction, place);
            }
            Ok(None) => {
                let place = format!("{topic} retains message {message}, which is not there");
                self.problem(Damage::NoMessage, place);
            }
            // Told where the message itself is read.
            Err(ReadError::Row(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn parts(&mut self, message: Lsn, length: usize) -> Result<(), ReadError> {
        match self.snapshot.each_part(message, length, |_| ControlFlow::Continue(())) {
            Err(ReadError::Row(place)) => {
                self.problem(Damage::NoMessage, place.to_string());
                Ok(())
            }
            read => read,
        }
    }

    fn message(&mut self, lsn: Lsn) {
        self.counted(lsn.value(), "a message");
        self.last.lsn = self.last.lsn.max(lsn);
        if !self.references.contains(&lsn) {
            self.problem(Damage::Unused, format!("nothing refers to message {lsn}"));
        }
    }

    fn numbers(&mut self) -> Result<(), ReadError> {
        let snapshot = self.snapshot;
        let NextIds { session, lsn } = self.last;
        for (name, what, last) in
            [(meta::NEXT_SESSION, "session", session.value()), (meta::NEXT_LSN, "message", lsn.value())]
        {
            let next = snapshot.number(name)?.unwrap_or(1);
            if next >= BEYOND {
                self.problem(Damage::Numbers, format!("the next {what} would be {next}"));
            } else if next <= last {
                self.problem(
                    Damage::Numbers,
                    format!("{what} {last} is there, and the next one would be {next}"),
                );
            }
        }
        Ok(())
    }
}
