//! UDP socket of an endpoint: of the system, or of a simulated host.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use noq_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState, is_msg_size_err};
use tokio::io::Interest;

use crate::sim::{Arrival, Socket as SimulatedSocket};

/// Bytes that one receive gives at most: with segmentation offload, datagrams of one sender up to the length of an IP
/// packet.
const RECEIVE_BYTES: usize = 1 << 16;

/// Bytes of a datagram at most, as the library announces (`max_udp_payload_size`, RFC 9000, 18.2). Longer ones are
/// dropped: each frame of three bytes in them may cost as much as one of a usual datagram.
const MAX_DATAGRAM: usize = 1472;

/// Datagrams that are sent in one call at most, with segmentation offload.
const MAX_SEGMENTS: NonZeroUsize = NonZeroUsize::new(10).expect("not zero");

thread_local! {
    /// Buffer of the receives on a thread. Only the pages that datagrams have reached take memory.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// UDP socket. Tasks that send share it; one task receives.
pub(in crate::quic) struct Socket {
    kind: Kind,
    #[cfg(test)]
    pub(in crate::quic) faults: Option<std::sync::Arc<super::super::fault_tests::Faults>>,
}

enum Kind {
    System { io: tokio::net::UdpSocket, state: UdpSocketState },
    Simulated(SimulatedSocket),
}

/// Datagram that was received.
pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    /// Address that it was sent to.
    pub(super) to: Option<IpAddr>,
    pub(super) ecn: Option<noq_proto::EcnCodepoint>,
    pub(super) bytes: BytesMut,
}

