//! Publishes to every lane with QoS 1 and 2, as long as there is load.

use std::collections::HashMap;
use std::time::Duration;

use braid_bench::{Connection, Handed, Happening};
use braid_proto::packet::{PacketId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::session::Phase;
use braid_proto::stream::{Priority, StreamKey};
use tokio::time::{Instant, sleep_until};

use crate::house::House;
use crate::ledger::Use;
use crate::line::{Happened, Line, delivery, expiring};
use crate::payload::payload;
use crate::terms::{Cap, Terms};

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

/// What is published to a topic.
struct Goods {
    topic: String,
    qos: QoS,
    lane: usize,
    /// Some of it expires.
    expires: bool,
}

/// A client that publishes.
pub(crate) struct Publisher {
    line: Line,
    flights: Flights,
    /// In turns.
    goods: Vec<Goods>,
    turn: usize,
}

/// After how many seconds a message expires where some do, if this one does. Those that do not show what was missing among
/// those that do soon, and those that do in an hour show that a clock was wrong.
pub(crate) fn expiry(number: u64) -> Option<u32> {
    [Some(1), None, Some(3_600), Some(2)][usize::try_from(number % 4).unwrap_or(0)]
}

impl Publisher {
    /// To all lanes.
    pub(crate) fn new(line: Line, name: &str) -> Self {
        let scheme = line.way.scheme;
        let topics = (0..LANES).flat_map(|lane| {
            [QoS::AtLeastOnce, QoS::ExactlyOnce].map(|qos| (format!("m/{lane}/{scheme}/{name}"), qos, lane))
        });
        Self::of(line, topics.collect(), Terms::Whole)
    }

    /// What expires, or does not.
    pub(crate) fn expiring(line: Line) -> Self {
        let topic = format!("x/{}", line.way.scheme);
        let levels = [QoS::AtLeastOnce, QoS::ExactlyOnce];
        Self::of(line, levels.map(|qos| (topic.clone(), qos, 0)).into(), Terms::Expires)
    }

    /// One topic, for queues that hold little.
    pub(crate) fn capped(line: Line, cap: Cap) -> Self {
        let topic = format!("q/{}", line.way.scheme);
        Self::of(line, vec![(topic, QoS::ExactlyOnce, 0)], Terms::Capped(cap))
    }

    fn of(line: Line, topics: Vec<(String, QoS, usize)>, terms: Terms) -> Self {
        let mut goods = Vec::new();
        for (topic, qos, lane) in topics {
            let (number, kind) = match qos {
                QoS::ExactlyOnce => (2, Use::ExactlyOnce),
                _ => (1, Use::AtLeastOnce),
            };
            let topic = format!("{topic}/{number}");
            line.house.ledger().add_topic_with(&topic, kind, terms);
            goods.push(Goods { topic, qos, lane, expires: terms == Terms::Expires });
        }
        Self { line, flights: Flights::default(), goods, turn: 0 }
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
        for _ in 0..self.lanes() {
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

    fn lanes(&self) -> usize {
        self.goods.iter().map(|goods| goods.lane + 1).max().unwrap_or_default()
    }

    /// Fills the window. False: the connection has ended.
    fn publish(&mut self, connection: &mut Connection, streams: &[StreamKey]) -> bool {
        while self.line.house.is_loading() && self.flights.len() < WINDOW {
            let Goods { topic, qos, lane, expires } = &self.goods[self.turn % self.goods.len()];
            let number = self.line.house.ledger().next(topic);
            let expiry = expiry(number).filter(|_| *expires);
            let message = delivery(topic, payload(topic, number), *qos, false, streams[*lane]);
            match connection.send(expiring(message, expiry)) {
                Ok(Handed::Out(Some(id))) => {
                    self.flights.begin(id, topic, number, *qos);
                    let expiry = expiry.map(|seconds| Duration::from_secs(seconds.into()));
                    self.line.house.ledger().sent_for(topic, expiry);
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
