//! Record of an imported session.

use std::collections::HashMap;
use std::time::SystemTime;

use braid_store::{Lsn, QueueEntry, RecoveredSession, StoredDelivery};
use bytes::Bytes;

use super::check::Presence;
use super::{Import, ImportError, shown};
use crate::exchanges::{Exchanges, Last};
use crate::layout::IMPORTED_NUMBERS;
use crate::progress::Checkpoint;
use crate::publish::Outgoing;
use crate::record::{Record, RecordedDelivery, RecordedSubscription, RecordedWill, millis};

/// Place of the shard whose exchanges are those of imported clients: PUBREL has no topic.
const SHARD: usize = 0;

impl Import<'_> {
    /// Writes the record of a session, and the exchanges of its client before it.
    pub(super) async fn write_session(
        &self,
        session: &RecoveredSession,
        appended: &HashMap<Lsn, Lsn>,
        since: &[u64],
        run: &str,
    ) -> Result<(), ImportError> {
        let client_id = &session.record.client_id;
        let name = || format!("the session of the client {}", shown(client_id.as_str()));
        let disturbed = || ImportError::Disturbed { what: format!("{} has changed", name()) };
        let Presence::None(last) = self.presence(session).await? else { return Err(disturbed()) };
        for index in 0..self.layout.parts() {
            self.write_exchanges(session, index, run).await?;
        }
        let record = self.record(session, since, &|lsn| appended.get(&lsn).copied());
        let id = format!("{run}.{}", session.record.id);
        let outgoing = Outgoing::new(self.layout.session(client_id), record.write());
        self.store(&outgoing.expecting(last).with_id(id), name).await?.map(drop).ok_or_else(disturbed)
    }

    /// Writes the open exchanges of a client in a shard, unless there are none, and none of a former session of it.
    async fn write_exchanges(
        &self,
        session: &RecoveredSession,
        index: usize,
        run: &str,
    ) -> Result<(), ImportError> {
        let client_id = &session.record.client_id;
        let subject = self.layout.exchanges(self.layout.shard_at(index), client_id);
        let what = "the look for exchanges of QoS 2";
        let found = self.last_message(&self.streams.messages[index], &subject, what).await?;
        let found = found.as_ref().map(|(payload, sequence)| (&payload[..], *sequence));
        let mut exchanges = Exchanges::read(client_id.clone(), subject, found);
        let is_stale = exchanges.open().next().is_some();
        let received = session.received.iter().filter(|_| index == SHARD);
        let received: Vec<_> = received.map(|(id, count)| (id.value(), count.get())).collect();
        if received.is_empty() && !is_stale {
            return Ok(());
        }
        exchanges.restore(received.into_iter());
        exchanges.set_last(Last::Known(found.map_or(0, |(_, sequence)| sequence)));
        let outgoing =
            exchanges.outgoing(&self.mark()).with_id(format!("{run}.x{index}.{}", session.record.id));
        let name = || format!("exchanges of the client {}", shown(client_id.as_str()));
        let stored = self.store(&outgoing, name).await?;
        stored.map(drop).ok_or_else(|| ImportError::Disturbed { what: format!("{} have changed", name()) })
    }

    /// The record of a session with numbers that are as long as any.
    pub(super) fn longest_record(&self, session: &RecoveredSession) -> Bytes {
        let since = vec![u64::MAX >> 1; self.layout.parts()];
        self.record(session, &since, &|_| Some(Lsn::new(u64::MAX >> 1))).write()
    }

    /// The record of a session that begins at positions of the log, with messages by their numbers there.
    fn record(
        &self,
        session: &RecoveredSession,
        since: &[u64],
        appended: &dyn Fn(Lsn) -> Option<Lsn>,
    ) -> Record {
        let subscriptions = session.subscriptions.iter();
        let progress = since.iter().map(|done| Checkpoint { done: *done, beyond: Vec::new() });
        let of_log = |delivery: &StoredDelivery| {
            appended(delivery.message).map(|message| StoredDelivery { message, ..delivery.clone() })
        };
        let entries = session.queue.iter().filter_map(|(_, entry)| {
            Some(match entry {
                // `None`: it has expired.
                QueueEntry::Waiting(delivery) => QueueEntry::Waiting(of_log(delivery)?),
                QueueEntry::Sent(packet_id, delivery) => QueueEntry::Sent(*packet_id, of_log(delivery)?),
                QueueEntry::Released(packet_id) => QueueEntry::Released(*packet_id),
            })
        });
        let queue = (IMPORTED_NUMBERS..).zip(entries);
        let received = session.received.iter().map(|(id, count)| (id.value(), count.get(), SHARD));
        Record {
            owner: None,
            run: self.mark(),
            identity: session.record.identity.as_deref().map(str::to_owned),
            expiry: session.record.expiry.as_secs(),
            // One that was connected counts as parked now, as at the start of a broker.
            parked_at: Some(millis(session.record.parked_at.unwrap_or_else(SystemTime::now))),
            subscriptions: subscriptions
                .map(|(filter, one)| RecordedSubscription::of(filter, one, since))
                .collect(),
            will: session.will.as_deref().map(RecordedWill::of),
            progress: progress.collect(),
            queue: queue.map(|(number, entry)| RecordedDelivery::of(Lsn::new(number), &entry)).collect(),
            received: received.collect(),
            is_clean: true,
        }
    }
}
