//! Tests of the binary as a process: its output and exit codes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod acl;
mod api;
mod bench;
mod broker;
mod capture;
mod client;
mod explain;
mod health;
mod http;
mod lab;
mod memory;
mod passwd;
mod refusals;
mod secrets;
mod serve;
mod spool;
mod store;
mod survival;
