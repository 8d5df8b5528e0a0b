//! Publisher of messages that the broker spools: one at a time, so slowly that half of the kills hit an unfinished one.

use std::rc::Rc;
use std::time::Duration;

use braid_bench::Connection;
use braid_proto::packet::QoS;
use braid_proto::stream::StreamKey;
use tokio::time::{Instant, sleep_until};

use super::ledger::TopicKind;
use super::persistent_client::{PersistentClient, Received, delivery};
use crate::payload::{LARGE, payload};

/// Bytes written at once, and the time between two such writes.
const PIECE: usize = 48 << 10;
const PERIOD: Duration = Duration::from_millis(6);
/// Longest pause between two messages.
const PAUSE: Duration = Duration::from_millis(30);

/// A client that publishes large messages.
pub(crate) struct LargePublisher {
    client: PersistentClient,
    /// Published to alternately.
    topics: [(String, QoS); 2],
    turn: usize,
}

impl LargePublisher {
    pub(crate) fn new(client: PersistentClient) -> Self {
        let topic = |number| format!("l/{}/{number}{LARGE}", client.endpoint.transport.scheme());
        let topics = [(topic(1), QoS::AtLeastOnce), (topic(2), QoS::ExactlyOnce)];
        for (kind, (topic, _)) in [TopicKind::AtLeastOnce, TopicKind::ExactlyOnce].into_iter().zip(&topics) {
            client.testbed.ledger().add_topic(topic, kind);
        }
        Self { client, topics, turn: 0 }
    }

    pub(crate) async fn run(mut self) {
        loop {
            let mut connection = self.client.open().await;
            self.serve(&mut connection).await;
            let (all, written) = connection.progress(StreamKey::CONTROL);
            self.client.testbed.ledger().counts.cut += u64::from(written < all);
            for received in self.client.close(connection) {
                self.handle(&received);
            }
        }
    }

    /// Publishes until the connection ends.
    async fn serve(&mut self, connection: &mut Connection) {
        let testbed = Rc::clone(&self.client.testbed);
        // Retransmissions are slowed down as well, and precede new messages.
        connection.write_at_most(PIECE);
        let mut next = Instant::now() + PERIOD;
        loop {
            let is_idle = self.client.inflight.is_empty();
            tokio::select! {
                received = self.client.next(connection) => match received {
                    Some(received) => self.handle(&received),
                    None => return,
                },
                () = sleep_until(next), if !is_idle => {
                    connection.write_at_most(PIECE);
                    next = Instant::now() + PERIOD;
                }
                () = async { testbed.loading().await; testbed.pause(PAUSE).await }, if is_idle => {
                    connection.write_at_most(PIECE);
                    next = Instant::now() + PERIOD;
                    if !self.publish(connection) {
                        return;
                    }
                }
            }
        }
    }

    /// Publishes the next message. False: the connection has ended.
    fn publish(&mut self, connection: &mut Connection) -> bool {
        if !self.client.testbed.is_loading() {
            return true;
        }
        let (topic, qos) = &self.topics[self.turn % self.topics.len()];
        let number = self.client.testbed.ledger().next(topic);
        let message = delivery(topic, payload(topic, number), *qos, false, StreamKey::CONTROL);
        let is_out = self.client.publish(connection, number, message, None);
        self.turn += usize::from(matches!(is_out, Ok(true)));
        is_out.is_ok()
    }

    fn handle(&self, received: &Received) {
        if let Received::Landed(_) = received {
            self.client.testbed.ledger().counts.large += 1;
        }
    }
}
