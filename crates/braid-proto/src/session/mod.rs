//! Session State of MQTT 4.1 as a plain value: it is moved, never shared.
//!
//! Both ends of a connection have one. Subscriptions are in the server's only.

mod inbound;
mod outbound;
mod subscriptions;

use std::time::Duration;

use crate::decoder::PartialMessages;
use crate::packet::Connect;
use crate::types::ClientId;
pub use crate::types::RetainHandling;
pub use inbound::Inbound;
pub(crate) use outbound::InflightAmount;
pub use outbound::{Outbound, Phase};
pub use subscriptions::{MovedSubscription, Subscription, Subscriptions};

/// Session State of one client.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// Client Identifier.
    pub client_id: ClientId,
    /// Session Expiry Interval.
    pub expiry: SessionExpiry,
    /// Subscriptions; empty on the side of the client.
    pub subscriptions: Subscriptions,
    /// Received QoS 2 messages without PUBREL.
    pub inbound: Inbound,
    /// Sent QoS 1 and 2 messages that are not completely acknowledged.
    pub outbound: Outbound,
    /// Large messages that an earlier connection received in part; on the side of the server.
    pub partials: PartialMessages,
}

impl Session {
    /// New session.
    pub fn new(client_id: ClientId, expiry: SessionExpiry) -> Self {
        Self { client_id, expiry, ..Self::default() }
    }
}

/// Session Expiry Interval (MQTT 5, 3.1.2.11.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionExpiry(u32);

impl SessionExpiry {
    /// End of the session with its connection: Clean Session 1 of MQTT 3.
    pub const WITH_CONNECTION: Self = Self(0);
    /// No expiry: Clean Session 0 of MQTT 3.
    pub const NEVER: Self = Self(u32::MAX);

    /// Interval that a CONNECT asks for.
    pub fn requested_by(connect: &Connect) -> Self {
        match (connect.version.is_v5(), connect.clean_start) {
            (true, _) => Self::from_secs(connect.properties.session_expiry.unwrap_or(0)),
            (false, true) => Self::WITH_CONNECTION, // [MQTT3-3.1.2-6]
            (false, false) => Self::NEVER,          // [MQTT3-3.1.2-4]
        }
    }

    /// Interval in seconds; `u32::MAX` is [`SessionExpiry::NEVER`].
    pub const fn from_secs(seconds: u32) -> Self {
        Self(seconds)
    }

    /// Interval in seconds.
    pub const fn as_secs(self) -> u32 {
        self.0
    }

    /// Whether the session outlives its connection.
    pub const fn outlives_connection(self) -> bool {
        self.0 > 0
    }

    /// Time from the end of the connection to the end of the session; `None` when it never ends.
    pub fn interval(self) -> Option<Duration> {
        (self != Self::NEVER).then(|| Duration::from_secs(self.0.into()))
    }
}
