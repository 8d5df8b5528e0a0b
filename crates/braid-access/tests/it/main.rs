//! Tests of authenticators against servers on this machine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod chain;
mod hook;
mod http;
mod login;
mod reload;
mod remote_keys;
mod server;
mod tokens;
