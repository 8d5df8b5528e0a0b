//! Queues of a session: the shared queue that publishers push into, and the queue of its connection.

pub(crate) mod backpressure;
pub(crate) mod egress;
pub(crate) mod evictable;
pub(crate) mod overflow;
pub(crate) mod pending;
pub(crate) mod policy;
pub(crate) mod session_queue;
pub(crate) mod stored;
pub(crate) mod usage;
