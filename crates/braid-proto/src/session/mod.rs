//! The Session State of MQTT 4.1 as a plain value: it is moved, never shared.
//!
//! Both ends of a connection have one. The server's holds the subscriptions as well.

mod expiry;
mod inbound;
mod outbound;
mod quota;
mod subscription;
mod subscriptions;

pub use expiry::SessionExpiry;
pub use inbound::Inbound;
pub use outbound::{Inflight, Outbound, Phase};
pub(crate) use quota::Limits;
pub use subscription::{RetainHandling, Subscription};
pub use subscriptions::{Moved, Subscriptions};

use crate::packet::ClientId;

/// The Session State of one client.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// Whose it is.
    pub client_id: ClientId,
    /// How long it outlives its connection.
    pub expiry: SessionExpiry,
    /// What it subscribed to; empty on a client's side.
    pub subscriptions: Subscriptions,
    /// Messages that were received but not completely acknowledged.
    pub inbound: Inbound,
    /// Messages that were sent but not completely acknowledged.
    pub outbound: Outbound,
}

impl Session {
    /// A new session.
    pub fn new(client_id: ClientId, expiry: SessionExpiry) -> Self {
        Self { client_id, expiry, ..Self::default() }
    }
}
