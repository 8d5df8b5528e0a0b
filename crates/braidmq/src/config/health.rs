//! `[health]`: who may ask how the broker is.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Over HTTP. Nobody is asked who they are, so nothing is listened on unless it is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HealthConfig {
    /// Addresses, `HOST:PORT` with an IP address as host.
    pub(crate) bind: Vec<SocketAddr>,
}
