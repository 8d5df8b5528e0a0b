//! The oracle: clients that know which messages the broker has acknowledged and see which it delivers, while faults are
//! injected into that broker.
//!
//! The clients run on a thread of their own. [`Oracle`] is the handle of the thread that injects the faults.

mod crowd;
mod guarantee;
mod large;
mod ledger;
mod persistent_client;
mod publisher;
mod resubscriber;
mod retained;
mod retained_state;
mod subscriber;
mod testbed;
mod will;

use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc as answers;
use std::thread;
use std::time::Duration;

use braid_proto::packet::ProtocolVersion;
use braid_torture::Broker;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep_until, timeout};

use crate::plan::{Overflow, Transport};
use guarantee::Cap;
use large::LargePublisher;
pub(crate) use ledger::Counts;
use persistent_client::PersistentClient;
use publisher::Publisher;
use resubscriber::Resubscriber;
use retained::RetainedPublisher;
use subscriber::{Subscriber, Subscriptions};
use testbed::{Endpoint, Testbed};
use will::WillClient;

/// Time without any progress after which missing deliveries are lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit of the first subscriptions of all subscribers, and of a check of the retained messages with all its
/// attempts to connect.
const LIMIT: Duration = Duration::from_secs(90);
/// Time between two looks at the process of the broker while the clients are waited for.
const LOOK: Duration = Duration::from_millis(100);
/// Receive Maximum of subscribers with bounded queues.
const INFLIGHT: u16 = 10;

/// Clients to run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Seed of all random choices.
    pub(crate) seed: u64,
    /// Least time between two fillings of a publisher's window.
    pub(crate) pace: Duration,
    /// Loads after which a subscriber that is offline returns at the latest.
    pub(crate) most_offline: u64,
    /// Adds clients outside of the ledger that come and go.
    pub(crate) crowd: bool,
    /// Overflow policy and message limit of bounded queues. Clients whose messages may not be missing are left out
    /// then.
    pub(crate) bounded: Option<(Overflow, u64)>,
}

/// Counters and faults so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) counts: Counts,
    /// Sum of all kinds.
    pub(crate) faults: u64,
    /// Descriptions of the first faults.
    pub(crate) fault_lines: Vec<String>,
}

impl Report {
    /// Publishers' messages whose last acknowledgement has come.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.counts.puback + self.counts.pubcomp
    }
}

/// Handle of the running oracle; dropping it ends the clients.
pub(crate) struct Oracle {
    commands: mpsc::UnboundedSender<Command>,
}

enum Command {
    Up,
    Down,
    Load(answers::Sender<Result<(), String>>),
    BeginLoad,
    Rest,
    Check { everyone: bool, answer: answers::Sender<Report> },
}

impl Oracle {
    /// Starts the clients; they connect once the broker is up.
    ///
    /// # Errors
    /// No thread or no runtime.
    pub(crate) fn start(
        ports: &[(Transport, u16)],
        certificate: &Path,
        options: Options,
    ) -> Result<Self, String> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no runtime for the oracle: {error}"))?;
        let (commands, received) = mpsc::unbounded_channel();
        let (ports, certificate) = (ports.to_vec(), certificate.to_owned());
        let run = move || {
            LocalSet::new().block_on(&runtime, run(&ports, &certificate, &options, received));
            // Tasks of the transports end with the runtime, which waits for none of them.
            runtime.shutdown_background();
        };
        thread::Builder::new()
            .name("oracle".to_owned())
            .spawn(run)
            .map_err(|error| format!("no thread for the oracle: {error}"))?;
        Ok(Self { commands })
    }

    /// The broker listens.
    pub(crate) fn up(&self) -> Result<(), String> {
        self.send(Command::Up)
    }

    /// The broker has ended.
    pub(crate) fn down(&self) -> Result<(), String> {
        self.send(Command::Down)
    }

    /// Begins a load, and waits until a message is acknowledged.
    ///
    /// # Errors
    /// The broker ends, or acknowledges nothing.
    pub(crate) fn load(&self, broker: &mut Broker) -> Result<(), String> {
        let (answer, answered) = answers::channel();
        self.send(Command::Load(answer))?;
        wait(&answered, broker)?
    }

    /// Begins another load, in which subscribers leave and return anew.
    pub(crate) fn begin_load(&self) -> Result<(), String> {
        self.send(Command::BeginLoad)
    }

    /// Ends the load.
    pub(crate) fn rest(&self) -> Result<(), String> {
        self.send(Command::Rest)
    }

    /// Ends the load and waits until every due delivery was made or none arrives any more. With `everyone`, subscribers
    /// that are offline return first, and Wills are waited for.
    ///
    /// # Errors
    /// The broker ends.
    pub(crate) fn check(&self, everyone: bool, broker: &mut Broker) -> Result<Report, String> {
        let (answer, answered) = answers::channel();
        self.send(Command::Check { everyone, answer })?;
        wait(&answered, broker)
    }

    fn send(&self, command: Command) -> Result<(), String> {
        self.commands.send(command).map_err(|_| ended())
    }
}

