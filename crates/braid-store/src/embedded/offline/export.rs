use std::io::{self, BufWriter, Write};

use super::super::error::ReadError;
use super::super::file::Snapshot;
use super::super::keys::{FORMAT, meta};
use super::super::options::{Stage, Teller};
use super::super::writes::Phase;
use super::record::{Content, Record, Step, queued_record, session_record, subscription_record};
use super::{OfflineStore, TransferError};
use crate::recover::NextIds;

impl OfflineStore {
    /// Writes everything as JSON Lines. What it remembers is what is on its way, and one record. How many records
    /// there were.
    ///
    /// # Errors
    /// [`TransferError::Store`], [`TransferError::Stream`].
    pub fn export(&self, into: &mut dyn Write) -> Result<u64, TransferError> {
        let exported = self.file.snapshot().map_err(Stop::from).and_then(|snapshot| {
            let teller = Teller::new(&self.options, Stage::Reading, snapshot.all_rows()?);
            let mut lines = Lines { into: BufWriter::new(into), records: 0, teller };
            lines.all(&snapshot)?;
            lines.end()
        });
        exported.map_err(|stop| match stop {
            Stop::Read(error) => self.open_error(error).into(),
            Stop::Write(error) => error.into(),
        })
    }
}

/// Why there are no more lines.
enum Stop {
    Read(ReadError),
    Write(io::Error),
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

struct Lines<'a> {
    into: BufWriter<&'a mut dyn Write>,
    records: u64,
    teller: Teller<'a>,
}

impl Lines<'_> {
    /// In the order of [`Record`].
    fn all(&mut self, snapshot: &Snapshot) -> Result<(), Stop> {
        let number = |name, first| snapshot.number(name).map(|number| number.unwrap_or(first));
        self.put(&Record::Store {
            format: FORMAT,
            next_session: number(meta::NEXT_SESSION, NextIds::FIRST.session.value())?,
            next_lsn: number(meta::NEXT_LSN, NextIds::FIRST.lsn.value())?,
        })?;
        snapshot.each_session(|row| self.put(&session_record(&row?)))?;
        snapshot.each_subscription(|row| {
            let (session, filter, subscription) = row?;
            self.put(&subscription_record(session, &filter, &subscription))
        })?;
        snapshot.each_will(|row| {
            let (session, will) = row?;
            let content = Content::of_will(&will);
            self.put(&Record::Will { session: session.value(), delay: will.delay, content })
        })?;
        snapshot.each_received(|row| {
            let (session, packet_id, exchanges) = row?;
            let (session, packet_id) = (session.value(), packet_id.value());
            self.put(&Record::Received { session, packet_id, exchanges })
        })?;
        snapshot.each_message(|row| {
            let (lsn, message) = row?;
            self.put(&Record::Message { lsn: lsn.value(), content: Content::of_message(&message) })
        })?;
        self.queues(snapshot)?;
        snapshot.each_retained(|row| {
            let (_, message) = row?;
            self.put(&Record::Retained { message: message.value() })
        })
    }

    fn queues(&mut self, snapshot: &Snapshot) -> Result<(), Stop> {
        let inflight = snapshot.inflight()?;
        snapshot.each_queued(|row| {
            let ((lsn, session), delivery) = row?;
            self.put(&queued_record(session, lsn, &delivery, inflight.get(&(lsn, session))))
        })?;
        for ((lsn, session), inflight) in &inflight {
            if inflight.phase == Phase::Released {
                let (session, lsn) = (session.value(), lsn.value());
                self.put(&Record::Released { session, lsn, step: Step::of(inflight) })?;
            }
        }
        Ok(())
    }

    fn put(&mut self, record: &Record) -> Result<(), Stop> {
        serde_json::to_writer(&mut self.into, record).map_err(io::Error::from)?;
        self.into.write_all(b"\n")?;
        self.records += 1;
        self.teller.step_over(record.size());
        Ok(())
    }

    fn end(mut self) -> Result<u64, Stop> {
        self.put(&Record::End { records: self.records })?;
        self.into.flush()?;
        self.teller.end();
        Ok(self.records)
    }
}
