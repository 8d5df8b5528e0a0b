//! Relays between sockets on loopback, which cut connections.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Notify;

/// Relay of TCP connections or UDP flows to a server. Needs the real clock.
pub(crate) struct SocketRelay {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    /// Bytes of a client after which its connection is cut, for one connection after the other; later ones are whole.
    cuts: Mutex<VecDeque<usize>>,
    /// Bytes from clients on the latest connection.
    latest: AtomicUsize,
    connections: AtomicUsize,
    cut: Notify,
}

impl Shared {
    fn begin(&self) -> usize {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.latest.store(0, Ordering::Relaxed);
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        cuts.pop_front().unwrap_or(usize::MAX)
    }
}

impl SocketRelay {
    /// Relay of TCP: what is cut is closed on both sides.
    pub(crate) async fn tcp(server: SocketAddr, cuts: &[usize]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let relay = Self::new(listener.local_addr().expect("an address"), server, cuts);
        let shared = Arc::clone(&relay.shared);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let left = shared.begin();
                    tokio::select! {
                        _ = relay_tcp(client, left, &shared) => {}
                        () = shared.cut.notified() => {}
                    }
                });
            }
        });
        relay
    }

    /// Relay of UDP: a flow that is cut is silent in both directions.
    pub(crate) async fn udp(server: SocketAddr, cuts: &[usize]) -> Self {
        let front = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port"));
        let relay = Self::new(front.local_addr().expect("an address"), server, cuts);
        tokio::spawn(relay_udp(front, Arc::clone(&relay.shared)));
        relay
    }

    fn new(address: SocketAddr, server: SocketAddr, cuts: &[usize]) -> Self {
        let shared = Shared {
            server,
            cuts: Mutex::new(cuts.iter().copied().collect()),
            latest: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            cut: Notify::new(),
        };
        Self { address, shared: Arc::new(shared) }
    }

    /// Cuts the connections of TCP now.
    pub(crate) fn cut(&self) {
        self.shared.cut.notify_waiters();
    }

    /// Connections so far, and bytes that the client of the latest one has sent.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let Shared { connections, latest, .. } = &*self.shared;
        (connections.load(Ordering::Relaxed), latest.load(Ordering::Relaxed))
    }
}

async fn relay_tcp(mut client: TcpStream, mut left: usize, shared: &Shared) -> std::io::Result<()> {
    let mut server = TcpStream::connect(shared.server).await?;
    let (mut up, mut down) = (vec![0; 32 * 1024], vec![0; 32 * 1024]);
    while left > 0 {
        let most = up.len().min(left);
        tokio::select! {
            read = client.read(&mut up[..most]) => {
                let len @ 1.. = read? else { return Ok(()) };
                server.write_all(&up[..len]).await?;
                shared.latest.fetch_add(len, Ordering::Relaxed);
                left -= len;
            }
            read = server.read(&mut down) => {
                let len @ 1.. = read? else { return Ok(()) };
                client.write_all(&down[..len]).await?;
            }
        }
    }
    Ok(())
}

async fn relay_udp(front: Arc<UdpSocket>, shared: Arc<Shared>) {
    /// Flow of a client; `None` once it is cut.
    type Flow = Option<(Arc<UdpSocket>, usize)>;
    let mut flows: HashMap<SocketAddr, Flow> = HashMap::new();
    let mut datagram = vec![0; 64 * 1024];
    // A closed port is reported to the sender of the next datagram.
    loop {
        let Ok((len, client)) = front.recv_from(&mut datagram).await else { continue };
        let flow = match flows.entry(client) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
                server.connect(shared.server).await.expect("a route");
                let server = Arc::new(server);
                tokio::spawn(answers(Arc::downgrade(&server), Arc::clone(&front), client));
                new.insert(Some((server, shared.begin())))
            }
        };
        let Some((server, left)) = flow else { continue };
        shared.latest.fetch_add(len, Ordering::Relaxed);
        *left = left.saturating_sub(len);
        if *left == 0 {
            *flow = None;
            continue;
        }
        let _ = server.send(&datagram[..len]).await;
    }
}

/// Passes answers on until the flow is cut.
async fn answers(server: std::sync::Weak<UdpSocket>, front: Arc<UdpSocket>, client: SocketAddr) {
    let mut datagram = vec![0; 64 * 1024];
    while let Some(socket) = server.upgrade() {
        let Ok(len) = socket.recv(&mut datagram).await else { continue };
        drop(socket);
        if server.strong_count() > 0 {
            let _ = front.send_to(&datagram[..len], client).await;
        }
    }
}
