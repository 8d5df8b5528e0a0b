//! A running balancer.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use socket2::SockRef;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::flows::{Flows, Front};
use crate::health::Health;
use crate::options::{BalancerError, BalancerLimits, BalancerOptions, QuicFront};
use crate::routes::Routes;
use crate::{quic, tcp};

/// Requested size of the UDP socket's receive buffer, bytes; the system gives what its limits allow.
const SOCKET_BUFFER: usize = 4 << 20;

/// Balancer of TCP and QUIC connections over the nodes of a cluster. Runs until it is stopped or dropped.
#[derive(Debug)]
pub struct Balancer {
    tcp: Vec<SocketAddr>,
    quic: Option<SocketAddr>,
    /// Dropped to stop the tasks.
    stop: watch::Sender<()>,
    tasks: JoinSet<()>,
}

impl Balancer {
    /// Opens the ports and begins to serve, in tasks of the tokio runtime that calls it.
    ///
    /// # Errors
    /// The options contradict each other, or a port cannot be opened.
    pub async fn start(options: BalancerOptions) -> Result<Self, BalancerError> {
        options.check()?;
        let BalancerOptions { tcp: fronts, quic: quic_front, limits } = options;
        let (stop, stopped) = watch::channel(());
        let mut balancer = Self { tcp: Vec::new(), quic: None, stop, tasks: JoinSet::new() };
        for front in fronts {
            let bound = async {
                let listener = TcpListener::bind(front.listen).await?;
                let address = listener.local_addr()?;
                io::Result::Ok((listener, address))
            };
            let (listener, address) =
                bound.await.map_err(|source| bind_error("TCP", front.listen, source))?;
            balancer.tcp.push(address);
            let nodes = Arc::new(tcp::Nodes::new(front.backends, &limits));
            balancer.tasks.spawn(tcp::run(listener, nodes, limits.connections, stopped.clone()));
        }
        if let Some(front) = quic_front {
            let bound = async {
                let socket = UdpSocket::bind(front.listen).await?;
                let address = socket.local_addr()?;
                io::Result::Ok((socket, address))
            };
            let (socket, address) = bound.await.map_err(|source| bind_error("UDP", front.listen, source))?;
            balancer.quic = Some(address);
            balancer.serve_quic(socket, &front, &limits, stopped)?;
        }
        Ok(balancer)
    }

    fn serve_quic(
        &mut self,
        socket: UdpSocket,
        front: &QuicFront,
        limits: &BalancerLimits,
        stopped: watch::Receiver<()>,
    ) -> Result<(), BalancerError> {
        // A smaller one loses datagrams in a burst, and nothing else.
        let _ = SockRef::from(&socket).set_recv_buffer_size(SOCKET_BUFFER);
        let most = NonZeroUsize::new(limits.flows).ok_or(BalancerError::Limit("flows"))?;
        let routes = Routes::new(front, most, limits.flow_idle);
        let nodes: Vec<SocketAddr> = front.backends.iter().map(|backend| backend.address).collect();
        let health = Health::new(nodes.len(), limits.retry_after);
        let front = Arc::new(Front::new(socket, nodes, health, limits.flow_idle));
        let flows = Flows::new(Arc::clone(&front), most);
        self.tasks.spawn(quic::run(front, routes, flows, stopped));
        Ok(())
    }

    /// Addresses of the TCP ports, in the order of the options.
    #[must_use]
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.tcp
    }

    /// Address of the QUIC port, if there is one.
    #[must_use]
    pub fn quic_address(&self) -> Option<SocketAddr> {
        self.quic
    }

    /// Closes the ports and all connections. All sockets are closed when it returns.
    pub async fn stop(self) {
        let Self { stop, mut tasks, .. } = self;
        drop(stop);
        while tasks.join_next().await.is_some() {}
    }
}

fn bind_error(transport: &'static str, address: SocketAddr, source: io::Error) -> BalancerError {
    BalancerError::Bind { transport, address, source }
}
