//! Broker under test as a process, for tools that disturb it: `braid-torture` and `braid-hostile`; and the checker of
//! the histories that their clients write.
//!
//! This library never speaks MQTT: clients belong to the programs.

mod broker;
pub mod history;
mod process;

pub use broker::{
    Broker, REFUSED, STORE_FAILED, Start, Starting, broker_binary, free_port, means_illegal_packet, version,
};
pub use process::Process;
