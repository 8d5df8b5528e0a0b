//! Datagrams between bare sockets: ports, answers, limits.

use std::net::SocketAddr;
use std::time::Duration;

use braid_balancer::{Balancer, BalancerLimits, BalancerOptions, QuicBackend, QuicFront};
use braid_transport::quic::{QuicLbFormat, ServerId};
use tokio::net::UdpSocket;
use tokio::time::{advance, timeout};

use crate::{LIMIT, loopback};

/// Datagram with a short header for node `number`, in the clear, and a byte behind it.
fn to_node(number: u8, byte: u8) -> Vec<u8> {
    vec![0x40, 0x05, number, 1, 1, 1, 1, byte]
}

async fn socket() -> UdpSocket {
    UdpSocket::bind(loopback()).await.expect("bind")
}

/// A balancer in front of these sockets, which are nodes 0, 1 and so on.
async fn start(nodes: &[&UdpSocket], limits: BalancerLimits) -> (Balancer, SocketAddr) {
    let backends = nodes.iter().zip(0..).map(|(node, number)| QuicBackend {
        address: node.local_addr().expect("address"),
        server_id: ServerId::new(&[number]).expect("ID"),
    });
    let formats = vec![QuicLbFormat::new(0, 1, 4, None).expect("in range")];
    let quic = Some(QuicFront { listen: loopback(), formats, backends: backends.collect() });
    let options = BalancerOptions { quic, limits, ..BalancerOptions::default() };
    let balancer = Balancer::start(options).await.expect("start");
    let address = balancer.quic_address().expect("QUIC");
    (balancer, address)
}

/// The next datagram's last byte, and its sender.
async fn receive(socket: &UdpSocket) -> (u8, SocketAddr) {
    let mut buffer = [0; 2000];
    let (length, from) =
        timeout(LIMIT, socket.recv_from(&mut buffer)).await.expect("in time").expect("receive");
    (buffer[length - 1], from)
}

#[tokio::test]
async fn each_client_has_a_port_towards_each_node_and_gets_its_answers() {
    let (node_0, node_1) = (socket().await, socket().await);
    let (_balancer, address) = start(&[&node_0, &node_1], BalancerLimits::default()).await;
    let clients = [socket().await, socket().await];
    let mut ports = Vec::new();
    for (node, number) in [(&node_0, 0), (&node_1, 1)] {
        for (client, byte) in clients.iter().zip(b'a'..) {
            // Neither of these is for any node.
            client.send_to(b"no QUIC", address).await.expect("send");
            client.send_to(&to_node(9, byte), address).await.expect("send");
            client.send_to(&to_node(number, byte), address).await.expect("send");
            let (received, from) = receive(node).await;
            assert_eq!(received, byte);
            ports.push(from);
            client.send_to(&to_node(number, byte), address).await.expect("send");
            assert_eq!(receive(node).await, (byte, from), "the port stays");
            node.send_to(&[byte + 1], from).await.expect("answer");
            assert_eq!(receive(client).await, (byte + 1, address));
        }
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 4);

    // A datagram of the largest size passes in both directions.
    let mut large = to_node(0, b'l');
    large.resize(65_507, b'L');
    clients[0].send_to(&large, address).await.expect("send");
    let mut buffer = vec![0; 1 << 16];
    let (length, from) = node_0.recv_from(&mut buffer).await.expect("receive");
    assert!(buffer[..length] == large);
    node_0.send_to(&large, from).await.expect("send");
    assert_eq!(clients[0].recv(&mut buffer).await.expect("receive"), large.len());
}

#[tokio::test]
async fn the_flow_that_was_unused_for_longest_gives_way() {
    let node = socket().await;
    let limits = BalancerLimits { flows: 2, ..BalancerLimits::default() };
    let (_balancer, address) = start(&[&node], limits).await;
    let clients = [socket().await, socket().await, socket().await];
    let port = async |client: usize| {
        clients[client].send_to(&to_node(0, b'?'), address).await.expect("send");
        receive(&node).await.1
    };
    let (first, second) = (port(0).await, port(1).await);
    assert_eq!(port(0).await, first);
    port(2).await;
    assert_eq!(port(0).await, first);
    assert_ne!(port(1).await, second);
}

/// Result of the first attempt that has one. The clock does not advance meanwhile.
async fn eventually<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut result = attempt();
    for _ in 0..100_000 {
        if result.is_some() {
            break;
        }
        tokio::task::yield_now().await;
        result = attempt();
    }
    result.expect("in time")
}

/// [`receive`] without the clock.
async fn receive_at_once(socket: &UdpSocket) -> (u8, SocketAddr) {
    let mut buffer = [0; 2000];
    let (length, from) = eventually(|| socket.try_recv_from(&mut buffer).ok()).await;
    (buffer[length - 1], from)
}

#[tokio::test(start_paused = true)]
async fn an_idle_flow_ends_and_the_next_datagram_opens_another() {
    let (node, client) = (socket().await, socket().await);
    let idle = Duration::from_secs(30);
    let limits = BalancerLimits { flow_idle: idle, ..BalancerLimits::default() };
    let (balancer, address) = start(&[&node], limits).await;
    client.send_to(&to_node(0, b'?'), address).await.expect("send");
    let (_, from) = receive_at_once(&node).await;
    for _ in 0..2 {
        // An answer counts as use.
        advance(idle * 2 / 3).await;
        node.send_to(b"!", from).await.expect("answer");
        assert_eq!(receive_at_once(&client).await.0, b'!');
    }
    advance(idle).await;
    eventually(|| std::net::UdpSocket::bind(from).ok()).await;
    client.send_to(&to_node(0, b'?'), address).await.expect("send");
    assert_eq!(receive_at_once(&node).await.0, b'?');

    balancer.stop().await;
    UdpSocket::bind(address).await.expect("the port is closed");
}

/// A refusal is noted also where the client sends nothing after it.
#[tokio::test(start_paused = true)]
async fn first_datagrams_avoid_a_node_that_refused_one() {
    let (dead, node) = (socket().await, socket().await);
    let (_balancer, address) = start(&[&dead, &node], BalancerLimits::default()).await;
    drop(dead);
    let long = [0xC0, 0, 0, 0, 1, 8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, b'?'];
    let (mut clients, mut in_a_row) = (Vec::new(), 0);
    while in_a_row < 40 {
        assert!(clients.len() < 400, "the dead node goes on to get clients");
        let client = socket().await;
        client.send_to(&long, address).await.expect("send");
        clients.push(client);
        in_a_row += 1;
        let mut yields = 0..500;
        let received = eventually(|| match node.try_recv_from(&mut [0; 2000]) {
            Ok(_) => Some(true),
            Err(_) => yields.next().is_none().then_some(false),
        });
        if !received.await {
            in_a_row = 0;
        }
    }
}
