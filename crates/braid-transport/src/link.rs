//! What a connection is once its handshake is done.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Instant;

use braid_proto::stream::{Priority, StreamKey};
use tokio::io::ReadBuf;

use crate::certificate::fingerprint_sha256;
use crate::der;
use crate::quic::{GateState, Multi};
use crate::single::Single;

/// The transport under one MQTT Network Connection.
///
/// It has the shapes that matter to a driver, not one per transport. A driver is one task that
/// polls it from one function: whatever it waits for on whichever stream wakes that task.
pub enum Link {
    /// One ordered stream of bytes each way: TCP, TLS, WebSocket or in-memory. It is known as the
    /// control stream.
    Single(Single),
    /// A control stream and any number of data streams: QUIC.
    Multi(Multi),
}

/// What the peer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A stream of the peer that was not seen before; its bytes come with later reads. Never the
    /// control stream.
    Opened(StreamKey),
    /// Bytes of this stream are in the buffer.
    Bytes(StreamKey),
    /// FIN after the last byte of this data stream.
    Finished(StreamKey),
    /// RESET_STREAM on this data stream, with the peer's code.
    Reset(StreamKey, u64),
    /// STOP_SENDING for this data stream, with the peer's code. Its sending half has ended: it was
    /// reset with the same code.
    Stopped(StreamKey, u64),
    /// The handshake is confirmed: what came before may have been early (0-RTT) data. At most once,
    /// and only if [`Link::is_early`] was true.
    Confirmed,
    /// The peer has another address now, and it is validated.
    Moved(SocketAddr),
    /// The peer ended the link in order: EOF of a single stream, FIN of the control stream,
    /// CONNECTION_CLOSE 0. What it sent before on streams that are wanted was read.
    Closed,
}

/// Which ways a stream carries bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dir {
    /// Both ways.
    Bidi,
    /// From the one that opened it to the other.
    Uni,
}

/// How a link is closed by this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// The application code of CONNECTION_CLOSE: one of [`codes`](crate::quic::codes).
    pub code: u32,
    /// An MQTT Reason Code for STOP_SENDING on every stream, once the peer has what was written:
    /// nothing more is read.
    pub stop: Option<u8>,
}

impl Link {
    /// Who is at the other end. Its address follows [`Read::Moved`].
    #[must_use]
    pub fn peer(&self) -> &Peer {
        match self {
            Self::Single(single) => &single.peer,
            Self::Multi(multi) => &multi.peer,
        }
    }

    /// Whether what is read now may be a copy of an earlier connection's first flight: until
    /// [`Read::Confirmed`] on QUIC with 0-RTT, otherwise never.
    #[must_use]
    pub fn is_early(&self) -> bool {
        match self {
            Self::Single(_) => false,
            Self::Multi(multi) => multi.is_early(),
        }
    }

    /// What the gate of the connection knows; `None`: there is none.
    #[must_use]
    pub fn gate_state(&self) -> Option<GateState> {
        match self {
            Self::Single(_) => None,
            Self::Multi(multi) => multi.gate_state(),
        }
    }

    /// Whether there can be data streams.
    #[must_use]
    pub fn is_multi(&self) -> bool {
        matches!(self, Self::Multi(_))
    }

