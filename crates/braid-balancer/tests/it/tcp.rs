//! TCP connections over nodes that come and go.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use braid_balancer::{Balancer, BalancerError, BalancerLimits, BalancerOptions, TcpFront};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::{LIMIT, loopback};

/// Node that greets with its name, sends all bytes back, and says `.` after the end of them.
struct Node {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Node {
    async fn start(name: u8, address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("bind");
        let address = listener.local_addr().expect("address");
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.expect("accept");
                connections.spawn(async move {
                    stream.write_u8(name).await?;
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await?;
                    to.write_u8(b'.').await
                });
            }
        });
        Self { address, task }
    }

    /// Ends the node and its connections.
    async fn kill(self) -> SocketAddr {
        self.task.abort();
        self.task.await.expect_err("aborted");
        self.address
    }
}

async fn start(backends: Vec<SocketAddr>, limits: BalancerLimits) -> (Balancer, SocketAddr) {
    let tcp = vec![TcpFront { listen: loopback(), backends }];
    let options = BalancerOptions { tcp, limits, ..BalancerOptions::default() };
    let balancer = Balancer::start(options).await.expect("start");
    let address = balancer.tcp_addresses()[0];
    (balancer, address)
}

/// Nodes that failed are tried again with the next connection.
fn without_pause() -> BalancerLimits {
    BalancerLimits { retry_after: Duration::ZERO, ..BalancerLimits::default() }
}

/// A connection, and the name of its node. `None`: it has ended without one.
async fn visit(address: SocketAddr) -> (TcpStream, Option<char>) {
    let mut stream = TcpStream::connect(address).await.expect("connect");
    let greeting = timeout(LIMIT, stream.read_u8()).await.expect("in time");
    (stream, greeting.ok().map(char::from))
}

async fn names(address: SocketAddr, count: usize) -> String {
    let mut names = String::new();
    for _ in 0..count {
        names.extend(visit(address).await.1);
    }
    names
}

async fn echo(stream: &mut TcpStream, bytes: &[u8]) {
    let (mut from, mut to) = stream.split();
    let mut back = vec![0; bytes.len()];
    let (sent, received) = tokio::join!(to.write_all(bytes), from.read_exact(&mut back));
    sent.and(received.map(drop)).expect("echo");
    assert!(back == bytes, "bytes were changed");
}

#[tokio::test]
async fn connections_alternate_and_survive_the_death_of_the_other_node() {
    let (a, b) = (Node::start(b'a', loopback()).await, Node::start(b'b', loopback()).await);
    let (_balancer, address) = start(vec![a.address, b.address], without_pause()).await;
    assert_eq!(names(address, 4).await, "abab");
    let (mut at_a, a_name) = visit(address).await;
    let (mut at_b, b_name) = visit(address).await;
    assert_eq!((a_name, b_name), (Some('a'), Some('b')));

    let address_of_a = a.kill().await;
    let end = timeout(LIMIT, at_a.read_u8()).await.expect("in time").expect_err("ended");
    assert!(matches!(end.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{end}");
    echo(&mut at_b, &vec![7; 1 << 20]).await;
    assert_eq!(names(address, 3).await, "bbb");

    let _a = Node::start(b'a', address_of_a).await;
    let again = names(address, 4).await;
    assert!(["abab", "baba"].contains(&&*again), "{again}");
    b.kill().await;
    assert_eq!(names(address, 2).await, "aa");
}

#[tokio::test]
async fn a_connection_without_live_node_ends_and_later_ones_find_one_that_returns() {
    let node = Node::start(b'a', loopback()).await;
    let (_balancer, address) = start(vec![node.address], BalancerLimits::default()).await;
    let address_of_node = node.kill().await;
    assert_eq!(visit(address).await.1, None);
    let _node = Node::start(b'a', address_of_node).await;
    assert_eq!(names(address, 1).await, "a", "the last resort is a node that failed");
}

#[tokio::test]
async fn the_end_of_one_direction_leaves_the_other_open() {
    let node = Node::start(b'a', loopback()).await;
    let (_balancer, address) = start(vec![node.address], BalancerLimits::default()).await;
    let (mut stream, _) = visit(address).await;
    stream.write_all(b"last words").await.expect("write");
    stream.shutdown().await.expect("shutdown");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.expect("read");
    assert_eq!(rest, "last words.");

    let listener = TcpListener::bind(loopback()).await.expect("bind");
    let (_balancer, address) =
        start(vec![listener.local_addr().expect("address")], BalancerLimits::default()).await;
    let (sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accept");
        stream.shutdown().await.expect("shutdown");
        let mut received = String::new();
        stream.read_to_string(&mut received).await.expect("read");
        sender.send(received)
    });
    let mut stream = TcpStream::connect(address).await.expect("connect");
    assert_eq!(stream.read(&mut [0]).await.expect("read"), 0);
    stream.write_all(b"still here").await.expect("write");
    drop(stream);
    assert_eq!(receiver.await.expect("received"), "still here");
}

#[tokio::test]
async fn connections_above_the_limit_wait() {
    let node = Node::start(b'a', loopback()).await;
    let limits = BalancerLimits { connections: 1, ..BalancerLimits::default() };
    let (_balancer, address) = start(vec![node.address], limits).await;
    let (mut first, _) = visit(address).await;
    let mut second = TcpStream::connect(address).await.expect("queued");
    for _ in 0..10 {
        echo(&mut first, b"!").await;
    }
    assert_eq!(second.try_read(&mut [0]).expect_err("waits").kind(), ErrorKind::WouldBlock);
    drop(first);
    assert_eq!(timeout(LIMIT, second.read_u8()).await.expect("in time").expect("greeting"), b'a');
}

#[tokio::test]
async fn a_stopped_balancer_has_closed_its_ports_and_connections() {
    let node = Node::start(b'a', loopback()).await;
    let (balancer, address) = start(vec![node.address], BalancerLimits::default()).await;
    let (mut stream, _) = visit(address).await;
    let tcp = vec![TcpFront { listen: address, backends: vec![node.address] }];
    let options = BalancerOptions { tcp, ..BalancerOptions::default() };
    let error = Balancer::start(options.clone()).await.expect_err("in use");
    assert!(matches!(error, BalancerError::Bind { transport: "TCP", .. }), "{error}");
    assert!(
        error.to_string().starts_with(&format!("the balancer cannot listen on TCP {address}: ")),
        "{error}"
    );

    timeout(LIMIT, balancer.stop()).await.expect("in time");
    let end = timeout(LIMIT, stream.read(&mut [0])).await.expect("in time");
    assert_eq!(end.unwrap_or(0), 0);
    let refused = TcpStream::connect(address).await.expect_err("closed");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let again = Balancer::start(options).await.expect("start");
    assert_eq!(names(address, 1).await, "a");
    drop(again);
}
