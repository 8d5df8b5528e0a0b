//! Tests against servers of NATS, which `make tools` installs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod broker;
mod certificates;
mod import;
mod join;
mod log;
mod login;
mod reading;
mod reasons;
mod servers;
mod status;
mod upkeep;
