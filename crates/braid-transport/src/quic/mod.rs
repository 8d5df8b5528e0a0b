//! MQTT over QUIC: one endpoint, its control stream as a link, and the codes both sides use.
//!
//! Everything that names the QUIC library is in this folder, so that another one could take its
//! place. For now the control stream is the only stream that is served.

mod acknowledged;
pub mod codes;
mod config;
mod connect;
mod endpoint;
#[cfg(test)]
mod faulty;
mod link;
mod shield;
mod stream;

pub use config::{Congestion, QuicOptions};

pub(crate) use connect::connect;
pub(crate) use endpoint::{QuicIncoming, QuicListener};
