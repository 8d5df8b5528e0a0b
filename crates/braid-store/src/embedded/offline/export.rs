//! Export of a store as JSON Lines.

use std::io::{self, BufWriter, Write};

use braid_proto::stream::Priority;

use super::super::codec::{self, FORMAT};
use super::super::error::ReadError;
use super::super::options::{ProgressReporter, Stage};
use super::super::snapshot::Snapshot;
use super::record::{Content, Record, Step, Time};
use super::{OfflineStore, TransferError};
use crate::message::StoredMessage;
use crate::write_set::Phase;

impl OfflineStore {
    /// Writes everything as JSON Lines and returns the number of records. Uses memory for the deliveries in flight and
    /// for one record.
    ///
    /// # Errors
    /// [`TransferError::Store`], [`TransferError::Stream`].
    pub fn export(&self, into: &mut dyn Write) -> Result<u64, TransferError> {
        let exported = self.tables.snapshot().map_err(ExportError::from).and_then(|snapshot| {
            let progress = ProgressReporter::new(&self.options, Stage::Reading, snapshot.all_rows()?);
            let mut export = Export { into: BufWriter::new(into), records: 0, progress };
            export.write_all(&snapshot)?;
            export.end()
        });
        exported.map_err(|error| match error {
            ExportError::Read(error) => self.open_error(error).into(),
            ExportError::Write(error) => error.into(),
        })
    }
}

enum ExportError {
    Read(ReadError),
    Write(io::Error),
}

impl From<ReadError> for ExportError {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

impl From<io::Error> for ExportError {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

struct Export<'a> {
    into: BufWriter<&'a mut dyn Write>,
    records: u64,
    progress: ProgressReporter<'a>,
}

impl Export<'_> {
    /// Writes all records in the order of [`Record`]'s variants.
    fn write_all(&mut self, snapshot: &Snapshot) -> Result<(), ExportError> {
        let next = snapshot.next_ids()?;
        let (next_session, next_lsn) = (next.session.value(), next.lsn.value());
        self.put(&Record::Store { format: FORMAT, next_session, next_lsn })?;
        snapshot.each(codec::SESSION, codec::session_row, |row| {
            let record = row?;
            self.put(&Record::Session {
                session: record.id.value(),
                client_id: record.client_id.as_str().into(),
                identity: record.identity.as_deref().map(Into::into),
                expiry: record.expiry.as_secs(),
                parked_at: record.parked_at.map(Time::of),
            })
        })?;
        snapshot.each(codec::SUBSCRIPTION, codec::subscription_row, |row| {
            let (session, filter, subscription) = row?;
            self.put(&Record::Subscription {
                session: session.value(),
                filter: filter.as_str().into(),
                qos: subscription.qos.bits(),
                no_local: subscription.no_local,
                retain_as_published: subscription.retain_as_published,
                retain_handling: subscription.retain_handling as u8,
                id: subscription.id,
                priority: subscription.priority.map(Priority::value),
            })
        })?;
        snapshot.each(codec::WILL, codec::will_row, |row| {
            let (session, will) = row?;
            let content = Content::of_message(&StoredMessage::of_will(&will));
            self.put(&Record::Will { session: session.value(), delay: will.delay, content })
        })?;
        snapshot.each(codec::RECEIVED, codec::received_row, |row| {
            let (session, packet_id, exchanges) = row?;
            let (session, packet_id) = (session.value(), packet_id.value());
            self.put(&Record::Received { session, packet_id, exchanges })
        })?;
        snapshot.each_message(|lsn, head, payload| {
            let message = snapshot.with_payload(lsn, head, payload, None)?;
            self.put(&Record::Message { lsn: lsn.value(), content: Content::of_message(&message) })
        })?;
        self.write_queues(snapshot)?;
        snapshot.each(codec::RETAINED, codec::retained_row, |row| {
            let (_, message) = row?;
            self.put(&Record::Retained { message: message.value() })
        })
    }

    fn write_queues(&mut self, snapshot: &Snapshot) -> Result<(), ExportError> {
        let inflight = snapshot.inflight()?;
        snapshot.each(codec::QUEUE, codec::queue_row, |row| {
            let ((lsn, session), delivery) = row?;
            self.put(&Record::Queued {
                session: session.value(),
                lsn: lsn.value(),
                message: delivery.message.value(),
                qos: delivery.qos.bits(),
                retain: delivery.retain,
                subscription_ids: delivery.subscription_ids.as_slice().to_vec(),
                priority: delivery.priority.value(),
                shared: delivery.shared.as_ref().map(|filter| filter.as_str().into()),
                enqueued_at: delivery.enqueued_at.map(Time::of),
                sent: inflight.get(&(lsn, session)).map(Step::of),
            })
        })?;
        for ((lsn, session), inflight) in &inflight {
            if inflight.phase == Phase::Released {
                let (session, lsn) = (session.value(), lsn.value());
                self.put(&Record::Released { session, lsn, step: Step::of(inflight) })?;
            }
        }
        Ok(())
    }

    fn put(&mut self, record: &Record) -> Result<(), ExportError> {
        serde_json::to_writer(&mut self.into, record).map_err(io::Error::from)?;
        self.into.write_all(b"\n")?;
        self.records += 1;
        self.progress.step(record.size());
        Ok(())
    }

    fn end(mut self) -> Result<u64, ExportError> {
        self.put(&Record::End { records: self.records })?;
        self.into.flush()?;
        self.progress.end();
        Ok(self.records)
    }
}
