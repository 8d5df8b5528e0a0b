//! Paths of a connection, for reports.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// State of the path of a QUIC connection. Counts are those of this path, since the connection moved to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathState {
    /// Smoothed round-trip time (RFC 9002, 5.3).
    pub rtt: Duration,
    /// Congestion window in bytes. Where the gate limits the path it says nothing about it.
    pub congestion_window: u64,
    /// Largest UDP payload that the path is known to take, bytes.
    pub mtu: u16,
    /// Packets sent, those of acknowledgements alone included.
    pub packets_sent: u64,
    /// Packets of them that were declared lost.
    pub packets_lost: u64,
    /// Bytes sent in QUIC packets, without those of acknowledgements alone.
    pub bytes_sent: u64,
    /// Bytes of them in lost packets.
    pub bytes_lost: u64,
    /// Number of times that the congestion controller reduced its window.
    pub congestion_events: u64,
}

/// One path of a QUIC connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathReport {
    /// Number of the path; 0 is that of the handshake.
    pub number: u32,
    /// Index of the path in [`Multipath::locals`](crate::quic::Multipath::locals), for a client with several.
    pub local: Option<usize>,
    /// Own address; `None` until something was received.
    pub local_address: Option<IpAddr>,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Its role.
    pub role: PathRole,
    /// Its measurements.
    pub state: PathState,
    /// Payload of the datagrams that were received on it, bytes.
    pub bytes_received: u64,
}

impl PathState {
    pub(in crate::quic) fn of(path: &noq_proto::PathStats) -> Self {
        Self {
            rtt: path.rtt,
            congestion_window: path.cwnd,
            mtu: path.current_mtu,
            packets_sent: path.sent_packets,
            packets_lost: path.lost_packets,
            bytes_sent: path.sent_bytes,
            bytes_lost: path.lost_bytes,
            congestion_events: path.congestion_events,
        }
    }
}

/// Role of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathRole {
    /// Carries data.
    InUse,
    /// Ready, in place of others that do not answer.
    Standby,
    /// Carries nothing: the path is not validated yet, or does not answer.
    Unavailable,
}
