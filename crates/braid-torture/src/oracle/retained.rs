//! Publishers that set and remove retained messages, and new clients that check all of them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use braid_bench::{Connection, ConnectionEvent};
use braid_proto::packet::{ProtocolVersion, QoS};
use braid_proto::stream::StreamKey;
use bytes::Bytes;
use tokio::time::timeout;

use super::guarantee::expiry;
use super::ledger::TopicKind;
use super::persistent_client::{PersistentClient, Received, delivery};
use super::retained_state::{EXPIRES, ReadPeriod, State, removes};
use super::testbed::{Endpoint, Testbed};
use crate::payload::{LARGE, number, payload};
use crate::topic::topic_filter;

/// Last level of a publisher's topics, each with its weight.
const TOPICS: [(&str, usize); 4] = [("/0", 6), ("/1", 6), (EXPIRES, 6), (LARGE, 1)];
/// Longest pause between two messages, so that some kills hit no inflight message that would hide a loss.
const PAUSE: Duration = Duration::from_millis(8);
/// Longest wait of a check for one more message.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client that publishes retained messages, one at a time on each topic.
pub(crate) struct RetainedPublisher {
    client: PersistentClient,
    topics: Vec<String>,
}

impl RetainedPublisher {
    pub(crate) fn new(client: PersistentClient) -> Self {
        let mut topics = Vec::new();
        for (level, times) in TOPICS {
            let topic = format!("r/{}{level}", client.endpoint.transport.scheme());
            topics.extend(std::iter::repeat_n(topic, times));
        }
        for topic in &topics {
            client.testbed.ledger().add_topic(topic, TopicKind::AtLeastOnce);
            client.testbed.retained.borrow_mut().0.insert(topic.clone(), State::default());
        }
        Self { client, topics }
    }

    pub(crate) async fn run(mut self) {
        loop {
            let mut connection = self.client.open().await;
            self.serve(&mut connection).await;
            for received in self.client.close(connection) {
                self.handle(received);
            }
        }
    }

    async fn serve(&mut self, connection: &mut Connection) {
        let testbed = Rc::clone(&self.client.testbed);
        loop {
            tokio::select! {
                received = self.client.next(connection) => match received {
                    Some(received) => self.handle(received),
                    None => return,
                },
                () = async { testbed.loading().await; testbed.pause(PAUSE).await } => {
                    if !self.publish(connection) {
                        return;
                    }
                }
            }
        }
    }

    fn publish(&mut self, connection: &mut Connection) -> bool {
        let testbed = Rc::clone(&self.client.testbed);
        let topic = &self.topics[testbed.draw(self.topics.len())];
        let mut retained = testbed.retained.borrow_mut();
        let Some(state) = retained.0.get_mut(topic) else { return true };
        if !testbed.is_loading() || state.acknowledged < state.sent {
            return true;
        }
        let number = state.sent;
        let qos = if testbed.draw(2) == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        let payload = if removes(number) { Bytes::new() } else { payload(topic, number) };
        let message = delivery(topic, payload, qos, true, StreamKey::CONTROL);
        let expiry = expiry(number).filter(|_| topic.ends_with(EXPIRES));
        let is_out = self.client.publish(connection, number, message, expiry);
        if let Ok(true) = is_out {
            state.sent += 1;
            (state.last_sent, state.last_acknowledged) = (testbed.now(), None);
        }
        is_out.is_ok()
    }

    fn handle(&self, received: Received) {
        let Received::Landed(message) = received else { return };
        if let Some(state) = self.client.testbed.retained.borrow_mut().0.get_mut(&message.topic) {
            state.acknowledged = message.number + 1;
            state.last_acknowledged = Some(self.client.testbed.now());
        }
    }
}

/// Reads all retained messages with a new client and records faults in the ledger. False: the connection ended before
/// that.
pub(crate) async fn check_retained(testbed: &Rc<Testbed>, endpoint: &Rc<Endpoint>) -> bool {
    let (before, began) = (testbed.retained.borrow().acknowledged(), testbed.now());
    let name = format!("look-{}", testbed.draw(usize::MAX));
    let mut client = PersistentClient::new(testbed, endpoint, &name, ProtocolVersion::V5);
    client.expires_with_its_connection();
    let mut connection = client.open().await;
    let faults = |found: &BTreeMap<String, u64>| {
        let period = ReadPeriod { began, ended: testbed.now() };
        testbed.retained.borrow().faults(&before, period, found)
    };
    let end = format!("e/{name}");
    let is_right = |found: &BTreeMap<String, u64>| faults(found).is_empty();
    let Some(found) = find(&mut client, &mut connection, &end, is_right).await else { return false };
    let wrong = faults(&found);
    let mut ledger = testbed.ledger();
    ledger.counts.retained_looks += 1;
    ledger.counts.faults.stale += wrong.len() as u64;
    wrong.into_iter().for_each(|fault| ledger.report_fault(fault));
    true
}

/// Numbers of the retained messages by topic. A message to `end` follows the small ones; large ones arrive in parts,
/// so that the client reads on until the result `is_right` or no more messages arrive.
async fn find(
    client: &mut PersistentClient,
    connection: &mut Connection,
    end: &str,
    is_right: impl Fn(&BTreeMap<String, u64>) -> bool,
) -> Option<BTreeMap<String, u64>> {
    for filter in ["r/#", end] {
        connection.subscribe(StreamKey::CONTROL, topic_filter(filter), QoS::ExactlyOnce).ok()?;
    }
    let (mut found, mut answers, mut has_ended) = (BTreeMap::new(), 0, false);
    while !has_ended || !is_right(&found) {
        let received = match has_ended {
            false => client.next(connection).await?,
            true => match timeout(PATIENCE, client.next(connection)).await {
                Ok(received) => received?,
                Err(_) => return Some(found),
            },
        };
        let Received::Other(_, event) = received else { continue };
        match event {
            ConnectionEvent::Subscribed(_) => {
                answers += 1;
                if answers == 2 {
                    let last = delivery(end, Bytes::new(), QoS::AtLeastOnce, false, StreamKey::CONTROL);
                    connection.send(last).ok()?;
                }
            }
            ConnectionEvent::Message(incoming) => {
                let topic = incoming.message.topic.as_str();
                if topic == end {
                    has_ended = true;
                } else if incoming.message.payload.is_empty() {
                    found.remove(topic);
                } else {
                    let number = number(topic, &incoming.message.payload).unwrap_or(u64::MAX - 1);
                    found.insert(topic.to_owned(), number);
                }
                if let Some(token) = incoming.token {
                    connection.acknowledge(token);
                }
            }
            _ => {}
        }
    }
    Some(found)
}
