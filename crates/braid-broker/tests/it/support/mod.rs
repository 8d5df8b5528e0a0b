//! A broker in this process, and clients that exchange raw packets with it, all on virtual time.

mod access;
mod allocator;
mod client;
mod entrance;
mod lanes;
mod packets;
mod panics;
mod pump;
mod quic;
mod raw;
mod receiver;
mod relay;
mod socket_relay;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use braid_broker::cluster::Storage;
use braid_broker::{
    Anonymous, Authenticate, Authorize, Broker, BrokerConfig, BrokerListener, Handle, LimitsConfig,
    PermitAll, Statistics, SysConfig,
};
use braid_proto::decoder::Spool;
use braid_proto::packet::{Connect, Packet, ProtocolVersion};
use braid_store::{MemoryStore, Store, StoreError};
use braid_transport::mem::{self, Connector};
use braid_transport::{ByteStream, EndpointHealth, Link};
use tokio::task::JoinHandle;

pub(crate) use access::{AclRules, UserNames, named};
pub(crate) use allocator::allocated;
pub(crate) use client::Client;
pub(crate) use entrance::Entrance;
pub(crate) use lanes::{CONTROL, Ended, Lanes};
pub(crate) use packets::{
    connect_v3, connect_v5, filter, id, message, publish_packet, subscribe_packet, texts, topic,
    unsubscribe_packet, will,
};
pub(crate) use panics::Seed;
pub(crate) use quic::{QuicBroker, Sockets, anyone, tls_listener};
pub(crate) use raw::{Raw, bytes};
pub(crate) use receiver::Receiver;
pub(crate) use relay::Relay;
pub(crate) use socket_relay::SocketRelay;

/// Upper bound of the time that a stopping broker waits for its clients.
pub(crate) const DRAIN: Duration = Duration::from_secs(10);

/// A running broker, reached through in-memory links.
pub(crate) struct TestBroker {
    pub(crate) connector: Connector,
    pub(crate) handle: Handle,
    task: JoinHandle<Result<(), StoreError>>,
}

impl TestBroker {
    /// A broker with the default configuration, but without `$SYS` messages.
    pub(crate) fn start() -> Self {
        Self::start_with(quiet())
    }

    pub(crate) fn start_with(config: BrokerConfig) -> Self {
        Self::start_with_rule(config, Anonymous::default())
    }

    pub(crate) fn start_with_rule(config: BrokerConfig, rule: impl Authenticate) -> Self {
        Self::start_with_all(config, rule, Arc::new(MemoryStore::new()))
    }

    /// A broker that continues with the content of `store`.
    pub(crate) fn start_over(store: Arc<dyn Store>) -> Self {
        Self::start_with_all(quiet(), Anonymous::default(), store)
    }

    pub(crate) fn start_with_all(
        config: BrokerConfig,
        rule: impl Authenticate,
        store: Arc<dyn Store>,
    ) -> Self {
        Self::start_on(config, rule, Arc::new(PermitAll), store, None, Vec::new())
    }

    /// A broker that receives large packets into `spool`.
    pub(crate) fn start_with_spool(config: BrokerConfig, spool: Arc<dyn Spool>) -> Self {
        let (store, rule) = (Arc::new(MemoryStore::new()), Anonymous::default());
        Self::start_on(config, rule, Arc::new(PermitAll), store, Some(spool), Vec::new())
    }

    /// A broker that asks `authorize` for permission.
    pub(crate) fn start_with_access(
        rule: impl Authenticate,
        authorize: Arc<dyn Authorize>,
        store: Arc<dyn Store>,
    ) -> Self {
        Self::start_on(quiet(), rule, authorize, store, None, Vec::new())
    }

    /// A broker with this configuration that asks `authorize` for permission.
    pub(crate) fn start_with_rules(
        config: BrokerConfig,
        rule: impl Authenticate,
        authorize: Arc<dyn Authorize>,
    ) -> Self {
        Self::start_on(config, rule, authorize, Arc::new(MemoryStore::new()), None, Vec::new())
    }

    /// A broker with more listeners than the one in memory.
    pub(crate) fn start_listening(config: BrokerConfig, others: Vec<BrokerListener>) -> Self {
        let store = Arc::new(MemoryStore::new());
        Self::start_on(config, anyone(), Arc::new(PermitAll), store, None, others)
    }