impl Socket {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            #[cfg(test)]
            faults: None,
        }
    }

    /// A socket of the system.
    pub(in crate::quic) fn system(socket: std::net::UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let state = UdpSocketState::new((&socket).into())?;
        let io = tokio::net::UdpSocket::from_std(socket)?;
        Ok(Self::new(Kind::System { io, state }))
    }

    /// A socket of a simulated host.
    pub(in crate::quic) fn simulated(socket: SimulatedSocket) -> Self {
        Self::new(Kind::Simulated(socket))
    }

    pub(in crate::quic) fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.kind {
            Kind::System { io, .. } => io.local_addr(),
            Kind::Simulated(socket) => Ok(socket.local_addr()),
        }
    }

    /// True if IP may fragment what is sent, so that the MTU of a path cannot be found.
    pub(super) fn may_fragment(&self) -> bool {
        match &self.kind {
            Kind::System { state, .. } => state.may_fragment(),
            Kind::Simulated(_) => false,
        }
    }

    /// Datagrams of one batch at most.
    pub(super) fn max_segments(&self) -> NonZeroUsize {
        match &self.kind {
            Kind::System { state, .. } => state.max_gso_segments().min(MAX_SEGMENTS),
            Kind::Simulated(_) => MAX_SEGMENTS,
        }
    }

    /// Receives up to `batch` buffers of datagrams, and calls `handle` for each datagram. Only one task may wait.
    ///
    /// A datagram from port 0, which cannot be answered, is dropped: `sendmsg` to that port fails with EINVAL, upon
    /// which segmentation offload and ECN would be off for the socket for good. One that is longer than is announced is
    /// dropped, too.
    ///
    /// # Errors
    /// The socket is of no more use.
    pub(super) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        batch: usize,
        mut handle: impl FnMut(Datagram),
    ) -> Poll<io::Result<()>> {
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            faults.receive()?;
        }
        let mut handle = |datagram: Datagram| {
            if datagram.from.port() != 0 && datagram.bytes.len() <= MAX_DATAGRAM {
                handle(datagram);
            }
        };
        match &self.kind {
            Kind::System { io, state } => loop {
                ready!(io.poll_recv_ready(cx))?;
                match receive(io, state, batch.min(BATCH_SIZE), &mut handle) {
                    Ok(()) => return Poll::Ready(Ok(())),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // An ICMP message about an earlier datagram, which anyone can forge.
                    Err(error) if is_icmp(&error) => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
            },
            Kind::Simulated(socket) => {
                for count in 0..batch {
                    match socket.poll_receive(cx) {
                        Poll::Ready(Arrival { from, ecn, bytes }) => handle(Datagram {
                            from,
                            to: Some(socket.local_addr().ip()),
                            ecn: ecn.and_then(noq_proto::EcnCodepoint::from_bits),
                            bytes: BytesMut::from(&bytes[..]),
                        }),
                        Poll::Pending if count > 0 => break,
                        Poll::Pending => return Poll::Pending,
                    }
                }
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Sends a batch now. A batch that the system refuses for another reason than want of room is lost, as in a
    /// network.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room.
    pub(in crate::quic) fn try_send(&self, batch: &Transmit<'_>) -> io::Result<()> {
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            faults.send(batch.destination);
        }
        match &self.kind {
            Kind::System { io, state } => lost(batch, state.try_send(io.into(), batch)),
            Kind::Simulated(socket) => {
                let ecn = batch.ecn.map(|ecn| ecn as u8);
                let size = batch.segment_size.unwrap_or(batch.contents.len()).max(1);
                batch
                    .contents
                    .chunks(size)
                    .for_each(|datagram| socket.send(batch.destination, ecn, datagram));
                Ok(())
            }
        }
    }

    /// Sends a batch when there is room.
    pub(super) async fn send(&self, batch: &Transmit<'_>) {
        let Kind::System { io, state } = &self.kind else {
            let _ = self.try_send(batch);
            return;
        };
        while io.writable().await.is_ok() {
            match io.try_io(Interest::WRITABLE, || lost(batch, state.try_send(io.into(), batch))) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(()) | Err(_) => return,
            }
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Socket").field(&self.local_addr().ok()).finish()
    }
}

/// Turns an error other than the want of room into a loss.
fn lost(batch: &Transmit<'_>, sent: io::Result<()>) -> io::Result<()> {
    match sent {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
        Err(error) => {
            tracing::debug!(%error, to = %batch.destination, bytes = batch.contents.len(), "a batch is lost");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn is_icmp(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset || is_msg_size_err(error)
}

/// Receives what there is, up to a batch.
fn receive(
    io: &tokio::net::UdpSocket,
    state: &UdpSocketState,
    batch: usize,
    handle: &mut impl FnMut(Datagram),
) -> io::Result<()> {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.is_empty() {
            *buffer = vec![0; RECEIVE_BYTES * BATCH_SIZE];
        }
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let mut count = 0;
        let result = {
            let mut chunks = buffer.chunks_exact_mut(RECEIVE_BYTES);
            let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
                std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
            io.try_io(Interest::READABLE, || {
                count = state.recv(io.into(), &mut slices[..batch], &mut metas[..batch])?;
                // A batch that is not full has emptied the socket: it is not asked again before the system tells of
                // more. An event since the call is not lost, as the runtime compares it with what it knew before.
                if count < batch { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            })
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && count > 0 => {}
            result => result?,
        }
        for (chunk, meta) in buffer.chunks_exact(RECEIVE_BYTES).zip(&metas).take(count) {
            let received = chunk.get(..meta.len).unwrap_or_default();
            // Each has an allocation of its own: a byte of one that is not read would keep all of a batch.
            for datagram in received.chunks(meta.stride.max(1)) {
                handle(Datagram {
                    from: meta.addr,
                    to: meta.dst_ip,
                    ecn: meta.ecn.and_then(|ecn| noq_proto::EcnCodepoint::from_bits(ecn as u8)),
                    bytes: BytesMut::from(datagram),
                });
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::sim::Network;

    /// The first datagrams that come, after `send` was called with the address of the socket.
    async fn receive(socket: Socket, send: impl FnOnce(SocketAddr)) -> Vec<BytesMut> {
        send(socket.local_addr().expect("address"));
        let mut received = Vec::new();
        while received.is_empty() {
            let batch =
                poll_fn(|cx| socket.poll_receive(cx, BATCH_SIZE, |datagram| received.push(datagram.bytes)));
            batch.await.expect("received");
        }
        received
    }

    #[tokio::test(start_paused = true)]
    async fn a_datagram_from_port_0_is_dropped() {
        let network = Network::new(1);
        let socket = Socket::simulated(network.host("server").socket().expect("a port"));
        let received = receive(socket, |to| {
            let forger = network.host("forger").attach(Some(0)).expect("port 0");
            forger.send(to, None, b"forged");
            network.host("client").socket().expect("a port").send(to, None, b"honest");
        });
        assert_eq!(received.await, [&b"honest"[..]]);
    }

    #[tokio::test]
    async fn a_datagram_that_is_longer_than_announced_is_dropped() {
        assert_eq!(noq_proto::EndpointConfig::default().get_max_udp_payload_size(), MAX_DATAGRAM as u64);
        let any = || std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let received = receive(Socket::system(any()).expect("socket"), |to| {
            let client = any();
            for length in [MAX_DATAGRAM + 1, 60_000, MAX_DATAGRAM] {
                client.send_to(&vec![7; length], to).expect("send");
            }
        });
        assert_eq!(received.await.iter().map(|bytes| bytes.len()).collect::<Vec<_>>(), [MAX_DATAGRAM]);
    }
}
