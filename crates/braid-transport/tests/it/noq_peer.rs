//! Endpoints of the noq library on a simulated network, as peers of ours.

use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use braid_transport::sim::{Arrival, Host, Socket};
use noq::udp::{EcnCodepoint, RecvMeta, Transmit};
use noq::{
    AsyncTimer, AsyncUdpSocket, Endpoint, EndpointConfig, Runtime, ServerConfig, TokioRuntime, UdpSender,
};

/// Datagrams that the library sends at once at most, as on a system with segmentation offload.
const SEGMENTS: NonZeroUsize = NonZeroUsize::new(10).expect("not zero");

/// An endpoint on a new port of `host`, which serves if it has a configuration to serve with.
pub(crate) fn endpoint(host: &Host, config: Option<ServerConfig>) -> Endpoint {
    let runtime = SimulatedRuntime(host.clone());
    let socket = runtime.socket().expect("a free port");
    let mut endpoint = EndpointConfig::default();
    let mut seed = [0; 32];
    let address = socket.local_addr().expect("address").to_string();
    seed[..address.len()].copy_from_slice(address.as_bytes());
    endpoint.rng_seed(Some(seed));
    let endpoint = Endpoint::new_with_abstract_socket(endpoint, config, socket, Arc::new(runtime));
    endpoint.expect("an endpoint")
}

/// tokio, with sockets of one host.
#[derive(Debug)]
struct SimulatedRuntime(Host);

impl SimulatedRuntime {
    fn socket(&self) -> io::Result<Box<dyn AsyncUdpSocket>> {
        Ok(Box::new(SimulatedSocket(Arc::new(self.0.socket()?))))
    }
}

impl Runtime for SimulatedRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    /// An endpoint that moves to another socket asks for this: it gets a new port of its host in
    /// place of the real socket.
    fn wrap_udp_socket(&self, _real: UdpSocket) -> io::Result<Box<dyn AsyncUdpSocket>> {
        self.socket()
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

#[derive(Debug)]
struct SimulatedSocket(Arc<Socket>);

impl AsyncUdpSocket for SimulatedSocket {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(Sender(Arc::clone(&self.0)))
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut count = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta) {
            let Arrival { from, ecn, bytes } = match self.0.poll_receive(cx) {
                Poll::Ready(arrival) => arrival,
                Poll::Pending if count > 0 => break,
                Poll::Pending => return Poll::Pending,
            };
            let length = bytes.len().min(buf.len());
            buf[..length].copy_from_slice(&bytes[..length]);
            *meta = RecvMeta::default();
            (meta.addr, meta.len, meta.stride) = (from, length, length);
            meta.ecn = ecn.and_then(EcnCodepoint::from_bits);
            meta.dst_ip = Some(self.0.local_addr().ip());
            count += 1;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.local_addr())
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Sender(Arc<Socket>);

impl UdpSender for Sender {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        _cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let ecn = transmit.ecn.map(|ecn| ecn as u8);
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        // One probe of two, as our own endpoints: behind a policer two would decide about each other.
        let is_probe = size <= 30 && transmit.contents.len() == 2 * size;
        let datagrams = transmit.contents.chunks(size).skip(usize::from(is_probe));
        datagrams.for_each(|datagram| self.0.send(transmit.destination, ecn, datagram));
        Poll::Ready(Ok(()))
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        SEGMENTS
    }
}
