//! Tests of authenticators against servers on this machine.

mod chain;
mod hook;
mod http;
mod login;
mod reload;
mod remote_keys;
mod server;
mod tokens;
