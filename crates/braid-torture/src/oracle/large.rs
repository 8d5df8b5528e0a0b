//! Publisher of messages that the broker spools: one at a time, so slowly that half of the kills hit an unfinished one.

use std::rc::Rc;
use std::time::Duration;

use braid_bench::{Connection, Handed, Happening};
use braid_proto::packet::QoS;
use braid_proto::stream::StreamKey;
use tokio::time::{Instant, sleep_until};

use super::ledger::TopicKind;
use super::payload::{LARGE, payload};
use super::persistent_client::{PersistentClient, Received, delivery};
use super::publisher::Inflight;

/// Bytes written at once, and the time between two such writes.
const PIECE: usize = 48 << 10;
const PERIOD: Duration = Duration::from_millis(6);
/// Longest pause between two messages.
const PAUSE: Duration = Duration::from_millis(30);

/// A client that publishes large messages.
pub(crate) struct LargePublisher {
    client: PersistentClient,
    inflight: Inflight,
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
        Self { client, inflight: Inflight::default(), topics, turn: 0 }
    }

    pub(crate) async fn run(mut self) {
        loop {
            let mut connection = self.client.open().await;
            self.serve(&mut connection).await;
            let (all, written) = connection.progress(StreamKey::CONTROL);
            self.client.testbed.ledger().counts.cut += u64::from(written < all);
            self.inflight.note_pubrec(&connection, &self.client.testbed);
            for received in self.client.close(connection) {
                self.handle(received);
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
            let is_idle = self.inflight.is_empty();
            tokio::select! {
                received = self.client.next(connection) => match received {
                    Some(received) => self.handle(received),
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
            self.inflight.note_pubrec(connection, &testbed);
        }
    }

    /// Publishes the next message. False: the connection has ended.
    fn publish(&mut self, connection: &mut Connection) -> bool {
        if !self.client.testbed.is_loading() {
            return true;
        }
        let (topic, qos) = &self.topics[self.turn % self.topics.len()];
        let number = self.client.testbed.ledger().next(topic);
        match connection.send(delivery(topic, payload(topic, number), *qos, false, StreamKey::CONTROL)) {
            Ok(Handed::Out(Some(id))) => {
                self.inflight.begin(id, topic, number, *qos);
                self.client.testbed.ledger().sent(topic);
                self.turn += 1;
                true
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    fn handle(&mut self, (_, happening): Received) {
        if let Happening::Published(id, reason) = happening
            && self.inflight.land(id, reason, &self.client.testbed).is_some()
        {
            self.client.testbed.ledger().counts.large += 1;
        }
    }
}
