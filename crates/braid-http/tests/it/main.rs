//! Tests of the HTTP servers over sockets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod front;
mod health;
