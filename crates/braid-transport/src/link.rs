//! What a connection is once its handshake is done.

use std::fmt;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::certificate::fingerprint_sha256;
use crate::der;

/// The transport under one MQTT Network Connection.
///
/// It has the shapes that matter to a driver, not one per transport.
pub enum Link {
    /// One ordered stream of bytes each way: TCP, TLS, WebSocket, in-memory, or QUIC's control
    /// stream.
    Single(Single),
}

impl Link {
    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        match self {
            Self::Single(single) => &single.peer,
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(single) => f.debug_tuple("Single").field(&single.peer).finish(),
        }
    }
}

/// One ordered stream of bytes each way, and who is at the other end.
pub struct Single {
    /// The bytes. `poll_shutdown` delivers what was written before it says goodbye.
    pub io: Box<dyn ByteStream>,
    /// Who is at the other end.
    pub peer: Peer,
}

/// A reliable, ordered stream of bytes both ways. [MQTT-4.2.0-1]
///
/// One vectored write is one system call on TCP and one binary frame on WebSocket, so a driver
/// that collects its packets before it writes gets the most of either.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// How the bytes travel.
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
    Mem,
}

impl Transport {
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

    /// The transport that a URL's scheme names; `tcp` and `ssl` are known from other clients.
    #[must_use]
    pub fn from_scheme(scheme: &str) -> Option<Self> {
        match scheme {
            "mqtt" | "tcp" => Some(Self::Tcp),
            "mqtts" | "ssl" | "tls" => Some(Self::Tls),
            "ws" => Some(Self::Ws),
            "wss" => Some(Self::Wss),
            "quic" => Some(Self::Quic),
            _ => None,
        }
    }

    /// The port that is meant when a URL names none. 0 for [`Transport::Mem`].
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

    /// Whether the bytes are encrypted on their way.
    #[must_use]
    pub const fn is_encrypted(self) -> bool {
        matches!(self, Self::Tls | Self::Wss | Self::Quic)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::Quic => "quic",
            Self::Mem => "mem",
        })
    }
}

/// Who is at the other end of a link, as far as the transport knows.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address when the link came up; an IPv4 address is never shown in its IPv6 form.
    /// `None` for in-memory links.
    pub address: Option<SocketAddr>,
    /// How its bytes travel.
    pub transport: Transport,
    /// The certificate it proved to own. Always `None` where TLS is not spoken.
    pub certificate: Option<PeerCertificate>,
    /// `TLSv1.2` or `TLSv1.3`.
    pub tls_version: Option<&'static str>,
    /// The application protocol that the TLS handshake settled on.
    pub alpn: Option<Box<str>>,
}

impl Peer {
    pub(crate) fn plain(transport: Transport, address: Option<SocketAddr>) -> Self {
        Self { address: address.map(canonical), transport, certificate: None, tls_version: None, alpn: None }
    }
}

/// A certificate whose chain was verified in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// The certificate as it was sent (X.509, DER).
    pub der: Box<[u8]>,
}

impl PeerCertificate {
    /// The Common Name of the subject. `None` if there is none, more than one, or one that is
    /// not plain text: an identity must not be a matter of interpretation.
    #[must_use]
    pub fn common_name(&self) -> Option<&str> {
        der::common_name(&self.der)
    }

    /// The DNS names, e-mail addresses and URIs of the Subject Alternative Name extension.
    #[must_use]
    pub fn alternative_names(&self) -> Vec<&str> {
        der::alternative_names(&self.der)
    }

    /// SHA-256 over the DER, as colon-separated hexadecimal.
    #[must_use]
    pub fn fingerprint_sha256(&self) -> String {
        fingerprint_sha256(&self.der)
    }
}

/// The link of `io`, whose other end is `peer`.
pub(crate) fn single(peer: Peer, io: impl ByteStream + 'static) -> Link {
    Link::Single(Single { io: Box::new(io), peer })
}

/// A dual-stack socket reports IPv4 peers as `::ffff:a.b.c.d`; limits and logs want `a.b.c.d`.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
