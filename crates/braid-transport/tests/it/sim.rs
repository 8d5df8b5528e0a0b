//! The simulated network, driven by bare endpoints of the QUIC library.

use std::sync::Arc;
use std::time::Duration;

use braid_transport::ListenOptions;
use braid_transport::quic::{Congestion, QuicOptions};
use braid_transport::sim::{Direction, Host, Network, Policer, Shaper};
use noq::congestion::Bbr3Config;
use noq::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq::{ClientConfig, Connection, Endpoint, ServerConfig, TransportConfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::{Instant, timeout};

use crate::driven::Link;
use crate::ends::{read, write};
use crate::noq_peer;
use crate::support::{Pki, address};

/// A configuration to serve with.
pub(crate) fn server_config(pki: &Pki) -> ServerConfig {
    let files = pki.issue("raw", &["localhost"]);
    let chain = vec![CertificateDer::from_pem_file(&files.certificate).expect("certificate")];
    let key = PrivateKeyDer::from_pem_file(&files.key).expect("key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("pair");
    config.alpn_protocols = vec![b"mqtt".to_vec()];
    let mut config =
        ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(config).expect("TLS 1.3")));
    config.transport_config(quiet());
    config
}

/// A configuration to connect with.
pub(crate) fn client_config(pki: &Pki) -> ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pki.ca()).expect("ca")).expect("root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"mqtt".to_vec()];
    config.enable_early_data = true;
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).expect("TLS 1.3")));
    config.transport_config(quiet());
    config
}

/// Without probes for the path's MTU, so that packets can be counted, and without a pace that
/// begins slow.
fn quiet() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.mtu_discovery_config(None).congestion_controller_factory(Arc::new(Bbr3Config::default()));
    Arc::new(transport)
}

/// A server that sends back every stream.
fn echo(network: &Network, pki: &Pki) -> std::net::SocketAddr {
    let endpoint = noq_peer::endpoint(&network.host("server"), Some(server_config(pki)));
    let address = endpoint.local_addr().expect("address");
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async move {
                let Ok(connection) = incoming.await else { return };
                while let Ok((mut send, mut recv)) = connection.accept_bi().await {
                    let mut bytes = [0; 4096];
                    while let Ok(Some(read)) = recv.read(&mut bytes).await {
                        if send.write_all(&bytes[..read]).await.is_err() {
                            break;
                        }
                    }
                    let _ = send.finish();
                }
            });
        }
    });
    address
}

async fn dial(host: &Host, pki: &Pki, server: std::net::SocketAddr) -> (Endpoint, Connection) {
    let endpoint = noq_peer::endpoint(host, None);
    let connecting = endpoint.connect_with(client_config(pki), server, "localhost").expect("connect");
    let connection = connecting.await.expect("handshake");
    (endpoint, connection)
}

async fn round_trip(connection: &Connection, bytes: &[u8]) -> Duration {
    let start = Instant::now();
    let (mut send, mut recv) = connection.open_bi().await.expect("open");
    let write = async {
        send.write_all(bytes).await.expect("write");
        send.finish().expect("finish");
    };
    let ((), echoed) = tokio::join!(write, recv.read_to_end(bytes.len()));
    assert!(echoed.expect("read") == bytes);
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_network_without_conditions_takes_a_millisecond_each_way() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let server = echo(&network, &pki);
    let (_endpoint, connection) = dial(&network.host("device"), &pki, server).await;
    assert_eq!(round_trip(&connection, b"x").await, Duration::from_millis(2));
}

#[tokio::test(start_paused = true)]
async fn latency_is_what_a_round_trip_takes() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let server = echo(&network, &pki);
    let device = network.host("device");
    device.change_one(Direction::Up, |link| link.latency = Duration::from_millis(30));
    device.change_one(Direction::Down, |link| link.latency = Duration::from_millis(70));
    let (_endpoint, connection) = dial(&device, &pki, server).await;
    assert_eq!(round_trip(&connection, b"x").await, Duration::from_millis(100));
    device.change(|link| link.latency = Duration::from_millis(200));
    assert_eq!(round_trip(&connection, b"x").await, Duration::from_millis(400));
}

