//! Tests of the HTTP servers over sockets.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::cast_possible_truncation, reason = "lengths of the tests are small")]

mod api;
mod front;
mod health;
