//! Subscribes once, and then takes what comes: all the time, or in turns.

use std::future::poll_fn;
use std::time::Duration;

use braid_bench::{Connection, Happening};
use braid_proto::packet::QoS;
use braid_proto::stream::{Priority, StreamKey};
use tokio::time::{Instant, sleep_until, timeout};

use crate::house::Phase;
use crate::ledger::{Arrival, Place, ReaderId};
use crate::line::{Happened, Line, topic_filter};
use crate::payload::number;
use crate::publisher::LANES;

/// A change of mind comes within this time of a load.
const SOON: Duration = Duration::from_millis(150);
/// How long a DISCONNECT may take.
const LEAVING: Duration = Duration::from_secs(1);

/// What a subscriber wants.
pub(crate) struct Wants {
    filters: Vec<String>,
    /// It is there in some loads and away in others.
    in_turns: bool,
    /// Each of the first filters comes on a stream of its own, where there can be several: they are the lanes.
    by_lanes: bool,
}

impl Wants {
    /// All lanes, and Wills.
    pub(crate) fn lanes(in_turns: bool, by_lanes: bool) -> Self {
        let lanes = (0..LANES).map(|lane| format!("m/{lane}/#"));
        Self { filters: lanes.chain(["w/#".to_owned()]).collect(), in_turns, by_lanes }
    }

    pub(crate) fn one(filter: String, in_turns: bool) -> Self {
        Self { filters: vec![filter], in_turns, by_lanes: false }
    }
}

/// A client that subscribes.
pub(crate) struct Subscriber {
    line: Line,
    reader: ReaderId,
    wants: Wants,
    /// Subscriptions that the broker has acknowledged.
    subscribed: usize,
}

/// How a time with a connection ended.
enum End {
    Lost,
    Leaves { with_a_word: bool },
}

impl Subscriber {
    pub(crate) fn new(mut line: Line, name: &str, wants: Wants) -> Self {
        let prefixes: Vec<_> = wants.filters.iter().map(|filter| filter.trim_end_matches('#')).collect();
        let reader = line.house.ledger().add_reader(&format!("{name}-{}", line.way.scheme), &prefixes);
        line.set_reader(reader);
        Self { line, reader, wants, subscribed: 0 }
    }

    /// Drops `ready` once it has subscribed to everything that it wants.
    pub(crate) async fn run(mut self, ready: tokio::sync::mpsc::Sender<()>) {
        let mut ready = Some(ready);
        loop {
            let mut connection = self.line.open().await;
            let end = self.serve(&mut connection, &mut ready).await;
            if let End::Leaves { with_a_word: true } = end {
                connection.disconnect();
                // Whoever does not get it away leaves without it.
                let _ = timeout(LEAVING, poll_fn(|cx| connection.poll_close(cx))).await;
            }
            for happened in self.line.close(connection) {
                self.handle(happened);
            }
            self.line.house.ledger().forget_places(self.reader);
            if let End::Leaves { .. } = end {
                self.stay_away().await;
            }
        }
    }

    async fn serve(
        &mut self,
        connection: &mut Connection,
        ready: &mut Option<tokio::sync::mpsc::Sender<()>>,
    ) -> End {
        if !self.subscribe(connection).await {
            return End::Lost;
        }
        let mut phases = self.line.house.phase.subscribe();
        let mut leaves_at = None;
        loop {
            if self.subscribed >= self.wants.filters.len() {
                ready.take();
            }
            tokio::select! {
                happened = self.line.next(connection) => {
                    let Some(happened) = happened else { return End::Lost };
                    if let Some(token) = self.handle(happened) {
                        connection.acknowledge(token);
                    }
                }
                _ = phases.changed() => leaves_at = self.plan(*phases.borrow_and_update()),
                () = at(leaves_at) => {
                    self.line.house.ledger().set_away(self.reader, true);
                    return End::Leaves { with_a_word: self.line.house.draw(2) == 0 };
                }
            }
        }
    }

    /// When it changes its mind, if it does.
    fn plan(&self, phase: Phase) -> Option<Instant> {
        let changes = self.wants.in_turns && phase.is_loading && self.line.house.draw(2) == 0;
        changes.then(|| Instant::now() + self.line.house.draw_time(SOON))
    }

    /// Until it comes back.
    async fn stay_away(&mut self) {
        let mut phases = self.line.house.phase.subscribe();
        let left = phases.borrow().round;
        let mut returns_at = None;
        while !phases.borrow().everybody {
            tokio::select! {
                _ = phases.changed() => {
                    let phase = *phases.borrow_and_update();
                    returns_at = match phase.round - left >= self.line.house.most_away {
                        true => Some(Instant::now()),
                        false => self.plan(phase),
                    };
                }
                () = at(returns_at) => break,
            }
        }
        self.line.house.ledger().set_away(self.reader, false);
    }

    /// Asks for what it does not have; with lanes again on each connection, since streams end with it. [BQ-43]
    async fn subscribe(&mut self, connection: &mut Connection) -> bool {
        let moves = self.wants.by_lanes && connection.is_multi();
        if self.subscribed >= self.wants.filters.len() && !moves {
            return true;
        }
        self.subscribed = 0;
        for (lane, filter) in self.wants.filters.iter().enumerate() {
            let is_lane = moves && lane < LANES;
            let stream =
                if is_lane { connection.open(Priority::DEFAULT).await } else { Ok(StreamKey::CONTROL) };
            let Ok(stream) = stream else { return false };
            if connection.subscribe(stream, topic_filter(filter), QoS::ExactlyOnce).is_err() {
                return false;
            }
        }
        true
    }

    /// Where order is promised. Who gives lanes streams of their own has a control stream to which the lanes of earlier
    /// connections have moved, those that were on data streams and those that were not yet. [BQ-42], [BQ-54]
    fn place(&self, stream: StreamKey) -> Option<Place> {
        let mixes = self.wants.by_lanes && self.line.way.is_quic() && stream.is_control();
        (!mixes).then_some((self.line.connections, stream))
    }

    fn handle(&mut self, (stream, happening): Happened) -> Option<braid_proto::connection::Token> {
        let mut ledger = self.line.house.ledger();
        match happening {
            Happening::Message(incoming) => {
                let topic = incoming.message.topic.as_str();
                match number(topic, &incoming.message.payload) {
                    Some(number) => {
                        let arrival = Arrival { number, place: self.place(stream), dup: incoming.dup };
                        ledger.delivered(self.reader, topic, arrival);
                    }
                    None => {
                        ledger.counts.faults.corrupted += 1;
                        ledger.tell(format!("a payload on {topic} is not what was published"));
                    }
                }
                incoming.token
            }
            Happening::Subscribed(reason) if reason.is_error() => {
                ledger.counts.faults.unanswered += 1;
                ledger.tell(format!("a subscription was refused: {reason}"));
                None
            }
            Happening::Subscribed(_) => {
                ledger.counts.suback += 1;
                self.subscribed += 1;
                None
            }
            _ => None,
        }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
