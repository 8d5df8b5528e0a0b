//! Progress of sessions that no node has: a session that gets no messages would hold the log for as long as its client
//! is away.
//!
//! Maintenance moves the position of a session up to the first message that the session needs. That is safe for
//! these reasons. A session that no node has does not change: its subscriptions, and what is acknowledged, are those
//! of its record until a node claims it, which writes the record. Maintenance writes the record on condition that it
//! is the one that was read, so that a claim meanwhile makes its write fail, and a claim afterwards reads the new one.
//! Positions only move up to where all nodes were some time ago: those messages are in the log, its leader knows them,
//! and each filter of the session is looked up among them, from the position that the record has. The first match of
//! any filter is where the session stops, like a message in flight.

use std::sync::Arc;

use async_nats::Client;
use async_nats::jetstream::stream::{RawMessageErrorKind, Stream};
use braid_proto::packet::{ClientId, QoS};
use braid_proto::topic::TopicFilter;
use futures_util::{StreamExt, stream};

use crate::layout::Layout;
use crate::message::LoggedMessage;
use crate::progress::Checkpoint;
use crate::publish::{Outgoing, last_message, send};
use crate::record::{Record, RecordedDelivery, RecordedSubscription};
use crate::store::NodeState;

/// Sessions at a time.
const AT_ONCE: usize = 8;

/// Messages of one filter that are passed over, since the session does not need them.
const PASSED_OVER: usize = 32;

/// Mover of positions.
#[derive(Clone)]
pub(crate) struct Advancer {
    pub(crate) state: Arc<NodeState>,
    pub(crate) client: Client,
    pub(crate) sessions: Stream<()>,
    /// Streams of the shards, by index.
    pub(crate) streams: Vec<Stream<()>>,
}

/// Message that a session needs, in each shard; `None`: none was found.
pub(crate) type Needs = Vec<Option<u64>>;

impl Advancer {
    /// Moves the positions of sessions in each shard up to at most `until`: the messages at which they stop. `first`:
    /// sequence number of the first message of each shard. A session that has changed, or cannot be read, is left out.
    pub(crate) async fn advance(
        self,
        clients: Vec<ClientId>,
        until: Vec<Option<u64>>,
        first: Vec<u64>,
    ) -> Vec<(ClientId, Needs)> {
        let (this, until, first) = (&self, &until, &first);
        let advances = stream::iter(clients).map(|client| async move {
            let needs = this.advance_one(&client, until, first).await;
            let needs =
                needs.inspect_err(|reason| tracing::debug!(client = client.as_str(), reason, "not advanced"));
            Some((client, needs.ok().flatten()?))
        });
        advances.buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await
    }

    async fn advance_one(
        &self,
        client: &ClientId,
        until: &[Option<u64>],
        first: &[u64],
    ) -> Result<Option<Needs>, String> {
        let subject = self.state.layout.session(client);
        let Some((payload, revision)) = last_message(&self.sessions, &subject).await? else {
            return Ok(None);
        };
        let Some(record) = Record::read(&payload).filter(|record| record.owner.is_none()) else {
            return Ok(None);
        };
        let mut advanced = record.clone();
        let mut needs = vec![None; self.state.layout.parts()];
        for (index, checkpoint) in advanced.progress.iter_mut().enumerate() {
            let Some(until) = until.get(index).copied().flatten() else { continue };
            let in_flight = first_in_flight(&self.state.layout, &record, index, first);
            let in_flight = in_flight.filter(|sequence| *sequence <= until);
            needs[index] = self.first_needed(&record, index, checkpoint, until, in_flight).await?;
            *checkpoint = checkpoint.advanced(needs[index].map_or(until, |needed| needed - 1));
        }
        if advanced == record {
            return Ok(Some(needs));
        }
        let write = Outgoing::new(subject, advanced.write()).expecting(revision);
        match send(&self.client, write.with_id(format!("advance.{:016x}", fastrand::u64(..)))).await {
            crate::publish::Tried::Stored(_) => Ok(Some(needs)),
            crate::publish::Tried::Refused => Ok(None),
            crate::publish::Tried::Unknown(reason) => Err(reason),
        }
    }

    /// Sequence number of the first message up to `until` that a session needs in a shard, and of `first` if that is
    /// before.
    async fn first_needed(
        &self,
        record: &Record,
        index: usize,
        checkpoint: &Checkpoint,
        until: u64,
        mut first: Option<u64>,
    ) -> Result<Option<u64>, String> {
        let layout = &self.state.layout;
        for (filter, since) in queued_filters(record) {
            let subject = layout.messages(layout.shard_at(index), &filter);
            let mut from = checkpoint.done.max(since.get(index).copied().unwrap_or(0)) + 1;
            for passed_over in 0.. {
                let until = first.map_or(until, |first| first - 1);
                if from > until {
                    break;
                }
                let Some((sequence, is_over)) = self.next_matching(index, &subject, from).await? else {
                    break;
                };
                if sequence > until {
                    break;
                }
                if !is_over && checkpoint.is_needed(sequence) || passed_over == PASSED_OVER {
                    first = Some(sequence);
                    break;
                }
                from = sequence + 1;
            }
        }
        Ok(first)
    }

