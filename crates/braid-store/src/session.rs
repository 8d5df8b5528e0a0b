//! Sessions and their subscriptions as they are stored.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use braid_proto::packet::{ClientId, QoS, Will};
use braid_proto::session::{RetainHandling, SessionExpiry, Subscription};
use braid_proto::stream::{Priority, StreamKey};

use crate::ids::SessionId;

/// A session without anything that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Identifies the session for ever.
    pub id: SessionId,
    /// The session's client.
    pub client_id: ClientId,
    /// Identity of the client that made or resumed the session last, in the caller's encoding; `None` in sessions of
    /// format 1, which had none.
    pub identity: Option<Arc<str>>,
    /// Session Expiry Interval.
    pub expiry: SessionExpiry,
    /// End of its last connection; `None` while it is connected, and if its broker ended first.
    pub parked_at: Option<SystemTime>,
}

impl SessionRecord {
    /// Time until the session expires; `None` when it never does. A session that is not parked counts as parked at
    /// `now`. A clock that was set back never gives more than the whole interval.
    pub fn expires_in(&self, now: SystemTime) -> Option<Duration> {
        self.expiry.interval().map(|interval| interval.saturating_sub(self.parked_for(now)))
    }

    /// Time until its Will is published: until the Will Delay Interval has passed or the session ends,
    /// whichever happens first (MQTT 5, 3.1.3.2.2).
    pub fn will_due_in(&self, will: &Will, now: SystemTime) -> Duration {
        let delay = Duration::from_secs(will.delay.into()).saturating_sub(self.parked_for(now));
        self.expires_in(now).map_or(delay, |left| delay.min(left))
    }

    fn parked_for(&self, now: SystemTime) -> Duration {
        self.parked_at.and_then(|at| now.duration_since(at).ok()).unwrap_or(Duration::ZERO)
    }
}

/// A session's subscription to one Topic Filter, without its stream: streams end with their connection, and a resumed
/// session begins with all of its subscriptions on the control stream (`[BQ-42]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredSubscription {
    /// The highest QoS of its deliveries.
    pub qos: QoS,
    /// Messages are not delivered to the session that published them.
    pub no_local: bool,
    /// Deliveries keep the RETAIN flag of the publisher.
    pub retain_as_published: bool,
    /// Delivery of retained messages at SUBSCRIBE.
    pub retain_handling: RetainHandling,
    /// The Subscription Identifier, 1..=268,435,455: no packet can carry a higher one.
    pub id: Option<NonZeroU32>,
    /// The priority that SUBSCRIBE requested. `None` leaves it to the server's rules, which may differ after a restart.
    pub priority: Option<Priority>,
}

/// The highest Subscription Identifier.
pub(crate) const SUBSCRIPTION_ID_MAX: u32 = 268_435_455;

impl StoredSubscription {
    /// The part of a live subscription that outlives its connection.
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
    /// subscribes to the filter again (`[BQ-42]`, `[BQ-43]`).
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
