//! A broker on a simulated network.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use braid_broker::{Anonymous, Authenticate, Authorize, BrokerConfig, PermitAll};
use braid_proto::decoder::Spool;
use braid_proto::packet::{Connect, ProtocolVersion};
use braid_store::{MemoryStore, Store};
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Connector, Host, Network};
use braid_transport::{
    CertificateFiles, ClientAuth, ClientTls, ClientTlsOptions, ConnectOptions, ListenOptions, Listener,
    ListenerKind, ServerTls, Target, Transport, self_signed,
};
use tempfile::TempDir;

use super::{Client, Lanes, TestBroker, connect_v5, lasting, only_stream, quiet};

/// One key pair for all tests.
pub(super) static CERTIFICATE: LazyLock<(TempDir, PathBuf, PathBuf)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    let files = self_signed(dir.path(), &["localhost".to_owned()]).expect("a certificate");
    (dir, files.certificate, files.key)
});

/// A running broker, reached through QUIC over a simulated network and through in-memory links.
pub(crate) struct QuicBroker {
    pub(crate) network: Network,
    /// Same broker, for clients of one stream.
    pub(crate) memory: TestBroker,
    pub(crate) server_tls: ServerTls,
    pub(crate) address: SocketAddr,
    client_tls: ClientTls,
}

impl QuicBroker {
    pub(crate) fn start() -> Self {
        Self::start_with(quiet())
    }

    pub(crate) fn start_with(config: BrokerConfig) -> Self {
        Self::start_with_all(config, QuicOptions::server(), anyone())
    }

    pub(crate) fn start_with_all(config: BrokerConfig, quic: QuicOptions, rule: impl Authenticate) -> Self {
        Self::start_over(config, quic, rule, Arc::new(MemoryStore::new()))
    }

    pub(crate) fn start_over(
        config: BrokerConfig,
        quic: QuicOptions,
        rule: impl Authenticate,
        store: Arc<dyn Store>,
    ) -> Self {
        Self::start_listening(config, quic, rule, Arc::new(PermitAll), store, Vec::new())
    }

    /// A broker that asks `authorize` for permission.
    pub(crate) fn start_with_access(
        config: BrokerConfig,
        rule: impl Authenticate,
        authorize: Arc<dyn Authorize>,
        store: Arc<dyn Store>,
    ) -> Self {
        Self::start_listening(config, QuicOptions::server(), rule, authorize, store, Vec::new())
    }

    /// A broker that receives large packets into `spool`.
    pub(crate) fn start_with_spool(spool: Arc<dyn Spool>) -> Self {
        let network = Network::new(1);
        let server_tls = server_tls();
        let listener = network.listen(server_tls.clone(), &ListenOptions::default()).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (rules, store) = (Arc::new(PermitAll), Arc::new(MemoryStore::new()));
        let listeners = vec![listener.into()];
        let memory = TestBroker::start_on(quiet(), anyone(), rules, store, Some(spool), listeners);
        Self { network, memory, server_tls, address, client_tls: client_tls() }
    }

    /// A broker that also listens with TLS on loopback, at the returned address. Sockets do not follow the paused
    /// clock: this needs the real one.
    pub(crate) fn start_with_tls() -> (Self, SocketAddr) {
        let listener = tls_listener();
        let address = listener.local_addr().expect("an address");
        let store = Arc::new(MemoryStore::new());
        let (quic, rules) = (QuicOptions::server(), Arc::new(PermitAll));
        let broker = Self::start_listening(quiet(), quic, anyone(), rules, store, vec![listener]);
        (broker, address)
    }

    fn start_listening(
        config: BrokerConfig,
        quic: QuicOptions,
        rule: impl Authenticate,
        authorize: Arc<dyn Authorize>,
        store: Arc<dyn Store>,
        mut others: Vec<Listener>,
    ) -> Self {
        let network = Network::new(1);
        let server_tls = server_tls();
        let options = ListenOptions { quic, ..ListenOptions::default() };
        let listener = network.listen(server_tls.clone(), &options).expect("a free port");
        let address = listener.local_addr().expect("an address");
        others.push(listener);
        let memory = TestBroker::start_on(
            config,
            rule,
            authorize,
            store,
            None,
            others.into_iter().map(Into::into).collect(),
        );
        Self { network, memory, server_tls, address, client_tls: client_tls() }
    }

