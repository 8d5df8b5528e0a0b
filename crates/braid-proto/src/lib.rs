//! Sans-IO core of MQTT 3.1, 3.1.1 and 5.0: Control Packets, Session State and the protocol machines of both ends.
//!
//! The crate never opens a socket, reads a clock, draws a random number or knows a runtime: callers pass bytes and
//! instants, and take events and bytes.
//!
//! Each layer imports from the layers above it in this table only:
//!
//! | layer | content |
//! |---|---|
//! | `types` | values of packet fields, topics, reason codes, violations, streams and lanes |
//! | `wire` | data representations of MQTT 1.5 |
//! | [`packet`] | Control Packets, their encoders and decoders |
//! | [`decoder`] | bytes of a stream to packets |
//! | [`message`], [`stream`] | messages and deliveries; stream policy and lane queue |
//! | [`session`] | Session State |
//! | [`connection`] | protocol machines of client and server |

pub mod connection;
pub mod decoder;
pub mod message;
pub mod packet;
pub mod session;
pub mod stream;
mod types;
mod wire;
mod work;

/// Violations of the standard by a peer.
pub mod error {
    pub use crate::types::Violation;
}

/// Reason Codes.
pub mod reason {
    pub use crate::types::ReasonCode;
}

/// Topic Names, Topic Filters, and mountpoints.
pub mod topic {
    pub use crate::types::{MAX_LEVELS, Mountpoint, MountpointError, TopicError, TopicFilter, TopicName};
}
