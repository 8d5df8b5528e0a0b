//! Retained messages: who publishes and removes them, and new clients that look at all of them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use braid_bench::{Connection, Handed, Happening};
use braid_proto::packet::{ProtocolVersion, QoS};
use braid_proto::stream::StreamKey;
use bytes::Bytes;
use tokio::time::timeout;

use crate::house::{House, Way};
use crate::ledger::Use;
use crate::line::{Happened, Line, delivery, expiring, topic_filter};
use crate::payload::{LARGE, number, payload};
use crate::publisher::{Flights, expiry};
use crate::terms::CLOCKS_DIFFER;

/// Topics of each keeper: the last levels, in the order of how often they are chosen of so many times.
const TOPICS: [(&str, usize); 4] = [("/0", 6), ("/1", 6), (EXPIRES, 6), (LARGE, 1)];
/// The last level of those where some messages expire.
const EXPIRES: &str = "/brief";
/// One message in so many removes what is retained.
const REMOVES: u64 = 5;
/// Between two messages, at most: a part of the kills finds nothing on its way that would hide what is lost.
const PAUSE: Duration = Duration::from_millis(8);
/// Whoever looks at what is retained waits so long for more.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is retained on a topic, by the numbers of its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// So many were acknowledged, in their order.
    acknowledged: u64,
    /// So many were sent.
    sent: u64,
    /// When the last one of them was sent, and when that was acknowledged if it is.
    last_sent: Duration,
    last_acknowledged: Option<Duration>,
}

/// When somebody looked at all that is retained.
#[derive(Clone, Copy, Debug)]
struct Look {
    began: Duration,
    ended: Duration,
}

/// What is retained.
#[derive(Debug, Default)]
pub(crate) struct Retained(BTreeMap<String, State>);

