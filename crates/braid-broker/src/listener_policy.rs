//! Policy of a listener for its clients.

use crate::mountpoint::MountpointTemplate;

/// Policy of a listener for its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerPolicy {
    /// Tag that rules of access control lists refer to.
    pub tag: Option<Box<str>>,
    /// Whether clients without credentials may connect; `None` for the rule of the broker.
    pub anonymous: Option<bool>,
    /// Whether priorities that clients ask for have no effect.
    pub ignores_priorities: bool,
    /// Connections at a time; `None` for any number.
    pub connections: Option<u64>,
    /// Name space of clients whose identity has none.
    pub mountpoint: Option<MountpointTemplate>,
}
