//! The broker, its clients, the network between them, and the random events of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use braid_broker::{BrokerConfig, MqttConfig, PriorityRule, SysConfig};
use braid_proto::packet::{Disconnect, Packet, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{Priority, StreamKey};
use braid_store::{MemoryStore, RecoveredSession, RecoveredState, Store};
use braid_transport::quic::QuicOptions;
use braid_transport::sim::Conditions;
use fastrand::Rng;
use tokio::time::Instant;

use super::client::ModelClient;
use super::model::{Name, Publication};
use super::wire::at_once;
use crate::support::{CONTROL, Client, QuicBroker, allocated, anyone, filter, quiet};

pub(super) const CLIENTS: usize = 3;

/// Time without any arrival after which a connection is lost.
pub(super) const IDLE: Duration = Duration::from_secs(20);

/// Upper bound of the time in which the broker notices the end of a stream or dispatches arrived messages.
pub(super) const NOTICED: Duration = Duration::from_secs(3);

/// Fate of a connection, which decides about its Will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Still connected: no Will.
    Alive,
    /// Ended without DISCONNECT: one Will.
    Lost,
    /// Ended with DISCONNECT: no Will.
    Disconnected,
    /// The client does not know whether DISCONNECT arrived.
    Unknown,
}

/// Statistics of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) messages: usize,
    pub(super) received: usize,
    /// Pairs of message and session, of which every copy was known.
    pub(super) known: usize,
    pub(super) pairs: usize,
    pub(super) streams_ended: usize,
    pub(super) take_overs: usize,
    pub(super) losses: usize,
    pub(super) moves: usize,
    /// Connections that did not survive a migration.
    pub(super) starved: usize,
}

impl Seen {
    pub(super) fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.received += more.received;
        self.known += more.known;
        self.pairs += more.pairs;
        self.streams_ended += more.streams_ended;
        self.take_overs += more.take_overs;
        self.losses += more.losses;
        self.moves += more.moves;
        self.starved += more.starved;
    }
}

pub(super) struct World {
    pub(super) broker: QuicBroker,
    pub(super) store: Arc<MemoryStore>,
    pub(super) clients: Vec<ModelClient>,
    /// Subscriber to the Wills.
    pub(super) heir: Client,
    pub(super) fates: BTreeMap<(usize, u32), Fate>,
    pub(super) wills: BTreeSet<(usize, u32)>,
    pub(super) publications: BTreeMap<Name, Publication>,
    /// QoS 0 messages that may be in transit, and until when.
    pub(super) in_flight: Vec<(Instant, Name)>,
    /// Streams that were reset, and the time by which the broker has noticed.
    pub(super) resets: Vec<(Instant, usize, u32, StreamKey)>,
    pub(super) rng: Rng,
    pub(super) held_at_start: i64,
    pub(super) seen: Seen,
}

fn config() -> BrokerConfig {
    let rule = |text, value| PriorityRule { filter: filter(text), priority: Priority::new(value) };
    BrokerConfig {
        mqtt: MqttConfig { maximum_inflight: 32, ..MqttConfig::default() },
        priority: vec![rule("alarm/#", 200), rule("bulk/#", 1)],
        sys: SysConfig { interval_secs: 0 },
        ..quiet()
    }
}

impl World {
    pub(super) async fn new(seed: u64) -> Self {
        let store = Arc::new(MemoryStore::new());
        let broker = QuicBroker::start_over(config(), QuicOptions::server(), anyone(), store.clone());
        let mut heir = broker.memory.v5("heir").await;
        heir.subscribe("$will/+", QoS::AtMostOnce).await;
        Self {
            broker,
            store,
            clients: (0..CLIENTS).map(ModelClient::new).collect(),
            heir,
            fates: BTreeMap::new(),
            wills: BTreeSet::new(),
            publications: BTreeMap::new(),
            in_flight: Vec::new(),
            resets: Vec::new(),
            rng: Rng::with_seed(seed),
            held_at_start: allocated(),
            seen: Seen::default(),
        }
    }

    // -- Time --------------------------------------------------------------------------------------

    /// Lets time pass, and handles all arrivals.
    pub(super) async fn pass(&mut self, duration: Duration) {
        if !duration.is_zero() {
            crate::support::wait(duration).await;
        }
        let now = Instant::now();
        for client_index in 0..CLIENTS {
            for name in std::mem::take(&mut self.clients[client_index].repeated) {
                self.publications.get_mut(&name).expect("published").is_repeated = true;
            }
            for name in std::mem::take(&mut self.clients[client_index].accepted) {
                self.clients.iter_mut().for_each(|client| client.model.accepted(name));
            }
        }
        for (_, name) in self.in_flight.extract_if(.., |(until, _)| *until < now) {
            self.clients.iter_mut().for_each(|client| client.model.accepted(name));
        }
        for (_, client_index, connection, stream) in self.resets.extract_if(.., |(until, ..)| *until < now) {
            if self.clients[client_index].connection == connection {
                self.clients[client_index].model.moved(Some(stream));
            }
        }
        self.check_wills().await;
    }

