//! Publishes to every lane with QoS 1 and 2, as long as there is load.

use std::collections::HashMap;

use braid_bench::{Connection, Handed, Happening};
use braid_proto::packet::{PacketId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::session::Phase;
use braid_proto::stream::{Priority, StreamKey};
use tokio::time::{Instant, sleep_until};

use crate::house::House;
use crate::ledger::Use;
use crate::line::{Happened, Line, delivery};
use crate::payload::payload;

/// Streams of a connection, where there can be several.
pub(crate) const LANES: usize = 3;
/// Messages on their way.
const WINDOW: usize = 24;

/// A message on its way.
pub(crate) struct Flight {
    pub(crate) topic: String,
    pub(crate) number: u64,
    pub(crate) qos: QoS,
    /// PUBREC has come.
    is_received: bool,
}

/// Messages on their way by their identifiers, across connections.
#[derive(Default)]
pub(crate) struct Flights(HashMap<PacketId, Flight>);

impl Flights {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn begin(&mut self, id: PacketId, topic: &str, number: u64, qos: QoS) {
        let flight = Flight { topic: topic.to_owned(), number, qos, is_received: false };
        self.0.insert(id, flight);
    }

    /// Notes each PUBREC that has come.
    pub(crate) fn look(&mut self, connection: &Connection, house: &House) {
        let Some(session) = connection.session() else { return };
        for (id, flight) in self.0.iter_mut().filter(|(_, flight)| !flight.is_received) {
            if matches!(session.outbound.get(*id), Some(Phase::Released(_))) {
                flight.is_received = true;
                let mut ledger = house.ledger();
                ledger.counts.pubrec += 1;
                ledger.acknowledged(&flight.topic, flight.number);
            }
        }
    }

    /// The exchange of a message is over.
    pub(crate) fn land(&mut self, id: PacketId, reason: ReasonCode, house: &House) -> Option<Flight> {
        let flight = self.0.remove(&id)?;
        let mut ledger = house.ledger();
        if reason.is_error() {
            ledger.counts.faults.unanswered += 1;
            ledger.tell(format!("{} {} was refused: {reason}", flight.topic, flight.number));
            ledger.doubted(&flight.topic, flight.number);
            return Some(flight);
        }
        match flight.qos {
            QoS::ExactlyOnce => {
                ledger.counts.pubrec += u64::from(!flight.is_received);
                ledger.counts.pubcomp += 1;
            }
            _ => ledger.counts.puback += 1,
        }
        ledger.acknowledged(&flight.topic, flight.number);
        Some(flight)
    }
}

/// A client that publishes.
pub(crate) struct Publisher {
    line: Line,
    flights: Flights,
    /// Topics with their lane, in turns.
    topics: Vec<(String, QoS, usize)>,
    turn: usize,
}

impl Publisher {
    pub(crate) fn new(line: Line, name: &str) -> Self {
        let mut topics = Vec::new();
        for lane in 0..LANES {
            for (number, kind, qos) in
                [(1, Use::AtLeastOnce, QoS::AtLeastOnce), (2, Use::ExactlyOnce, QoS::ExactlyOnce)]
            {
                let topic = format!("m/{lane}/{}/{name}/{number}", line.way.scheme);
                line.house.ledger().add_topic(&topic, kind);
                topics.push((topic, qos, lane));
            }
        }
        Self { line, flights: Flights::default(), topics, turn: 0 }
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

    /// Until the connection ends.
    async fn serve(&mut self, connection: &mut Connection) {
        let mut phases = self.line.house.phase.subscribe();
        let mut streams = Vec::new();
        for _ in 0..LANES {
            match connection.open(Priority::DEFAULT).await {
                Ok(stream) => streams.push(stream),
                Err(_) => return,
            }
        }
        // What is sent again goes on the control stream, and what follows on other streams must not overtake it.
        let mut is_clear = streams[0].is_control();
        let pace = self.line.house.pace;
        let mut next = Instant::now();
        loop {
            is_clear |= self.flights.is_empty();
            if is_clear && Instant::now() >= next {
                if !self.publish(connection, &streams) {
                    return;
                }
                next = Instant::now() + pace;
            }
            tokio::select! {
                happened = self.line.next(connection) => match happened {
                    Some(happened) => self.handle(happened),
                    None => return,
                },
                _ = phases.changed() => {}
                () = sleep_until(next), if is_clear && !pace.is_zero() => {}
            }
            self.flights.look(connection, &self.line.house);
        }
    }

    /// Fills the window. False: the connection has ended.
    fn publish(&mut self, connection: &mut Connection, streams: &[StreamKey]) -> bool {
        while self.line.house.is_loading() && self.flights.len() < WINDOW {
            let (topic, qos, lane) = &self.topics[self.turn % self.topics.len()];
            let number = self.line.house.ledger().next(topic);
            let message = delivery(topic, payload(topic, number), *qos, false, streams[*lane]);
            match connection.send(message) {
                Ok(Handed::Out(Some(id))) => {
                    self.flights.begin(id, topic, number, *qos);
                    self.line.house.ledger().sent(topic);
                    self.turn += 1;
                }
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    fn handle(&mut self, (_, happening): Happened) {
        if let Happening::Published(id, reason) = happening {
            self.flights.land(id, reason, &self.line.house);
        }
    }
}
