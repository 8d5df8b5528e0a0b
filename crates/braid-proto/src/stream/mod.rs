//! Streams of a connection: the policy that spreads packets over them, and the queue of what waits to be sent.

mod policy;
mod queue;

pub use crate::types::{Lane, Priority, StreamKey};
pub use policy::{Choice, LogicalStream, Placement, StreamPolicy, Subject};
pub use queue::LaneQueue;
