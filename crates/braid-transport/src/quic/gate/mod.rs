//! The bulk gate of a connection, between the pure [`Gate`](super::pacing::Gate) and those who have to do with it: the
//! congestion controller through which the library asks it, the link that says what is urgent, and the timer that
//! wakes the library when it opens.

mod controller;
mod keeper;
mod leaving;
mod log;
mod shared;
mod withheld;

pub(super) use controller::Gated;
pub(super) use leaving::Datagram;
pub(super) use shared::SharedGate;
pub(super) use withheld::{Kept, kept};