/// Waits for an answer of the clients while the broker runs, without which they may wait for ever.
fn wait<T>(answered: &answers::Receiver<T>, broker: &mut Broker) -> Result<T, String> {
    loop {
        match answered.recv_timeout(LOOK) {
            Ok(answer) => return Ok(answer),
            Err(answers::RecvTimeoutError::Timeout) => broker.check_running()?,
            Err(answers::RecvTimeoutError::Disconnected) => return Err(ended()),
        }
    }
}

fn ended() -> String {
    "the oracle has ended".to_owned()
}

/// Runs the clients until the handle is dropped.
async fn run(
    ports: &[(Transport, u16)],
    certificate: &Path,
    options: &Options,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let testbed = Testbed::new(options.seed, options.pace, options.most_offline);
    let endpoint = |(transport, port): &(Transport, u16)| Endpoint::new(*transport, *port, certificate);
    let endpoints: Vec<Rc<Endpoint>> = ports.iter().map(endpoint).collect();
    let (ready, mut subscribed) = mpsc::channel(1);
    for endpoint in &endpoints {
        populate(&testbed, endpoint, options, &ready);
    }
    drop(ready);
    while let Some(command) = commands.recv().await {
        match command {
            Command::Up => testbed.broker.send_modify(|broker| broker.is_up = true),
            Command::Down => testbed.broker.send_modify(|broker| {
                broker.is_up = false;
                broker.ends += 1;
            }),
            Command::Load(answer) => {
                // The channel closes when the last subscriber has its first subscriptions.
                let loaded = if timeout(LIMIT, subscribed.recv()).await.is_err() {
                    Err(format!("not all clients have subscribed within {LIMIT:?}"))
                } else {
                    let acknowledged = timeout(PATIENCE, load(&testbed)).await;
                    acknowledged.map_err(|_| "no message is acknowledged".to_owned())
                };
                // The caller may have seen the end of the broker.
                let _ = answer.send(loaded);
            }
            Command::BeginLoad => testbed.begin_load(),
            Command::Rest => testbed.rest(false),
            Command::Check { everyone, answer } => {
                settle(&testbed, everyone).await;
                let endpoint = &endpoints[testbed.draw(endpoints.len())];
                check_retained(&testbed, endpoint, LIMIT).await;
                let ledger = testbed.read_ledger();
                let counts = ledger.counts.clone();
                let (faults, fault_lines) = (counts.faults.sum(), ledger.fault_lines().to_vec());
                let _ = answer.send(Report { counts, faults, fault_lines });
            }
        }
    }
}

/// Starts all clients of one endpoint.
fn populate(testbed: &Rc<Testbed>, endpoint: &Rc<Endpoint>, options: &Options, ready: &mpsc::Sender<()>) {
    if let Some((overflow, messages)) = options.bounded {
        return populate_bounded(
            testbed,
            endpoint,
            Cap { overflow, messages, inflight: INFLIGHT.into() },
            ready,
        );
    }
    let client = |name: &str, version| PersistentClient::new(testbed, endpoint, name, version);
    let subscribe = |name: &str, version, subscriptions| {
        spawn_local(Subscriber::new(client(name, version), name, subscriptions).run(ready.clone()));
    };
    let new = ProtocolVersion::V5;
    let old = if endpoint.is_quic() { new } else { ProtocolVersion::V311 };
    subscribe("present", new, Subscriptions::lanes(false, false));
    subscribe("turns", new, Subscriptions::lanes(true, true));
    subscribe("turns-3", old, Subscriptions::lanes(true, false));
    for (name, version) in [("a", new), ("b", old)] {
        spawn_local(Publisher::new(client(&format!("publisher-{name}"), version), name).run());
    }
    spawn_local(RetainedPublisher::new(client("retained-publisher", new)).run());
    spawn_local(Resubscriber::new(client("churner", new)).run());
    for delay in [0, 1, will::NEVER] {
        spawn_local(WillClient::new(client(&format!("will-{delay}"), new), delay).run());
    }
    if options.crowd {
        // A soak looks for growth, which large and short-lived messages would hide.
        return crowd::spawn_crowd(testbed, endpoint);
    }
    let large = format!("l/{}/#", endpoint.transport.scheme());
    subscribe("late", new, Subscriptions::one("x/#".to_owned(), true));
    subscribe("large", new, Subscriptions::one(large.clone(), false));
    subscribe("large-turns", old, Subscriptions::one(large, true));
    spawn_local(Publisher::expiring(client("publisher-x", new)).run());
    spawn_local(LargePublisher::new(client("publisher-l", new)).run());
}

