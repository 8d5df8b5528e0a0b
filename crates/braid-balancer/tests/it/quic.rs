//! QUIC connections of clients that move, and nodes that die.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use braid_balancer::{Balancer, BalancerLimits, BalancerOptions, QuicBackend, QuicFront};
use braid_proto::stream::StreamKey;
use braid_transport::quic::QuicOptions;
use braid_transport::{
    ClientAuth, ClientTls, ClientTlsOptions, ConnectOptions, Link, ListenOptions, Listener, ListenerKind,
    Read, ServerTls, Target, Transport, connect, self_signed,
};
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::{LIMIT, lb, loopback};

/// The next byte of the control stream.
async fn read(link: &mut Link, moves: &AtomicUsize) -> io::Result<u8> {
    let mut byte = [0];
    loop {
        let mut buffer = ReadBuf::new(&mut byte);
        let read = poll_fn(|cx| {
            let read = link.poll_read(cx, &mut buffer, &mut |_| true);
            let _ = link.poll_flush(cx);
            read
        });
        match read.await? {
            Read::Bytes(_) => return Ok(byte[0]),
            Read::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
            Read::Moved(_) => {
                moves.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

async fn write(link: &mut Link, byte: u8) -> io::Result<()> {
    poll_fn(|cx| link.poll_write(cx, StreamKey::CONTROL, &[IoSlice::new(&[byte])])).await?;
    poll_fn(|cx| link.poll_flush(cx)).await
}

/// Nodes that answer each byte with their number, and a balancer in front of them.
struct Cluster {
    balancer: Balancer,
    tls: ClientTls,
    /// Changes of client addresses that the nodes saw.
    moves: Arc<AtomicUsize>,
}

impl Cluster {
    /// `retry_above`: handshakes from which on addresses have to be validated. `dead`: nodes without listener, in front
    /// of the two others.
    async fn start(retry_above: usize, dead: &[SocketAddr]) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let files = self_signed(directory.path(), &["localhost".to_owned()]).expect("certificate");
        let ca_files = vec![files.certificate.clone()];
        let tls = ClientTls::new(ClientTlsOptions { ca_files, ..ClientTlsOptions::default() });
        tls.check().expect("the files are read before they are deleted");
        let server = ServerTls::load(files, ClientAuth::None).expect("certificate");
        let moves = Arc::new(AtomicUsize::new(0));
        let mut backends: Vec<QuicBackend> = dead
            .iter()
            .zip(10..)
            .map(|(address, number)| QuicBackend { address: *address, server_id: lb(number).server_id() })
            .collect();
        for number in 1..=2 {
            let quic = QuicOptions { quic_lb: Some(lb(number)), retry_above, ..QuicOptions::server() };
            let options = ListenOptions { quic, ..ListenOptions::default() };
            let listener =
                Listener::bind(ListenerKind::Quic(server.clone()), loopback(), &options).expect("bind");
            let address = listener.local_addr().expect("address");
            backends.push(QuicBackend { address, server_id: lb(number).server_id() });
            tokio::spawn(serve(listener, number, Arc::clone(&moves)));
        }
        let quic = QuicFront { listen: loopback(), formats: vec![lb(1).format().clone()], backends };
        let limits = BalancerLimits { retry_after: Duration::from_secs(600), ..BalancerLimits::default() };
        let options = BalancerOptions { quic: Some(quic), limits, ..BalancerOptions::default() };
        let balancer = Balancer::start(options).await.expect("start");
        Self { balancer, tls, moves }
    }

    /// Connects through the balancer. Returns the number of the node too.
    async fn connect(&self) -> (Link, u8) {
        let target = Target {
            transport: Transport::Quic,
            host: "localhost".to_owned(),
            port: self.balancer.quic_address().expect("QUIC").port(),
            path: String::new(),
        };
        let initial_rtt = Duration::from_millis(10);
        let quic = QuicOptions { initial_rtt, ..QuicOptions::client() };
        let options = ConnectOptions { quic, local: Some(loopback().ip()), ..ConnectOptions::default() };
        let mut link = connect(&target, &self.tls, &options).await.expect("connect");
        let node = ask(&mut link).await;
        (link, node)
    }
}

async fn serve(mut listener: Listener, number: u8, moves: Arc<AtomicUsize>) {
    loop {
        let incoming = listener.accept().await.expect("accept");
        let moves = Arc::clone(&moves);
        tokio::spawn(async move {
            let mut link = incoming.handshake().await.expect("handshake");
            while read(&mut link, &moves).await.is_ok() {
                write(&mut link, number).await?;
            }
            io::Result::Ok(())
        });
    }
}

/// Number of the node that answers.
async fn ask(link: &mut Link) -> u8 {
    write(link, b'?').await.expect("write");
    let answer = timeout(LIMIT, read(link, &AtomicUsize::new(0))).await;
    answer.expect("its node gets what the client sends").expect("read")
}

/// With and without validation of addresses by Retry, whose connection ID names the node too.
#[tokio::test]
async fn clients_that_move_stay_at_their_nodes() {
    for retry_above in [1000, 0] {
        let cluster = Cluster::start(retry_above, &[]).await;
        let (mut clients, mut at) = (Vec::new(), [0; 3]);
        while at[1] < 2 || at[2] < 2 {
            let (client, node) = cluster.connect().await;
            at[usize::from(node)] += 1;
            clients.push((client, node));
        }
        for (client, node) in &mut clients {
            for _ in 0..4 {
                client.rebind(Some(loopback())).expect("rebind");
                assert_eq!(ask(client).await, *node);
                assert_eq!(ask(client).await, *node);
            }
        }
        assert!(cluster.moves.load(Ordering::Relaxed) >= clients.len(), "the nodes see other addresses");
    }
}

#[tokio::test]
async fn new_clients_avoid_a_dead_node() {
    let (mut sockets, mut dead) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let socket = UdpSocket::bind(loopback()).await.expect("bind");
        let address = socket.local_addr().expect("address");
        // Refuses what others send, and keeps the port from tests that run beside this one.
        socket.connect(address).await.expect("connect");
        dead.push(address);
        sockets.push(socket);
    }
    let cluster = Cluster::start(1000, &dead).await;
    for _ in 0..6 {
        let (_client, node) = cluster.connect().await;
        assert!([1, 2].contains(&node), "{node}");
    }
}
