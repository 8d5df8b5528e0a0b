//! Measurements of the path of a connection: `TCP_INFO`, those of the kernel, and those of the QUIC library.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use braid_select::reading::{DeliveryRate, QuicCounters, TcpReading};
use tokio::net::TcpStream;

/// Measurements of the path of a connection, of HTTP or of MQTT.
#[derive(Clone, Copy, Debug)]
pub enum PathSample {
    /// Those of the kernel about TCP, with or without TLS.
    Tcp(TcpMetrics),
    /// Those of the library about QUIC.
    Quic(PathStats),
}

/// Measurements of a QUIC connection on its first path. The library gives no deviation of the round-trip time and no
/// number of probe timeouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// Address of the peer, which may move; `None` of a default value.
    pub remote: Option<SocketAddr>,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Payload of the datagrams that were received, bytes.
    pub received_bytes: u64,
    /// Datagrams that were received.
    pub received_datagrams: u64,
    /// Packets that were sent, those of acknowledgements alone included.
    pub sent_packets: u64,
    /// Bytes of packets that the peer acknowledges: those of acknowledgements alone are not among them.
    pub sent_bytes: u64,
    /// Packets that were declared lost, without probes of the path MTU.
    pub lost_packets: u64,
    /// Events on which the congestion controller backed off.
    pub congestion_events: u64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Rate that the congestion controller estimates, bytes per second; `None` if it does not.
    pub rate: Option<u64>,
    /// Payload of a datagram that the path carries, bytes.
    pub mtu: u16,
}

/// Measurements of a TCP connection (`struct tcp_info` of Linux).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpMetrics {
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rttvar: Duration,
    /// Minimum round-trip time.
    pub min_rtt: Duration,
    /// Timeouts in a row without an acknowledgement.
    pub retransmits: u8,
    /// Segments that are lost and not yet sent again.
    pub lost: u32,
    /// Segments that were sent again and not yet acknowledged.
    pub retrans: u32,
    /// Segments that were sent again since the connection began.
    pub total_retrans: u32,
    /// Segments with data that were sent, again included.
    pub data_segments_sent: u32,
    /// Segments that were acknowledged; 0 before Linux 4.18.
    pub delivered: u32,
    /// Duplicate segments that the peer reported (RFC 2883); 0 before Linux 4.19.
    pub dsack_dups: u32,
    /// Bytes that were acknowledged.
    pub acknowledged_bytes: u64,
    /// Time for which bytes were waiting to be sent or acknowledged.
    pub busy: Duration,
    /// Slow start threshold, segments; `0x7fffffff` until the first loss.
    pub snd_ssthresh: u32,
    /// Congestion window, segments.
    pub snd_cwnd: u32,
    /// Most recent rate of delivery, bytes per second; 0 until it is known.
    pub delivery_rate: u64,
    /// True if the application, not the path, limited that rate.
    pub is_app_limited: bool,
}

/// The measurements as the selection between QUIC and TCP takes them.
impl From<&TcpMetrics> for TcpReading {
    fn from(metrics: &TcpMetrics) -> Self {
        Self {
            srtt: metrics.srtt,
            rttvar: metrics.rttvar,
            min_rtt: metrics.min_rtt,
            retransmits: metrics.retransmits.into(),
            retrans: metrics.retrans,
            lost: metrics.lost,
            total_retrans: metrics.total_retrans.into(),
            segments_out: metrics.data_segments_sent.into(),
            delivered: metrics.delivered.into(),
            dsack_dups: metrics.dsack_dups.into(),
            snd_ssthresh: metrics.snd_ssthresh,
            delivery_rate: NonZeroU64::new(metrics.delivery_rate).map(|bytes_per_second| DeliveryRate {
                bytes_per_second,
                app_limited: metrics.is_app_limited,
            }),
        }
    }
}

/// The measurements as the selection between QUIC and TCP takes them.
impl From<&PathStats> for QuicCounters {
    fn from(stats: &PathStats) -> Self {
        Self {
            srtt: stats.srtt,
            sent: stats.sent_packets,
            lost: stats.lost_packets,
            received: stats.received_datagrams,
            rate: stats.rate.and_then(NonZeroU64::new),
            mtu: stats.mtu,
        }
    }
}

/// Reads the measurements of a connection whose socket belongs to another value.
#[derive(Clone, Debug)]
pub struct TcpProbe(Weak<TcpStream>);

impl TcpProbe {
    pub(crate) fn new(socket: &Arc<TcpStream>) -> Self {
        Self(Arc::downgrade(socket))
    }

    /// The measurements now; one system call.
    ///
    /// # Errors
    /// The socket is closed, or the system is not Linux.
    pub fn sample(&self) -> io::Result<TcpMetrics> {
        let socket = self.0.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        TcpMetrics::of(&*socket)
    }
}

/// Bytes that are read of the structure. An older kernel fills fewer; the rest stays zero.
const SIZE: u16 = 232;

type Bytes = [u8; SIZE as usize];

impl TcpMetrics {
    /// The measurements of a socket now; one system call.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        read(socket.as_fd()).map(|bytes| Self::parse(&bytes))
    }

    /// `bytes`: the structure as in `linux/tcp.h`, whose fields never move.
    fn parse(bytes: &Bytes) -> Self {
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        Self {
            srtt: Duration::from_micros(u32_at(68).into()),
            rttvar: Duration::from_micros(u32_at(72).into()),
            min_rtt: Duration::from_micros(u32_at(148).into()),
            retransmits: bytes[2],
            lost: u32_at(32),
            retrans: u32_at(36),
            total_retrans: u32_at(100),
            data_segments_sent: u32_at(156),
            delivered: u32_at(192),
            dsack_dups: u32_at(216),
            acknowledged_bytes: u64_at(120),
            busy: Duration::from_micros(u64_at(168)),
            snd_ssthresh: u32_at(76),
            snd_cwnd: u32_at(80),
            delivery_rate: u64_at(160),
            // The first bit field of the structure's eighth byte.
            is_app_limited: bytes[7] & if cfg!(target_endian = "little") { 1 } else { 0x80 } != 0,
        }
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "getsockopt(TCP_INFO) into a local buffer; rustix, socket2 and std lack it")]
fn read(socket: BorrowedFd<'_>) -> io::Result<Bytes> {
    use std::os::fd::AsRawFd;

    let mut bytes: Bytes = [0; SIZE as usize];
    let mut length = libc::socklen_t::from(SIZE);
    // SAFETY: the buffer has `length` bytes, and the socket is open as long as it is borrowed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn read(_socket: BorrowedFd<'_>) -> io::Result<Bytes> {
    Err(io::ErrorKind::Unsupported.into())
}
