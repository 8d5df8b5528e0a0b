//! TCP port of a balancer.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::health::{Health, Rotation};
use crate::options::BalancerLimits;

/// Bytes of a connection that are buffered in each direction.
const BUFFER: usize = 16 << 10;

/// Idle time of a connection after which its ends are probed, so that one whose peer vanished ends.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Pause after an accept failed for want of a resource of the process, such as descriptors.
pub(crate) const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Nodes behind a TCP port.
pub(crate) struct Nodes {
    addresses: Vec<SocketAddr>,
    rotation: Mutex<Rotation>,
    connect_timeout: Duration,
}

impl Nodes {
    pub(crate) fn new(addresses: Vec<SocketAddr>, limits: &BalancerLimits) -> Self {
        let rotation = Mutex::new(Rotation::new(Health::new(addresses.len(), limits.retry_after)));
        Self { addresses, rotation, connect_timeout: limits.connect_timeout }
    }

    /// Connects to the next node that accepts. `None` if none does.
    async fn connect(&self) -> Option<TcpStream> {
        let order = self.rotate(|rotation| rotation.order(Instant::now()));
        for node in order {
            let address = self.addresses[node];
            let connected = timeout(self.connect_timeout, TcpStream::connect(address)).await;
            match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => {
                    if self.rotate(|rotation| rotation.health.note_success(node)) {
                        tracing::info!(node = %address, "the node accepts TCP connections again");
                    }
                    return Some(stream);
                }
                Err(error) => {
                    if self.rotate(|rotation| rotation.health.note_failure(node, Instant::now())) {
                        tracing::warn!(node = %address, %error, "the node accepts no TCP connection; others take its clients");
                    }
                }
            }
        }
        None
    }

    fn rotate<T>(&self, change: impl FnOnce(&mut Rotation) -> T) -> T {
        change(&mut self.rotation.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Accepts and serves at most `connections` at a time, until `stop` changes or its sender is gone.
pub(crate) async fn run(
    listener: TcpListener,
    nodes: Arc<Nodes>,
    connections: usize,
    mut stop: watch::Receiver<()>,
) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            _ = stop.changed() => break,
            Some(_) = tasks.join_next() => {}
            accepted = listener.accept(), if tasks.len() < connections => match accepted {
                Ok((client, _)) => {
                    tasks.spawn(serve(client, Arc::clone(&nodes)));
                }
                Err(error) => {
                    tracing::warn!(%error, "the balancer cannot accept a connection; trying again");
                    sleep(SHORTAGE_PAUSE).await;
                }
            }
        }
    }
    tasks.shutdown().await;
}

/// Passes bytes on in both directions until both have ended, or one failed. The end of one direction is passed on too.
async fn serve(mut client: TcpStream, nodes: Arc<Nodes>) {
    let Some(mut node) = nodes.connect().await else { return };
    for stream in [&client, &node] {
        // Without these options the connection works as well.
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE));
    }
    if let Err(error) = copy_bidirectional_with_sizes(&mut client, &mut node, BUFFER, BUFFER).await {
        tracing::debug!(%error, "a connection failed");
    }
}
