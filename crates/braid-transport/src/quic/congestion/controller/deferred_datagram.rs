//! The datagram that a gate keeps until it may leave.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use noq::UdpSender;
use noq::udp::{EcnCodepoint, Transmit};

/// A datagram that was not sent with its batch.
#[derive(Debug)]
pub(in crate::quic) struct Datagram {
    /// Of its packet.
    number: u64,
    contents: Vec<u8>,
    destination: SocketAddr,
    source: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
}

impl Datagram {
    /// The packet of this number, and where its batch goes.
    pub(in crate::quic) fn new(number: u64, contents: &[u8], batch: &Transmit<'_>) -> Self {
        let (destination, source, ecn) = (batch.destination, batch.src_ip, batch.ecn);
        Self { number, contents: contents.to_vec(), destination, source, ecn }
    }
}

/// What is kept, and what sends it: the library's own sender is not at hand between its packets.
#[derive(Debug, Default)]
pub(super) struct Leaving(Mutex<Parts>);

#[derive(Debug, Default)]
struct Parts {
    sender: Option<Pin<Box<dyn UdpSender>>>,
    datagram: Option<Datagram>,
}

impl Leaving {
    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In place of what was kept before. `sender`: one of the socket that sends the rest of the batch, if that is
    /// another one.
    pub(super) fn keep(&self, datagram: Datagram, sender: Option<Pin<Box<dyn UdpSender>>>) {
        let mut parts = self.lock();
        parts.datagram = Some(datagram);
        if sender.is_some() {
            parts.sender = sender;
        }
    }

    /// The number of the packet that is kept.
    pub(super) fn number(&self) -> Option<u64> {
        self.lock().datagram.as_ref().map(|datagram| datagram.number)
    }

    /// The packet of this number is not sent.
    pub(super) fn forget(&self, number: u64) {
        self.lock().datagram.take_if(|datagram| datagram.number == number);
    }

    /// Nor does the socket send any more that there was.
    pub(super) fn reset(&self) {
        *self.lock() = Parts::default();
    }

    /// Sends the packet of this number. What cannot be sent is lost, as in a network.
    pub(super) async fn send(&self, number: u64) {
        let (sender, datagram) = {
            let mut parts = self.lock();
            let datagram = parts.datagram.take_if(|datagram| datagram.number == number);
            (datagram.is_some().then(|| parts.sender.take()).flatten(), datagram)
        };
        let (Some(mut sender), Some(datagram)) = (sender, datagram) else { return };
        let Datagram { contents, destination, source, ecn, .. } = datagram;
        let transmit = Transmit { destination, ecn, contents: &contents, segment_size: None, src_ip: source };
        if let Err(error) = poll_fn(|cx| sender.as_mut().poll_send(&transmit, cx)).await {
            tracing::debug!(%error, "a packet that was kept is lost");
        }
        self.lock().sender.get_or_insert(sender);
    }
}
