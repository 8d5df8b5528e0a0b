//! A broker to put load on, and plans as `braidmq bench` makes them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use braid_bench::emqtt::{ClientIds, MessageTemplate, Role as ClientRole, TopicsFile};
use braid_bench::generator::{
    Board, Clients, Clock, Dialer, Ended, Ending, Plan, PublishPlan, PublishedTopic, Retries, Start,
    SubscribePlan, SubscribedFilter, Work, run,
};
use braid_bench::summary::{RunSummary, TopicSummary};
use braid_broker::{Anonymous, Broker, BrokerConfig, Handle, SysConfig};
use braid_proto::packet::{ProtocolVersion, QoS};
use braid_store::MemoryStore;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Host, Network};
use braid_transport::{ClientAuth, ClientTls, ClientTlsOptions, ListenOptions, ServerTls, mem, self_signed};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// A broker that is reached in memory, at once, and over QUIC through a network of one millisecond each way.
pub(super) struct Target {
    pub(super) broker: Handle,
    pub(super) device: Host,
    near: mem::Connector,
    server: SocketAddr,
    tls: ClientTls,
    /// All boards have one clock, as the programs of one machine have.
    pub(super) clock: Clock,
    _files: TempDir,
}

/// A run that goes on.
pub(super) struct Going {
    pub(super) board: Board,
    running: JoinHandle<Ended>,
}

impl Target {
    pub(super) fn start() -> Self {
        Self::with(BrokerConfig::default())
    }

    pub(super) fn with(config: BrokerConfig) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let files = self_signed(directory.path(), &["localhost".to_owned()]).expect("a certificate");
        let ca_files = vec![files.certificate.clone()];
        let network = Network::new(1);
        let tls = ServerTls::load(files, ClientAuth::None).expect("the certificate is there");
        let listener = network.listen(tls, &ListenOptions::default()).expect("a free port");
        let server = listener.local_addr().expect("an address");
        let (hub, near) = mem::hub();
        let config = BrokerConfig { sys: SysConfig { interval_secs: 0 }, ..config };
        let rule = Box::new(Anonymous { from_anywhere: true });
        let store = Arc::new(MemoryStore::new());
        let broker = Broker::build(config, rule, store, vec![listener, hub]).expect("an empty store");
        let handle = broker.handle();
        tokio::spawn(broker.run(Duration::ZERO));
        let tls = ClientTls::new(ClientTlsOptions { ca_files, ..ClientTlsOptions::default() });
        let device = network.host("device");
        Self { broker: handle, device, near, server, tls, clock: Clock::now(), _files: directory }
    }

    pub(super) fn near(&self) -> Dialer {
        Dialer::in_memory(self.near.clone())
    }

    pub(super) fn far(&self) -> Dialer {
        Dialer::in_simulation(self.device.connector(self.server, self.tls.clone(), QuicOptions::client()))
    }

    /// Starts a run; the task ends when the run does.
    pub(super) fn go(&self, plan: Plan, dialer: Dialer) -> Going {
        let board = Board::new(self.clock);
        let running = tokio::spawn(run(plan, dialer, board.clone(), std::future::pending()));
        Going { board, running }
    }
}

impl Going {
    pub(super) async fn ended(self) -> (Ended, Board) {
        (self.running.await.expect("a run does not panic"), self.board)
    }
}

pub(super) fn clients(role: ClientRole, count: u64) -> Clients {
    Clients {
        count,
        start_number: 0,
        ids: ClientIds { role, prefix: Some("test".to_owned()), short: false, host: String::new() },
        start: Start::Every(Duration::ZERO),
        retries: Retries::default(),
        version: ProtocolVersion::V5,
        clean_start: true,
        keep_alive: 300,
        session_expiry: None,
        credentials: None,
        maximum_packet_size: None,
    }
}

pub(super) fn plan(clients: Clients, work: Work, after: Duration) -> Plan {
    Plan { clients, work, ending: Ending { after: Some(after), keep_connected: false } }
}

/// One topic with 64 bytes, so often.
pub(super) fn one_topic(name: &str, interval: Duration, qos: QoS) -> PublishPlan {
    let topic = PublishedTopic::new(name, false, interval, MessageTemplate::of_size(64), 64);
    let topic = PublishedTopic { qos, ..topic.expect("a topic") };
    PublishPlan { inflight: 100, ..PublishPlan::of(vec![topic]).expect("one topic") }
}

pub(super) fn topics_file(text: &str) -> PublishPlan {
    let file = TopicsFile::parse("topics.json", text).expect("a topics file");
    PublishPlan { inflight: 1000, ..PublishPlan::of_file(&file, false).expect("topics") }
}

/// Everything below a filter, with QoS 2 at most.
pub(super) fn one_filter(filter: &str) -> SubscribePlan {
    let filter = SubscribedFilter::new(filter, false, QoS::ExactlyOnce).expect("a filter");
    SubscribePlan { filters: vec![filter], ..SubscribePlan::default() }
}

/// Lets the subscribers of a run get ready.
pub(super) async fn until_subscribed(going: &Going, clients: u64) {
    use braid_bench::emqtt::Counter;
    while going.board.counters()[Counter::Sub] < clients {
        wait(Duration::from_millis(1)).await;
    }
}

/// Waits on the paused clock, which moves only when everybody is idle.
pub(super) async fn wait(duration: Duration) {
    tokio::time::advance(Duration::ZERO).await; // Panics if the clock is a real one.
    let until = tokio::time::Instant::now() + duration;
    tokio::time::sleep_until(until).await;
}

/// A number of every topic, added up.
pub(super) fn summed(summary: &RunSummary, number: impl Fn(&TopicSummary) -> u64) -> u64 {
    summary.topics.iter().map(number).sum()
}

impl Target {
    /// Waits until the broker has no connection any more.
    pub(super) async fn broker_is_left(&self) {
        while self.broker.statistics().connections() > 0 {
            wait(Duration::from_millis(1)).await;
        }
    }
}
