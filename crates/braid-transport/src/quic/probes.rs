//! One probe for each probe timeout, in place of two.
//!
//! When acknowledgements stay away for a probe timeout, the library sends two packets with nothing
//! but a PING, at one instant. RFC 9002, section 6.2.4, asks for one ack-eliciting packet and
//! permits the second. Behind a policer that has one token left, the second is worse than useless:
//! it takes the token that the repetition of what was lost would need a round trip later, and since
//! the timers repeat, it does so for ever. So the sender keeps the second one back. To the library
//! it is a packet that was lost.
//!
//! What is kept back can be nothing else. Only a datagram of at most [`TINY`] bytes that equals in
//! size the one before it, to the same destination, in the same burst of the same connection, counts:
//! - The library makes a sender for each connection, so connections that share a socket share no
//!   state here.
//! - Within a burst nothing new arrives, so a packet that is not full takes all there is to send:
//!   acknowledgements, data and control frames. Another one after it has no content but a PING.
//! - A burst begins when the library asks for the number of segments, as it does once before it sends
//!   all it has. Should it ever cease to ask, [`BURST`] bounds what could be mistaken: then two
//!   acknowledgements may look alike, to peers that ask for no connection ID; with an ID of eight bytes,
//!   the smallest acknowledgement has 31.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use noq::udp::{RecvMeta, Transmit};
use noq::{AsyncUdpSocket, UdpSender};
use tokio::time::Instant;

/// Bytes of a datagram with nothing but a PING, at most: one byte of flags, a connection ID of
/// eight, four of packet number, the frame, and a tag of 16.
const TINY: usize = 30;

/// A burst does not last so long.
const BURST: Duration = Duration::from_millis(1);

/// A socket that sends one probe in place of two.
pub(super) struct Thinned {
    socket: Box<dyn AsyncUdpSocket>,
}

impl Thinned {
    pub(super) fn new(socket: Box<dyn AsyncUdpSocket>) -> Self {
        Self { socket }
    }
}

impl AsyncUdpSocket for Thinned {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        let sender = self.socket.create_sender();
        Box::pin(ThinnedSender { sender, begins: AtomicBool::new(true), last: None })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_recv(cx, bufs, meta)
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

/// Sends for one connection.
struct ThinnedSender {
    sender: Pin<Box<dyn UdpSender>>,
    /// A burst begins with the next datagram.
    begins: AtomicBool,
    /// The last datagram of the burst, if it was tiny.
    last: Option<Tiny>,
}

#[derive(Clone, Copy)]
struct Tiny {
    at: Instant,
    to: SocketAddr,
    size: usize,
}

impl Tiny {
    /// What `transmit` consists of, if its datagrams are all tiny and of one size.
    fn of(transmit: &Transmit<'_>) -> Option<Self> {
        let length = transmit.contents.len();
        let size = transmit.segment_size.unwrap_or(length);
        let is_tiny = 0 < size && size <= TINY && length.is_multiple_of(size);
        is_tiny.then(|| Self { at: Instant::now(), to: transmit.destination, size })
    }

    fn repeats(self, last: Self) -> bool {
        self.to == last.to && self.size == last.size && self.at.duration_since(last.at) < BURST
    }
}

impl UdpSender for ThinnedSender {
    fn poll_send(
        mut self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let tiny = Tiny::of(transmit);
        let last = if self.begins.swap(false, Ordering::Relaxed) { None } else { self.last };
        let Some(tiny) = tiny else {
            self.last = None;
            return self.sender.as_mut().poll_send(transmit, cx);
        };
        if last.is_some_and(|last| tiny.repeats(last)) {
            return Poll::Ready(Ok(()));
        }
        // The last one: when it is acknowledged, those before it are known to be lost. Were it the first, the library
        // would wait for the others until its next timeout, and probe again, for as long as the connection lives.
        let before = transmit.contents.len() - tiny.size;
        let one = Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn,
            contents: transmit.contents.get(before..).unwrap_or_default(),
            segment_size: None,
            src_ip: transmit.src_ip,
        };
        let sent = self.sender.as_mut().poll_send(&one, cx);
        self.last = sent.is_ready().then_some(tiny);
        sent
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        self.begins.store(true, Ordering::Relaxed);
        self.sender.max_transmit_segments()
    }
}

impl fmt::Debug for Thinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

