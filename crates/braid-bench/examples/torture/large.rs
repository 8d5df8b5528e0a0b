//! Publishes messages that the broker spools, one at a time and so slowly that half of the kills find it in the middle of one.

use std::rc::Rc;
use std::time::Duration;

use braid_bench::{Connection, Handed, Happening};
use braid_proto::packet::QoS;
use braid_proto::stream::StreamKey;
use tokio::time::{Instant, sleep_until};

use crate::ledger::Use;
use crate::line::{Happened, Line, delivery};
use crate::payload::{LARGE, payload};
use crate::publisher::Flights;

/// Bytes that leave at once, and the time between two such pieces.
const PIECE: usize = 48 << 10;
const PERIOD: Duration = Duration::from_millis(6);
/// Between two messages, at most.
const PAUSE: Duration = Duration::from_millis(30);

/// A client that publishes large messages.
pub(crate) struct Large {
    line: Line,
    flights: Flights,
    /// In turns.
    topics: [(String, QoS); 2],
    turn: usize,
}

impl Large {
    pub(crate) fn new(line: Line) -> Self {
        let topic = |number| format!("l/{}/{number}{LARGE}", line.way.scheme);
        let topics = [(topic(1), QoS::AtLeastOnce), (topic(2), QoS::ExactlyOnce)];
        for (kind, (topic, _)) in [Use::AtLeastOnce, Use::ExactlyOnce].into_iter().zip(&topics) {
            line.house.ledger().add_topic(topic, kind);
        }
        Self { line, flights: Flights::default(), topics, turn: 0 }
    }

    pub(crate) async fn run(mut self) {
        loop {
            let mut connection = self.line.open().await;
            self.serve(&mut connection).await;
            let (all, written) = connection.progress(StreamKey::CONTROL);
            self.line.house.ledger().counts.cut += u64::from(written < all);
            self.flights.look(&connection, &self.line.house);
            for happened in self.line.close(connection) {
                self.handle(happened);
            }
        }
    }

    /// Until the connection ends.
    async fn serve(&mut self, connection: &mut Connection) {
        let house = Rc::clone(&self.line.house);
        // What is sent again is not hurried either, and nothing new is begun before that.
        connection.write_at_most(PIECE);
        let mut next = Instant::now() + PERIOD;
        loop {
            let is_idle = self.flights.is_empty();
            tokio::select! {
                happened = self.line.next(connection) => match happened {
                    Some(happened) => self.handle(happened),
                    None => return,
                },
                () = sleep_until(next), if !is_idle => {
                    connection.write_at_most(PIECE);
                    next = Instant::now() + PERIOD;
                }
                () = async { house.loading().await; house.pause(PAUSE).await }, if is_idle => {
                    connection.write_at_most(PIECE);
                    next = Instant::now() + PERIOD;
                    if !self.publish(connection) {
                        return;
                    }
                }
            }
            self.flights.look(connection, &house);
        }
    }

    /// Begins the next one. False: the connection has ended.
    fn publish(&mut self, connection: &mut Connection) -> bool {
        if !self.line.house.is_loading() {
            return true;
        }
        let (topic, qos) = &self.topics[self.turn % self.topics.len()];
        let number = self.line.house.ledger().next(topic);
        match connection.send(delivery(topic, payload(topic, number), *qos, false, StreamKey::CONTROL)) {
            Ok(Handed::Out(Some(id))) => {
                self.flights.begin(id, topic, number, *qos);
                self.line.house.ledger().sent(topic);
                self.turn += 1;
                true
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    fn handle(&mut self, (_, happening): Happened) {
        if let Happening::Published(id, reason) = happening
            && self.flights.land(id, reason, &self.line.house).is_some()
        {
            self.line.house.ledger().counts.large += 1;
        }
    }
}
