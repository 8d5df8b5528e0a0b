use std::num::NonZeroU32;

use crate::packet::QoS;
use crate::stream::{Priority, StreamKey};

/// When a SUBSCRIBE replays retained messages (MQTT 5, 3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RetainHandling {
    /// At every SUBSCRIBE: what MQTT 3 does.
    #[default]
    SendAlways = 0,
    /// Only when the subscription is new.
    SendIfNew = 1,
    /// Never.
    DoNotSend = 2,
}

/// What a session asked for with one Topic Filter, as granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Subscription {
    /// The most a delivery may have.
    pub qos: QoS,
    /// Not to the session that published it.
    pub no_local: bool,
    /// Keep the RETAIN flag as the publisher set it.
    pub retain_as_published: bool,
    /// Replay of retained messages at SUBSCRIBE.
    pub retain_handling: RetainHandling,
    /// The Subscription Identifier, 1..=268,435,455.
    pub id: Option<NonZeroU32>,
    /// The stream that subscribed: where deliveries go.
    pub stream: StreamKey,
    /// The place of its deliveries in the send order, as SUBSCRIBE asked for it; `None` leaves it to the server.
    pub priority: Option<Priority>,
    /// A stream of the present connection asked for it. Otherwise its stream has ended: it is on the control
    /// stream until a stream subscribes the same filter again.
    pub bound: bool,
}
