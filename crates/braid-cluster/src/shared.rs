//! Shared subscriptions over nodes: a durable consumer for each group and shard, from which the nodes of its members
//! pull.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy};
use async_nats::jetstream::stream::{ConsumerError, Stream};
use async_nats::jetstream::{AckKind, Message as Received};
use async_nats::{Client, Subscriber};
use braid_broker::node_handle::NodeHandle;
use braid_proto::packet::QoS;
use braid_proto::topic::TopicFilter;
use braid_store::Lsn;
use futures_util::StreamExt;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval, sleep, timeout_at};

use crate::batch::Batch;
use crate::hash::{BASIS, fnv_1a};
use crate::interest::{Interest, InterestChange};
use crate::layout::{LEASE, Layout};
use crate::live::arrived;
use crate::logged::{named, read};
use crate::marks::Marker;
use crate::ordered::EXPIRES;
use crate::store::{NodeState, SharedOutcome};

/// Messages of a group in a shard that the members of one node have not completed.
const WINDOW: usize = 256;

/// Messages of one request.
const BATCH: u32 = 64;

/// Time after the end of a request after which it counts as lost with its server.
const LOST: Duration = Duration::from_secs(1);

/// Messages of a group that all members together have not completed.
const WINDOW_OF_ALL: i64 = 10_000;

/// Time after which the servers give a message to another node, unless this one says that it has it still: then it is
/// dead, or may not deliver any more.
const HELD: Duration = LEASE;

/// Times that the nodes are given a message which none of their members takes, because no rule permits it: it would
/// come for ever. A node whose members are away stops to ask for messages before.
const DELIVERIES: i64 = 100;

/// Beginning of the names of consumers.
pub(crate) const GROUP: &str = "g-";

/// Longest time between two tries.
const AGAIN: Duration = Duration::from_millis(500);

/// Messages that members of this node have and have not completed, with their parts of the window.
type Pending = HashMap<(TopicFilter, Lsn), (Received, OwnedSemaphorePermit)>;

/// Groups with members at this node.
pub(crate) struct SharedGroups {
    pub(crate) state: Arc<NodeState>,
    /// Connection that gets messages of QoS 0 of this node too.
    pub(crate) client: Client,
    /// Streams of the shards, by index.
    pub(crate) streams: Vec<Stream<()>>,
    pub(crate) handle: NodeHandle,
    pending: Mutex<Pending>,
}

/// Name of a group as a consumer and a queue: two hashes of its filter, as filters have characters that names must not
/// have.
pub(crate) fn group_name(filter: &TopicFilter) -> String {
    let bytes = || filter.as_str().bytes();
    let (first, second) = (fnv_1a(BASIS, bytes()), fnv_1a(BASIS.rotate_left(32), bytes().rev()));
    format!("{GROUP}{first:016x}{second:016x}")
}

/// Opens the consumer of a group in a shard, which begins after `since` if it is made now.
pub(crate) async fn open_group(
    layout: &Layout,
    stream: &Stream<()>,
    filter: &TopicFilter,
    index: usize,
    since: u64,
) -> Result<Consumer<Config>, ConsumerError> {
    let name = group_name(filter);
    let config = Config {
        durable_name: Some(name.clone()),
        description: Some(filter.as_str().to_owned()),
        filter_subject: layout.messages(layout.shard_at(index), filter),
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: since + 1 },
        ack_policy: AckPolicy::Explicit,
        ack_wait: HELD,
        max_ack_pending: WINDOW_OF_ALL,
        ..Config::default()
    };
    stream.get_or_create_consumer(&name, config).await
}

impl SharedGroups {
    pub(crate) fn new(
        state: Arc<NodeState>,
        client: Client,
        streams: Vec<Stream<()>>,
        handle: NodeHandle,
    ) -> Self {
        Self { state, client, streams, handle, pending: Mutex::default() }
    }