    /// First message of a subject from a sequence number on, from the leader, and whether no subscription gets it any
    /// more.
    async fn next_matching(
        &self,
        index: usize,
        subject: &str,
        from: u64,
    ) -> Result<Option<(u64, bool)>, String> {
        let builder = self.streams[index].raw_message_builder();
        match builder.sequence(from).next_by_subject(subject).send().await {
            Ok(found) => {
                let now = self.state.clock.wall();
                let is_over = |message: LoggedMessage| message.is_withheld || message.has_expired(now);
                let read = LoggedMessage::read(Some(&found.headers), found.payload);
                Ok(Some((found.sequence, read.is_ok_and(is_over))))
            }
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Filters whose messages wait for a client that is away, with the positions at which they began. Messages of QoS 0 are
/// not queued, and those of a shared subscription are the group's, whose consumer holds the log.
fn queued_filters(record: &Record) -> impl Iterator<Item = (TopicFilter, Arc<[u64]>)> {
    let subscriptions = record.subscriptions.iter().filter_map(RecordedSubscription::read);
    let queued = subscriptions
        .filter(|(filter, subscription, _)| subscription.qos > QoS::AtMostOnce && !filter.is_shared());
    queued.map(|(filter, _, since)| (filter, since))
}

/// Sequence number of the first message in a shard that the queue of a record refers to. Those before `first`, the
/// first one of each shard, are not in the log any more, as retained ones that were sent from memory.
fn first_in_flight(layout: &Layout, record: &Record, index: usize, first: &[u64]) -> Option<u64> {
    let first = first.get(index).copied().unwrap_or(0).max(1);
    let entries = record.queue.iter().filter_map(RecordedDelivery::read);
    let numbers = entries.flat_map(|(lsn, entry)| std::iter::once(lsn).chain(entry.message()));
    let positions = numbers.filter_map(|lsn| layout.position(lsn));
    positions.filter(|(of, sequence)| *of == index && *sequence >= first).map(|(_, sequence)| sequence).min()
}

#[cfg(test)]
mod tests {
    use braid_proto::packet::PacketId;
    use braid_proto::session::Subscription;
    use braid_store::{Lsn, QueueEntry, StoredDelivery, StoredSubscription};

    use super::*;
    use crate::layout::{Dimensions, IMPORTED_NUMBERS};

    #[test]
    fn messages_of_a_shared_subscription_do_not_hold_the_position() {
        let of = |filter, qos| {
            let subscription = Subscription { qos, ..Subscription::default() };
            let filter = TopicFilter::parse(filter).unwrap();
            RecordedSubscription::of(&filter, &StoredSubscription::of(&subscription), &[7])
        };
        let subscriptions = vec![
            of("$share/g/a", QoS::AtLeastOnce),
            of("b", QoS::AtMostOnce),
            of("c", QoS::AtLeastOnce),
            of("d", QoS::ExactlyOnce),
        ];
        let record = Record { subscriptions, ..Record::default() };
        let filters: Vec<_> =
            queued_filters(&record).map(|(filter, since)| (filter.to_string(), since[0])).collect();
        assert_eq!(filters, [("c".to_owned(), 7), ("d".to_owned(), 7)]);
    }

    #[test]
    fn messages_of_the_queue_hold_the_position() {
        let layout = Layout::new("t".parse().unwrap(), Dimensions { shards: 1, replicas: 1, log_bytes: 1 });
        let (packet_id, own) = (PacketId::new(1).unwrap(), Lsn::new(IMPORTED_NUMBERS));
        let of = |message| StoredDelivery::new(message, QoS::ExactlyOnce);
        let entries = [
            (own, QueueEntry::Waiting(of(layout.lsn(0, 9)))),
            (layout.lsn(0, 7), QueueEntry::Released(packet_id)),
            (layout.lsn(1, 3), QueueEntry::Sent(packet_id, of(layout.lsn(1, 3)))),
            (own, QueueEntry::Released(packet_id)),
        ];
        let queue = entries.iter().map(|(lsn, entry)| RecordedDelivery::of(*lsn, entry)).collect();
        let record = Record { queue, ..Record::default() };
        let first_in_flight =
            |first: &[u64]| (0..3).map(|at| first_in_flight(&layout, &record, at, first)).collect::<Vec<_>>();
        assert_eq!(first_in_flight(&[]), [Some(7), Some(3), None]);
        assert_eq!(first_in_flight(&[7, 3, 1]), [Some(7), Some(3), None]);
        assert_eq!(first_in_flight(&[8, 4, 1]), [Some(9), None, None], "the others are gone");
    }
}
