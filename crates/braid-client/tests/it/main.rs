//! Tests of the client against a scripted server over in-memory links, on a paused clock.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod auto;
mod chaos;
mod connection;
mod datagrams;
mod delivery;
mod hostile;
mod paths;
mod requests;
mod resends;
mod resume;
mod scram;
mod server;
mod streams;
mod urgent;
mod zero_rtt;
