//! A broker, a network and two clients, one of them across the network.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use braid_broker::{Anonymous, Broker, BrokerConfig, SysConfig};
use braid_client::{Builder, Client, ClientTlsOptions, Congestion};
use braid_store::MemoryStore;
use braid_transport::mem;
use braid_transport::sim::{Host, Network};
use braid_transport::{ClientAuth, ListenOptions, Listener, ServerTls, self_signed};

/// A broker, and how each of two clients reaches it.
pub(crate) struct House {
    /// Where the far client is.
    pub(crate) device: Host,
    /// Across the network, over QUIC.
    pub(crate) far: Builder,
    /// In memory.
    pub(crate) near: Builder,
    /// Holds the authority that the far client reads when it connects.
    _files: tempfile::TempDir,
}

impl House {
    /// `congestion` and `gate` are for both ends of the far client's connection, `with` for both clients.
    pub(crate) fn build(
        seed: u64,
        congestion: Congestion,
        gate: bool,
        with: impl Fn(Builder) -> Builder,
    ) -> Result<Self, Box<dyn Error>> {
        let directory = tempfile::tempdir()?;
        let files = self_signed(directory.path(), &["localhost".to_owned()])?;
        let ca_files = vec![files.certificate.clone()];
        let network = Network::new(seed);
        let mut options = ListenOptions::default();
        options.quic.congestion = congestion;
        options.quic.gate = gate;
        let listener = network.listen(ServerTls::load(files, ClientAuth::None)?, &options)?;
        let server = listener.local_addr().ok_or("no address")?;
        let (hub, connector) = mem::hub();
        start_broker(vec![listener, hub])?;
        let device = network.host("device");
        let builder = |id: &str| with(Client::builder("quic://localhost").client_id(id));
        let near = builder("near").in_memory(connector);
        let tls = ClientTlsOptions { ca_files, ..ClientTlsOptions::default() };
        let far =
            builder("far").tls(tls).congestion(congestion).gate(gate).in_simulation(device.clone(), server);
        Ok(Self { device, far, near, _files: directory })
    }
}

fn start_broker(listeners: Vec<Listener>) -> Result<(), Box<dyn Error>> {
    let config = BrokerConfig { sys: SysConfig { interval_secs: 0 }, ..BrokerConfig::default() };
    let rule = Anonymous { from_anywhere: true };
    let broker = Broker::build(config, Box::new(rule), Arc::new(MemoryStore::new()), listeners)?;
    tokio::spawn(broker.run(Duration::from_secs(1)));
    Ok(())
}
