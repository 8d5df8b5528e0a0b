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
use std::thread;
use std::time::Duration;

use braid_proto::packet::ProtocolVersion;
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};
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
    /// The answer is false if no message was acknowledged in time.
    Load(oneshot::Sender<bool>),
    BeginLoad,
    Rest,
    Check {
        everyone: bool,
        answer: oneshot::Sender<Report>,
    },
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
    pub(crate) fn load(&self) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Load(answer))?;
        if answered.blocking_recv().map_err(|_| ended())? {
            Ok(())
        } else {
            Err("no message is acknowledged".to_owned())
        }
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
    pub(crate) fn check(&self, everyone: bool) -> Result<Report, String> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Check { everyone, answer })?;
        answered.blocking_recv().map_err(|_| ended())
    }

    fn send(&self, command: Command) -> Result<(), String> {
        self.commands.send(command).map_err(|_| ended())
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
                subscribed.recv().await;
                // The caller waits for the answer.
                let _ = answer.send(timeout(PATIENCE, load(&testbed)).await.is_ok());
            }
            Command::BeginLoad => testbed.begin_load(),
            Command::Rest => testbed.rest(false),
            Command::Check { everyone, answer } => {
                settle(&testbed, everyone).await;
                let endpoint = &endpoints[testbed.draw(endpoints.len())];
                while !retained::check_retained(&testbed, endpoint).await {}
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
