//! Well-behaved clients: pairs of a publisher and a subscriber that measure latencies, and a fresh client.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use braid_client::{Client, ConnectionEvent, Messages, Priority, Publication, QoS, Reconnect, Subscribe};
use braid_measure::Latencies;
use braid_transport::Transport;
use bytes::{Buf, BufMut, BytesMut};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::target::Target;

/// Time between two messages of a pair.
const PERIOD: Duration = Duration::from_millis(20);
/// Bytes of a payload; the first eight are the number of the message.
const SIZE: usize = 100;
/// Time limit of everything that a fresh client does.
const ANSWER: Duration = Duration::from_secs(10);
/// Far above [`Priority::DEFAULT`].
const URGENT: Priority = Priority::new(60_000);

/// Kind of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    Quic,
    /// QUIC, with a high priority.
    Urgent,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Quic => "quic",
            Self::Urgent => "urgent",
        }
    }

    fn transport(self) -> Transport {
        match self {
            Self::Tcp => Transport::Tcp,
            Self::Quic | Self::Urgent => Transport::Quic,
        }
    }
}

/// A publisher and a subscriber: 50 messages a second of QoS 1.
pub(crate) struct Pair {
    pub(crate) kind: Kind,
    messages: Rc<RefCell<MessageLog>>,
    faults: Rc<RefCell<Vec<String>>>,
    /// Held: without it the connection would end.
    _subscriber: Client,
    _tasks: JoinSet<()>,
}

/// Times of all messages in the order of their numbers.
#[derive(Default)]
struct MessageLog {
    published: Vec<Instant>,
    arrived: Vec<Option<Instant>>,
}

impl MessageLog {
    /// Notes the publication of the next message; returns its number.
    fn publish(&mut self, at: Instant) -> u64 {
        self.published.push(at);
        self.arrived.push(None);
        self.published.len() as u64 - 1
    }

    /// Notes an arrival; a duplicate, which QoS 1 allows, does not count.
    fn arrive(&mut self, number: u64, at: Instant) {
        let arrived = usize::try_from(number).ok().and_then(|number| self.arrived.get_mut(number));
        if let Some(arrived) = arrived {
            arrived.get_or_insert(at);
        }
    }

    /// Latencies of the messages that were published in a period; those that have not arrived are missing.
    fn latencies(&self, from: Instant, to: Instant) -> Latencies {
        let mut latencies = Latencies::default();
        for (published, arrived) in self.published.iter().zip(&self.arrived) {
            if from <= *published && *published < to {
                match arrived {
                    Some(arrived) => latencies.record(*arrived - *published),
                    None => latencies.record_missing(1),
                }
            }
        }
        latencies
    }
}

impl Pair {
    /// Connects both clients, subscribes, and begins to publish.
    ///
    /// # Errors
    /// No connection, or a refusal.
    pub(crate) async fn start(target: &Target, kind: Kind) -> Result<Self, String> {
        let failed = |error: braid_client::Error| format!("the {} pair cannot start: {error}", kind.name());
        let client = |role: &str| {
            let builder = Client::builder(&target.url(kind.transport()))
                .client_id(&format!("well-behaved-{}-{role}", kind.name()))
                .tls(target.tls_options())
                .reconnect(Reconnect::default());
            if kind == Kind::Urgent { builder.default_priority(URGENT) } else { builder }
        };
        let topic = format!("well-behaved/{}", kind.name());
        let (subscriber, received) = client("subscriber").connect().await.map_err(failed)?;
        let mut subscribe = Subscribe::to(&topic).map_err(|error| error.to_string())?.qos(QoS::AtLeastOnce);
        if kind == Kind::Urgent {
            subscribe = subscribe.priority(URGENT);
        }
        subscriber.subscribe(subscribe).await.map_err(failed)?;
        let (publisher, unused) = client("publisher").connect().await.map_err(failed)?;
        let publication =
            Publication::to(&topic, "").map_err(|error| error.to_string())?.qos(QoS::AtLeastOnce);
        let (messages, faults) =
            (Rc::<RefCell<MessageLog>>::default(), Rc::<RefCell<Vec<String>>>::default());
        let mut tasks = JoinSet::new();
        for (role, client) in [("publisher", &publisher), ("subscriber", &subscriber)] {
            tasks.spawn_local(watch(client.clone(), role, Rc::clone(&faults)));
        }
        tasks.spawn_local(publish(
            (publisher, unused),
            publication,
            Rc::clone(&messages),
            Rc::clone(&faults),
        ));
        tasks.spawn_local(receive(received, Rc::clone(&messages)));
        Ok(Self { kind, messages, faults, _subscriber: subscriber, _tasks: tasks })
    }

