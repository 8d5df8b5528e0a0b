//! Configuration of a broker: what clients are granted, limits, and the broker's own topics.

use std::time::Duration;

use braid_proto::connection::{EarlyPublish, ServerOptions};
use braid_proto::session::SessionExpiry;
use serde::{Deserialize, Serialize};

use crate::priority::PriorityRule;

/// Configuration of a broker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BrokerConfig {
    /// Grants to clients.
    pub mqtt: MqttConfig,
    /// Limits of queues, rates, times and memory.
    pub limits: LimitsConfig,
    /// The broker's own topics.
    pub sys: SysConfig,
    /// Rules of data streams.
    pub streams: StreamsConfig,
    /// Priorities for subscribers that asked for none. The first rule that matches decides.
    pub priority: Vec<PriorityRule>,
}

/// Grants to clients in CONNACK.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MqttConfig {
    /// Maximum Packet Size in bytes, fixed header included.
    pub maximum_packet_size: u32,
    /// Receive Maximum: unacknowledged QoS 1 and 2 messages accepted from one client.
    pub receive_maximum: u16,
    /// Unacknowledged QoS 1 and 2 messages sent to one client, if it sets no lower Receive Maximum.
    pub maximum_inflight: u16,
    /// Topic aliases that one client may define, and that the broker defines for one.
    pub topic_alias_maximum: u16,
    /// The longest Keep Alive in seconds; 0 leaves the choice to the client.
    pub maximum_keep_alive: u16,
    /// True if only whole packets count for Keep Alive, and not each byte.
    pub strict_keepalive: bool,
    /// The longest Session Expiry Interval in seconds; sessions with 4294967295 never expire.
    pub maximum_session_expiry: u32,
    /// The Response Information for clients that ask for it; empty for none.
    pub response_information: String,
    /// Hint for clients of MQTT 5 where QUIC is, such as `mqtt-quic=":14567"; ma=3600`, or `clear` if there is none;
    /// empty for no hint.
    pub alt_svc: String,
}

impl Default for MqttConfig {
    fn default() -> Self {
        Self {
            maximum_packet_size: 268_435_455,
            receive_maximum: 1024,
            maximum_inflight: 1024,
            topic_alias_maximum: 64,
            maximum_keep_alive: 0,
            strict_keepalive: false,
            maximum_session_expiry: u32::MAX,
            response_information: String::new(),
            alt_svc: String::new(),
        }
    }
}

/// Limits of queues, rates, times and memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Connections at a time.
    pub connections: usize,
    /// Connections that one listener accepts in a second; 0 for any number. As many more are refused with a CONNACK.
    pub connections_per_second: u64,
    /// Connections of one address at a time, an IPv4 address or an IPv6 /64 network; 0 for any number. Loopback has no
    /// limit.
    pub connections_per_address: usize,
    /// Connections that are accepted from one address in a second, on all listeners; 0 for any number. As many more are
    /// refused with a CONNACK. Loopback has no limit.
    pub connects_per_address_per_second: u64,
    /// Connects of one client from one address within the window that are accepted; one more is a reason for a ban. 0
    /// for any number. Loopback has no limit.
    pub flapping_connects: u64,
    /// Seconds of that window.
    pub flapping_window_secs: u64,
    /// Seconds of the ban for flapping.
    pub flapping_ban_secs: u64,
    /// PUBLISH packets accepted from one client in a second; 0 for any number. A faster client is not read.
    pub publishes_per_second: u64,
    /// Bytes accepted from one client in a second; 0 for any number. A faster client is not read.
    pub publish_bytes_per_second: u64,
    /// Bytes of urgent messages (on topics with a priority above the default) from one client in a second that are not
    /// slowed by slow subscribers or short memory; 0 for any number. More are slowed like other messages.
    pub urgent_bytes_per_second: u64,
    /// Seconds from the accept of a connection for its handshakes and CONNECT together, and again for authentication.
    pub connect_timeout_secs: u64,
    /// Largest CONNECT in bytes.
    pub connect_size: usize,
    /// Messages queued for one session; 0 keeps none, not even for a moment: nothing is delivered.
    pub queued_messages: usize,
    /// Bytes queued for one session; one message may have more.
    pub queued_bytes: usize,
    /// Seconds that a message may wait for one session; 0 for any time.
    pub queued_secs: u64,
    /// Drop policy for a QoS 1 or 2 message that does not fit.
    pub queue_overflow: QueueOverflow,
    /// True if QoS 0 messages are queued for disconnected clients, until the broker stops.
    pub queue_qos0: bool,
    /// Payload bytes in flight to one client. Payloads up to 4 KiB do not wait for it, and a single message of each
    /// lane may have more.
    pub inflight_bytes: usize,
    /// Sessions, with or without a connection.
    pub sessions: usize,
    /// Subscriptions of one session.
    pub subscriptions: usize,
    /// Approximate bytes of the subscriptions of one session.
    pub subscription_bytes: usize,
    /// Retained messages of the whole broker.
    pub retained_messages: usize,
    /// Bytes of all retained messages.
    pub retained_bytes: usize,
    /// Bidirectional streams that one client may have open.
    pub streams: u32,
    /// Streams that one client may open in a second; more are delayed.
    pub streams_per_second: u32,
    /// Bytes of incomplete packets on all data streams of one client; one packet may exceed it.
    pub partial_bytes: usize,
    /// Seconds without a byte after which such a packet is discarded while others wait for its memory.
    pub stalled_packet_secs: u64,
    /// Seconds without a byte after which any incomplete packet on a data stream is discarded.
    pub partial_idle_secs: u64,
    /// Low mark: bytes that are held for connected clients and of incomplete packets, above which publishers are read
    /// slowly.
    pub memory_low: usize,
    /// High mark of the same bytes, above which new connections are refused as well.
    pub memory_high: usize,
    /// Bytes that are queued for all disconnected clients together, above which nothing more is queued for them.
    pub resting_bytes: usize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            connections: 1_000_000,
            connections_per_second: 0,
            connections_per_address: 0,
            connects_per_address_per_second: 0,
            flapping_connects: 15,
            flapping_window_secs: 60,
            flapping_ban_secs: 300,
            publishes_per_second: 0,
            publish_bytes_per_second: 0,
            urgent_bytes_per_second: 1024 * 1024,
            connect_timeout_secs: 5,
            connect_size: 64 * 1024,
            queued_messages: 100_000,
            queued_bytes: 32 * 1024 * 1024,
            queued_secs: 0,
            queue_overflow: QueueOverflow::default(),
            queue_qos0: false,
            inflight_bytes: 32 * 1024 * 1024,
            sessions: 1_000_000,
            subscriptions: 10_000,
            subscription_bytes: 16 * 1024 * 1024,
            retained_messages: 1_000_000,
            retained_bytes: 1024 * 1024 * 1024,
            streams: 256,
            streams_per_second: 1000,
            partial_bytes: 64 * 1024 * 1024,
            stalled_packet_secs: 30,
            partial_idle_secs: 600,
            memory_low: 1024 * 1024 * 1024,
            memory_high: 1536 * 1024 * 1024,
            resting_bytes: 1536 * 1024 * 1024,
        }
    }
}

