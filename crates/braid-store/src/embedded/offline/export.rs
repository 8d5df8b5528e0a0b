use std::io::{BufWriter, Write};
use std::sync::Arc;

use braid_proto::packet::{PacketId, Will};
use braid_proto::topic::{TopicFilter, TopicName};
use redb::ReadableTable;
use serde_json::Error as JsonError;

use super::super::error::ReadError;
use super::super::keys::{self, FORMAT, meta};
use super::super::writes::Phase;
use super::record::{Content, Record, Step, queued_record, session_record, subscription_record};
use super::{OfflineStore, TransferError};
use crate::identity::{Claim, Lsn, SessionId};
use crate::message::QueueEntry;
use crate::recover::{NextIds, Recover};
use crate::session::SessionRecord;
use crate::subscription::StoredSubscription;

impl OfflineStore {
    /// Writes everything as JSON Lines, one record in memory at a time. How many there are.
    ///
    /// # Errors
    /// [`TransferError::Store`], [`TransferError::Stream`].
    pub fn export(&self, into: &mut dyn Write) -> Result<u64, TransferError> {
        let snapshot = self.file.snapshot().map_err(|error| self.open_error(error))?;
        let mut lines = Lines { into: BufWriter::new(into), records: 0, failure: None };
        let exported = (|| -> Result<(), ReadError> {
            let number = |name, first| snapshot.number(name).map(|number| number.unwrap_or(first));
            lines.put(&Record::Store {
                format: FORMAT,
                next_session: number(meta::NEXT_SESSION, NextIds::FIRST.session.value())?,
                next_lsn: number(meta::NEXT_LSN, NextIds::FIRST.lsn.value())?,
            });
            snapshot.each_session(&mut lines)?;
            if let Some(table) = snapshot.table(keys::MESSAGE)? {
                for row in table.iter()? {
                    let (key, value) = row?;
                    let message = keys::decode_message(value.value());
                    let message = message.map_err(|error| ReadError::row("message", key.value(), error))?;
                    let lsn = keys::decode_message_key(key.value()).value();
                    lines.put(&Record::Message { lsn, content: Content::of_message(&message) });
                }
            }
            let inflight = snapshot.inflight()?;
            snapshot.each_queued(|(lsn, session), delivery| {
                let sent = inflight.get(&(lsn, session));
                lines.put(&queued_record(session, lsn, &delivery, sent));
                Ok(())
            })?;
            for ((lsn, session), inflight) in &inflight {
                if inflight.phase == Phase::Released {
                    let (session, lsn) = (session.value(), lsn.value());
                    lines.put(&Record::Released { session, lsn, step: Step::of(inflight) });
                }
            }
            snapshot.each_retained(|_, message| {
                lines.put(&Record::Retained { message: message.value() });
                Ok(())
            })
        })();
        exported.map_err(|error| self.open_error(error))?;
        let records = lines.records;
        lines.put(&Record::End { records });
        lines.end()
    }
}

/// Where the records go; after an error none does.
struct Lines<'a> {
    into: BufWriter<&'a mut dyn Write>,
    records: u64,
    failure: Option<TransferError>,
}

impl Lines<'_> {
    fn put(&mut self, record: &Record) {
        if self.failure.is_some() {
            return;
        }
        let put = serde_json::to_writer(&mut self.into, record)
            .map_err(JsonError::into)
            .and_then(|()| self.into.write_all(b"\n"));
        match put {
            Ok(()) => self.records += 1,
            Err(error) => self.failure = Some(error.into()),
        }
    }

    fn end(mut self) -> Result<u64, TransferError> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => {
                self.into.flush()?;
                Ok(self.records)
            }
        }
    }
}

/// Sessions and what belongs to them come as they do to a broker.
impl Recover for Lines<'_> {
    fn session(&mut self, session: SessionRecord, _: Claim) {
        self.put(&session_record(&session));
    }

    fn subscription(&mut self, session: SessionId, filter: TopicFilter, subscription: StoredSubscription) {
        self.put(&subscription_record(session, &filter, &subscription));
    }

    fn will(&mut self, session: SessionId, will: Arc<Will>) {
        self.put(&Record::Will {
            session: session.value(),
            delay: will.delay,
            content: Content::of_will(&will),
        });
    }

    fn received(&mut self, session: SessionId, packet_id: PacketId) {
        self.put(&Record::Received { session: session.value(), packet_id: packet_id.value() });
    }

    fn queued(&mut self, _: SessionId, _: Lsn, _: QueueEntry) {}

    fn retained(&mut self, _: TopicName, _: Lsn) {}
}