    /// Latencies of the messages that were published in a period.
    pub(crate) fn latencies(&self, from: Instant, to: Instant) -> Latencies {
        self.messages.borrow().latencies(from, to)
    }

    /// Lost connections and messages that the client did not take.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.faults.borrow().iter().map(|fault| format!("{}: {fault}", self.kind.name())).collect()
    }
}

/// Notes each loss of the connection.
async fn watch(client: Client, role: &str, faults: Rc<RefCell<Vec<String>>>) {
    let mut events = client.events();
    while let Some(event) = events.recv().await {
        if let ConnectionEvent::Disconnected { error, .. } = event {
            faults.borrow_mut().push(format!("the {role} lost its connection: {error}"));
        }
    }
}

/// Publishes until it is dropped.
async fn publish(
    (client, _unused): (Client, Messages),
    publication: Publication,
    messages: Rc<RefCell<MessageLog>>,
    faults: Rc<RefCell<Vec<String>>>,
) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let number = messages.borrow_mut().publish(Instant::now());
        let mut payload = BytesMut::with_capacity(SIZE);
        payload.put_u64(number);
        payload.resize(SIZE, 0x57);
        // Without waiting: a broker that is slow must not slow the measurement.
        if let Err(error) = client.try_publish(publication.clone().payload(payload.freeze())) {
            faults.borrow_mut().push(format!("a message was not taken: {error}"));
            return;
        }
    }
}

async fn receive(mut received: Messages, messages: Rc<RefCell<MessageLog>>) {
    while let Some(received) = received.recv().await {
        let mut payload = &received.payload[..];
        if payload.len() == SIZE {
            messages.borrow_mut().arrive(payload.get_u64(), Instant::now());
        }
    }
}

/// A fresh client connects, subscribes, publishes and receives; returns how long that took.
///
/// # Errors
/// The broker does not serve it in time.
pub(crate) async fn serve_fresh_client(target: &Target, transport: Transport) -> Result<Duration, String> {
    let began = Instant::now();
    let serve = async {
        let client =
            Client::builder(&target.url(transport)).tls(target.tls_options()).reconnect(Reconnect::Never);
        let (client, mut received) = client.connect().await?;
        client.subscribe(Subscribe::to("fresh/client")?.qos(QoS::AtLeastOnce)).await?;
        client.publish(Publication::to("fresh/client", "fresh")?.qos(QoS::AtLeastOnce)).await?;
        received.recv().await.ok_or(braid_client::Error::Closed)?;
        client.disconnect().await
    };
    match timeout(ANSWER, serve).await {
        Ok(Ok(())) => Ok(began.elapsed()),
        Ok(Err(error)) => Err(format!("a fresh client over {transport} is not served: {error}")),
        Err(_) => Err(format!("a fresh client over {transport} is not served within {ANSWER:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_count_in_the_period_of_their_publication() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut log = MessageLog::default();
        for millis in [0, 10, 20, 30] {
            log.publish(at(millis));
        }
        // The second arrives twice, the third never, the last one within another period.
        for (number, millis) in [(0, 1), (1, 14), (1, 19), (3, 90), (4, 99)] {
            log.arrive(number, at(millis));
        }
        let found = log.latencies(at(10), at(30));
        let millis = |latencies: &Latencies, fraction| latencies.quantile(fraction).map(f64::round);
        assert_eq!((found.due(), found.arrived(), millis(&found, 0.5)), (2, 1, Some(4.0)));
        assert_eq!(found.quantile(1.0), None, "the third is later than any other");
        assert_eq!(millis(&log.latencies(at(0), at(10)), 1.0), Some(1.0));
        assert_eq!(millis(&log.latencies(at(30), at(31)), 1.0), Some(60.0));
    }
}
