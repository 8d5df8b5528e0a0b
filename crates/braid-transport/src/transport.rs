//! Transports, their peers, and the actions of a peer on a link.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use braid_proto::stream::StreamKey;

use crate::certificate;
use crate::quic::PathNotice;

/// Action of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A stream of the peer that was not seen before; its bytes come with later reads. Never the
    /// control stream.
    Opened(StreamKey),
    /// Bytes of this stream are in the buffer.
    Bytes(StreamKey),
    /// One whole datagram of QUIC (RFC 9221) is in the buffer. Only with
    /// [`QuicOptions::datagrams`](crate::quic::QuicOptions::datagrams), and while the control stream is wanted: those
    /// for which there is no room are dropped, the oldest first.
    Datagram,
    /// FIN after the last byte of this data stream.
    Finished(StreamKey),
    /// RESET_STREAM on this data stream, with the peer's code.
    Reset(StreamKey, u64),
    /// STOP_SENDING for this data stream, with the peer's code. Its sending half has ended: it was
    /// reset with the same code.
    Stopped(StreamKey, u64),
    /// The handshake is confirmed: bytes before it may have been early (0-RTT) data. At most once, and only if
    /// [`Link::is_early`](crate::Link::is_early) was true.
    Confirmed,
    /// The peer has another address now, and it is validated.
    Moved(SocketAddr),
    /// A path of this client, one of several, has changed.
    Path(PathNotice),
    /// The peer ended the link in order: EOF of a single stream, FIN of the control stream, CONNECTION_CLOSE 0. All
    /// bytes before it on streams that are wanted were read.
    Closed,
}

/// Directions of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dir {
    /// Both ways.
    Bidi,
    /// From the end that opened it to the other.
    Uni,
}

/// Close of a link by this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// The application code of CONNECTION_CLOSE: one of [`codes`](crate::quic::codes).
    pub code: u32,
    /// MQTT Reason Code for STOP_SENDING on every stream, once the peer has all that was written: nothing more is read.
    pub stop: Option<u8>,
}

/// Transport of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Plain TCP.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// WebSocket over TCP.
    Ws,
    /// WebSocket over TLS.
    Wss,
    /// QUIC.
    Quic,
    /// Inside this process.
    // The last one: the length of `ALL` is counted from it.
    Mem,
}

impl Transport {
    /// Every transport, in the order in which a server binds them.
    pub const ALL: [Self; Self::Mem as usize + 1] =
        [Self::Tcp, Self::Ws, Self::Tls, Self::Wss, Self::Quic, Self::Mem];

    /// The scheme of this transport's URLs.
    #[must_use]
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::Tcp => "mqtt",
            Self::Tls => "mqtts",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::Quic => "quic",
            Self::Mem => "mem",
        }
    }

    /// Schemes of URLs in upper or lower case, the one of [`Transport::scheme`] first; the others are known from other
    /// clients. Empty for [`Transport::Mem`], which has no address.
    const fn url_schemes(self) -> &'static [&'static str] {
        match self {
            Self::Tcp => &["mqtt", "tcp"],
            Self::Tls => &["mqtts", "ssl", "tls"],
            Self::Ws => &["ws"],
            Self::Wss => &["wss"],
            Self::Quic => &["quic"],
            Self::Mem => &[],
        }
    }

    /// The transport that a URL's scheme names, in upper or lower case. `None`: no transport with an address has this
    /// name.
    #[must_use]
    pub fn from_scheme(scheme: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|transport| transport.url_schemes().iter().any(|name| name.eq_ignore_ascii_case(scheme)))
    }

    /// Port of a URL without one. 0 for [`Transport::Mem`].
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Tcp => 1883,
            Self::Tls => 8883,
            Self::Ws => 8083,
            Self::Wss => 8084,
            Self::Quic => 14567,
            Self::Mem => 0,
        }
    }

    /// True for WebSocket, the only transport whose URLs have a path.
    #[must_use]
    pub const fn is_websocket(self) -> bool {
        match self {
            Self::Ws | Self::Wss => true,
            Self::Tcp | Self::Tls | Self::Quic | Self::Mem => false,
        }
    }

    /// True if the bytes are encrypted.
    #[must_use]
    pub const fn is_encrypted(self) -> bool {
        match self {
            Self::Tls | Self::Wss | Self::Quic => true,
            Self::Tcp | Self::Ws | Self::Mem => false,
        }
    }

    /// True if the bytes are carried by TCP: options of TCP apply.
    #[must_use]
    pub const fn is_over_tcp(self) -> bool {
        match self {
            Self::Tcp | Self::Tls | Self::Ws | Self::Wss => true,
            Self::Quic | Self::Mem => false,
        }
    }

    /// True for QUIC: its options apply, and a link has more than one stream.
    #[must_use]
    pub const fn is_quic(self) -> bool {
        match self {
            Self::Quic => true,
            Self::Tcp | Self::Tls | Self::Ws | Self::Wss | Self::Mem => false,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Ws | Self::Wss | Self::Quic | Self::Mem => self.scheme(),
        })
    }
}