    pub(crate) fn host(&self, name: &str) -> Host {
        self.network.host(name)
    }

    /// Connector from the host of this name. All connectors of this broker share the tickets.
    pub(crate) fn connector(&self, host: &str, options: QuicOptions) -> Connector {
        self.host(host).connector(self.address, self.client_tls.clone(), options)
    }

    /// A link before CONNECT, from the host of this name.
    pub(crate) async fn link(&self, host: &str) -> Lanes {
        self.link_with(host, QuicOptions::client()).await
    }

    pub(crate) async fn link_with(&self, host: &str, options: QuicOptions) -> Lanes {
        let link = self.connector(host, options).connect().await.expect("the broker listens");
        Lanes::new(link, ProtocolVersion::V5)
    }

    /// A connected client, from the host of its name.
    pub(crate) async fn connect(&self, connect: Connect) -> Lanes {
        let connector = self.connector(connect.client_id.as_str(), QuicOptions::client());
        let link = connector.connect().await.expect("the broker listens");
        let mut lanes = Lanes::new(link, connect.version);
        lanes.send_connect(connect);
        lanes.accepted().await;
        lanes
    }

    /// A connected client over TLS.
    pub(crate) async fn connect_tls(&self, to: SocketAddr, connect: Connect) -> Client {
        let target = Target {
            transport: Transport::Tls,
            host: to.ip().to_string(),
            port: to.port(),
            path: String::new(),
        };
        let link = braid_transport::connect(&target, &self.client_tls, &ConnectOptions::default()).await;
        let mut client = Client::new(only_stream(link.expect("the broker listens")), connect.version);
        client.send_connect(connect).await;
        client.accepted().await;
        client
    }

    /// A connected MQTT 5 client whose session ends with the connection.
    pub(crate) async fn v5(&self, client_id: &str) -> Lanes {
        self.connect(connect_v5(client_id)).await
    }

    /// A connected MQTT 5 client with a Session Expiry Interval of an hour; it resumes its session.
    pub(crate) async fn resume(&self, client_id: &str) -> Lanes {
        self.connect(lasting(client_id)).await
    }
}

/// A running broker, reached by TLS and QUIC on sockets of loopback and through in-memory links.
pub(crate) struct Sockets {
    pub(crate) memory: TestBroker,
    pub(crate) tls: SocketAddr,
    pub(crate) quic: SocketAddr,
}

impl Sockets {
    /// A broker that receives large packets into `spool`. Needs the real clock.
    pub(crate) fn start(spool: Arc<dyn Spool>) -> Self {
        let (tls, quic) = (tls_listener(), listener(ListenerKind::Quic(server_tls())));
        let [tls_address, quic_address] =
            [&tls, &quic].map(|listener| listener.local_addr().expect("an address"));
        let (rules, store) = (Arc::new(PermitAll), Arc::new(MemoryStore::new()));
        let listeners = vec![tls.into(), quic.into()];
        let memory = TestBroker::start_on(quiet(), anyone(), rules, store, Some(spool), listeners);
        Self { memory, tls: tls_address, quic: quic_address }
    }
}

/// A listener of TLS on loopback.
pub(crate) fn tls_listener() -> Listener {
    listener(ListenerKind::Tls(server_tls()))
}

fn listener(kind: ListenerKind) -> Listener {
    let loopback = (Ipv4Addr::LOCALHOST, 0).into();
    Listener::bind(kind, loopback, &ListenOptions::default()).expect("a free port")
}

/// The simulated hosts are not loopback.
pub(crate) fn anyone() -> Anonymous {
    Anonymous { from_anywhere: true }
}

fn server_tls() -> ServerTls {
    let files = CertificateFiles { certificate: CERTIFICATE.1.clone(), key: CERTIFICATE.2.clone() };
    ServerTls::load(files, ClientAuth::None).expect("a certificate")
}

fn client_tls() -> ClientTls {
    ClientTls::new(ClientTlsOptions { insecure: true, ..ClientTlsOptions::default() })
}
