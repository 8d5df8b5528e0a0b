//! Publisher and subscriber of the demo.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use braid_client::{
    Builder, Client, ConnectionEvent, Error, Events, Messages, Publication, QoS, Reconnect, Subscribe,
    TopicName,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::ledger::Ledger;

/// Topic of the messages.
pub(super) const TOPIC: &str = "demo/numbers";

/// Time that sessions outlive their connections.
const EXPIRY: Duration = Duration::from_secs(3600);

/// Keep Alive, and the time for an answer to a PINGREQ: a node that is stopped and not dead is left after both.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// First and longest pause before the next try to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Time for the first subscription.
const FIRST: Duration = Duration::from_secs(60);

/// Pause of deliveries or acknowledgements that is told; rarer messages pause for longer.
const PAUSE: Duration = Duration::from_secs(1);

/// Refused messages after which one is told again.
const REFUSALS_UNTOLD: u64 = 100;

/// Sender of lines about what happened.
pub(super) type Notes = UnboundedSender<String>;

/// A client that publishes numbers with QoS 1, and another one with a persistent session that receives them.
pub(super) struct Load {
    ledger: Arc<Mutex<Ledger>>,
    is_publishing: Arc<AtomicBool>,
    clients: [Client; 2],
    tasks: JoinSet<()>,
}

impl Load {
    /// Subscribes, then publishes `rate` messages a second.
    ///
    /// # Errors
    /// The server does not take the subscription within a minute.
    pub(super) async fn start(url: &str, rate: u32, notes: &Notes) -> Result<Self, String> {
        let topic = TopicName::parse(TOPIC).map_err(|error| error.to_string())?;
        let (subscriber, messages) =
            client(url, "demo-subscriber").start().map_err(|error| error.to_string())?;
        let (publisher, _) = client(url, "demo-publisher").start().map_err(|error| error.to_string())?;
        let mut tasks = JoinSet::new();
        for (name, client) in [("subscriber", &subscriber), ("publisher", &publisher)] {
            tasks.spawn(tell(name, client.events(), notes.clone()));
        }
        let filter = Subscribe::to(TOPIC).map_err(|error| error.to_string())?.qos(QoS::AtLeastOnce);
        let subscribed = timeout(FIRST, subscriber.subscribe(filter)).await;
        let subscribed = subscribed.unwrap_or(Err(Error::Closed));
        subscribed.map_err(|error| format!("no node takes the subscription at {url}: {error}"))?;
        let (ledger, is_publishing) = (Arc::default(), Arc::new(AtomicBool::new(true)));
        let pause = PAUSE + Duration::from_secs(1) / rate.max(1);
        let record = Record { ledger: Arc::clone(&ledger), notes: notes.clone(), pause };
        tasks.spawn(receive(messages, record.clone()));
        tasks.spawn(publish(publisher.clone(), topic, rate, record, Arc::clone(&is_publishing)));
        Ok(Self { ledger, is_publishing, clients: [publisher, subscriber], tasks })
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Publishes no more.
    pub(super) fn pause(&self) {
        self.is_publishing.store(false, Ordering::Relaxed);
    }

    /// Ends both clients, at most within `patience`.
    pub(super) async fn end(mut self, patience: Duration) {
        for client in &self.clients {
            // There may be no node any more.
            let _ = timeout(patience, client.disconnect()).await;
        }
        self.tasks.shutdown().await;
    }
}

/// A poisoned ledger is safe to use: it has no calls to other code.
fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

fn client(url: &str, id: &str) -> Builder {
    let (initial, maximum) = PAUSES;
    Client::builder(url)
        .client_id(id)
        .session_expiry(EXPIRY)
        .keep_alive(KEEP_ALIVE)
        .ping_timeout(KEEP_ALIVE)
        .reconnect(Reconnect::Backoff { initial, maximum })
}

/// Ledger, and lines about what happened to its messages.
#[derive(Clone)]
struct Record {
    ledger: Arc<Mutex<Ledger>>,
    notes: Notes,
    /// Shortest pause that is told.
    pause: Duration,
}

impl Record {
    fn deliver(&self, number: u64) {
        let gap = lock(&self.ledger).deliver(number, Instant::now());
        self.tell_pause("subscriber: deliveries go on", gap);
    }

    fn settle(&self, number: u64, outcome: Result<(), Error>) {
        let mut ledger = lock(&self.ledger);
        match outcome {
            Ok(()) => {
                let gap = ledger.acknowledge(number, Instant::now());
                self.tell_pause("publisher: acknowledgements go on", gap);
            }
            Err(error) => {
                if ledger.counts().refused.is_multiple_of(REFUSALS_UNTOLD) {
                    self.tell(format!("message {number} was refused: {error}"));
                }
                ledger.refuse(number);
            }
        }
    }

    fn tell_pause(&self, what: &str, pause: Duration) {
        if pause >= self.pause {
            self.tell(format!("{what} after {:.1} s", pause.as_secs_f64()));
        }
    }

    fn tell(&self, note: String) {
        // The demo may be ending.
        let _ = self.notes.send(note);
    }
}

async fn receive(mut messages: Messages, record: Record) {
    while let Some(message) = messages.recv().await {
        let number = std::str::from_utf8(&message.payload).ok().and_then(|text| text.parse().ok());
        // Another client may publish to the topic.
        number.into_iter().for_each(|number| record.deliver(number));
    }
}

/// Publishes numbers until `is_publishing` is false, and waits for all acknowledgements.
async fn publish(
    client: Client,
    topic: TopicName,
    rate: u32,
    record: Record,
    is_publishing: Arc<AtomicBool>,
) {
    let mut ticks = interval(Duration::from_secs(1) / rate.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waits = JoinSet::new();
    loop {
        ticks.tick().await;
        while waits.try_join_next().is_some() {}
        if !is_publishing.load(Ordering::Relaxed) {
            break;
        }
        let number = lock(&record.ledger).publish(Instant::now());
        let publication = Publication::new(topic.clone(), number.to_string()).qos(QoS::AtLeastOnce);
        let record = record.clone();
        match client.enqueue(publication).await {
            Ok(acknowledgement) => {
                waits.spawn(async move { record.settle(number, acknowledgement.await.map(drop)) });
            }
            Err(error) => record.settle(number, Err(error)),
        }
    }
    while waits.join_next().await.is_some() {}
}

/// Tells of lost and new connections of a client.
async fn tell(name: &'static str, mut events: Events, notes: Notes) {
    let mut lost = None::<Instant>;
    while let Some(event) = events.recv().await {
        let note = match event {
            ConnectionEvent::Connected { session_present, .. } => match lost.take() {
                None => format!("{name}: connected"),
                Some(at) => connected_again(name, at.elapsed(), session_present),
            },
            ConnectionEvent::Disconnected { error, retry_in: None } => format!("{name}: ended: {error}"),
            ConnectionEvent::Disconnected { error, .. } if lost.is_none() => {
                lost = Some(Instant::now());
                format!("{name}: connection lost: {error}")
            }
            ConnectionEvent::SubscriptionLost { filter, reason } => {
                format!("{name}: lost its subscription {}: {reason:?}", filter.as_str())
            }
            _ => continue,
        };
        // The demo may be ending.
        let _ = notes.send(note);
    }
}

fn connected_again(name: &str, after: Duration, session_present: bool) -> String {
    let session = if session_present { "its session is there" } else { "its session is GONE" };
    format!("{name}: connected again after {:.1} s, {session}", after.as_secs_f64())
}
