//! UDP socket with the anti-amplification limit.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use noq::udp::{RecvMeta, Transmit};
use noq::{AsyncUdpSocket, UdpSender};

use super::AmplificationLimit;
use super::initial::is_initial_alone;
use super::ledger::{Budget, Deferred};

/// Bit of the first byte of a packet with a long header (RFC 9000, 17.2). Until a connection is established, and so
/// until an address is validated, every datagram of a client begins with one.
const LONG_HEADER: u8 = 0x80;

/// A socket that counts what comes from and goes to addresses that are not validated.
#[derive(Debug)]
pub(super) struct Socket {
    socket: Box<dyn AsyncUdpSocket>,
    limit: AmplificationLimit,
}

impl Socket {
    pub(super) fn new(socket: Box<dyn AsyncUdpSocket>, limit: AmplificationLimit) -> Self {
        Self { socket, limit }
    }
}

impl AsyncUdpSocket for Socket {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        let (sender, limit) = (self.socket.create_sender(), self.limit.clone());
        Box::pin(Sender { sender, limit, validated: None })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = ready!(self.socket.poll_recv(cx, bufs, meta))?;
        for (buffer, meta) in bufs.iter().zip(meta.iter()).take(received) {
            let datagrams = buffer.get(..meta.len).unwrap_or_default().chunks(meta.stride.max(1));
            let (mut bytes, mut asks_again) = (0, false);
            for datagram in datagrams.filter(|datagram| has_long_header(datagram)) {
                bytes += datagram.len();
                asks_again |= is_initial_alone(datagram);
            }
            if bytes > 0 {
                self.limit.received(meta.addr, bytes, asks_again);
            }
        }
        Poll::Ready(Ok(received))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_receive_segments(&self) -> NonZeroUsize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

fn has_long_header(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & LONG_HEADER != 0)
}

/// Sender of one connection, or of the endpoint for its own answers.
#[derive(Debug)]
struct Sender {
    sender: Pin<Box<dyn UdpSender>>,
    limit: AmplificationLimit,
    /// Address that was validated: packets with short headers go there without a look into the ledger, and to any
    /// other that the connection moves to.
    validated: Option<SocketAddr>,
}

impl UdpSender for Sender {
    fn poll_send(
        mut self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let Transmit { destination, ecn, contents, segment_size, src_ip } = *transmit;
        let is_short = !has_long_header(contents);
        if is_short && self.validated.is_some() {
            return self.sender.as_mut().poll_send(transmit, cx);
        }
        let size = segment_size.unwrap_or(contents.len()).max(1);
        let budget = self.limit.ledger().reserve(destination, size, contents.len(), is_short);
        let permitted = match budget {
            Budget::Unlimited => {
                self.validated = Some(destination);
                return self.sender.as_mut().poll_send(transmit, cx);
            }
            Budget::Bytes(permitted) => permitted,
        };
        let (first, rest) = contents.split_at(permitted.min(contents.len()));
        if !first.is_empty() {
            let segment_size = segment_size.filter(|size| *size < first.len());
            let part = Transmit { destination, ecn, contents: first, segment_size, src_ip };
            if self.sender.as_mut().poll_send(&part, cx)?.is_pending() {
                // The library offers all of it again.
                self.limit.ledger().release(destination, permitted);
                return Poll::Pending;
            }
            for datagram in first.chunks(size).filter(|datagram| has_long_header(datagram)) {
                self.limit.ledger().keep(destination, || Deferred {
                    contents: datagram.to_vec(),
                    ecn,
                    src_ip,
                });
            }
        }
        for datagram in rest.chunks(size) {
            let deferred = Deferred { contents: datagram.to_vec(), ecn, src_ip };
            self.limit.ledger().defer(destination, deferred);
        }
        Poll::Ready(Ok(()))
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        self.sender.max_transmit_segments()
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
