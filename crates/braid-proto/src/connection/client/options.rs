use std::time::Duration;

/// What a client decides for itself; everything that is agreed with the server is in its [`Connect`].
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// How long the server may take to answer CONNECT.
    pub handshake_timeout: Duration,
    /// How long after a PINGREQ something must have arrived.
    pub ping_timeout: Duration,
    /// The most QoS 1 and 2 messages that are on their way to a server which sets no lower limit.
    pub maximum_inflight: u16,
    /// The most Topic Aliases that the client defines for a server which accepts as many.
    pub outbound_topic_aliases: u16,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(10),
            maximum_inflight: 100,
            outbound_topic_aliases: 64,
        }
    }
}
