//! Values without behaviour of their own, which every other layer uses.

mod field;
mod reason;
mod stream;
mod topic;
mod violation;

pub use field::{ClientId, PacketId, PacketType, ProtocolVersion, QoS, RetainHandling};
pub use reason::ReasonCode;
pub use stream::{Lane, Priority, StreamKey};
pub use topic::{MAX_LEVELS, TopicError, TopicFilter, TopicName};
pub use violation::{SpoolError, Violation};
