//! From an established QUIC connection to a link.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use noq::crypto::rustls::HandshakeData;
use noq::{Connection, Endpoint, RecvStream, SendStream, VarInt};
use rustls::pki_types::CertificateDer;

use super::congestion::controller::SharedGate;
use super::connection::Multi;
use super::runtime::Failures;
use crate::link::{Link, Peer, Transport};
use crate::tls;

/// Bytes that a client may send over all streams beyond what was read, until it is trusted: room for
/// a first flight, and little for who connects many times and says nothing.
pub(super) const UNTRUSTED_WINDOW: VarInt = VarInt::from_u32(128 << 10);

/// A connection that carries MQTT now.
pub(super) struct Established {
    /// The client's first bidirectional stream.
    pub(super) control: (SendStream, RecvStream),
    pub(super) connection: Connection,
    /// The peer's.
    pub(super) address: SocketAddr,
    /// A client's own endpoint, which serves this connection alone.
    pub(super) endpoint: Option<Endpoint>,
    /// Tells of panics at this endpoint.
    pub(super) failures: Failures,
    /// What the connection was configured with.
    pub(super) send_window: u64,
    pub(super) gate: Option<Arc<SharedGate>>,
    /// Resolves when the handshake is confirmed; `None` if it is.
    pub(super) confirmed: Option<Confirmed>,
}

pub(super) type Confirmed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The link of this connection.
pub(super) fn link(established: Established) -> Link {
    let connection = &established.connection;
    let mut peer = Peer::plain(Transport::Quic, Some(established.address));
    peer.tls_version = Some("TLSv1.3");
    peer.alpn = protocol(connection);
    peer.certificate = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok())
        .and_then(|chain| tls::leaf(Some(&chain)));
    Link::Multi(Multi::new(peer, established))
}

fn protocol(connection: &Connection) -> Option<Box<str>> {
    let handshake = connection.handshake_data()?.downcast::<HandshakeData>().ok()?;
    Some(String::from_utf8_lossy(&handshake.protocol?).into())
}
