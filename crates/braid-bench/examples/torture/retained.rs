//! Retained messages: who publishes and removes them, and new clients that look at all of them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use braid_bench::{Connection, Handed, Happening};
use braid_proto::packet::{ProtocolVersion, QoS};
use braid_proto::stream::StreamKey;
use bytes::Bytes;

use crate::house::{House, Way};
use crate::ledger::Use;
use crate::line::{Happened, Line, delivery, topic_filter};
use crate::payload::{number, payload};
use crate::publisher::Flights;

/// Topics of each keeper.
const TOPICS: usize = 4;
/// One message in so many removes what is retained.
const REMOVES: u64 = 5;
/// Between two messages, at most: a part of the kills finds nothing on its way that would hide what is lost.
const PAUSE: Duration = Duration::from_millis(8);

/// What is retained on a topic, by the numbers of its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// So many were acknowledged, in their order.
    acknowledged: u64,
    /// So many were sent.
    sent: u64,
}

/// What is retained.
#[derive(Debug, Default)]
pub(crate) struct Retained(BTreeMap<String, State>);

impl Retained {
    /// What is wrong with what a new client found, each topic with its number, when `before` was acknowledged before it
    /// looked.
    fn judge(&self, before: &BTreeMap<String, u64>, found: &BTreeMap<String, u64>) -> Vec<String> {
        let mut wrong = Vec::new();
        for (topic, state) in &self.0 {
            // The message with the number n is the state after n + 1 of them.
            let may_be = before.get(topic).copied().unwrap_or(0)..=state.sent;
            let is_right = match found.get(topic) {
                Some(number) => may_be.contains(&(number + 1)) && !removes(*number),
                None => may_be.clone().any(|state| state == 0 || removes(state - 1)),
            };
            if !is_right {
                let found = found.get(topic);
                wrong.push(format!("retained on {topic} is {found:?}, and {may_be:?} messages were sent"));
            }
        }
        wrong
    }

    fn acknowledged(&self) -> BTreeMap<String, u64> {
        self.0.iter().map(|(topic, state)| (topic.clone(), state.acknowledged)).collect()
    }
}

fn removes(number: u64) -> bool {
    number % REMOVES == REMOVES - 1
}

/// A client that publishes retained messages, one at a time on each topic.
pub(crate) struct Keeper {
    line: Line,
    flights: Flights,
    topics: Vec<String>,
}

impl Keeper {
    pub(crate) fn new(line: Line) -> Self {
        let topics: Vec<_> = (0..TOPICS).map(|topic| format!("r/{}/{topic}", line.way.scheme)).collect();
        for topic in &topics {
            line.house.ledger().add_topic(topic, Use::AtLeastOnce);
            line.house.retained.borrow_mut().0.insert(topic.clone(), State::default());
        }
        Self { line, flights: Flights::default(), topics }
    }

    pub(crate) async fn run(mut self) {
        loop {
            let mut connection = self.line.open().await;
            self.serve(&mut connection).await;
            self.flights.look(&connection, &self.line.house);
            for happened in self.line.close(connection) {
                self.handle(happened);
            }
        }
    }

    async fn serve(&mut self, connection: &mut Connection) {
        let house = Rc::clone(&self.line.house);
        loop {
            tokio::select! {
                happened = self.line.next(connection) => match happened {
                    Some(happened) => self.handle(happened),
                    None => return,
                },
                () = async { house.loading().await; house.pause(PAUSE).await } => {
                    if !self.publish(connection) {
                        return;
                    }
                }
            }
            self.flights.look(connection, &self.line.house);
        }
    }

    fn publish(&mut self, connection: &mut Connection) -> bool {
        let house = &self.line.house;
        let topic = &self.topics[house.draw(TOPICS)];
        let mut retained = house.retained.borrow_mut();
        let Some(state) = retained.0.get_mut(topic) else { return true };
        if !house.is_loading() || state.acknowledged < state.sent {
            return true;
        }
        let number = state.sent;
        let qos = if house.draw(2) == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        let payload = if removes(number) { Bytes::new() } else { payload(topic, number) };
        match connection.send(delivery(topic, payload, qos, true, StreamKey::CONTROL)) {
            Ok(Handed::Out(Some(id))) => {
                self.flights.begin(id, topic, number, qos);
                state.sent += 1;
                house.ledger().sent(topic);
                true
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    fn handle(&mut self, (_, happening): Happened) {
        let Happening::Published(id, reason) = happening else { return };
        let Some(flight) = self.flights.land(id, reason, &self.line.house) else { return };
        if let Some(state) = self.line.house.retained.borrow_mut().0.get_mut(&flight.topic) {
            state.acknowledged = flight.number + 1;
        }
    }
}

/// Looks at everything that is retained with a client that nobody has seen before, and writes into the books what is
/// wrong. False: the connection ended before that.
pub(crate) async fn look(house: &Rc<House>, way: &Rc<Way>) -> bool {
    let before = house.retained.borrow().acknowledged();
    let name = format!("look-{}", house.draw(usize::MAX));
    let mut line = Line::new(house, way, &name, ProtocolVersion::V5);
    line.expires_with_its_connection();
    let mut connection = line.open().await;
    let Some(found) = find(&line, &mut connection, &format!("e/{name}")).await else { return false };
    let wrong = house.retained.borrow().judge(&before, &found);
    let mut ledger = house.ledger();
    ledger.counts.retained_looks += 1;
    ledger.counts.faults.stale += wrong.len() as u64;
    wrong.into_iter().for_each(|line| ledger.tell(line));
    true
}

/// The number of what is retained on each topic. What comes to `end` comes behind all of it.
async fn find(line: &Line, connection: &mut Connection, end: &str) -> Option<BTreeMap<String, u64>> {
    for filter in ["r/#", end] {
        connection.subscribe(StreamKey::CONTROL, topic_filter(filter), QoS::ExactlyOnce).ok()?;
    }
    let (mut found, mut answers) = (BTreeMap::new(), 0);
    loop {
        match line.next(connection).await?.1 {
            Happening::Subscribed(_) => {
                answers += 1;
                if answers == 2 {
                    let last = delivery(end, Bytes::new(), QoS::AtLeastOnce, false, StreamKey::CONTROL);
                    connection.send(last).ok()?;
                }
            }
            Happening::Message(incoming) => {
                let topic = incoming.message.topic.as_str();
                if topic == end {
                    return Some(found);
                }
                if incoming.message.payload.is_empty() {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(acknowledged: u64, sent: u64, found: Option<u64>) -> bool {
        let state = State { acknowledged, sent };
        let retained = Retained([("r".to_owned(), state)].into());
        let found = found.map(|number| ("r".to_owned(), number)).into_iter().collect();
        retained.judge(&retained.acknowledged(), &found).is_empty()
    }

    #[test]
    fn what_is_retained_is_what_was_acknowledged_or_sent_since() {
        assert!(judge(0, 0, None));
        assert!(judge(2, 2, Some(1)));
        assert!(judge(1, 2, Some(0)) && judge(1, 2, Some(1)));
        assert!(!judge(2, 2, Some(0)), "older");
        assert!(!judge(2, 2, Some(2)), "never sent");
        assert!(!judge(2, 2, None), "missing");
    }

    #[test]
    fn what_was_removed_is_gone() {
        assert!(judge(5, 5, None));
        assert!(!judge(5, 5, Some(3)));
        assert!(judge(4, 5, Some(3)) && judge(4, 5, None), "perhaps removed");
    }
}