    /// Checks that each connection that ended without DISCONNECT caused one Will, and no other connection any.
    pub(super) async fn check_wills(&mut self) {
        while let Some(packet) = at_once(self.heir.next()).await {
            let Some(Packet::Publish(publish)) = packet else { panic!("the heir got {packet:?}") };
            let text = String::from_utf8_lossy(&publish.payload).into_owned();
            let (client_index, connection) = text.split_once(':').expect("a Will of the model");
            let of = (client_index.parse().expect("a name"), connection.parse().expect("a number"));
            let fate = self.fates[&of];
            assert!(matches!(fate, Fate::Lost | Fate::Unknown), "the Will of {of:?}, which is {fate:?}");
            assert!(self.wills.insert(of), "the Will of {of:?} came twice");
        }
    }

    pub(super) fn set_fate(&mut self, client_index: usize, fate: Fate) {
        let connection = self.clients[client_index].connection;
        self.fates.insert((client_index, connection), fate);
    }

    // -- The end -----------------------------------------------------------------------------------

    /// Drains all clients and disconnects them; the broker keeps no state of them.
    pub(super) async fn finish_all(mut self) -> Seen {
        for client_index in 0..CLIENTS {
            let host = self.broker.host(&self.clients[client_index].client_id());
            host.change(|link| {
                *link = Conditions { latency: Duration::from_millis(1), ..Conditions::default() }
            });
            if self.clients[client_index].wire.is_some() {
                self.clients[client_index].read_all();
            } else {
                let with_quic = self.rng.bool();
                self.connect(client_index, with_quic).await;
            }
        }
        // Exchanges that ended streams left incomplete continue without another connection,
        self.settle(false).await;
        // except QoS 2 exchanges on streams that the client has reset.
        for client_index in 0..CLIENTS {
            let with_quic = self.rng.bool();
            self.connect(client_index, with_quic).await;
        }
        self.settle(true).await;
        for client in &self.clients {
            client.model.check(&self.publications, true);
            let (known, pairs) = client.model.known();
            self.seen.known += known;
            self.seen.pairs += pairs;
            self.seen.received += client.model.got.len();
        }
        assert_eq!((self.image().sessions.len(), self.unfinished(true)), (CLIENTS, vec![]));
        self.leave().await;
        self.seen
    }

    /// Runs until no message is in transit in either direction. `all`: including messages that wait for another
    /// connection.
    async fn settle(&mut self, all: bool) {
        let mut left = Vec::new();
        for _ in 0..5000 {
            let mut is_quiet = true;
            for client in &mut self.clients {
                is_quiet &= !client.pump(usize::MAX, &mut self.rng).await;
                client.answer(true, &mut self.rng).await;
                is_quiet &= !client.is_busy(all);
            }
            self.pass(Duration::from_millis(10)).await;
            if is_quiet {
                left = self.unfinished(all);
                if left.is_empty() {
                    self.pass(NOTICED * 3).await;
                    return;
                }
            }
        }
        let busy: Vec<_> = self.clients.iter().filter(|client| client.is_busy(all)).collect();
        panic!("it does not come to rest: {busy:?}; in the store: {left:?}");
    }

    /// Sessions as the store has them.
    pub(super) fn image(&self) -> RecoveredState {
        let mut image = RecoveredState::default();
        self.store.recover(&mut image).expect("memory can be read");
        image
    }

    /// Messages that are queued or inflight, by session; with `all` also those that are not released.
    pub(super) fn unfinished(&self, all: bool) -> Vec<String> {
        let sessions = self.image().sessions.into_values();
        let left =
            sessions.filter(|session| !session.queue.is_empty() || all && !session.received.is_empty());
        left.map(|session| {
            let RecoveredSession { record, queue, received, .. } = session;
            format!("{:?}: {queue:?}, unreleased {received:?}", record.client_id)
        })
        .collect()
    }

    pub(super) async fn leave(&mut self) {
        for client_index in 0..CLIENTS {
            let disconnect = Disconnect { session_expiry: Some(0), ..Disconnect::new(ReasonCode::Success) };
            self.set_fate(client_index, Fate::Disconnected);
            let mut wire = self.clients[client_index].wire.take().expect("connected");
            wire.send(CONTROL, Packet::Disconnect(Box::new(disconnect))).await;
            wire.closed().await;
        }
        self.pass(IDLE * 4).await;
        for (of, fate) in &self.fates {
            assert!(*fate != Fate::Lost || self.wills.contains(of), "no Will of {of:?}");
        }
        assert_eq!(self.image(), RecoveredState::default());
        let statistics = self.broker.memory.statistics();
        assert_eq!((statistics.connections(), statistics.clients()), (1, 1), "the heir is left");
        self.clients.clear();
        self.publications.clear();
        self.fates.clear();
        let held = allocated() - self.held_at_start;
        // The emulator keeps as many buffers as packets were on their way at once.
        assert!(held < 600_000, "{held} bytes are left");
    }
}
