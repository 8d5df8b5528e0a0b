//! Subscriber that is connected all the time, or in some loads only.

use std::future::poll_fn;
use std::time::Duration;

use braid_bench::{Connection, ConnectionEvent};
use braid_proto::packet::QoS;
use braid_proto::stream::{Priority, StreamKey};
use tokio::time::{Instant, sleep_until, timeout};

use super::ledger::{Arrival, OrderScope, SubscriberId};
use super::persistent_client::{PersistentClient, Received};
use super::publisher::LANES;
use super::testbed::Phase;
use crate::payload::number;
use crate::topic::topic_filter;

/// Latest time within a load at which it leaves or returns.
const SOON: Duration = Duration::from_millis(150);
/// Time limit of a DISCONNECT.
const LEAVING: Duration = Duration::from_secs(1);

/// Subscriptions and presence of a subscriber.
pub(crate) struct Subscriptions {
    filters: Vec<String>,
    /// True if it is offline in some loads.
    in_turns: bool,
    /// True if each of the first filters has a stream of its own, where there are several: the lanes.
    by_lanes: bool,
}

impl Subscriptions {
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
    client: PersistentClient,
    subscriber: SubscriberId,
    subscriptions: Subscriptions,
    /// Subscriptions acknowledged by the broker.
    subscribed: usize,
}

/// End of a connection.
enum End {
    Lost,
    Leaves { with_a_word: bool },
}

impl Subscriber {
    pub(crate) fn new(mut client: PersistentClient, name: &str, subscriptions: Subscriptions) -> Self {
        let prefixes: Vec<_> =
            subscriptions.filters.iter().map(|filter| filter.trim_end_matches('#')).collect();
        let subscriber = client
            .testbed
            .ledger()
            .add_subscriber(&format!("{name}-{}", client.endpoint.transport.scheme()), &prefixes);
        client.set_subscriber(subscriber);
        Self { client, subscriber, subscriptions, subscribed: 0 }
    }

    /// Runs for ever; drops `ready` once every subscription is acknowledged.
    pub(crate) async fn run(mut self, ready: tokio::sync::mpsc::Sender<()>) {
        let mut ready = Some(ready);
        loop {
            let mut connection = self.client.open().await;
            let end = self.serve(&mut connection, &mut ready).await;
            if let End::Leaves { with_a_word: true } = end {
                connection.disconnect();
                // Without an answer it leaves all the same.
                let _ = timeout(LEAVING, poll_fn(|cx| connection.poll_close(cx))).await;
            }
            for received in self.client.close(connection) {
                self.handle(received);
            }
            self.client.testbed.ledger().reset_order(self.subscriber);
            if let End::Leaves { .. } = end {
                self.stay_offline().await;
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
        let mut phases = self.client.testbed.phase.subscribe();
        let mut leaves_at = None;
        loop {
            if self.subscribed >= self.subscriptions.filters.len() {
                ready.take();
            }
            tokio::select! {
                received = self.client.next(connection) => {
                    let Some(received) = received else { return End::Lost };
                    if let Some(token) = self.handle(received) {
                        connection.acknowledge(token);
                    }
                }
                _ = phases.changed() => leaves_at = self.plan(*phases.borrow_and_update()),
                () = at(leaves_at) => {
                    self.client.testbed.ledger().set_offline(self.subscriber, true);
                    return End::Leaves { with_a_word: self.client.testbed.draw(2) == 0 };
                }
            }
        }
    }

    /// Time at which it leaves or returns in this load, if it does.
    fn plan(&self, phase: Phase) -> Option<Instant> {
        let changes = self.subscriptions.in_turns && phase.is_loading && self.client.testbed.draw(2) == 0;
        changes.then(|| Instant::now() + self.client.testbed.draw_time(SOON))
    }

    /// Waits until it is time to return.
    async fn stay_offline(&mut self) {
        let mut phases = self.client.testbed.phase.subscribe();
        let left = phases.borrow().round;
        let mut returns_at = None;
        while !phases.borrow().everyone {
            tokio::select! {
                _ = phases.changed() => {
                    let phase = *phases.borrow_and_update();
                    returns_at = match phase.round - left >= self.client.testbed.most_offline {
                        true => Some(Instant::now()),
                        false => self.plan(phase),
                    };
                }
                () = at(returns_at) => break,
            }
        }
        self.client.testbed.ledger().set_offline(self.subscriber, false);
    }

    /// Sends missing SUBSCRIBE packets; with lanes on every connection, since streams end with it. [BQ-43]
    async fn subscribe(&mut self, connection: &mut Connection) -> bool {
        let moves = self.subscriptions.by_lanes && connection.is_multi();
        if self.subscribed >= self.subscriptions.filters.len() && !moves {
            return true;
        }
        self.subscribed = 0;
        for (lane, filter) in self.subscriptions.filters.iter().enumerate() {
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

    /// Scope of the ordering guarantee. With lanes on streams of their own, the lanes of earlier connections have moved
    /// to the control stream in no common order. [BQ-42], [BQ-54]
    fn scope(&self, stream: StreamKey) -> Option<OrderScope> {
        let mixes = self.subscriptions.by_lanes && self.client.endpoint.is_quic() && stream.is_control();
        (!mixes).then_some((self.client.connections, stream))
    }

    fn handle(&mut self, received: Received) -> Option<braid_proto::connection::Token> {
        let Received::Other(stream, event) = received else { return None };
        let mut ledger = self.client.testbed.ledger();
        match event {
            ConnectionEvent::Message(incoming) => {
                let topic = incoming.message.topic.as_str();
                match number(topic, &incoming.message.payload) {
                    Some(number) => {
                        let arrival = Arrival { number, scope: self.scope(stream), dup: incoming.dup };
                        ledger.delivered(self.subscriber, topic, arrival);
                    }
                    None => {
                        ledger.counts.faults.corrupted += 1;
                        ledger.report_fault(format!("a payload on {topic} is not what was published"));
                    }
                }
                incoming.token
            }
            ConnectionEvent::Subscribed(reason) if reason.is_error() => {
                ledger.counts.faults.unanswered += 1;
                ledger.report_fault(format!("a subscription was refused: {reason}"));
                None
            }
            ConnectionEvent::Subscribed(_) => {
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