/// Other end of a link, as far as the transport knows it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address, an IPv4 one never in its IPv6 form. `None` for in-memory links. Behind a proxy that of the client, as
    /// the PROXY header has it, or of the proxy itself if the connection is its own.
    pub address: Option<SocketAddr>,
    /// Address of the proxy whose PROXY header the connection began with.
    pub proxy: Option<SocketAddr>,
    /// Transport of its bytes.
    pub transport: Transport,
    /// Certificate that it proved to own. Always `None` without TLS.
    pub certificate: Option<PeerCertificate>,
    /// `TLSv1.2` or `TLSv1.3`.
    pub tls_version: Option<&'static str>,
    /// Application protocol of the TLS handshake.
    pub alpn: Option<Box<str>>,
}

impl Peer {
    pub(crate) fn plain(transport: Transport, address: Option<SocketAddr>) -> Self {
        Self {
            address: address.map(canonical),
            proxy: None,
            transport,
            certificate: None,
            tls_version: None,
            alpn: None,
        }
    }
}

/// Verification of a client's certificate by the files of the server that are in force then.
pub(crate) trait VerifyAgain: Send + Sync {
    /// Tests whether a handshake with this certificate would fail.
    fn is_refused(&self, certificate: &[u8]) -> bool;
}

/// A certificate whose chain was verified in the handshake.
#[derive(Clone)]
pub struct PeerCertificate {
    /// The certificate as it was sent (X.509, DER).
    pub der: Box<[u8]>,
    /// `None` at a client.
    verification: Option<Arc<dyn VerifyAgain>>,
}

impl PeerCertificate {
    /// Certificate (X.509, DER) that is not verified again.
    #[must_use]
    pub fn new(der: &[u8]) -> Self {
        Self { der: der.into(), verification: None }
    }

    pub(crate) fn with_verification(self, verification: impl VerifyAgain + 'static) -> Self {
        Self { verification: Some(Arc::new(verification)), ..self }
    }

    /// Tests whether the server would refuse the certificate by now: it is on a revocation list, its authority is gone,
    /// or it has expired. Verifies signatures once after each change of authorities and lists. False at a client.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.verification.as_ref().is_some_and(|verification| verification.is_refused(&self.der))
    }

    /// Common Name of the subject. `None` if there is none, more than one, or one that is not plain text: an identity
    /// must not be ambiguous.
    #[must_use]
    pub fn common_name(&self) -> Option<&str> {
        certificate::common_name(&self.der)
    }

    /// The only entry of the Subject Alternative Name extension, if it is a DNS name, e-mail address or URI.
    #[must_use]
    pub fn only_alternative_name(&self) -> Option<&str> {
        certificate::only_alternative_name(&self.der)
    }

    /// SHA-256 over the DER, as colon-separated hexadecimal.
    #[must_use]
    pub fn fingerprint_sha256(&self) -> String {
        certificate::fingerprint_sha256(&self.der)
    }
}

impl PartialEq for PeerCertificate {
    fn eq(&self, other: &Self) -> bool {
        self.der == other.der
    }
}

impl Eq for PeerCertificate {}

impl fmt::Debug for PeerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerCertificate").field("der", &self.der).finish_non_exhaustive()
    }
}

/// A dual-stack socket reports IPv4 peers as `::ffff:a.b.c.d`; limits and logs want `a.b.c.d`.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transport that no URL names could not be connected to.
    #[test]
    fn a_url_can_name_each_transport_with_an_address() {
        for transport in Transport::ALL {
            let expected = match transport {
                Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss | Transport::Quic => {
                    Some(transport)
                }
                Transport::Mem => None,
            };
            assert_eq!(Transport::from_scheme(transport.scheme()), expected);
        }
        assert_eq!(Transport::from_scheme("SSL"), Some(Transport::Tls));
    }
}
