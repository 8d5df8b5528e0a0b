//! The MQTT core: bytes in, effects out.
//!
//! This crate never opens a socket, reads a clock, draws a random number or knows a runtime.
//! It holds the Control Packets of MQTT 3.1, 3.1.1 and 5.0, the Session State of MQTT 4.1, and the
//! protocol machines of both ends of a connection.

mod charge;
pub mod connection;
pub mod decoder;
pub mod error;
pub mod message;
pub mod packet;
pub mod reason;
pub mod session;
pub mod stream;
pub mod topic;
mod work;
