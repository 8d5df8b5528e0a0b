use std::num::NonZeroU32;

use braid_proto::packet::QoS;
use braid_proto::session::{RetainHandling, Subscription};
use braid_proto::stream::{Priority, StreamKey};

/// What a session asked for with one Topic Filter, without the stream that asked: streams do not outlive their
/// connection, and whoever resumes the session begins with everything on the control stream (`[BQ-42]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredSubscription {
    /// The most a delivery may have.
    pub qos: QoS,
    /// Not to the session that published it.
    pub no_local: bool,
    /// Keep the RETAIN flag as the publisher set it.
    pub retain_as_published: bool,
    /// Replay of retained messages at SUBSCRIBE.
    pub retain_handling: RetainHandling,
    /// The Subscription Identifier, 1..=268,435,455: no packet can carry a higher one.
    pub id: Option<NonZeroU32>,
    /// The priority that SUBSCRIBE asked for. `None` leaves it to the server's rules, which may be others when
    /// it starts again.
    pub priority: Option<Priority>,
}

/// The highest Subscription Identifier.
pub(crate) const HIGHEST_ID: u32 = 268_435_455;

impl StoredSubscription {
    /// What outlives the connection.
    pub const fn of(subscription: &Subscription) -> Self {
        Self {
            qos: subscription.qos,
            no_local: subscription.no_local,
            retain_as_published: subscription.retain_as_published,
            retain_handling: subscription.retain_handling,
            id: subscription.id,
            priority: subscription.priority,
        }
    }

    /// The live subscription of a session without a connection: on the control stream, until a stream
    /// subscribes the filter again (`[BQ-42]`, `[BQ-43]`).
    pub const fn live(&self) -> Subscription {
        Subscription {
            qos: self.qos,
            no_local: self.no_local,
            retain_as_published: self.retain_as_published,
            retain_handling: self.retain_handling,
            id: self.id,
            stream: StreamKey::CONTROL, // [BQ-42]
            priority: self.priority,
            bound: false, // [BQ-43]
        }
    }
}