impl fmt::Debug for ThinnedSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sender.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::task::Waker;

    use super::*;

    /// The size of each transmit and its segments, as a socket would send them.
    type Sent = Arc<Mutex<Vec<(usize, Option<usize>)>>>;

    #[derive(Debug, Default)]
    struct Recorder {
        sent: Sent,
        full: Arc<AtomicBool>,
    }

    impl UdpSender for Recorder {
        fn poll_send(
            self: Pin<&mut Self>,
            transmit: &Transmit<'_>,
            _: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            if self.full.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            self.sent.lock().expect("lock").push((transmit.contents.len(), transmit.segment_size));
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncUdpSocket for Recorder {
        fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
            Box::pin(Self { sent: Arc::clone(&self.sent), full: Arc::clone(&self.full) })
        }

        fn poll_recv(
            &mut self,
            _: &mut Context<'_>,
            _: &mut [IoSliceMut<'_>],
            _: &mut [RecvMeta],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(address(1))
        }
    }

    struct Rig {
        socket: Thinned,
        sent: Sent,
        full: Arc<AtomicBool>,
    }

    impl Rig {
        fn new() -> Self {
            let recorder = Recorder::default();
            let (sent, full) = (Arc::clone(&recorder.sent), Arc::clone(&recorder.full));
            Self { socket: Thinned::new(Box::new(recorder)), sent, full }
        }

        fn sent(&self) -> Vec<usize> {
            self.sent.lock().expect("lock").drain(..).map(|(length, _)| length).collect()
        }
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn send(
        sender: &mut Pin<Box<dyn UdpSender>>,
        port: u16,
        length: usize,
        segment_size: Option<usize>,
    ) -> bool {
        let contents = vec![0; length];
        let transmit = Transmit {
            destination: address(port),
            ecn: None,
            contents: &contents,
            segment_size,
            src_ip: None,
        };
        sender.as_mut().poll_send(&transmit, &mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_probes_one_is_sent() {
        let rig = Rig::new();
        let mut sender = rig.socket.create_sender();
        for _ in 0..2 {
            sender.max_transmit_segments();
            assert!(send(&mut sender, 2, 29, None) && send(&mut sender, 2, 29, None));
        }
        assert_eq!(rig.sent(), [29, 29], "one in each burst");
        sender.max_transmit_segments();
        assert!(send(&mut sender, 2, 87, Some(29)));
        assert_eq!(*rig.sent.lock().expect("lock"), [(29, None)], "of segments, too");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_a_second_probe_is_sent() {
        let rig = Rig::new();
        let mut sender = rig.socket.create_sender();
        let mut all = |transmits: &[(u16, usize, Option<usize>)]| {
            sender.max_transmit_segments();
            for (port, length, segment) in transmits {
                assert!(send(&mut sender, *port, *length, *segment));
            }
            rig.sent()
        };
        assert_eq!(all(&[(2, 31, None), (2, 31, None)]), [31, 31], "an acknowledgement");
        assert_eq!(all(&[(2, 62, Some(31))]), [62]);
        assert_eq!(all(&[(2, 29, None), (2, 30, None)]), [29, 30], "another size");
        assert_eq!(all(&[(2, 50, Some(29))]), [50]);
        assert_eq!(all(&[(2, 29, None), (3, 29, None)]), [29, 29], "another destination");
        assert_eq!(
            all(&[(2, 29, None), (2, 1200, None), (2, 29, None)]),
            [29, 1200, 29],
            "something between"
        );
        assert_eq!(all(&[(2, 0, None), (2, 0, Some(0))]), [0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_on_one_socket_do_not_mind_each_other() {
        let rig = Rig::new();
        let (mut one, mut other) = (rig.socket.create_sender(), rig.socket.create_sender());
        assert!(send(&mut one, 2, 29, None) && send(&mut other, 2, 29, None));
        assert_eq!(rig.sent(), [29, 29]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_comes_later_is_sent() {
        let rig = Rig::new();
        let mut sender = rig.socket.create_sender();
        assert!(send(&mut sender, 2, 29, None));
        tokio::time::advance(BURST).await;
        assert!(send(&mut sender, 2, 29, None));
        assert_eq!(rig.sent(), [29, 29]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_had_to_wait_for_the_socket_is_sent() {
        let rig = Rig::new();
        let mut sender = rig.socket.create_sender();
        rig.full.store(true, Ordering::Relaxed);
        assert!(!send(&mut sender, 2, 29, None));
        rig.full.store(false, Ordering::Relaxed);
        assert!(send(&mut sender, 2, 29, None));
        assert_eq!(rig.sent(), [29]);
    }
}