/// Drop policy for a QoS 1 or 2 message that does not fit into the queue of a session. QoS 0 messages are dropped
/// first under each of them, the queued ones before the new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueOverflow {
    /// Drops the message that does not fit.
    #[default]
    DropNewest,
    /// Evicts the oldest message of the lowest priority. A message evicts none of a higher priority: then it is dropped
    /// itself.
    DropOldest,
    /// Drops the message and ends the connection, with DISCONNECT 0x97 to MQTT 5. A client that resumed a session with
    /// a full queue may first empty it to a quarter. For a disconnected client the queue is kept and new messages are
    /// dropped.
    Disconnect,
}

/// The broker's own topics below `$SYS/broker`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SysConfig {
    /// Seconds between two updates; 0 turns them off.
    pub interval_secs: u64,
}

impl Default for SysConfig {
    fn default() -> Self {
        Self { interval_secs: 10 }
    }
}

/// Rules of data streams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamsConfig {
    /// UNSUBSCRIBE ends the subscription of its own stream only.
    pub strict_streams: bool,
    /// Handling of a PUBLISH in early data.
    pub early_publish: EarlyPublishConfig,
}

/// Handling of a PUBLISH that arrives before the handshake is confirmed (0-RTT), when it may be a replay by an
/// attacker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EarlyPublishConfig {
    /// Takes effect once the handshake is confirmed.
    #[default]
    Hold,
    /// Is refused.
    Reject,
    /// Takes effect at once.
    Accept,
}

impl From<EarlyPublishConfig> for EarlyPublish {
    fn from(config: EarlyPublishConfig) -> Self {
        match config {
            EarlyPublishConfig::Hold => Self::Hold,
            EarlyPublishConfig::Reject => Self::Reject,
            EarlyPublishConfig::Accept => Self::Accept,
        }
    }
}

impl BrokerConfig {
    /// The options of every connection.
    pub(crate) fn server_options(&self) -> ServerOptions {
        let (mqtt, limits) = (&self.mqtt, &self.limits);
        ServerOptions {
            connect_timeout: Duration::from_secs(limits.connect_timeout_secs),
            connect_maximum_size: limits.connect_size,
            receive_maximum: mqtt.receive_maximum.max(1),
            maximum_inflight: mqtt.maximum_inflight.max(1),
            maximum_inflight_bytes: limits.inflight_bytes,
            maximum_packet_size: mqtt.maximum_packet_size as usize,
            topic_alias_maximum: mqtt.topic_alias_maximum,
            outbound_topic_aliases: mqtt.topic_alias_maximum,
            maximum_keep_alive: mqtt.maximum_keep_alive,
            strict_keep_alive: mqtt.strict_keepalive,
            maximum_session_expiry: SessionExpiry::from_secs(mqtt.maximum_session_expiry),
            response_information: (!mqtt.response_information.is_empty())
                .then(|| mqtt.response_information.as_str().into()),
            alt_svc: (!mqtt.alt_svc.is_empty()).then(|| mqtt.alt_svc.as_str().into()),
            maximum_partial_bytes: limits.partial_bytes,
            partial_timeout: Duration::from_secs(limits.stalled_packet_secs),
            partial_idle: Duration::from_secs(limits.partial_idle_secs),
            early_publish: self.streams.early_publish.into(),
            spool: None,
        }
    }
}