#[tokio::test(start_paused = true)]
async fn loss_jitter_and_a_policer_lose_no_bytes_of_a_stream() {
    let (pki, network) = (Pki::new(), Network::new(3));
    let server = echo(&network, &pki);
    let device = network.host("device");
    let (_endpoint, connection) = dial(&device, &pki, server).await;
    device.change(|link| {
        link.latency = Duration::from_millis(20);
        link.jitter = Duration::from_millis(30);
        link.loss = 0.1;
    });
    let bytes = crate::support::pattern(100_000);
    round_trip(&connection, &bytes).await;
    device.change(|link| {
        link.loss = 0.0;
        link.policer = Some(Policer { rate: 29.0, burst: 5 });
    });
    let (before, took) = (device.counters(Direction::Up), round_trip(&connection, &bytes).await);
    let after = device.counters(Direction::Up);
    assert!(after.dropped > before.dropped);
    // 100 kB in packets of at most 1200 bytes.
    assert!(took >= Duration::from_millis(83 * 1000 / 29), "{took:?}");
    let most = 5.0 + took.as_secs_f64() * 29.0;
    assert!(f64::from(u32::try_from(after.packets - before.packets).expect("few")) <= most.ceil());
}

#[tokio::test(start_paused = true)]
async fn a_shaper_sets_the_pace() {
    let (pki, network) = (Pki::new(), Network::new(3));
    let server = echo(&network, &pki);
    let device = network.host("device");
    let (_endpoint, connection) = dial(&device, &pki, server).await;
    device.change_one(Direction::Down, |link| link.shaper = Some(Shaper { rate: 100.0, queue: 1000 }));
    let took = round_trip(&connection, &[7; 100_000]).await;
    assert!((800..1200).contains(&took.as_millis()), "{took:?}");
    assert_eq!(device.counters(Direction::Down).dropped, 0);
}

