//! The client against a scripted server over in-memory links, on a clock that stands still unless everybody
//! waits.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod chaos;
mod connection;
mod delivery;
mod requests;
mod resends;
mod server;
mod streams;
mod urgent;
mod zero_rtt;
