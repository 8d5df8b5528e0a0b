//! Reader of a shard of the log, which delivers its messages at this node in their order.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use async_nats::{Client, Message};
use braid_broker::node_handle::{DeliveryRoutes, NodeHandle};
use tokio::time::{Instant, sleep};

use crate::layout::Shard;
use crate::log_tail::{Behind, LogTail, Part, Read};
use crate::logged::{Topics, read};
use crate::store::NodeState;

/// Time from one burst to the next: the most by which a message that is not urgent waits for others.
const SPACING: Duration = Duration::from_millis(2);

/// Time between two tries to read.
const AGAIN: Duration = Duration::from_millis(200);

/// Least time from one question to the next whether a consumer at another server could be at that of the connection.
const PLACE_AGAIN: Duration = Duration::from_secs(10);

/// Time for which a replica is not read that was behind although the servers said that it was not.
const AFTER_BEHIND: Duration = Duration::from_secs(600);

/// Reader of a shard.
pub(crate) struct LogReader {
    pub(crate) state: Arc<NodeState>,
    pub(crate) client: Client,
    pub(crate) stream: Stream<()>,
    /// Place of the shard.
    pub(crate) index: usize,
    pub(crate) handle: NodeHandle,
}

impl LogReader {
    /// Delivers messages for as long as the node runs.
    pub(crate) async fn run(self) {
        let (mut routes, mut topics) = (DeliveryRoutes::default(), Topics::default());
        let (mut near_from, mut pause) = (Instant::now(), PLACE_AGAIN);
        loop {
            let Err(error) = self.read_on(&mut routes, &mut topics, near_from, pause).await else {
                // Where the servers put the consumer elsewhere each time, it is tried ever more rarely.
                pause = (pause * 2).min(AFTER_BEHIND);
                continue;
            };
            tracing::debug!(%error, shard = self.index, "the log is read again");
            if error.is::<Behind>() {
                near_from = Instant::now() + AFTER_BEHIND;
            }
            sleep(AGAIN).await;
        }
    }

    /// Delivers messages until its consumer could be [at a better place](LogTail::is_misplaced).
    ///
    /// # Errors
    /// Those of [`LogTail`].
    async fn read_on(
        &self,
        routes: &mut DeliveryRoutes,
        topics: &mut Topics,
        near_from: Instant,
        pause: Duration,
    ) -> Result<(), async_nats::Error> {
        let NodeState { layout, positions, .. } = &*self.state;
        let position = &positions[self.index];
        let start_sequence = position.completed() + 1;
        let stream = self.stream.get_info().await?;
        if stream.state.first_sequence > start_sequence && !self.handle.owns_sessions() {
            tracing::warn!(
                shard = self.index,
                "this node was away for longer than its lease, and messages that it has not read were removed: retained messages \
                 may be old here until it is started again"
            );
        }
        let shard = layout.shard_at(self.index);
        let subject = layout.all_messages(shard);
        let part = Part { stream, subject, from: start_sequence };
        let spacing = if shard == Shard::Urgent { Duration::ZERO } else { SPACING };
        let answers_at = layout.answers(fastrand::u64(..));
        let how = (spacing, Instant::now() >= near_from);
        let mut tail = LogTail::open(self.client.clone(), &self.stream, part, answers_at, how).await?;
        let mut look = near_from.max(Instant::now() + pause);
        loop {
            let burst = tail.burst().await?;
            self.deliver(routes, topics, burst);
            if Instant::now() >= look {
                look = Instant::now() + pause;
                // Without an answer it is read on.
                if let Ok(true) = tail.is_misplaced().await {
                    return Ok(());
                }
            }
        }
    }

    fn deliver(&self, routes: &mut DeliveryRoutes, topics: &mut Topics, burst: Vec<Read>) {
        let NodeState { layout, positions, clock, .. } = &*self.state;
        let position = &positions[self.index];
        let mut gate = position.begin();
        let now = clock.now();
        let (mut last, mut arrived) = (gate.sequence(), Vec::with_capacity(burst.len()));
        for Read { sequence, message } in burst {
            // One that was delivered before its consumer was made again.
            if sequence <= last {
                continue;
            }
            last = sequence;
            let Message { subject, headers, payload, .. } = message;
            let named = topics.named(layout, &subject);
            let logged = read(layout, self.index, sequence, named, headers.as_ref(), payload);
            // Without RETAIN a withheld message is of queues that refer to it.
            let logged = logged.filter(|logged| !logged.is_withheld || logged.message.retain());
            arrived.extend(logged.and_then(|logged| logged.arrived(now)));
        }
        self.handle.deliver(routes, arrived);
        gate.set(last);
    }
}
