//! Tests of authenticators against servers on this machine.

mod hook;
mod http;
mod remote_keys;
mod server;
