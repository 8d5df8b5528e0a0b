//! Tests of the binary as a process: its output and exit codes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod acl;
mod api;
mod auto;
mod bench;
mod broker;
mod capture;
mod client;
mod cluster;
mod demo;
mod explain;
mod health;
mod http;
mod lab;
mod memory;
#[path = "../../../braid-cluster/tests/it/servers.rs"]
#[allow(clippy::panic, dead_code, reason = "another crate uses all of it")]
mod nats;
mod passwd;
mod refusals;
mod resume;
mod secrets;
mod serve;
mod spool;
mod store;
mod survival;