impl Retained {
    /// What is wrong with what a new client found, each topic with its number, when `before` was acknowledged before it
    /// looked.
    fn judge(
        &self,
        before: &BTreeMap<String, u64>,
        look: Look,
        found: &BTreeMap<String, u64>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for (topic, state) in &self.0 {
            // The message with the number n is the state after n + 1 of them.
            let may_be = before.get(topic).copied().unwrap_or(0)..=state.sent;
            let is_right = match found.get(topic) {
                Some(number) => {
                    may_be.contains(&(number + 1))
                        && !removes(*number)
                        && !state.had_expired(topic, *number, look)
                }
                None => {
                    let is_gone =
                        |count| removes(count - 1) || state.may_have_expired(topic, count - 1, look);
                    may_be.clone().any(|count| count == 0 || is_gone(count))
                }
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

impl State {
    /// Of the last message that was sent; those before it are behind us.
    fn expiry(&self, topic: &str, number: u64) -> Option<Duration> {
        let is_last = topic.ends_with(EXPIRES) && number + 1 == self.sent;
        expiry(number).filter(|_| is_last).map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// The broker may have had it since it was sent.
    fn may_have_expired(&self, topic: &str, number: u64, look: Look) -> bool {
        let expiry = self.expiry(topic, number);
        expiry.is_some_and(|expiry| look.ended + CLOCKS_DIFFER >= self.last_sent + expiry)
    }

    /// The broker had it when it acknowledged it.
    fn had_expired(&self, topic: &str, number: u64, look: Look) -> bool {
        let expiry = self.expiry(topic, number);
        let over = expiry.zip(self.last_acknowledged).map(|(expiry, since)| since + expiry + CLOCKS_DIFFER);
        over.is_some_and(|over| look.began > over)
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
        let mut topics = Vec::new();
        for (level, times) in TOPICS {
            let topic = format!("r/{}{level}", line.way.scheme);
            topics.extend(std::iter::repeat_n(topic, times));
        }
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
        let topic = &self.topics[house.draw(self.topics.len())];
        let mut retained = house.retained.borrow_mut();
        let Some(state) = retained.0.get_mut(topic) else { return true };
        if !house.is_loading() || state.acknowledged < state.sent {
            return true;
        }
        let number = state.sent;
        let qos = if house.draw(2) == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        let payload = if removes(number) { Bytes::new() } else { payload(topic, number) };
        let message = delivery(topic, payload, qos, true, StreamKey::CONTROL);
        match connection.send(expiring(message, expiry(number).filter(|_| topic.ends_with(EXPIRES)))) {
            Ok(Handed::Out(Some(id))) => {
                self.flights.begin(id, topic, number, qos);
                state.sent += 1;
                (state.last_sent, state.last_acknowledged) = (house.now(), None);
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
            state.last_acknowledged = Some(self.line.house.now());
        }
    }
}

/// Looks at everything that is retained with a client that nobody has seen before, and writes into the books what is
/// wrong. False: the connection ended before that.
pub(crate) async fn look(house: &Rc<House>, way: &Rc<Way>) -> bool {
    let (before, began) = (house.retained.borrow().acknowledged(), house.now());
    let name = format!("look-{}", house.draw(usize::MAX));
    let mut line = Line::new(house, way, &name, ProtocolVersion::V5);
    line.expires_with_its_connection();
    let mut connection = line.open().await;
    let judge = |found: &BTreeMap<String, u64>| {
        let look = Look { began, ended: house.now() };
        house.retained.borrow().judge(&before, look, found)
    };
    let end = format!("e/{name}");
    let is_right = |found: &BTreeMap<String, u64>| judge(found).is_empty();
    let Some(found) = find(&line, &mut connection, &end, is_right).await else { return false };
    let wrong = judge(&found);
    let mut ledger = house.ledger();
    ledger.counts.retained_looks += 1;
    ledger.counts.faults.stale += wrong.len() as u64;
    wrong.into_iter().for_each(|line| ledger.tell(line));
    true
}

/// The number of what is retained on each topic. A message to `end` comes behind what is small; for what is large, which
/// comes a part at a time, it waits until it `is_right` or nothing more comes.
async fn find(
    line: &Line,
    connection: &mut Connection,
    end: &str,
    is_right: impl Fn(&BTreeMap<String, u64>) -> bool,
) -> Option<BTreeMap<String, u64>> {
    for filter in ["r/#", end] {
        connection.subscribe(StreamKey::CONTROL, topic_filter(filter), QoS::ExactlyOnce).ok()?;
    }
    let (mut found, mut answers, mut has_ended) = (BTreeMap::new(), 0, false);
    while !has_ended || !is_right(&found) {
        let happened = match has_ended {
            false => line.next(connection).await?,
            true => match timeout(PATIENCE, line.next(connection)).await {
                Ok(happened) => happened?,
                Err(_) => return Some(found),
            },
        };
        match happened.1 {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(acknowledged: u64, sent: u64, found: Option<u64>) -> bool {
        let state = State { acknowledged, sent, ..State::default() };
        is_right("r", state, Look { began: Duration::ZERO, ended: Duration::ZERO }, found)
    }

    fn is_right(topic: &str, state: State, look: Look, found: Option<u64>) -> bool {
        let retained = Retained([(topic.to_owned(), state)].into());
        let found = found.map(|number| (topic.to_owned(), number)).into_iter().collect();
        retained.judge(&retained.acknowledged(), look, &found).is_empty()
    }

    /// The message with the number 7 lives for two seconds, since some time between the seconds 10 and 11.
    #[test]
    fn what_expires_is_there_before_and_gone_afterwards() {
        let seconds = Duration::from_secs;
        let state =
            State { acknowledged: 8, sent: 8, last_sent: seconds(10), last_acknowledged: Some(seconds(11)) };
        for (second, there, gone) in
            [(11, true, false), (12, true, true), (13, true, true), (14, false, true)]
        {
            let look = Look { began: seconds(second), ended: seconds(second) };
            assert_eq!(is_right("r/brief", state, look, Some(7)), there, "in second {second}");
            assert_eq!(is_right("r/brief", state, look, None), gone, "in second {second}");
        }
        let look = Look { began: seconds(99), ended: seconds(99) };
        assert!(is_right("r/0", state, look, Some(7)) && !is_right("r/0", state, look, None));
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
