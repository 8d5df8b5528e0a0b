//! From the tables to the index when the store is opened, and to the broker when it recovers.

use std::sync::Arc;

use super::error::ReadError;
use super::file::Snapshot;
use super::index::Index;
use super::keys::{self, Place};
use super::options::{Options, Stage, Teller};
use super::writes::{Inflight, Phase};
use crate::identity::{Claim, Lsn, SessionId};
use crate::message::QueueEntry;
use crate::recover::{NextIds, Recover};

impl Snapshot {
    /// Everything that the store must know to answer without reading.
    pub(super) fn load(
        &self,
        first_claim: Claim,
        next: NextIds,
        options: &Options,
    ) -> Result<Index, ReadError> {
        let mut index = Index::new(first_claim, next);
        let of = self.rows(keys::SESSION)? + self.rows(keys::QUEUE)?;
        let mut teller = Teller::new(options, Stage::Loading, of);
        self.each_session(|row| {
            let record = row?;
            let id = record.id;
            teller.step();
            if index.load_session(record) {
                Ok(())
            } else {
                Err(ReadError::Row(format!("the client of session {id} has two").into()))
            }
        })?;
        self.each_queued(|row| {
            let (place, delivery) = row?;
            teller.step();
            if index.load_queued(place, delivery.message) { Ok(()) } else { Err(nobodys("queue", place)) }
        })?;
        self.each_inflight(|row| {
            let (place, inflight) = row?;
            if index.load_inflight(place, inflight) { Ok(()) } else { Err(nobodys("inflight", place)) }
        })?;
        self.each_retained(|row| {
            let (topic, message) = row?;
            if index.load_retained(topic.clone(), message) {
                Ok(())
            } else {
                Err(ReadError::Row(format!("{topic} retains two messages").into()))
            }
        })?;
        let (stored, referred) = (self.rows(keys::MESSAGE)?, index.references().len());
        if u64::try_from(referred) != Ok(stored) {
            let reason = format!("{stored} messages are stored and {referred} are referred to");
            return Err(ReadError::Row(reason.into()));
        }
        teller.end();
        Ok(index)
    }

    /// Shows everything but the messages.
    pub(super) fn show(
        &self,
        into: &mut dyn Recover,
        claim: impl Fn(SessionId) -> Claim,
        options: &Options,
    ) -> Result<(), ReadError> {
        let of = self.rows(keys::SESSION)? + self.rows(keys::QUEUE)?;
        let mut teller = Teller::new(options, Stage::Recovering, of);
        self.show_sessions(into, claim, &mut teller)?;
        self.show_queues(into, &mut teller)?;
        self.each_retained(|row| row.map(|(topic, message)| into.retained(topic, message)))?;
        teller.end();
        Ok(())
    }

    fn show_sessions(
        &self,
        into: &mut dyn Recover,
        claim: impl Fn(SessionId) -> Claim,
        teller: &mut Teller<'_>,
    ) -> Result<(), ReadError> {
        // By ascending number, as they come.
        let mut sessions = Vec::new();
        self.each_session(|row| {
            let record = row?;
            let claim = claim(record.id);
            sessions.push(record.id);
            into.session(record, claim);
            teller.step();
            Ok::<_, ReadError>(())
        })?;
        let of = |session: SessionId, table: &str| match sessions.binary_search(&session) {
            Ok(_) => Ok(()),
            Err(_) => Err(ReadError::Row(format!("table {table}: there is no session {session}").into())),
        };
        self.each_subscription(|row| {
            let (session, filter, subscription) = row?;
            of(session, "subscription")?;
            into.subscription(session, filter, subscription);
            Ok::<_, ReadError>(())
        })?;
        self.each_will(|row| {
            let (session, will) = row?;
            of(session, "will")?;
            into.will(session, Arc::new(will));
            Ok::<_, ReadError>(())
        })?;
        self.each_received(|row| {
            let (session, packet_id, exchanges) = row?;
            of(session, "received")?;
            into.received(session, packet_id, exchanges);
            Ok(())
        })
    }

    fn show_queues(&self, into: &mut dyn Recover, teller: &mut Teller<'_>) -> Result<(), ReadError> {
        let inflight = self.inflight()?;
        let mut steps: Vec<(&Place, &Inflight)> = inflight.iter().collect();
        steps.sort_unstable_by_key(|(_, inflight)| inflight.step);
        let queue = self.table(keys::QUEUE)?;
        for ((lsn, session), Inflight { phase, packet_id, .. }) in steps {
            let place = (*lsn, *session);
            let entry = match phase {
                Phase::Released => QueueEntry::Released(*packet_id),
                Phase::Sent => {
                    let key = keys::place_key(place);
                    let row = queue.as_ref().map(|queue| queue.get(&key)).transpose()?.flatten();
                    let row = row.ok_or_else(|| nobodys("inflight", place))?;
                    let delivery = keys::decode_delivery(place, row.value());
                    QueueEntry::Sent(
                        *packet_id,
                        delivery.map_err(|error| ReadError::row("queue", &key, error))?,
                    )
                }
            };
            into.queued(*session, *lsn, entry);
        }
        self.each_queued(|row| {
            let ((lsn, session), delivery) = row?;
            teller.step();
            if !inflight.contains_key(&(lsn, session)) {
                into.queued(session, lsn, QueueEntry::Waiting(delivery));
            }
            Ok(())
        })
    }
}

fn nobodys(table: &str, (lsn, session): (Lsn, SessionId)) -> ReadError {
    ReadError::Row(format!("table {table}: entry {lsn} of session {session} belongs to nothing").into())
}