/// Starts the clients of one endpoint whose messages may be dropped by full queues, and those that are never offline.
fn populate_bounded(testbed: &Rc<Testbed>, endpoint: &Rc<Endpoint>, cap: Cap, ready: &mpsc::Sender<()>) {
    let client = |name: &str| PersistentClient::new(testbed, endpoint, name, ProtocolVersion::V5);
    for (name, in_turns) in [("present", false), ("turns", true), ("turns-too", true)] {
        let mut client = client(name);
        client.set_receive_maximum(INFLIGHT);
        let subscriptions = Subscriptions::one(format!("q/{}/#", endpoint.transport.scheme()), in_turns);
        spawn_local(Subscriber::new(client, name, subscriptions).run(ready.clone()));
    }
    spawn_local(Publisher::bounded(client("publisher"), cap).run());
    spawn_local(RetainedPublisher::new(client("retained-publisher")).run());
    spawn_local(Resubscriber::new(client("churner")).run());
}

/// Begins a load and waits until a message is acknowledged.
async fn load(testbed: &Testbed) {
    let acknowledged = || {
        let ledger = testbed.read_ledger();
        ledger.counts.puback + ledger.counts.pubcomp
    };
    let before = acknowledged();
    testbed.begin_load();
    loop {
        let changed = testbed.changed.notified();
        if acknowledged() > before {
            return;
        }
        changed.await;
    }
}

/// Checks the retained messages by new clients until one has read all of them; none within `limit` is a fault.
async fn check_retained(testbed: &Rc<Testbed>, endpoint: &Rc<Endpoint>, limit: Duration) {
    let look = async { while !retained::check_retained(testbed, endpoint).await {} };
    if timeout(limit, look).await.is_err() {
        let mut ledger = testbed.ledger();
        ledger.counts.faults.unanswered += 1;
        ledger.report_fault(format!("no new client could read the retained messages within {limit:?}"));
    }
}

/// Waits until every due delivery was made or none arrives any more.
async fn settle(testbed: &Testbed, everyone: bool) {
    testbed.rest(everyone);
    let mut deadline = Instant::now() + PATIENCE;
    let mut before = testbed.read_ledger().counts.progress();
    loop {
        let changed = testbed.changed.notified();
        if testbed.read_ledger().is_settled(everyone) {
            return;
        }
        tokio::select! {
            () = changed => {
                let counts = testbed.read_ledger().counts.progress();
                if counts != before {
                    (deadline, before) = (Instant::now() + PATIENCE, counts);
                }
            }
            () = sleep_until(deadline) => return testbed.ledger().record_missing(everyone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Endpoint of a port at which nothing listens.
    fn silent_port() -> (Transport, u16) {
        Transport::free_ports(&[Transport::Mqtt]).unwrap()[0]
    }

    #[test]
    fn an_end_of_the_broker_by_itself_ends_a_check_and_a_load() {
        let home = tempfile::tempdir().unwrap();
        let program = |name: &str| {
            Broker::new(name.as_ref(), home.path(), &home.path().join("log"), Vec::new(), Vec::new())
        };
        let options = Options {
            seed: 1,
            pace: Duration::ZERO,
            most_offline: 1,
            crowd: false,
            bounded: Some((Overflow::DropOldest, 1)),
        };
        let oracle = Oracle::start(&[silent_port()], &home.path().join("none.pem"), options).unwrap();
        oracle.up().unwrap();
        let mut broker = program("false");
        broker.spawn().unwrap();
        let wrong = oracle.load(&mut broker).unwrap_err();
        assert!(wrong.starts_with("the broker ended by itself with exit status: 1"), "{wrong}");
        broker.spawn().unwrap();
        let wrong = oracle.check(true, &mut broker).unwrap_err();
        assert!(wrong.starts_with("the broker ended by itself with exit status: 1"), "{wrong}");
        // Prints its arguments until it is killed.
        let mut broker = program("yes");
        let _output = broker.spawn().unwrap();
        assert_eq!(broker.check_running(), Ok(()));
    }

    #[tokio::test]
    async fn retained_messages_that_no_client_can_read_are_a_fault() {
        let (transport, port) = silent_port();
        let testbed = Testbed::new(1, Duration::ZERO, 1);
        let endpoint = Endpoint::new(transport, port, Path::new("none.pem"));
        check_retained(&testbed, &endpoint, Duration::ZERO).await;
        let ledger = testbed.read_ledger();
        assert_eq!(ledger.counts.faults.sum(), 1);
        assert!(ledger.fault_lines()[0].contains("could read the retained messages"));
    }
}
