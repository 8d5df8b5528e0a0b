//! Handshakes between ends that have met before, through losses.

use std::net::SocketAddr;
use std::time::Duration;

use braid_transport::ListenOptions;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Direction, Network};
use tokio::time::{Instant, sleep};

use crate::driven::Link;
use crate::ends::write;
use crate::support::{Pki, address};

const LATENCY: Duration = Duration::from_millis(20);
const ROUND_TRIP: Duration = Duration::from_millis(40);

/// Server that holds all connections open.
fn server(network: &Network, pki: &Pki) -> SocketAddr {
    let mut listener =
        network.host("server").listen(pki.server(), &ListenOptions::default()).expect("a listener");
    let server = address(&listener);
    tokio::spawn(async move {
        let mut links = Vec::new();
        loop {
            let incoming = listener.accept().await.expect("incoming");
            links.push(incoming.handshake().await.map(Link::from));
        }
    });
    server
}

/// The library alone repeats the message after 60 ms: twice the probe timeout, which holds 25 ms for the
/// acknowledgement.
#[tokio::test(start_paused = true)]
async fn a_message_beside_the_lost_end_of_a_handshake_comes_soon() {
    const LATENCY: Duration = Duration::from_millis(1);
    let (pki, network) = (Pki::new(), Network::new(1));
    let mut listener =
        network.host("server").listen(pki.server(), &ListenOptions::default()).expect("a listener");
    let server = address(&listener);
    let device = network.host("device");
    device.change(|link| link.latency = LATENCY);
    let connector = device.connector(server, pki.client(), QuicOptions::client());
    let begun = Instant::now();
    let client = async {
        let mut link = Link::from(connector.connect().await.expect("a connection"));
        write(&mut link, b"x").await.expect("write");
        link
    };
    // The first flight of the client leaves at once, and the second two latencies later.
    let loss = async {
        sleep(LATENCY).await;
        device.change_one(Direction::Up, |link| link.loss = 1.0);
        sleep(LATENCY * 2).await;
        device.change_one(Direction::Up, |link| link.loss = 0.0);
    };
    let server = async {
        // The handshake is over when the control stream has begun.
        let link = listener.accept().await.expect("incoming").handshake().await.map(Link::from);
        (link.expect("a connection"), begun.elapsed())
    };
    let (_client, (_server, took), ()) = tokio::join!(client, server, loss);
    assert!(took < Duration::from_millis(20), "{took:?}");
}

/// RFC 9002, 6.2.2.
#[tokio::test(start_paused = true)]
async fn a_lost_first_flight_costs_three_round_trips_once_they_are_known() {
    for lost in [Direction::Up, Direction::Down] {
        let (pki, network) = (Pki::new(), Network::new(1));
        let server = server(&network, &pki);
        let device = network.host("device");
        device.change(|link| link.latency = LATENCY);
        let options = QuicOptions::client();
        for has_met in [false, true] {
            let connector = device.connector(server, pki.client(), options.clone());
            if has_met {
                let mut link = Link::from(connector.connect().await.expect("a connection"));
                write(&mut link, b"x").await.expect("write");
                // The server notes the round trip when the control stream begins.
                sleep(ROUND_TRIP * 4).await;
            }
            device.change_one(lost, |link| link.loss = 1.0);
            let begun = Instant::now();
            let mend = async {
                // The flight of the server leaves when that of the client has arrived.
                sleep(ROUND_TRIP - LATENCY / 2).await;
                device.change_one(lost, |link| link.loss = 0.0);
            };
            let (link, ()) = tokio::join!(connector.connect(), mend);
            link.expect("a connection");
            let took = begun.elapsed();
            let is_soon = took <= ROUND_TRIP * 4 + Duration::from_millis(20);
            assert_eq!(is_soon, has_met, "{lost:?}: {took:?}");
        }
    }
}
