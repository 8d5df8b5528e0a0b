//! Broker under test as a process, for tools that disturb it: `braid-torture` and `braid-hostile`.
//!
//! This library never speaks MQTT: clients and verdicts belong to the programs.

mod broker;

pub use broker::{Broker, REFUSED, STORE_FAILED, Start, broker_binary, free_port, version};
