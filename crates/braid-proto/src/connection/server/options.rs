use std::sync::Arc;
use std::time::Duration;

use super::EarlyPublish;
use crate::decoder::Spool;
use crate::decoder::wire::PACKET_SIZE_MAX;
use crate::session::SessionExpiry;

/// What a server grants its clients.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// How long a stranger may take to send CONNECT.
    pub connect_timeout: Duration,
    /// The most bytes that a CONNECT may have.
    pub connect_maximum_size: usize,
    /// Receive Maximum of the server. MQTT 3 has no such limit but the number of packet identifiers.
    pub receive_maximum: u16,
    /// The most QoS 1 and 2 messages that are on their way to a client which sets no lower limit.
    pub maximum_inflight: u16,
    /// The most payload bytes that are kept until a client acknowledges them; a single message may have more.
    pub maximum_inflight_bytes: usize,
    /// Maximum Packet Size of the server, bytes with the fixed header.
    pub maximum_packet_size: usize,
    /// Topic Alias Maximum: how many a client may define.
    pub topic_alias_maximum: u16,
    /// The most aliases that the server defines for a client which accepts as many.
    pub outbound_topic_aliases: u16,
    /// The longest Keep Alive in seconds; 0 leaves the choice to the client.
    pub maximum_keep_alive: u16,
    /// Whether only whole packets are signs of life, and not each byte: a packet that takes longer than the Keep Alive
    /// to arrive then ends its connection, as with other brokers.
    pub strict_keep_alive: bool,
    /// The longest Session Expiry Interval.
    pub maximum_session_expiry: SessionExpiry,
    /// Response Information for clients that ask for it.
    pub response_information: Option<Box<str>>,
    /// The most bytes of incomplete packets on all data streams of a connection; one packet may exceed it. [BQ-45]
    pub maximum_partial_bytes: usize,
    /// How long that packet may stand still.
    pub partial_timeout: Duration,
    /// How long an incomplete packet on a data stream may stand still though nobody waits for its memory. [BQ-45]
    pub partial_idle: Duration,
    /// What becomes of a PUBLISH in early data.
    pub early_publish: EarlyPublish,
    /// Where large packets are received; without one they stay in the heap.
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
            maximum_partial_bytes: 64 * 1024 * 1024,
            partial_timeout: Duration::from_secs(30),
            partial_idle: Duration::from_secs(600),
            early_publish: EarlyPublish::default(),
            spool: None,
        }
    }
}
