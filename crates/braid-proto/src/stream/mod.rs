//! Streams of a connection: the policy that places packets on them, and the send queue.

mod policy;
mod queue;

pub use crate::types::{Lane, Priority, StreamKey};
pub use policy::{Choice, LogicalStream, Placement, StreamPolicy, Subject};
pub use queue::LaneQueue;
