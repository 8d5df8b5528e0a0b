//! PTO filter: one probe for each probe timeout in place of two, and the verdicts of the gate.
//!
//! At a probe timeout the library sends two packets with nothing but a PING at once. RFC 9002, section 6.2.4, asks for
//! one ack-eliciting packet and permits the second. Behind a policer with one token left the second takes the token
//! that the retransmission would need a round trip later, and since the timers repeat, it does so for ever. So only the
//! second leaves: its acknowledgement shows that the first is lost.
//!
//! Only a batch of datagrams of one size counts, each of at most [`TINY`] bytes:
//! - Within a batch nothing new arrives, so a packet that is not full takes all there is to send: acknowledgements,
//!   data and control frames. Another one after it has no content but a PING.
//! - Without segmentation offload both probes leave: nothing shows that they belong together.
//!
//! Parts of a batch that the gate withholds do not leave, or leave later.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use noq::udp::{RecvMeta, Transmit};
use noq::{AsyncUdpSocket, UdpSender};

use super::controller::Datagram;
use super::controller::datagram_filter::{self, Filtered};

/// Upper bound of the bytes of a datagram with nothing but a PING: one byte of flags, a connection ID of eight, four of
/// packet number, the frame, and a tag of 16.
const TINY: usize = 30;

/// Socket with a filter before it.
#[derive(Debug)]
pub(in crate::quic) struct PtoFilter {
    socket: Box<dyn AsyncUdpSocket>,
}

impl PtoFilter {
    pub(in crate::quic) fn new(socket: Box<dyn AsyncUdpSocket>) -> Self {
        Self { socket }
    }
}

impl AsyncUdpSocket for PtoFilter {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        let (sender, spare) = (self.socket.create_sender(), Some(self.socket.create_sender()));
        Box::pin(PtoFilterSender { sender, spare, unsent: VecDeque::new() })
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

#[derive(Debug)]
struct PtoFilterSender {
    sender: Pin<Box<dyn UdpSender>>,
    /// Sender of the same socket for the first deferred datagram.
    spare: Option<Pin<Box<dyn UdpSender>>>,
    /// Parts of a filtered batch that the socket had no room for. The library offers a batch again until all of it is
    /// sent.
    unsent: VecDeque<Range<usize>>,
}

/// Returns the second datagram if all of a batch hold nothing but a PING.
///
/// Its acknowledgement shows that the first is lost; padding behind the two elicits none.
fn probe<'a>(transmit: &Transmit<'a>) -> Option<&'a [u8]> {
    let (size, length) = (transmit.segment_size?, transmit.contents.len());
    let are_tiny = 0 < size && size <= TINY && size < length && length.is_multiple_of(size);
    are_tiny.then(|| transmit.contents.get(size..2 * size)).flatten()
}

/// A part of a batch as a batch of its own.
fn part<'a>(transmit: &Transmit<'a>, contents: &'a [u8]) -> Transmit<'a> {
    Transmit {
        destination: transmit.destination,
        ecn: transmit.ecn,
        contents,
        segment_size: transmit.segment_size.filter(|size| *size < contents.len()),
        src_ip: transmit.src_ip,
    }
}

impl PtoFilterSender {
    /// Sends the parts that are left of a filtered batch.
    fn poll_unsent(&mut self, transmit: &Transmit<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(range) = self.unsent.front().cloned() {
            if let Some(contents) = transmit.contents.get(range) {
                let sent = ready!(self.sender.as_mut().poll_send(&part(transmit, contents), cx));
                sent.inspect_err(|_| self.unsent.clear())?;
            }
            self.unsent.pop_front();
        }
        Poll::Ready(Ok(()))
    }
}

