//! Limits and grants of a server.

use std::sync::Arc;
use std::time::Duration;

use crate::decoder::Spool;
use crate::session::SessionExpiry;
use crate::wire::PACKET_SIZE_MAX;

/// Limits of a server, and its grants to clients.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Maximum time from the connection to its CONNECT.
    pub connect_timeout: Duration,
    /// Maximum size of a CONNECT, bytes.
    pub connect_maximum_size: usize,
    /// Receive Maximum of the server. MQTT 3 has no such limit except the number of packet identifiers.
    pub receive_maximum: u16,
    /// Maximum number of inflight QoS 1 and 2 messages to a client which sets no lower limit.
    pub maximum_inflight: u16,
    /// Maximum payload bytes that are kept until a client acknowledges them; a single message may exceed it.
    pub maximum_inflight_bytes: usize,
    /// Maximum Packet Size of the server, bytes with the fixed header.
    pub maximum_packet_size: usize,
    /// Topic Alias Maximum of the server.
    pub topic_alias_maximum: u16,
    /// Maximum number of aliases that the server defines for a client.
    pub outbound_topic_aliases: u16,
    /// Maximum Keep Alive in seconds; 0 leaves the choice to the client.
    pub maximum_keep_alive: u16,
    /// Whether only whole packets restart the Keep Alive, and not each byte: a packet that takes longer than the Keep
    /// Alive to arrive then ends its connection, as with other brokers.
    pub strict_keep_alive: bool,
    /// Maximum Session Expiry Interval.
    pub maximum_session_expiry: SessionExpiry,
    /// Response Information for clients that ask for it.
    pub response_information: Option<Box<str>>,
    /// Hint where QUIC is, for clients of MQTT 5; see [`QuicHint`](crate::packet::QuicHint).
    pub alt_svc: Option<Box<str>>,
    /// Maximum bytes of incomplete packets on all data streams of a connection; the oldest large one may exceed it.
    /// [BQ-45]
    pub maximum_partial_bytes: usize,
    /// Maximum time without progress of the packet that exceeds [`Self::maximum_partial_bytes`].
    pub partial_timeout: Duration,
    /// Maximum time without progress of any incomplete packet on a data stream. [BQ-45]
    pub partial_idle: Duration,
    /// Treatment of a PUBLISH in early data.
    pub early_publish: EarlyPublish,
    /// Receives large packets; without one they stay in the heap.
    pub spool: Option<Arc<dyn Spool>>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            connect_maximum_size: 64 * 1024,
            receive_maximum: 1024,
            maximum_inflight: 1024,
            maximum_inflight_bytes: 32 * 1024 * 1024,
            maximum_packet_size: PACKET_SIZE_MAX,
            topic_alias_maximum: 64,
            outbound_topic_aliases: 64,
            maximum_keep_alive: 0,
            strict_keep_alive: false,
            maximum_session_expiry: SessionExpiry::NEVER,
            response_information: None,
            alt_svc: None,
            maximum_partial_bytes: 64 * 1024 * 1024,
            partial_timeout: Duration::from_secs(30),
            partial_idle: Duration::from_secs(600),
            early_publish: EarlyPublish::default(),
            spool: None,
        }
    }
}

/// Treatment of a PUBLISH that arrives before the handshake of the transport is confirmed. [BQ-61]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyPublish {
    /// Takes effect once the handshake is confirmed, and so does everything behind it.
    #[default]
    Hold,
    /// Refused with 0x83 for QoS 1 and 2. MQTT 3 has no such answer: there it is held.
    Reject,
    /// Takes effect at once, as DISCONNECT does then; otherwise that waits too.
    Accept,
}