    /// Serves the groups for as long as the node runs.
    pub(crate) async fn run(
        self,
        mut interest: UnboundedReceiver<Interest>,
        mut outcomes: UnboundedReceiver<SharedOutcome>,
    ) {
        let this = Arc::new(self);
        let mut groups: HashMap<TopicFilter, Vec<AbortHandle>> = HashMap::new();
        let mut held = interval(HELD / 4);
        let mut marker = Marker::new(this.state.clone(), this.client.clone(), &[false, true], true);
        loop {
            tokio::select! {
                command = interest.recv() => {
                    let Some(command) = command else { return };
                    let Some(change) = marker.accept(command) else { continue };
                    if !change.filter.is_shared() {
                        continue;
                    }
                    if change.is_interested {
                        groups.insert(change.filter.clone(), this.begin(&change).await);
                    } else {
                        groups.remove(&change.filter).into_iter().flatten().for_each(|task| task.abort());
                        // A member may have completed messages before it unsubscribed.
                        while let Ok(outcome) = outcomes.try_recv() {
                            this.note(outcome);
                        }
                        this.return_all(&change.filter);
                    }
                }
                () = marker.ended() => {}
                outcome = outcomes.recv() => {
                    let Some(outcome) = outcome else { return };
                    this.note(outcome);
                }
                _ = held.tick() => this.hold_on(),
            }
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn begin(self: &Arc<Self>, change: &InterestChange) -> Vec<AbortHandle> {
        let mut tasks = Vec::new();
        for index in 0..self.streams.len() {
            let (this, filter) = (self.clone(), change.filter.clone());
            // One for each shard: a request holds its part while it waits for messages.
            let window = Arc::new(Semaphore::new(WINDOW));
            let mut since = change.since.get(index).copied().unwrap_or(0);
            let pull = async move {
                // A new consumer takes requests a short time after it was made.
                let mut pause = AGAIN / 32;
                loop {
                    if let Err(error) = this.pull(&filter, index, &mut since, &window).await {
                        tracing::debug!(%error, %filter, "a shared subscription is read again");
                    }
                    sleep(pause).await;
                    pause = AGAIN.min(pause * 2);
                }
            };
            tasks.push(tokio::spawn(pull).abort_handle());
        }
        for is_urgent in [false, true] {
            let (this, filter) = (self.clone(), change.filter.clone());
            let subject = self.state.layout.live_filter(is_urgent, &filter);
            match self.client.queue_subscribe(subject, group_name(&filter)).await {
                Ok(messages) => {
                    let listen = async move { this.listen(&filter, messages).await };
                    tasks.push(tokio::spawn(listen).abort_handle());
                }
                Err(error) => tracing::error!(%error, %filter, "no subscription at NATS"),
            }
        }
        tasks
    }

    /// Pulls messages of the log for the members at this node, no more than the window has room for: the servers give a
    /// message that waits for room to another member too, since only those that are pending are told to be here still.
    /// A consumer that was removed meanwhile is made anew behind `since`: it had nothing that was not completed.
    async fn pull(
        &self,
        filter: &TopicFilter,
        index: usize,
        since: &mut u64,
        window: &Arc<Semaphore>,
    ) -> Result<(), async_nats::Error> {
        let consumer = open_group(&self.state.layout, &self.streams[index], filter, index, *since).await?;
        loop {
            let mut room = window.clone().acquire_owned().await?;
            let more = u32::try_from(window.available_permits()).unwrap_or(BATCH).min(BATCH - 1);
            if let Ok(more) = window.clone().try_acquire_many_owned(more) {
                room.merge(more);
            }
            let give_up = Instant::now() + EXPIRES + LOST;
            let request = consumer.batch().max_messages(room.num_permits()).expires(EXPIRES);
            let mut messages = request.messages().await?;
            while let Some(received) = timeout_at(give_up, messages.next()).await? {
                let Some(permit) = room.split(1) else { break };
                self.accept(filter, index, since, received?, permit).await?;
            }
        }
    }

    /// Delivers a message to a member, unless one has it by now.
    async fn accept(
        &self,
        filter: &TopicFilter,
        index: usize,
        since: &mut u64,
        received: Received,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), async_nats::Error> {
        let layout = &self.state.layout;
        let (sequence, deliveries) = received.info().map(|info| (info.stream_sequence, info.delivered))?;
        *since = sequence.max(*since);
        let async_nats::Message { subject, headers, payload, .. } = &received.message;
        let named = named(layout, subject);
        let read = read(layout, index, sequence, named, headers.as_ref(), payload.clone());
        let read = read.filter(|logged| !logged.is_withheld);
        let Some((lsn, message)) =
            read.and_then(|logged| Some((logged.lsn, logged.arrived(self.state.clock.now())?.message)))
        else {
            return received.ack().await;
        };
        match self.pending().entry((filter.clone(), lsn)) {
            Entry::Vacant(new) => drop(new.insert((received, permit))),
            // The servers were not told in time that it is here still.
            Entry::Occupied(mut known) => {
                known.get_mut().0 = received;
                return Ok(());
            }
        }
        match self.handle.deliver_shared(filter, message) {
            Some(QoS::AtMostOnce) => self.end(filter.clone(), lsn, true),
            Some(_) => {}
            None if deliveries >= DELIVERIES => {
                tracing::debug!(%filter, "a message that no member may receive is dropped");
                self.end(filter.clone(), lsn, true);
            }
            None => self.end(filter.clone(), lsn, false),
        }
        Ok(())
    }

    /// Delivers messages of QoS 0 of which this node is selected to have a member.
    async fn listen(&self, filter: &TopicFilter, mut messages: Subscriber) {
        while let Some(message) = messages.next().await {
            let Some(batch) = Batch::read(message.payload) else { continue };
            for arrived in arrived(&self.state, &message.subject, batch) {
                // Without a member that takes it, it is lost, as QoS 0 permits.
                let _ = self.handle.deliver_shared(filter, arrived.message);
            }
        }
    }

    fn note(&self, outcome: SharedOutcome) {
        let SharedOutcome { message: (filter, lsn), is_complete } = outcome;
        self.end((*filter).clone(), lsn, is_complete);
    }

    /// Ends a message at this node.
    fn end(&self, filter: TopicFilter, lsn: Lsn, is_complete: bool) {
        let Some((received, permit)) = self.pending().remove(&(filter, lsn)) else { return };
        let kind = if is_complete { AckKind::Ack } else { AckKind::Nak(Some(AGAIN)) };
        tokio::spawn(async move {
            // Without an answer the servers give the message to a node again.
            let _ = received.ack_with(kind).await;
            drop(permit);
        });
    }

    /// Gives back what the members at this node had not completed.
    fn return_all(&self, filter: &TopicFilter) {
        let lsns: Vec<_> =
            self.pending().keys().filter(|(of, _)| of == filter).map(|(_, lsn)| *lsn).collect();
        lsns.into_iter().for_each(|lsn| self.end(filter.clone(), lsn, false));
    }

    /// Tells the servers that this node has its messages still.
    fn hold_on(&self) {
        let acks: Vec<_> = self.pending().values().map(|(received, _)| received.clone()).collect();
        tokio::spawn(async move {
            for received in acks {
                let _ = received.ack_with(AckKind::Progress).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_names_of_their_own() {
        let name = |text| group_name(&TopicFilter::parse(text).unwrap());
        assert_ne!(name("$share/a/b"), name("$share/b/a"));
        assert_ne!(name("$share/g/a"), name("$share/g/a/#"));
        assert_eq!(name("$share/g/a").len(), 34);
    }
}
