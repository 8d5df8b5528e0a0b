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
use crate::quic::amplification::AmplificationLimit;
use crate::quic::congestion::controller::SharedGate;
use crate::quic::congestion::pto_filter;

pub(super) struct Sender {
    socket: Arc<Socket>,
    /// Sockets of a client with several paths, by the address that the library sends from; `socket` is for packets
    /// without one, before the first answer.
    routes: Vec<(IpAddr, Arc<Socket>)>,
    /// Limit of a server.
    limit: Option<AmplificationLimit>,
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
        limit: Option<AmplificationLimit>,
        gate: Option<Arc<SharedGate>>,
    ) -> Self {
        Self {
            socket,
            routes: Vec::new(),
            limit,
            validated: None,
            gate,
            unsent: VecDeque::new(),
            sending: None,
        }
    }

    /// Sends from another socket from now on.
    pub(super) fn set_socket(&mut self, socket: Arc<Socket>) {
        self.socket = socket;
    }

    /// Sends packets of this address from a socket, which is bound to it or to that of another path.
    pub(super) fn set_route(&mut self, address: IpAddr, socket: Arc<Socket>) {
        match self.routes.iter_mut().find(|(known, _)| *known == address) {
            Some((_, known)) => *known = socket,
            None => self.routes.push((address, socket)),
        }
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
            return;
        }
        let passed = match &self.limit {
            Some(limit) => limit.pass(&mut self.validated, batch),
            None => Some(batch.clone()),
        };
        let Some(batch) = passed else { return };
        if !self.routes.is_empty() {
            return self.leave_on_path(&batch);
        }
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
