//! Tests of the socket over one that is full at times.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use super::*;

/// A socket in memory. Clones are one socket.
#[derive(Clone, Debug, Default)]
struct Fake {
    /// Lengths of the datagrams that were sent.
    sent: Arc<Mutex<Vec<usize>>>,
    /// True for each next send that finds no room.
    full: Arc<Mutex<VecDeque<bool>>>,
    /// Datagrams to receive.
    arrivals: Arc<Mutex<VecDeque<Vec<u8>>>>,
}

impl Fake {
    fn sent(&self) -> Vec<usize> {
        std::mem::take(&mut *self.sent.lock().expect("lock"))
    }
}

impl UdpSender for Fake {
    fn poll_send(self: Pin<&mut Self>, transmit: &Transmit<'_>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.full.lock().expect("lock").pop_front() == Some(true) {
            return Poll::Pending;
        }
        let size = transmit.segment_size.unwrap_or(transmit.contents.len());
        self.sent.lock().expect("lock").extend(transmit.contents.chunks(size).map(<[u8]>::len));
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Fake {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(self.clone())
    }

    fn poll_recv(
        &mut self,
        _: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let Some(datagram) = self.arrivals.lock().expect("lock").pop_front() else { return Poll::Pending };
        bufs[0][..datagram.len()].copy_from_slice(&datagram);
        meta[0] = RecvMeta::default();
        (meta[0].addr, meta[0].len, meta[0].stride) = (client(), datagram.len(), datagram.len());
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([10, 0, 0, 1], 1)))
    }
}

fn client() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 1))
}

/// A datagram of this first byte and length comes from the client.
fn receive(fake: &Fake, socket: &mut dyn AsyncUdpSocket, first: u8, length: usize) {
    let mut datagram = vec![0; length];
    datagram[0] = first;
    fake.arrivals.lock().expect("lock").push_back(datagram);
    let (mut buffer, mut meta) = (vec![0; 2000], [RecvMeta::default()]);
    let mut cx = Context::from_waker(Waker::noop());
    let received = socket.poll_recv(&mut cx, &mut [IoSliceMut::new(&mut buffer)], &mut meta);
    assert!(matches!(received, Poll::Ready(Ok(1))));
}

/// Sends datagrams of 1,200 bytes with this first byte to the client.
fn send(sender: &mut Pin<Box<dyn UdpSender>>, first: u8, count: usize) -> bool {
    let mut contents = vec![0; 1200 * count];
    contents[0] = first;
    let transmit = Transmit {
        destination: client(),
        ecn: None,
        contents: &contents,
        segment_size: Some(1200),
        src_ip: None,
    };
    let mut cx = Context::from_waker(Waker::noop());
    sender.as_mut().poll_send(&transmit, &mut cx).is_ready()
}

#[test]
fn datagrams_above_the_limit_leave_when_it_allows() {
    let (fake, limit) = (Fake::default(), AmplificationLimit::default());
    let mut socket = limit.limited(Box::new(fake.clone()));
    let mut sender = socket.create_sender();
    let connection = limit.connection(client(), false);
    receive(&fake, &mut *socket, 0xC0, 1300);

    fake.full.lock().expect("lock").push_back(true);
    assert!(!send(&mut sender, 0xC0, 4), "the socket is full");
    assert!(send(&mut sender, 0xC0, 4), "the fourth is deferred");
    assert_eq!(fake.sent(), [1200; 3], "an attempt without room costs nothing");
    receive(&fake, &mut *socket, 0xC0, 299);
    assert!(fake.sent().is_empty());
    receive(&fake, &mut *socket, 0xC0, 1);
    assert_eq!(fake.sent(), [1200], "deferred once");

    assert!(send(&mut sender, 0x40, 1));
    assert!(fake.sent().is_empty(), "a short header is no way around the limit");
    connection.validate();
    assert_eq!(fake.sent(), [1200]);
    for first in [0xC0, 0x40] {
        assert!(send(&mut sender, first, 10));
        assert_eq!(fake.sent(), [1200; 10]);
    }
    drop(connection);
    assert!(send(&mut socket.create_sender(), 0xC0, 1));
    assert!(fake.sent().is_empty(), "the connection has ended");
}