impl UdpSender for PtoFilterSender {
    fn poll_send(
        mut self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unsent.is_empty() {
            return self.poll_unsent(transmit, cx);
        }
        if let Some(Filtered { permitted, deferred }) = datagram_filter::take(transmit.contents.len()) {
            if let Some(deferred) = deferred
                && let Some(contents) = transmit.contents.get(deferred.range)
            {
                let datagram = Datagram::new(deferred.number, contents, transmit);
                deferred.gate.defer(datagram, self.spare.take());
            }
            self.unsent = permitted;
            return self.poll_unsent(transmit, cx);
        }
        match probe(transmit) {
            Some(contents) => self.sender.as_mut().poll_send(&part(transmit, contents), cx),
            None => self.sender.as_mut().poll_send(transmit, cx),
        }
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        self.sender.max_transmit_segments()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::task::Waker;

    use super::*;
    use crate::quic::congestion::controller::SharedGate;
    use crate::quic::congestion::controller::datagram_filter::DeferredPart;

    /// Transmits that a socket has sent, as contents and segment size.
    type Sent = Arc<Mutex<Vec<(Vec<u8>, Option<usize>)>>>;

    #[derive(Debug, Default)]
    struct Recorder {
        sent: Sent,
        /// Calls of `poll_send` until one that finds the socket full.
        full_at: Option<usize>,
    }

    impl UdpSender for Recorder {
        fn poll_send(
            mut self: Pin<&mut Self>,
            transmit: &Transmit<'_>,
            _: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            self.full_at = self.full_at.and_then(|calls| calls.checked_sub(1));
            if self.full_at == Some(0) {
                return Poll::Pending;
            }
            let sent = (transmit.contents.to_vec(), transmit.segment_size);
            self.sent.lock().expect("lock").push(sent);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncUdpSocket for Recorder {
        fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
            Box::pin(Self { sent: Arc::clone(&self.sent), full_at: self.full_at })
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

    /// Sends `length` bytes in segments of this size, each byte being its index, and returns what leaves.
    fn sent(length: u8, segment_size: Option<usize>) -> (Vec<u8>, Option<usize>) {
        let recorder = Recorder::default();
        let sent = Arc::clone(&recorder.sent);
        let mut sender = PtoFilter::new(Box::new(recorder)).create_sender();
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
    fn the_second_of_two_probes_is_sent() {
        for length in [58, 87] {
            assert_eq!(sent(length, Some(29)), ((29..58).collect(), None));
        }
    }

    #[test]
    fn a_batch_without_a_second_probe_is_sent() {
        let cases = [(62, Some(31)), (50, Some(29)), (29, Some(29)), (29, None), (0, Some(0))];
        for (length, segment_size) in cases {
            assert_eq!(sent(length, segment_size), ((0..length).collect(), segment_size));
        }
    }

    /// A full socket must not lose the parts behind the first, and a retry must send nothing twice.
    #[test]
    fn each_permitted_part_leaves_once_though_the_socket_is_full_meanwhile() {
        let recorder = Recorder { full_at: Some(2), ..Recorder::default() };
        let sent = Arc::clone(&recorder.sent);
        let mut sender = PtoFilter::new(Box::new(recorder)).create_sender();
        let gate = SharedGate::new(0, 2, None);
        let contents: Vec<u8> = (0..100).collect();
        let transmit = Transmit {
            destination: SocketAddr::from(([10, 0, 0, 1], 2)),
            ecn: None,
            contents: &contents,
            segment_size: Some(50),
            src_ip: None,
        };
        datagram_filter::withhold(20..40);
        datagram_filter::withhold(60..80);
        datagram_filter::defer(DeferredPart { range: 20..40, number: 7, gate: Arc::clone(&gate) });
        datagram_filter::complete(100);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(sender.as_mut().poll_send(&transmit, &mut cx).is_pending(), "the second part does not leave");
        assert_eq!(gate.take_deferred(), Some(7));
        assert!(sender.as_mut().poll_send(&transmit, &mut cx).is_ready());
        assert_eq!(gate.take_deferred(), None, "deferred twice");
        let parts = [0..20, 40..60, 80..100].map(|part| (part.collect(), None));
        assert_eq!(*sent.lock().expect("lock"), parts);
        assert!(sender.as_mut().poll_send(&transmit, &mut cx).is_ready());
        assert_eq!(sent.lock().expect("lock").last(), Some(&(contents.clone(), Some(50))), "the next batch");
    }
}
