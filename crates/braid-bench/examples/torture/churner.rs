//! Subscribes, publishes to itself, unsubscribes, publishes once more, and so on.

use std::rc::Rc;

use braid_bench::{Connection, Handed, Happening};
use braid_proto::packet::QoS;
use braid_proto::stream::StreamKey;

use crate::ledger::{Arrival, ReaderId, Use};
use crate::line::{Happened, Line, delivery, topic_filter};
use crate::payload::{number, payload};
use crate::publisher::Flights;

/// Messages for a subscription.
const MESSAGES: usize = 4;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Subscribe,
    /// The subscription is acknowledged: what is acknowledged now must come.
    Publish,
    Unsubscribe,
    /// Its end is acknowledged: nothing must come any more.
    PublishInVain,
}

/// A client that changes its subscriptions.
pub(crate) struct Churner {
    line: Line,
    reader: ReaderId,
    /// Subscriptions so far.
    turn: u64,
    step: Step,
    /// SUBSCRIBE or UNSUBSCRIBE waits for its answer on this connection.
    has_asked: bool,
    flights: Flights,
}

impl Churner {
    pub(crate) fn new(line: Line) -> Self {
        let scheme = line.way.scheme;
        let reader = line.house.ledger().add_reader(&format!("churner-{scheme}"), &[&format!("s/{scheme}/")]);
        let flights = Flights::default();
        Self { line, reader, turn: 0, step: Step::Subscribe, has_asked: false, flights }
    }

    pub(crate) async fn run(mut self) {
        let house = Rc::clone(&self.line.house);
        loop {
            let mut connection = self.line.open().await;
            self.has_asked = false;
            loop {
                let ended = tokio::select! {
                    happened = self.line.next(&mut connection) => match happened {
                        Some(happened) => {
                            self.handle(happened, Some(&mut connection));
                            false
                        }
                        None => true,
                    },
                    () = house.loading(), if self.is_idle() => self.go_on(&mut connection).is_none(),
                };
                self.flights.look(&connection, &house);
                if ended {
                    break;
                }
            }
            for happened in self.line.close(connection) {
                self.handle(happened, None);
            }
        }
    }

    /// Nothing waits for an answer.
    fn is_idle(&self) -> bool {
        !self.has_asked
            && self.flights.is_empty()
            && (self.step != Step::Unsubscribe || self.line.house.books().has_all(self.reader, &self.topic()))
    }

    fn topic(&self) -> String {
        format!("s/{}/{}", self.line.way.scheme, self.turn)
    }

    /// Takes a step. `None`: the connection has ended.
    fn go_on(&mut self, connection: &mut Connection) -> Option<()> {
        let topic = self.topic();
        match self.step {
            Step::Subscribe => {
                connection.subscribe(StreamKey::CONTROL, topic_filter(&topic), QoS::ExactlyOnce).ok()?;
                self.has_asked = true;
            }
            Step::Publish => {
                for _ in 0..=self.line.house.draw(MESSAGES) {
                    self.publish(&topic, connection)?;
                }
                self.step = Step::Unsubscribe;
            }
            Step::Unsubscribe => {
                connection.unsubscribe(topic_filter(&topic)).ok()?;
                self.has_asked = true;
            }
            Step::PublishInVain => {
                // Nothing is due on a topic that has ended, and all that comes is uncalled.
                self.line.house.ledger().end_topic(&topic);
                self.publish(&topic, connection)?;
                self.turn += 1;
                self.step = Step::Subscribe;
            }
        }
        Some(())
    }

    fn publish(&mut self, topic: &str, connection: &mut Connection) -> Option<()> {
        let number = self.line.house.ledger().next(topic);
        let message = delivery(topic, payload(topic, number), QoS::ExactlyOnce, false, StreamKey::CONTROL);
        if let Handed::Out(Some(id)) = connection.send(message).ok()? {
            self.flights.begin(id, topic, number, QoS::ExactlyOnce);
            self.line.house.ledger().sent(topic);
        }
        Some(())
    }

    fn handle(&mut self, (_, happening): Happened, connection: Option<&mut Connection>) {
        let house = &self.line.house;
        match happening {
            Happening::Published(id, reason) => drop(self.flights.land(id, reason, house)),
            Happening::Subscribed(_) => {
                let mut ledger = house.ledger();
                ledger.counts.suback += 1;
                ledger.add_topic(&self.topic(), Use::ExactlyOnce);
                (self.step, self.has_asked) = (Step::Publish, false);
            }
            Happening::Unsubscribed => {
                house.ledger().counts.unsuback += 1;
                (self.step, self.has_asked) = (Step::PublishInVain, false);
            }
            Happening::Message(incoming) => {
                let topic = incoming.message.topic.as_str();
                let place = Some((self.line.connections, StreamKey::CONTROL));
                let number = number(topic, &incoming.message.payload).unwrap_or(u64::MAX);
                let arrival = Arrival { number, place, dup: incoming.dup };
                house.ledger().delivered(self.reader, topic, arrival);
                if let (Some(token), Some(connection)) = (incoming.token, connection) {
                    connection.acknowledge(token);
                }
            }
            Happening::StreamEnded(..) => {}
        }
    }
}
