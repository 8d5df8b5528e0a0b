//! Marks: wait until the servers of all nodes know the subscriptions of this one.
//!
//! A server passes a subscription and a request that follows it on to another server by one route, in that order. So a
//! node that answers the request is at a server that knows the subscription, and no message of QoS 0 that a client
//! publishes there after the SUBACK is missed.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, Request};
use futures_util::StreamExt;
use futures_util::future::join_all;
use tokio::task::JoinSet;

use crate::commit::CommitPart;
use crate::interest::{Interest, InterestChange};
use crate::store::NodeState;

/// Time for a node to answer a mark. Afterwards its messages of QoS 0 may be missed.
const ANSWER: Duration = Duration::from_millis(500);

/// Sender of marks over the connection that has the subscriptions. One is on its way at a time; the next one is for all
/// commits that wait meanwhile.
pub(crate) struct Marker {
    state: Arc<NodeState>,
    client: Client,
    /// Kinds of messages, by whether they are urgent: each has a connection of its publishers.
    kinds: &'static [bool],
    /// Whether messages of this node come by NATS too.
    is_for_own: bool,
    waiting: Vec<CommitPart>,
    running: JoinSet<()>,
}

impl Marker {
    pub(crate) fn new(
        state: Arc<NodeState>,
        client: Client,
        kinds: &'static [bool],
        is_for_own: bool,
    ) -> Self {
        Self { state, client, kinds, is_for_own, waiting: Vec::new(), running: JoinSet::new() }
    }

    /// The change of a command. For a mark, which has none, it sends one now or after the one that is on its way.
    pub(crate) fn accept(&mut self, command: Interest) -> Option<Arc<InterestChange>> {
        match command {
            Interest::Change(change) => Some(change),
            Interest::Mark(part) => {
                self.waiting.push(part);
                self.begin();
                None
            }
        }
    }

    fn begin(&mut self) {
        if self.waiting.is_empty() || !self.running.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let nodes = self.state.live_nodes();
        let nodes = nodes.iter().filter(|node| self.is_for_own || node.as_str() != self.state.node);
        let to = nodes.flat_map(|node| self.kinds.iter().map(|kind| self.state.layout.marks(node, *kind)));
        let asks: Vec<_> = to
            .map(|to| {
                let client = self.client.clone();
                async move {
                    let request = Request::new().payload("".into()).timeout(Some(ANSWER));
                    // One that does not answer is dead, or cut off.
                    drop(client.send_request(to, request).await);
                }
            })
            .collect();
        self.running.spawn(async move {
            join_all(asks).await;
            waiting.into_iter().for_each(|part| part.complete(&Ok(())));
        });
    }

    /// Returns when a mark has come back, and sends the next one. Cancel safe; waits forever if there is none.
    pub(crate) async fn ended(&mut self) {
        match self.running.join_next().await {
            Some(_) => self.begin(),
            None => std::future::pending().await,
        }
    }
}

/// Answers marks of other nodes over the connection of one kind of messages, for as long as the node runs.
pub(crate) async fn answer_marks(client: Client, subject: String) {
    let mut marks = match client.subscribe(subject).await {
        Ok(marks) => marks,
        Err(error) => return tracing::error!(%error, "no subscription at NATS"),
    };
    while let Some(mark) = marks.next().await {
        if let Some(to) = mark.reply {
            // The other node gives up by itself.
            let _ = client.publish(to, "".into()).await;
        }
    }
}
