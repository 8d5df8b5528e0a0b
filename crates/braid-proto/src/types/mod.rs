//! Parsed values that every other layer uses: packet fields, topics, Reason Codes, violations, streams and lanes.

/// Implements `Display` and `Debug` for types with `as_str`: the text, plain and quoted.
macro_rules! format_as_text {
    ($($name:ident),*) => {$(
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:?}", self.as_str())
            }
        }
    )*};
}

mod field;
mod mountpoint;
mod payload;
mod quic_hint;
mod reason;
mod stream;
mod topic;
mod violation;

pub use field::{ClientId, PacketId, PacketType, ProtocolVersion, QoS, RetainHandling};
pub use mountpoint::{Mountpoint, MountpointError};
pub use payload::Payload;
pub(crate) use payload::PayloadSlice;
pub use quic_hint::QuicHint;
pub use reason::ReasonCode;
pub use stream::{Lane, Priority, StreamKey};
pub use topic::{MAX_LEVELS, TopicError, TopicFilter, TopicName};
pub use violation::{SpoolError, Violation};