#[tokio::test(start_paused = true)]
async fn a_cut_link_carries_nothing_and_a_mended_one_goes_on() {
    let (pki, network) = (Pki::new(), Network::new(3));
    let server = echo(&network, &pki);
    let device = network.host("device");
    let (_endpoint, connection) = dial(&device, &pki, server).await;
    device.change(|link| link.cut = true);
    let cut = timeout(Duration::from_secs(5), round_trip(&connection, b"x")).await;
    assert!(cut.is_err(), "nothing can have come back");
    device.change(|link| link.cut = false);
    let mended = timeout(Duration::from_secs(10), round_trip(&connection, b"y")).await;
    assert!(mended.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_connection_survives_a_nat_that_forgets() {
    let (pki, network) = (Pki::new(), Network::new(3));
    let endpoint = noq_peer::endpoint(&network.host("server"), Some(server_config(&pki)));
    let server = endpoint.local_addr().expect("address");
    let device = network.host("device");
    let accepting = tokio::spawn(async move {
        let connection = endpoint.accept().await.expect("incoming").await.expect("handshake");
        (endpoint, connection)
    });
    let (_client, connection) = dial(&device, &pki, server).await;
    let (_server, accepted) = accepting.await.expect("join");
    let address = |connection: &Connection| {
        connection.path(noq::PathId::ZERO).expect("path").remote_address().expect("address")
    };
    let before = address(&accepted);
    device.rebind_nat();
    let (mut send, _recv) = connection.open_bi().await.expect("open");
    send.write_all(b"x").await.expect("write");
    let (_send, mut recv) = accepted.accept_bi().await.expect("accept");
    let mut byte = [0];
    recv.read_exact(&mut byte).await.expect("read");
    let after = address(&accepted);
    assert_ne!(after, before);
    assert!(after.ip().to_string().starts_with("100.64."), "{after}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_rebinds_gets_another_port_of_its_host() {
    let (pki, network) = (Pki::new(), Network::new(3));
    let server = echo(&network, &pki);
    let device = network.host("device");
    let (endpoint, connection) = dial(&device, &pki, server).await;
    let before = endpoint.local_addr().expect("address");
    let real = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
    endpoint.rebind(real).expect("rebind");
    let after = endpoint.local_addr().expect("address");
    assert_eq!(after.ip(), before.ip());
    assert_ne!(after.port(), before.port());
    round_trip(&connection, b"still here").await;
}

#[tokio::test(start_paused = true)]
async fn one_seed_is_one_run() {
    let run = async |seed| {
        let (pki, network) = (Pki::new(), Network::new(seed));
        let server = echo(&network, &pki);
        let device = network.host("device");
        let (_endpoint, connection) = dial(&device, &pki, server).await;
        device.change(|link| {
            link.latency = Duration::from_millis(20);
            link.jitter = Duration::from_millis(5);
            link.loss = 0.05;
        });
        round_trip(&connection, &[7; 200_000]).await
    };
    let took = run(11).await;
    assert_eq!(took, run(11).await);
    assert_ne!(took, run(12).await);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_knows_its_uplink_sends_no_faster() {
    for congestion in [Congestion::Bbr3, Congestion::Cubic, Congestion::NewReno] {
        let (pki, network) = (Pki::new(), Network::new(5));
        let endpoint = noq_peer::endpoint(&network.host("server"), Some(server_config(&pki)));
        let server = endpoint.local_addr().expect("address");
        let received = tokio::spawn(async move {
            let connection = endpoint.accept().await.expect("incoming").await.expect("handshake");
            let (_send, mut recv) = connection.accept_bi().await.expect("accept");
            recv.read_exact(&mut vec![0; 200_000]).await.expect("read");
            (endpoint, connection)
        });
        let device = network.host("device");
        device.change(|link| link.latency = Duration::from_millis(20));
        let options = QuicOptions { link_rate: Some(50_000), congestion, ..QuicOptions::client() };
        let mut link =
            Link::from(device.connector(server, pki.client(), options).connect().await.expect("connect"));
        let (start, before) = (Instant::now(), device.counters(Direction::Up).bytes);
        write(&mut link, &[7; 200_000]).await.expect("write");
        let _server = received.await.expect("join");
        let bytes = u32::try_from(device.counters(Direction::Up).bytes - before).expect("few");
        let rate = f64::from(bytes) / start.elapsed().as_secs_f64();
        assert!((40_000.0..=52_000.0).contains(&rate), "{congestion:?}: {rate:.0} bytes per second");
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_moves_to_another_port_of_its_host() {
    let (pki, network) = (Pki::new(), Network::new(5));
    let server = echo(&network, &pki);
    let connector = network.host("device").connector(server, pki.client(), QuicOptions::client());
    let mut link = Link::from(connector.connect().await.expect("connect"));
    for byte in [b'a', b'b'] {
        write(&mut link, &[byte]).await.expect("write");
        assert_eq!(read(&mut link).await.expect("read"), byte);
        link.rebind(None).expect("rebind");
    }
}

#[tokio::test(start_paused = true)]
async fn our_listener_and_our_client_meet_on_it() {
    let (pki, network) = (Pki::new(), Network::new(5));
    let mut listener = network.listen(pki.server(), &ListenOptions::default()).expect("listen");
    let device = network.host("device");
    device.change(|link| link.latency = Duration::from_millis(50));
    let connector = device.connector(address(&listener), pki.client(), QuicOptions::client());
    let accept = async {
        let incoming = listener.accept().await.expect("accept");
        let peer = incoming.peer_address().expect("address");
        tokio::spawn(incoming.handshake());
        peer
    };
    let (link, peer) = tokio::join!(connector.connect(), accept);
    assert_eq!(peer.ip().to_string(), "10.0.0.2");
    assert_eq!(link.expect("connect").peer().address, listener.local_addr());
}
