//! MQTT over QUIC: endpoints, a connection as a link of many streams, and the codes both sides use.
//!
//! Everything that names the QUIC library is in this folder, so that another one could take its
//! place.

mod admission_turns;
mod amplification;
mod announced_window;
mod cid_generator;
pub mod codes;
mod config;
mod congestion;
mod connect;
mod connection;
mod early;
#[cfg(test)]
mod fault_tests;
pub(crate) mod http3;
mod io;
mod known_paths;
mod listener;
mod multipath;
mod offered_protocols;
mod qlog;
mod quic_lb;
mod rate;

pub use config::{Congestion, QuicOptions};
pub use congestion::{Class as PathClass, GateState, Level as GateLevel, Reason as PathReason};
pub use connection::{Blocked, DatagramCounts, LoadCounts, Multi, ReceiveBudget};
pub use early::is_early_data_rejected;
pub use known_paths::KnownPaths;
pub use listener::EndpointHealth;
pub use multipath::{
    LocalPath, Multipath, PathChange, PathMode, PathNotice, PathReport, PathRole, PathState,
};
pub use quic_lb::{QuicHeader, QuicLb, QuicLbError, QuicLbFormat, QuicLbKey, ServerId};

pub(crate) use connect::{connect, connect_http3, connect_simulated};
pub(crate) use connection::ConnectionState;
pub(crate) use listener::{QuicIncoming, QuicListener};