    fn start_on(
        config: BrokerConfig,
        rule: impl Authenticate,
        authorize: Arc<dyn Authorize>,
        store: Arc<dyn Store>,
        spool: Option<Arc<dyn Spool>>,
        others: Vec<BrokerListener>,
    ) -> Self {
        panics::count();
        let (listener, connector) = mem::listener();
        let listeners = std::iter::once(listener.into()).chain(others).collect();
        let storage = Storage { spool, ..Storage::of(store) };
        let broker = Broker::recover(config, Box::new(rule), authorize, storage, listeners, |_| {});
        let broker = broker.expect("memory can be read");
        let handle = broker.handle();
        Self { connector, handle, task: tokio::spawn(broker.run(DRAIN)) }
    }

    /// Makes an accept of the listener fail, which reports `health` from then on.
    pub(crate) async fn fail_accept(&self, health: EndpointHealth) {
        let error = std::io::Error::other("the endpoint has failed");
        self.connector.fail_accept(error, health).await.expect("the broker listens");
    }

    /// A link before CONNECT.
    pub(crate) async fn link(&self, version: ProtocolVersion) -> Client {
        let link = self.connector.connect().await.expect("the broker listens");
        Client::new(only_stream(link), version)
    }

    /// A link before CONNECT of a client with this address.
    pub(crate) async fn link_from(&self, address: SocketAddr, version: ProtocolVersion) -> Client {
        let link = self.connector.connect_from(address).await.expect("the broker listens");
        Client::new(only_stream(link), version)
    }

    /// A link that holds at most `capacity` bytes in each direction.
    pub(crate) async fn narrow_link(&self, version: ProtocolVersion, capacity: usize) -> Client {
        let link = self.connector.connect_with_capacity(capacity).await.expect("the broker listens");
        Client::new(only_stream(link), version)
    }

    /// A connected client.
    pub(crate) async fn connect(&self, connect: Connect) -> Client {
        let mut client = self.link(connect.version).await;
        client.send(Packet::Connect(Box::new(connect))).await;
        client.accepted().await;
        client
    }

    /// A connected MQTT 5 client whose session ends with the connection.
    pub(crate) async fn v5(&self, client_id: &str) -> Client {
        self.connect(connect_v5(client_id)).await
    }

    /// A connected MQTT 3.1.1 client whose session ends with the connection.
    pub(crate) async fn v3(&self, client_id: &str) -> Client {
        self.connect(connect_v3(client_id)).await
    }

    /// A connected MQTT 5 client with a Session Expiry Interval of an hour; it resumes its session.
    pub(crate) async fn resume(&self, client_id: &str) -> Client {
        self.connect(lasting(client_id)).await
    }

    /// The broker has stopped.
    pub(crate) async fn ended(&mut self) {
        assert_eq!(self.outcome().await, Ok(()));
    }

    /// Waits until the broker has stopped, by request or because its store failed.
    pub(crate) async fn outcome(&mut self) -> Result<(), StoreError> {
        (&mut self.task).await.expect("the broker ends without a panic")
    }

    pub(crate) fn statistics(&self) -> Arc<Statistics> {
        self.handle.statistics()
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(panics::counted(), 0, "a task of the broker panicked");
        }
    }
}

/// The default configuration without `$SYS` messages, and without bans of clients that connect again and again: in some
/// tests they do.
pub(crate) fn quiet() -> BrokerConfig {
    let limits = LimitsConfig { flapping_connects: 0, ..LimitsConfig::default() };
    BrokerConfig { limits, sys: SysConfig { interval_secs: 0 }, ..BrokerConfig::default() }
}

/// Clean Start 0 and an hour of Session Expiry Interval.
pub(crate) fn lasting(client_id: &str) -> Connect {
    let mut connect = connect_v5(client_id);
    connect.clean_start = false;
    connect.properties.session_expiry = Some(3600);
    connect
}

/// Runs every task until all are idle, without time passing.
pub(crate) async fn settle() {
    wait(Duration::from_millis(1)).await;
}

/// Lets `seconds` pass, and runs all tasks meanwhile.
pub(crate) async fn pass(seconds: u64) {
    wait(Duration::from_secs(seconds)).await;
}

/// Waits on the paused clock, which moves only when every task is idle.
pub(crate) async fn wait(duration: Duration) {
    tokio::time::advance(Duration::ZERO).await; // Panics if the clock is a real one.
    let nothing = tokio::time::timeout(duration, std::future::pending::<()>()).await;
    assert!(nothing.is_err());
}

pub(crate) fn only_stream(link: Link) -> Box<dyn ByteStream> {
    match link {
        Link::Single(single) => single.io,
        Link::Multi(_) => unreachable!("links in memory have one stream"),
    }
}
