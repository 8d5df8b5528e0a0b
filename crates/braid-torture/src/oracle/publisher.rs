//! Publisher of QoS 1 and 2 on every lane while there is load.

use std::collections::HashMap;
use std::time::Duration;

use braid_bench::{Connection, Handed, Happening};
use braid_proto::packet::{PacketId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::session::Phase;
use braid_proto::stream::{Priority, StreamKey};
use tokio::time::{Instant, sleep_until};

use super::guarantee::{Cap, Guarantee, expiry};
use super::ledger::TopicKind;
use super::payload::payload;
use super::persistent_client::{PersistentClient, Received, delivery, expiring};
use super::testbed::Testbed;

/// Lanes: streams of a connection where it has several.
pub(crate) const LANES: usize = 3;
/// Most unacknowledged messages.
const WINDOW: usize = 24;

/// A message without its last acknowledgement.
pub(crate) struct InflightMessage {
    pub(crate) topic: String,
    pub(crate) number: u64,
    pub(crate) qos: QoS,
    /// True once PUBREC has come.
    is_received: bool,
}

/// Inflight messages by packet identifier, across connections.
#[derive(Default)]
pub(crate) struct Inflight(HashMap<PacketId, InflightMessage>);

impl Inflight {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn begin(&mut self, id: PacketId, topic: &str, number: u64, qos: QoS) {
        let message = InflightMessage { topic: topic.to_owned(), number, qos, is_received: false };
        self.0.insert(id, message);
    }

    /// Records each PUBREC that has come.
    pub(crate) fn note_pubrec(&mut self, connection: &Connection, testbed: &Testbed) {
        let Some(session) = connection.session() else { return };
        for (id, message) in self.0.iter_mut().filter(|(_, message)| !message.is_received) {
            if matches!(session.outbound.get(*id), Some(Phase::Released(_))) {
                message.is_received = true;
                let mut ledger = testbed.ledger();
                ledger.counts.pubrec += 1;
                ledger.acknowledged(&message.topic, message.number);
            }
        }
    }

    /// Records PUBACK or PUBCOMP.
    pub(crate) fn land(
        &mut self,
        id: PacketId,
        reason: ReasonCode,
        testbed: &Testbed,
    ) -> Option<InflightMessage> {
        let message = self.0.remove(&id)?;
        let mut ledger = testbed.ledger();
        if reason.is_error() {
            ledger.counts.faults.unanswered += 1;
            ledger.report_fault(format!("{} {} was refused: {reason}", message.topic, message.number));
            ledger.mark_uncertain(&message.topic, message.number);
            return Some(message);
        }
        match message.qos {
            QoS::ExactlyOnce => {
                ledger.counts.pubrec += u64::from(!message.is_received);
                ledger.counts.pubcomp += 1;
            }
            _ => ledger.counts.puback += 1,
        }
        ledger.acknowledged(&message.topic, message.number);
        Some(message)
    }
}

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
    inflight: Inflight,
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
        Self { client, inflight: Inflight::default(), topics, turn: 0 }
    }

    pub(crate) async fn run(mut self) {
        loop {
            let mut connection = self.client.open().await;
            self.serve(&mut connection).await;
            self.inflight.note_pubrec(&connection, &self.client.testbed);
            for received in self.client.close(connection) {
                self.handle(received);
            }
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
            is_clear |= self.inflight.is_empty();
            if is_clear && Instant::now() >= next {
                if !self.publish(connection, &streams) {
                    return;
                }
                next = Instant::now() + pace;
            }
            tokio::select! {
                received = self.client.next(connection) => match received {
                    Some(received) => self.handle(received),
                    None => return,
                },
                _ = phases.changed() => {}
                () = sleep_until(next), if is_clear && !pace.is_zero() => {}
            }
            self.inflight.note_pubrec(connection, &self.client.testbed);
        }
    }

    fn lanes(&self) -> usize {
        self.topics.iter().map(|topics| topics.lane + 1).max().unwrap_or_default()
    }

    /// Fills the window. False: the connection has ended.
    fn publish(&mut self, connection: &mut Connection, streams: &[StreamKey]) -> bool {
        while self.client.testbed.is_loading() && self.inflight.len() < WINDOW {
            let PublishedTopic { topic, qos, lane, expires } = &self.topics[self.turn % self.topics.len()];
            let number = self.client.testbed.ledger().next(topic);
            let expiry = expiry(number).filter(|_| *expires);
            let message = delivery(topic, payload(topic, number), *qos, false, streams[*lane]);
            match connection.send(expiring(message, expiry)) {
                Ok(Handed::Out(Some(id))) => {
                    self.inflight.begin(id, topic, number, *qos);
                    let expiry = expiry.map(|seconds| Duration::from_secs(seconds.into()));
                    self.client.testbed.ledger().sent_for(topic, expiry);
                    self.turn += 1;
                }
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    fn handle(&mut self, (_, happening): Received) {
        if let Happening::Published(id, reason) = happening {
            self.inflight.land(id, reason, &self.client.testbed);
        }
    }
}
