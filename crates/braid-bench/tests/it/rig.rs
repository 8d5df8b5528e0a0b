use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use braid_bench::Connection;
use braid_bench::urgent::Lanes;
use braid_broker::{Anonymous, Broker, BrokerConfig, Handle, SysConfig};
use braid_client::{Builder, Client};
use braid_proto::packet::{Connect, ProtocolVersion};
use braid_store::MemoryStore;
use braid_transport::mem;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Connector, Host, Network};
use braid_transport::{ClientAuth, ClientTls, ClientTlsOptions, Link, ListenOptions, ServerTls, self_signed};
use tempfile::TempDir;

/// A broker that a device reaches over QUIC, through a network of one millisecond each way, and others in memory, at
/// once.
pub(crate) struct Rig {
    pub(crate) broker: Handle,
    pub(crate) device: Host,
    pub(crate) far: Connector,
    pub(crate) near: mem::Connector,
    server: SocketAddr,
    tls: ClientTlsOptions,
    _files: TempDir,
}

impl Rig {
    pub(crate) fn start() -> Self {
        Self::with(BrokerConfig::default())
    }

    pub(crate) fn with(config: BrokerConfig) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let files = self_signed(directory.path(), &["localhost".to_owned()]).expect("a certificate");
        let ca_files = vec![files.certificate.clone()];
        let network = Network::new(1);
        let tls = ServerTls::load(files, ClientAuth::None).expect("the certificate is there");
        let listener = network.listen(tls, &ListenOptions::default()).expect("a free port");
        let server = listener.local_addr().expect("an address");
        let (in_memory, near) = mem::listener();
        let config = BrokerConfig { sys: SysConfig { interval_secs: 0 }, ..config };
        let rule = Box::new(Anonymous { from_anywhere: true });
        let store = Arc::new(MemoryStore::new());
        let broker = Broker::build(config, rule, store, vec![listener, in_memory]).expect("an empty store");
        let handle = broker.handle();
        tokio::spawn(broker.run(Duration::ZERO));
        let tls = ClientTlsOptions { ca_files, ..ClientTlsOptions::default() };
        let device = network.host("device");
        let far = device.connector(server, ClientTls::new(tls.clone()), QuicOptions::client());
        Self { broker: handle, device, far, near, server, tls, _files: directory }
    }

    /// A connection over QUIC.
    pub(crate) async fn connect_far(&self, client_id: &str) -> Connection {
        establish(self.far.connect().await.expect("the broker listens"), client_id).await
    }

    /// A client on the device, over QUIC.
    pub(crate) fn far_client(&self, lanes: Lanes) -> Builder {
        let client = Client::builder("quic://localhost").tls(self.tls.clone()).stream_policy(lanes.policy());
        client.in_simulation(self.device.clone(), self.server)
    }

    /// A client in memory.
    pub(crate) fn near_client(&self) -> Builder {
        Client::builder("mqtt://localhost").in_memory(self.near.clone())
    }
}

async fn establish(link: Link, client_id: &str) -> Connection {
    let connect = Connect::new(ProtocolVersion::V5, client_id);
    Connection::establish(link, connect).await.expect("the broker accepts")
}
