//! One probe for each probe timeout, in place of two.
//!
//! When acknowledgements stay away for a probe timeout, the library sends two packets with nothing
//! but a PING, at one instant. RFC 9002, section 6.2.4, asks for one ack-eliciting packet and
//! permits the second. Behind a policer that has one token left, two are worse than useless: the
//! second takes the token that the repetition of what was lost would need a round trip later, and since
//! the timers repeat, it does so for ever. So one leaves: the second, whose acknowledgement tells that the first is lost.
//!
//! What is kept back can be nothing else. Only a batch of datagrams of one size, each of at most [`TINY`] bytes, counts:
//! - Within a batch nothing new arrives, so a packet that is not full takes all there is to send: acknowledgements, data
//!   and control frames. Another one after it has no content but a PING.
//! - Where the system does not send in batches, both probes go: they are not known to belong together.
//!
//! What a gate keeps back of a batch stays here too, or leaves later.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::task::{Context, Poll};

use noq::udp::{RecvMeta, Transmit};
use noq::{AsyncUdpSocket, UdpSender};

use super::controller::{self, Datagram, Kept};

/// Bytes of a datagram with nothing but a PING, at most: one byte of flags, a connection ID of
/// eight, four of packet number, the frame, and a tag of 16.
const TINY: usize = 30;

/// A socket that sends one probe in place of two.
pub(in crate::quic) struct Thinned {
    socket: Box<dyn AsyncUdpSocket>,
}

impl Thinned {
    pub(in crate::quic) fn new(socket: Box<dyn AsyncUdpSocket>) -> Self {
        Self { socket }
    }
}

impl AsyncUdpSocket for Thinned {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        let (sender, spare) = (self.socket.create_sender(), Some(self.socket.create_sender()));
        Box::pin(ThinnedSender { sender, spare })
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

struct ThinnedSender {
    sender: Pin<Box<dyn UdpSender>>,
    /// Of the same socket, for the first packet that leaves later than its batch.
    spare: Option<Pin<Box<dyn UdpSender>>>,
}

/// The second datagram of `transmit`, if it is a batch of datagrams with nothing but a PING.
///
/// Its acknowledgement tells that the first is lost; what fills the batch behind the two asks for none.
fn probe<'a>(transmit: &Transmit<'a>) -> Option<&'a [u8]> {
    let (size, length) = (transmit.segment_size?, transmit.contents.len());
    let are_tiny = 0 < size && size <= TINY && size < length && length.is_multiple_of(size);
    are_tiny.then(|| transmit.contents.get(size..2 * size)).flatten()
}

impl ThinnedSender {
    /// Sends what is to leave of a batch. A socket that is full meanwhile loses the rest, as a network may.
    fn send_kept(
        &mut self,
        kept: Kept,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(later) = kept.later
            && let Some(contents) = transmit.contents.get(later.range)
        {
            later.gate.keep(Datagram::new(later.number, contents, transmit), self.spare.take());
        }
        for range in kept.now {
            let Some(contents) = transmit.contents.get(range) else { continue };
            let part = Transmit {
                destination: transmit.destination,
                ecn: transmit.ecn,
                contents,
                segment_size: transmit.segment_size.filter(|size| *size < contents.len()),
                src_ip: transmit.src_ip,
            };
            if let Poll::Ready(Err(error)) = self.sender.as_mut().poll_send(&part, cx) {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl UdpSender for ThinnedSender {
    fn poll_send(
        mut self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(kept) = controller::kept(transmit.contents.len()) {
            return self.send_kept(kept, transmit, cx);
        }
        let Some(contents) = probe(transmit) else {
            return self.sender.as_mut().poll_send(transmit, cx);
        };
        let one = Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn,
            contents,
            segment_size: None,
            src_ip: transmit.src_ip,
        };
        self.sender.as_mut().poll_send(&one, cx)
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
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

    /// What a socket was asked to send.
    type Sent = Arc<Mutex<Vec<(Vec<u8>, Option<usize>)>>>;

    #[derive(Debug, Default)]
    struct Recorder {
        sent: Sent,
    }

    impl UdpSender for Recorder {
        fn poll_send(
            self: Pin<&mut Self>,
            transmit: &Transmit<'_>,
            _: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            let sent = (transmit.contents.to_vec(), transmit.segment_size);
            self.sent.lock().expect("lock").push(sent);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncUdpSocket for Recorder {
        fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
            Box::pin(Self { sent: Arc::clone(&self.sent) })
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
            Ok(SocketAddr::from(([10, 0, 0, 1], 1)))
        }
    }

    /// What leaves when the library sends `length` bytes in segments of this size: each byte is the number of its place.
    fn sent(length: u8, segment_size: Option<usize>) -> (Vec<u8>, Option<usize>) {
        let recorder = Recorder::default();
        let sent = Arc::clone(&recorder.sent);
        let mut sender = Thinned::new(Box::new(recorder)).create_sender();
        let contents: Vec<u8> = (0..length).collect();
        let transmit = Transmit {
            destination: SocketAddr::from(([10, 0, 0, 1], 2)),
            ecn: None,
            contents: &contents,
            segment_size,
            src_ip: None,
        };
        let mut cx = Context::from_waker(Waker::noop());
        assert!(sender.as_mut().poll_send(&transmit, &mut cx).is_ready());
        let mut sent = sent.lock().expect("lock");
        assert_eq!(sent.len(), 1);
        sent.remove(0)
    }

    #[test]
    fn of_two_probes_the_second_is_sent() {
        for length in [58, 87] {
            assert_eq!(sent(length, Some(29)), ((29..58).collect(), None));
        }
    }

    #[test]
    fn what_is_not_a_second_probe_is_sent() {
        let cases = [(62, Some(31)), (50, Some(29)), (29, Some(29)), (29, None), (0, Some(0))];
        for (length, segment_size) in cases {
            assert_eq!(sent(length, segment_size), ((0..length).collect(), segment_size));
        }
    }
}
