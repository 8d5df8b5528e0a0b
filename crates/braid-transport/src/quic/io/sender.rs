//! Sender of a connection: batches of datagrams on their way from the library to the socket.
//!
//! A batch passes the verdict of the gate, the PTO filter and a server's anti-amplification limit. What the socket has
//! no room for is kept here, and the library is asked for no more until it has left.

use std::collections::VecDeque;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use noq_udp::Transmit;

use super::batch::{self, Batch};
use super::socket::Socket;
use crate::quic::amplification::{AmplificationLimit, PathValidationLimit};
use crate::quic::congestion::controller::SharedGate;
use crate::quic::congestion::pto_filter;

pub(super) struct Sender {
    socket: Arc<Socket>,
    /// Sockets of a client with several paths, by the address that the library sends from; `socket` is for packets
    /// without one, before the first answer.
    routes: Vec<(IpAddr, Arc<Socket>)>,
    /// Limits of a server: of its endpoint, and of the connection.
    limits: Option<(AmplificationLimit, PathValidationLimit)>,
    /// Address that was validated: packets with short headers go there without a look into the ledger, and to any
    /// other that the connection moves to.
    validated: Option<SocketAddr>,
    gate: Option<Arc<SharedGate>>,
    /// Batches that the socket had no room for, in order.
    unsent: VecDeque<Batch>,
    /// The first of them.
    sending: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl Sender {
    pub(super) fn new(
        socket: Arc<Socket>,
        limits: Option<(AmplificationLimit, PathValidationLimit)>,
        gate: Option<Arc<SharedGate>>,
    ) -> Self {
        Self {
            socket,
            routes: Vec::new(),
            limits,
            validated: None,
            gate,
            unsent: VecDeque::new(),
            sending: None,
        }
    }

    /// Sends from another socket from now on. Batches that the old one had no room for are lost, as in a network: it
    /// may be of an interface that never has room again. The library repeats what has to arrive.
    pub(super) fn set_socket(&mut self, socket: Arc<Socket>) {
        self.socket = socket;
        self.unsent.clear();
        self.sending = None;
    }

    /// Sends packets of this address from a socket, which is bound to it or to that of another path.
    pub(super) fn set_route(&mut self, address: IpAddr, socket: Arc<Socket>) {
        match self.routes.iter_mut().find(|(known, _)| *known == address) {
            Some((_, known)) => *known = socket,
            None => self.routes.push((address, socket)),
        }
    }

    /// Limit of a server's path validation.
    pub(super) fn path_validation(&mut self) -> Option<&mut PathValidationLimit> {
        self.limits.as_mut().map(|(_, paths)| paths)
    }

    /// Datagrams of one batch at most.
    pub(super) fn max_segments(&self) -> NonZeroUsize {
        self.socket.max_segments()
    }

    /// Ready when everything before has left.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(sending) = &mut self.sending {
                ready!(sending.as_mut().poll(cx));
                self.sending = None;
            }
            let Some(batch) = self.unsent.pop_front() else { return Poll::Ready(()) };
            let socket = Arc::clone(&self.socket);
            self.sending = Some(Box::pin(async move { socket.send(&batch.transmit()).await }));
        }
    }

    /// Sends a batch of the library, as far as gate and filters let it leave.
    pub(super) fn send(&mut self, transmit: &noq_proto::Transmit, contents: &[u8]) {
        let batch = batch::of(transmit, contents);
        let verdict = self.gate.as_ref().and_then(|gate| gate.take_verdict(batch.contents.len()));
        let Some(permitted) = verdict else {
            return match pto_filter::probe(&batch) {
                Some(probe) => self.leave(&pto_filter::part(&batch, probe)),
                None => self.leave(&batch),
            };
        };
        for range in permitted {
            if let Some(contents) = batch.contents.get(range) {
                self.leave(&pto_filter::part(&batch, contents));
            }
        }
    }

    /// Sends a batch past the gate.
    pub(super) fn leave(&mut self, batch: &Transmit<'_>) {
        // An address that is validated again.
        if batch.destination.port() == 0 {
            self.limits.iter_mut().for_each(|(_, paths)| paths.discard());
            return;
        }
        let passed = match &mut self.limits {
            Some((limit, paths)) => {
                paths.pass(batch).and_then(|batch| limit.pass(&mut self.validated, &batch))
            }
            None => Some(batch.clone()),
        };
        let Some(batch) = passed else { return };
        if !self.routes.is_empty() {
            return self.leave_on_path(&batch);
        }
        // The source of a client's packets is the choice of its system. The library names the address to which packets
        // came last, which the host may have lost since.
        let src_ip = batch.src_ip.filter(|_| self.limits.is_some());
        let batch = Transmit { src_ip, ..batch };
        let has_room = self.sending.is_none() && self.unsent.is_empty();
        if !has_room || self.socket.try_send(&batch).is_err() {
            self.unsent.push_back(Batch::of(&batch));
        }
    }

    /// Sends a batch on the path of its address. Without room it is lost, as in a network: an interface without a
    /// carrier may have none for good, and the other paths must not wait for it.
    fn leave_on_path(&self, batch: &Transmit<'_>) {
        let route = self.routes.iter().find(|(address, _)| Some(*address) == batch.src_ip);
        let socket = route.map_or(&self.socket, |(_, socket)| socket);
        if socket.try_send(&Transmit { src_ip: None, ..batch.clone() }).is_err() {
            tracing::debug!(bytes = batch.contents.len(), "a path has no room");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::sim::Network;

    fn batch(destination: SocketAddr) -> Transmit<'static> {
        let src_ip = Some(IpAddr::from([127, 0, 0, 9]));
        Transmit { destination, ecn: None, contents: b"@", segment_size: None, src_ip }
    }

    /// Address from which the packet of a sender comes whose library names another one.
    async fn source(limits: Option<(AmplificationLimit, PathValidationLimit)>) -> IpAddr {
        let peer = tokio::net::UdpSocket::bind(("127.0.0.1", 0)).await.expect("bind");
        let socket = std::net::UdpSocket::bind(("0.0.0.0", 0)).expect("bind");
        let socket = Arc::new(Socket::system(socket).expect("socket"));
        let to = peer.local_addr().expect("address");
        Sender::new(socket, limits, None).leave(&batch(to));
        let received = timeout(Duration::from_secs(10), peer.recv_from(&mut [0])).await;
        received.expect("127.0.0.9 is an address of this machine").expect("received").1.ip()
    }

    #[tokio::test]
    async fn only_a_server_sends_from_the_address_that_the_library_names() {
        assert_eq!(source(None).await, IpAddr::from([127, 0, 0, 1]));
        let limits = (AmplificationLimit::default(), PathValidationLimit::new(([127, 0, 0, 1], 1).into()));
        assert_eq!(source(Some(limits)).await, IpAddr::from([127, 0, 0, 9]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_socket_does_not_wait_for_room_on_the_old_one() {
        let network = Network::new(1);
        let socket = |host: &str| network.host(host).socket().expect("a port");
        let peer = socket("peer");
        let mut sender = Sender::new(Arc::new(Socket::simulated(socket("old"))), None, None);
        sender.sending = Some(Box::pin(std::future::pending()));
        sender.leave(&batch(peer.local_addr()));
        sender.set_socket(Arc::new(Socket::simulated(socket("new"))));
        assert!(poll_fn(|cx| Poll::Ready(sender.poll_room(cx))).await.is_ready());
        sender.leave(&batch(peer.local_addr()));
        let from = poll_fn(|cx| peer.poll_receive(cx)).await.from;
        assert_eq!(from, sender.socket.local_addr().expect("address"));
    }
}
