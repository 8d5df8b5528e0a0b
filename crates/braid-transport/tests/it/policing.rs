//! Throughput of bulk behind a policer, with the default congestion control and with the library's own BBR.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Conditions, Direction, Host, Network, Policer, Shaper};
use noq::TransportConfig;
use noq::congestion::Bbr3Config;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::driven::Link;
use crate::ends::write;
use crate::noq_peer;
use crate::sim::{client_config, server_config};
use crate::support::Pki;

/// A server that takes one stream; says when `length` bytes of it have come.
pub(crate) fn sink(network: &Network, pki: &Pki, length: usize) -> (SocketAddr, oneshot::Receiver<Instant>) {
    let endpoint = noq_peer::endpoint(&network.host("server"), Some(server_config(pki)));
    let address = endpoint.local_addr().expect("address");
    let (done, all) = oneshot::channel();
    tokio::spawn(async move {
        let connection = endpoint.accept().await.expect("incoming").await.expect("handshake");
        let (_send, mut recv) = connection.accept_bi().await.expect("accept");
        recv.read_exact(&mut vec![0; length]).await.expect("read");
        let _ = done.send(Instant::now());
        connection.closed().await;
    });
    (address, all)
}

async fn send_as_we_do(device: &Host, server: SocketAddr, pki: &Pki, length: usize) -> impl Sized + use<> {
    let connector = device.connector(server, pki.client(), QuicOptions::client());
    let mut link = Link::from(connector.connect().await.expect("connect"));
    write(&mut link, &vec![7; length]).await.expect("write");
    link
}

async fn send_with_stock_bbr(
    device: &Host,
    server: SocketAddr,
    pki: &Pki,
    length: usize,
) -> impl Sized + use<> {
    let endpoint = noq_peer::endpoint(device, None);
    let (mut config, mut transport) = (client_config(pki), TransportConfig::default());
    transport.congestion_controller_factory(Arc::new(Bbr3Config::default()));
    config.transport_config(Arc::new(transport));
    let connecting = endpoint.connect_with(config, server, "localhost").expect("connect");
    let connection = connecting.await.expect("handshake");
    let (mut send, _recv) = connection.open_bi().await.expect("open");
    send.write_all(&vec![7; length]).await.expect("write");
    (endpoint, connection, send)
}

/// Bytes per second, and the share of packets that was dropped.
async fn bulk(conditions: &Conditions, length: usize, is_ours: bool, seed: u64) -> (f64, f64) {
    let (pki, network) = (Pki::new(), Network::new(seed));
    let (server, all) = sink(&network, &pki, length);
    let device = network.host("device");
    device.change(|link| link.latency = conditions.latency);
    device.change_one(Direction::Up, |link| *link = conditions.clone());
    let begun = Instant::now();
    let end = if is_ours {
        let _link = send_as_we_do(&device, server, &pki, length).await;
        all.await
    } else {
        let _connection = send_with_stock_bbr(&device, server, &pki, length).await;
        all.await
    };
    let took = end.expect("all of it") - begun;
    let counters = device.counters(Direction::Up);
    let share = |part: u64, whole: u64| {
        f64::from(u32::try_from(part).expect("few")) / f64::from(u32::try_from(whole).expect("few"))
    };
    let length = f64::from(u32::try_from(length).expect("few"));
    (length / took.as_secs_f64(), share(counters.dropped, counters.dropped + counters.packets))
}

/// The mean over some seeds, with which a connection is made in time. BBR of the library draws random numbers of its
/// own, so runs differ.
async fn mean_bulk(conditions: &Conditions, is_ours: bool) -> f64 {
    let mut sum = 0.0;
    for seed in 10..15 {
        sum += bulk(conditions, 5_000_000, is_ours, seed).await.0;
    }
    sum / 5.0
}

/// 20 Mbit/s, 40 ms. Little of it is used when much is lost, by BBR itself: above 2 % it takes losses for congestion.
#[tokio::test(start_paused = true)]
async fn random_losses_on_a_fast_link_are_not_taken_for_a_policer() {
    for loss in [0.02, 0.05, 0.15] {
        let shaper = Some(Shaper { rate: 1722.0, queue: 100 });
        let conditions = Conditions { loss, shaper, ..Conditions::delayed(Duration::from_millis(20)) };
        let (ours, stock) = (mean_bulk(&conditions, true).await, mean_bulk(&conditions, false).await);
        assert!(ours > 0.85 * stock, "{ours:.0} bytes per second, not {stock:.0}, with {loss} lost");
    }
}

/// From 2 ms to 50, and to 200, after a second in which the 2 ms were learnt.
#[tokio::test(start_paused = true)]
async fn a_path_that_becomes_longer_is_soon_used_again() {
    for (latency, limit) in [(25, 3), (100, 11)] {
        let (pki, network) = (Pki::new(), Network::new(7));
        let (server, all) = sink(&network, &pki, (10 << 20) + 100_000);
        let device = network.host("device");
        let connector = device.connector(server, pki.client(), QuicOptions::client());
        let mut link = Link::from(connector.connect().await.expect("connect"));
        write(&mut link, &vec![7; 100_000]).await.expect("write");
        tokio::time::sleep(Duration::from_secs(1)).await;
        device.change(|link| link.latency = Duration::from_millis(latency));
        let begun = Instant::now();
        write(&mut link, &vec![7; 10 << 20]).await.expect("write");
        let took = all.await.expect("all of it") - begun;
        assert!(took < Duration::from_secs(limit), "{took:?} with a latency of {latency} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn behind_a_policer_little_is_dropped_and_no_bulk_is_lost() {
    for latency in [0, 20] {
        let policer = Some(Policer { rate: 29.0, burst: 5 });
        let conditions = Conditions { policer, ..Conditions::delayed(Duration::from_millis(latency)) };
        let (ours, dropped) = bulk(&conditions, 2_000_000, true, 7).await;
        let (stock, dropped_by_stock) = bulk(&conditions, 2_000_000, false, 7).await;
        assert!(ours > 0.9 * stock, "{ours:.0} bytes per second, not {stock:.0}: {latency} ms");
        assert!(dropped < 0.12, "{dropped} dropped, {dropped_by_stock} by stock: {latency} ms");
        assert!(dropped_by_stock > 0.15, "{dropped_by_stock}");
    }
}
