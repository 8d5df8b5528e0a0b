//! Load for MQTT brokers, and what it measures: the library under `braidmq bench` and the lab.
//!
//! This crate never starts a broker, never shapes a network, reads no arguments and prints nothing: it is given
//! links, puts load on them and gives back numbers.

mod clock;
mod connection;
mod dial;
mod failure;
mod lock;
mod pace;
mod tally;
mod timer;

pub mod bulk;
pub mod device;
pub mod emqtt;
pub mod exchange;
pub mod generator;
pub mod http;
pub mod pairs;
pub mod summary;
pub mod urgent;

pub use connection::{Connection, ConnectionEvent, SendOutcome};
pub use dial::{DialError, Dialer};
pub use failure::Failure;
pub use pace::{Pace, Schedule};
