//! Limits at which a client is refused, disconnected or not read. Each has a counter.

use braid_proto::connection::ReadObstacle;
use braid_proto::error::Violation;
use braid_proto::topic::TopicError;

/// Limit that a client reached. Its counter is [`Statistics::reached`](crate::Statistics::reached).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    // -- Connections that are refused --------------------------------------------------------------
    /// `limits.connections`: connections refused without a handshake.
    Connections,
    /// `connections` of a listener: connections refused without a handshake.
    ListenerConnections,
    /// `limits.connections_per_second`: connections refused because they came too fast to a listener.
    ListenerRate,
    /// `limits.connections_per_address`: connections refused because their address had as many as one may have.
    AddressConnections,
    /// `limits.connects_per_address_per_second`: connections refused because they came too fast from an address.
    AddressRate,
    /// QUIC clients that were refused because their handshake waited, or would have had to wait, for too long.
    HandshakeWait,
    /// Refused connections from banned addresses, or of banned clients and users.
    Bans,
    /// `limits.memory_high`: refused CONNECT packets.
    MemoryHigh,
    /// `limits.sessions`: refused CONNECT packets of clients without a session.
    Sessions,
    /// `limits.connect_timeout_secs`: connections closed before their handshake and CONNECT were complete.
    ConnectTimeout,
    /// `limits.connect_timeout_secs`: clients refused because the authenticator did not answer.
    AuthenticationTimeout,

    // -- Requests that are refused -----------------------------------------------------------------
    /// `limits.subscriptions`: refused filters of SUBSCRIBE.
    Subscriptions,
    /// `limits.subscription_bytes`: refused filters of SUBSCRIBE.
    SubscriptionBytes,
    /// `limits.retained_messages`: refused messages with RETAIN.
    RetainedMessages,
    /// `limits.retained_bytes`: refused messages with RETAIN.
    RetainedBytes,
    /// Levels of a topic or filter: refused filters, and connections or streams ended for a Topic Name.
    TopicLevels,

    // -- Connections and streams that are ended ----------------------------------------------------
    /// `limits.connect_size`: connections closed for a larger packet before CONNECT was accepted.
    ConnectSize,
    /// `mqtt.maximum_packet_size`: connections or streams ended for a larger packet.
    PacketSize,
    /// Bytes of Topic Names with aliases: connections or streams ended for more.
    TopicAliasBytes,
    /// `mqtt.receive_maximum`: connections or streams ended for more unacknowledged messages.
    ReceiveMaximum,
    /// QoS 2 messages before PUBREL, before MQTT 5: connections or streams ended for more.
    Unreleased,
    /// `limits.stalled_packet_secs` and `limits.partial_idle_secs`: streams ended for an incomplete packet.
    StalledPackets,
    /// Clients disconnected because memory was short, and they were slow and held the most.
    StuckClients,

    // -- Streams that are not read -----------------------------------------------------------------
    /// Pending acknowledgements: times that a stream was not read.
    Unacknowledged,
    /// `limits.partial_bytes`: times that a stream was not read.
    PartialBytes,
    /// Unwritten packets of a stream: times that it was not read.
    Unwritten,
    /// Unwritten packets of the control stream: times that a data stream was not read.
    ControlUnwritten,
    /// `limits.publishes_per_second`: times that a stream was not read.
    PublishRate,
    /// `limits.publish_bytes_per_second`: times that a stream was not read.
    PublishByteRate,
    /// `limits.memory_low`: times that a stream was not read.
    MemoryLow,
    /// `limits.urgent_bytes_per_second`: times that the urgent messages of a client came to be slowed as others.
    UrgentByteRate,
    /// `limits.streams_per_second`: streams that had to wait for their turn to begin. The last one: the length of
    /// [`Limit::TOPICS`] follows from it.
    StreamRate,
}

impl Limit {
    /// All limits, in their order, with the topics of their counters below `$SYS/broker/`.
    pub const TOPICS: [(Self, &'static str); Self::StreamRate as usize + 1] = [
        (Self::Connections, "limits/connections"),
        (Self::ListenerConnections, "limits/listener_connections"),
        (Self::ListenerRate, "limits/connections_per_second"),
        (Self::AddressConnections, "connections/refused/address"),
        (Self::AddressRate, "connections/refused/rate"),
        (Self::HandshakeWait, "connections/refused/handshake_wait"),
        (Self::Bans, "connections/refused/banned"),
        (Self::MemoryHigh, "limits/memory_high"),
        (Self::Sessions, "limits/sessions"),
        (Self::ConnectTimeout, "limits/connect_timeout"),
        (Self::AuthenticationTimeout, "limits/authentication_timeout"),
        (Self::Subscriptions, "limits/subscriptions"),
        (Self::SubscriptionBytes, "limits/subscription_bytes"),
        (Self::RetainedMessages, "limits/retained_messages"),
        (Self::RetainedBytes, "limits/retained_bytes"),
        (Self::TopicLevels, "limits/topic_levels"),
        (Self::ConnectSize, "limits/connect_size"),
        (Self::PacketSize, "limits/packet_size"),
        (Self::TopicAliasBytes, "limits/topic_alias_bytes"),
        (Self::ReceiveMaximum, "limits/receive_maximum"),
        (Self::Unreleased, "limits/unreleased"),
        (Self::StalledPackets, "limits/stalled_packets"),
        (Self::StuckClients, "limits/stuck_clients"),
        (Self::Unacknowledged, "limits/unacknowledged"),
        (Self::PartialBytes, "limits/partial_bytes"),
        (Self::Unwritten, "limits/unwritten"),
        (Self::ControlUnwritten, "limits/control_unwritten"),
        (Self::PublishRate, "limits/publishes_per_second"),
        (Self::PublishByteRate, "limits/publish_bytes_per_second"),
        (Self::MemoryLow, "limits/memory_low"),
        (Self::UrgentByteRate, "limits/urgent_bytes_per_second"),
        (Self::StreamRate, "limits/streams_per_second"),
    ];

    /// Limit that a violation exceeds. `is_accepted`: the CONNECT of the client was accepted before.
    pub(crate) const fn of_violation(violation: Violation, is_accepted: bool) -> Option<Self> {
        match violation {
            Violation::PacketTooLarge { .. } if is_accepted => Some(Self::PacketSize),
            Violation::PacketTooLarge { .. } => Some(Self::ConnectSize),
            Violation::TopicAliasBytes => Some(Self::TopicAliasBytes),
            Violation::ReceiveMaximumExceeded => Some(Self::ReceiveMaximum),
            Violation::TooManyUnreleased => Some(Self::Unreleased),
            Violation::PartialPacketStalled => Some(Self::StalledPackets),
            Violation::ConnectTimeout => Some(Self::ConnectTimeout),
            Violation::TopicName(error) => Self::of_topic(error),
            _ => None,
        }
    }

    /// Limit that a topic or filter exceeds.
    pub(crate) const fn of_topic(error: TopicError) -> Option<Self> {
        match error {
            TopicError::TooManyLevels => Some(Self::TopicLevels),
            _ => None,
        }
    }

    /// Limit for which the protocol machine handles no more bytes of a stream.
    pub(crate) const fn of_obstacle(obstacle: ReadObstacle) -> Option<Self> {
        match obstacle {
            ReadObstacle::State => None,
            ReadObstacle::Unacknowledged => Some(Self::Unacknowledged),
            ReadObstacle::PartialBytes => Some(Self::PartialBytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topics_are_in_the_order_of_the_limits() {
        assert!(Limit::TOPICS.iter().enumerate().all(|(index, (limit, _))| *limit as usize == index));
    }
}
