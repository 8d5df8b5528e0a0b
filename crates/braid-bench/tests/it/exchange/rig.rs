use std::future::pending;
use std::net::SocketAddr;

use braid_bench::exchange::{ALPN, Dialer, RequestLoad, Responder, Service, TimerService, run};
use braid_bench::summary::{RunSummary, TopicSummary};
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Connector, Host, Network};
use braid_transport::{ClientAuth, ClientTls, ClientTlsOptions, ListenOptions, ServerTls, mem, self_signed};
use tempfile::TempDir;

/// A server in memory.
pub(crate) fn in_memory(service: Service) -> (Responder, mem::Connector) {
    let (listener, connector) = mem::listener();
    let responder = Responder::new(service, TimerService::coarse());
    let serving = responder.clone();
    tokio::spawn(async move { serving.serve(listener).await });
    (responder, connector)
}

/// A certificate for `localhost`.
pub(crate) struct Pki {
    pub(crate) server: ServerTls,
    pub(crate) client: ClientTls,
    _files: TempDir,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let files = self_signed(directory.path(), &["localhost".to_owned()]).expect("a certificate");
        let ca_files = vec![files.certificate.clone()];
        let server = ServerTls::load(files, ClientAuth::None).expect("the certificate is there");
        let options =
            ClientTlsOptions { ca_files, alpn: vec![ALPN.to_owned()], ..ClientTlsOptions::default() };
        Self { server, client: ClientTls::new(options), _files: directory }
    }

    /// Listener options of a QUIC server of this protocol.
    pub(crate) fn listen_options() -> ListenOptions {
        let quic = QuicOptions { alpn: ALPN, ..QuicOptions::server() };
        ListenOptions { quic, ..ListenOptions::default() }
    }
}

/// A server that a device reaches over QUIC on a simulated network.
pub(crate) struct Rig {
    pub(crate) device: Host,
    pub(crate) responder: Responder,
    pub(crate) connector: Connector,
    pub(crate) server: SocketAddr,
    _pki: Pki,
}

impl Rig {
    pub(crate) fn start(service: Service) -> Self {
        let pki = Pki::new();
        let network = Network::new(3);
        let listener = network.listen(pki.server.clone(), &Pki::listen_options()).expect("a free port");
        let server = listener.local_addr().expect("an address");
        let responder = Responder::new(service, TimerService::coarse());
        let serving = responder.clone();
        tokio::spawn(async move { serving.serve(listener).await });
        let device = network.host("device");
        let connector = device.connector(server, pki.client.clone(), QuicOptions::client());
        Self { device, responder, connector, server, _pki: pki }
    }
}

/// The whole load.
pub(crate) async fn measure(load: &RequestLoad, dialer: impl Into<Dialer>) -> RunSummary {
    run(load, dialer.into(), &TimerService::coarse(), pending(), |_| {}).await.expect("the load makes sense")
}

pub(crate) fn counters(summary: &RunSummary) -> [u64; 5] {
    ["requests", "responses", "failed", "unfinished", "connections"].map(|name| summary.counters[name])
}

/// The only object.
pub(crate) fn object(summary: &RunSummary) -> &TopicSummary {
    assert_eq!(summary.topics.len(), 1);
    &summary.topics[0]
}
