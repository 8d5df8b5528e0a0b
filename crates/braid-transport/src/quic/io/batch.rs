//! Batches of datagrams: of the library, for the socket, and kept.

use std::net::{IpAddr, SocketAddr};

use noq_udp::{EcnCodepoint, Transmit};

/// Batch of datagrams with its own bytes.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    contents: Vec<u8>,
    destination: SocketAddr,
    ecn: Option<EcnCodepoint>,
    segment_size: Option<usize>,
    src_ip: Option<IpAddr>,
}

impl Batch {
    /// A copy.
    pub(super) fn of(batch: &Transmit<'_>) -> Self {
        let Transmit { destination, ecn, contents, segment_size, src_ip } = *batch;
        Self { contents: contents.to_vec(), destination, ecn, segment_size, src_ip }
    }

    pub(super) fn transmit(&self) -> Transmit<'_> {
        let Self { ref contents, destination, ecn, segment_size, src_ip } = *self;
        Transmit { destination, ecn, contents, segment_size, src_ip }
    }
}

/// A batch of the library as one for the socket.
pub(super) fn of<'a>(transmit: &noq_proto::Transmit, contents: &'a [u8]) -> Transmit<'a> {
    Transmit {
        destination: transmit.destination,
        ecn: transmit.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
        contents: contents.get(..transmit.size).unwrap_or(contents),
        segment_size: transmit.segment_size,
        src_ip: transmit.src_ip,
    }
}
