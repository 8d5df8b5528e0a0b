//! Reader of a shard of the log, which delivers its messages at this node in their order.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::Message as Received;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::stream::Stream;
use braid_broker::node_handle::{DeliveryRoutes, NodeHandle};
use futures_util::{FutureExt, StreamExt};
use tokio::time::sleep;

use crate::logged::{now, read};
use crate::ordered::{next, ordered};
use crate::store::NodeState;

/// Messages that are delivered at a time.
const AT_ONCE: usize = 256;

/// Time between two tries to read.
const AGAIN: Duration = Duration::from_millis(200);

/// Reader of a shard.
pub(crate) struct LogReader {
    pub(crate) state: Arc<NodeState>,
    pub(crate) stream: Stream<()>,
    /// Place of the shard.
    pub(crate) index: usize,
    pub(crate) handle: NodeHandle,
}

impl LogReader {
    /// Delivers messages for as long as the node runs.
    pub(crate) async fn run(self) {
        let mut routes = DeliveryRoutes::default();
        loop {
            if let Err(error) = self.read_on(&mut routes).await {
                tracing::debug!(%error, shard = self.index, "the log is read again");
            }
            sleep(AGAIN).await;
        }
    }

    async fn read_on(&self, routes: &mut DeliveryRoutes) -> Result<(), async_nats::Error> {
        let NodeState { layout, positions, .. } = &*self.state;
        let position = &positions[self.index];
        let subject = layout.all_messages(layout.shard_at(self.index));
        let start_sequence = position.completed() + 1;
        let first = self.stream.get_info().await?.state.first_sequence;
        if first > start_sequence && !self.handle.owns_sessions() {
            tracing::warn!(
                shard = self.index,
                "this node was away for longer than its lease, and messages that it has not read were removed: retained messages \
                 may be old here until it is started again"
            );
        }
        let from = DeliverPolicy::ByStartSequence { start_sequence };
        let config = ordered(subject, from);
        let consumer = self.stream.create_consumer(config).await?;
        let mut messages = consumer.messages().await?;
        while let Some(first) = next(&mut messages).await {
            let mut batch = vec![first?];
            while batch.len() < AT_ONCE
                && let Some(more) = messages.next().now_or_never().flatten()
            {
                batch.push(more?);
            }
            self.deliver(routes, batch)?;
        }
        Ok(())
    }

    fn deliver(&self, routes: &mut DeliveryRoutes, batch: Vec<Received>) -> Result<(), async_nats::Error> {
        let NodeState { layout, positions, .. } = &*self.state;
        let position = &positions[self.index];
        let mut gate = position.begin();
        let now = now();
        let (mut last, mut arrived) = (gate.sequence(), Vec::with_capacity(batch.len()));
        for received in batch {
            let sequence = received.info()?.stream_sequence;
            // One that was delivered before its consumer was made again.
            if sequence <= last {
                continue;
            }
            last = sequence;
            let async_nats::Message { subject, headers, payload, .. } = received.message;
            let logged = read(layout, self.index, sequence, &subject, headers.as_ref(), payload);
            // Without RETAIN a withheld message is of queues that refer to it.
            let logged = logged.filter(|logged| !logged.is_withheld || logged.message.retain());
            arrived.extend(logged.and_then(|logged| logged.arrived(now)));
        }
        self.handle.deliver(routes, arrived);
        gate.set(last);
        Ok(())
    }
}
