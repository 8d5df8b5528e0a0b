//! Socket and runtime of the QUIC library on the simulated network.

use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use noq::udp::{EcnCodepoint, RecvMeta, Transmit};
use noq::{AsyncTimer, AsyncUdpSocket, Endpoint, EndpointConfig, Runtime, ServerConfig, UdpSender};
use tokio::time::{Sleep, sleep_until};

use super::amplification::AmplificationLimit;
use super::config;
use super::runtime::{Failures, GuardedRuntime};
use crate::sim::{Arrival, Attached, Host};

/// Datagrams that the library sends at once at most, as on a system with segmentation offload.
const SEGMENTS: NonZeroUsize = NonZeroUsize::new(10).expect("not zero");

/// An endpoint on `socket` of `host`, and the receiver of its panics.
pub(crate) fn endpoint_on(
    host: &Host,
    socket: Attached,
    server: Option<ServerConfig>,
) -> io::Result<(Endpoint, Failures)> {
    run(GuardedRuntime::default(), host, socket, config::endpoint(None), server)
}

/// The endpoint of a listener, with this limit.
pub(super) fn listener_on(
    host: &Host,
    socket: Attached,
    config: EndpointConfig,
    server: ServerConfig,
    limit: AmplificationLimit,
) -> io::Result<(Endpoint, Failures)> {
    run(GuardedRuntime::limited(limit), host, socket, config, Some(server))
}

fn run(
    guarded: GuardedRuntime,
    host: &Host,
    socket: Attached,
    mut config: EndpointConfig,
    server: Option<ServerConfig>,
) -> io::Result<(Endpoint, Failures)> {
    let mut seed = [0; 32];
    for chunk in seed.chunks_exact_mut(8) {
        chunk.copy_from_slice(&host.draw().to_le_bytes());
    }
    config.rng_seed(Some(seed));
    let runtime = SimulatedRuntime { guarded, host: host.clone() };
    let failures = runtime.guarded.failures();
    let socket = runtime.socket(socket);
    let endpoint = Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(runtime))?;
    Ok((endpoint, failures))
}

/// tokio, with a panic guard around every task, and sockets of one host.
#[derive(Debug)]
struct SimulatedRuntime {
    guarded: GuardedRuntime,
    host: Host,
}

impl SimulatedRuntime {
    /// A socket with the filters of real ones.
    fn socket(&self, socket: Attached) -> Box<dyn AsyncUdpSocket> {
        self.guarded.filtered(Box::new(Socket { attached: Arc::new(socket), timer: None }))
    }
}

impl Runtime for SimulatedRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        self.guarded.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.guarded.spawn(future);
    }

    /// An endpoint that moves to another socket asks for this: it gets a new port of its host in
    /// place of the real socket.
    fn wrap_udp_socket(&self, _real: UdpSocket) -> io::Result<Box<dyn AsyncUdpSocket>> {
        Ok(self.socket(self.host.attach(None)?))
    }

    fn now(&self) -> Instant {
        self.guarded.now()
    }
}

#[derive(Debug)]
struct Socket {
    attached: Arc<Attached>,
    /// For the next arrival.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    /// Waits for the next arrival.
    fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<Arrival> {
        loop {
            let next = match self.attached.receive_queue.poll(cx, tokio::time::Instant::now()) {
                Ok(arrival) => return Poll::Ready(arrival),
                Err(next) => next,
            };
            let Some(at) = next else {
                self.timer = None;
                return Poll::Pending;
            };
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
            if timer.deadline() != at {
                timer.as_mut().reset(at);
            }
            ready!(Future::poll(timer.as_mut(), cx));
            self.timer = None;
        }
    }
}

impl AsyncUdpSocket for Socket {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(Sender { attached: Arc::clone(&self.attached) })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut count = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta) {
            let arrival = match self.poll_arrival(cx) {
                Poll::Ready(arrival) => arrival,
                Poll::Pending if count > 0 => break,
                Poll::Pending => return Poll::Pending,
            };
            let length = arrival.bytes.len().min(buf.len());
            buf[..length].copy_from_slice(&arrival.bytes[..length]);
            *meta = RecvMeta::default();
            meta.addr = arrival.from;
            meta.len = length;
            meta.stride = length;
            meta.ecn = arrival.ecn.and_then(EcnCodepoint::from_bits);
            meta.dst_ip = Some(self.attached.local.ip());
            count += 1;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.attached.local)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Sender {
    attached: Arc<Attached>,
}

impl UdpSender for Sender {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        _cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let ecn = transmit.ecn.map(|ecn| ecn as u8);
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        for datagram in transmit.contents.chunks(size) {
            self.attached.send(transmit.destination, ecn, datagram);
        }
        Poll::Ready(Ok(()))
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        SEGMENTS
    }
}
