//! How fast to send, beyond what the library's controllers know.
//!
//! Pure: what happened and when comes in as arguments, a rate and a window come out. No clock, no
//! runtime, no random numbers.

mod cap;
mod gate;
mod policed;
mod stretch;
mod tally;
#[cfg(test)]
mod tests;

pub use gate::{Class, GateState, Level};
pub(super) use gate::{Gate, Leave, Permit};
pub(super) use policed::{Found, PROBE, Policed};
