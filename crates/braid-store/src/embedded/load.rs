//! From the tables to the index when the store is opened, and to the broker when it recovers.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_proto::topic::TopicName;
use redb::ReadableTable;

use super::error::ReadError;
use super::file::Snapshot;
use super::index::Index;
use super::keys::{self, Place};
use super::options::{Options, Stage, Teller};
use super::writes::{Inflight, Phase};
use crate::identity::{Claim, Lsn, SessionId};
use crate::message::{QueueEntry, StoredDelivery};
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
        if let Some(table) = self.table(keys::SESSION)? {
            for row in table.iter()? {
                let (key, value) = row?;
                let id = keys::decode_session_key(key.value());
                let record = keys::decode_session(id, value.value());
                let record = record.map_err(|error| ReadError::row("session", key.value(), error))?;
                if !index.load_session(record) {
                    return Err(ReadError::Row(format!("the client of session {id} has two").into()));
                }
                teller.step();
            }
        }
        self.each_queued(|place, delivery| {
            teller.step();
            if index.load_queued(place, delivery.message) { Ok(()) } else { Err(nobodys("queue", place)) }
        })?;
        for (place, inflight) in self.inflight()? {
            if !index.load_inflight(place, inflight) {
                return Err(nobodys("inflight", place));
            }
        }
        self.each_retained(|topic, message| {
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
        self.each_retained(|topic, message| {
            into.retained(topic, message);
            Ok(())
        })?;
        teller.end();
        Ok(())
    }

    fn show_sessions(
        &self,
        into: &mut dyn Recover,
        claim: impl Fn(SessionId) -> Claim,
        teller: &mut Teller<'_>,
    ) -> Result<(), ReadError> {
        if let Some(table) = self.table(keys::SESSION)? {
            for row in table.iter()? {
                let (key, value) = row?;
                let id = keys::decode_session_key(key.value());
                let record = keys::decode_session(id, value.value());
                let record = record.map_err(|error| ReadError::row("session", key.value(), error))?;
                into.session(record, claim(id));
                teller.step();
            }
        }
        if let Some(table) = self.table(keys::SUBSCRIPTION)? {
            for row in table.iter()? {
                let (key, value) = row?;
                let failed = |error| ReadError::row("subscription", key.value(), error);
                let (session, filter) = keys::decode_subscription_key(key.value()).map_err(failed)?;
                let subscription = keys::decode_subscription(value.value()).map_err(failed)?;
                into.subscription(session, filter, subscription);
            }
        }
        if let Some(table) = self.table(keys::WILL)? {
            for row in table.iter()? {
                let (key, value) = row?;
                let will = keys::decode_will(value.value());
                let will = will.map_err(|error| ReadError::row("will", key.value(), error))?;
                into.will(keys::decode_session_key(key.value()), Arc::new(will));
            }
        }
        if let Some(table) = self.table(keys::RECEIVED)? {
            for row in table.iter()? {
                let (key, _) = row?;
                let received = keys::decode_received_key(key.value());
                let (session, packet_id) =
                    received.map_err(|error| ReadError::row("received", key.value(), error))?;
                into.received(session, packet_id);
            }
        }
        Ok(())
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
        self.each_queued(|(lsn, session), delivery| {
            teller.step();
            if !inflight.contains_key(&(lsn, session)) {
                into.queued(session, lsn, QueueEntry::Waiting(delivery));
            }
            Ok(())
        })
    }

    /// Every session and what belongs to it, but its queue; nobody claims them.
    pub(super) fn each_session(&self, into: &mut dyn Recover) -> Result<(), ReadError> {
        let options = Options::default();
        self.show_sessions(into, |_| Claim::new(0), &mut Teller::new(&options, Stage::Recovering, 0))
    }

    /// The message that each topic retains.
    pub(super) fn each_retained(
        &self,
        mut each: impl FnMut(TopicName, Lsn) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let Some(table) = self.table(keys::RETAINED)? else { return Ok(()) };
        for row in table.iter()? {
            let (key, value) = row?;
            let topic = keys::decode_retained_key(key.value());
            let topic = topic.map_err(|error| ReadError::row("retained", key.value(), error))?;
            each(topic, keys::decode_message_key(value.value()))?;
        }
        Ok(())
    }

    /// Every row of the queue, by ascending lsn; also what was sent.
    pub(super) fn each_queued(
        &self,
        mut each: impl FnMut(Place, StoredDelivery) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let Some(table) = self.table(keys::QUEUE)? else { return Ok(()) };
        for row in table.iter()? {
            let (key, value) = row?;
            let failed = |error| ReadError::row("queue", key.value(), error);
            let place = keys::decode_place(key.value()).map_err(failed)?;
            each(place, keys::decode_delivery(place, value.value()).map_err(failed)?)?;
        }
        Ok(())
    }

    /// Everything on its way: few, since each takes a packet identifier of its session.
    pub(super) fn inflight(&self) -> Result<BTreeMap<Place, Inflight>, ReadError> {
        let mut all = BTreeMap::new();
        if let Some(table) = self.table(keys::INFLIGHT)? {
            for row in table.iter()? {
                let (key, value) = row?;
                let failed = |error| ReadError::row("inflight", key.value(), error);
                let place = keys::decode_place(key.value()).map_err(failed)?;
                all.insert(place, keys::decode_inflight(value.value()).map_err(failed)?);
            }
        }
        Ok(all)
    }
}

pub(super) fn nobodys(table: &str, (lsn, session): (Lsn, SessionId)) -> ReadError {
    ReadError::Row(format!("table {table}: entry {lsn} of session {session} belongs to nothing").into())
}
