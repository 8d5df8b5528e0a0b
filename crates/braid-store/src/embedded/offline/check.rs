use std::collections::BTreeMap;
use std::sync::Arc;

use braid_proto::packet::{PacketId, Will};
use braid_proto::topic::{TopicFilter, TopicName};
use redb::ReadableTable;

use super::super::error::{OpenError, ReadError};
use super::super::keys;
use super::OfflineStore;
use crate::identity::{Claim, Lsn, SessionId};
use crate::image::Image;
use crate::message::QueueEntry;
use crate::recover::{NextIds, Recover};
use crate::session::SessionRecord;
use crate::subscription::StoredSubscription;

/// What was looked at, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// Rows that were read.
    pub rows: u64,
    /// One line for each thing that is wrong; empty when all is well.
    pub problems: Vec<String>,
}

/// After so many the rest is not told.
const PROBLEMS: usize = 1000;

impl OfflineStore {
    /// Reads every row and compares what refers to what. Opening the store compared every page with its checksum.
    ///
    /// # Errors
    /// [`OpenError`] when the device cannot be read. What is read and makes no sense is in [`Check::problems`].
    pub fn check(&self) -> Result<Check, OpenError> {
        let mut check = Check::default();
        for step in [Self::check_index, Self::check_sessions, Self::check_messages] {
            match step(self, &mut check) {
                Ok(()) => {}
                Err(ReadError::Row(problem)) => check.problem(problem.to_string()),
                Err(error) => return Err(self.open_error(error)),
            }
        }
        Ok(check)
    }

    /// Sessions, queues and what is on its way, as a broker's start reads them.
    fn check_index(&self, check: &mut Check) -> Result<(), ReadError> {
        let snapshot = self.file.snapshot()?;
        check.rows += snapshot.rows(keys::SESSION)? + snapshot.rows(keys::QUEUE)?;
        check.rows += snapshot.rows(keys::INFLIGHT)? + snapshot.rows(keys::RETAINED)?;
        snapshot.load(Claim::new(0), NextIds::FIRST, &self.options).map(drop)
    }

    /// What belongs to sessions.
    fn check_sessions(&self, check: &mut Check) -> Result<(), ReadError> {
        let snapshot = self.file.snapshot()?;
        for rows in
            [snapshot.rows(keys::SUBSCRIPTION), snapshot.rows(keys::WILL), snapshot.rows(keys::RECEIVED)]
        {
            check.rows += rows?;
        }
        let mut belongings = Belongings { sessions: Image::default(), check };
        snapshot.each_session(&mut belongings)
    }

    /// Every message, and who refers to it.
    fn check_messages(&self, check: &mut Check) -> Result<(), ReadError> {
        let snapshot = self.file.snapshot()?;
        let mut references: BTreeMap<Lsn, u64> = BTreeMap::new();
        snapshot.each_queued(|(lsn, session), delivery| {
            *references.entry(delivery.message).or_default() += 1;
            if snapshot.message(delivery.message)?.is_none() {
                check.problem(format!(
                    "entry {lsn} of session {session}: message {} is not there",
                    delivery.message
                ));
            }
            Ok(())
        })?;
        snapshot.each_retained(|topic, message| {
            *references.entry(message).or_default() += 1;
            match snapshot.message(message)? {
                Some(stored) if *stored.topic() == topic => {}
                Some(stored) => check.problem(format!("{topic} retains a message of {}", stored.topic())),
                None => check.problem(format!("{topic} retains message {message}, which is not there")),
            }
            Ok(())
        })?;
        if let Some(table) = snapshot.table(keys::MESSAGE)? {
            for row in table.iter()? {
                let (key, value) = row?;
                check.rows += 1;
                let lsn = keys::decode_message_key(key.value());
                if let Err(error) = keys::decode_message(value.value()) {
                    let ReadError::Row(problem) = ReadError::row("message", key.value(), error) else {
                        continue;
                    };
                    check.problem(problem.to_string());
                }
                if !references.contains_key(&lsn) {
                    check.problem(format!("nobody refers to message {lsn}"));
                }
            }
        }
        Ok(())
    }
}

impl Check {
    fn problem(&mut self, problem: String) {
        if self.problems.len() < PROBLEMS {
            self.problems.push(problem);
        }
    }
}

/// What belongs to a session that is not there.
struct Belongings<'a> {
    sessions: Image,
    check: &'a mut Check,
}

impl Belongings<'_> {
    fn belongs(&mut self, session: SessionId, what: &str) {
        if !self.sessions.sessions.contains_key(&session) {
            self.check.problem(format!("session {session} has a {what} and is not there"));
        }
    }
}

impl Recover for Belongings<'_> {
    fn session(&mut self, session: SessionRecord, claim: Claim) {
        self.sessions.session(session, claim);
    }

    fn subscription(&mut self, session: SessionId, _: TopicFilter, _: StoredSubscription) {
        self.belongs(session, "subscription");
    }

    fn will(&mut self, session: SessionId, _: Arc<Will>) {
        self.belongs(session, "Will");
    }

    fn received(&mut self, session: SessionId, _: PacketId) {
        self.belongs(session, "received identifier");
    }

    fn queued(&mut self, _: SessionId, _: Lsn, _: QueueEntry) {}

    fn retained(&mut self, _: TopicName, _: Lsn) {}
}
