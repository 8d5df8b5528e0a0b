//! Publisher of QoS 1 and 2 on every lane while there is load.

use braid_bench::Connection;
use braid_proto::packet::QoS;
use braid_proto::stream::{Priority, StreamKey};
use tokio::time::{Instant, sleep_until};

use super::guarantee::{Cap, Guarantee, expiry};
use super::ledger::TopicKind;
use super::persistent_client::{PersistentClient, delivery};
use crate::payload::payload;

/// Lanes: streams of a connection where it has several.
pub(crate) const LANES: usize = 3;
/// Most unacknowledged messages.
const WINDOW: usize = 24;

/// A topic of a publisher.
struct PublishedTopic {
    topic: String,
    qos: QoS,
    lane: usize,
    /// True if some of its messages expire.
    expires: bool,
}

/// A client that publishes.
pub(crate) struct Publisher {
    client: PersistentClient,
    /// Published to in turns.
    topics: Vec<PublishedTopic>,
    turn: usize,
}

impl Publisher {
    /// A publisher to all lanes.
    pub(crate) fn new(client: PersistentClient, name: &str) -> Self {
        let scheme = client.endpoint.transport.scheme();
        let topics = (0..LANES).flat_map(|lane| {
            [QoS::AtLeastOnce, QoS::ExactlyOnce].map(|qos| (format!("m/{lane}/{scheme}/{name}"), qos, lane))
        });
        Self::of(client, topics.collect(), Guarantee::Complete)
    }

    /// A publisher of messages of which some expire.
    pub(crate) fn expiring(client: PersistentClient) -> Self {
        let topic = format!("x/{}", client.endpoint.transport.scheme());
        let levels = [QoS::AtLeastOnce, QoS::ExactlyOnce];
        Self::of(client, levels.map(|qos| (topic.clone(), qos, 0)).into(), Guarantee::Expires)
    }

    /// A publisher to one topic with bounded queues.
    pub(crate) fn bounded(client: PersistentClient, cap: Cap) -> Self {
        let topic = format!("q/{}", client.endpoint.transport.scheme());
        Self::of(client, vec![(topic, QoS::ExactlyOnce, 0)], Guarantee::Bounded(cap))
    }

    fn of(client: PersistentClient, names: Vec<(String, QoS, usize)>, guarantee: Guarantee) -> Self {
        let mut topics = Vec::new();
        for (topic, qos, lane) in names {
            let (number, kind) = match qos {
                QoS::ExactlyOnce => (2, TopicKind::ExactlyOnce),
                _ => (1, TopicKind::AtLeastOnce),
            };
            let topic = format!("{topic}/{number}");
            client.testbed.ledger().add_topic_with(&topic, kind, guarantee);
            topics.push(PublishedTopic { topic, qos, lane, expires: guarantee == Guarantee::Expires });
        }
        Self { client, topics, turn: 0 }
    }

    pub(crate) async fn run(mut self) {
        loop {
            let mut connection = self.client.open().await;
            self.serve(&mut connection).await;
            self.client.close(connection);
        }
    }

    /// Publishes until the connection ends.
    async fn serve(&mut self, connection: &mut Connection) {
        let mut phases = self.client.testbed.phase.subscribe();
        let mut streams = Vec::new();
        for _ in 0..self.lanes() {
            match connection.open(Priority::DEFAULT).await {
                Ok(stream) => streams.push(stream),
                Err(_) => return,
            }
        }
        // Retransmissions use the control stream, and new messages on other streams must not overtake them.
        let mut is_clear = streams[0].is_control();
        let pace = self.client.testbed.pace;
        let mut next = Instant::now();
        loop {
            is_clear |= self.client.inflight.is_empty();
            if is_clear && Instant::now() >= next {
                if !self.publish(connection, &streams) {
                    return;
                }
                next = Instant::now() + pace;
            }
            tokio::select! {
                received = self.client.next(connection) => if received.is_none() { return },
                _ = phases.changed() => {}
                () = sleep_until(next), if is_clear && !pace.is_zero() => {}
            }
        }
    }

    fn lanes(&self) -> usize {
        self.topics.iter().map(|topics| topics.lane + 1).max().unwrap_or_default()
    }

    /// Fills the window. False: the connection has ended.
    fn publish(&mut self, connection: &mut Connection, streams: &[StreamKey]) -> bool {
        while self.client.testbed.is_loading() && self.client.inflight.len() < WINDOW {
            let PublishedTopic { topic, qos, lane, expires } = &self.topics[self.turn % self.topics.len()];
            let number = self.client.testbed.ledger().next(topic);
            let expiry = expiry(number).filter(|_| *expires);
            let message = delivery(topic, payload(topic, number), *qos, false, streams[*lane]);
            match self.client.publish(connection, number, message, expiry) {
                Ok(true) => self.turn += 1,
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}
