//! Client that subscribes, publishes to itself, unsubscribes and publishes once more, again and again.

use std::rc::Rc;

use braid_bench::{Connection, ConnectionEvent};
use braid_proto::packet::QoS;
use braid_proto::stream::StreamKey;

use super::ledger::{Arrival, SubscriberId, TopicKind};
use super::persistent_client::{PersistentClient, Received, delivery};
use crate::payload::{number, payload};
use crate::topic::topic_filter;

/// Most messages published per subscription.
const MESSAGES: usize = 4;

/// Next action of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Subscribe,
    /// SUBACK has come: messages acknowledged from now on have to be delivered.
    Publish,
    Unsubscribe,
    /// UNSUBACK has come: no message may be delivered any more.
    PublishInVain,
}

/// A client that changes its subscriptions.
pub(crate) struct Resubscriber {
    client: PersistentClient,
    subscriber: SubscriberId,
    /// Number of subscriptions so far.
    turn: u64,
    step: Step,
    /// True while SUBSCRIBE or UNSUBSCRIBE is unanswered on this connection.
    has_asked: bool,
}

impl Resubscriber {
    pub(crate) fn new(client: PersistentClient) -> Self {
        let scheme = client.endpoint.transport.scheme();
        let subscriber =
            client.testbed.ledger().add_subscriber(&format!("churner-{scheme}"), &[&format!("s/{scheme}/")]);
        Self { client, subscriber, turn: 0, step: Step::Subscribe, has_asked: false }
    }

    pub(crate) async fn run(mut self) {
        let testbed = Rc::clone(&self.client.testbed);
        loop {
            let mut connection = self.client.open().await;
            self.has_asked = false;
            loop {
                let ended = tokio::select! {
                    received = self.client.next(&mut connection) => match received {
                        Some(received) => {
                            self.handle(received, Some(&mut connection));
                            false
                        }
                        None => true,
                    },
                    () = testbed.loading(), if self.is_idle() => self.go_on(&mut connection).is_none(),
                };
                if ended {
                    break;
                }
            }
            for received in self.client.close(connection) {
                self.handle(received, None);
            }
        }
    }

    /// True if no request is unanswered and no message is missing.
    fn is_idle(&self) -> bool {
        !self.has_asked
            && self.client.inflight.is_empty()
            && (self.step != Step::Unsubscribe
                || self.client.testbed.read_ledger().has_all(self.subscriber, &self.topic()))
    }

    fn topic(&self) -> String {
        format!("s/{}/{}", self.client.endpoint.transport.scheme(), self.turn)
    }

    /// Performs the next action. `None`: the connection has ended.
    fn go_on(&mut self, connection: &mut Connection) -> Option<()> {
        let topic = self.topic();
        match self.step {
            Step::Subscribe => {
                connection.subscribe(StreamKey::CONTROL, topic_filter(&topic), QoS::ExactlyOnce).ok()?;
                self.has_asked = true;
            }
            Step::Publish => {
                for _ in 0..=self.client.testbed.draw(MESSAGES) {
                    self.publish(&topic, connection)?;
                }
                self.step = Step::Unsubscribe;
            }
            Step::Unsubscribe => {
                connection.unsubscribe(topic_filter(&topic)).ok()?;
                self.has_asked = true;
            }
            Step::PublishInVain => {
                // The ledger expects nothing on an ended topic and counts each delivery as a fault.
                self.client.testbed.ledger().end_topic(&topic);
                self.publish(&topic, connection)?;
                self.turn += 1;
                self.step = Step::Subscribe;
            }
        }
        Some(())
    }

    fn publish(&mut self, topic: &str, connection: &mut Connection) -> Option<()> {
        let number = self.client.testbed.ledger().next(topic);
        let message = delivery(topic, payload(topic, number), QoS::ExactlyOnce, false, StreamKey::CONTROL);
        self.client.publish(connection, number, message, None).ok().map(drop)
    }

    fn handle(&mut self, received: Received, connection: Option<&mut Connection>) {
        let Received::Other(_, event) = received else { return };
        let testbed = &self.client.testbed;
        match event {
            ConnectionEvent::Subscribed(_) => {
                let mut ledger = testbed.ledger();
                ledger.counts.suback += 1;
                ledger.add_topic(&self.topic(), TopicKind::ExactlyOnce);
                (self.step, self.has_asked) = (Step::Publish, false);
            }
            ConnectionEvent::Unsubscribed => {
                testbed.ledger().counts.unsuback += 1;
                (self.step, self.has_asked) = (Step::PublishInVain, false);
            }
            ConnectionEvent::Message(incoming) => {
                let topic = incoming.message.topic.as_str();
                let scope = Some((self.client.connections, StreamKey::CONTROL));
                let number = number(topic, &incoming.message.payload).unwrap_or(u64::MAX);
                let arrival = Arrival { number, scope, dup: incoming.dup };
                testbed.ledger().delivered(self.subscriber, topic, arrival);
                if let (Some(token), Some(connection)) = (incoming.token, connection) {
                    connection.acknowledge(token);
                }
            }
            ConnectionEvent::Published(..) | ConnectionEvent::StreamEnded(..) => {}
        }
    }
}