    /// The next thing that the peer did. Call it until it is pending.
    ///
    /// A stream for which `wants` is false is not read: its bytes stay under its flow control, and
    /// its FIN or reset comes after them. It is asked again with every call, so what is wanted later
    /// is found by calling again. Fair: the control stream first, then the others in turn, one
    /// buffer each; the control stream has at most every other turn while others have something.
    ///
    /// # Errors
    /// The link is lost. A buffer without room is an error too.
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        wants: &mut dyn FnMut(StreamKey) -> bool,
    ) -> Poll<io::Result<Read>> {
        if buffer.remaining() == 0 {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "there is no room in the read buffer");
            return Poll::Ready(Err(error));
        }
        match self {
            Self::Single(single) => single.poll_read(cx, buffer, wants),
            Self::Multi(multi) => multi.poll_read(cx, buffer, wants),
        }
    }

    /// Writes on a stream, as much as is taken now. To call it again before the task was woken is
    /// cheap.
    ///
    /// Twice what the path carries at a time is taken, over all streams: what waits longer waits with the
    /// caller. Streams of one priority share it, the longest waiting first, whatever the order of
    /// calls. A write finds room however much is unacknowledged on streams of lower priority, as long
    /// as the peer's flow control allows. [BQ-56]
    ///
    /// # Errors
    /// `NotConnected`: the stream has ended, the link lives. Any other: the link is lost.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        stream: StreamKey,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Single(single) => single.poll_write(cx, stream, slices),
            Self::Multi(multi) => multi.poll_write(cx, stream, slices),
        }
    }

    /// Sends what a layer in between still holds.
    ///
    /// # Errors
    /// The link is lost.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Single(single) => single.poll_flush(cx),
            // QUIC sends what it has as soon as it may.
            Self::Multi(_) => Poll::Ready(Ok(())),
        }
    }

    /// How urgent the stream is from now on, also what was written before and is not sent yet: as soon as
    /// the stream has its next turn by its old priority. So raise it before the first write of a burst,
    /// and lower it after the last was sent. Nothing happens on a single stream. The control stream
    /// stands above all. [BQ-50]
    pub fn set_priority(&mut self, stream: StreamKey, priority: Priority) {
        if let Self::Multi(multi) = self {
            multi.set_priority(stream, priority);
        }
    }

    /// Ends the sending half of a data stream with FIN, in a frame without payload: at once if
    /// nothing was written on it, otherwise once nothing on the connection is unacknowledged. While
    /// other streams keep it from that: three round trips after what was written on it can have been
    /// sent. A stream that is not read delays no other; a higher priority that fills the connection does.
    /// After 3 s in any case; what was sent by then may be repeated together with the FIN. Nothing is
    /// lost. Poll for reads, which see to it. [BQ-31]
    pub fn finish(&mut self, stream: StreamKey) {
        if let Self::Multi(multi) = self {
            multi.finish(stream);
        }
    }

    /// RESET_STREAM and STOP_SENDING with this code, whatever of both halves is still open. No read
    /// tells of the stream any more.
    pub fn abort(&mut self, stream: StreamKey, code: u64) {
        if let Self::Multi(multi) = self {
            multi.abort(stream, code);
        }
    }

    /// Opens a stream (client): ready as soon as the peer's credit allows. The server learns of it
    /// with the first bytes written.
    ///
    /// # Errors
    /// `Unsupported` on a single stream and for a server; any other: the link is lost.
    pub fn poll_open(&mut self, cx: &mut Context<'_>, dir: Dir) -> Poll<io::Result<StreamKey>> {
        match self {
            Self::Single(_) => {
                let error = io::Error::new(io::ErrorKind::Unsupported, "only QUIC has data streams");
                Poll::Ready(Err(error))
            }
            Self::Multi(multi) => multi.poll_open(cx, dir),
        }
    }

    /// Says goodbye: delivers what was written, then STOP_SENDING if asked for, ends the streams with
    /// FIN in frames without payload, and the connection with its code; within 3 s, or by the deadline
    /// of [`Link::close_by`], whatever the peer does. A single stream is shut down. Afterwards reads
    /// find [`Read::Closed`] and writes an error. [BQ-41]
    ///
    /// To drop a link does the same in the background, with code 0. One that is dropped during its
    /// goodbye goes on with it.
    ///
    /// # Errors
    /// The link was lost before.
    pub fn poll_close(&mut self, cx: &mut Context<'_>, close: Close) -> Poll<io::Result<()>> {
        match self {
            Self::Single(single) => single.poll_close(cx),
            Self::Multi(multi) => multi.poll_close(cx, close),
        }
    }

    /// The end is decided on: whatever happens from now on, CONNECTION_CLOSE leaves by then, also if
    /// the link is dropped. Without effect on a single stream, and once the goodbye has begun. [BQ-41]
    pub fn close_by(&mut self, deadline: Instant) {
        if let Self::Multi(multi) = self {
            multi.close_by(deadline);
        }
    }

    /// How many STREAM frames have come from the peer, on all streams together: a larger number than
    /// before means that bytes have come, whether they were read or wait under flow control. What QUIC
    /// sends by itself (PING, ACK) does not count. `None` on a single stream, and when the link is
    /// lost. [BQ-44]
    pub fn stream_frames(&mut self) -> Option<u64> {
        match self {
            Self::Single(_) => None,
            Self::Multi(multi) => multi.stream_frames(),
        }
    }

    /// The CONNECT was accepted: from now on the client may send on each stream as much as its own
    /// window holds. Until then it was 128 KiB over all streams, and a STOP_SENDING was told by a write
    /// only. [BQ-13]
    pub fn set_trusted(&mut self) {
        if let Self::Multi(multi) = self {
            multi.set_trusted();
        }
    }

    /// Moves a client's connection to a new local socket; `None` for any free port. [BQ-70]
    ///
    /// # Errors
    /// `Unsupported` on a single stream and for a server; else the socket cannot be bound.
    pub fn rebind(&mut self, address: Option<SocketAddr>) -> io::Result<()> {
        match self {
            Self::Single(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "only QUIC moves to another socket"))
            }
            Self::Multi(multi) => multi.rebind(address),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(single) => f.debug_tuple("Single").field(&single.peer).finish(),
            Self::Multi(multi) => multi.fmt(f),
        }
    }
}

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
    /// Its address; an IPv4 address is never shown in its IPv6 form.
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

/// A dual-stack socket reports IPv4 peers as `::ffff:a.b.c.d`; limits and logs want `a.b.c.d`.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
